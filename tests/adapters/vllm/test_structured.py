# SPDX-License-Identifier: Apache-2.0
"""Tools, schemas, patterns and grammars over a running server: every answer conforms.

The weights are random, so nothing but the constraint makes an answer conform, and the judges are
jsonschema and Python's own parsers. A random model rarely ends a list by itself: a logit bias
makes it close what the constraint allows it to close.

The tools are strict: of others vLLM forces the call's form alone.
"""

import ast
import json
import random
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

pytest.importorskip("vllm")

import jsonschema

from tests.adapters.vllm.conftest import save_tokenizer
from tests.adapters.vllm.test_serve import Server
from tests.zoo import save_llama

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

OPTIONS = [
    "--max-model-len=512", "--max-num-seqs=8", "--num-gpu-blocks-override=1100",
    "--enable-auto-tool-choice", "--tool-call-parser=hermes", "--disable-uvicorn-access-log",
]  # fmt: skip

CHAT = "/v1/chat/completions"


def record(**properties):
    """The schema of an object that has to have all of these."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def array(items, least, most):
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


WORD = {"type": "string", "minLength": 1, "maxLength": 6}
ODD = {
    "empty object": {"type": "object", "properties": {}, "additionalProperties": False},
    "one value": record(only={"const": "this"}),
    "enum of kinds": record(pick={"enum": ["left", 7, None, True, "β"]}),
    "nested": record(a=record(b=record(c=record(d={"type": "boolean"})))),
    "array of arrays": record(grid=array(array({"enum": [0, 1]}, 2, 2), 2, 3)),
    "array of objects": record(rows=array(record(x={"type": "integer"}, y=WORD), 1, 3)),
    "unicode names": record(**{"αβγ": WORD, "a b": {"type": "null"}, "$ref-like": WORD}),
    "range over zero": record(n={"type": "integer", "minimum": -3, "maximum": 4}),
    "narrow range": record(n={"type": "integer", "minimum": 1998, "maximum": 2003}),
    "exclusive range": record(
        n={"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 12}
    ),
    "optional": {
        "type": "object",
        "properties": {"must": {"type": "boolean"}, "may": WORD, "might": {"type": "integer"}},
        "required": ["must"],
        "additionalProperties": False,
    },
    "alternatives": record(either={"anyOf": [{"type": "null"}, record(k=WORD)]}),
    "definitions": {
        **record(first={"$ref": "#/$defs/point"}, second={"$ref": "#/$defs/point"}),
        "$defs": {"point": record(x={"type": "integer", "minimum": 0, "maximum": 99})},
    },
    "pattern": record(code={"type": "string", "pattern": "^[A-C]{2}-[0-9]{3}$"}),
    "lengths": record(word={"type": "string", "minLength": 3, "maxLength": 5}),
    "number": record(x={"type": "number"}),
}  # fmt: skip


def random_schema(chance, depth=3):
    leaves = [
        WORD,
        {"type": "boolean"},
        {"type": "null"},
        {"type": "integer", "minimum": chance.randint(-50, 0), "maximum": chance.randint(1, 50)},
        {"enum": chance.sample(["red", "green", 1, -2, False, None, 'a"b'], 3)},
    ]
    if not depth:
        return chance.choice(leaves)
    kind = chance.choice(["leaf", "array", "record", "record"])
    if kind == "leaf":
        return chance.choice(leaves)
    if kind == "array":
        return array(random_schema(chance, depth - 1), chance.randint(0, 2), chance.randint(2, 3))
    names = chance.sample(["id", "Name", "ω", "x_1", "with space", "0"], chance.randint(1, 3))
    return record(**{name: random_schema(chance, depth - 1) for name in names})


RANDOM = [record(value=random_schema(random.Random(seed))) for seed in range(14)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("structured")
    save_llama(folder / "model", "awkward", max_position_embeddings=512)
    save_tokenizer(folder / "model")
    with Server(folder / "model", folder / "log.txt", *OPTIONS) as running:
        running.wait_until_ready()
        yield running
        assert "Traceback" not in running.text(), running.text()[-4000:]
        assert running.stop(signal.SIGTERM) == 0


@pytest.fixture(scope="module")
def bias(server):
    """Close where that is allowed, and put no blanks between."""
    from transformers import AutoTokenizer

    wanted = {'"': 40, "}": 40, "]": 40, "</s>": 40, " ": -40, "\n": -40}
    tokenizer = AutoTokenizer.from_pretrained(server.log.parent / "model")
    return {str(tokenizer.convert_tokens_to_ids(token)): by for token, by in wanted.items()}


def ask(server, path, **body):
    status, answer = server.post(path, {"max_tokens": 400, **body})
    assert status == 200, (body, answer)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] in {"stop", "tool_calls"}, (body, choice)
    return choice


FREE = [
    {"prompt": "free", "max_tokens": 60, "temperature": 0, "ignore_eos": True},
    {"prompt": "as a bird", "max_tokens": 50, "temperature": 1, "seed": 5, "ignore_eos": True},
    {"prompt": "b" * 40, "max_tokens": 40, "ignore_eos": True, "temperature": 0,
     "repetition_penalty": 1.3},
]  # fmt: skip


def free_tokens(server, body):
    status, answer = server.post("/v1/completions", {**body, "return_token_ids": True})
    assert status == 200, answer
    return answer["choices"][0]["token_ids"]


def together(server, jobs):
    """Results of the jobs, run eight at a time with free text, which has to stay as it was."""
    alone = [free_tokens(server, body) for body in FREE]
    mixed = []
    for number, job in enumerate(jobs):
        mixed.append(job)
        if number % 3 == 0:
            neighbour = number // 3 % len(FREE)
            mixed.append(lambda i=neighbour: (i, free_tokens(server, FREE[i])))
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda job: job(), mixed))
    free = [result for result in results if isinstance(result, tuple)]
    assert len(free) >= len(jobs) // 3
    assert all(tokens == alone[i] for i, tokens in free)
    return [result for result in results if not isinstance(result, tuple)]


def message(text):
    return [{"role": "user", "content": text}]


def tool(name, schema):
    function = {"name": name, "description": "d", "strict": True, "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = [tool(f"tool_{i}", schema) for i, schema in enumerate(ODD.values())]


@pytest.mark.parametrize("how", ["named", "required"])
def test_arguments_of_tools_conform(server, bias, how):
    def call(number):
        chosen = [TOOLS[number], TOOLS[number - 1]]
        name = TOOLS[number]["function"]["name"]
        choice = {"type": "function", "function": {"name": name}} if how == "named" else how
        sampling = {"temperature": 1, "seed": number} if number % 2 else {"temperature": 0}
        return ask(
            server, CHAT, messages=message("call"), tools=chosen, tool_choice=choice,
            parallel_tool_calls=False, logit_bias=bias, **sampling,
        )  # fmt: skip

    jobs = [lambda i=i: call(i) for i in range(len(TOOLS))]
    for number, choice in enumerate(together(server, jobs)):
        (made,) = choice["message"]["tool_calls"]
        allowed = {
            tool["function"]["name"]: tool["function"]["parameters"]
            for tool in [TOOLS[number], *([TOOLS[number - 1]] if how == "required" else [])]
        }
        arguments = json.loads(made["function"]["arguments"])
        jsonschema.validate(arguments, allowed[made["function"]["name"]])


def test_answers_of_schemas_conform(server, bias):
    def answer(number, schema):
        if number % 2:
            wrapped = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
            choice = ask(
                server, CHAT, messages=message("fill"), response_format=wrapped, temperature=0,
                logit_bias=bias,
            )  # fmt: skip
            return choice["message"]["content"]
        return ask(
            server, "/v1/completions", prompt="fill", structured_outputs={"json": schema},
            temperature=1, seed=number, logit_bias=bias,
        )["text"]  # fmt: skip

    schemas = [*ODD.values(), *RANDOM]
    assert len(schemas) >= 20
    jobs = [lambda n=n, s=s: answer(n, s) for n, s in enumerate(schemas)]
    for schema, text in zip(schemas, together(server, jobs), strict=True):
        jsonschema.validate(json.loads(text), schema)


SUM = r"""
root ::= "(" sum ")"
sum ::= term ("+" term){1,3}
term ::= number | "(" number "*" number ")"
number ::= [1-9] [0-9]{0,2}
"""
PALINDROME = r"""
root ::= "a" inner "a" | "b" inner "b"
inner ::= "" | "x" | root
"""


def is_sum(text):
    return re.fullmatch(r"[(].*[+].*[)]", text) and isinstance(eval(text), int) and ast.parse(text)


def is_palindrome(text):
    return text == text[::-1] and set(text) <= set("abx") and len(text) > 1


PATTERNS = ["[a-c]{2,5}x", "(yes|no)( (yes|no)){2}", r"\d{3}-\d{2}", "[^a-zA-Z]{4}", "(βδ)+λ?"]
CHOICES = [["left", "right"], ["a", "ab", "abc"], ["πρσ", "x y"], ["{", "}"], ["only"]]


def test_patterns_choices_and_grammars_are_obeyed(server, bias):
    judged = [({"regex": pattern}, re.compile(pattern).fullmatch) for pattern in PATTERNS]
    judged += [({"choice": choice}, choice.__contains__) for choice in CHOICES]
    judged += [({"grammar": SUM}, is_sum), ({"grammar": PALINDROME}, is_palindrome)] * 2
    jobs = [
        lambda seed=seed, constraint=constraint: ask(
            server, "/v1/completions", prompt="go", structured_outputs=constraint, logit_bias=bias,
            temperature=1, seed=seed,
        )["text"]
        for seed, (constraint, _) in enumerate(judged)
    ]  # fmt: skip
    texts = together(server, jobs)
    for (constraint, obeys), text in zip(judged, texts, strict=True):
        assert obeys(text), (constraint, text)
    assert any(first != second for first, second in pairwise(texts[-4:]))


def test_a_streamed_tool_call_adds_up(server, bias):
    body = {
        "messages": message("call"), "tools": TOOLS[3:5], "tool_choice": "required",
        "parallel_tool_calls": False, "temperature": 0, "logit_bias": bias, "max_tokens": 400,
    }  # fmt: skip
    status, whole = server.post(CHAT, body)
    assert status == 200
    (expected,) = whole["choices"][0]["message"]["tool_calls"]
    pieces = [
        call["function"]
        for event in server.events(CHAT, body)
        for choice in event["choices"]
        for call in choice["delta"].get("tool_calls") or []
    ]
    assert "".join(piece.get("name") or "" for piece in pieces) == expected["function"]["name"]
    arguments = "".join(piece.get("arguments") or "" for piece in pieces)
    assert json.loads(arguments) == json.loads(expected["function"]["arguments"])


BAD_TOOLS = {
    "a tool that is not there": {"tool_choice": {"type": "function", "function": {"name": "z"}}},
    "no tools": {"tools": [], "tool_choice": "required"},
    "tools of nothing": {"tools": [{}], "tool_choice": "required"},
    "a schema of another type": {"tools": [tool("t", {"type": "objekt"})]},
    "a reference to nowhere": {"tools": [tool("t", record(a={"$ref": "#/$defs/none"}))]},
}


@pytest.mark.parametrize("body", BAD_TOOLS.values(), ids=BAD_TOOLS)
def test_bad_tools_get_a_400_and_the_server_lives(server, body):
    asked = {"messages": message("x"), "tools": TOOLS[:1], "tool_choice": "required", **body}
    status, answer = server.post(CHAT, {"max_tokens": 5, **asked})
    assert 400 <= status < 500, answer
    assert answer["error"]["message"]
    assert free_tokens(server, FREE[0])

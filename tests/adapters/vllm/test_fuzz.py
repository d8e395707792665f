# SPDX-License-Identifier: Apache-2.0
"""Random clients against one server: good, bad, impatient and many at once."""

import collections
import contextlib
import http.client
import json
import random
import re
import signal
import string
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("vllm")

from tests.adapters.vllm import test_serve

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

COMPLETE = "/v1/completions"
CHAT = "/v1/chat/completions"
SEED = 0
CLIENTS = 8
ACTIONS = 60  # of each client
MAX_LEN = 64  # as test_serve starts it
VOCAB = 131
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "side": {"enum": ["left", "right"]}},
    "required": ["ok", "side"],
    "additionalProperties": False,
}
# Fewer blocks than four requests of full length fill, so that some are preempted.
OPTIONS = [
    "--num-gpu-blocks-override=40", "--disable-uvicorn-access-log", "--enable-auto-tool-choice",
    "--tool-call-parser=hermes", "--enable-request-id-headers",
    '--additional-config={"neuron_config": {"max_prefills_per_batch": 3}}',
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    log = tmp_path_factory.mktemp("fuzz") / "log.txt"
    with test_serve.Server(tiny[0], log, *OPTIONS) as running:
        running.wait_until_ready()
        yield running


# --- requests ------------------------------------------------------------------------------------


def random_prompt(chance, longest=MAX_LEN - 1):
    """Text or token ids, and its length; many begin alike."""
    length = chance.randint(1, longest)
    if chance.random() < 0.5:
        shared = "The same beginning of many prompts, over several blocks of positions."
        common = chance.choice([0, chance.randint(0, length)])
        own = "".join(chance.choices(string.ascii_letters + string.digits + " ", k=length))
        return (shared[:common] + own)[:length], length
    return [chance.randrange(VOCAB) for _ in range(length)], length


def random_parameters(chance):
    """Sampling parameters that are fine."""
    params = dict(
        chance.choice([
            {"temperature": 0},
            {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
            {"temperature": 1.0, "seed": chance.randrange(2**32)},
            {"temperature": 0.7, "top_p": 0.8, "top_k": chance.choice([-1, 0, 1, 5, 500])},
            {"temperature": 2.0, "min_p": 0.1, "frequency_penalty": -1.0},
            {"temperature": 1.5, "n": chance.randint(2, 4)},
        ])
    )  # fmt: skip
    extras = [
        {"logit_bias": {str(chance.randrange(VOCAB)): chance.choice([-100, 5])}},
        {"stop": ["a", "bc"]},
        {"stop_token_ids": [chance.randrange(VOCAB)]},
        {"bad_words": ["a"]},
        {"allowed_token_ids": list(range(3, 20))},
        {"ignore_eos": True},
    ]
    for extra in chance.sample(extras, chance.choice([0, 0, 1, 2])):
        params |= extra
    return params


def valid_completion(chance):
    prompt, length = random_prompt(chance)
    body = {"prompt": prompt, "max_tokens": chance.randint(1, MAX_LEN - length)}
    body |= random_parameters(chance)
    if chance.random() < 0.3:
        body["logprobs"] = chance.randint(0, 5)
    if chance.random() < 0.2:
        body["min_tokens"] = chance.randint(1, body["max_tokens"])
    return "/v1/completions", body


def valid_chat(chance):
    text, length = random_prompt(chance, 40)
    if isinstance(text, list):
        text = "x" * length
    body = {"messages": [{"role": "user", "content": text}], **random_parameters(chance)}
    if chance.random() < 0.7:
        body["max_tokens"] = chance.randint(1, MAX_LEN - length - 5)
    if chance.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": chance.randint(0, 5)}
    return "/v1/chat/completions", body


GRAMMARS = [
    ({"choice": ["left", "right", "r"]}, lambda text: text in {"left", "right", "r"}),
    ({"regex": "[a-c]{2,5}x"}, re.compile("[a-c]{2,5}x").fullmatch),
    ({"json": SCHEMA}, lambda text: json.loads(text)["side"] in {"left", "right"}),
]


TOOL = {"type": "function", "function": {"name": "turn", "strict": True, "parameters": SCHEMA}}
SAID = [{"role": "user", "content": "hi"}]
BAD_CHATS = [
    {"messages": []}, {"messages": "a"}, {"messages": [{}]}, {"messages": SAID, "tools": [{}]},
    {"messages": SAID, "tools": [TOOL], "tool_choice": "perhaps"},
    {"messages": SAID, "tools": [], "tool_choice": "required"},
    {"messages": SAID, "tools": [TOOL],
     "tool_choice": {"type": "function", "function": {"name": "none"}}},
    {"messages": SAID, "top_logprobs": 3},
]  # fmt: skip
UNICODE = [
    "ε" * 20,
    "naïve café",
    "日本語のテキスト",
    "🙂🙂 👩‍👩‍👧",
    "\u202eabc\u0000\ud7ff",
    "a\u0301" * 9,
]


def invalid(chance):
    """A request that nobody could serve: path, and a body of bytes or of JSON."""
    good = {"model": "tiny", "prompt": "abc", "max_tokens": 3}
    text = json.dumps(good).encode()
    kinds = [
        *test_serve.BAD.values(),
        {"model": "large"}, {"max_tokens": "many"}, {"n": 0}, {"n": -1}, {"n": 2, "temperature": 0},
        {"prompt": None}, {"prompt": {"a": 1}}, {"prompt": ["a", 5]}, {"stop": 7}, {"seed": 2**70},
        {"min_tokens": 9}, {"top_k": -7}, {"min_p": 3}, {"repetition_penalty": 0},
        {"presence_penalty": 9}, {"temperature": "hot"}, {"logprobs": -5}, {"stream": "perhaps"},
        {"prompt": [chance.randrange(VOCAB, 2**31)]}, {"prompt": [-chance.randrange(1, 2**40)]},
        {"prompt": "y" * chance.randint(MAX_LEN, 5000)}, {"prompt": [3] * chance.randint(65, 999)},
        {"allowed_token_ids": []}, {"allowed_token_ids": [VOCAB]}, {"bad_words": [""]},
        {"structured_outputs": {"json": "{"}}, {"structured_outputs": {"grammar": "root ::="}},
        {"structured_outputs": {"choice": []}}, {"max_tokens": 10**9}, {"max_tokens": 2**70},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}}, {"prompt": "\0" * 90},
        {"stop": ["x"] * 99}, {"echo": True, "max_tokens": 65},
        {"response_format": {"type": "json_schema"}}, {"logit_bias": {"a": 1}},
        text[: chance.randrange(len(text))], b"[]", b"null", b"\xff\xfe" + text, text + b"}",
    ]  # fmt: skip
    body = chance.choice(kinds)
    if isinstance(body, dict):
        body = {**good, **body}
    if chance.random() < 0.2:
        return "/v1/chat/completions", {"model": "tiny", **chance.choice(BAD_CHATS)}
    return "/v1/completions", body


# --- clients -------------------------------------------------------------------------------------


class Client:
    """One user: keeps count of what it did."""

    def __init__(self, server, chance, probes):
        self.server, self.chance, self.probes = server, chance, probes
        self.done = collections.Counter()

    @contextlib.contextmanager
    def opened(self, path, body, headers=None):
        """A connection with the request sent and nothing read."""
        headers = {"Content-Type": "application/json", **(headers or {})}
        data = body if isinstance(body, bytes) else json.dumps({"model": "tiny", **body}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.request("POST", path, data, headers)
            yield connection
        finally:
            connection.close()

    def ask(self, path, body):
        with self.opened(path, body) as connection:
            answer = connection.getresponse()
            text = answer.read().decode()
        self.done[f"{answer.status // 100}xx"] += 1
        assert answer.status < 500, (answer.status, path, body, text)
        return answer.status, json.loads(text)

    def events(self, path, body):
        """Decoded events of a stream that ends as it should."""
        with self.opened(path, {**body, "stream": True}) as connection:
            answer = connection.getresponse()
            self.done[f"{answer.status // 100}xx"] += 1
            assert answer.status == 200, (answer.status, body, answer.read())
            payload = ""
            for line in answer:
                payload = line.decode().removeprefix("data: ").strip() or payload
                if payload != "[DONE]" and line.strip():
                    event = json.loads(payload)
                    assert "error" not in event, (body, event)
                    yield event
            assert payload == "[DONE]", (body, payload)

    def complete(self):
        path, body = self.chance.choice([valid_completion, valid_chat])(self.chance)
        status, answer = self.ask(path, body)
        assert status == 200, (body, answer)
        assert len(answer["choices"]) == body.get("n", 1)
        assert all(choice["finish_reason"] in {"length", "stop"} for choice in answer["choices"])
        limit = body.get("max_tokens", MAX_LEN) * body.get("n", 1)
        assert 0 < answer["usage"]["completion_tokens"] <= limit

    def stream(self):
        path, body = self.chance.choice([valid_completion, valid_chat])(self.chance)
        choices = [choice for event in self.events(path, body) for choice in event["choices"]]
        ends = [choice["index"] for choice in choices if choice["finish_reason"]]
        assert sorted(ends) == list(range(body.get("n", 1))), (body, ends)

    def several_prompts(self):
        prompts = [random_prompt(self.chance, 30)[0] for _ in range(self.chance.randint(2, 6))]
        prompts = [prompt for prompt in prompts if isinstance(prompt, type(prompts[0]))]
        status, answer = self.ask(
            "/v1/completions", {"prompt": prompts, "max_tokens": 8, "temperature": 0}
        )
        assert status == 200 and len(answer["choices"]) == len(prompts), answer

    def structured(self):
        grammar, holds = self.chance.choice(GRAMMARS)
        body = {"prompt": "pick", "structured_outputs": grammar, "max_tokens": 60}
        body["temperature"] = self.chance.choice([0, 1])
        status, answer = self.ask("/v1/completions", body)
        assert status == 200, (body, answer)
        (choice,) = answer["choices"]
        # Blanks may go on until the length ends the request.
        assert choice["finish_reason"] == "length" or holds(choice["text"]), (body, choice)

    def refused(self):
        path, body = invalid(self.chance)
        status, answer = self.ask(path, body)
        assert 400 <= status < 500, (path, body, answer)

    def known(self):
        """An answer that was seen before the traffic began."""
        body, expected = self.chance.choice(self.probes)
        assert self.tokens(body) == expected, body

    def tokens(self, body):
        status, answer = self.ask("/v1/completions", {**body, "return_token_ids": True})
        assert status == 200, (body, answer)
        return [choice["token_ids"] for choice in answer["choices"]]

    def hang_up_early(self):
        """While the request waits, or during its prefill."""
        path, body = self.chance.choice([valid_completion, valid_chat])(self.chance)
        with self.opened(path, {**body, "stream": self.chance.random() < 0.5}):
            time.sleep(self.chance.random() * 0.05)

    def hang_up_late(self):
        """In the middle of the generation."""
        body = {"prompt": "go on", "max_tokens": 50, "temperature": 0, "ignore_eos": True}
        events = self.events("/v1/completions", body)
        for _ in range(self.chance.randint(1, 20)):
            next(events, None)  # tokens that wait for a slow reader come in one event
        events.close()

    def hang_up_in_prefill(self):
        """In the middle of a prompt of several steps, two of which are there at once."""
        path, body = "/v1/completions", {"prompt": "z" * 62, "max_tokens": 2}
        with self.opened(path, body), self.opened(path, body | {"prompt": "y" * 63}):
            time.sleep(self.chance.random() * 0.02)

    def unicode(self):
        text = self.chance.choice(UNICODE)
        body = {"prompt": text, "max_tokens": 9, "stop": [text[:2]], "ignore_eos": True}
        status, answer = self.ask("/v1/completions", body)
        assert status == 200, (text, answer)

    def echo(self):
        text = "".join(self.chance.choices(string.ascii_letters, k=self.chance.randint(1, 50)))
        body = {"prompt": text, "echo": True, "max_tokens": self.chance.randint(0, 10)}
        status, answer = self.ask("/v1/completions", body)
        assert status == 200 and answer["choices"][0]["text"].startswith(text), (body, answer)

    def tools(self):
        named = {"type": "function", "function": {"name": "turn"}}
        choice = self.chance.choice(["auto", "none", "required", named])
        body = {"messages": SAID, "tools": [TOOL], "tool_choice": choice, "temperature": 1}
        if self.chance.random() < 0.3:
            ends = [c["finish_reason"] for e in self.events(CHAT, body) for c in e["choices"]]
            assert any(ends), body
            return
        status, answer = self.ask(CHAT, body)
        assert status == 200, (body, answer)

    def same_id(self):
        """Requests of one id at a time; each gets its own answer."""
        headers = {"X-Request-Id": self.chance.choice(["twin", "twins"])}
        body = {"prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        with contextlib.ExitStack() as stack:
            twins = [stack.enter_context(self.opened(COMPLETE, body, headers)) for _ in range(3)]
            answers = [twin.getresponse() for twin in twins]
            texts = [json.loads(answer.read())["choices"][0]["text"] for answer in answers]
        assert len({*texts}) == 1, texts

    def burst(self):
        """Twelve at once, the answers read afterwards."""
        with contextlib.ExitStack() as stack:
            connections = []
            for _ in range(12):
                path, body = valid_completion(self.chance)
                connections.append(stack.enter_context(self.opened(path, body)))
            for connection in connections:
                answer = connection.getresponse()
                self.done[f"{answer.status // 100}xx"] += 1
                assert answer.status == 200, answer.read()

    def run(self, count, deadline):
        weights = ACTIONS_BY_WEIGHT.values()
        for action in self.chance.choices(list(ACTIONS_BY_WEIGHT), list(weights), k=count):
            if time.monotonic() > deadline:
                break
            action(self)
            self.done[action.__name__] += 1
        return self.done


ACTIONS_BY_WEIGHT = {
    Client.complete: 6, Client.stream: 5, Client.several_prompts: 1, Client.structured: 3,
    Client.refused: 8, Client.known: 6, Client.hang_up_early: 5, Client.hang_up_late: 4,
    Client.hang_up_in_prefill: 3, Client.unicode: 2, Client.echo: 2, Client.tools: 3,
    Client.same_id: 1, Client.burst: 0.5,
}  # fmt: skip


def metrics(server):
    """All metrics as text."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def compilations(server):
    """Every program, when it was compiled and how long that took."""
    lines = metrics(server).splitlines()
    return [line for line in lines if line.startswith("trnport:compilation_time_seconds")]


def gauge(server, name):
    """The sum of a metric over its labels."""
    values = re.findall(rf"^vllm:{name}(?:{{[^}}]*}})? (\S+)$", metrics(server), re.MULTILINE)
    assert values, name
    return sum(map(float, values))


HELD = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
PROBES = [
    {"prompt": "hello", "max_tokens": 8, "temperature": 0},
    {"prompt": "The same beginning of many prompts, over several", "max_tokens": 12},
    {"prompt": [5, 3, 130, 7], "max_tokens": 60, "temperature": 0, "repetition_penalty": 1.4},
    {"prompt": "b" * 33, "max_tokens": 31, "temperature": 1.0, "seed": 11, "top_k": 20},
    {"prompt": "seeds", "max_tokens": 20, "temperature": 1.2, "seed": 3, "n": 2},
]


@pytest.mark.compiled
def test_a_server_survives_its_users(server, capsys):
    started = time.monotonic()
    compiled = compilations(server)
    assert compiled, "warm-up compiles every program"
    first = Client(server, random.Random(SEED), [])
    bodies = [{"temperature": 0, "ignore_eos": True, **probe} for probe in PROBES]
    probes = [(body, first.tokens(body)) for body in bodies]
    clients = [Client(server, random.Random(f"{SEED}-{i}"), probes) for i in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        deadline = started + 120
        counts = sum(
            pool.map(lambda client: client.run(ACTIONS, deadline), clients), collections.Counter()
        )
    for body, expected in probes:
        assert first.tokens(body) == expected, body
    deadline = time.monotonic() + 20
    while held := {name: value for name in HELD if (value := gauge(server, name))}:
        assert time.monotonic() < deadline, held
        time.sleep(0.2)
    preemptions = gauge(server, "num_preemptions_total")
    assert compilations(server) == compiled
    # vLLM's own shutdown may log that its engine is gone, so the log is read before it.
    # A tool call that the length cuts off is no JSON, which vLLM's parser logs with a traceback.
    log = [line for line in server.text().splitlines() if "hermes_tool_parser.py" not in line]
    assert not [line for line in log if "Traceback" in line], "\n".join(log[-80:])
    assert "UnseenSignatureError" not in server.text()
    assert server.stop(signal.SIGTERM) == 0, server.text()[-4000:]
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    with capsys.disabled():
        print(
            f"\nfuzz: seed {SEED}, {CLIENTS} clients, {time.monotonic() - started:.0f} s, "
            f"{preemptions:.0f} preemptions, nothing held at the end: {kinds}"
        )
    assert preemptions
    assert not {action.__name__ for action in ACTIONS_BY_WEIGHT} - counts.keys()

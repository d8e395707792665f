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
OPTIONS = ["--num-gpu-blocks-override=40", "--disable-uvicorn-access-log"]


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
        {"structured_outputs": {"choice": []}},
        text[: chance.randrange(len(text))], b"[]", b"null", b"\xff\xfe" + text, text + b"}",
    ]  # fmt: skip
    body = chance.choice(kinds)
    if isinstance(body, dict):
        body = {**good, **body}
    if chance.random() < 0.1:
        return "/v1/chat/completions", {"model": "tiny", "messages": chance.choice([[], "a", [{}]])}
    return "/v1/completions", body


# --- clients -------------------------------------------------------------------------------------


class Client:
    """One user: keeps count of what it did."""

    def __init__(self, server, chance, probes):
        self.server, self.chance, self.probes = server, chance, probes
        self.done = collections.Counter()

    @contextlib.contextmanager
    def opened(self, path, body):
        """A connection with the request sent and nothing read."""
        data = body if isinstance(body, bytes) else json.dumps({"model": "tiny", **body}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.request("POST", path, data, {"Content-Type": "application/json"})
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
            next(events)
        events.close()

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
        actions = {
            self.complete: 6, self.stream: 5, self.several_prompts: 1, self.structured: 3,
            self.refused: 8, self.known: 6, self.hang_up_early: 5, self.hang_up_late: 4,
            self.burst: 0.5,
        }  # fmt: skip
        for action in self.chance.choices(list(actions), list(actions.values()), k=count):
            if time.monotonic() > deadline:
                break
            action()
            self.done[action.__name__] += 1
        return self.done


def gauge(server, name):
    """The sum of a metric over its labels."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    values = re.findall(rf"^vllm:{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
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


def test_a_server_survives_its_users(server, capsys):
    started = time.monotonic()
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
    # vLLM's own shutdown may log that its engine is gone, so the log is read before it.
    assert "Traceback" not in server.text(), server.text()[-8000:]
    assert "UnseenSignatureError" not in server.text()
    assert server.stop(signal.SIGTERM) == 0, server.text()[-4000:]
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    with capsys.disabled():
        print(
            f"\nfuzz: seed {SEED}, {CLIENTS} clients, {time.monotonic() - started:.0f} s, "
            f"{preemptions:.0f} preemptions, nothing held at the end: {kinds}"
        )
    assert counts["known"] and counts["hang_up_late"] and preemptions

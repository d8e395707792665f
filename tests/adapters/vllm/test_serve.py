# SPDX-License-Identifier: Apache-2.0
"""Whole processes: scripts that end with 0, and a server that survives its clients."""

import base64
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("vllm")

from tests import compiling

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

LIMITS = [
    "--dtype=float32", "--max-model-len=64", "--max-num-seqs=4", "--max-num-batched-tokens=32",
    "--block-size=4", "--num-gpu-blocks-override=65",
]  # fmt: skip


def test_a_script_ends_with_0_and_no_traceback(tiny):
    code = f"""
        from vllm import LLM, SamplingParams
        if __name__ == "__main__":
            llm = LLM({str(tiny[0])!r}, dtype="float32", max_model_len=64, max_num_seqs=2,
                      max_num_batched_tokens=32, num_gpu_blocks_override=20)
            out = llm.generate("hello", SamplingParams(max_tokens=4, temperature=0))
            print("tokens", len(out[0].outputs[0].token_ids))
    """
    path = tiny[0] / "script.py"
    path.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "tokens 4" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


class Server:
    """A running ``vllm serve``; leaving its ``with`` block kills what still runs."""

    def __init__(self, folder, log, *options):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder)]
        command += ["--served-model-name=tiny", f"--port={self.port}", "--host=127.0.0.1"]
        command += compiling.server_options([*LIMITS, *options])
        self.log = log
        self.process = subprocess.Popen(
            command, stdout=log.open("w"), stderr=subprocess.STDOUT, start_new_session=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def wait_until_ready(self, seconds=500):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.text()[-4000:]
            try:
                with urllib.request.urlopen(self.url("/health"), timeout=5):
                    return
            except OSError:
                time.sleep(0.5)
        raise TimeoutError(self.text()[-4000:])

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def text(self):
        return self.log.read_text()

    def post(self, path, body, timeout=120, headers=None):
        """Status and decoded answer."""
        data = body if isinstance(body, bytes) else json.dumps({"model": "tiny", **body}).encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url(path), data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def events(self, path, body):
        """Decoded events of a streamed answer."""
        data = json.dumps({"model": "tiny", "stream": True, **body}).encode()
        request = urllib.request.Request(
            self.url(path), data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            for line in answer:
                payload = line.decode().removeprefix("data: ").strip()
                if payload and payload != "[DONE]":
                    yield json.loads(payload)

    def stream(self, body):
        """Text pieces of a streamed completion."""
        for event in self.events("/v1/completions", body):
            yield event["choices"][0]["text"]

    def stop(self, how):
        self.process.send_signal(how)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    log = tmp_path_factory.mktemp("serve") / "log.txt"
    with Server(tiny[0], log, "--enable-prompt-embeds") as running:
        running.wait_until_ready()
        yield running
        assert running.stop(signal.SIGTERM) == 0, running.text()[-4000:]
        assert "Traceback" not in running.text()


def test_the_log_says_what_it_waits_for_and_where_the_time_went(server):
    log = server.text()
    first = log.index("warm-up program=prefill_s32 number=1 of=6")
    assert first < log.index("warm-up program=lm_head_r32 number=6 of=6") < log.index("started ")
    fields = dict(re.findall(r"(\w+)=([\d.]+)", log[log.index("started ") :].splitlines()[0]))
    seconds = {name: float(value) for name, value in fields.items()}
    parts = ["imports", "engine_process", "weights", "kv_cache", "programs", "warm_up", "other"]
    assert sum(seconds[name] for name in parts) == pytest.approx(seconds["seconds"], abs=0.5)


GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def completion(server, prompt="hello", headers=None, **params):
    body = {"prompt": prompt, **GREEDY, **params}
    status, answer = server.post("/v1/completions", body, headers=headers)
    assert status == 200, answer
    return answer["choices"][0]["text"]


def test_streaming_gives_the_same_text_in_pieces(server):
    pieces = list(server.stream({"prompt": "hello", **GREEDY}))
    assert len([p for p in pieces if p]) > 1
    assert "".join(pieces) == completion(server)


def test_chat_completion(server):
    status, answer = server.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **GREEDY}
    )
    assert status == 200 and len(answer["choices"][0]["message"]["content"]) == 8


def test_the_default_length_is_what_remains(server):
    status, answer = server.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "ignore_eos": True},
    )
    assert status == 200, answer
    assert answer["usage"]["total_tokens"] == 64


def test_concurrent_requests_equal_single_ones(server):
    prompts = ["a", "some longer prompt, longer than the budget of a step", "b" * 20, "xyz"]
    alone = [completion(server, p) for p in prompts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda p: completion(server, p), prompts * 2))
    assert together == alone * 2


BAD = {
    "empty text": {"prompt": ""},
    "no tokens": {"prompt": []},
    "empty batch": {"prompt": [[]]},
    "prompt at the limit": {"prompt": "x" * 64, "max_tokens": 1},
    "prompt over the limit": {"prompt": "x" * 500, "max_tokens": 1},
    "token outside the vocabulary": {"prompt": [5, 131]},
    "huge token": {"prompt": [5, 2**40]},
    "negative token": {"prompt": [5, -1]},
    "prompt logprobs over the limit": {"prompt": "a", "prompt_logprobs": 21},
    "temperature": {"prompt": "a", "temperature": -1},
    "top_p": {"prompt": "a", "top_p": 0},
    "max_tokens": {"prompt": "a", "max_tokens": -3},
    "logit bias": {"prompt": "a", "logit_bias": {"9999": 1.0}},
    "logprobs over the limit": {"prompt": "a", "logprobs": 1000},
    "grammar": {"prompt": "a", "structured_outputs": {"regex": "(["}},
    "thinking budget": {"prompt": "a", "thinking_token_budget": 3},
    "not JSON": b"{",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_a_bad_request_gets_a_400_and_the_server_lives(server, body):
    if isinstance(body, dict):
        body = {"max_tokens": 4, **body}
    status, answer = server.post("/v1/completions", body)
    assert 400 <= status < 500, answer
    assert answer["error"]["message"]
    assert completion(server)


def test_the_refusal_names_the_parameter(server):
    _, answer = server.post("/v1/completions", {"prompt": "a", "prompt_logprobs": 21})
    assert "prompt logprobs of 21" in answer["error"]["message"]
    assert answer["error"]["param"] == "prompt_logprobs"


def encoded(rows):
    """A tensor as the API takes it."""
    import torch

    buffer = io.BytesIO()
    torch.save(rows, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def test_embeddings_of_a_prompt_in_its_place(server, tiny):
    from transformers import AutoTokenizer

    text = "a prompt of more than thirty-two tokens, in chunks"
    ids = AutoTokenizer.from_pretrained(tiny[0])(text)["input_ids"]
    rows = tiny[1].get_input_embeddings().weight.detach()[ids]
    body = {"prompt_embeds": encoded(rows), **GREEDY}
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    assert answer["choices"][0]["text"] == completion(server, text)
    for wrong in (encoded(rows[:, 1:]), encoded(rows.int()), encoded(rows[0]), "AAAA", "?"):
        status, answer = server.post("/v1/completions", body | {"prompt_embeds": wrong})
        assert status == 400, answer
    assert completion(server)


def test_echo_scores_the_prompt(server, tiny):
    import torch
    from transformers import AutoTokenizer

    text = "the prompt of an evaluation is longer than one chunk"
    status, answer = server.post(
        "/v1/completions", {"prompt": text, "echo": True, "logprobs": 1, **GREEDY, "max_tokens": 1}
    )
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["text"].startswith(text)
    ids = AutoTokenizer.from_pretrained(tiny[0])(text)["input_ids"]
    with torch.no_grad():
        rows = tiny[1](torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [rows[i, token].item() for i, token in enumerate(ids[1:])]
    found = choice["logprobs"]["token_logprobs"]
    assert found[0] is None and len(found) == len(ids) + 1
    assert found[1 : len(ids)] == pytest.approx(expected, abs=1e-4)


def test_structured_output(server):
    status, answer = server.post(
        "/v1/completions",
        {
            "prompt": "pick",
            "structured_outputs": {"choice": ["left", "right"]},
            "temperature": 0,
            "max_tokens": 8,
        },
    )
    assert status == 200, answer
    assert answer["choices"][0]["text"] in {"left", "right"}


def test_a_client_that_hangs_up_is_forgotten(server):
    for _ in range(3):
        pieces = server.stream({"prompt": "hello", **GREEDY, "max_tokens": 55})
        next(pieces)
        pieces.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with urllib.request.urlopen(server.url("/metrics"), timeout=10) as answer:
            metrics = answer.read().decode()
        running = [x for x in metrics.splitlines() if x.startswith("vllm:num_requests_running")]
        if running and all(line.endswith(" 0.0") for line in running):
            break
        time.sleep(0.2)
    else:
        pytest.fail(f"requests are still running: {running}")
    assert completion(server)


@pytest.mark.parametrize("how", [signal.SIGINT])
def test_the_server_stops_cleanly(tiny, tmp_path, how):
    with Server(tiny[0], tmp_path / "log.txt") as other:
        other.wait_until_ready()
        assert other.stop(how) == 0, other.text()[-4000:]
        assert "Traceback" not in other.text()


def test_a_damaged_checkpoint_is_reported_and_ends_the_process(tiny, tmp_path):
    import shutil

    folder = tmp_path / "damaged"
    shutil.copytree(tiny[0], folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with Server(folder, tmp_path / "log.txt") as other:
        assert other.process.wait(240) != 0
        assert "model.safetensors" in other.text() and "CheckpointError" in other.text()

# SPDX-License-Identifier: Apache-2.0
"""Several processes: tensor parallelism, replicas, and what a killed worker does to a server.

The model has 6 query heads over 2 KV heads: two ranks hold one KV head each, of three ranks the
middle one needs both.
"""

import contextlib
import json
import multiprocessing
import re
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from tests.adapters.vllm.conftest import DEFAULTS, generate, greedy_reference, open_llm
from tests.adapters.vllm.test_config import config_for
from tests.adapters.vllm.test_llm import prompt
from tests.adapters.vllm.test_serve import GREEDY, Server, completion
from trnport.adapters.vllm.refusals import _parallel

pytestmark = pytest.mark.vllm

LENGTHS = (1, 40, 7, 12, 33, 2, 25)
"""Two of the prompts are over the budget of a step, 32 tokens, and computed in chunks."""

SEEDED = {"temperature": 1.0, "top_p": 0.9, "seed": 5}

SCRIPT = """
    import json, sys
    from vllm import LLM, SamplingParams

    def generate(llm, prompts, **params):
        params = {"temperature": 0, "ignore_eos": True, "max_tokens": 10, **params}
        prompts = [{"prompt_token_ids": ids} for ids in prompts]
        return llm.generate(prompts, SamplingParams(**params), use_tqdm=False)

    def tokens(outputs):
        return [list(output.outputs[0].token_ids) for output in outputs]

    if __name__ == "__main__":
        model, settings, prompts, again, seeded, answer = map(json.loads, sys.argv[1:])
        llm = LLM(model, **settings)
        result = {"greedy": tokens(generate(llm, prompts))}
        hit = generate(llm, [again])
        result |= {"hit": tokens(hit), "cached": hit[0].num_cached_tokens}
        result["seeded"] = tokens(generate(llm, prompts, **seeded))
        with open(answer, "w") as file:
            json.dump(result, file)
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """What a configuration sets in this process's environment ends with the test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("OMP_NUM_THREADS")


ON_DEVICE = {"additional_config": {"neuron_config": {"on_device_sampling_config": {}}}}


@pytest.mark.slow
@pytest.mark.parametrize(("tp", "extra"), [(2, {}), (3, ON_DEVICE)], ids=["2-host", "3-device"])
def test_ranks_give_the_tokens_of_one_and_the_script_ends_with_0(tiny, tmp_path, tp, extra):
    folder, model = tiny
    with open_llm(folder, **extra) as engine:
        one_rank = generate(engine, [prompt(n) for n in LENGTHS], 10, **SEEDED)
    prompts = [prompt(n) for n in LENGTHS]
    again = [*prompts[1][:30], *prompt(9, seed=1)]
    arguments = [
        str(folder), {**DEFAULTS, **extra, "tensor_parallel_size": tp}, prompts, again, SEEDED,
        str(tmp_path / "answer.json"),
    ]  # fmt: skip
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, str(script), *map(json.dumps, arguments)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stdout + done.stderr
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["greedy"] == [greedy_reference(model, ids, 10) for ids in prompts]
    assert answer["hit"] == [greedy_reference(model, again, 10)]
    assert answer["cached"] == 28, "7 whole blocks of 4 are shared"
    assert answer["seeded"] == one_rank


@pytest.mark.parametrize(
    ("tp", "message"),
    [(4, r"heads \(6\) must be divisible by tensor parallel size \(4\)"), (12, r"\(6\).*\(12\)")],
)
def test_a_degree_that_does_not_divide_is_refused_before_anything_starts(tiny, tp, message):
    with pytest.raises(ValueError, match=message):
        config_for(tiny[0], tensor_parallel_size=tp)
    assert not [p for p in multiprocessing.active_children() if "Vllm" in p.name]


REFUSED = {
    "pipeline_parallel_size": (2, "pipeline_parallel_size=2"),
    "decode_context_parallel_size": (2, "decode_context_parallel_size=2"),
    "nnodes": (2, "nnodes=2.*one machine"),
    "data_parallel_backend": ("ray", "data_parallel_backend='ray'.*'mp'"),
    "distributed_executor_backend": ("ray", "'ray'.*'mp'"),
}


@pytest.mark.parametrize("is_moe", [False, True])
def test_replicas_are_for_models_without_experts(tiny, is_moe):
    config = config_for(tiny[0], data_parallel_size=2)
    config.model_config = SimpleNamespace(is_moe=is_moe)
    problems = list(_parallel(config))
    assert len(problems) == is_moe
    assert all("data_parallel_size=2" in problem for problem in problems)


@pytest.mark.parametrize("name", REFUSED)
def test_other_ways_to_spread_are_refused_by_name(tiny, name):
    config = config_for(tiny[0])
    value, message = REFUSED[name]
    setattr(config.parallel_config, name, value)
    (problem,) = _parallel(config)
    assert re.search(message, problem)


@contextlib.contextmanager
def serving(folder, log, *options):
    with Server(folder, log, *options) as server:
        server.wait_until_ready()
        yield server


def workers(server):
    """The server's worker processes, which name themselves."""
    import psutil

    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child for child in children if "VLLM::Worker" in " ".join(child.cmdline())]


def all_end(processes, seconds=10):
    """Whether they do; nobody may be there to collect an orphan, so a zombie has ended."""
    deadline = time.monotonic() + seconds
    while any(map(is_alive, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def is_alive(process):
    import psutil

    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_a_killed_rank_ends_its_request_and_the_server(tiny, tmp_path):
    with (
        serving(tiny[0], tmp_path / "log.txt", "--tensor-parallel-size=2") as server,
        ThreadPoolExecutor(1) as pool,
    ):
        ranks = workers(server)
        assert len(ranks) == 2
        assert completion(server)
        # As many requests as it takes, so that one of them is running.
        request = pool.submit(until_it_fails, server)
        time.sleep(1)
        ranks[1].kill()
        assert request.result(30) >= 500
        server.process.wait(30)
        assert "Worker proc VllmWorker-1 died unexpectedly" in server.text()
        assert all_end(ranks)


def until_it_fails(server):
    """The status of the first request that is not answered."""
    while True:
        status, _ = server.post("/v1/completions", {"prompt": "hi", **GREEDY, "max_tokens": 60})
        if status != 200:
            return status


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_replicas_answer_alike_and_end_together(tiny, tmp_path):
    with serving(tiny[0], tmp_path / "log.txt", "--data-parallel-size=2") as server:
        prompts = ["a", "hello", "some longer prompt, longer than the budget of a step"]
        answers = [
            [
                completion(server, text, headers={"X-data-parallel-rank": str(rank)})
                for text in prompts
            ]
            for rank in range(2)
        ]
        assert answers[0] == answers[1] == [reference_text(tiny, text) for text in prompts]
        replicas = workers(server)
        assert len(replicas) == 2
        replicas[0].kill()
        assert server.process.wait(30) != 0
        assert "died unexpectedly" in server.text()
        assert all_end(replicas)


def reference_text(tiny, text):
    """What Transformers answers."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny[0])
    ids = tokenizer(text)["input_ids"]
    return tokenizer.decode(greedy_reference(tiny[1], ids, 8), skip_special_tokens=True)

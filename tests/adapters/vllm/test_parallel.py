# SPDX-License-Identifier: Apache-2.0
"""Several processes: tensor parallelism, replicas, and what a killed worker does to a server.

The tiny model has 6 query heads over 2 KV heads: two ranks hold one KV head each, of three ranks
the middle one needs both. With 8 heads over 2, each KV head is on two of four ranks.
"""

import contextlib
import functools
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

from tests.adapters.vllm.conftest import (
    DEFAULTS,
    generate,
    greedy_reference,
    open_llm,
    save_tokenizer,
)
from tests.adapters.vllm.test_config import changed, config_for
from tests.adapters.vllm.test_llm import prompt
from tests.adapters.vllm.test_metrics import Scrape
from tests.adapters.vllm.test_serve import GREEDY, Server, completion
from tests.zoo import save_llama
from trnport.adapters.vllm.degrees import register_degree_check
from trnport.adapters.vllm.refusals import _parallel
from trnport.core.errors import ConfigError

pytestmark = pytest.mark.vllm

LENGTHS = (1, 40, 7, 12, 33, 2, 25)
"""Two of the prompts are over the budget of a step, 32 tokens, and computed in chunks."""

SEEDED = {"temperature": 1.0, "top_p": 0.9, "seed": 5}

SCRIPT = """
    import json, sys
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

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
        choice = StructuredOutputsParams(choice=["left", "right"])
        made = generate(llm, prompts[:1], ignore_eos=False, structured_outputs=choice)
        result["choice"] = made[0].outputs[0].text
        with open(answer, "w") as file:
            json.dump(result, file)
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """What a configuration sets in this process's environment ends with the test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("OMP_NUM_THREADS")


ON_DEVICE = {
    "additional_config": {
        "neuron_config": {"on_device_sampling_config": {}, "enable_structured_outputs": True}
    }
}


COMPILED = {
    "additional_config": {
        "neuron_config": {
            "compiler": "inductor",
            "num_seqs_buckets": [4],
            "num_batched_tokens_buckets": [32],
            "enable_prompt_logprobs": False,
        }
    }
}


@pytest.fixture(scope="module")
def models(tiny, tmp_path_factory):
    """By name: a folder, and the Transformers model it came from."""

    @functools.cache
    def prepare(name):
        if name == "awkward":
            return tiny
        folder = tmp_path_factory.mktemp(name)
        if name == "one_layer":
            model = save_llama(folder, "awkward", num_hidden_layers=1)
        else:
            model = save_llama(folder, name)
        save_tokenizer(folder)
        return folder, model

    return prepare


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "tp", "extra"),
    [("awkward", 3, ON_DEVICE), ("eight_heads", 4, {}), ("one_layer", 3, COMPILED)],
    ids=["3-device", "4-host", "3-compiled"],
)
def test_ranks_give_the_tokens_of_one_and_the_script_ends_with_0(models, tmp_path, name, tp, extra):
    folder, model = models(name)
    with open_llm(folder, **({} if extra is COMPILED else extra)) as engine:
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
        capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stdout + done.stderr
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["greedy"] == [greedy_reference(model, ids, 10) for ids in prompts]
    assert answer["hit"] == [greedy_reference(model, again, 10)]
    assert answer["cached"] == 28, "7 whole blocks of 4 are shared"
    assert answer["seeded"] == one_rank
    # 131 tokens are no multiple of the degree: the mask has to fit the padded logits.
    assert answer["choice"] in {"left", "right"}


@pytest.mark.parametrize(("heads", "tp", "valid"), [
    (6, 4, [1, 2, 3, 6]), (6, 12, [1, 2, 3, 6]), (9, 2, [1, 3, 9]), (28, 8, [1, 2, 4, 7, 14, 28]),
])  # fmt: skip
def test_a_degree_that_does_not_divide_is_refused_before_anything_starts(
    tiny, tmp_path, heads, tp, valid
):
    sizes = {"num_attention_heads": heads, "num_key_value_heads": 1, "hidden_size": 8 * heads}
    folder = changed(tiny, tmp_path, **sizes)
    message = f"tensor_parallel_size={tp} .* {heads} query heads; choose one of {valid}"
    with pytest.raises(ValueError, match=re.sub(r"([\[\]])", r"\\\1", message)):
        config_for(folder, tokenizer=str(tiny[0]), tensor_parallel_size=tp)
    assert not [p for p in multiprocessing.active_children() if "Vllm" in p.name]
    config_for(folder, tokenizer=str(tiny[0]), tensor_parallel_size=valid[1])


def test_a_check_of_vllms_own_for_an_architecture_still_runs(monkeypatch):
    from vllm.model_executor.models import config

    seen = []
    own = type("Own", (), {"verify_and_update_config": seen.append, "other": 1})
    table = {"ALlama": own}
    monkeypatch.setattr(config, "MODELS_CONFIG_MAP", table)
    for _ in range(2):
        register_degree_check(["ALlama", "BLlama"])
    good, bad = (
        SimpleNamespace(
            model_config=SimpleNamespace(
                model_arch_config=SimpleNamespace(total_num_attention_heads=6, total_num_kv_heads=2)
            ),
            parallel_config=SimpleNamespace(tensor_parallel_size=tp),
        )
        for tp in (3, 4)
    )
    for hook in table.values():
        hook.verify_and_update_config(good)
        with pytest.raises(ConfigError, match="tensor_parallel_size=4"):
            hook.verify_and_update_config(bad)
    assert seen == [good] and table["ALlama"].other == 1


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


def all_end(processes, seconds=30):
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
        assert completion(server) == reference_text(tiny, "hello")
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
        counted = Scrape(server)  # of whichever HTTP server answers: each shows all replicas
        assert counted.value("vllm:generation_tokens_total") == 2 * 3 * 8
        for engine in ("0", "1"):  # the last token of an answer is not computed on
            computed = counted.value("trnport:batched_tokens_total", engine=engine)
            assert computed == sum(len(text) + 7 for text in prompts)
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

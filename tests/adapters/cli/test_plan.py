# SPDX-License-Identifier: Apache-2.0
"""The plan is what the engine does: same programs, same bytes, same refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import make_rig
from tests.zoo import save_llama
from tests.zoo_windows import save_window_model
from trnport import bootstrap
from trnport.adapters.cli import main
from trnport.adapters.cli.parser import SERVER_MEMORY_UTILIZATION, build_parser
from trnport.adapters.cli.plan import knobs, render_plan
from trnport.adapters.cli.planning import Plan, make_plan
from trnport.adapters.fake import FakeCollectives
from trnport.adapters.local import LocalWorld
from trnport.core.config import NeuronConfig
from trnport.core.kv import DEFAULT_BLOCK_SIZE
from trnport.core.kv.capacity import KVCapacity
from trnport.core.model import model_bytes

MIB = 2**20
LIMITS: dict[str, Any] = {
    "max_model_len": 64,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "block_size": 4,
}
NEURON_CONFIGS = [
    {},
    {
        "num_batched_tokens_buckets": [7, 32, 64],
        "num_seqs_buckets": [3, 4],
        "decode_context_length_buckets": [8, 30],
    },
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A few of the zoo's checkpoints."""
    root = tmp_path_factory.mktemp("zoo")
    names = ("awkward", "untied", "biased", "multi_query", "dynamic_rope")
    for name in names:
        save_llama(root / name, name)
    return {name: root / name for name in names}


def plan(folder: Path, **changes: Any) -> Plan:
    return make_plan(folder, **{"memory_bytes": 64 * MIB, "dtype": "float32", **LIMITS, **changes})


def run(folder: Path | str, *options: str) -> int:
    return main(["plan", str(folder), "--memory-gib", "1", *options])


# --- against the engine ---------------------------------------------------------------------------


@pytest.mark.parametrize("neuron_config", NEURON_CONFIGS)
def test_programs_are_those_that_warm_up_compiles(
    folders: dict[str, Path], neuron_config: dict[str, Any]
) -> None:
    rig = make_rig(folders["awkward"], neuron_config=neuron_config, warm_up=True)
    planned = plan(folders["awkward"], neuron_config=neuron_config).programs
    assert list(planned) == rig.executor.program_names


def test_every_rank_compiles_the_planned_programs(folders: dict[str, Path]) -> None:
    config = NEURON_CONFIGS[1]

    def names(tp: Any) -> list[str]:
        rig = make_rig(folders["awkward"], neuron_config=config, collectives=tp, warm_up=True)
        return rig.executor.program_names

    planned = plan(folders["awkward"], neuron_config=config, tp=3).programs
    assert LocalWorld(3).run(names) == [list(planned)] * 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "tp"),
    [
        ("awkward", 1),
        ("awkward", 2),
        ("awkward", 3),
        ("untied", 6),
        ("biased", 3),
        ("multi_query", 2),
        ("dynamic_rope", 2),
    ],
)
def test_sizes_are_those_of_every_loaded_rank(
    folders: dict[str, Path], name: str, tp: int, dtype: str
) -> None:
    planned = plan(folders[name], tp=tp, dtype=dtype)
    for rank in range(tp):
        rig = make_rig(
            folders[name],
            dtype=getattr(torch, dtype),
            collectives=FakeCollectives(rank, tp),
            num_blocks=10,
        )
        caches = [tensor for pair in rig.caches.values() for tensor in pair]
        assert model_bytes(rig.model) == planned.weight_bytes
        assert sum(t.numel() * t.element_size() for t in caches) == (
            10 * planned.capacity.bytes_per_block
        )


def test_layers_of_different_windows_share_blocks(tmp_path: Path) -> None:
    save_window_model(tmp_path, "qwen3", "mixed_w7")  # sliding, full, sliding
    planned = plan(tmp_path)
    assert planned.capacity.bytes_per_block == 4 * planned.spec.layers[0].bytes_per_token()
    rig = make_rig(tmp_path, by_window=True, num_blocks=10)
    caches = {t.data_ptr(): t for pair in rig.caches.values() for t in pair}
    assert sum(t.nbytes for t in caches.values()) == 10 * planned.capacity.bytes_per_block
    # 64 tokens: 16 blocks of the full layer; twice a window of 7 and a chunk of up to 64.
    assert planned.capacity.blocks_for(64) == 16 + 2 * 17
    assert re.search(r"groups of layers +3 ", render_plan(planned))


def test_the_checkpoint_is_measured_from_its_headers(folders: dict[str, Path]) -> None:
    stored = plan(folders["awkward"]).checkpoint
    source = bootstrap.weight_source(folders["awkward"])
    tensors = [source.open(name)[:] for name in source.names()]
    assert stored.num_tensors == len(tensors)
    assert stored.num_bytes == sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("weights", [None, b"damaged"])
def test_weights_are_not_needed(
    folders: dict[str, Path], tmp_path: Path, weights: bytes | None
) -> None:
    (tmp_path / "config.json").write_text((folders["awkward"] / "config.json").read_text())
    if weights:
        (tmp_path / "model.safetensors").write_bytes(weights)
    planned = plan(tmp_path)
    assert planned.weight_bytes == plan(folders["awkward"]).weight_bytes
    assert str(tmp_path) in planned.checkpoint.problem
    assert "unknown" in render_plan(planned)


# --- what fits ------------------------------------------------------------------------------------


@given(
    st.integers(0, 400_000), st.sampled_from([1, 2, 3]), st.sampled_from(["float32", "bfloat16"])
)
def test_a_plan_that_does_not_fit_names_a_length_that_does(
    folders: dict[str, Path], memory_bytes: int, tp: int, dtype: str
) -> None:
    planned = plan(folders["awkward"], memory_bytes=memory_bytes, tp=tp, dtype=dtype)
    assert planned.fits is (planned.capacity.tokens >= LIMITS["max_model_len"])
    assert planned.fits is (not knobs(planned))
    assert planned.host_bytes <= max(memory_bytes, tp * planned.weight_bytes)
    lengths = [knob.split()[1].strip(",") for knob in knobs(planned) if "max-model-len" in knob]
    for length in lengths:
        shorter = {"max_model_len": int(length), "max_num_batched_tokens": int(length)}
        kept = {"memory_bytes": memory_bytes, "tp": tp, "dtype": dtype}
        assert plan(folders["awkward"], **kept, **shorter).fits
        longer = {name: value + 1 for name, value in shorter.items()}
        assert not plan(folders["awkward"], **kept, **longer).fits


def test_an_explicit_cache_is_offered_where_the_memory_is_there(folders: dict[str, Path]) -> None:
    large = plan(folders["awkward"])
    least = large.weight_bytes + large.smallest_cache_bytes
    small = plan(folders["awkward"], memory_bytes=least)
    short = plan(folders["awkward"], memory_bytes=least - 1)
    assert not any("kv-cache-memory-bytes" in knob for knob in knobs(short))
    (knob,) = [k for k in knobs(small) if "kv-cache-memory-bytes" in k]
    size = int(knob.split()[1])
    capacity = small.capacity
    explicit = KVCapacity(size, capacity.bytes_per_block, capacity.block_size)
    assert explicit.requests(LIMITS["max_model_len"]) == 1
    assert any("bfloat16" in knob for knob in knobs(small))


def test_more_memory_is_asked_for_where_nothing_else_helps(folders: dict[str, Path]) -> None:
    tiny = plan(folders["awkward"], memory_bytes=1000, dtype="bfloat16")
    (knob,) = knobs(tiny)
    assert knob.startswith("more memory")
    assert tiny.capacity.num_blocks == 0


def test_exit_status_and_output(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folders["awkward"], "--tp", "3", "--max-model-len", "64") == 0
    output = capsys.readouterr().out
    assert "on 3 ranks" in output
    assert "prefill_s64_ctx64" in output
    assert "decode_b1_ctx64" in output
    assert "knobs" not in output

    assert main(["plan", str(folders["awkward"]), "--memory-gib", "0.0001"]) == 1
    assert "Turn one of these knobs:" in capsys.readouterr().out


def test_memory_in_use_is_warned_about(folders: dict[str, Path]) -> None:
    planned = plan(folders["awkward"])
    assert "at the moment" in render_plan(planned, free_bytes=planned.host_bytes - 1)
    assert "at the moment" not in render_plan(planned, free_bytes=planned.host_bytes)
    assert "at the moment" not in render_plan(planned)


def test_this_machine_is_the_default(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from trnport.adapters.cli.machine import inspect_machine

    assert main(["plan", str(folders["awkward"])]) == 0
    assert f"{inspect_machine().memory_bytes} bytes" in capsys.readouterr().out


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tp", "4"], r"tensor_parallel_size=4 .*\[1, 2, 3, 6\]"),
        (["--tp", "0"], "tensor_parallel_size=0"),
        (["--block-size", "0"], "block_size=0"),
        (["--max-model-len", "1"], "max_model_len=1"),
        (["--max-num-seqs", "-3"], "max_num_seqs=-3"),
        (["--max-num-batched-tokens", "0"], "max_num_batched_tokens=0"),
        (["--neuron-config", "{"], "--neuron-config '{' is not JSON"),
        (["--neuron-config", "[1]"], "not a JSON object"),
        (["--neuron-config", '{"num_seq_buckets": [1]}'], "did you mean 'num_seqs_buckets'"),
        (["--neuron-config", '{"num_seqs_buckets": [1]}'], "must equal max_num_seqs"),
    ],
)
def test_bad_options_are_one_sentence_and_status_2(
    folders: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    assert run(folders["awkward"], *options) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert re.search(message, captured.err), captured.err


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "does not exist"),
        ("{", "cannot be read"),
        ("[]", "holds no JSON object"),
        ("{}", "none of them is supported"),
        ('{"architectures": ["GPT2LMHeadModel"]}', "none of them is supported"),
        ('{"architectures": ["LlamaForCausalLM"]}', "max_position_embeddings=None"),
    ],
)
def test_bad_checkpoints_are_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str | None, message: str
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert run(tmp_path) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--memory-gib", "0"],
        ["--memory-gib", "much"],
        ["--memory-gib", "nan"],
        ["--memory-gib", "inf"],
        ["--gpu-memory-utilization", "1.1"],
        ["--dtype", "float16"],
        ["--tp", "two"],
    ],
)
def test_the_parser_refuses_values_that_mean_nothing(
    folders: dict[str, Path], options: list[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", str(folders["awkward"]), *options])
    assert stopped.value.code == 2


# --- defaults -------------------------------------------------------------------------------------


def test_defaults_that_the_parser_cannot_import() -> None:
    arguments = build_parser().parse_args(["plan", "model"])
    assert arguments.block_size == DEFAULT_BLOCK_SIZE
    assert arguments.dtype in bootstrap.SUPPORTED_DTYPES


def test_limits_follow_the_model_and_the_server(folders: dict[str, Path]) -> None:
    whole = make_plan(folders["awkward"], memory_bytes=MIB, tp=2)
    assert (whole.limits.max_model_len, whole.limits.max_num_seqs) == (256, 256)
    assert whole.limits.max_num_batched_tokens == 4096
    few = make_plan(folders["awkward"], memory_bytes=MIB, max_num_batched_tokens=100)
    assert few.limits.max_num_seqs == 100
    one = make_plan(folders["awkward"], memory_bytes=MIB, max_num_seqs=1)
    assert one.limits.max_num_batched_tokens == 256
    config = json.loads((folders["awkward"] / "config.json").read_text())
    settings = NeuronConfig.from_dict(
        {}, max_model_len=config["max_position_embeddings"], max_num_seqs=1,
        max_num_batched_tokens=256,
    )  # fmt: skip
    assert one.buckets.prefill_tokens == settings.num_batched_tokens_buckets


@pytest.mark.vllm
def test_defaults_are_those_of_vllm() -> None:
    pytest.importorskip("vllm")
    from vllm.config import CacheConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    from trnport.adapters.cli.planning import SERVER_SEQS_PER_RANK, SERVER_TOKENS_PER_RANK

    tokens, seqs = EngineArgs.get_batch_defaults(3)
    assert tokens[UsageContext.OPENAI_API_SERVER] == 3 * SERVER_TOKENS_PER_RANK
    assert seqs[UsageContext.OPENAI_API_SERVER] == 3 * SERVER_SEQS_PER_RANK
    assert CacheConfig().gpu_memory_utilization == SERVER_MEMORY_UTILIZATION

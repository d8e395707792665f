# SPDX-License-Identifier: Apache-2.0
"""What must hold of every estimate, whatever the kernels do."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from trnport.adapters.cli import estimates
from trnport.adapters.nki.adapter import NkiKernels
from trnport.adapters.nki.execute import Machine
from trnport.adapters.nki.fallback import KernelLimitError
from trnport.adapters.nki.roofline import StepEstimate, count_call
from trnport.adapters.nki.roofline.cost import PEAK_MACS, CoreCost, bound, ridge
from trnport.adapters.nki.roofline.count import AXES
from trnport.adapters.nki.roofline.extrapolate import extrapolate
from trnport.adapters.nki.roofline.minimum import least_bytes, least_macs
from trnport.adapters.nki.simulator.targets import RATES, TARGETS
from trnport.core.errors import ConfigError
from trnport.core.kernel_calls import KernelCall

BF16 = torch.bfloat16


def tensor(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


def ints(*sizes: int) -> torch.Tensor:
    return tensor(*sizes, dtype=torch.int32)


def decode(
    batch: int, context: int, heads: int = 6, kv: int = 2, dim: int = 16, window: int | None = None
) -> KernelCall:
    columns = -(-context // 8)
    cache = tensor(batch * columns + 1, kv, 8, dim)
    return KernelCall.of(
        "decode_attention",
        {
            "q": tensor(batch, heads, dim),
            "k_cache": cache,
            "v_cache": cache,
            "block_table": ints(batch, columns),
            "positions": ints(batch),
            "scale": 0.25,
            "sliding_window": window,
        },
    )


def prefill(tokens: int, heads: int = 2, kv: int = 1, dim: int = 16) -> KernelCall:
    own = tensor(tokens, kv, dim)
    return KernelCall.of(
        "prefill_attention",
        {
            "q": tensor(tokens, heads, dim),
            "k": own,
            "v": own,
            "valid": tensor(tokens, dtype=torch.bool),
            "scale": 0.25,
        },
    )


def product(tokens: int, hidden: int, columns: int) -> KernelCall:
    values = {"x": tensor(tokens, hidden), "weight": tensor(hidden, columns)}
    return KernelCall.of("linear", values)


def mlp(tokens: int, hidden: int, inner: int) -> KernelCall:
    up = tensor(hidden, inner)
    values = {"x": tensor(tokens, hidden), "gate_weight": up, "up_weight": up}
    return KernelCall.of("mlp", {**values, "down_weight": tensor(inner, hidden)})


def norm(tokens: int, hidden: int) -> KernelCall:
    return KernelCall.of(
        "rms_norm", {"x": tensor(tokens, hidden), "weight": tensor(hidden), "eps": 1e-5}
    )


def rope(tokens: int) -> KernelCall:
    angles = tensor(tokens, 8, dtype=torch.float32)
    q, k = tensor(tokens, 6, 16), tensor(tokens, 2, 16)
    return KernelCall.of("rope", {"q": q, "k": k, "cos": angles, "sin": angles})


def kv_write(tokens: int) -> KernelCall:
    own, cache = tensor(tokens, 2, 16), tensor(tokens // 8 + 2, 2, 8, 16)
    slots = tensor(tokens, dtype=torch.int64)
    values = {"k": own, "v": own, "k_cache": cache, "v_cache": cache, "slot_mapping": slots}
    return KernelCall.of("kv_write", values)


CALLS = [
    norm(5, 77),
    norm(300, 77),
    rope(7),
    kv_write(11),
    product(5, 96, 131),
    product(130, 600, 700),
    mlp(5, 96, 77),
    decode(3, 37),
    decode(2, 37, window=9),
    prefill(150),
]
IDS = [f"{call.operator}-{i}" for i, call in enumerate(CALLS)]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_no_call_beats_the_algorithm(call: KernelCall, lnc: int) -> None:
    cores = count_call(call, Machine("trn2", lnc))
    assert len(cores) == lnc
    assert sum(core.hbm_bytes for core in cores) >= least_bytes(call)
    assert sum(core.macs for core in cores) >= least_macs(call)
    for core in cores:
        assert core.cycles.get("tensor", 0) >= core.macs / PEAK_MACS
        assert core.array_macs >= core.macs


@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_trn3_is_no_slower_with_the_same_counts(call: KernelCall) -> None:
    cores = count_call(call, Machine("trn2"))
    assert 0 < bound(cores, "trn3").seconds <= bound(cores, "trn2").seconds


def test_the_least_bytes_of_a_decode_are_its_cache_its_queries_and_its_numbers() -> None:
    cache = 3 * 40 * 2 * 16 * 2 * 2  # rows, positions of 5 blocks, heads, dim, K and V, bf16
    queries = 3 * 6 * 16 * 2
    assert least_bytes(decode(3, 37)) == cache + 2 * queries + 4 * (3 * 5 + 3)
    assert least_macs(decode(3, 37)) == 3 * 40 * 6 * 16 * 2


def test_the_least_macs_of_a_prefill_are_its_triangle() -> None:
    assert least_macs(prefill(5)) == 15 * 2 * 16 * 2


# --- extrapolation ------------------------------------------------------------------------------


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(
    "call",
    [
        norm(5 * 256 + 3, 16),
        rope(4 * 256 + 100),
        kv_write(4 * 256 + 1),
        product(5, 130, 5 * 1024 + 7),
        product(4 * 512 + 3, 130, 20),
        mlp(5, 130, 5 * 512 + 9),
        decode(9, 24),
        decode(1, 24, heads=24, kv=8),
    ],
    ids=lambda call: call.operator,
)
def test_counts_of_a_large_call_are_those_of_the_whole_call(
    call: KernelCall, lnc: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine("trn2", lnc)
    guessed = count_call(call, machine)
    monkeypatch.setattr("trnport.adapters.nki.roofline.count.AXES", {})
    assert guessed == count_call(call, machine)


@pytest.mark.slow
def test_counts_of_a_long_prompt_are_those_of_the_whole_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = prefill(5 * 512 + 70)
    guessed = count_call(call, Machine())
    monkeypatch.setattr("trnport.adapters.nki.roofline.count.AXES", {})
    assert guessed == count_call(call, Machine())


def test_large_calls_are_extrapolated_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from trnport.adapters.nki.roofline import count

    sizes = []
    run = count._run
    monkeypatch.setattr(
        count, "_run", lambda call, kernels: sizes.append(call) or run(call, kernels)
    )
    count_call(product(5, 130, 20 * 512), Machine())
    assert [call["weight"].sizes[1] for call in sizes] == [512, 1024, 1536]


def test_what_is_no_polynomial_is_counted_in_full() -> None:
    asked = []

    def count(size: int) -> tuple[CoreCost, ...]:
        asked.append(size)
        return (CoreCost(descriptors=2**size),)

    (cost,) = extrapolate(count, 20, 1, 1)
    assert cost.descriptors == 2**20
    assert asked[-1] == 20


def test_every_axis_names_parameters_of_its_operator() -> None:
    for call in CALLS:
        names = [name for name, _ in call.arguments]
        for axis in AXES[call.operator]:
            assert {name for name, _ in axis.dims} <= set(names)


# --- bounds -------------------------------------------------------------------------------------


def test_a_bound_is_the_slowest_of_all_cores_and_engines() -> None:
    idle = CoreCost(cycles={"tensor": 100.0})
    busy = CoreCost(moved={"hbm->sbuf": 362_500}, cycles={"vector": 9600.0, "tensor": 2400.0})
    found = bound((idle, busy), "trn2")
    assert found.by == "vector"
    assert found.seconds == pytest.approx(10e-6)
    assert bound((attrs.evolve(busy, cycles={}),), "trn2").by == "hbm"
    assert bound((), "trn2").seconds == 0.0


def test_many_short_instructions_take_their_issue_time() -> None:
    short = CoreCost(cycles={"scalar": 10.0}, instructions={"scalar": 100})
    assert bound((short,), "trn2").seconds == pytest.approx(100 * 64 / 1.2e9)


def test_a_copy_inside_hbm_crosses_it_twice() -> None:
    assert CoreCost(moved={"hbm->hbm": 10, "sbuf->sbuf": 7, "sbuf->hbm": 1}).hbm_bytes == 21


def test_the_ridge_is_the_published_one() -> None:
    assert ridge("trn2") == pytest.approx(79e12 / 362e9, rel=0.01)
    assert all(RATES["trn3"].clocks[e] >= clock for e, clock in RATES["trn2"].clocks.items())


# --- a model's step -----------------------------------------------------------------------------

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 77,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def step(model: Path, **options: Any) -> StepEstimate:
    return estimates.estimate_step(model, **{"batch": 3, "context": 64, "tp": 2, **options})


def test_a_step_calls_every_operator_of_every_layer(model: Path) -> None:
    estimate = step(model)
    assert estimate.program == "decode_b3_ctx64"
    times = {call.call.operator: call.times for call in estimate.calls}
    assert times == {
        "rms_norm": 5,
        "qkv_proj": 2,
        "rope": 2,
        "kv_write": 2,
        "decode_attention": 2,
        "o_proj": 2,
        "mlp": 2,
        "linear": 1,
    }
    assert not any(call.problem for call in estimate.calls)
    by_operator = {call.call.operator: call.call for call in estimate.calls}
    assert by_operator["qkv_proj"]["weight"].sizes == (48, 5 * 8)  # 3 query heads, 1 KV head
    assert by_operator["decode_attention"]["block_table"].sizes == (3, 2)


def test_a_step_moves_its_weights_and_its_cache(model: Path) -> None:
    estimate = step(model)
    layer = 48 * 5 * 8 + 3 * 8 * 48 + 3 * 48 * 39  # a rank holds 39 of 77 columns
    cache = 2 * 3 * 64 * 8
    assert estimate.least_bytes >= 2 * (2 * (layer + cache) + 48 * 66)
    assert estimate.hbm_bytes >= estimate.least_bytes
    assert estimate.seconds >= estimate.least_seconds > 0
    assert estimate.seconds == pytest.approx(
        sum(call.times * call.bound.seconds for call in estimate.calls)
    )


def test_a_larger_step_is_never_cheaper(model: Path) -> None:
    for name, sizes in (("batch", [1, 2, 5, 8]), ("context", [32, 64, 160, 320])):
        steps = [step(model, **{name: size}) for size in sizes]
        for smaller, larger in itertools.pairwise(steps):
            assert smaller.hbm_bytes < larger.hbm_bytes
            assert smaller.least_bytes < larger.least_bytes
            assert smaller.seconds <= larger.seconds


def test_a_prompt_is_one_program(model: Path) -> None:
    estimate = step(model, phase="prefill", context=70)
    assert estimate.program == "prefill_s70"
    operators = [call.call.operator for call in estimate.calls]
    assert "prefill_attention" in operators
    assert "decode_attention" not in operators


def test_two_cores_halve_what_each_does(model: Path) -> None:
    one, two = step(model), step(model, lnc=2)
    for single, pair in zip(one.calls, two.calls, strict=True):
        assert len(pair.cores) == 2
        assert pair.bound.seconds <= single.bound.seconds * 1.05
    assert two.peak_flops == 2 * one.peak_flops


def test_a_degree_that_does_not_divide_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not divide the model's 6 query heads.*\[1, 2, 3"):
        step(model, tp=4)


def test_a_call_that_no_kernel_takes_says_why() -> None:
    with pytest.raises(KernelLimitError, match="hidden above 10240"):
        count_call(norm(2, 10241), Machine())


def test_an_mlp_of_several_blocks_of_tokens_fits_into_psum() -> None:
    # What the products of one block leave in PSUM must be gone when the next block starts.
    assert count_call(mlp(1024, 512, 1024), Machine())


@pytest.mark.slow
def test_a_wide_mlp_of_several_blocks_of_tokens_fits_into_sbuf() -> None:
    from trnport.adapters.nki.roofline.count import _nothing, _run

    kernels = NkiKernels(_nothing(), strict=True)
    (core,) = _run(mlp(1024, 512, 16384), kernels)
    assert core.sbuf_peak <= TARGETS["trn2"].sbuf_bytes


def test_a_guess_past_the_memory_of_a_core_is_counted_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trnport.adapters.nki.roofline import count

    call = decode(9, 24)
    whole = count_call(call, Machine())
    too_much = (attrs.evolve(whole[0], sbuf_peak=10**6),)
    monkeypatch.setattr(count, "extrapolate", lambda *_: too_much)
    assert count_call(call, Machine()) == whole

# SPDX-License-Identifier: Apache-2.0
"""Fakes of Kernels and Collectives must see what is wrong; operators must be replaceable."""

from __future__ import annotations

import doctest
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from trnport.adapters.fake import (
    ContractViolationError,
    FakeCollectives,
    PoisoningKernels,
    RecordingKernels,
    StrictKernels,
)
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.errors import ConfigError
from trnport.core.kernels import operator_names, with_operator
from trnport.core.ports import Kernels, TensorInfo


@pytest.mark.parametrize(
    "module",
    ["fake.kernels", "fake.collectives", "fake.kv_cache", "fake.compiler", "local.world"],
)
def test_examples_in_docstrings_run(module: str) -> None:
    found = importlib.import_module(f"trnport.adapters.{module}")
    result = doctest.testmod(found, optionflags=doctest.ELLIPSIS)
    assert result.attempted
    assert not result.failed


# --- strict -----------------------------------------------------------------------------------

N, HEADS, SIZE, DIM = 4, 2, 3, 5  # blocks, KV heads, block size, head size


def ints(values: Any, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def good_call(operator: str) -> dict[str, Any]:
    """A call that keeps the contract."""
    caches = {
        "k_cache": torch.zeros(N, HEADS, SIZE, DIM),
        "v_cache": torch.zeros(N, HEADS, SIZE, DIM),
    }
    q, k = torch.ones(2, 4, DIM), torch.ones(2, HEADS, DIM)
    options = {"scale": 1.0, "sliding_window": None, "sinks": None}
    valid = torch.tensor([True, False])
    calls: dict[str, dict[str, Any]] = {
        "rms_norm": {"x": torch.ones(2, 6), "weight": torch.ones(6), "eps": 1e-5},
        "rope": {"q": q, "k": k, "cos": torch.ones(2, 2), "sin": torch.ones(2, 2)},
        "qkv_proj": {"x": torch.ones(2, 6), "weight": torch.ones(6, 9), "bias": None},
        "kv_write": {"k": k, "v": k, **caches, "slot_mapping": ints([-1, 7], torch.int64)},
        "prefill_attention": {"q": q, "k": k, "v": k, "valid": valid, **options},
        "prefill_attention_with_prior": {
            "q": q,
            "k": k,
            "v": k,
            "valid": valid,
            **caches,
            **options,
            "block_table": ints([[3, 1, -1]]),
            "cached_seq_len": ints([[4]]),
        },
        "decode_attention": {
            "q": q,
            **caches,
            **options,
            "block_table": ints([[3, 1, -1], [-1] * 3]),
            "positions": ints([5, 0]),
        },
        "o_proj": {"x": q, "weight": torch.ones(4 * DIM, 6), "bias": torch.ones(6)},
        "mlp": {
            "x": torch.ones(2, 6),
            "gate_weight": torch.ones(6, 7),
            "up_weight": torch.ones(6, 7),
            "down_weight": torch.ones(7, 6),
            "gate_bias": torch.ones(7),
            "up_bias": None,
            "down_bias": torch.ones(6),
        },
        "linear": {"x": torch.ones(2, 6), "weight": torch.ones(6, 9), "bias": None},
        "top_k": {"logits": torch.ones(2, 9), "k": 3},
    }
    return calls[operator]


def invoke(kernels: Kernels, operator: str, arguments: dict[str, Any]) -> Any:
    return getattr(kernels, operator)(**arguments)


@pytest.mark.parametrize("operator", operator_names())
def test_strict_lets_good_calls_pass(operator: str) -> None:
    arguments = good_call(operator)
    strict = invoke(StrictKernels(TorchCpuKernels()), operator, arguments)
    plain = invoke(TorchCpuKernels(), operator, good_call(operator))
    torch.testing.assert_close(strict, plain, rtol=0, atol=0)


BAD = [
    ("kv_write", {"slot_mapping": ints([-1, 12], torch.int64)}, "slot 12 is outside 0 to 11"),
    ("kv_write", {"slot_mapping": ints([-2, 5], torch.int64)}, "slot -2"),
    ("kv_write", {"slot_mapping": ints([2, 5], torch.int64)}, "slot 2 lies in block 0"),
    ("kv_write", {"slot_mapping": ints([5, 5], torch.int64)}, "twice"),
    ("kv_write", {"slot_mapping": ints([5, 6])}, "slot_mapping is torch.int32"),
    ("kv_write", {"slot_mapping": ints([5], torch.int64)}, "slot_mapping has shape"),
    ("kv_write", {"v_cache": torch.zeros(N, SIZE, HEADS, DIM)}, "v_cache has shape"),
    ("rms_norm", {"weight": torch.ones(5)}, "weight has shape"),
    ("rms_norm", {"x": [1.0]}, "x is a list"),
    ("rope", {"sin": torch.ones(2, 1)}, "sin has shape"),
    ("qkv_proj", {"bias": torch.zeros(8)}, "bias has shape"),
    ("o_proj", {"weight": torch.ones(19, 6)}, "19 rows"),
    ("mlp", {"down_weight": torch.ones(6, 7)}, "down_weight has shape"),
    ("top_k", {"k": 10}, "k=10 of 9"),
    ("prefill_attention", {"valid": ints([1, 0])}, "valid is torch.int32"),
    ("prefill_attention", {"q": torch.ones(2, 3, DIM)}, "3 query heads"),
    ("prefill_attention", {"sinks": torch.ones(2)}, "sinks has shape"),
    ("decode_attention", {"positions": ints([6, 0])}, "row 0 reads position 6"),
    (
        "decode_attention",
        {"positions": ints([99, 0]), "block_table": ints([[3, 1, 2], [-1] * 3])},
        "row 0 reads position 9,",
    ),
    ("decode_attention", {"block_table": ints([[-1, 1, 2], [-1] * 3])}, "reads position 0"),
    ("decode_attention", {"block_table": ints([[0, 1, 2], [-1] * 3])}, "entry 0"),
    ("decode_attention", {"block_table": ints([[4, 1, 2], [-1] * 3])}, "entry 4"),
    ("decode_attention", {"block_table": ints([[1, 1]] * 2, torch.int64)}, "torch.int64"),
    ("prefill_attention_with_prior", {"cached_seq_len": ints([[7]])}, "reads position 6"),
    ("prefill_attention_with_prior", {"block_table": ints([[-1] * 3])}, "reads position 0"),
]


@pytest.mark.parametrize(("operator", "change", "told"), BAD)
def test_strict_refuses_bad_calls(operator: str, change: dict[str, Any], told: str) -> None:
    arguments = good_call(operator) | change
    with pytest.raises(ContractViolationError, match=told) as caught:
        invoke(StrictKernels(TorchCpuKernels()), operator, arguments)
    assert operator in str(caught.value)
    if operator == "kv_write":  # refused before the write
        assert not arguments["k_cache"].any()


def test_strict_allows_blocks_that_the_window_left_behind() -> None:
    arguments = good_call("decode_attention") | {"block_table": ints([[-1, 1, -1], [-1] * 3])}
    kernels = StrictKernels(TorchCpuKernels())
    invoke(kernels, "decode_attention", arguments | {"sliding_window": 3})
    with pytest.raises(ContractViolationError, match="reads position 2"):
        invoke(kernels, "decode_attention", arguments | {"sliding_window": 4})


@pytest.mark.parametrize(
    ("operator", "function", "told"),
    [
        ("linear", lambda x, w, b: (x @ w).T, "result 0 has shape"),
        ("linear", lambda x, w, b: (x @ w).double(), "result 0 is torch.float64"),
        ("linear", lambda x, w, b: (x, x), "2 results instead of 1"),
        ("top_k", lambda logits, k: logits.sort().values[:, :k], "1 results instead of 2"),
        ("rope", lambda q, k, cos, sin: (k, q), "result 0 has shape"),
    ],
)
def test_strict_refuses_bad_results(operator: str, function: Any, told: str) -> None:
    kernels = StrictKernels(with_operator(TorchCpuKernels(), **{operator: function}))
    with pytest.raises(ContractViolationError, match=told):
        invoke(kernels, operator, good_call(operator))


# --- recording and poisoning ------------------------------------------------------------------


def test_recording_names_arguments_and_results() -> None:
    kernels = RecordingKernels(TorchCpuKernels())
    assert kernels.name == "recording(torch_cpu)"
    kernels.linear(torch.ones(2, 6), torch.ones(6, 9))
    invoke(kernels, "kv_write", good_call("kv_write"))
    assert kernels.operators == ["linear", "kv_write"]
    call = kernels.calls[0]
    assert call.arguments["weight"] == TensorInfo((6, 9), torch.float32)
    assert call.arguments["bias"] is None
    assert call.results == (TensorInfo((2, 9), torch.float32),)
    assert kernels.calls[1].results == ()
    with pytest.raises(ContractViolationError):
        kernels.linear(torch.ones(2, 6), torch.ones(5, 9))
    assert len(kernels.calls) == 2


def careless_decode(q, k_cache, v_cache, block_table, positions, **options):
    """Reads the whole table: the slots beyond the length, too."""
    everything = positions * 0 + block_table.shape[1] * k_cache.shape[2] - 1
    return TorchCpuKernels().decode_attention(
        q, k_cache, v_cache, block_table, everything, **options
    )


def careless_prefill(q, k, v, valid, **options):
    """Lets later rows pass as valid."""
    return TorchCpuKernels().prefill_attention(q, k, v, valid | True, **options)


def careless_write(k, v, k_cache, v_cache, slot_mapping):
    """Slot -1 lands in the last slot, as Python's indices do."""
    size = k_cache.shape[2]
    for rows, cache in ((k, k_cache), (v, v_cache)):
        cache[slot_mapping // size, :, slot_mapping % size] = rows


def test_poisoning_exposes_careless_kernels() -> None:
    base = TorchCpuKernels()
    decode = good_call("decode_attention")
    out = invoke(
        PoisoningKernels(with_operator(base, decode_attention=careless_decode)),
        "decode_attention",
        decode | {"positions": ints([4, 0])},
    )
    assert out[0].isnan().all()
    write = good_call("kv_write")
    invoke(PoisoningKernels(with_operator(base, kv_write=careless_write)), "kv_write", write)
    assert write["k_cache"].isnan().any()
    assert not decode["k_cache"].isnan().any()
    prefill = good_call("prefill_attention") | {"valid": torch.tensor([False, True])}
    out = invoke(
        PoisoningKernels(with_operator(base, prefill_attention=careless_prefill)),
        "prefill_attention",
        prefill,
    )
    assert out[1].isnan().all()


def test_poisoning_leaves_marks_in_padding_rows() -> None:
    kernels = PoisoningKernels(TorchCpuKernels())
    out = invoke(kernels, "decode_attention", good_call("decode_attention"))
    assert (out[1] == kernels.decode_padding).all()
    out = invoke(kernels, "prefill_attention", good_call("prefill_attention"))
    assert out[1].isnan().all()
    leaky = with_operator(
        TorchCpuKernels(), decode_attention=lambda q, *_, **__: torch.full_like(q, torch.nan)
    )
    with pytest.raises(ContractViolationError, match="not finite"):
        invoke(PoisoningKernels(leaky), "decode_attention", good_call("decode_attention"))


# --- collectives ------------------------------------------------------------------------------


def test_fake_collectives_play_any_rank() -> None:
    tp = FakeCollectives(rank=2, size=3)
    assert (tp.rank("tp"), tp.size("tp")) == (2, 3)
    x = torch.arange(6.0)
    assert tp.reduce_scatter(x, 0, "tp").tolist() == [12.0, 15.0]
    assert tp.all_gather(x, 0, "tp").tolist() == x.tolist() * 3
    assert tp.all_to_all(x, 0, 0, "tp").tolist() == [4.0, 5.0] * 3
    assert [call.operation for call in tp.calls] == ["reduce_scatter", "all_gather", "all_to_all"]
    with pytest.raises(ValueError, match="7 entries"):
        tp.reduce_scatter(torch.ones(7), 0, "tp")
    with pytest.raises(ValueError, match="rank 3"):
        FakeCollectives(rank=3, size=3)


def test_fake_collectives_follow_a_script() -> None:
    tp = FakeCollectives(size=2, results=[torch.ones(4), torch.ones(3)])
    assert torch.equal(tp.all_gather(torch.zeros(2), 0, "tp"), torch.ones(4))
    with pytest.raises(ContractViolationError, match=r"\(3,\).*\(4,\)"):
        tp.all_gather(torch.zeros(2), 0, "tp")
    with pytest.raises(ContractViolationError, match="no scripted result"):
        tp.all_gather(torch.zeros(2), 0, "tp")


# --- replacing operators ----------------------------------------------------------------------


def test_with_operator_replaces_by_name_and_says_so() -> None:
    base = TorchCpuKernels()

    def mine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return x @ weight + 1

    kernels = with_operator(base, linear=mine, top_k=RecordingKernels(base).top_k)
    assert isinstance(kernels, Kernels)
    assert kernels.name == "torch_cpu+linear:mine+top_k:recording(torch_cpu)"
    x = torch.ones(1, 2)
    assert kernels.linear(x, torch.zeros(2, 3)).tolist() == [[1.0] * 3]
    assert base.linear(x, torch.zeros(2, 3)).tolist() == [[0.0] * 3]
    assert kernels.qkv_proj(x, torch.zeros(2, 3)).tolist() == [[0.0] * 3]
    assert with_operator(base).name == "torch_cpu"


@pytest.mark.parametrize(
    ("operators", "told"),
    [
        ({"decode_attn": abs}, "nearest is 'decode_attention'"),
        ({"linear": 3}, "not callable"),
        ({"linear": lambda x: x}, r"does not take \(x, weight, bias\)"),
        ({"decode_attention": lambda a, b, c, d, e: a}, "sinks"),
    ],
)
def test_with_operator_refuses_what_does_not_fit(operators: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        with_operator(TorchCpuKernels(), **operators)


def every_operator(kernels: Kernels, calls: dict[str, dict[str, Any]]) -> list[Any]:
    return [invoke(kernels, name, arguments) for name, arguments in calls.items()]


def test_torch_cpu_compiles_into_one_graph() -> None:
    kernels = with_operator(TorchCpuKernels(), linear=lambda x, weight, bias: x @ weight)
    names = operator_names()
    calls = [{name: good_call(name) for name in names} for _ in range(2)]
    torch._dynamo.reset()
    compiled = torch.compile(every_operator, fullgraph=True, backend="aot_eager")
    got, want = compiled(kernels, calls[0]), every_operator(kernels, calls[1])
    torch.testing.assert_close(got, want)
    for written, plain in zip(*(call["kv_write"].values() for call in calls), strict=True):
        torch.testing.assert_close(written, plain)
    assert calls[0]["kv_write"]["k_cache"].any()

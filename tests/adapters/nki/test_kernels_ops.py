# SPDX-License-Identifier: Apache-2.0
"""The operators as torch sees them: schema, shapes for tracing, one graph; and their fallback."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import trnport.adapters.nki.kernels
from trnport.adapters.nki import torch_ops
from trnport.adapters.nki.adapter import NkiKernels
from trnport.adapters.nki.execute import Machine
from trnport.adapters.nki.fallback import KernelLimitError
from trnport.adapters.nki.simulator.lint import lint
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.kernels import with_operator

HERE = Machine().key
KERNEL_FILES = sorted(Path(trnport.adapters.nki.kernels.__file__).parent.glob("*.py"))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def integers(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


CACHE = normal(4, 2, 3, 8)
TRUE = torch.ones(5, dtype=torch.bool)
QKV = (normal(5, 4, 8), normal(5, 2, 8), normal(5, 2, 8))

CALLS: dict[str, tuple[Any, ...]] = {
    "rms_norm": (normal(3, 10), normal(10), 1e-5),
    "rope": (*QKV[:2], normal(5, 4), normal(5, 4)),
    "linear": (normal(3, 10), normal(10, 7), None),
    "gated_mlp": (normal(3, 10), *(normal(10, 10) for _ in range(3)), normal(10), None, None),
    "write_kv": (*QKV[1:], CACHE.clone(), CACHE.clone(), torch.tensor([3, -1, 5, 7, 8])),
    "prefill_attention": (*QKV, TRUE, 0.3, 0, None),
    "prefill_attention_with_prior": (
        *QKV,
        TRUE,
        CACHE,
        CACHE,
        integers([1, 2]),
        integers([4]),
        0.3,
        3,
        normal(4),
    ),
    "decode_attention": (QKV[0][:1], CACHE, CACHE, integers([1, 2]), integers(4), 0.3, 0, None),
    "top_k": (normal(2, 9), 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_keeps_what_its_schema_promises(name: str) -> None:
    """Arguments that change, aliases, and shapes under tracing, as torch checks them."""
    torch.library.opcheck(
        getattr(torch_ops, name),
        (*CALLS[name], HERE),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


def one_layer(
    kernels: NkiKernels, x: Tensor, caches: tuple[Tensor, Tensor], weights: tuple[Tensor, Tensor]
) -> Tensor:
    norm, square = weights
    h = kernels.rms_norm(x, norm, 1e-5)
    q, k, v = kernels.qkv_proj(h, torch.cat([square] * 3, 1)).view(-1, 9, 8).split(3, 1)
    q, k = kernels.rope(q, k, h[:, :4], h[:, 4:8])
    kernels.kv_write(k, v, *caches, torch.tensor([3, 4]))
    out = kernels.decode_attention(
        q, *caches, integers([1, -1], [1, -1]), integers(0, 1), scale=0.3
    )
    return kernels.top_k(kernels.mlp(kernels.o_proj(out, square), *[square] * 3), 2)[0]


def test_a_layer_is_one_graph_and_writes_its_cache() -> None:
    kernels = NkiKernels(TorchCpuKernels(), strict=True)
    weights = (normal(24), normal(24, 24) / 5)
    caches = [(torch.zeros(3, 3, 3, 8), torch.zeros(3, 3, 3, 8)) for _ in range(2)]
    compiled = torch.compile(one_layer, fullgraph=True, backend="aot_eager")
    want = one_layer(kernels, normal(2, 24), caches[0], weights)
    got = [compiled(kernels, normal(2, 24), caches[1], weights) for _ in range(2)]
    assert torch.equal(got[0], want)
    assert torch.equal(got[1], want)
    assert torch.equal(caches[0][0], caches[1][0])
    assert caches[1][0].count_nonzero() == 2 * 24
    # Once eagerly and once while tracing; the second call of the graph traces nothing.
    assert all(counts["nki"] == 2 for counts in kernels.coverage().values())


def test_a_call_past_the_limits_falls_back_and_says_so_once(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    reference = TorchCpuKernels()
    kernels = NkiKernels(reference)
    q = normal(3, 2, 300)
    valid = torch.ones(3, dtype=torch.bool)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            got = kernels.prefill_attention(q, q, q, valid, scale=0.1)
    assert torch.equal(got, reference.prefill_attention(q, q, q, valid, scale=0.1))
    reason = "head_dim above 256: a score is two contractions of 128"
    assert kernels.coverage() == {"prefill_attention": {"nki": 0, "fallback": {reason: 2}}}
    told = capsys.readouterr()
    assert (caplog.text + told.out + told.err).count(reason) == 1


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda k: k.rms_norm(normal(2, 8).half(), normal(8).half(), 1.0), "dtype torch.float16"),
        (lambda k: k.linear(normal(2, 8), normal(8, 8).bfloat16()), "dtypes torch.float32 and"),
        (lambda k: k.linear(normal(2, 8), normal(8, 8).T), "not contiguous"),
        (lambda k: k.rms_norm(normal(1, 20000), normal(20000), 1.0), "hidden above 10240"),
        (lambda k: k.prefill_attention(*QKV, TRUE, scale=-1.0), "scale of 0 or less"),
        (
            lambda k: k.decode_attention(
                QKV[0][:1], *[normal(2, 2, 129, 8)] * 2, integers([1]), integers(4), scale=0.3
            ),
            "block_size above 128 and no multiple",
        ),
        (
            lambda k: k.kv_write(*QKV[1:], *[CACHE.to(torch.float8_e4m3fn)] * 2, torch.arange(5)),
            "cache of torch.float8_e4m3fn",
        ),
        (lambda k: k.top_k(torch.zeros(1, 20000), 9000), "candidates above 8192"),
    ],
)
def test_strict_kernels_refuse_what_they_cannot_take(call: Any, reason: str) -> None:
    with pytest.raises(KernelLimitError, match=reason):
        call(NkiKernels(TorchCpuKernels(), strict=True))


@pytest.mark.parametrize("file", KERNEL_FILES, ids=lambda file: file.stem)
def test_kernels_stay_in_the_compilers_subset(file: Path) -> None:
    assert lint(file.read_text()) == []


@pytest.mark.parametrize("file", KERNEL_FILES, ids=lambda file: file.stem)
def test_kernels_use_instructions_and_creation_only(file: Path) -> None:
    """``nl.add`` and the like name an operation; calling them would allocate behind our back."""
    import ast

    allowed = {"nl.ndarray", "nl.program_id", "nl.num_programs"}
    calls = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
    }
    assert {name for name in calls if name.startswith("nl.")} <= allowed


def test_one_operator_can_be_swapped_into_another_set() -> None:
    reference = TorchCpuKernels()
    ours = NkiKernels(reference, strict=True)
    mixed = with_operator(reference, mlp=ours.mlp)
    assert mixed.name == "torch_cpu+mlp:nki"
    weights = (normal(8, 9), normal(8, 9, seed=1), normal(9, 8, seed=2))
    torch.testing.assert_close(
        mixed.mlp(normal(2, 8), *weights), reference.mlp(normal(2, 8), *weights)
    )
    assert ours.coverage() == {"mlp": {"nki": 1, "fallback": {}}}


def test_a_missing_package_is_named_with_the_extra_that_brings_it() -> None:
    script = (
        "import sys\nsys.modules['ml_dtypes'] = None\n"
        "from trnport import bootstrap\nbootstrap.kernels('torch_cpu')\nbootstrap.kernels('nki')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "ConfigError: kernels='nki' needs ml_dtypes" in done.stderr
    assert "trnport[nki]" in done.stderr

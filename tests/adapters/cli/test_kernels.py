# SPDX-License-Identifier: Apache-2.0
"""Sets of kernels that somebody else wrote: found, listed, compared and selected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.adapters.cli.test_roofline import CONFIG
from trnport import bootstrap
from trnport.adapters.cli import main
from trnport.adapters.cli.kernel_examples import DEFAULTS, example, parse_sizes
from trnport.adapters.cli.kernel_truth import compared, truth
from trnport.adapters.cli.kernels import compare
from trnport.adapters.kernel_sets import KernelSets
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.config import NeuronConfig
from trnport.core.errors import ConfigError
from trnport.core.kernel_calls import KernelCall, invoke
from trnport.core.kernels import operator_names
from trnport.core.ports import Kernels

PLUGIN = '''
"""A package of somebody else."""
import torch
from trnport.adapters.torch_cpu import TorchCpuKernels


def mlp(x, gate, up, down, gate_bias=None, up_bias=None, down_bias=None):
    return (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down


class Shifted(TorchCpuKernels):
    """Wrong on purpose."""

    name = "shifted"

    def linear(self, x, weight, bias=None):
        return super().linear(x, weight, bias) + 1


def operators():
    return {"mlp": mlp}


def broken():
    raise OSError("the driver is not there")


NOTHING = {"no_such_operator": mlp}
'''

POINTS = """[trnport.kernels]
mine = their_kernels:operators
shifted = their_kernels:Shifted
broken = their_kernels:broken
nothing = their_kernels:NOTHING
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package with entry points."""
    (tmp_path / "their_kernels.py").write_text(PLUGIN)
    info = tmp_path / "their_kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-kernels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    return "their-kernels"


@pytest.fixture
def registered() -> Iterator[str]:
    """A set that the running program registered."""

    def half(x, weight, eps):
        return TorchCpuKernels().rms_norm(x, weight, eps) / 2

    bootstrap.KERNEL_SETS.register("halved", {"rms_norm": half})
    yield "halved"
    bootstrap.KERNEL_SETS.unregister("halved")


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["kernels", *arguments]) == 0
    return capsys.readouterr().out


# --- the truth, against torch_cpu in fp32 and against mistakes ---------------------------------


@pytest.mark.parametrize("operator", operator_names())
def test_every_operator_has_an_example_and_a_truth(operator: str) -> None:
    for seed, changed in enumerate([{}, {"tokens": 1}, {"batch": 1, "context": 1}]):
        shape = ",".join(f"{n}={size}" for n, size in changed.items() if n in DEFAULTS[operator])
        sizes = parse_sizes(operator, shape)
        inputs = example(operator, sizes, torch.float32, seed)
        wanted = truth(operator, inputs)
        found = compared(operator, inputs, invoke(TorchCpuKernels(), operator, inputs))
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x.double(), y.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("operator", [name for name in operator_names() if "attention" in name])
@pytest.mark.parametrize("shape", ["sliding_window=5", "sinks=1", "sliding_window=5,sinks=1"])
def test_the_truth_knows_windows_and_sinks(operator: str, shape: str) -> None:
    inputs = example(operator, parse_sizes(operator, shape), torch.float32, 0)
    found = compared(operator, inputs, invoke(TorchCpuKernels(), operator, inputs))
    plain = {name: x for name, x in inputs.items() if name not in {"sliding_window", "sinks"}}
    for x, y, without in zip(found, truth(operator, inputs), truth(operator, plain), strict=True):
        torch.testing.assert_close(x.double(), y, atol=1e-5, rtol=1e-5)
        assert (y - without).abs().max() > 1e-3


def test_a_full_batch_of_a_call_owns_and_fills_its_blocks() -> None:
    inputs = example("decode_attention", parse_sizes("decode_attention", ""), torch.float32, 0)
    full = KernelCall.of("decode_attention", inputs).tensors()
    assert full["positions"].tolist() == [39] * 3
    assert full["block_table"].unique().tolist() == list(range(1, 16))
    written = KernelCall.of(
        "kv_write", example("kv_write", parse_sizes("kv_write", ""), torch.float32, 0)
    ).tensors()
    assert written["slot_mapping"].tolist() == list(range(8, 19))


# --- list ---------------------------------------------------------------------------------------


def test_list_shows_operators_sets_limits_and_what_runs(
    capsys: pytest.CaptureFixture[str], package: str, registered: str
) -> None:
    out = command(capsys, "list", "--kernels", "nki+mlp:mine")
    lines = [line.split() for line in out.splitlines()]
    assert ["mine", "package", package] in lines
    assert ["halved", "registered"] in lines
    header = next(line for line in lines if line[:1] == ["operator"])
    for operator in operator_names():
        row = dict(zip(header, next(x for x in lines if x[:1] == [operator]), strict=True))
        assert row["torch_cpu"] == row["nki"] == row["shifted"] == "yes"
        assert row["mine"] == ("yes" if operator == "mlp" else "-")
        assert row["halved"] == ("yes" if operator == "rms_norm" else "-")
        assert row["runs"] == ("mine" if operator == "mlp" else "nki")
    assert ["head_dim", "<=", "256"] in [line[1:4] for line in lines]
    assert "'broken' cannot be loaded: OSError: the driver is not there" in out
    assert "'nothing' is" in out


def test_list_as_json(capsys: pytest.CaptureFixture[str], package: str) -> None:
    found = json.loads(command(capsys, "list", "--json"))
    assert found["sets"]["mine"] == f"package {package}"
    assert found["operators"]["mlp"]["sets"] == [
        "torch_cpu",
        "native",
        "native_int8",
        "nki",
        "mine",
        "shifted",
    ]
    assert found["operators"]["mlp"]["runs"] == "torch_cpu"
    assert set(found["operators"]) == set(operator_names())
    assert set(found["problems"]) == {"broken", "nothing"}


# --- compare ------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", operator_names())
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_our_kernels_are_close_and_really_run(operator: str, dtype: str) -> None:
    found = compare(operator, dtype=dtype)
    worst = {"bf16": 2e-2, "fp32": 2e-6}[dtype]
    assert found.a.relative_error < worst
    assert found.b.relative_error < worst
    assert found.b.coverage == {"nki": 1, "fallback": {}}
    (launch,) = found.b.cost
    assert launch["bound_seconds"] > 0
    assert launch["cores"][0]["moved"]["hbm->sbuf"] > 0
    assert not found.a.cost
    if operator == "top_k":
        assert found.a.equal_indices == found.b.equal_indices == 1.0


def test_compare_prints_errors_coverage_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    shape = "batch=2, context=9,heads=4,kv_heads=1"
    out = command(
        capsys, "compare", "decode_attention", "--shape", shape, "--target", "trn3", "--lnc", "2"
    )
    assert "batch=2, context=9, block_size=8, heads=4" in out
    assert "on a kernel of nki  1 call(s)" in out
    assert "on trn3, lnc 2: ESTIMATE, not yet run on hardware" in out
    assert "core 1 bytes" in out


def test_compare_says_why_a_kernel_did_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    out = command(capsys, "compare", "decode_attention", "--shape", "head_dim=300")
    assert "1 call(s): head_dim above 256: a score is two contractions of 128" in out
    assert "ESTIMATE" not in out


def test_compare_sees_a_wrong_kernel(package: str) -> None:
    found = compare("linear", a="shifted", b="torch_cpu", dtype="fp32")
    assert found.a.largest_error == pytest.approx(1, rel=1e-4)
    assert found.b.largest_error < 1e-5
    assert found.largest_difference == pytest.approx(1, rel=1e-4)


def test_compare_of_one_operator_of_a_package(package: str) -> None:
    found = compare("mlp", a="nki", b="torch_cpu+mlp:mine")
    assert (found.a.name, found.b.name) == ("nki", "torch_cpu+mlp:mine")
    assert found.b.relative_error < 2e-2
    assert found.b.coverage == {}


def test_compare_as_json_repeats_with_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for seed in ("3", "3", "4"):
        out = json.loads(command(capsys, "compare", "rms_norm", "--seed", seed, "--json"))
        runs.append(out["b"]["largest_error"])
    assert runs[0] == runs[1] != runs[2]


# --- select -------------------------------------------------------------------------------------


def test_a_setting_selects_a_registered_operator(registered: str) -> None:
    x, weight = torch.randn(3, 8), torch.randn(8)
    plain = bootstrap.kernels("torch_cpu").rms_norm(x, weight, 1e-5)
    for spelling in ("torch_cpu+rms_norm:halved", "torch_cpu+halved"):
        settings = NeuronConfig.from_dict(
            {"kernels": spelling},
            max_model_len=8,
            max_num_seqs=1,
            max_num_batched_tokens=8,
            tp=1,
        )
        kernels = bootstrap.kernels(settings.kernels)
        assert kernels.name == spelling
        assert torch.equal(kernels.rms_norm(x, weight, 1e-5), plain / 2)
        assert torch.equal(kernels.linear(x, torch.eye(8)), x)


def test_a_whole_set_of_a_package_is_selected_by_its_name(package: str) -> None:
    assert bootstrap.kernels("shifted").linear(torch.ones(1, 1), torch.ones(1, 1)).item() == 2
    one = bootstrap.kernels("nki+linear:shifted")
    assert one.linear(torch.ones(1, 1), torch.ones(1, 1)).item() == 2


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        (
            "cuda",
            r"'cuda' is not available; choose one of \['broken', 'mine', 'native', 'native_int8'",
        ),
        ("torch_cpu+mlp:cuda", "'cuda' is not available"),
        ("torch_cpu+mlpp:nki", "no operator is called 'mlpp'; the nearest is 'mlp'"),
        ("mine", "'mine' has only mlp; name a whole set before it, such as 'torch_cpu.mine'"),
        ("torch_cpu+linear:mine", "'mine' has no linear, only mlp"),
        ("broken", "'broken' cannot be loaded: OSError"),
        ("torch_cpu+nothing", "neither a Kernels adapter nor a dictionary of operators"),
        ("mlp:nki", "is not spelled as"),
        ("torch_cpu+", "is not spelled as"),
        ("torch_cpu+:nki", "is not spelled as"),
        ("", "is not spelled as"),
    ],
)
def test_bad_names_are_refused_with_what_there_is(
    package: str, spelling: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        bootstrap.kernels(spelling)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "mlpp"], "no operator is called 'mlpp'; the nearest is 'mlp' of decode"),
        (
            ["compare", "mlp", "--b", "cuda"],
            "choose one of ['native', 'native_int8', 'nki', 'torch_cpu']",
        ),
        (["compare", "mlp", "--shape", "heads=3"], "mlp has no size 'heads', only tokens"),
        (["compare", "mlp", "--shape", "tokens=0"], "tokens must be an integer of at least 1"),
        (["compare", "mlp", "--shape", "tokens=x"], "tokens must be an integer"),
        (["compare", "rope", "--shape", "heads=3"], "heads=3 must be a multiple of kv_heads=2"),
        (["compare", "rope", "--shape", "head_dim=3"], "head_dim=3 must be even"),
        (["compare", "top_k", "--shape", "k=500"], "k=500 must be at most vocab=131"),
        (["compare", "kv_write", "--shape", "tokens=33"], "do not fit into blocks=5"),
        (["list", "--kernels", "cuda"], "'cuda' is not available"),
    ],
)
def test_a_bad_command_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["kernels", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_names_of_ours_cannot_be_taken() -> None:
    sets = KernelSets({"torch_cpu": TorchCpuKernels})
    with pytest.raises(ConfigError, match="come with trnport"):
        sets.register("torch_cpu", TorchCpuKernels)
    with pytest.raises(ConfigError, match="is no name of kernels"):
        sets.register("a+b", TorchCpuKernels)


def test_looking_up_names_loads_nothing(package: str) -> None:
    bootstrap.check_kernels("broken+mlp:nothing")


# --- in a server's and a session's settings -----------------------------------------------------


def test_a_server_refuses_a_set_that_does_not_exist(package: str) -> None:
    pytest.importorskip("vllm")
    from trnport.adapters.vllm.settings import neuron_config_of

    def config(kernels: str) -> SimpleNamespace:
        return SimpleNamespace(
            additional_config={"neuron_config": {"kernels": kernels}},
            model_config=SimpleNamespace(max_model_len=64, dtype=torch.bfloat16),
            scheduler_config=SimpleNamespace(max_num_seqs=2, max_num_batched_tokens=64),
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
            cache_config=SimpleNamespace(block_size=32),
        )

    assert neuron_config_of(config("torch_cpu+mine")).kernels == "torch_cpu+mine"
    with pytest.raises(ConfigError, match=r"'cuda' is not available; choose one of .*'mine'"):
        neuron_config_of(config("torch_cpu+mlp:cuda"))


def test_a_model_is_built_with_what_the_setting_spells(registered: str) -> None:
    settings = NeuronConfig.from_dict(
        {"kernels": "torch_cpu+halved"},
        max_model_len=64,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        tp=1,
    )
    model: Any = bootstrap.build_model(CONFIG, settings, dtype=torch.float32)
    used = {x.name for m in model.modules() for x in vars(m).values() if isinstance(x, Kernels)}
    assert used == {"torch_cpu+halved"}


def test_what_one_set_writes_is_not_seen_by_the_other(registered: str) -> None:
    sets = bootstrap.KERNEL_SETS
    sets.register("halved", {"kv_write": lambda *_: None})
    found = compare("kv_write", a="torch_cpu+kv_write:halved", b="torch_cpu", dtype="fp32")
    assert found.a.largest_error > 0.1
    assert found.b.largest_error == 0
    assert found.largest_difference == found.a.largest_error

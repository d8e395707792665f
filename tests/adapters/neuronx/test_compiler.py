# SPDX-License-Identifier: Apache-2.0
"""What the adapter adds to the port's contract: refusals, keys, shared memory."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.zoo import save_llama
from trnport import bootstrap
from trnport.adapters.distributed import DistributedCollectives
from trnport.adapters.distributed.ops import group_called
from trnport.adapters.fake import RecordingWeightSource
from trnport.adapters.neuronx import NeuronxCompiler, Settings, capability, interpret
from trnport.core.errors import CompilationError, ConfigError, UnseenSignatureError

ABSENT = importlib.util.find_spec("torch_neuronx") is None
needs_absence = pytest.mark.skipif(not ABSENT, reason="torch-neuronx is installed")


def interpreting(**settings: Any) -> NeuronxCompiler:
    return NeuronxCompiler(Settings(**settings), lower=interpret)


def compiled(function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """A program that has run once."""
    compiler = interpreting(**settings)
    compiler.compile("step", function, args)(*args)
    return compiler.programs[0]


# --- without the SDK ------------------------------------------------------------------------------


@needs_absence
def test_it_says_what_is_missing() -> None:
    match = "neuronx-cc and torch-neuronx are not installed; install the Neuron SDK"
    with pytest.raises(ConfigError, match=match):
        NeuronxCompiler()
    with pytest.raises(ConfigError, match=match):
        bootstrap.compiler("neuronx")


@needs_absence
def test_a_model_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    save_llama(tmp_path)
    source = RecordingWeightSource(bootstrap.weight_source(tmp_path))
    with pytest.raises(ConfigError, match="compiler='neuronx': neuronx-cc"):
        bootstrap.open_session(tmp_path, neuron_config={"compiler": "neuronx"}, source=source)
    assert not source.reads


def test_an_sdk_without_a_compiler_is_told_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability, "problem", lambda: "")
    monkeypatch.setitem(sys.modules, "torch_neuronx", types.ModuleType("torch_neuronx"))
    program = NeuronxCompiler().compile("step", torch.neg, (torch.ones(2),))
    with pytest.raises(ConfigError, match="registers no 'neuron' backend"):
        program(torch.ones(2))


def test_the_installed_sdk_gets_the_rewritten_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        seen.extend(node.name for node in gm.graph.nodes)
        return gm.forward

    monkeypatch.setattr(capability, "problem", lambda: "")
    monkeypatch.setitem(sys.modules, "torch_neuronx", types.ModuleType("torch_neuronx"))
    monkeypatch.setitem(torch._dynamo.backends.registry._BACKENDS, "neuron", None)
    monkeypatch.setitem(torch._dynamo.backends.registry._COMPILER_FNS, "neuron", backend)
    x = torch.ones(2)
    NeuronxCompiler().compile("step", lambda x: x.add_(1), (x,))(x)
    assert seen[1].endswith("_modified") and torch.equal(x, torch.full((2,), 2.0))


# --- what goes wrong ------------------------------------------------------------------------------


def test_what_cannot_be_rewritten_names_program_and_node() -> None:
    x = torch.ones(3)
    program = interpreting().compile("prefill_s3", lambda x: x.uniform_(), (x,))
    with pytest.raises(CompilationError, match=r"'prefill_s3' cannot be rewritten.*uniform_"):
        program(x)
    assert torch.equal(x, torch.ones(3))


def test_a_function_that_looks_at_something_else_is_not_traced_again() -> None:
    switch = {"on": True}
    x = torch.ones(3)
    program = interpreting().compile("step", lambda x: x + 1 if switch["on"] else x - 1, (x,))
    assert torch.equal(program(x), x + 1)
    switch["on"] = False
    with pytest.raises(UnseenSignatureError, match="'step' would have to be traced again"):
        program(x)


def test_memory_that_two_inputs_share_is_one_input() -> None:
    held = types.SimpleNamespace(a=torch.zeros(4), b=None)
    held.b = held.a.view(4)

    def function(x: Tensor) -> Tensor:
        held.a[0] = x[0]
        held.b[1] = 5
        return held.a + held.b

    program = compiled(function, torch.ones(4))
    assert torch.equal(held.a, torch.tensor([1.0, 5, 0, 0]))
    assert len(program.rewritten.io_map) == 1


def test_memory_that_is_shared_in_part_is_refused() -> None:
    memory = torch.zeros(6)
    a, b = memory[:4], memory[2:]
    with pytest.raises(CompilationError, match="memory overlaps"):
        interpreting().compile("step", lambda a, b: a.add_(b), (a, b))(a, b)
    read = interpreting().compile("step", lambda a, b: a + b, (a, b))
    assert torch.equal(read(a, b), torch.zeros(4))


def test_returned_buffers_are_the_callers_own() -> None:
    x = torch.ones(3)
    program = interpreting().compile("step", lambda x: (x.add_(1), x[1:]), (x,))
    whole, part = program(x)
    assert whole is x and torch.equal(part, torch.full((2,), 2.0))


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[DistributedCollectives]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    group = dist.new_group([0])
    yield DistributedCollectives({"tp": group})
    dist.destroy_process_group()


def test_collectives_of_processes_are_captured_and_run(
    one_process: DistributedCollectives,
) -> None:
    def step(x: Tensor) -> Tensor:
        return one_process.all_reduce(x, "tp") * 2

    name = group_called("tp").group_name
    x = torch.ones(3)
    compiler = interpreting(groups={name: [[0]]})
    assert torch.equal(compiler.compile("step", step, (x,))(x), x * 2)
    (program,) = compiler.programs
    assert dict(program.rewritten.group_names) == {"replica:0": name}
    unknown = interpreting().compile("step", step, (x,))
    with pytest.raises(CompilationError, match=f"no group is called '{name}'"):
        unknown(x)


def test_a_model_without_weights_is_enough_to_compile() -> None:
    layer = torch.nn.Linear(3, 2, device="meta", dtype=torch.bfloat16)
    cache = torch.empty(4, 2, device="meta", dtype=torch.bfloat16)

    def step(x: Tensor) -> Tensor:
        cache[1:3] = layer(x)
        return cache.sum(0)

    compiler = NeuronxCompiler(lower=interpret, compile_only=True)
    x = torch.ones(2, 3, device="meta", dtype=torch.bfloat16)
    result = compiler.compile("step", step, (x,))(x)
    assert result.shape == (2,) and result.dtype == torch.bfloat16
    (program,) = compiler.programs
    assert program.rewritten is not None and list(program.rewritten.io_map) == [1]


def test_a_buffer_keeps_what_it_got_from_another_that_changes_later() -> None:
    def crossed(y: Tensor, x: Tensor) -> Tensor:
        x[:] = y
        y.add_(1)
        return x.view(2, 2)

    y, x = torch.zeros(4), torch.ones(4)
    result = interpreting().compile("step", crossed, (y, x))(y, x)
    assert torch.equal(y, torch.ones(4)) and torch.equal(x, torch.zeros(4))
    assert torch.equal(result, torch.zeros(2, 2))


# --- keys -----------------------------------------------------------------------------------------


def weights(seed: int) -> Callable[[Tensor], Tensor]:
    layer = torch.nn.Linear(3, 3)
    torch.manual_seed(seed)
    layer.reset_parameters()
    return lambda x: layer(x) * 2


def test_equal_graphs_share_a_key_whatever_the_weights() -> None:
    x = torch.ones(2, 3)
    first = compiled(weights(0), x)
    assert first.key == compiled(weights(1), x).key and len(first.key) == 64


def test_what_changes_the_program_changes_the_key() -> None:
    x = torch.ones(2, 3)
    base = lambda x: x * 2 + torch.arange(3)  # noqa: E731
    keys = [
        compiled(base, x).key,
        compiled(lambda x: x * 3 + torch.arange(3), x).key,
        compiled(lambda x: x.mul_(2) + torch.arange(3), x).key,
        compiled(lambda x: torch.arange(3) + x * 2, x).key,
        compiled(base, torch.ones(3, 3)).key,
        compiled(base, x.bfloat16()).key,
        compiled(base, torch.ones(3, 2).t()).key,
        compiled(base, x, target="trn3").key,
        compiled(base, x, compiler_flags=("-O1",)).key,
    ]
    assert len(set(keys)) == len(keys)


def test_versions_of_the_sdk_change_both_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2)
    before = (compiled(torch.neg, x).key, interpreting().cache_key("step", (x,)))
    monkeypatch.setattr("trnport.adapters.neuronx.compiler.versions", lambda: ("neuronx-cc=9",))
    after = (compiled(torch.neg, x).key, interpreting().cache_key("step", (x,)))
    assert before[0] != after[0] and before[1] != after[1]


def test_cache_keys_know_target_and_flags() -> None:
    settings = [{}, {"target": "trn3"}, {"compiler_flags": ("-O1",)}]
    assert len({interpreting(**each).cache_key("step", (1,)) for each in settings}) == 3
    assert interpreting(compiler_flags=("-O1",)).flags == "--target=trn2 -O1"


def test_replicas_share_a_key_and_other_groups_do_not() -> None:
    def key(name: str, groups: list[list[int]], ranks: tuple[int, ...]) -> str:
        function = lambda x: torch.ops._c10d_functional.all_reduce(x, "sum", name)  # noqa: E731
        compiler = NeuronxCompiler(
            Settings(groups={name: groups}, replica_ranks=ranks),
            lower=lambda rewritten, _: lambda x: (x,),
        )
        compiler.compile("step", function, (torch.ones(2),))(torch.ones(2))
        found = compiler.programs[0].key
        assert found is not None
        return found

    first = key("2", [[0, 1], [2, 3]], (0, 1, 2, 3))
    assert first == key("9", [[4, 5], [6, 7]], (4, 5, 6, 7))
    assert first != key("2", [[0, 1, 2, 3]], (0, 1, 2, 3))

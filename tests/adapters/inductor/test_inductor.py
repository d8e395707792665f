# SPDX-License-Identifier: Apache-2.0
"""Compiled programs against the same model run eagerly, and starts on a warm cache."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn

from tests.harness import Rig, make_rig, relative_error
from tests.zoo import save_llama
from trnport import bootstrap, toolchain
from trnport.adapters.inductor import InductorCompiler, lowering
from trnport.adapters.program_cache import ProgramCache
from trnport.core.errors import ConfigError, UnseenSignatureError

BUCKETS = {"num_batched_tokens_buckets": [24], "num_seqs_buckets": [2]}
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
FORCED = [8, 9, 7]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder, "untied", num_hidden_layers=4)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> ProgramCache:
    return ProgramCache(tmp_path_factory.mktemp("programs"))


def rig_of(checkpoint: Path, **settings: Any) -> Rig:
    config = {**BUCKETS, "enable_prompt_logprobs": False}
    return make_rig(checkpoint, neuron_config=config, max_model_len=24, max_num_seqs=2, **settings)


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a warm start neither traces nor compiles, and knows its torch")

    monkeypatch.setattr(lowering, "trace", refuse)
    monkeypatch.setattr(lowering, "compile_into", refuse)
    monkeypatch.setattr(lowering.codecache, "torch_key", refuse)  # reads all files of torch


@pytest.mark.slow
def test_programs_compute_what_the_model_does_and_survive_a_restart(
    checkpoint: Path, cache: ProgramCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = rig_of(checkpoint)
    expected = eager.teacher_forced(PROMPT, FORCED)
    first = InductorCompiler(cache)
    cold = rig_of(checkpoint, compiler=first)
    bound = [tensor.data_ptr() for pair in cold.caches.values() for tensor in pair]
    logits = cold.teacher_forced(PROMPT, FORCED)
    assert relative_error(logits, expected) < 1e-5
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
    # The caches were written in place, to the same storage, and nowhere else.
    assert [t.data_ptr() for pair in cold.caches.values() for t in pair] == bound
    for name, pair in cold.caches.items():
        torch.testing.assert_close(pair, eager.caches[name], equal_nan=True)
    assert (first.num_cached, first.num_compiled) == (0, 2)

    forbid_compiling(monkeypatch)
    second = InductorCompiler(cache)
    machine_code = sorted(cache.folder.rglob("*.so"))
    stored = {path for entry in cache.entries() for path in entry.files if path.endswith(".so")}
    assert {str(path).partition("/code/")[2] for path in machine_code} == {
        path.removeprefix("code/") for path in stored
    }  # loading in the process that compiled has compiled nothing more
    warm = rig_of(checkpoint, compiler=second)
    assert torch.equal(warm.teacher_forced(PROMPT, FORCED), logits)
    assert second.summary().startswith("2 programs from the cache, 0 compiled, ")
    assert sorted(cache.folder.rglob("*.so")) == machine_code
    # In a new process, too, inductor looks for the files that are there.
    entry = min(cache.entries(), key=lambda item: item.num_bytes)
    fresh = multiprocessing.get_context("spawn").Process(target=lowering.load, args=(entry.folder,))
    fresh.start()
    fresh.join(120)
    assert fresh.exitcode == 0
    assert sorted(cache.folder.rglob("*.so")) == machine_code


@pytest.mark.slow
def test_bfloat16_stays_within_its_rounding(checkpoint: Path, cache: ProgramCache) -> None:
    exact = rig_of(checkpoint).teacher_forced(PROMPT, [])
    eager = rig_of(checkpoint, dtype=torch.bfloat16).teacher_forced(PROMPT, [])
    compiler = InductorCompiler(cache)
    compiled = rig_of(checkpoint, dtype=torch.bfloat16, compiler=compiler)
    logits = compiled.teacher_forced(PROMPT, [])
    assert compiler.num_compiled == 1
    # Fused operators round less often than those of eager mode, never more.
    assert relative_error(logits.float(), exact) < 1.5 * relative_error(eager.float(), exact) + 1e-3


# --- one small function -------------------------------------------------------------------------


class Counter(nn.Module):
    """A weight, a list that is written to, and an output of every kind."""

    def __init__(self, rows: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(float(rows)))
        self.large = nn.Parameter(torch.zeros(2**18))
        self.again = self.weight
        self.kv_cache = [torch.zeros(rows), torch.zeros(2 * rows)[::2]]

    def forward(self, x: Tensor, at: Tensor) -> dict[str, Any]:
        self.kv_cache[0].index_put_((at,), x)
        self.kv_cache[1].add_(self.again)
        return {"sum": x + self.weight + self.large[-1], "rest": [None, 3, (x * 2,)]}


@pytest.mark.slow
def test_state_is_shared_written_in_place_and_may_be_replaced(tmp_path: Path) -> None:
    module, cache = Counter(), ProgramCache(tmp_path)
    program = InductorCompiler(cache).compile("count", module, (torch.ones(4), torch.arange(4)))
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    held = module.kv_cache[0]
    out = program(x, torch.tensor([3, 2, 1, 0]))
    assert list(out) == ["sum", "rest"]
    assert out["sum"].tolist() == [1, 3, 5, 7]
    assert out["rest"][:2] == [None, 3]
    assert out["rest"][2][0].tolist() == [2, 4, 6, 8]
    assert held.tolist() == [4, 3, 2, 1]
    assert module.kv_cache[1].tolist() == [0, 1, 2, 3]
    assert module.kv_cache[0] is held

    # Weights are inputs: they are in no program, and a program sees a change of them.
    (entry,) = cache.entries()
    assert entry.num_bytes < module.large.nbytes
    with torch.no_grad():
        module.large += 10
    assert program(x, torch.tensor([3, 2, 1, 0]))["sum"].tolist() == [11, 13, 15, 17]

    module.kv_cache = [torch.zeros(4), torch.zeros(8)[::2]]
    every_second = torch.stack([x, -x], dim=1)[:, 0]  # strides that the program does not know
    program(every_second, torch.arange(4))
    assert module.kv_cache[0].tolist() == [1, 2, 3, 4]
    assert held.tolist() == [4, 3, 2, 1]
    module.kv_cache[0] = torch.zeros(5)
    with pytest.raises(UnseenSignatureError, match="'kv_cache'"):
        program(x, torch.arange(4))

    # A file that was damaged without changing its size is compiled again.
    module = Counter()
    damaged = entry.folder / "program.bin"
    damaged.write_bytes(bytes(len(damaged.read_bytes())))
    compiler = InductorCompiler(cache)
    again = compiler.compile("count", module, (x, torch.arange(4)))
    assert again(x, torch.arange(4))["sum"].tolist() == [1, 3, 5, 7]
    assert (compiler.num_cached, compiler.num_compiled) == (0, 1)


@attrs.frozen(eq=False)
class Metadata:
    lengths: Tensor


def test_objects_must_be_shared_as_in_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Any, name: str, function: Any, args: Any, kwargs: Any) -> Any:
        return (lambda *inputs: [inputs[0]]), lowering.Outputs(None)

    monkeypatch.setattr(InductorCompiler, "load", load)
    one, other = Metadata(torch.ones(2)), Metadata(torch.ones(2))
    program = InductorCompiler().compile("step", len, ({"a": one, "b": one},))
    program({"a": one, "b": one})
    program({"b": other, "a": other})
    with pytest.raises(UnseenSignatureError, match=r"'step'.*shared"):
        program({"a": one, "b": other})


# --- refusals ------------------------------------------------------------------------------------


def test_without_a_cxx_compiler_nothing_is_loaded(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    monkeypatch.setattr(bootstrap, "weight_source", lambda path: pytest.fail("read weights"))
    with pytest.raises(ConfigError, match=r"C\+\+ compiler.*g\+\+.*'eager'"):
        bootstrap.open_session(checkpoint, neuron_config={"compiler": "inductor"})


# --- what a C++ compiler may assume ---------------------------------------------------------------


def wrapping(keys: Tensor, x: Tensor) -> Tensor:
    """A product of an ``arange`` that does not fit into 64 bits, as random numbers need it."""
    at = torch.arange(x.shape[-1])
    return (x.view(torch.int32).long() << 32) | (keys[:, None] + at * -7046029254386353131)


@pytest.mark.slow
def test_integers_wrap_around_and_nothing_is_written_behind_a_tensor(tmp_path: Path) -> None:
    keys, x = torch.tensor([3, 5]), torch.randn(2, 131)
    program = InductorCompiler(ProgramCache(tmp_path)).compile("wrap", wrapping, (keys, x))
    with torch.inference_mode():
        assert torch.equal(program(keys, x), wrapping(keys, x))

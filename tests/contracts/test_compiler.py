# SPDX-License-Identifier: Apache-2.0
"""Contract of the Compiler port, then what the recording fake adds."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from trnport.adapters.eager import EagerCompiler
from trnport.adapters.fake import RecordingCompiler
from trnport.core.errors import UnseenSignatureError
from trnport.core.ports import Compiler


@attrs.frozen(eq=False)
class Metadata:
    lengths: Tensor
    window: int


def weighted(x: Tensor, *, meta: dict[str, Metadata], scale: float = 1.0) -> Tensor:
    return x * scale * meta["a"].lengths.sum() + meta["a"].window


def example(
    shape: tuple[int, ...] = (2, 3),
    dtype: torch.dtype = torch.float32,
    rows: int = 4,
    window: int = 8,
    key: str = "a",
    **others: Any,
) -> dict[str, Any]:
    """A call: everything that :func:`test_other_signatures_raise` varies."""
    meta = {key: Metadata(torch.ones(rows, dtype=torch.int32), window)}
    return {"args": (torch.ones(shape, dtype=dtype),), "kwargs": {"meta": meta, **others}}


OTHERS = {
    "shape": example(shape=(2, 4)),
    "rank": example(shape=(2, 3, 1)),
    "dtype": example(dtype=torch.bfloat16),
    "nested shape": example(rows=5),
    "leaf": example(window=9),
    "key": example(key="b"),
    "keyword": example(scale=1.0),
    "device": {"args": (torch.ones(2, 3, device="meta"),), "kwargs": example()["kwargs"]},
    "positional": {"args": (torch.ones(2, 3),) * 2, "kwargs": example()["kwargs"]},
}


def test_a_program_computes_what_its_function_does(compiler: Compiler) -> None:
    program = compiler.compile("step", weighted, **example())
    for value in (1.0, 2.5):  # contents are no part of a signature
        x = torch.full((2, 3), value)
        call = example()
        assert torch.equal(program(x, **call["kwargs"]), weighted(x, **call["kwargs"]))


@pytest.mark.parametrize("kind", OTHERS)
def test_other_signatures_raise(compiler: Compiler, kind: str) -> None:
    program = compiler.compile("step_s2", weighted, **example())
    call = OTHERS[kind]
    with pytest.raises(UnseenSignatureError, match="step_s2"):
        program(*call["args"], **call["kwargs"])


def test_compiling_runs_nothing(compiler: Compiler) -> None:
    calls = []
    program = compiler.compile("step", calls.append, (1,))
    assert calls == []
    program(1)
    assert calls == [1]


def test_one_function_and_signature_give_one_program(compiler: Compiler) -> None:
    first = compiler.compile("step", weighted, **example())
    assert compiler.compile("again", weighted, **example()) is first
    assert compiler.compile("step", weighted, **example(rows=5)) is not first
    assert compiler.compile("step", lambda x, **_: x, **example()) is not first


def test_signatures_do_not_depend_on_the_order_of_keywords(compiler: Compiler) -> None:
    first = compiler.compile("step", dict, (), {"a": 1, "b": 2})
    assert compiler.compile("step", dict, (), {"b": 2, "a": 1}) is first


@pytest.mark.parametrize("kind", OTHERS)
def test_a_sealed_compiler_refuses_what_it_has_not_seen(compiler: Compiler, kind: str) -> None:
    known = compiler.compile("step_s2", weighted, **example())
    compiler.seal()
    compiler.seal()
    with pytest.raises(UnseenSignatureError, match=r"'other'.*'step_s2'"):
        compiler.compile("other", weighted, **OTHERS[kind])
    assert compiler.compile("step_s2", weighted, **example()) is known
    call = example()
    known(*call["args"], **call["kwargs"])


def test_a_sealed_compiler_refuses_another_function(compiler: Compiler) -> None:
    compiler.compile("step", weighted, **example())
    compiler.seal()
    with pytest.raises(UnseenSignatureError, match="'new'"):
        compiler.compile("new", lambda x, **_: x, **example())


def test_refusal_shows_where_the_signatures_differ(compiler: Compiler) -> None:
    program = compiler.compile("step", weighted, **example())
    compiler.seal()
    with pytest.raises(UnseenSignatureError, match=r"int32\[4\].*int32\[5\]"):
        compiler.compile("step", weighted, **example(rows=5))
    with pytest.raises(UnseenSignatureError, match=r"int32\[4\].*int32\[5\]"):
        program(*example()["args"], **example(rows=5)["kwargs"])


def test_cache_keys_tell_calls_apart(compiler: Compiler) -> None:
    calls = [example(), *OTHERS.values()]
    keys = [compiler.cache_key("step", **call) for call in calls]
    assert keys == [compiler.cache_key("step", **call) for call in calls]
    assert len({*keys, compiler.cache_key("another", **example())}) == len(calls) + 1


def test_methods_and_modules_are_functions_too(compiler: Compiler) -> None:
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():  # sums that are exact in any order
        layer.weight.copy_(torch.arange(6.0).view(2, 3))
        layer.bias.fill_(0.5)
    x = torch.ones(1, 3)
    for function in (layer, layer.forward):
        program = compiler.compile("layer", function, (x,))
        assert torch.equal(program(x), layer(x))
        assert compiler.compile("layer", function, (x,)) is program


# --- recording --------------------------------------------------------------------------------


def test_recording_tells_compilations_repeats_and_calls() -> None:
    compiler = RecordingCompiler(EagerCompiler())
    one = compiler.compile("one", abs, (1,))
    two = compiler.compile("two", abs, (-2,))
    compiler.compile("one", abs, (1,))
    assert not compiler.sealed
    compiler.seal()
    assert compiler.sealed
    assert [one(1), two(-2), two(-2)] == [1, 2, 2]
    with pytest.raises(UnseenSignatureError):
        compiler.compile("three", abs, (3,))
    with pytest.raises(UnseenSignatureError):
        one(2)
    assert [record.name for record in compiler.compilations] == ["one", "two"]
    assert [record.name for record in compiler.repeats] == ["one"]
    assert [record.name for record in compiler.calls] == ["one", "two", "two"]
    assert compiler.call_counts() == {"one": 1, "two": 2}
    assert compiler.compilation_count == 2
    assert compiler.calls[0].signature == compiler.compilations[0].signature


def test_recording_keeps_its_inner_compilers_keys() -> None:
    inner = EagerCompiler()
    call = example()
    assert RecordingCompiler(inner).cache_key("a", **call) == inner.cache_key("a", **call)

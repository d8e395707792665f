# SPDX-License-Identifier: Apache-2.0
"""Warm-up compiles everything, and a program that does not compile is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness import make_rig
from tests.zoo import save_llama
from trnport.adapters.eager import EagerCompiler
from trnport.adapters.fake import RecordingCompiler
from trnport.core.engine.hidden import head_program_name, head_rows
from trnport.core.errors import CompilationError, UnseenSignatureError

BUCKETS = {
    "num_batched_tokens_buckets": [5, 64],
    "num_seqs_buckets": [1, 4],
    "decode_context_length_buckets": [12],
}


class BrokenCompiler(EagerCompiler):
    """Fails on one program, while it compiles or in its first call."""

    flags = "--lnc=2 -O1"

    def __init__(self, victim: str, when: str) -> None:
        super().__init__()
        self.victim, self.when = victim, when

    def compile(self, name: str, function: Any, args: Any = (), kwargs: Any = None) -> Any:
        program = super().compile(name, function, args, kwargs)
        if name != self.victim:
            return program
        if self.when == "compile":
            fail()
        return fail


def fail(*args: Any, **kwargs: Any) -> None:
    raise OSError("exit status 70")


@pytest.fixture(scope="module")
def names_of(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder)
    buckets = make_rig(folder, neuron_config=BUCKETS).executor._inputs.buckets
    signatures = [*buckets.all_prefill_signatures(), *buckets.all_decode_signatures()]
    names = [signature.name for signature in signatures]
    return folder, [*names, head_program_name(head_rows(buckets))]


@pytest.mark.parametrize("when", ["compile", "first call"])
def test_a_failed_compilation_names_program_flags_and_signature(
    names_of: tuple[Path, list[str]], when: str
) -> None:
    folder, names = names_of
    for victim in (names[0], names[-1]):
        rig = make_rig(folder, neuron_config=BUCKETS, compiler=BrokenCompiler(victim, when))
        with pytest.raises(CompilationError) as caught:
            rig.executor.warm_up()
        message = str(caught.value)
        assert f"program '{victim}'" in message and "exit status 70" in message
        assert "BrokenCompiler, flags: --lnc=2 -O1;" in message
        expected = "block_table_tensor=int32[" if victim == names[0] else "float32[64,"
        assert expected in message.split("signature: ")[1]
        assert isinstance(caught.value.__cause__, OSError)


def test_every_program_is_compiled_before_the_first_request(
    names_of: tuple[Path, list[str]],
) -> None:
    folder, names = names_of
    compiler = RecordingCompiler(EagerCompiler())
    rig = make_rig(folder, neuron_config=BUCKETS, compiler=compiler, warm_up=True)
    compiled = list(compiler.compilations)
    assert [record.name for record in compiled] == names and compiler.sealed
    rig.teacher_forced([5, 7, 9, 11, 3, 8, 2], [4] * 20, chunks=[5, 2])
    requests = [rig.request([3, 4, 5], room=2) for _ in range(3)]
    for request in requests:
        rig.run([request], [2])
    rig.run(requests, [1, 1, 1])
    assert compiler.compilations == compiled and not compiler.repeats
    assert len(compiler.calls) > len(compiled)


def test_an_unseen_program_is_refused_by_its_own_error(names_of: tuple[Path, list[str]]) -> None:
    rig = make_rig(names_of[0], neuron_config=BUCKETS, warm_up=True)
    larger = make_rig(
        names_of[0], max_num_seqs=6, neuron_config={**BUCKETS, "num_seqs_buckets": [6]}
    )
    rig.executor._inputs = larger.executor._inputs
    requests = [rig.request([3, 4], room=1) for _ in range(5)]
    for request in requests:
        request.num_computed_tokens = 1
    with pytest.raises(UnseenSignatureError):
        rig.run(requests, [1] * 5)


def test_lazy_warm_up_compiles_at_first_use_and_only_what_was_planned(
    names_of: tuple[Path, list[str]],
) -> None:
    folder, names = names_of
    compiler = RecordingCompiler(EagerCompiler())
    rig = make_rig(folder, neuron_config=BUCKETS, compiler=compiler)
    rig.executor.warm_up(lazy=True)
    assert compiler.compilation_count == 0
    rig.teacher_forced([1, 2, 3], [4])
    assert rig.executor.program_names == ["prefill_s5", "decode_b1_ctx12"]
    with pytest.raises(UnseenSignatureError, match=r"'decode_b9_ctx12'.*'decode_b1_ctx12'"):
        rig.executor._programs.call("decode_b9_ctx12", abs, (1,))
    assert not compiler.sealed
    rig.executor.warm_up()
    assert sorted(rig.executor.program_names) == sorted(names)
    assert compiler.sealed


def test_the_last_planned_program_seals_the_compiler(names_of: tuple[Path, list[str]]) -> None:
    folder, names = names_of
    compiler = RecordingCompiler(EagerCompiler())
    rig = make_rig(folder, neuron_config=BUCKETS, compiler=compiler)
    rig.executor.warm_up(lazy=True)
    for number, name in enumerate(names):
        assert not compiler.sealed
        rig.executor._programs.call(name, abs, (number,))
    assert compiler.sealed

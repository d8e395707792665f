# SPDX-License-Identifier: Apache-2.0
"""A key changes with everything that changes a program, and with nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness import make_rig
from tests.zoo import save_llama
from trnport.adapters.inductor import InductorCompiler, compiler, identity
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.kernels import with_operator


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in ("untied", "awkward", "biased"):
        save_llama(root / name, name)
    save_llama(root / "epsilon", "untied", rms_norm_eps=1e-4)
    return root


def digest(folder: Path, **settings: Any) -> str | None:
    return identity.identity(make_rig(folder, **settings).model)


def test_a_model_is_known_by_its_configuration_dtype_and_form(checkpoints: Path) -> None:
    base = digest(checkpoints / "untied")
    assert base is not None
    assert base == digest(checkpoints / "untied")
    assert base == digest(checkpoints / "untied", fill=0.0)  # values are no part of it
    others = [
        digest(checkpoints / "awkward"),
        digest(checkpoints / "biased"),
        digest(checkpoints / "epsilon"),
        digest(checkpoints / "untied", dtype=torch.bfloat16),
    ]
    assert len({base, *others}) == 1 + len(others)
    assert None not in others


def test_methods_of_a_model_differ(checkpoints: Path) -> None:
    model = make_rig(checkpoints / "untied").model
    assert identity.identity(model) != identity.identity(model.compute_logits)


def test_foreign_code_has_to_be_traced(checkpoints: Path) -> None:
    def mlp(x: Any, *_: Any) -> Any:
        return x

    assert digest(checkpoints / "untied", kernels=with_operator(TorchCpuKernels(), mlp=mlp)) is None


def test_hooks_have_to_be_traced(checkpoints: Path) -> None:
    model = make_rig(checkpoints / "untied").model
    model.register_forward_hook(lambda *_: None)
    assert identity.identity(model) is None


def test_a_change_of_the_sources_changes_the_key(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = digest(checkpoints / "untied")
    read: list[str] = []

    def changed(package: str) -> str:
        read.append(package)
        return f"another {package}"

    monkeypatch.setattr(identity, "_sources", changed)
    assert digest(checkpoints / "untied") != base
    expected = ["adapters.inductor", "adapters.local", "adapters.torch_cpu", "core", "models.llama"]
    assert read == [f"trnport.{name}" for name in expected]


def test_keys_depend_on_machine_options_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made = InductorCompiler()
    call = ("step", (torch.ones(2),))
    keys = [made.cache_key(*call)]
    monkeypatch.setattr(compiler, "target", lambda: "another machine")
    keys.append(made.cache_key(*call))
    monkeypatch.setattr(compiler.lowering, "OPTIONS", {"size_asserts": True})
    keys.append(made.cache_key(*call))
    monkeypatch.setattr(compiler.torch, "get_num_threads", lambda: 77)
    keys.append(made.cache_key(*call))
    assert len(set(keys)) == 4

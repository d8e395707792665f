# SPDX-License-Identifier: Apache-2.0
"""Weights are packed once, by the operator's own set of kernels."""

from __future__ import annotations

import pytest
import torch

from trnport.adapters.local import SingleCollectives
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.context import ModelContext
from trnport.core.kernels import with_operator
from trnport.core.nn.mlp import GatedMLP
from trnport.core.nn.parameter import pack_weights


class Turned(TorchCpuKernels):
    """Keeps the weights of some operators transposed, with a dimension more to tell them by."""

    name = "turned"

    def __init__(self, *operators):
        self.operators, self.packed = operators, []

    def pack(self, operator, weight):
        self.packed.append(operator)
        return weight.T[None] if operator in self.operators else weight

    def mlp(self, x, *weights):
        return super().mlp(x, *(w[0].T if w is not None and w.dim() == 3 else w for w in weights))


def mlp_on(kernels):
    module = GatedMLP(6, 10, False, ModelContext.of(kernels, SingleCollectives()), torch.float32)
    for i, weight in enumerate(module.parameters()):
        weight.data = torch.randn(weight.shape, generator=torch.Generator().manual_seed(i))
    return module


def test_a_model_computes_the_same_with_packed_weights():
    x = torch.randn(3, 6)
    module = mlp_on(Turned("mlp"))
    want = mlp_on(TorchCpuKernels())(x)
    pack_weights(torch.nn.Sequential(module))
    assert module.gate_weight.shape == (1, 10, 6) and module.kernels.packed == ["mlp"] * 3
    assert torch.equal(module(x), want)
    assert not any(weight.requires_grad for weight in module.parameters())


def test_a_set_without_an_order_of_its_own_changes_nothing():
    module = mlp_on(TorchCpuKernels())
    before = dict(module.named_parameters())
    pack_weights(module)
    assert all(weight is before[name] for name, weight in module.named_parameters())


@pytest.mark.parametrize("owner", ["base", "replaced", "function"])
def test_each_operator_of_a_composed_set_gets_its_owners_order(owner):
    ours, theirs = Turned("mlp"), Turned("linear")
    replacement = {
        "base": {"linear": theirs.linear},
        "replaced": {"mlp": theirs.mlp},
        "function": {"mlp": lambda x, *weights: x},
    }[owner]
    kernels = with_operator(ours, **replacement)
    weight = torch.ones(2, 3)
    assert kernels.pack("mlp", weight).dim() == (3 if owner == "base" else 2)
    assert kernels.pack("linear", weight).dim() == (3 if owner == "base" else 2)
    assert theirs.packed == {"base": ["linear"], "replaced": ["mlp"], "function": []}[owner]

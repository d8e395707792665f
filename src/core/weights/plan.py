# SPDX-License-Identifier: Apache-2.0
"""What will be loaded, checked against names, shapes and dtypes before anything is read."""

from __future__ import annotations

from collections import defaultdict

import attrs
import torch
from torch import Tensor, nn

from trnport.core.errors import ConfigError
from trnport.core.ports.weights import WeightSource
from trnport.core.weights.loader import Shape, WeightLoader, get_weight_loader
from trnport.core.weights.mapping import WeightMapping
from trnport.core.weights.problems import Kind, Problems

PLAIN_DTYPES = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
"""Dtypes that hold the number itself, so that a cast between them is all it takes."""


@attrs.frozen(eq=False)
class Target:
    """One parameter, or mapped buffer, and where it comes from.

    Attributes:
        name: Dotted name in the model.
        shape: Shape on this rank.
        dtype: Dtype after loading.
        loader: Makes it.
        keys: Checkpoint keys, in the order that the loader takes them.
    """

    name: str
    shape: Shape
    dtype: torch.dtype
    loader: WeightLoader
    keys: tuple[str, ...]

    def stored_shapes(self, problems: Problems) -> list[Shape] | None:
        """Shapes expected in the checkpoint, one for each key; None if the loader can't say."""
        if self.loader.stored_shapes is None:
            return None
        try:
            shapes = self.loader.stored_shapes(self.shape)
        except ConfigError as error:
            problems.add(Kind.MODEL, f"{self.name} {list(self.shape)}: {error}")
            return None
        if len(shapes) == len(self.keys):
            return shapes
        problems.add(
            Kind.MODEL,
            f"{self.name}: its loader takes {len(shapes)} checkpoint key(s), the mapping gives "
            f"{len(self.keys)}: {', '.join(self.keys)}",
        )
        return None


def find_targets(
    model: nn.Module, mapping: WeightMapping, dtype: torch.dtype | None, problems: Problems
) -> list[Target]:
    """Every parameter and mapped buffer of a model, in the model's order."""
    parameters: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for name in parameters:
        if name not in mapping.sources:
            problems.add(Kind.MODEL, f"{name}: no checkpoint key in the mapping")
    for name, buffer in buffers.items():
        if buffer.is_meta and name not in mapping.sources:
            problems.add(
                Kind.MODEL,
                f"{name}: buffer on the meta device that no weight fills; compute it on a real "
                "device, or map it",
            )
    tensors = parameters | buffers
    for name in mapping.sources:
        if name not in tensors:
            problems.add(Kind.MODEL, f"{name}: in the mapping, but not in the model")
    mapped = {name: tensor for name, tensor in tensors.items() if name in mapping.sources}
    _refuse_shared(mapped, problems)
    return [_target(name, tensor, mapping, dtype) for name, tensor in mapped.items()]


def _target(name: str, tensor: Tensor, mapping: WeightMapping, dtype: torch.dtype | None) -> Target:
    return Target(
        name=name,
        shape=tuple(tensor.shape),
        dtype=dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype,
        loader=get_weight_loader(tensor),
        keys=mapping.sources[name],
    )


def _refuse_shared(tensors: dict[str, Tensor], problems: Problems) -> None:
    """One tensor under two names would be loaded twice, with different keys or loaders."""
    names = defaultdict(list)
    for name, tensor in tensors.items():
        names[id(tensor)].append(name)
    for shared in names.values():
        if len(shared) > 1:
            problems.add(
                Kind.MODEL,
                f"{' and '.join(shared)}: one tensor under {len(shared)} names; keep them apart "
                "until loaded and map them to the same checkpoint key",
            )


def check_checkpoint(
    targets: list[Target], source: WeightSource, mapping: WeightMapping, problems: Problems
) -> None:
    """Compare names, shapes and dtypes with the checkpoint; no tensor is read."""
    stored = set(source.names())
    for target in targets:
        for key in target.keys:
            if key not in stored:
                problems.add(Kind.MISSING, f"{key} (for parameter {target.name})")
        _check_shapes(target, source, stored, problems)
        _check_dtypes(target, source, stored, problems)
    used = {key for keys in mapping.sources.values() for key in keys}
    for key in sorted(stored - used):
        if not mapping.is_ignored(key):
            info = source.info(key)
            problems.add(Kind.UNEXPECTED, f"{key} {list(info.shape)} {info.dtype}")


def _check_shapes(
    target: Target, source: WeightSource, stored: set[str], problems: Problems
) -> None:
    shapes = target.stored_shapes(problems)
    for key, expected in zip(target.keys, shapes or (), strict=False):
        if key not in stored:
            continue
        shape = tuple(source.info(key).shape)
        if shape != expected:
            problems.add(
                Kind.SHAPE,
                f"{key}: expected {list(expected)}, stored {list(shape)} "
                f"(for parameter {target.name})",
            )


def _check_dtypes(
    target: Target, source: WeightSource, stored: set[str], problems: Problems
) -> None:
    for key in target.keys:
        if key not in stored:
            continue
        dtype = source.info(key).dtype
        is_plain = dtype in PLAIN_DTYPES and target.dtype in PLAIN_DTYPES
        if not (is_plain or dtype == target.dtype or dtype in target.loader.extra_dtypes):
            problems.add(
                Kind.DTYPE,
                f"{key}: stored as {dtype}, which is not simply cast to {target.dtype} "
                f"(for parameter {target.name})",
            )

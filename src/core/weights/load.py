# SPDX-License-Identifier: Apache-2.0
"""Load every parameter of a model exactly once, or say everything that stands in the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from trnport.core.errors import CheckpointError, ConfigError
from trnport.core.ports.weights import TensorSlice, WeightSource
from trnport.core.weights.ahead import Announcer
from trnport.core.weights.loader import Shape
from trnport.core.weights.mapping import Keys, WeightMapping
from trnport.core.weights.plan import Target, check_checkpoint, find_targets
from trnport.core.weights.problems import Kind, Problems

MAX_READERS = 4
"""Parameters that are read at a time, if PyTorch may use as many threads. Each rank reads."""

Progress = Callable[[int, int, str], None]
"""(tensors loaded so far, tensors in all, name of the one just loaded)."""


def load_weights(
    model: nn.Module,
    source: WeightSource,
    mapping: WeightMapping | Mapping[str, Keys],
    *,
    rank: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    progress: Progress | None = None,
) -> None:
    """Replace every parameter of a model with this rank's share of a checkpoint.

    Names, shapes and dtypes are checked before the first byte is read, and the model is
    changed only when everything was read: after an error it is as it was before.

    A loader with ``fill`` writes from the checkpoint into the final tensor, so loading takes
    no more memory than the model. Several parameters are read at a time, by loaders in threads,
    and what comes next is on its way.

    Args:
        model: Usually on the meta device. Each parameter becomes a new ``nn.Parameter``
            without gradient that keeps its weight loader. Buffers that the mapping does not
            name are moved to ``device``.
        source: The checkpoint.
        mapping: Where each parameter comes from.
        rank: Given to the loaders: the rank in the tensor-parallel group.
        device: Where the parameters are put.
        dtype: Dtype of all floating-point parameters; None keeps each parameter's own.
        progress: Called after each tensor.

    Raises:
        CheckpointError: Names every missing, unexpected and mis-shaped tensor, every stored
            dtype that is not simply cast, and every parameter or buffer that would be left
            without a value.
    """
    if not isinstance(mapping, WeightMapping):
        mapping = WeightMapping(mapping)
    problems = Problems()
    targets = find_targets(model, mapping, dtype, problems)
    check_checkpoint(targets, source, mapping, problems)
    problems.raise_if_any(rank)

    loaded = {}
    ahead = Announcer(targets, source, rank)
    with ThreadPoolExecutor(
        min(MAX_READERS, torch.get_num_threads()), thread_name_prefix="weights"
    ) as pool:
        reads = [pool.submit(_read, target, source, rank, device) for target in targets]
        try:
            for done, (target, read) in enumerate(zip(targets, reads, strict=True), start=1):
                ahead.announce_after(done)
                result = read.result()
                if isinstance(result, Tensor):
                    loaded[target.name] = result
                else:
                    problems.add(*result)
                if progress is not None:
                    progress(done, len(targets), target.name)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    problems.raise_if_any(rank)
    _assign(model, loaded)
    _move_buffers(model, device)


def checkpoint_shapes(
    model: nn.Module, mapping: WeightMapping | Mapping[str, Keys]
) -> dict[str, Shape]:
    """Shapes of the checkpoint that a model would load, for making one up.

    Args:
        model: May be on the meta device.
        mapping: Where each parameter comes from.

    Returns:
        Checkpoint key to full shape, over all ranks.

    Raises:
        CheckpointError: Model and mapping disagree.
        ConfigError: A custom loader does not say what shapes it takes.
    """
    if not isinstance(mapping, WeightMapping):
        mapping = WeightMapping(mapping)
    problems = Problems()
    shapes: dict[str, Shape] = {}
    silent = []
    for target in find_targets(model, mapping, None, problems):
        expected = target.stored_shapes(problems)
        if target.loader.stored_shapes is None:
            silent.append(target.name)
        for key, shape in zip(target.keys, expected or (), strict=False):
            if shapes.setdefault(key, shape) != shape:
                text = f"{target.name}: takes {key} as {list(shape)}, another parameter as "
                problems.add(Kind.MODEL, f"{text}{list(shapes[key])}")
    problems.raise_if_any(rank=0)
    if silent:
        raise ConfigError(f"loaders without stored_shapes: {', '.join(silent)}")
    return shapes


def _read(
    target: Target, source: WeightSource, rank: int, device: torch.device | str
) -> Tensor | tuple[Kind, str]:
    """One parameter as its loader makes it, or what is wrong with it."""
    where = f"{target.name} (from {', '.join(target.keys)})"
    try:
        tensor = _load(target, [source.open(key) for key in target.keys], rank)
    except CheckpointError as error:
        return Kind.UNREADABLE, f"{where}: {error}"
    except Exception as error:
        error.add_note(f"while loading parameter {where} on rank {rank}")
        raise
    if tuple(tensor.shape) != target.shape:
        text = f"{where}: its loader made {list(tensor.shape)}, expected {list(target.shape)}"
        return Kind.SHAPE, text
    if tensor.is_meta:
        return Kind.MODEL, f"{where}: its loader made a tensor on the meta device"
    return tensor.to(device=device, dtype=target.dtype)


def _load(target: Target, slices: list[TensorSlice], rank: int) -> Tensor:
    fill = target.loader.fill
    if fill is None:
        return target.loader.transform(slices, rank)
    tensor = torch.empty(target.shape, dtype=target.dtype)
    fill(slices, rank, tensor)
    return tensor


def _assign(model: nn.Module, loaded: dict[str, Tensor]) -> None:
    for name, tensor in loaded.items():
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        old = getattr(module, leaf)
        new = nn.Parameter(tensor, requires_grad=False) if leaf in module._parameters else tensor
        # Attributes of the parameter, its weight loader among them, survive.
        new.__dict__.update(old.__dict__)
        setattr(module, leaf, new)


def _move_buffers(model: nn.Module, device: torch.device | str) -> None:
    moved: dict[int, Tensor] = {}  # a buffer shared by several modules stays shared
    for name, buffer in list(model.named_buffers(remove_duplicate=False)):
        path, _, leaf = name.rpartition(".")
        new = moved.setdefault(id(buffer), buffer.to(device=device))
        setattr(model.get_submodule(path), leaf, new)

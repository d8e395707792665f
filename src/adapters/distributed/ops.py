# SPDX-License-Identifier: Apache-2.0
"""Collectives as operators of torch, so that a tracer records each one as a single node.

A node names its group as models do ("tp"), and the group is looked up when the node runs. A
program is therefore the same on every replica, whatever torch calls the replica's groups.

Ranks whose programs differ have to meet in the same order. Compilers are told that the operators
have an effect, so none is left out; since inductor (torch 2.13) does not keep the order of effects,
each one also takes the result of the one before, ``after``, and does nothing with it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch._library.effects import EffectType
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.library import Library, register_fake

from trnport.core.errors import ConfigError

_LIBRARY = Library("trnport_collectives", "DEF")  # its operators live as long as it does

_GROUPS: dict[str, dist.ProcessGroup] = {}

_latest: Tensor | None = None
"""The result of the collective recorded last, a tensor without memory. Held, since a result that
nobody uses has its place in the order, too."""


def bind(name: str, group: dist.ProcessGroup) -> None:
    """Let this process's operators find a group by its name.

    Raises:
        ConfigError: The name is that of another group.
    """
    known = _GROUPS.get(name)
    if known is not None and known is not group and _exists(known):
        raise ConfigError(
            f"this process has another group {name!r} already; a process is one rank of one model "
            "replica, so destroy that group first or use another process"
        )
    _GROUPS[name] = group


def group_called(name: str) -> dist.ProcessGroup:
    """The group of that name.

    Raises:
        KeyError: There is none; the message lists the names.
    """
    if name not in _GROUPS:
        raise KeyError(f"no group is called {name!r}; there are {sorted(_GROUPS)}")
    return _GROUPS[name]


def _exists(group: dist.ProcessGroup) -> bool:
    """Whether nobody has destroyed it."""
    try:
        return bool(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return False


def _all_reduce(x: Tensor, _: Tensor | None, group: str) -> Tensor:
    result = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, group=group_called(group))
    return result


def _all_gather(x: Tensor, _: Tensor | None, size: int, group: str) -> Tensor:
    result = x.new_empty((size, *x.shape))
    dist.all_gather(list(result.unbind()), x.contiguous(), group=group_called(group))
    return result


def _reduce_scatter(shares: Tensor, _: Tensor | None, group: str) -> Tensor:
    result = shares.new_empty(shares.shape[1:])
    dist.reduce_scatter(result, list(shares.contiguous().unbind()), group=group_called(group))
    return result


def _all_to_all(shares: Tensor, _: Tensor | None, group: str) -> Tensor:
    result = shares.new_empty(shares.shape)
    dist.all_to_all_single(result, shares.contiguous(), group=group_called(group))
    return result


def _broadcast(x: Tensor, _: Tensor | None, source: int, group: str) -> Tensor:
    result = x.clone(memory_format=torch.contiguous_format)
    dist.broadcast(result, group=group_called(group), group_src=source)
    return result


def _like(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _stack_of(x: Tensor, _: Tensor | None, size: int, __: str) -> Tensor:
    return x.new_empty((size, *x.shape))


def _one_of(shares: Tensor, *_: object) -> Tensor:
    return shares.new_empty(shares.shape[1:])


def _define(
    name: str, options: str, run: Callable[..., Tensor], fake: Callable[..., Tensor]
) -> OpOverload:
    """An operator of a tensor, the result before and the options."""
    full_name = f"{_LIBRARY.ns}::{name}"
    _LIBRARY.define(f"{name}(Tensor x, Tensor? after, {options}) -> Tensor")
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    register_fake(full_name, fake, lib=_LIBRARY)
    _LIBRARY._register_effectful_op(full_name, EffectType.ORDERED)
    operator: OpOverload = getattr(getattr(torch.ops, _LIBRARY.ns), name).default
    return operator


_ALL_REDUCE = _define("all_reduce", "str group", _all_reduce, _like)
_ALL_GATHER = _define("all_gather", "int size, str group", _all_gather, _stack_of)
_REDUCE_SCATTER = _define("reduce_scatter", "str group", _reduce_scatter, _one_of)
_ALL_TO_ALL = _define("all_to_all", "str group", _all_to_all, _like)
_BROADCAST = _define("broadcast", "int source, str group", _broadcast, _like)


def all_reduce(x: Tensor, group: str) -> Tensor:
    """``[...]`` to the sum over the group."""
    return _call(_ALL_REDUCE, x, group)


def all_gather(x: Tensor, size: int, group: str) -> Tensor:
    """``[...]`` and the group's size to ``[size, ...]``, in rank order."""
    return _call(_ALL_GATHER, x, size, group)


def reduce_scatter(shares: Tensor, group: str) -> Tensor:
    """``[size, ...]`` to ``[...]``: the sum of what all ranks hold for this one."""
    return _call(_REDUCE_SCATTER, shares, group)


def all_to_all(shares: Tensor, group: str) -> Tensor:
    """``[size, ...]`` to ``[size, ...]``: what each rank holds for this one."""
    return _call(_ALL_TO_ALL, shares, group)


def broadcast(x: Tensor, source: int, group: str) -> Tensor:
    """``[...]`` to what the source holds."""
    return _call(_BROADCAST, x, source, group)


def _call(operator: OpOverload, x: Tensor, *options: int | str) -> Tensor:
    global _latest  # noqa: PLW0603  # one process records one program at a time
    if not isinstance(x, FakeTensor):
        result: Tensor = operator(x, None, *options)
        return result
    same_trace = isinstance(_latest, FakeTensor) and _latest.fake_mode is x.fake_mode
    _latest = operator(x, _latest if same_trace else None, *options)
    return _latest

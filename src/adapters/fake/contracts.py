# SPDX-License-Identifier: Apache-2.0
"""The Kernels port's promises as checks, operator by operator."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor

from trnport.adapters.fake.errors import ContractViolationError
from trnport.adapters.fake.reads import cache_reads
from trnport.core.kv.slots import NULL_BLOCK, PAD_SLOT


@attrs.frozen
class _Contract:
    """Shapes by symbol; "..." stands for any leading dimensions."""

    arguments: dict[str, str]
    results: tuple[str, ...]


_CACHES = {"k_cache": "N Hk S D", "v_cache": "N Hk S D"}
_CHUNK = {"q": "T Hq D", "k": "T Hk D", "v": "T Hk D", "valid": "T", "sinks": "Hq"}
_CONTRACTS = {
    "rms_norm": _Contract({"x": "... H", "weight": "H"}, ("... H",)),
    "rope": _Contract(
        {"q": "T Hq D", "k": "T Hk D", "cos": "T R", "sin": "T R"}, ("T Hq D", "T Hk D")
    ),
    "qkv_proj": _Contract({"x": "T H", "weight": "H O", "bias": "O"}, ("T O",)),
    "kv_write": _Contract({"k": "T Hk D", "v": "T Hk D", **_CACHES, "slot_mapping": "T"}, ()),
    "prefill_attention": _Contract(_CHUNK, ("T Hq D",)),
    "prefill_attention_with_prior": _Contract(
        {**_CHUNK, **_CACHES, "block_table": "1 M", "cached_seq_len": "1 1"}, ("T Hq D",)
    ),
    "decode_attention": _Contract(
        {"q": "B Hq D", **_CACHES, "block_table": "B M", "positions": "B", "sinks": "Hq"},
        ("B Hq D",),
    ),
    "o_proj": _Contract({"x": "T Hq D", "weight": "P H", "bias": "H"}, ("T H",)),
    "mlp": _Contract(
        {"x": "T H", "gate_weight": "H I", "up_weight": "H I", "down_weight": "I H"}
        | {"gate_bias": "I", "up_bias": "I", "down_bias": "H"},
        ("T H",),
    ),
    "linear": _Contract({"x": "T H", "weight": "H V", "bias": "V"}, ("T V",)),
    "top_k": _Contract({"logits": "T V"}, ("T k", "T k")),
}
_DTYPES = {
    "slot_mapping": torch.int64,
    "block_table": torch.int32,
    "cached_seq_len": torch.int32,
    "positions": torch.int32,
    "valid": torch.bool,
}

Sizes = dict[str, Any]
"""Sizes by symbol, and the sizes that "..." stood for."""


def check_arguments(operator: str, arguments: dict[str, Any]) -> Sizes:
    """Check a call's shapes, integer dtypes, slots and block tables.

    Args:
        operator: Name of the operator. One without a contract here passes.
        arguments: Its arguments by parameter name.

    Returns:
        The sizes found, for :func:`check_results`.

    Raises:
        ContractViolationError: Names the operator, the argument and what is wrong.
    """
    sizes: Sizes = {name: value for name, value in arguments.items() if isinstance(value, int)}
    if operator not in _CONTRACTS:
        return sizes
    for name, spec in _CONTRACTS[operator].arguments.items():
        if arguments[name] is not None:
            _check_tensor(f"{operator}: {name}", arguments[name], spec, sizes, _DTYPES.get(name))
    _check_relations(operator, sizes)
    if "slot_mapping" in arguments:
        _check_slots(arguments["slot_mapping"], sizes)
    if "block_table" in arguments:
        _check_block_table(operator, arguments, sizes)
    return sizes


def check_results(operator: str, arguments: dict[str, Any], results: Any, sizes: Sizes) -> None:
    """Check the shapes and dtypes of what an adapter returned.

    Raises:
        ContractViolationError: Names the operator and the result.
    """
    if operator not in _CONTRACTS:
        return
    first = next(value for value in arguments.values() if isinstance(value, Tensor))
    dtypes = [first.dtype, torch.int64 if operator == "top_k" else first.dtype]
    specs = _CONTRACTS[operator].results
    given = results if isinstance(results, tuple) else () if results is None else (results,)
    if len(given) != len(specs):
        raise ContractViolationError(f"{operator}: {len(given)} results instead of {len(specs)}")
    for index, (result, spec, dtype) in enumerate(zip(given, specs, dtypes, strict=False)):
        _check_tensor(f"{operator}: result {index}", result, spec, sizes, dtype)


def _check_tensor(what: str, x: Any, spec: str, sizes: Sizes, dtype: torch.dtype | None) -> None:
    if not isinstance(x, Tensor):
        raise ContractViolationError(f"{what} is a {type(x).__name__}, not a tensor")
    symbols = spec.split()
    shape = tuple(x.shape)
    if symbols[0] == "...":
        symbols = symbols[1:]
        leading = len(shape) - len(symbols)
        if sizes.setdefault("...", shape[:leading]) != shape[:leading]:
            raise ContractViolationError(f"{what} has shape {shape}, not {spec} with {sizes}")
        shape = shape[leading:]
    if len(shape) != len(symbols):
        raise ContractViolationError(f"{what} has shape {tuple(x.shape)}, not [{spec}]")
    for symbol, size in zip(symbols, shape, strict=True):
        wanted = int(symbol) if symbol.isdigit() else sizes.setdefault(symbol, size)
        if size != wanted:
            raise ContractViolationError(
                f"{what} has shape {tuple(x.shape)}, not [{spec}]: {symbol} is {wanted} elsewhere"
            )
    if dtype is not None and x.dtype != dtype:
        raise ContractViolationError(f"{what} is {x.dtype}, not {dtype}")


def _check_relations(operator: str, sizes: Sizes) -> None:
    if "Hk" in sizes and "Hq" in sizes and sizes["Hq"] % sizes["Hk"]:
        raise ContractViolationError(
            f"{operator}: {sizes['Hq']} query heads do not group over {sizes['Hk']} KV heads"
        )
    if "P" in sizes and sizes["P"] != sizes["Hq"] * sizes["D"]:
        raise ContractViolationError(
            f"{operator}: weight has {sizes['P']} rows for {sizes['Hq']} heads of {sizes['D']}"
        )
    if "k" in sizes and not 1 <= sizes["k"] <= sizes["V"]:
        raise ContractViolationError(f"{operator}: k={sizes['k']} of {sizes['V']} entries")


def _check_slots(slot_mapping: Tensor, sizes: Sizes) -> None:
    slots = slot_mapping[slot_mapping != PAD_SLOT].tolist()
    count = sizes["N"] * sizes["S"]
    for slot in slots:
        if not 0 <= slot < count:
            raise ContractViolationError(f"kv_write: slot {slot} is outside 0 to {count - 1}")
        if slot // sizes["S"] == NULL_BLOCK:
            raise ContractViolationError(f"kv_write: slot {slot} lies in block 0, nobody's block")
    if len(set(slots)) != len(slots):
        raise ContractViolationError(f"kv_write: a slot occurs twice in {slots}")


def _check_block_table(operator: str, arguments: dict[str, Any], sizes: Sizes) -> None:
    for entry in arguments["block_table"].flatten().tolist():
        if not (entry == -1 or 1 <= entry < sizes["N"]):
            raise ContractViolationError(
                f"{operator}: block_table entry {entry} is neither -1 nor one of 1 to "
                f"{sizes['N'] - 1}"
            )
    reads = cache_reads(operator, arguments, arguments["sliding_window"])
    if reads.unbacked:
        row, position = reads.unbacked[0]
        raise ContractViolationError(
            f"{operator}: row {row} reads position {position}, for which its block_table "
            f"{arguments['block_table'][row].tolist()} has no block of {sizes['S']}"
        )

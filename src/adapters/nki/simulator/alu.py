# SPDX-License-Identifier: Apache-2.0
"""ALU operators: their classes, and their arithmetic in fp32, exact integers and bit patterns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.dtypes import INTEGERS
from trnport.adapters.nki.simulator.ops import op_name
from trnport.adapters.nki.simulator.rules_isa import violation

__all__ = [
    "Array",
    "Op",
    "apply",
    "bit_operand",
    "bits",
    "operator",
    "reduce_free",
    "reduction",
    "require_one_class",
]

Array = npt.NDArray[Any]

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@dataclass(frozen=True, slots=True)
class Op:
    """One ALU operator.

    Args:
        name: Its name in `nki.language`.
        kind: "bitvec" or "arithmetic".
        unary: Takes no operand.
        function: On float32 or int64 arrays (arithmetic), on unsigned arrays (bitvec).
        reducer: The ufunc to reduce with; None when reductions may not use the operator.
        generation: First NeuronCore version that has it.
    """

    name: str
    kind: str
    unary: bool
    function: Callable[..., Array]
    reducer: np.ufunc | None = None
    generation: int = 2


def _compare(ufunc: np.ufunc) -> Callable[[Array, Array], Array]:
    def compared(a: Array, b: Array) -> Array:
        return ufunc(a, b).astype(np.float32)

    return compared


def _abs_max(a: Array, b: Array) -> Array:
    return np.where(np.abs(a) > np.abs(b), a, b)


def _abs_min(a: Array, b: Array) -> Array:
    return np.where(np.abs(a) < np.abs(b), a, b)


def _left_shift(a: Array, b: Array) -> Array:
    width = 8 * a.dtype.itemsize
    return np.where(b < width, np.left_shift(a, np.minimum(b, width - 1)), 0).astype(a.dtype)


def _right_shift(a: Array, b: Array) -> Array:
    width = 8 * a.dtype.itemsize
    return np.where(b < width, np.right_shift(a, np.minimum(b, width - 1)), 0).astype(a.dtype)


def _rsqrt(a: Array) -> Array:
    return np.float32(1) / np.sqrt(a)


def _relu(a: Array) -> Array:
    return np.maximum(a, np.float32(0))


def _one(a: Array) -> Array:
    return np.float32(1) / a


def _table() -> dict[str, Op]:
    ops = [
        Op("invert", "bitvec", True, np.invert),
        Op("bitwise_and", "bitvec", False, np.bitwise_and, np.bitwise_and),
        Op("bitwise_or", "bitvec", False, np.bitwise_or, np.bitwise_or),
        Op("bitwise_xor", "bitvec", False, np.bitwise_xor, np.bitwise_xor),
        Op("left_shift", "bitvec", False, _left_shift),
        Op("right_shift", "bitvec", False, _right_shift),
        Op("add", "arithmetic", False, np.add, np.add),
        Op("subtract", "arithmetic", False, np.subtract, np.subtract),
        Op("multiply", "arithmetic", False, np.multiply, np.multiply),
        Op("maximum", "arithmetic", False, np.maximum, np.maximum),
        Op("minimum", "arithmetic", False, np.minimum, np.minimum),
        Op("logical_and", "arithmetic", False, _compare(np.logical_and), np.logical_and),
        Op("logical_or", "arithmetic", False, _compare(np.logical_or), np.logical_or),
        Op("logical_xor", "arithmetic", False, _compare(np.logical_xor), np.logical_xor),
        Op("power", "arithmetic", False, np.power),
        Op("abs_max", "arithmetic", False, _abs_max, generation=4),
        Op("abs_min", "arithmetic", False, _abs_min, generation=4),
        Op("abs", "arithmetic", True, np.abs),
        Op("square", "arithmetic", True, np.square, generation=4),
        Op("relu", "arithmetic", True, _relu, generation=4),
        Op("rsqrt", "arithmetic", True, _rsqrt),
        Op("reciprocal", "arithmetic", True, _one),
    ]
    comparisons = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
    ops += [Op(name, "arithmetic", False, _compare(getattr(np, name))) for name in comparisons]
    return {op.name: op for op in ops}


_OPS = _table()
_NEVER = {"divide", "true_divide", "floor_divide", "mod", "fmod", "remainder"}


def operator(instruction: str, parameter: str, op: Any) -> Op:
    """Look an operator up.

    Args:
        instruction: Named in messages.
        parameter: Name of the parameter that holds it.
        op: What the kernel passed.

    Raises:
        RuleViolationError: Hardware has no such operator, or not on this target.
    """
    name = op_name(op)
    found = _OPS.get(name)
    if found is None:
        if name in _NEVER:
            violation("NKI-DIVIDE", instruction, parameter, name, "multiply by a reciprocal")
        violation("NKI-OP", instruction, parameter, name, f"one of {', '.join(sorted(_OPS))}")
        raise AssertionError(name)
    if found.generation > 2:
        _require_generation(instruction, parameter, found)
    return found


def _require_generation(instruction: str, parameter: str, op: Op) -> None:
    target = machine.current().target
    if target.generation < op.generation:
        limit = f"NeuronCore-v{op.generation} or newer; the target is {target.name}"
        violation("NKI-OP-TARGET", instruction, parameter, op.name, limit)


def reduction(instruction: str, parameter: str, op: Any, names: tuple[str, ...] = ()) -> Op:
    """Look up an operator that reduces.

    Args:
        instruction: Named in messages.
        parameter: Name of the parameter that holds it.
        op: What the kernel passed.
        names: What the instruction allows; every legal reduction when empty.

    Raises:
        RuleViolationError: The operator is no legal reduction here.
    """
    name = {"max": "maximum", "min": "minimum"}.get(op_name(op), op_name(op))
    found = operator(instruction, parameter, name)
    legal = names or tuple(name for name, each in _OPS.items() if each.reducer is not None)
    if found.name not in legal:
        violation("NKI-OP-REDUCTION", instruction, parameter, found.name, ", ".join(legal))
    return found


def require_one_class(instruction: str, op0: Op, op1: Op | None) -> None:
    """Refuse a bitvec operator next to an arithmetic one."""
    if op1 is not None and op0.kind != op1.kind:
        value = f"{op0.name} ({op0.kind}) with {op1.name} ({op1.kind})"
        violation("NKI-OP-MIXED", instruction, "op0, op1", value, "both bitvec or both arithmetic")


def apply(op: Op, a: Array, b: Any = None, reverse: bool = False) -> Array:
    """Apply an operator to arrays of one class.

    Args:
        op: The operator.
        a: Left operand.
        b: Right operand; ignored by unary operators.
        reverse: Swap the operands.
    """
    if op.unary:
        return op.function(a)
    return op.function(b, a) if reverse else op.function(a, b)


def reduce_free(op: Op, values: Array, axes: tuple[int, ...]) -> Array:
    """Reduce an array over axes with a legal reduction.

    Args:
        op: Operator with a reducer.
        values: float32 (arithmetic) or unsigned (bitvec), [P, F...].
        axes: Trailing axes.

    Returns:
        The array without those axes, in the same dtype.
    """
    assert op.reducer is not None
    flat = values.reshape((*values.shape[: axes[0]], -1)) if len(axes) > 1 else values
    return op.reducer.reduce(flat, axis=-1).astype(values.dtype, copy=False)


def bits(instruction: str, name: str, values: Array, dtype: str) -> Array:
    """View values of an integer tensor as bit patterns.

    Raises:
        RuleViolationError: The dtype is no integer.
    """
    if dtype not in INTEGERS:
        violation("NKI-BITVEC-DTYPE", instruction, name, dtype, ", ".join(sorted(INTEGERS)))
    return values.view(_UNSIGNED[values.dtype.itemsize])


def bit_operand(instruction: str, name: str, value: Any, like: Array) -> Array:
    """An integer constant as a bit pattern of an array's width.

    Raises:
        RuleViolationError: The constant is no integer of that width.
    """
    width = 8 * like.dtype.itemsize
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not -(2 ** (width - 1)) <= int(value) < 2**width:
        violation("NKI-OPERAND", instruction, name, repr(value), f"an integer of {width} bits")
    return np.asarray(int(value) % 2**width, like.dtype)

# SPDX-License-Identifier: Apache-2.0
"""Operator names such as `nl.add` and `nl.exp`: tokens for instructions, not functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnport.adapters.nki.simulator.rules import NotSimulatedError, Rule, add, violation

add(
    Rule(
        "NKI-DIVIDE",
        "The hardware has no divide and no modulo; the compiler rejects them.",
        "nki.language.divide, mod, fmod",
    )
)

BINARY = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "abs_max", "abs_min", "power",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "bitwise_and",
    "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "logical_and", "logical_or",
    "logical_xor", "fmod", "mod",
)  # fmt: skip
UNARY = (
    "abs", "square", "invert", "logical_not", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid",
    "relu", "prelu", "gelu", "gelu_dx", "gelu_apprx_tanh", "gelu_apprx_tanh_dx",
    "gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx", "silu", "silu_dx", "softplus", "mish", "erf",
    "erf_dx", "reciprocal", "copy", "sin", "cos", "tan", "arctan", "ceil", "floor", "trunc",
    "negative", "sign", "bypass",
)  # fmt: skip
REDUCTIONS = ("sum", "max", "min", "mean", "prod", "var", "all", "average")
OTHERS = ("softmax", "rms_norm", "where", "gather_flattened", "dropout", "rand")
_NO_HARDWARE = frozenset({"divide", "mod", "fmod"})


class Op:
    """One operator name.

    Attributes:
        name: "add", "exp", ...
    """

    __slots__ = ("call", "name")

    def __init__(self, name: str, call: Callable[..., Any] | None = None) -> None:
        self.name = name
        self.call = call

    @property
    def __name__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of that name, if it is one of the few simulated ones.

        The math wrappers of `nki.language` are experimental and not simulated.

        Raises:
            RuleViolationError: The hardware cannot do it either.
            NotSimulatedError: Use the instruction instead.
        """
        if self.call is not None:
            return self.call(*args, **kwargs)
        if self.name in _NO_HARDWARE:
            violation("NKI-DIVIDE", f"nl.{self.name}", "op", self.name, "reciprocal and multiply")
        instead = "nisa.tensor_tensor or nisa.tensor_scalar"
        if self.name in UNARY:
            instead = "nisa.activation"
        elif self.name in REDUCTIONS:
            instead = "nisa.tensor_reduce"
        raise NotSimulatedError(
            f"nl.{self.name}(...) is not simulated: allocate the result and call {instead}"
        )


def op_name(op: Any) -> str:
    """Return the name of an operator given as `nl.add`, its name, or a numpy function.

    Raises:
        TypeError: It has no name.
    """
    if isinstance(op, Op):
        return op.name
    if isinstance(op, str):
        return op
    name = getattr(op, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"op is {op!r}; it must be an operator such as nl.add")
    return {"absolute": "abs"}.get(name, name)

# SPDX-License-Identifier: Apache-2.0
"""A set of operators around another one, with a single place to step in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from trnport.core.kernels import operator_names
from trnport.core.ports.kernels import Kernels

_SIGNATURES = {name: inspect.signature(getattr(Kernels, name)) for name in operator_names()}


def _intercepted(operator: str) -> Callable[..., Any]:
    """A method that names its arguments and hands them to ``around``."""
    signature = _SIGNATURES[operator]

    def method(self: WrappedKernels, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        _, *named = bound.arguments.items()
        return self.around(operator, dict(named))

    method.__name__, method.__doc__ = operator, getattr(Kernels, operator).__doc__
    return method


# Generated, so that an operator added to the port is wrapped without an edit here.
_Intercepted: Any = type(
    "_Intercepted", (Kernels,), {name: _intercepted(name) for name in operator_names()}
)


class WrappedKernels(_Intercepted):
    """Passes every operator on to ``inner``; subclasses override :meth:`around`.

    Args:
        inner: The adapter that does the work.

    Attributes:
        inner: As given.
        name: Label of the wrapper and name of ``inner``, such as "strict(torch_cpu)".
    """

    label = "wrapped"

    def __init__(self, inner: Kernels) -> None:
        self.inner = inner
        self.name = f"{self.label}({inner.name})"

    def around(self, operator: str, arguments: dict[str, Any]) -> Any:
        """Handle one call.

        Args:
            operator: Name of the operator.
            arguments: All its arguments by the port's parameter names, defaults included.

        Returns:
            What the operator returns.
        """
        return self.forward(operator, arguments)

    def forward(self, operator: str, arguments: dict[str, Any]) -> Any:
        """Call the operator of ``inner``."""
        parameters = _SIGNATURES[operator].parameters
        kinds = {name: parameters[name].kind for name in arguments}
        by_name = {n: v for n, v in arguments.items() if kinds[n] is inspect.Parameter.KEYWORD_ONLY}
        in_order = [v for n, v in arguments.items() if n not in by_name]
        return getattr(self.inner, operator)(*in_order, **by_name)

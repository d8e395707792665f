# SPDX-License-Identifier: Apache-2.0
"""An observer that remembers."""

from __future__ import annotations

import attrs

from trnport.core.engine.observer import Execution


@attrs.define(eq=False)
class RecordingObserver:
    """Keeps everything it is told.

    Attributes:
        compilations: Name and seconds of each program, in order.
        executions: What ran, in order.
        seconds: The time each of ``executions`` took.
    """

    compilations: list[tuple[str, float]] = attrs.field(factory=list)
    executions: list[Execution] = attrs.field(factory=list)
    seconds: list[float] = attrs.field(factory=list)

    def compiled(self, name: str, seconds: float) -> None:
        """Remember a compilation."""
        self.compilations.append((name, seconds))

    def executed(self, execution: Execution, seconds: float) -> None:
        """Remember a run."""
        self.executions.append(execution)
        self.seconds.append(seconds)

# SPDX-License-Identifier: Apache-2.0
"""Everything that keeps a checkpoint from being loaded, gathered into one message."""

from __future__ import annotations

import enum

import attrs

from trnport.core.errors import CheckpointError


class Kind(enum.Enum):
    """A heading of the message; the value says what it means and where the way out is."""

    MISSING = "missing from the checkpoint (wrong model, or an incomplete download?)"
    UNEXPECTED = "in the checkpoint, but used by no parameter (harmless? ignore it in the mapping)"
    SHAPE = "of the wrong shape (config.json and weights of different models?)"
    DTYPE = "of a dtype that needs a loader of its own (use an unquantised checkpoint?)"
    UNREADABLE = "that could not be read or sliced"
    MODEL = "model, mapping and loaders disagree (an error in the model's code)"


@attrs.frozen
class Problems:
    """Problems found so far."""

    found: dict[Kind, list[str]] = attrs.field(factory=lambda: {kind: [] for kind in Kind})

    def add(self, kind: Kind, text: str) -> None:
        """Note one problem; ``text`` starts with the name of the tensor."""
        self.found[kind].append(text)

    def raise_if_any(self, rank: int) -> None:
        """Raise if there is at least one problem.

        Raises:
            CheckpointError: Names every problem found.
        """
        lines = []
        for kind, texts in self.found.items():
            if texts:
                lines += [f"{len(texts)} {kind.value}:", *(f"  {text}" for text in texts)]
        if lines:
            head = f"the checkpoint does not fit the model (rank {rank})"
            raise CheckpointError("\n".join([head, *lines]))

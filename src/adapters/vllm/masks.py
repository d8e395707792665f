# SPDX-License-Identifier: Apache-2.0
"""From the bits of vLLM's grammars to masks of allowed tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import GrammarOutput


def grammar_masks(grammar: GrammarOutput | None, vocab_size: int) -> dict[str, Tensor]:
    """Unpack the masks of a step.

    Args:
        grammar: A row of int32 words for each constrained request, the lowest bit of the first
            word for token 0; a set bit allows. None when no request is constrained.
        vocab_size: V. The words may have more bits, or fewer: tokens without one are forbidden.

    Returns:
        Request id to ``[V]`` bool.
    """
    if grammar is None:
        return {}
    words = np.ascontiguousarray(grammar.grammar_bitmask, dtype="<i4")
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=None)
    rows = np.zeros((len(words), vocab_size), dtype=bool)
    width = min(vocab_size, bits.shape[1])
    rows[:, :width] = bits[:, :width]
    return dict(zip(grammar.structured_output_request_ids, torch.from_numpy(rows), strict=True))

# SPDX-License-Identifier: Apache-2.0
"""Which prompts share a prefill program."""

from __future__ import annotations

from collections.abc import Sequence

from trnport.core.engine.batch import Work
from trnport.core.engine.buckets import Buckets

PROGRAM_TOKENS = 64
"""What a program costs beside its tokens, in tokens: it reads all weights, whatever it computes.

A processor computes this many tokens of a bf16 model while memory gives it the weights once. It
is a few hundred on Trainium and was measured as about 50 on a CPU; too small a number only packs
less.
"""


def pack_prefills(works: Sequence[Work], buckets: Buckets) -> list[list[Work]]:
    """Cut a step's chunks of prompts into runs of programs that cost least together.

    Padding costs as much as tokens do, so three prompts of 130 tokens are not put into a program
    of 1024 when there is one of 144.

    Args:
        works: In their order, which is kept: a prefix that two prompts share may be computed for
            the first of them in this very step.
        buckets: What programs there are. Each of ``works`` fits one.

    Returns:
        Lists of at most :attr:`Buckets.prefill_seqs` works.
    """
    # best[i]: least cost of the first i works, and where the last of their programs begins.
    best = [(0, 0)]
    for end in range(1, len(works) + 1):
        best.append(min(_ways(works, end, best, buckets)))
    packs: list[list[Work]] = []
    end = len(works)
    while end:
        _, start = best[end]
        packs.append(list(works[start:end]))
        end = start
    return packs[::-1]


def _ways(
    works: Sequence[Work], end: int, best: Sequence[tuple[int, int]], buckets: Buckets
) -> list[tuple[int, int]]:
    """Costs of the first ``end`` works, by where their last program begins."""
    ways = []
    tokens = 0
    for start in range(end - 1, max(0, end - buckets.prefill_seqs) - 1, -1):
        tokens += works[start].num_tokens
        if tokens > buckets.prefill_tokens[-1]:
            break
        ways.append((best[start][0] + PROGRAM_TOKENS + buckets.prefill(tokens), start))
    return ways

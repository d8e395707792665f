# SPDX-License-Identifier: Apache-2.0
"""Bucket lists that suit a traffic: what padding costs, and the lists that cost least."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import attrs

from trnport.core.engine.buckets import choose_bucket

_MOST_CANDIDATES = 256
"""Bucket sizes to choose among. The search takes time with their square."""


@attrs.frozen
class Demand:
    """How often each size was needed, before padding.

    Attributes:
        prefill_tokens: Tokens of a chunk of a prompt to the number of chunks.
        decode_seqs: Requests of a decode step to the number of steps.
        contexts: Longest request of a decode step to the number of rows that ran with it.
    """

    prefill_tokens: Mapping[int, int]
    decode_seqs: Mapping[int, int]
    contexts: Mapping[int, int]


def simulate(
    lengths: Iterable[tuple[int, int]],
    *,
    max_num_seqs: int,
    max_prefill_tokens: int,
    max_prefills: int = 1,
) -> Demand:
    """Serve requests that all wait from the start, in their order.

    Prompts run in chunks of the limit and a rest; rests of those that begin together share
    programs while they fit. As many requests as allowed decode together; when one ends, the next
    begins.

    Args:
        lengths: Prompt and output tokens of each request, both at least 1.
        max_num_seqs: Most requests at a time.
        max_prefill_tokens: Most tokens of a program's run.
        max_prefills: Most prompts in it.
    """
    prefill: Counter[int] = Counter()
    seqs: Counter[int] = Counter()
    contexts: Counter[int] = Counter()
    step = 0
    # A request is (its last step, its length minus the step): the second one stays as it is.
    running: list[tuple[int, int]] = []
    waiting = iter(lengths)
    more = True
    while running or more:
        rests: list[int] = []
        while more and len(running) < max_num_seqs:
            request = next(waiting, None)
            more = request is not None
            if request is None:
                break
            prompt, output = request
            full, rest = divmod(prompt, max_prefill_tokens)
            prefill[max_prefill_tokens] += full
            rests += [rest] if rest else []
            if output > 1:  # the first token comes out of the prefill
                running.append((step + output - 1, prompt + 1 - step))
        prefill.update(_shared(rests, max_prefill_tokens, max_prefills))
        if not running:
            continue
        end = min(last for last, _ in running)
        longest, rows = max(offset for _, offset in running), len(running)
        seqs[rows] += end - step
        for now in range(step, end):
            contexts[longest + now] += rows
        step = end
        running = [one for one in running if one[0] > end]
    return Demand(+prefill, +seqs, +contexts)


def _shared(chunks: Iterable[int], most_tokens: int, most: int) -> list[int]:
    """Sizes of the runs when neighbours are put together as long as they fit."""
    runs: list[int] = []
    count = 0
    for chunk in chunks:
        if runs and count < most and runs[-1] + chunk <= most_tokens:
            runs[-1] += chunk
            count += 1
        else:
            runs.append(chunk)
            count = 1
    return runs


def padding(demand: Mapping[int, int], buckets: Sequence[int]) -> int:
    """Padding of all runs: the sum of bucket minus size."""
    return sum(
        times * (choose_bucket(size, buckets) - size) for size, times in demand.items() if size
    )


def waste(demand: Mapping[int, int], buckets: Sequence[int]) -> float:
    """The part of the work that is padding, 0 to 1."""
    added = padding(demand, buckets)
    total = added + sum(size * times for size, times in demand.items())
    return added / total if total else 0.0


def best_buckets(
    demand: Mapping[int, int],
    count: int,
    *,
    limit: int,
    smallest: int = 1,
    known: Sequence[int] = (),
) -> tuple[int, ...]:
    """The list with the least :func:`padding`, by dynamic programming.

    Exact up to 256 different sizes; beyond, bucket sizes are chosen among evenly spread ones.

    Args:
        demand: Sizes, each at most ``limit``, to the number of runs.
        count: Most buckets.
        limit: The last bucket.
        smallest: No bucket is smaller.
        known: A list to be no worse than, if it has no more than ``count`` buckets.

    Returns:
        Ascending; fewer than ``count`` where more would save nothing.
    """
    runs: Counter[int] = Counter()
    for size, times in demand.items():
        runs[max(size, smallest)] += times
    sizes = sorted({*runs, *known, limit})
    candidates = _spread(sizes, {*known, limit})
    # Runs up to each candidate, and the tokens in them.
    number = [0, *accumulate(runs[size] for size in sizes)]
    tokens = [0, *accumulate(runs[size] * size for size in sizes)]
    ends = [bisect_left(sizes, candidate) + 1 for candidate in candidates]

    def cost(below: int, upto: int) -> int:
        start = ends[below] if below >= 0 else 0
        return candidates[upto] * (number[ends[upto]] - number[start]) - (
            tokens[ends[upto]] - tokens[start]
        )

    # best[i]: least padding of everything up to candidate i, which is a bucket, and the list.
    best: list[tuple[int, tuple[int, ...]]] = [
        (cost(-1, i), (candidates[i],)) for i in range(len(candidates))
    ]
    for _ in range(count - 1):
        best = [
            min(
                [best[i]]
                + [
                    (best[below][0] + cost(below, i), (*best[below][1], candidates[i]))
                    for below in range(i)
                ],
                key=lambda found: (found[0], len(found[1])),
            )
            for i in range(len(candidates))
        ]
    return best[-1][1]


def _spread(sizes: list[int], always: set[int]) -> list[int]:
    if len(sizes) <= _MOST_CANDIDATES:
        return sizes
    stride = len(sizes) / _MOST_CANDIDATES
    return sorted({*always, *(sizes[int(i * stride)] for i in range(_MOST_CANDIDATES))})

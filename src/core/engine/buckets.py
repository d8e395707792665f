# SPDX-License-Identifier: Apache-2.0
"""The shapes for which programs exist, and the one function that chooses among them.

Warm-up enumerates the same buckets that every step chooses from, so a shape within the
engine's limits always has its program.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple, Self

import attrs

from trnport.core.config import NeuronConfig
from trnport.core.errors import ConfigError, RequestError


class PrefillSignature(NamedTuple):
    """Shape of a prefill program: padded tokens, and cached tokens it can attend to (or 0)."""

    tokens: int
    prior_context: int

    @property
    def name(self) -> str:
        """Name of the program, the same wherever it is planned, compiled or logged."""
        prior = f"_ctx{self.prior_context}" if self.prior_context else ""
        return f"prefill_s{self.tokens}{prior}"


class DecodeSignature(NamedTuple):
    """Shape of a decode program: padded rows, and tokens of context each can attend to."""

    seqs: int
    context: int

    @property
    def name(self) -> str:
        """Name of the program, the same wherever it is planned, compiled or logged."""
        return f"decode_b{self.seqs}_ctx{self.context}"


def choose_bucket(n: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds ``n``.

    Args:
        n: At least 1.
        buckets: Strictly ascending.

    Raises:
        RequestError: ``n`` exceeds the largest bucket.
        ValueError: ``n`` is below 1: nothing to run has no program.
    """
    if n < 1:
        raise ValueError(f"a bucket holds at least 1, not {n}")
    index = bisect_left(buckets, n)
    if index == len(buckets):
        raise RequestError(f"{n} exceeds the largest bucket, {buckets[-1]}")
    return buckets[index]


def _to_tuple(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)


@attrs.frozen
class Buckets:
    """Every padded shape of an engine.

    Attributes:
        prefill_tokens: Tokens of one run of a prefill program.
        decode_seqs: Rows of a decode step.
        contexts: Tokens of a row that can be read from the cache; the last one is
            ``max_model_len``.
        prefill_seqs: Prompts of which a prefill program takes a chunk each.

    Raises:
        ConfigError: A list is empty, not positive or not strictly ascending.
    """

    prefill_tokens: tuple[int, ...] = attrs.field(converter=_to_tuple)
    decode_seqs: tuple[int, ...] = attrs.field(converter=_to_tuple)
    contexts: tuple[int, ...] = attrs.field(converter=_to_tuple)
    prefill_seqs: int = 1

    def __attrs_post_init__(self) -> None:
        for name in ("prefill_tokens", "decode_seqs", "contexts"):
            sizes = getattr(self, name)
            if not sizes or any(a >= b for a, b in zip((0, *sizes), sizes, strict=False)):
                raise ConfigError(f"{name}={list(sizes)} must be positive and strictly ascending")

    @classmethod
    def from_config(cls, config: NeuronConfig, *, max_model_len: int) -> Self:
        """The buckets of validated settings."""
        return cls(
            prefill_tokens=config.num_batched_tokens_buckets,
            decode_seqs=config.num_seqs_buckets,
            contexts=(*(config.decode_context_length_buckets or ()), max_model_len),
            prefill_seqs=config.max_prefills_per_batch,
        )

    @property
    def max_model_len(self) -> int:
        """Most tokens of one request."""
        return self.contexts[-1]

    def prefill(self, n_tokens: int) -> int:
        """Bucket of a chunk of ``n_tokens`` tokens."""
        return choose_bucket(n_tokens, self.prefill_tokens)

    def decode(self, n_seqs: int) -> int:
        """Bucket of ``n_seqs`` rows."""
        return choose_bucket(n_seqs, self.decode_seqs)

    def context(self, n_tokens: int) -> int:
        """Bucket of the longest row's ``n_tokens`` tokens, the new one included."""
        return choose_bucket(n_tokens, self.contexts)

    def prior_context(self, n_cached: int) -> int:
        """Bucket of a chunk's cached prefix; 0, another program, when there is none."""
        return self.context(n_cached) if n_cached else 0

    def prefill_signature(self, n_tokens: int, n_cached: int) -> PrefillSignature:
        """Program of a chunk of ``n_tokens`` behind ``n_cached`` cached tokens."""
        return PrefillSignature(self.prefill(n_tokens), self.prior_context(n_cached))

    def decode_signature(self, n_seqs: int, n_tokens: int) -> DecodeSignature:
        """Program of ``n_seqs`` rows, the longest of ``n_tokens`` tokens."""
        return DecodeSignature(self.decode(n_seqs), self.context(n_tokens))

    def padded_tokens(self, bucket: int, tp: int) -> int:
        """Rows of a prefill bucket's tensors: ``bucket`` rounded up to a multiple of ``tp``.

        Sequence parallelism gives every rank an equal share of the rows.
        """
        return -(-bucket // tp) * tp

    def all_prefill_signatures(self) -> list[PrefillSignature]:
        """Every prefill program, smallest first.

        Left out are pairs that no requests can reach, since even the shortest chunk and prefix
        that choose them exceed ``max_model_len`` together: one request has the prefix, and the
        others can only add to the chunk.
        """
        others = (self.prefill_seqs - 1) * self.max_model_len
        chunks = _with_smallest(self.prefill_tokens)
        priors = [(0, 0), *_with_smallest(self.contexts)]
        return [
            PrefillSignature(tokens, prior)
            for (tokens, fewest), (prior, shortest) in product(chunks, priors)
            if shortest < self.max_model_len and fewest - others + shortest <= self.max_model_len
        ]

    def all_decode_signatures(self) -> list[DecodeSignature]:
        """Every decode program, smallest first."""
        return [DecodeSignature(*pair) for pair in product(self.decode_seqs, self.contexts)]


def _with_smallest(buckets: Sequence[int]) -> list[tuple[int, int]]:
    """Each bucket with the smallest number that chooses it."""
    return [(bucket, below + 1) for below, bucket in zip((0, *buckets), buckets, strict=False)]

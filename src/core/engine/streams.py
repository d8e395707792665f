# SPDX-License-Identifier: Apache-2.0
"""Random streams of requests: one number each, from which every draw's key follows.

A key depends on the request's stream and on how many tokens it has generated, and on nothing
else. Recomputing after a preemption, or a schedule made ahead of the tokens, changes no draw.
"""

from __future__ import annotations

from torch import Tensor

from trnport.core.functional.random import mix, mix_bits, split, split_each


class RandomStreams:
    """Hands out the streams of requests.

    Args:
        seed: Decides the streams of requests without a seed, in order of arrival.
    """

    def __init__(self, seed: int) -> None:
        self._state = mix(seed)
        self._count = 0

    def stream(self, seed: int | None) -> int:
        """The stream of a new request: its seed's, or the next one.

        Returns:
            From 0 to 2**64 - 1.
        """
        if seed is not None:
            return split(seed, 0)
        self._count += 1
        return split(self._state, self._count)


def random_keys(streams: Tensor, num_generated: Tensor) -> Tensor:
    """Keys of the noise for n requests' next tokens.

    Args:
        streams: ``[n]`` int64, the bit patterns of the requests' streams.
        num_generated: ``[n]`` int64, tokens each has generated before.

    Returns:
        ``[n]`` int64.
    """
    return mix_bits(split_each(streams, num_generated))

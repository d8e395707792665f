# SPDX-License-Identifier: Apache-2.0
"""Random streams of requests: one number each, from which every draw's key follows.

A key depends on the request's stream and on how many tokens it has generated, and on nothing
else. Recomputing after a preemption, or a schedule made ahead of the tokens, changes no draw.
"""

from __future__ import annotations

from trnport.core.functional.random import mix, signed, split


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


def random_key(stream: int, num_generated: int) -> int:
    """Key of the noise for a request's next token, a signed 64-bit integer.

    Args:
        stream: The request's.
        num_generated: Tokens it has generated before.
    """
    return signed(mix(split(stream, num_generated)))

# SPDX-License-Identifier: Apache-2.0
"""Where threads that play ranks meet, or find out that they never will."""

from __future__ import annotations

import threading

from torch import Tensor

from trnport.adapters.local.errors import CollectiveMismatchError, RankAbortedError
from trnport.core.parallel.call import CollectiveCall


class _Meeting:
    """One collective of one group, from its first rank's arrival to its last's."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.calls: dict[int, CollectiveCall] = {}
        self._tensors: dict[int, Tensor] = {}

    def join(self, rank: int, call: CollectiveCall, x: Tensor) -> None:
        for other, earlier in self.calls.items():
            if earlier != call:
                raise CollectiveMismatchError(
                    f"ranks of group {call.group!r} made different calls: "
                    f"rank {other} {earlier}, rank {rank} {call}"
                )
        self.calls[rank] = call
        # A copy, since the caller may overwrite its tensor before slower ranks have read it.
        self._tensors[rank] = x.detach().clone()

    @property
    def complete(self) -> bool:
        return len(self.calls) == len(self.members)

    @property
    def missing(self) -> list[int]:
        return [rank for rank in self.members if rank not in self.calls]

    def tensors(self) -> list[Tensor]:
        return [self._tensors[rank] for rank in self.members]


class Exchange:
    """The meeting point of one run; every wait in it ends.

    Args:
        size: Number of ranks.
        timeout: Seconds that a rank waits for ranks that are busy elsewhere. Waiting for a
            rank that can no longer come is noticed at once.
    """

    def __init__(self, size: int, timeout: float) -> None:
        self._timeout = timeout
        self._changed = threading.Condition()
        self._running = set(range(size))
        self._open: dict[tuple[str, tuple[int, ...]], _Meeting] = {}
        self._waiting: dict[int, _Meeting] = {}
        self._failure: tuple[int, BaseException] | None = None

    def meet(
        self, rank: int, members: tuple[int, ...], call: CollectiveCall, x: Tensor
    ) -> list[Tensor]:
        """Wait for all members to make this call.

        Returns:
            Every member's tensor, in the order of ``members``; to be read only.

        Raises:
            CollectiveMismatchError: A member made another call, waits elsewhere or returned.
            RankAbortedError: Another rank failed.
            TimeoutError: A member did not come in time.
        """
        with self._changed:
            self._raise_if_aborted(rank, call)
            meeting = self._open.setdefault((call.group, members), _Meeting(members))
            try:
                meeting.join(rank, call, x)
            except CollectiveMismatchError as error:
                self._fail(rank, error)
                raise
            if meeting.complete:
                del self._open[call.group, members]
                for member in members:
                    self._waiting.pop(member, None)
                self._changed.notify_all()
            else:
                self._wait(rank, meeting, call)
            return meeting.tensors()

    def finish(self, rank: int) -> None:
        """A rank has returned. Whoever still waits for it never will."""
        with self._changed:
            self._running.discard(rank)
            self._fail_if_stuck()
            self._changed.notify_all()

    def fail(self, rank: int, error: BaseException) -> None:
        """A rank has raised; all others are stopped at their next collective."""
        with self._changed:
            self._running.discard(rank)
            self._fail(rank, error)

    def wait_until_over(self) -> tuple[int, BaseException] | None:
        """Wait until all ranks have returned or one has failed: its number and error."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running or self._failure is not None)
            return self._failure

    def _wait(self, rank: int, meeting: _Meeting, call: CollectiveCall) -> None:
        self._waiting[rank] = meeting
        self._fail_if_stuck()
        ended = self._changed.wait_for(
            lambda: meeting.complete or self._failure is not None, self._timeout
        )
        if not ended:
            error = TimeoutError(
                f"rank {rank} waited {self._timeout:g} s in {call} for ranks {meeting.missing}"
            )
            self._fail(rank, error)
            raise error
        if not meeting.complete:
            self._raise_if_aborted(rank, call)

    def _fail_if_stuck(self) -> None:
        """Fail when a waiting rank needs one that has returned, or when all wait."""
        gone = {
            missing
            for meeting in self._waiting.values()
            for missing in meeting.missing
            if missing not in self._running
        }
        if self._waiting and (gone or self._running == set(self._waiting)):
            waits = [
                f"rank {waiter} waits in {meeting.calls[waiter]} for ranks {meeting.missing}"
                for waiter, meeting in sorted(self._waiting.items())
            ]
            returned = [f"rank {missing} has returned" for missing in sorted(gone)]
            message = "ranks will never meet: " + "; ".join(waits + returned)
            self._fail(min(self._waiting), CollectiveMismatchError(message))

    def _fail(self, rank: int, error: BaseException) -> None:
        if self._failure is None:
            self._failure = (rank, error)
        self._changed.notify_all()

    def _raise_if_aborted(self, rank: int, call: CollectiveCall) -> None:
        if self._failure is not None:
            failed, error = self._failure
            raise RankAbortedError(
                f"rank {rank} stopped in {call}: rank {failed} failed with "
                f"{type(error).__name__}: {error}"
            )

"""A loop over batches that a benchmark steps by hand, to time the place where it is saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["Batches"]


class Batches:
    """The batches of one long epoch of a run. What is done between two calls of `next` is the body of the loop.

    A save is taken where the loop asks for its next batch, as in a user's.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._drawn = _drawn(run)
        self._before: str | None = None
        self.next()

    def next(self) -> None:
        """The body is over, and the loop asks for its next batch."""
        next(self._drawn)

    def save(self, *, wait: bool = False) -> None:
        """Behind `run.step`, the body asks for a save, and is over. Returns when training goes on.

        Raises:
            RuntimeError: nothing was copied, so what was measured is not what a save costs.
        """
        self._before = self._run.checkpoint
        self._run.save(wait=wait)
        self.next()
        if not self._run._saver.busy:
            self._look()

    def committed(self) -> None:
        """Wait for the save that was asked for last, as users have no need to without saving.

        Raises:
            RuntimeError: it has not been made.
        """
        self._run._saver.wait()
        self._look()

    def _look(self) -> None:
        if self._run.checkpoint == self._before:
            raise RuntimeError("the save that was to be measured has not been made")


def _drawn(run: Any) -> Iterator[object]:
    for _ in run.epochs(1):
        yield from run.batches(range(10**9))

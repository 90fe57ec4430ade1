"""What is kept from one capture to the next, by path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

__all__ = ["Shelf"]

Slot = TypeVar("Slot")


class Shelf(Generic[Slot]):
    """Slots of reusable memory, by path. A path that a capture does not ask for is let go.

    One capture is `turn`, then `take` and `keep` for each path, then `sweep`.
    """

    def __init__(self) -> None:
        self._now: dict[str, Slot] = {}
        self._before: dict[str, Slot] = {}

    def turn(self) -> None:
        """A capture begins."""
        # A capture that was broken off leaves slots on both sides: none of them is lost.
        self._before, self._now = {**self._before, **self._now}, {}

    @property
    def before(self) -> Mapping[str, Slot]:
        """The slots of the capture before that were not taken yet."""
        return self._before

    def take(self, path: str) -> Slot | None:
        """The slot of the capture before, if there was one."""
        return self._before.pop(path, None)

    def keep(self, path: str, slot: Slot) -> Slot:
        """The slot for this capture and the next."""
        self._now[path] = slot
        return slot

    def sweep(self) -> None:
        """The capture is complete: let go of what it did not take."""
        self._before = {}

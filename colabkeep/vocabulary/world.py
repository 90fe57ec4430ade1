"""How many processes train together."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["SoloWorld", "World"]


class World(Protocol):
    """The processes of one training. Called on the training thread only, never by the writer."""

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many processes there are."""
        ...

    def agree(self, flag: bool) -> bool:
        """True when every rank passed True. A collective: all ranks call it, in the same order."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's `value` on every rank. `value` is JSON-able."""
        ...


class SoloWorld:
    """A world of one process."""

    rank = 0
    size = 1

    def agree(self, flag: bool) -> bool:
        """What this one process thinks."""
        return flag

    def broadcast(self, value: Any) -> Any:
        """The value itself."""
        return value

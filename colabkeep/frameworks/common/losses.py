"""Losses that are in host memory already, and what those on a device are told by."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from colabkeep.vocabulary.state import HostTensor, Tree

__all__ = ["HostLosses", "at_hand", "stored_steps"]


def at_hand(loss: Any) -> float | None:
    """One number in host memory as a float; None for anything else: no training ends for the sake of a picture."""
    if isinstance(loss, (int, float)):
        try:
            return float(loss)
        except OverflowError:  # an int beyond all floats
            return None
    if not hasattr(loss, "item") or math.prod(getattr(loss, "shape", (0,))) != 1:
        return None
    number = loss.item()
    return float(number) if isinstance(number, (int, float)) else None


def stored_steps(steps: Iterable[int]) -> HostTensor:
    """Numbers of steps, as a state holds them."""
    numbers = array("q", steps)
    return HostTensor(dtype="I64", shape=(len(numbers),), data=memoryview(numbers.tobytes()))


class HostLosses:
    """For a framework whose numbers are all at hand."""

    def take(self, step: int, loss: Any) -> float | None:
        return at_hand(loss)

    def arrived(self) -> Sequence[tuple[int, float]]:
        return ()

    def settle(self) -> Sequence[tuple[int, float]]:
        return ()

    def state_dict(self) -> Mapping[str, Any]:
        return {}

    def read(self, tree: Tree) -> Sequence[tuple[int, float]]:
        return ()

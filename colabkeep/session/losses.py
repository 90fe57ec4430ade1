"""The loss curve of a whole run: at most 512 points, whatever the run's length and wherever it was interrupted."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from colabkeep.vocabulary.state import HostTensor

__all__ = ["LOSSES", "LossCurve", "plain_points", "read_points", "thinned"]

MOST = 512
"""Points kept."""

LOSSES = "Losses"
"""What the journal calls the points that were added since it was written last."""


class LossCurve:
    """The loss at every 2^k-th step; k grows with the run, so that there are never more than 512 points.

    Which steps are kept depends on their numbers only, so a run that was interrupted has the points of one that was
    not. `next` is the first step that `add` wants to hear of. A loss on a device is copied there and read when the
    run is saved: no step waits for it.
    """

    def __init__(self) -> None:
        self.next = 1
        self._stride = 1
        self._read: list[tuple[int, float]] = []
        self._unread: list[tuple[int, Any]] = []  # on a device, perhaps
        self._told = 0  # the last step that `news` gave

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        """(step, loss), in order of steps. Waits for the device."""
        numbers = ((step, loss.item() if hasattr(loss, "item") else loss) for step, loss in self._unread)
        self._read += [(step, float(number)) for step, number in numbers if isinstance(number, (int, float))]
        self._unread.clear()
        return tuple(self._read)

    def add(self, step: int, loss: Any) -> None:
        """Keep the loss of this step, if it is one of those to be kept, and one number."""
        if step % self._stride == 0 and step > MOST * self._stride:
            self._thin(step)
        self.next = step - step % self._stride + self._stride
        if step % self._stride == 0 and (copy := _copied(loss)) is not None:
            self._unread.append((step, copy))

    def news(self) -> list[tuple[int, float]]:
        """The points since the last call. Waits for the device."""
        fresh = [point for point in self.points if point[0] > self._told]
        self._told = fresh[-1][0] if fresh else self._told
        return fresh

    def state_dict(self) -> dict[str, Any]:
        """The points, and how far apart they are."""
        steps, values = zip(*self.points, strict=True) if self.points else ((), ())
        return {
            "stride": self._stride,
            "steps": _tensor("I64", array("q", steps)),
            "values": _tensor("F64", array("d", values)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the points of a checkpoint."""
        self._stride = state["stride"]
        steps, values = state["steps"].data.cast("q"), state["values"].data.cast("d")
        self._read = list(zip(steps, values, strict=True))
        self._unread = []
        self._told = self._read[-1][0] if self._read else 0
        self.next = 0  # the first step that comes says which is the next

    def _thin(self, step: int) -> None:
        while step > MOST * self._stride:
            self._stride *= 2
        self._read = [point for point in self._read if point[0] % self._stride == 0]
        self._unread = [point for point in self._unread if point[0] % self._stride == 0]


def thinned(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Those that a curve has which was kept all along."""
    stride = 1
    while points and points[-1][0] > MOST * stride:
        stride *= 2
    return tuple(point for point in points if point[0] % stride == 0)


def plain_points(points: Iterable[tuple[int, float]]) -> list[list[Any]]:
    """The points as JSON has them: NaN and infinity as text."""
    return [[step, value if math.isfinite(value) else repr(value)] for step, value in points]


def read_points(found: object) -> list[tuple[int, float]]:
    """What `plain_points` made, from a file that anybody may have written: what is of another form is left out."""
    pairs = [pair for pair in found if isinstance(pair, list) and len(pair) == 2] if isinstance(found, list) else []
    return [(step, number) for step, value in pairs if _is_step(step) and (number := _number(value)) is not None]


def _is_step(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _number(value: object) -> float | None:
    if type(value) is float or (type(value) is int and abs(value) < 2**63):
        return float(value)
    return float(value) if value in ("nan", "inf", "-inf") and isinstance(value, str) else None


def _copied(loss: Any) -> Any | None:
    """One number, safe from what the loop does next to the memory it came in; None for anything else."""
    if isinstance(loss, (int, float)):
        return float(loss)
    if not hasattr(loss, "item") or math.prod(getattr(loss, "shape", (0,))) != 1:
        return None
    # A copy on the device: a captured graph writes each loss into the same memory. It keeps no gradients alive.
    return loss.detach().clone() if hasattr(loss, "detach") else loss.item()


def _tensor(dtype: str, numbers: array[Any]) -> HostTensor:
    return HostTensor(dtype=dtype, shape=(len(numbers),), data=memoryview(numbers.tobytes()))

"""The metrics and losses of a whole run: one record per step at which something was logged, a curve of at most 512
points, and whether it is finite.
"""

from __future__ import annotations

import bisect
import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from colabkeep.core.manifest import Progress, Proof
from colabkeep.core.state import HostTensor
from colabkeep.frameworks.base import Losses

__all__ = [
    "LOSSES",
    "History",
    "LossCurve",
    "LossRecord",
    "as_number",
    "plain_points",
    "read_points",
    "thinned",
]


def as_number(value: Any) -> float:
    """A number, or a tensor of one, as a float. Waits for the device that holds it."""
    return float(value.item() if hasattr(value, "item") else value)


class History(Sequence[dict[str, Any]]):
    """Records {"epoch", "step", metric: number, …}, in order of steps; part of every checkpoint. A list to read.

    It is kept as JSON lines, each written once, so that a save copies bytes instead of walking
    through a growing list.
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self._lines = bytearray()
        self._last = 0  # where the last record's line begins

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return self.records[index]

    def __eq__(self, other: object) -> bool:
        return self.records == (other.records if isinstance(other, History) else other)

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return repr(self.records)

    def add(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Log numbers at a step; those of one step and epoch go into one record."""
        record: dict[str, Any] = {"epoch": progress.epoch, "step": progress.step}
        last = self.records[-1] if self.records else {}
        if last.get("step") == progress.step and last.get("epoch") == progress.epoch:
            record = self.records.pop()
            del self._lines[self._last :]
        record.update(metrics)
        self._last = len(self._lines)
        self._lines += json.dumps(record).encode() + b"\n"  # Python's JSON knows NaN and infinity
        self.records.append(record)

    def values(self, metric: str) -> list[float]:
        """All values of one metric, oldest first."""
        return [record[metric] for record in self.records if metric in record]

    def state_dict(self) -> dict[str, HostTensor]:
        """The lines, as bytes that later records do not change."""
        lines = bytes(self._lines)
        return {"lines": HostTensor(dtype="U8", shape=(len(lines),), data=memoryview(lines))}

    def load_state_dict(self, state: Mapping[str, HostTensor]) -> None:
        """Take the lines of a checkpoint."""
        self._lines = bytearray(state["lines"].data)
        self.records = [json.loads(line) for line in self._lines.splitlines()]
        self._last = len(self._lines) - len(self._lines.splitlines(keepends=True)[-1]) if self.records else 0


MOST = 512
"""Points kept."""

LOSSES = "Losses"
"""What the journal calls the points that were added since it was written last."""

_LASTS = 3  # losses in a row that are not finite: told again, where single ones were told before


class LossCurve:
    """The loss at every 2^k-th step; k grows with the run, so that there are never more than 512 points.

    Which steps are kept depends on their numbers only, so a run that was interrupted has the points of one that was
    not. `next` is the first step that `add` wants to hear of, where they come in order.
    """

    def __init__(self) -> None:
        self.next = 1
        self._stride = 1
        self._points: list[tuple[int, float]] = []
        self._fresh: list[tuple[int, float]] = []  # not told by `news`

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        """(step, loss), in order of steps."""
        return tuple(self._points)

    def add(self, step: int, loss: float) -> None:
        """Keep the loss of this step, if it is one of those to be kept."""
        if step % self._stride == 0 and step > MOST * self._stride:
            self._thin(step)
        self.next = max(self.next, step - step % self._stride + self._stride)
        if step % self._stride == 0:
            if self._points and step < self._points[-1][0]:  # two devices, or a device and the host
                bisect.insort(self._points, (step, loss), key=_step_of)
            else:
                self._points.append((step, loss))
            self._fresh.append((step, loss))

    def news(self) -> list[tuple[int, float]]:
        """The points since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def state_dict(self) -> dict[str, Any]:
        """The points, and how far apart they are."""
        steps, values = zip(*self._points, strict=True) if self._points else ((), ())
        return {
            "stride": self._stride,
            "steps": _tensor("I64", array("q", steps)),
            "values": _tensor("F64", array("d", values)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the points of a checkpoint."""
        if type(state["stride"]) is not int or state["stride"] < 1:
            raise ValueError(f"the points of its losses are {state['stride']!r:.80} steps apart")
        self._stride = state["stride"]
        steps, values = state["steps"].data.cast("q"), state["values"].data.cast("d")
        self._points, self._fresh = list(zip(steps, values, strict=True)), []
        self.next = 0  # the first step that comes says which is the next

    def _thin(self, step: int) -> None:
        while step > MOST * self._stride:
            self._stride *= 2
        self._points = [point for point in self._points if point[0] % self._stride == 0]
        self._fresh = [point for point in self._fresh if point[0] % self._stride == 0]


class LossRecord:
    """Hears of the loss of each step: keeps the curve, and what the losses prove of the checkpoints.

    A loss on a device is read when it has come to the host by itself: no step and no save waits for it. Where one that
    is not a finite number is to be told, or that they are again, `hear` says so; `told` is what was told last: the
    first step of those that are not finite, None if they are. `newest` is the loss that came last in this session.
    """

    def __init__(self, reader: Losses, proof: Proof) -> None:
        self.proof = proof
        self.curve = LossCurve()
        self.told: int | None = None
        self.newest: float | None = None
        self._reader = reader
        self._take = reader.take  # looked up once: this is called in every step
        self._in_a_row = 0
        self._ever = False  # was it told in this session that one was not finite?

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        """The curve. Waits for the device."""
        self.settle()
        return self.curve.points

    def hear(self, step: int, loss: Any) -> bool:
        """The loss of a step, anything: what is not one number is left out. Is there something to be told?"""
        number = loss if loss.__class__ is float else self._take(step, loss)
        if number is None:
            return loss is not None and self._hear_all(self._reader.arrived())
        proof = self.proof
        if proof.broken is None and number - number == 0.0:  # as nearly always
            proof.finite, self.newest = step, number
            if step >= self.curve.next:
                self.curve.add(step, number)
            return False
        return self._hear_all(((step, number),))

    def settle(self) -> bool:
        """Wait for what is still on a device. Is there something to be told?"""
        return self._hear_all(self._reader.settle())

    def news(self) -> list[tuple[int, float]]:
        """The points of the curve since the last call, of the losses that have arrived."""
        return self.curve.news()

    def state_dict(self) -> dict[str, Any]:
        """The curve, what was proven, and the losses that have not arrived, as they lie on the device."""
        waiting = self._reader.state_dict()
        proof = {"finite": self.proof.finite, "broken": self.proof.broken, "value": self.proof.value}
        return {**self.curve.state_dict(), **proof, **({"waiting": waiting} if waiting else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take those of a checkpoint, also of one from before there was a proof: its points tell what they can."""
        self.curve.load_state_dict(state)
        proof, known = self.proof, "finite" in state
        proof.finite, proof.broken, proof.value = (
            (state["finite"], state["broken"], state["value"]) if known else _read_off(self.curve.points)
        )
        if not all(step is None or type(step) is int for step in (proof.finite, proof.broken)):
            raise TypeError(
                f"its losses were last finite at {proof.finite!r:.80}, and no more from {proof.broken!r:.80} on"
            )
        self._hear_all(self._reader.read(state["waiting"]) if "waiting" in state else ())
        self.curve.news()
        self.told, self._ever = proof.broken, False  # whoever opens the session tells it

    def _hear_all(self, losses: Iterable[tuple[int, float]]) -> bool:
        before = self.told
        for step, number in losses:
            self.newest = number
            if number - number == 0.0:
                self._hear_finite(step)
            else:
                self._hear_odd(step, number)
            if step >= self.curve.next:
                self.curve.add(step, number)
        return self.told != before

    def _hear_finite(self, step: int) -> None:
        proof = self.proof
        proof.finite = max(step, proof.finite or 0)
        if proof.broken is not None and step > proof.broken:
            proof.broken, proof.value, self.told, self._in_a_row = None, "", None, 0

    def _hear_odd(self, step: int, number: float) -> None:
        proof = self.proof
        if proof.broken is None:
            if step <= (proof.finite or 0):
                return  # of another device, and late: a later one is known to be finite
            proof.broken, proof.value = step, repr(number)
        self._in_a_row += 1
        if self.told is None and (not self._ever or self._in_a_row >= _LASTS):
            self.told, self._ever = proof.broken, True


def _read_off(points: Sequence[tuple[int, float]]) -> tuple[int | None, int | None, str]:
    """The last step with a finite loss, the first one after it with another, and what that was."""
    finite = next((step for step, value in reversed(points) if math.isfinite(value)), None)
    later = [(step, value) for step, value in points if finite is None or step > finite]
    return (finite, later[0][0], repr(later[0][1])) if later else (finite, None, "")


def _step_of(point: tuple[int, float]) -> int:
    return point[0]


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


def _tensor(dtype: str, numbers: array[Any]) -> HostTensor:
    return HostTensor(dtype=dtype, shape=(len(numbers),), data=memoryview(numbers.tobytes()))

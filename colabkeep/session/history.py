"""The metrics of a run over all its sessions: one record per step at which something was logged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, overload

from colabkeep.vocabulary.progress import Progress
from colabkeep.vocabulary.state import HostTensor

__all__ = ["History", "as_number"]


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

"""A running mean of plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PlainMean"]


class PlainMean:
    """Adds on the host, in double precision. Saved and loaded, it goes on with the same bits."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: Any, weight: float) -> None:
        """Count `value`, a number or an array of one number, with `weight`."""
        self._sum += float(value) * weight
        self._weight += weight

    def value(self) -> float | None:
        """The mean so far, None of nothing."""
        return self._sum / self._weight if self._weight else None

    def reset(self) -> None:
        """Begin anew, with nothing."""
        self._sum = self._weight = 0.0

    def state_dict(self) -> dict[str, float]:
        """The sum and the weight."""
        return {"sum": self._sum, "weight": self._weight}

    def load_state_dict(self, state_dict: Mapping[str, float]) -> None:
        """Go on from what `state_dict` returned."""
        self._sum, self._weight = state_dict["sum"], state_dict["weight"]

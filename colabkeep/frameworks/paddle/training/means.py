"""A running mean of losses that waits for nothing until it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle

__all__ = ["RunningMean"]

_GATHERED = 256  # losses added in one go: 0.7 µs each; one by one 9


class RunningMean:
    """A mean that adds on its device, in float64, and waits only when read.

    Values are gathered and added many at a time, always at the same counts, wherever it was saved: it goes on
    with the same bits.
    """

    def __init__(self, place: Any) -> None:
        self._place = place
        # Other accelerators need not have float64.
        self._dtype = "float64" if place.is_cpu_place() or place.is_gpu_place() else "float32"
        self._sum = self._tensor(0.0)
        self._weight = 0.0
        self._values: list[paddle.Tensor] = []
        self._weights: list[float] = []

    def add(self, value: Any, weight: float) -> None:
        """Count `value`, a number or a tensor of one number without a graph, with `weight`."""
        self._weight += weight
        self._values.append(value if isinstance(value, paddle.Tensor) else self._tensor(value))
        self._weights.append(weight)
        if len(self._values) == _GATHERED:
            self._sum = self._total()
            self._values, self._weights = [], []

    def value(self) -> float | None:
        """The mean so far, None of nothing. Waits for the device."""
        return float(self._total().item()) / self._weight if self._weight else None

    def reset(self) -> None:
        """Begin anew, with nothing."""
        self._sum = self._tensor(0.0)
        self._weight = 0.0
        self._values, self._weights = [], []

    def state_dict(self) -> dict[str, Any]:
        """The sum and the weights, as copies, and what is gathered but not added yet."""
        return {
            "sum": self._sum.clone(),
            "weight": self._weight,
            "values": self._gathered(),
            "weights": list(self._weights),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._sum = self._tensor(state_dict["sum"])
        self._weight = float(state_dict["weight"])
        self._weights = list(state_dict["weights"])
        gathered = self._tensor(state_dict["values"])
        self._values = [gathered[i] for i in range(len(self._weights))]

    def _tensor(self, value: Any) -> paddle.Tensor:
        if isinstance(value, paddle.Tensor):
            return value._copy_to(self._place, True).astype(self._dtype)
        return paddle.to_tensor(value, dtype=self._dtype, place=self._place)

    def _gathered(self) -> paddle.Tensor:
        if not self._values:
            return paddle.zeros([0], dtype=self._dtype)
        if len({value.dtype for value in self._values}) > 1:  # what was restored stands beside what was added since
            return paddle.stack([value.astype(self._dtype) for value in self._values])
        return paddle.stack(self._values).astype(self._dtype)

    def _total(self) -> paddle.Tensor:
        if not self._values:
            return self._sum
        return self._sum + (self._gathered() * self._tensor(self._weights)).sum()

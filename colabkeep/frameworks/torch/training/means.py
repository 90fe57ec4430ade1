"""A running mean of losses that waits for nothing until it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["RunningMean"]

_GATHERED = 256  # numbers added in one go, 0.3 µs each; one by one 2 µs, and 6 among the steps of a model


class RunningMean:
    """A mean that adds on its device, in float64, and waits only when read.

    Saved and loaded, it goes on with the same bits. On the CPU, numbers are gathered and added many at a time,
    always at the same counts, wherever it was saved. On a GPU they are added at once: a graph that is played
    again writes its next loss over the last one.
    """

    def __init__(self, device: torch.device) -> None:
        # Apple's GPUs have no float64.
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._sum = torch.zeros((), dtype=self._dtype, device=device)
        self._weight = 0.0
        self._gathers = device.type == "cpu"
        self._values: list[float] = []
        self._weights: list[float] = []

    def add(self, value: Any, weight: float) -> None:
        """Count `value`, a number or a tensor of one number without a graph, with `weight`."""
        self._weight += weight
        if not self._gathers:
            self._sum.add_(value, alpha=weight)
            return
        self._values.append(value if value.__class__ is float else float(value))
        self._weights.append(weight)
        if len(self._values) == _GATHERED:
            self._sum = self._total()
            self._values, self._weights = [], []

    def value(self) -> float | None:
        """The mean so far, None of nothing. Waits for the device."""
        return float(self._total().item()) / self._weight if self._weight else None

    def reset(self) -> None:
        """Begin anew, with nothing."""
        self._sum.zero_()
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
        """Go on from what `state_dict` returned; that of the first versions had gathered nothing."""
        self._sum.copy_(state_dict["sum"])
        self._weight = float(state_dict["weight"])
        self._values = list(map(float, state_dict.get("values", ())))
        self._weights = list(state_dict.get("weights", ()))

    def _gathered(self) -> torch.Tensor:
        return torch.tensor(self._values, dtype=self._dtype, device=self._sum.device)

    def _total(self) -> torch.Tensor:
        if not self._values:
            return self._sum
        return (
            self._sum
            + (self._gathered() * torch.tensor(self._weights, dtype=self._dtype, device=self._sum.device)).sum()
        )

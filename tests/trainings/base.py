"""What the trainings of all frameworks share: their sizes, what they tell, and what the page of each promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from colabkeep.core.events import Event, StepDone

__all__ = ["BATCH", "FEATURES", "SAMPLES", "Consumed", "HardTraining", "Witness"]

SAMPLES = 42
FEATURES = 8
BATCH = 4

Consumed = Callable[[int, int, list[int]], None]
"""Called after each step with the step, its epoch and the indices of the samples it was made of."""


class HardTraining(Protocol):
    """What the page of each framework has."""

    def hard_training(
        self,
        *,
        workers: int = 0,
        accumulate: int = 1,
        epochs: int = 6,
        heard: Consumed = ...,
        measured: Callable[[], None] = ...,
    ) -> dict[str, Any]:
        """The arguments of `colabkeep.resumable_fit`, all objects built anew from the same seed.

        `heard` is told of each step, `measured` is called for each batch of a validation.
        """
        ...

    def step_by_hand(self, words: Mapping[str, Any], features: Any, target: Any) -> Any:
        """One step of a user's own loop over those objects; its loss."""
        ...

    def one_thread(self) -> None:
        """Compute with one thread from here on: bits depend on their number, and `Life` forks."""
        ...


class Witness:
    """The observer of a training, which passes on the samples that its loss was computed from."""

    def __init__(self, heard: Consumed, measured: Callable[[], None]) -> None:
        self.measured = measured
        self._heard = heard
        self._seen: list[int] = []

    def saw(self, samples: list[int]) -> None:
        """These went into a loss that is trained on."""
        self._seen += samples

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone):
            samples, self._seen = self._seen, []
            self._heard(event.progress.step, event.progress.epoch, samples)

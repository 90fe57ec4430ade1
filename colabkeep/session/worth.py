"""Whether a training in several processes is faster than in one, by what was measured in it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from colabkeep.core.events import Noted
from colabkeep.core.system import Clock

_FIRST = 20  # steps of a session that are not measured: kernels are chosen, and memory is got
_TOGETHER = 5  # steps between two looks at the clock, at which the device is waited for
_TIMES = 8  # so often


class Worth:
    """Called after each step of rank 0: tells once if several processes do not pay.

    A step of N processes takes T seconds: the median of eight times five steps, the first twenty of the session left
    out, with the wait for data and without validation. S of them are spent on what the processes tell each other:
    `summing`, measured before the training with as many bytes as the gradients have. The rest, T - S, is a process's
    part of the batch. One process alone would need N * (T - S) at most: N parts, nothing of which is faster than
    before, though the update of the weights is there once and small batches hardly take less time than large ones. So
    several do not pay where N * (T - S) <= T, and that is all that is told; that they pay is not.
    """

    def __init__(self, size: int, summing: float, clock: Clock, tell: Callable[[Noted], object]) -> None:
        self._size, self._summing, self._clock, self._tell = size, summing, clock, tell
        self._steps, self._since = 0, 0
        self._began: float | None = None
        self._taken: list[float] = []

    def pause(self) -> None:
        """What comes now is no step."""
        self._began = None

    def __call__(self, loss: Any) -> None:
        """A step was made, whose loss this is, perhaps still on a device."""
        self._steps += 1
        if self._steps < _FIRST or len(self._taken) == _TIMES:
            return
        if self._began is not None:
            self._since += 1
            if self._since < _TOGETHER:
                return
        float(loss)  # waits for the device
        now = self._clock.monotonic()
        if self._began is not None:
            self._taken.append((now - self._began) / self._since)
            if len(self._taken) == _TIMES and (text := self.sentence(statistics.median(self._taken))):
                self._tell(Noted(text=text))
        self._began, self._since = now, 0

    def sentence(self, step: float) -> str:
        """What is told of steps that take so many seconds; empty where several processes may pay."""
        alone = self._size * (step - self._summing)
        if alone > step:
            return ""
        if alone <= 0:
            return (
                f"{self._size} devices do not pay for this model: a step takes about {_ms(step)}, and the sums over "
                "all of them took as long in the trial before the training. devices=1 needs no sums."
            )
        return (
            f"{self._size} devices do not pay for this model: a step takes about {_ms(step)}, of which the sums over "
            f"all of them take about {_ms(self._summing)}. With devices=1 a step would take about {_ms(alone)} at most."
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"

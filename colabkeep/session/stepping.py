"""How often `resumable_fit` steps the scheduler: once per epoch, or once per step of the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from colabkeep.frameworks.common.iterables import length_of
from colabkeep.frameworks.common.schedules import counts_to, is_per_step
from colabkeep.vocabulary.errors import UsageError

__all__ = ["Decided", "Length", "decide"]

_EACH = {"epoch": "once per epoch", "step": "once per optimizer step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long a run is asked to be: `max_epochs`, `max_steps`, None where not said; `loader` gives the batches of an
    epoch, `accumulate` of which make a step."""

    max_epochs: int | None
    max_steps: int | None
    loader: Any
    accumulate: int = 1

    @property
    def per_epoch(self) -> int | None:
        """Optimizer steps in an epoch; None where the loader does not know its length."""
        batches = length_of(self.loader)
        return None if not batches else -(-batches // self.accumulate)

    @property
    def steps(self) -> set[int]:
        """What may be meant by the steps of the run."""
        whole = self.max_epochs and self.per_epoch and self.max_epochs * self.per_epoch
        return {steps for steps in (whole, self.max_steps) if steps}

    @property
    def epochs(self) -> set[int]:
        """What may be meant by its epochs."""
        some = self.max_steps and self.per_epoch and -(-self.max_steps // self.per_epoch)
        return {epochs for epochs in (self.max_epochs, some) if epochs}

    def __str__(self) -> str:
        steps = f"{min(self.steps)} optimizer steps" if self.steps else "a number of steps that nobody knows beforehand"
        return f"{steps} in {min(self.epochs)} epoch(s)" if self.epochs else steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """`interval`: "epoch" or "step"; `said`: that and why, a sentence, empty without a scheduler."""

    interval: str
    said: str = ""


def decide(scheduler: object, length: Length) -> Decided:
    """Read from the scheduler what it counts.

    Raises:
        UsageError: it is documented to be stepped after each batch, or counts further than the epochs, and it cannot be
            told what it counts; the remedy is the argument to write.
    """
    if scheduler is None:
        return Decided(interval="epoch")
    name, total = type(scheduler).__name__, counts_to(scheduler)
    if total in length.epochs:
        return _decided("epoch", name, f"it counts to {total}, the epochs of this run")
    if total in length.steps:
        return _decided("step", name, f"it counts to {total}, the optimizer steps of this run")
    if is_per_step(scheduler):
        if total is None:
            return _decided("step", name, "it is made for that")
        raise _unclear(name, total, length)
    if total is None or (length.epochs and total < min(length.epochs)):
        return _decided("epoch", name, "")
    if not length.steps:
        raise _unclear(name, total, length)
    return Decided(
        interval="epoch",
        said=f"{name} counts to {total}, and is stepped once per epoch: the run has {length}. If it counts optimizer "
        'steps, write scheduler_interval="step"; scheduler_interval="epoch" says that this is meant.',
    )


def _decided(interval: str, name: str, why: str) -> Decided:
    other = "epoch" if interval == "step" else "step"
    said = f"{name} is stepped {_EACH[interval]}{why and f' ({why})'}; "
    return Decided(interval=interval, said=f'{said}scheduler_interval="{other}" would step it {_EACH[other]}.')


def _unclear(name: str, total: int, length: Length) -> UsageError:
    fitting = f"{name}(…, total_steps={min(length.steps)})" if name == "OneCycleLR" and length.steps else ""
    build = f"Build {fitting}, and write" if fitting else "Write"
    return UsageError(
        problem=f"{name} counts to {total}, and the run has {length}: it cannot be told whether it counts epochs or "
        "steps.",
        remedy=f'{build} scheduler_interval="step", to step it after each optimizer step; or '
        'scheduler_interval="epoch", to step it after each epoch.',
    )

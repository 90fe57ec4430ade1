"""Where the training is: counted steps and batches, the loader of this epoch, the random streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from colabkeep.frameworks.base import Data, Framework, LoaderState
from colabkeep.session.opening import Value
from colabkeep.vocabulary.errors import UsageError
from colabkeep.vocabulary.progress import Progress
from colabkeep.vocabulary.state import Tree

__all__ = ["Position"]


class Position:
    """Moves from boundary to boundary; at each, `parts` is what a checkpoint needs to come back here.

    `progress` is the last boundary. `read` runs ahead of it: the batches and samples of this epoch
    that the loop was given. `stored` are the own parts of the checkpoint this session resumes from;
    each is used once, where the training gets to the place that it belongs to.
    """

    def __init__(self, framework: Framework, seed: int, progress: Progress, stored: Mapping[str, Tree]) -> None:
        self.progress = progress
        self.loader: LoaderState | None = None
        self.in_epoch = False
        self.batch_samples: int | None = None  # of the batch handed out last
        self._framework = framework
        self._data: Data = framework.data()
        self._seed = seed
        self._stored = dict(stored)
        self._read = (progress.batches, progress.epoch_samples)
        self._rng = framework.rng()
        self._rng_at_epoch = Value()
        self._facts = None if progress.batches else stored.get("loader")  # what the last whole epoch was read from

    @property
    def at_boundary(self) -> bool:
        """Was every batch that the loop was given part of a finished step?"""
        return self._read == (self.progress.batches, self.progress.epoch_samples)

    def parts(self) -> dict[str, object]:
        """The state of the position: loader and random streams, now and at the start of the epoch."""
        return {
            "loader": Value(self.loader.state() if self.loader is not None else self._facts),
            "rng": self._rng,
            "rng_at_epoch": self._rng_at_epoch,
        }

    def begin_epoch(self) -> None:
        """The body of an epoch begins, or begins again after a resume in its middle."""
        self.in_epoch = True
        self.close_loader()  # a loop may have been left in the middle of the epoch, and begun again
        self._read = self.progress.batches, self.progress.epoch_samples
        if self.progress.batches:
            # What the body draws before its first batch is what it drew when the epoch began.
            if "rng_at_epoch" in self._stored:
                self._rng_at_epoch.value = self._native("rng_at_epoch")
            self._rng.load_state_dict(self._rng_at_epoch.value)
            return
        self.restore_rng()
        self._rng_at_epoch.value = self._rng.state_dict()

    def open(self, loader: object) -> LoaderState:
        """Position `loader` at the batch after the last boundary.

        Raises:
            UsageError: not once in an epoch, or the loader cannot be resumed.
            Incompatible: the data set or its order is not the one of the run.
        """
        if not self.in_epoch or self.loader is not None:
            raise UsageError(
                problem="run.batches() has to be called once in each epoch of run.epochs().",
                remedy="for epoch in run.epochs(10): for batch in run.batches(loader): …  "
                "Iterate other loaders (validation) directly.",
            )
        progress = self.progress
        self.loader = self._data.open(
            loader,
            seed=self._seed,
            epoch=progress.epoch,
            batches=progress.batches,
            samples=progress.epoch_samples,
            state=self._stored.pop("loader", None) if progress.batches else None,
        )
        return self.loader

    def batches(self, loader: LoaderState) -> Iterator[Any]:
        """The batches that are left, counted as they are handed out."""
        for value, count in loader:
            if "rng" in self._stored:
                self.restore_rng()  # not before: making an iterator must not shift the streams
            batches, samples = self._read
            self._read = batches + 1, samples + (count or 0)
            self.batch_samples = count
            yield value
        self.restore_rng()

    def restore_rng(self) -> None:
        """The training is where the checkpoint was taken: its random streams are in force from here on."""
        if "rng" in self._stored:
            self._rng.load_state_dict(self._native("rng"))

    def advance(self, seconds: float) -> Progress:
        """A step is done; all batches read so far were part of it or of steps before."""
        before, (batches, samples) = self.progress, self._read
        self.progress = Progress(
            epoch=before.epoch,
            step=before.step + 1,
            batches=batches,
            epoch_samples=samples,
            samples=before.samples + samples - before.epoch_samples,
            seconds=seconds,
        )
        return self.progress

    def end_epoch(self, seconds: float) -> Progress:
        """The epoch's body is done.

        Raises:
            UsageError: it read batches, and no step was counted.
        """
        before = self.progress
        if self._read[0] and not before.batches:
            raise UsageError(
                problem="An epoch went by without run.step(); nothing was counted and nothing can be saved.",
                remedy="Call run.step() after each optimizer.step().",
            )
        if self.loader is not None and not self.loader.positional:
            self._facts = self.loader.state()
        self.close_loader()
        self.in_epoch = False
        self._read = 0, 0
        self.progress = Progress(epoch=before.epoch + 1, step=before.step, samples=before.samples, seconds=seconds)
        return self.progress

    def close_loader(self) -> None:
        """Let go of this epoch's loader."""
        if self.loader is not None:
            self.loader.close()
        self.loader = None

    def close(self) -> None:
        """Let go of all loaders and their workers."""
        self.close_loader()
        self._data.close()

    def _native(self, part: str) -> Any:
        return self._framework.native(self._stored.pop(part))

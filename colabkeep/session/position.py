"""Where the training is: counted steps and batches, loaders, random streams, and the variables of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from colabkeep.frameworks.base import Batch, Framework, LoaderState
from colabkeep.frameworks.common.iterables import no_batches
from colabkeep.session.memory import LoopMemory
from colabkeep.session.opening import Value
from colabkeep.session.same_data import SameData
from colabkeep.vocabulary.errors import UsageError
from colabkeep.vocabulary.progress import Progress
from colabkeep.vocabulary.state import Tree

__all__ = ["Place", "Position"]


class Place(Enum):
    """What part of a loop is under way."""

    FREE = auto()
    """None of colabkeep's: a loop that the user counts, or what stands between two epochs."""

    EPOCH = auto()
    """An epoch's body, before the first batch; all of it, where the loop reads its data elsewhere."""

    BATCH = auto()
    """The body of a loop over `run.batches`."""

    BEHIND = auto()
    """An epoch's body, after the loop over `run.batches`."""

    STEP = auto()
    """The body of a loop over `run.steps`."""


class Position:
    """Moves from boundary to boundary; at each, `parts` is what a checkpoint needs to come back here.

    `progress` is the last finished step, or end of an epoch. What the loop was given runs ahead of it. `stored` are
    the own parts of the checkpoint that this session resumes from.
    """

    def __init__(
        self, framework: Framework, seed: int, progress: Progress, stored: Mapping[str, Tree], same: SameData
    ) -> None:
        self.progress = progress
        self.go(Place.FREE)
        self.resting = True  # nothing was given or done since the last boundary
        self.stepped = True  # a step was counted since the loop was given something
        self.blind = False  # a step of this epoch was done outside of its loop over batches
        self.loader: LoaderState | None = None
        self.batch_samples: int | None = None  # of the batch handed out last
        self._data = framework.data()
        self._same = same
        self.memory = LoopMemory(framework, self._data, same, seed, stored)
        self._seed = seed
        self.batch = progress.batches - 1  # the number in its epoch, from 0, of the batch handed out last
        self._samples = progress.epoch_samples  # of the epoch, handed out so far
        self._stored = stored.get("loader")  # where the loader was
        self._facts = None if progress.batches else self._stored  # what the last whole epoch was read from
        self._exhausted = False  # did the loop over the epoch's batches come to its end?
        self._held: Tree = None  # what the loader told at the boundary, where it has moved on since

    @property
    def all_read(self) -> bool:
        """Was the last batch of the epoch handed out, as far as its length is known?"""
        return self.loader is not None and self.batch + 1 == self.loader.length

    @property
    def behind(self) -> bool:
        """Was every batch of the epoch part of a finished step? What is left of it is what stands behind its loop."""
        return self.in_epoch and self.stepped and (self._exhausted or self.all_read)

    @property
    def ends(self) -> bool:
        """Is the next place to resume from the end of the epoch?"""
        return self.blind or self._exhausted or self.all_read or self.place is Place.BEHIND

    def go(self, place: Place) -> None:
        """Another part of a loop is under way."""
        self.place = place
        self.in_epoch = place in (Place.EPOCH, Place.BATCH, Place.BEHIND)
        self.comes_back = place in (Place.BATCH, Place.STEP)  # it will ask for more, and that is where it is saved

    def parts(self) -> dict[str, object]:
        """The state of the position: loader, random streams and variables, now and at the start of the epoch."""
        told = self._facts if self.loader is None else self._held or self.loader.state(self.progress.batches)
        return {"loader": Value(told), "data": Value(self._same.records), **self.memory.parts()}

    def begin_epoch(self) -> None:
        """The body of an epoch begins, or begins again after a resume in its middle."""
        self.close_loader()  # a loop may have been left in the middle of the epoch, and begun again
        self.go(Place.EPOCH)
        self.blind = self._exhausted = False
        self.batch, self._samples = self.progress.batches - 1, self.progress.epoch_samples
        if self.progress.batches:
            self.memory.begin_epoch_again()
        else:
            self.memory.begin_epoch()

    def begin_steps(self) -> None:
        """A loop over steps begins."""
        self.go(Place.STEP)

    def open(self, loader: object) -> LoaderState:
        """Position `loader` at the batch after the last boundary.

        Raises:
            UsageError: not once in an epoch, or the loader cannot be resumed.
            Incompatible: the data set or its order is not the one of the run.
        """
        if self.place is not Place.EPOCH:
            raise UsageError(
                problem="run.batches() was called "
                + ("a second time in one epoch." if self.in_epoch else "outside of run.epochs()."),
                remedy="for epoch in run.epochs(10): for batch in run.batches(loader): …  Iterate other loaders "
                "(validation) directly, and draw from a second training loader with run.next(loader).",
            )
        progress = self.progress
        stored, self._stored = self._stored, None
        self.loader = self._same.open(
            self._data,
            "train",
            loader,
            stored if progress.batches else None,
            seed=self._seed,
            epoch=progress.epoch,
            batches=progress.batches,
            samples=progress.epoch_samples,
        )
        if self.loader.length == 0:
            raise no_batches(loader)
        self.go(Place.BATCH)
        return self.loader

    def hand_out(self, batch: Batch) -> Any:
        """The loop is given a batch."""
        if not self.memory.arrived:
            self.memory.arrive()  # not before: making an iterator must not shift the streams
        value, count = batch
        self.batch += 1
        self._samples += count or 0
        self.batch_samples = self.memory.averages.samples = count
        self.resting = self.stepped = False
        self._held = None
        return value

    def hand_out_step(self) -> int:
        """The loop is given a step; its number."""
        self.memory.arrive()
        self.resting = self.stepped = False
        return self.progress.step

    def next(self, loader: object, name: str | None) -> Any:
        """The next batch of an endless stream."""
        self.resting = False
        value, count = self.memory.streams.next(loader, name)
        self.batch_samples = self.memory.averages.samples = count
        return value

    def refuse_nothing(self, loader: object) -> None:
        """Raise where the epoch has come to its end without a batch.

        Raises:
            UsageError: it has.
        """
        if self.batch < 0:
            raise no_batches(loader)

    def batches_over(self, loader: LoaderState, *, exhausted: bool) -> None:
        """The loop over the batches of `loader` has come to its end, or was left."""
        if self.loader is loader and self.place is Place.BATCH:
            self.go(Place.BEHIND)
            self._exhausted = exhausted

    def hold(self) -> None:
        """The loader is about to move on, and what it tells now belongs to the boundary."""
        if self.loader is not None:
            self._held = self.loader.state()

    def rest(self) -> None:
        """A boundary is here."""
        self.resting = True
        self.memory.mark()

    @property
    def can_rewind(self) -> bool:
        """Would `rewind` find the way back?"""
        return not self._moved_on and self.memory.streams.can_rewind

    @property
    def _moved_on(self) -> bool:
        """Was a loader read that cannot be asked where it was before?"""
        return self.loader is not None and self.loader.positional and not self.stepped

    def rewind(self) -> str | None:
        """Go back to the last boundary, in what `parts` tells; or say why that cannot be, in a clause."""
        if self._moved_on:
            return "the data loader had moved on since the last step, and cannot be asked where it was"
        return self.memory.rewind()

    def advance(self, seconds: float) -> Progress:
        """A step is done; all batches read so far were part of it or of steps before."""
        before, samples = self.progress, self._samples
        self.progress = Progress(
            epoch=before.epoch,
            step=before.step + 1,
            batches=self.batch + 1,
            epoch_samples=samples,
            samples=before.samples + samples - before.epoch_samples,
            seconds=seconds,
        )
        self.resting, self.stepped = False, True
        self.blind = self.blind or (self.in_epoch and not self.comes_back)
        return self.progress

    def end_epoch(self, seconds: float) -> Progress:
        """The epoch's body is done.

        Raises:
            UsageError: it read batches, and no step was counted.
        """
        before = self.progress
        if self.batch >= 0 and not before.batches:
            raise UsageError(
                problem="An epoch went by without run.step(); nothing was counted and nothing can be saved.",
                remedy="Call run.step() after each optimizer.step().",
            )
        if self.loader is not None and not self.loader.positional:
            self._facts = self.loader.state()
        self.close_loader()
        self.go(Place.FREE)
        self.stepped, self.blind = True, False
        self.batch, self._samples = -1, 0
        self.progress = Progress(epoch=before.epoch + 1, step=before.step, samples=before.samples, seconds=seconds)
        return self.progress

    def close_loader(self) -> None:
        """Let go of this epoch's loader."""
        if self.loader is not None:
            self.loader.close()
        self.loader = self._held = None

    def close(self) -> None:
        """Let go of all loaders and their workers."""
        self.close_loader()
        self.memory.streams.close()
        self._data.close()

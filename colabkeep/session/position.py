"""Where the training is: counted steps and batches, loaders, streams without an end, random streams, and the
variables of the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from enum import Enum, auto
from typing import Any

from colabkeep.core.errors import UsageError
from colabkeep.core.manifest import Progress
from colabkeep.core.state import Stateful, Tree, derive
from colabkeep.frameworks.base import Batch, Data, Framework, LoaderState
from colabkeep.frameworks.shared.iterables import no_batches
from colabkeep.session.data_fingerprint import NEXT, SameData
from colabkeep.session.open import Value
from colabkeep.session.variables import Averages, RunState

__all__ = [
    "Endless",
    "LoopMemory",
    "Place",
    "Position",
]

_MOST = 32  # loaders of one run without a name; more of them are most likely made anew at each step


@dataclass(frozen=True, slots=True)
class _Place:
    """How far a stream is: passes over its loader that are complete, and what it gave of the one under way."""

    epoch: int = 0
    batches: int = 0
    samples: int = 0


class _Stream:
    """One loader, read for ever. Its order and randomness are its own: a function of (seed, name, pass, batch)."""

    def __init__(self, name: str, data: Data, same: SameData, seed: int) -> None:
        self.place = self.marked = _Place()
        self._name = name
        self._data = data
        self._same = same
        self._seed = derive(seed, "stream", name)
        self._loader: object = None
        self._stored: Tree = None  # what the loader told at the place, in the session before
        self._opened: LoaderState | None = None
        self._batches: Iterator[Batch] = iter(())

    def next(self, loader: object) -> Batch:
        """The next batch; behind the last one of a pass comes the first one of the next."""
        if loader is not self._loader:
            self.close()
            self._loader = loader
        batch = next(self._batches, None)
        if batch is None:
            batch = self._next_pass()
        place = self.place
        self.place = replace(place, batches=place.batches + 1, samples=place.samples + (batch.samples or 0))
        return batch

    def state(self) -> dict[str, Any]:
        """The place, and what the loader tells there."""
        return {
            **asdict(self.place),
            "loader": self._stored if self._opened is None else self._opened.state(self.place.batches),
        }

    def put(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.close()
        self.place = self.marked = _Place(state["epoch"], state["batches"], state["samples"])
        self._stored = state["loader"]

    @property
    def can_rewind(self) -> bool:
        """Can it tell how it was at the last mark?"""
        opened, place, marked = self._opened, self.place, self.marked
        return place == marked or opened is None or (place.epoch == marked.epoch and not opened.positional)

    def rewind(self) -> bool:
        """Back to the last mark, to be told from there; False if the loader cannot tell how it was there."""
        if self.can_rewind and self._opened is not None:
            self.place = self.marked
        return self.can_rewind

    def close(self) -> None:
        """Let go of the loader's iteration."""
        if self._opened is not None:
            self._opened.close()
        self._opened, self._batches = None, iter(())

    def _next_pass(self) -> Batch:
        if self._opened is not None:  # one pass is over
            self.close()
            self.place = _Place(self.place.epoch + 1)
        for _ in range(2):  # the stored place may be the end of a pass
            batch = self._open()
            if batch is not None:
                return batch
            self.close()
            self.place = _Place(self.place.epoch + 1)
        raise UsageError(
            problem="The loader given to run.next() has no batches.",
            remedy="See that its data set is not empty, and that drop_last does not drop all there is.",
        )

    def _open(self) -> Batch | None:
        place, stored = self.place, self._stored
        self._stored = None
        state = stored if place.batches else None
        self._opened = self._same.open(
            self._data, NEXT + self._name, self._loader, state, seed=self._seed, **asdict(place)
        )
        self._batches = iter(self._opened)
        return next(self._batches, None)


class Endless:
    """The streams of a run, by name."""

    def __init__(self, data: Data, same: SameData, seed: int) -> None:
        self._data = data
        self._same = same
        self._seed = seed
        self._streams: dict[str, _Stream] = {}
        self._names: dict[int, tuple[object, str]] = {}  # holds the loaders, so that no id is given twice

    def next(self, loader: object, name: str | None) -> Batch:
        """The next batch of a stream. Without a name it is known by the order in which loaders were first used."""
        if name is None:
            name = self._known(loader)
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = _Stream(name, self._data, self._same, self._seed)
        return stream.next(loader)

    def _known(self, loader: object) -> str:
        if id(loader) not in self._names:
            if len(self._names) == _MOST:
                raise UsageError(
                    problem=f"run.next() was given more than {_MOST} loaders: each new one begins at its first batch.",
                    remedy="Build each loader once, before the loop; or name the stream: run.next(loader, name=…).",
                )
            self._names[id(loader)] = loader, f"loader {len(self._names)}"
        return self._names[id(loader)][1]

    def state(self) -> dict[str, Any]:
        """How far each stream is."""
        return {name: stream.state() for name, stream in self._streams.items()}

    def put(self, state: Mapping[str, Any]) -> None:
        """Go on from there. A stream that is not in it begins anew."""
        for name in self._streams.keys() | state.keys():
            stream = self._streams.get(name)
            if stream is None:
                stream = self._streams[name] = _Stream(name, self._data, self._same, self._seed)
            stream.put(state.get(name) or {**asdict(_Place()), "loader": None})

    def mark(self) -> None:
        """The training is between two steps."""
        for stream in self._streams.values():
            stream.marked = stream.place

    @property
    def can_rewind(self) -> bool:
        """Can all of them go back to the last mark?"""
        return all(stream.can_rewind for stream in self._streams.values())

    def rewind(self) -> str | None:
        """Go back to the last mark, in what `state` tells; or say why that cannot be, in a clause."""
        whole = all(list(map(_Stream.rewind, self._streams.values())))
        return None if whole else "a loader of run.next() had moved on, and cannot be asked where it was"

    def close(self) -> None:
        """Let go of all iterations."""
        for stream in self._streams.values():
            stream.close()


class LoopMemory:
    """`stored` are the own parts of the checkpoint that a session resumes from. They are put back where the training
    gets to their place: what a loop does before its first batch it does again in a resumed epoch, so until then it has
    the variables and random streams that it had when the epoch began.
    """

    def __init__(self, framework: Framework, data: Data, same: SameData, seed: int, stored: Mapping[str, Tree]) -> None:
        self.state = RunState(framework.name)
        self.averages = Averages(framework)
        self.streams = Endless(data, same, seed)
        self._framework = framework
        self._rng = framework.rng()
        self._stored = stored
        self.arrived = not stored  # is the training where the checkpoint was taken?
        self._at_epoch = {name: Value() for name in ("rng", "state", "streams")}
        self._restore("state", self.state)  # for what is read before the loop

    def parts(self) -> dict[str, object]:
        """All of it, by the names of the parts of a checkpoint; what the run does not use is left out."""
        found: dict[str, object] = {"rng": self._rng, "rng_at_epoch": self._at_epoch["rng"]}
        if self.state:
            found |= {"state": self.state, "state_at_epoch": self._at_epoch["state"]}
        if self.averages:
            found["averages"] = self.averages
        if streams := self.streams.state():
            found |= {"streams": Value(streams), "streams_at_epoch": self._at_epoch["streams"]}
        return found

    def arrive(self) -> None:
        """The training is where the checkpoint was taken: all is in force from here on, the random streams last."""
        if self.arrived:
            return
        self.arrived = True
        self._restore("state", self.state)
        self._restore("averages", self.averages)
        self.streams.put(self._stored.get("streams") or {})
        if "rng" in self._stored:
            self._rng.load_state_dict(self._framework.native(self._stored["rng"]))
        self._stored = {}

    def begin_epoch(self) -> None:
        """An epoch begins."""
        self.arrive()
        self.averages.reset()
        self._at_epoch["rng"].value = self._rng.state_dict()
        self._at_epoch["state"].value = deepcopy(self.state.state_dict())
        self._at_epoch["streams"].value = self.streams.state()

    def begin_epoch_again(self) -> None:
        """One that was left in its middle: what it does before its first batch, it does as it did the first time."""
        if not self.arrived:
            if "rng_at_epoch" in self._stored:
                self._at_epoch["rng"].value = self._framework.native(self._stored["rng_at_epoch"])
            self._restore("state_at_epoch", self._at_epoch["state"])
            self._restore("state_at_epoch", self.state)
            self._at_epoch["streams"].value = self._stored.get("streams_at_epoch")
            self.streams.put(self._at_epoch["streams"].value or {})
        self._rng.load_state_dict(self._at_epoch["rng"].value)

    def mark(self) -> None:
        """The training is between two steps."""
        state, averages, streams = self.state, self.averages, self.streams
        if state._values or state._marked:  # most loops use none of them, and this is done in every step
            state.mark()
        if averages._pending or averages._read:
            averages.mark()
        if streams._streams:
            streams.mark()

    def rewind(self) -> str | None:
        """Go back to the last mark, in what `parts` tells; or say why that cannot be, in a clause. Random streams are
        the boundary's, as are buffers."""
        return self.state.rewind() or self.averages.rewind() or self.streams.rewind()

    def _restore(self, part: str, target: Stateful) -> None:
        if part in self._stored:
            self._framework.restore({part: target}, {part: {"kind": "object", "state": self._stored[part]}})


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

"""Exact positions in anything that can be iterated again: sequences by slicing, the rest by replay; and what a loader
that is read in its own order counts by itself: how often it was read, where it stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colabkeep.core.errors import Incompatible, NotStorable, UsageError
from colabkeep.core.state import Stateful, Tree, derive
from colabkeep.frameworks.base import Batch, DataFacts, Inexact, Inspector, LoaderState, Probe, Probed
from colabkeep.frameworks.shared.describe import is_library
from colabkeep.frameworks.shared.samples import NUMPY, Arrays, crc, leading, look_at, own_state, put_own_state
from colabkeep.frameworks.shared.streams import NEUTRAL, Kinds, StreamScope, StreamSet, instance_dict, reachable


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run is: `batches` and `samples` of this `epoch` are consumed."""

    seed: int
    epoch: int
    batches: int
    samples: int


class IterableData:
    """How lists of batches and other re-iterable objects are resumed; knows no framework.

    `kinds` are the random streams to keep apart, `arrays` the array types that batches and states hold,
    `timer` a clock in seconds for the expected time of a replay.
    """

    def __init__(
        self, kinds: Kinds = NEUTRAL, arrays: Arrays = NUMPY, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._kinds = kinds
        self._arrays = arrays
        self._timer = timer

    def open(
        self,
        loader: object,
        *,
        seed: int,
        epoch: int,
        batches: int,
        samples: int,
        state: Tree | None,
        inspector: Inspector | None = None,
    ) -> LoaderState:
        place = Position(seed, epoch, batches, samples)
        refuse_iterators(loader)
        found = self.check(loader, seed=seed, state=state) if state is not None else ()
        if found:
            raise changed(found)
        set_epoch(epoch, loader)
        streams = StreamSet.of(self._kinds, loader)
        if isinstance(loader, Sequence):
            opened = SequenceEpoch(loader, place, None if type(loader) in (list, tuple) else streams)
            if inspector is not None:
                inspector.found(self.look(loader, inspector.probe))
            return opened
        owner = loader if isinstance(loader, Stateful) else None
        readable: Any = loader  # has __iter__ or __getitem__
        source = Source(readable, streams, owner=owner, length=length_of(loader))
        return Replay(source, place, state, self._arrays, self._timer)

    def as_loader(self, data: object, batch_size: int | None) -> object:
        if batch_size is None:
            refuse_iterators(data)
            if length_of(data) == 0:
                raise no_batches(data)
            return data
        raise UsageError(
            problem=f"batch_size={batch_size} is for data sets; a {type(data).__name__} gives batches already.",
            remedy="Leave batch_size out, and set it where the loader is made.",
        )

    def check(self, loader: object, *, seed: int, state: Tree) -> Sequence[str]:
        now: dict[str, Any] = {"kind": "a loader read from its beginning", "seed": seed}
        if isinstance(loader, Sequence):
            now = {"kind": "a sequence of batches", "seed": seed, "batches": len(loader)}
        return differences(state, now)

    def facts(self, loader: object) -> DataFacts:
        sliced = isinstance(loader, Sequence)
        kind = "batches" if sliced else "stream"
        return DataFacts(kind=kind, length=length_of(loader), name=type(loader).__qualname__)

    def counts(self, loader: object, epoch: int) -> Counts | None:
        if isinstance(loader, Sequence):
            return None
        return Counts(loader, epoch, lambda: set_epoch(epoch, loader, getattr(loader, "dataset", None)))

    def look(self, loader: object, probe: Probe) -> Probed:
        return look_at(loader, probe, self._arrays.see, StreamSet.for_a_look(self._kinds, loader))

    def close(self) -> None:
        pass


_PLAIN = (bool, int, float)  # no texts: one that changes may be the token of a sign-in, which no run may hold
_SMALL = 100  # members of a dict that are looked at


class Counts:
    """The numbers of a loader, and of the objects of the user's own classes and the dicts in it, in one
    epoch. Kept are those that change while it is read. What the user's loop sets between two epochs, it sets in a
    resumed session too: what one epoch leaves goes on in the next only if it was seen to do so.

    An object is known by its class and its place among those of that class. `set_epoch` tells the loader the epoch:
    what that sets is right, whatever was left.
    """

    def __init__(self, loader: object, epoch: int, set_epoch: Callable[[], None]) -> None:
        seen: Counter[str] = Counter()
        # The name of each, its own attributes, and those of its class.
        self._objects: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        for each in reachable(loader, code=False):
            kind = type(each)
            inside = each if type(each) is dict and len(each) <= _SMALL else instance_dict(each)
            if inside is each or not is_library(kind.__module__):
                bases = () if inside is each else kind.__mro__[::-1]
                of_class = {name: value for base in bases for name, value in vars(base).items()}
                if inside or any(type(value) in _PLAIN for value in of_class.values()):
                    self._objects.append((f"{kind.__qualname__}[{seen[kind.__qualname__]}]", inside, of_class))
                    seen[kind.__qualname__] += 1
        self._epoch, self._set_epoch = epoch, set_epoch
        self._lasting: set[str] = set()  # what an epoch was seen to begin with as the one before had left it
        self._begun: dict[str, Any] = {}
        self._ended: dict[str, Any] | None = {}  # None: it is being read

    def go_on(self, before: Mapping[str, Any], *, resumed: bool) -> list[str]:
        """Count on from what `tree` returned, of this epoch or the one before it. `resumed`: in an earlier session.
        Returns what goes on though it was not seen yet that it should."""
        begun, ended = before["begin"], before["end"]
        self._lasting = set(before["lasting"])
        if before["epoch"] == self._epoch:
            self._put(begun)
            return []
        if not resumed:
            now = self._now()
            same = {name for name, value in ended.items() if now.get(name) == value}
            self._lasting = self._lasting - ended.keys() | same
            return []
        unseen = ended.keys() if before["epoch"] == 0 else set()
        self._set_epoch()
        made = self._now()
        self._put({name: value for name, value in ended.items() if name in self._lasting or name in unseen})
        self._set_epoch()
        now = self._now()
        return [name for name in unseen if name in made and made[name] != ended[name] == now[name]]

    def begin(self) -> None:
        """It is read from now on."""
        self._begun, self._ended = self._now(), None

    def end(self) -> None:
        """It was read, or left."""
        if self._ended is None:
            self._ended = self._now()

    def tree(self) -> dict[str, Any]:
        """What changed since the epoch began; empty if nothing ever did."""
        end = self._now() if self._ended is None else self._ended
        changed = [name for name, value in self._begun.items() if end.get(name, value) != value]
        if not changed and not self._lasting:
            return {}
        return {
            "epoch": self._epoch,
            "begin": {name: self._begun[name] for name in changed},
            "end": {name: end[name] for name in changed},
            "lasting": sorted(self._lasting),
        }

    def _now(self) -> dict[str, Any]:
        return {
            f"{kind}.{name}": value
            for kind, inside, of_class in self._objects
            for name, value in {**of_class, **inside}.items()
            if type(value) in _PLAIN
        }

    def _put(self, values: Mapping[str, Any]) -> None:
        for kind, inside, of_class in self._objects:
            known = {name: f"{kind}.{name}" for name in {**of_class, **inside}}
            inside.update((name, values[key]) for name, key in known.items() if key in values)


class SequenceEpoch:
    """One pass over a sequence of batches. What drawing its members costs in randomness is seeded by position;
    `streams` is None for one that draws nothing."""

    positional = False
    notes: Sequence[str] = ()

    def __init__(self, batches: Sequence[Any], place: Position, streams: StreamSet | None) -> None:
        self._sequence = batches
        self._place = place
        self._aside = None if streams is None else StreamScope(streams, place.seed)
        self.length: int | None = len(batches)

    def __iter__(self) -> Iterator[Batch]:
        for position in range(self._place.batches, len(self._sequence)):
            value = self._at(position)
            yield Batch(value, leading(value))

    def state(self, batches: int | None = None) -> Tree:
        return {"kind": "a sequence of batches", "seed": self._place.seed, "batches": self.length}

    def close(self) -> None:
        pass

    def _at(self, position: int) -> Any:
        if self._aside is None:
            return self._sequence[position]
        self._aside.restart(derive(self._place.seed, "batch", self._place.epoch, position))
        with self._aside:
            return self._sequence[position]


def _close_generator(iterator: Any) -> None:
    if isinstance(iterator, Generator):
        iterator.close()


@dataclass(frozen=True)
class Source:
    """A loader as a replay sees it.

    `streams` are swapped in while it works; `owner` tells and takes its state, where there is one;
    `stop` ends what the iteration started.
    """

    loader: Iterable[Any]
    streams: StreamSet
    owner: Stateful | None = None
    length: int | None = None
    workers: int = 0
    stop: Callable[[Any], None] = _close_generator


_END = object()


class Replay:
    """One epoch of a source that is read from its beginning, or continues from a state of its own.

    Its random streams start from (seed, epoch) and are its alone. Iterating a resumed one first reads and
    drops the batches that were consumed.

    Raises (when iterated):
        Incompatible: the source ends before the place, or gave another number of samples up to there.
    """

    positional = True

    def __init__(
        self, source: Source, place: Position, state: Tree | None, arrays: Arrays, timer: Callable[[], float]
    ) -> None:
        self._source = source
        self._place = place
        self._stored: Mapping[str, Any] = state or {}
        self._arrays = arrays
        self._timer = timer
        self._aside = StreamScope(source.streams, derive(place.seed, "replay", place.epoch))
        self._owner = source.owner
        self._batches, self._samples, self._crc = 0, 0, 0
        self._iterator: Any = None
        self._counted = True  # is the number of samples known?
        self._seconds = 0.0
        self.length = source.length
        self._noted: list[str] = []
        self.notes: Sequence[str] = self._noted
        if place.batches and not self._continues:
            self.note(self._expectation())
        elif place.batches and source.workers:
            self.note(
                Inexact(
                    "the loader continues from its own state, which does not cover the random streams of its workers: "
                    "the continuation is bit-exact only if they draw nothing"
                )
            )

    @property
    def _continues(self) -> bool:
        return self._owner is not None and "own" in self._stored

    def __iter__(self) -> Iterator[Batch]:
        try:
            self._positioned()
            while (value := self._next()) is not _END:
                yield Batch(value, self._count(value))
        except GeneratorExit:
            self.close()
            raise
        # Not after an error: to end workers may take seconds each, and the last step is to be saved before.
        self.close()

    def state(self, batches: int | None = None) -> Tree:
        state: dict[str, Any] = {
            "kind": "a loader read from its beginning",
            "seed": self._place.seed,
            "read": self._batches,
            "samples": self._samples if self._counted else None,
            "crc": self._crc,
            "seconds": self._seconds / max(1, self._batches),
            "workers": self._source.workers,
        }
        if self._owner is not None and self._aside.begun:
            try:
                state["own"] = own_state(self._owner.state_dict(), self._arrays)
                state["streams"] = own_state(self._aside.take(), self._arrays)
            except NotStorable as error:
                self._owner = None
                self.note(
                    f"The loader's own state cannot be stored ({error.problem}) A resumed epoch reads it again "
                    "from the beginning instead."
                )
                state.pop("own", None)
        return state

    def note(self, *sentences: str) -> None:
        """Tell the user."""
        self._noted.extend(sentences)

    def close(self) -> None:
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            self._source.stop(iterator)

    def _positioned(self) -> None:
        if self._owner is not None and self._continues:
            self._owner.load_state_dict(put_own_state(self._stored["own"], self._arrays))
            with self._aside:
                self._iterator = iter(self._source.loader)
            self._aside.put(put_own_state(self._stored["streams"], self._arrays))
            self._batches, self._crc = self._stored["read"], self._stored["crc"]
            self._samples, self._counted = self._stored["samples"] or 0, self._stored["samples"] is not None
            self._seconds = self._stored["seconds"] * self._batches
            return
        with self._aside:
            self._iterator = iter(self._source.loader)
        self._read_again()

    def _read_again(self) -> None:
        for _ in range(self._place.batches):
            value = self._next()
            if value is _END:
                raise changed([f"batches in the epoch: more than {self._place.batches} → {self._batches}"])
            self._count(value)
        samples = self._stored.get("samples")
        if samples is not None and self._counted and samples != self._samples:
            raise changed([f"samples in the first {self._batches} batches: {samples} → {self._samples}"])
        if not self._place.batches:
            return
        self.note(f"Read {self._batches} batches again in {_duration(self._seconds)}.")
        if self._crc != self._stored.get("crc", self._crc):
            self.note(
                Inexact(
                    "the batches that were read again are not those of the first time, so the continuation is not "
                    "bit-exact: the loader draws from a source of randomness, or of order, that colabkeep cannot see"
                )
            )

    def _next(self) -> Any:
        start = self._timer()
        try:
            with self._aside:
                value = next(self._iterator, _END)
        except BaseException:
            self._owner = None  # it may have moved on, past a batch that nobody got: its state is not that of our place
            raise
        self._seconds += self._timer() - start
        return value

    def _count(self, value: Any) -> int | None:
        samples = leading(value)
        self._batches += 1
        self._crc = crc(value, self._crc, self._arrays)
        self._counted = self._counted and samples is not None
        self._samples += samples or 0
        return samples

    def _expectation(self) -> str:
        seconds = self._stored.get("seconds", 0.0) * self._place.batches
        much = f"{'at least ' if self._source.workers else ''}about {_duration(seconds)}" if seconds else "some time"
        return (
            f"This loader can only be read from its beginning: reading {self._place.batches} batches again "
            f"without training, {much}."
        )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"


def refuse_iterators(loader: object) -> None:
    """Raise for what cannot be read a second time.

    Raises:
        UsageError: `loader` is an iterator, or cannot be iterated at all.
    """
    if isinstance(loader, Iterator):
        raise UsageError(
            problem=f"This loader is a bare iterator ({type(loader).__qualname__}): once read, its batches are gone, "
            "so no epoch can start again or be resumed.",
            remedy="Pass the object it was made from (the list, the DataLoader, …), or a small class whose "
            "__iter__ makes a new iterator each time.",
        )
    refuse_arrays(loader)
    if isinstance(loader, type) or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        kind = f"The class {loader.__qualname__}" if isinstance(loader, type) else f"A {type(loader).__qualname__}"
        raise UsageError(
            problem=f"{kind} is not something to read batches from.",
            remedy="Pass a DataLoader, a list of batches, or an object with __iter__.",
        )


def refuse_arrays(loader: object) -> None:
    """Raise for all inputs and all targets in a tuple, which would be read as two batches.

    Raises:
        UsageError: the remedy is the line that makes a data set of them.
    """
    if not isinstance(loader, tuple) and not (isinstance(loader, list) and len(loader) == 2):
        return
    shapes = [getattr(each, "shape", None) for each in loader]
    if len(loader) < 2 or not all(isinstance(shape, (tuple, list)) and len(shape) for shape in shapes):
        return
    tall = {int(shape[0]) for shape in shapes if shape}
    if len(tall) == 1 and (isinstance(loader, tuple) or len({len(shape) for shape in shapes if shape}) > 1):
        paddle = type(loader[0]).__module__.partition(".")[0] == "paddle"
        made = "paddle.io.TensorDataset([X, Y])" if paddle else "torch.utils.data.TensorDataset(X, Y)"
        raise UsageError(
            problem=f"{len(loader)} arrays of {tall.pop()} samples each are no loader: the first would be read as one "
            "batch, and the next as another.",
            remedy=f"Make a data set of them (arrays of NumPy as tensors first): {made}, in a DataLoader of that "
            "framework with the batch_size and shuffle that you want.",
        )


def no_batches(loader: object) -> UsageError:
    """Why nothing can be trained, or validated, with a loader that gives no batch."""
    size, samples = getattr(loader, "batch_size", None), length_of(getattr(loader, "dataset", None))
    if getattr(loader, "drop_last", False) and samples:
        return UsageError(
            problem=f"The loader gives no batch: its {samples} samples are less than one batch of {size}, and "
            "drop_last=True leaves the rest out.",
            remedy=f"Make batch_size {samples} or less, or drop_last=False.",
        )
    return UsageError(
        problem=f"The loader gives no batch (a {type(loader).__name__}): there is nothing to train on.",
        remedy="Look at what it reads: len(dataset), the folder or file pattern, a filter that leaves nothing.",
    )


def set_epoch(epoch: int, *objects: object) -> None:
    """Tell the epoch to each object that wants to know it."""
    for obj in objects:
        if hasattr(obj, "set_epoch"):
            obj.set_epoch(epoch)


def length_of(obj: Any) -> int | None:
    """`len(obj)`, None where it has none."""
    try:
        return len(obj)
    except (TypeError, RuntimeError, ValueError, OverflowError):  # Paddle's streams raise the middle two
        return None


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line for each thing that both sides know and that differs."""
    if stored.get("kind") != now["kind"]:
        return [f"the training data: {stored.get('kind')} → {now['kind']}"]
    return [f"{name}: {stored[name]} → {now[name]}" for name in now if name in stored and stored[name] != now[name]]


def changed(found: Sequence[str]) -> Incompatible:
    """The error for data that is not that of the checkpoint."""
    return Incompatible(
        problem="The training data is not that of the checkpoint: continuing would show some samples twice and "
        "others not at all.",
        remedy='Bring back the data set, sampler and seed of this run, or start anew with resume="never" or another '
        "run_name.",
        differences=found,
    )

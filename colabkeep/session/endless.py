"""Streams of batches without an end: `run.next` reads a loader again and again, and resumes in the middle of a pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from colabkeep.frameworks.base import Batch, Data, LoaderState
from colabkeep.session.same_data import NEXT, SameData
from colabkeep.vocabulary.errors import UsageError
from colabkeep.vocabulary.seeds import derive
from colabkeep.vocabulary.state import Tree

__all__ = ["Endless"]

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

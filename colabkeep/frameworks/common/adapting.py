"""A user's loader with some attributes replaced: a shallow copy, the original is never touched.

Attributes are put straight into the copy's instance dictionary. That needs no knowledge of a subclass's
constructor and keeps its collate function, timeout, start method and prefetching.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from colabkeep.frameworks.base import Probe, Probed
from colabkeep.frameworks.common.iterables import Place
from colabkeep.frameworks.common.walk import reachable
from colabkeep.vocabulary.errors import UsageError
from colabkeep.vocabulary.state import Stateful

__all__ = ["Adapted", "Route", "refuse_reading", "state_owner", "twin"]

T = TypeVar("T")


class Adapted(Protocol):
    """A map-style loader whose order can be set, epoch after epoch."""

    quiet: bool
    """Loading draws nothing, so that nothing needs a seed."""

    persists: bool
    """Its workers live on between epochs."""

    away: bool
    """Samples are loaded in workers."""

    def begin(self, place: Place, indices: Iterator[Any], *, listed: bool) -> Iterator[Any]:
        """Iterate over the batches of `indices`, in this order. `listed`: the order is known already, so that
        asking for an index draws nothing."""
        ...

    def look(self, probe: Probe) -> Probed:
        """Look at samples in this process."""
        ...

    def probing(self, probe: Probe) -> Any:
        """An index for which a worker gives a `Probed` instead of a batch."""
        ...

    def end(self, iterator: Any) -> None:
        """This iteration is over: stop its workers, unless they persist."""
        ...

    def close(self) -> None:
        """Stop workers that persist."""
        ...


class Route:
    """What stands where the sampler was: the indices of the epoch under way."""

    def __init__(self) -> None:
        self.ahead: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.ahead


def twin(obj: T, kind: type[Any], replaced: dict[str, Any]) -> T:
    """A shallow copy with other attributes, made without calling any constructor, setter or copy hook."""
    copy: T = object.__new__(kind)
    copy.__dict__.update(vars(obj), **replaced)
    return copy


def refuse_reading(loader: Any, library: str) -> None:
    """Raise for a loader with an iterator of its `library` in it.

    Raises:
        UsageError: the loader started to read when it was built.
    """
    if any(name != "_iterator" and _reading(value, library) for name, value in vars(loader).items()):
        raise UsageError(
            problem=f"A {type(loader).__qualname__} starts reading when it is built, so the order of its batches "
            "cannot be repeated and an epoch cannot be resumed.",
            remedy=f"Use {library}.DataLoader with persistent_workers=True: its workers persist as well.",
        )


def _reading(value: object, library: str) -> bool:
    return isinstance(value, Iterator) and type(value).__module__.startswith(f"{library}.")


_FORGETFUL = "BufferShuffledExamplesIterable"
"""Of Hugging Face: its state leaves out what its shuffle buffer holds, so those samples would never be seen."""


def state_owner(loader: Any) -> Stateful | None:
    """Who tells and takes the position of a loader that is read in its own order: itself, its data set, or nobody."""
    if any(type(obj).__name__ == _FORGETFUL for obj in reachable(loader.dataset)):
        return None
    if isinstance(loader, Stateful):
        return loader
    dataset = loader.dataset
    return dataset if isinstance(dataset, Stateful) and loader.num_workers == 0 else None

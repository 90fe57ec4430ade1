"""How a framework's own data loaders are ordered, seeded and resumed, beside everything else that can be iterated.

A map-style loader is positioned by slicing the listed order of its sampler: nothing is loaded twice. Iterable
data sets and loaders with an `__iter__` of their own continue from a state of their own, or are read again from
the beginning of the epoch.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from colabkeep.frameworks.base import DataFacts, Inspector, LoaderState, Probe, Probed
from colabkeep.frameworks.common.adapting import Adapted
from colabkeep.frameworks.common.batches import Arrays
from colabkeep.frameworks.common.epoch import MapEpoch, all_facts, fixed_facts
from colabkeep.frameworks.common.iterables import (
    IterableData,
    Place,
    Replay,
    Source,
    changed,
    differences,
    length_of,
    no_batches,
    set_epoch,
)
from colabkeep.frameworks.common.order import Order, Sampling, subsets
from colabkeep.frameworks.common.streams import Kinds
from colabkeep.vocabulary.state import Tree

__all__ = ["LoaderData", "Loaders"]

_BATCH = 32  # samples, where a data set is handed in and nothing is said


class Loaders(Protocol):
    """What a framework knows about its loaders. `Any` below is one of them, but for `owns` and `is_dataset`."""

    kinds: Kinds
    arrays: Arrays

    def owns(self, loader: Any) -> bool:
        """Is this a loader of the framework?"""
        ...

    def is_dataset(self, data: Any) -> bool:
        """Is this a data set of the framework, which gives samples rather than batches?"""
        ...

    def of_batches(self, dataset: Any, batch_size: int) -> object:
        """A loader over it: shuffled, unless it is a stream."""
        ...

    def map_style(self, loader: Any) -> bool:
        """Does it load the items its sampler names, in the framework's own way?"""
        ...

    def sampling(self, loader: Any) -> Sampling:
        """Where the indices of a map-style loader come from."""
        ...

    def order(self, loader: Any, place: Place, *, whole: bool) -> Order:
        """What its sampler gives from a place on. `whole`: listed, however long, if it ends."""
        ...

    def listeners(self, loader: Any) -> Iterable[object]:
        """Who may want to know the epoch."""
        ...

    def adapted(self, loader: Any, epoch: int) -> Adapted:
        """A copy of a map-style loader whose order can be set."""
        ...

    def alone(self, loader: Any) -> Any:
        """A copy of a map-style loader with one worker, if it has workers, that ends with the epoch."""
        ...

    def replayed(self, loader: Any, place: Place, workers: int) -> Source:
        """A copy of any other loader, for one epoch that starts as the user handed it over."""
        ...

    def before(self, loader: Any) -> Sequence[str]:
        """What has to be done or refused before it is opened; sentences for the user."""
        ...


class LoaderData:
    """The `Data` promise for a framework's loaders of any kind, and for anything else that can be iterated again.

    A loader with persistent workers is adapted once, so that its workers persist; others anew for each epoch.
    """

    def __init__(self, loaders: Loaders) -> None:
        self._loaders = loaders
        self._others = IterableData(loaders.kinds, loaders.arrays)
        self._kept: dict[int, Adapted] = {}

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
        if not self._loaders.owns(loader):
            return self._others.open(
                loader, seed=seed, epoch=epoch, batches=batches, samples=samples, state=state, inspector=inspector
            )
        told = self._loaders.before(loader)
        found = [] if state is None else self.check(loader, seed=seed, state=state)
        if found:
            raise changed(found)
        place = Place(seed, epoch, batches, samples)
        set_epoch(epoch, *self._loaders.listeners(loader))
        mapped = self._loaders.map_style(loader)
        epoch_of = self._map(loader, place, state, inspector) if mapped else self._replay(loader, place, state)
        epoch_of.note(*told)
        return epoch_of

    def as_loader(self, data: object, batch_size: int | None) -> object:
        """Things of one sample each are batched if the framework calls them a data set, or a `batch_size` says so."""
        if self._loaders.owns(data) or (batch_size is None and not self._loaders.is_dataset(data)):
            return self._others.as_loader(data, batch_size)
        if length_of(data) == 0:
            raise no_batches(data)
        return self._loaders.of_batches(data, _BATCH if batch_size is None else batch_size)

    def check(self, loader: Any, *, seed: int, state: Tree) -> Sequence[str]:
        if self._loaders.owns(loader) and self._loaders.map_style(loader):
            return differences(state, fixed_facts(loader.dataset, self._loaders.sampling(loader), seed))
        return self._others.check(loader, seed=seed, state=state)

    def facts(self, loader: Any) -> DataFacts:
        if not self._loaders.owns(loader):
            return self._others.facts(loader)
        dataset = loader.dataset
        kind = "samples" if self._loaders.map_style(loader) else "stream"
        return DataFacts(
            kind=kind, length=length_of(dataset), name=type(dataset).__qualname__, subsets=tuple(subsets(dataset))
        )

    def look(self, loader: Any, probe: Probe) -> Probed:
        if not self._loaders.owns(loader):
            return self._others.look(loader, probe)
        adapted = self._loaders.adapted(self._loaders.alone(loader), 0)
        if not adapted.away:
            return adapted.look(probe)
        iterator = adapted.begin(Place(probe.seed, 0, 0, 0), iter([adapted.probing(probe)]), listed=True)
        try:
            probed: Probed = next(iterator)
        finally:
            adapted.end(iterator)
        return probed

    def close(self) -> None:
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()

    def _map(self, loader: Any, place: Place, state: Tree | None, inspector: Inspector | None) -> MapEpoch:
        sampling = self._loaders.sampling(loader)
        # A session before this rule listed every order that ends: its hash is of the whole.
        order = self._loaders.order(loader, place, whole=state is not None and "followed" not in state)
        facts = all_facts(loader.dataset, sampling, place.seed)
        adapted = self._adapted(loader, place.epoch)
        return MapEpoch(adapted, order, place, facts, state, bare=sampling.bare, inspector=inspector)

    def _adapted(self, loader: Any, epoch: int) -> Adapted:
        kept = self._kept.get(id(loader))
        if kept is not None:
            return kept
        adapted = self._loaders.adapted(loader, epoch)
        if adapted.persists:
            self._kept[id(loader)] = adapted
            # When the user lets go of the loader, its workers go too, as they would without us.
            weakref.finalize(loader, self._let_go, id(loader)).atexit = False
        return adapted

    def _let_go(self, key: int) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.close()

    def _replay(self, loader: Any, place: Place, state: Tree | None) -> Replay:
        workers = loader.num_workers if state is None else state["workers"]
        replay = self._others.replay(self._loaders.replayed(loader, place, workers), place, state)
        if workers != loader.num_workers:
            replay.note(
                f"The rest of this epoch is read with num_workers={workers}, as it began; "
                f"num_workers={loader.num_workers} counts from the next one on."
            )
        return replay

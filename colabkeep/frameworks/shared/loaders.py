"""How a framework's own data loaders are adapted, ordered, seeded and resumed: one epoch of a map-style loader from
any batch on, and everything else that can be iterated.
"""

from __future__ import annotations

import itertools
import weakref
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from colabkeep.core.errors import UsageError
from colabkeep.core.state import Stateful, Tree, derive, derive_each
from colabkeep.frameworks.base import Batch, DataFacts, Inspector, LoaderState, Probe, Probed, Resized
from colabkeep.frameworks.shared.iterables import (
    Counts,
    IterableData,
    Position,
    Replay,
    Source,
    changed,
    differences,
    length_of,
    no_batches,
    set_epoch,
)
from colabkeep.frameworks.shared.samples import Arrays, leading
from colabkeep.frameworks.shared.streams import Kinds, StreamScope, StreamSet, instance_dict, reachable
from colabkeep.frameworks.shared.training import part
from colabkeep.frameworks.shared.workers import WorkerPayload, probing, tag

# Attributes are put straight into the copy's instance dictionary. That needs no knowledge of a subclass's constructor
# and keeps its collate function, timeout, start method and prefetching.


T = TypeVar("T")


class Adapted:
    """A map-style loader whose order can be set, epoch after epoch.

    `quiet`: loading draws nothing, so that nothing needs a seed; `persists`: its workers live on between epochs;
    `away`: samples are loaded in workers.
    """

    quiet: bool
    persists: bool
    away: bool

    def __init__(self, payload: WorkerPayload, arrays: Arrays) -> None:
        self._payload = payload
        self._arrays = arrays

    def begin(self, place: Position, indices: Iterator[Any]) -> Iterator[Any]:
        """Iterate over the batches of `indices`, in this order."""
        raise NotImplementedError

    def look(self, probe: Probe) -> Probed:
        """Look at samples in this process."""
        return self._payload.look(probe, self._arrays.see, here=True)

    def probing(self, probe: Probe) -> Any:
        """An index for which a worker gives a `Probed` instead of a batch."""
        return probing(probe, self._arrays.see)

    def end(self, iterator: Any) -> None:
        """This iteration is over: stop its workers, unless they persist."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop workers that persist."""
        raise NotImplementedError


class IndexFeed:
    """What stands where the sampler was: the indices of the epoch under way."""

    def __init__(self) -> None:
        self.ahead: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.ahead


def shallow_copy(obj: T, kind: type[Any], replaced: dict[str, Any]) -> T:
    """A shallow copy with other attributes, made without calling any constructor, setter or copy hook."""
    copied: T = object.__new__(kind)
    copied.__dict__.update(vars(obj), **replaced)
    return copied


def fresh_copy(dataset: T) -> T:
    """A shallow copy. One that tells its state fills and empties lists and the like of its own."""
    held = vars(dataset).items() if isinstance(dataset, Stateful) else ()
    own = {name: copy(value) for name, value in held if type(value) in (list, dict, set, deque)}
    return shallow_copy(dataset, type(dataset), own)


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


_LISTED = 1 << 24
"""Indices that are listed at most: 128 MiB as machine integers. As Python's they take 54 bytes each (measured)."""
_CHUNK = 1 << 12  # indices, or batches of them, looked at in one go
_REMEMBERED = 4096  # batches back from the newest, whose digest is still known: 2 MB


@dataclass(frozen=True, slots=True)
class Sampling:
    """Where a map-style loader's indices come from.

    `cut` is (batch size, drop_last) where batches are nothing but pieces of the sampler's order. Without it the
    sampler gives whole batches or, with `whole_batches=False`, one item at a time.
    """

    sampler: Any
    cut: tuple[int, bool] | None = None
    whole_batches: bool = False

    @property
    def bare(self) -> bool:
        """Does the loader give single items instead of batches?"""
        return self.cut is None and not self.whole_batches


class Order:
    """What the sampler of a map-style loader gives in one epoch, from a place in it on.

    One of samples (`cut` is set) can be cut differently from any sample on. Any other is one of whole batches or
    items. A sampler that does not end where its length says, has none, or names very many indices (unless `whole`), is
    followed as it goes instead of listed; `listed` is None then, and the digest covers what was consumed so far.
    """

    def __init__(self, sampling: Sampling, place: Position, kinds: Kinds, *, whole: bool = False) -> None:
        self.cut, self.bare = sampling.cut, sampling.bare
        self._whole_batches = sampling.whole_batches
        self._place = place
        self._skip = place.batches if self.cut is None else place.samples
        self._hash = blake2b(digest_size=16)
        self._digests = deque([(place.batches, self._hash)], _REMEMBERED)
        self._aside = StreamScope(StreamSet.of(kinds, sampling.sampler), derive(place.seed, "order", place.epoch))
        self.listed = self._listed(sampling.sampler, whole)
        if self.listed is None:
            for start in range(0, self._skip, _CHUNK):
                self._feed(self._take(min(_CHUNK, self._skip - start)))
        elif isinstance(self.listed, range) and not whole and len(self.listed) > _LISTED:
            self._hash.update(repr(self.listed).encode())
        else:
            self._feed(self.listed)

    @property
    def length(self) -> int | None:
        """Batches in the whole epoch; those consumed count with the size they had."""
        if self.listed is None or self.cut is None:
            return None if self.listed is None else len(self.listed)
        size, drop_last = self.cut
        left = max(0, len(self.listed) - self._skip)
        return self._place.batches + (left // size if drop_last else -(-left // size))

    def digest(self, batches: int | None = None) -> str | None:
        """A hash of the whole order. Of one that is followed as it goes: of what was consumed, or of the first
        `batches` batches of it; None if that is too long ago to be known."""
        if self.listed is not None or batches is None:
            return self._hash.hexdigest()
        return next((known.hexdigest() for count, known in reversed(self._digests) if count == batches), None)

    def remaining(self) -> Iterator[Any]:
        """The index lists behind the place (with `batch_size=None`: the indices). Called once."""
        size, drop_last = self.cut or (1, False)
        at = self._skip
        while piece := self._take(size) if self.listed is None else list(self.listed[at : at + size]):
            at += size
            if self.cut is None:
                yield piece[0]
            elif len(piece) == size or not drop_last:
                yield piece

    def consumed(self, index: Any) -> None:
        """This index list was consumed (of an order that is followed as it goes)."""
        if self.listed is None:
            count, before = self._digests[-1]
            self._hash = before.copy()
            self._feed([index] if self.cut is None else index)
            self._digests.append((count + 1, self._hash))

    def _listed(self, source: Any, whole: bool) -> Sequence[Any] | None:
        """All that the sampler gives, if it ends where its length says and that is not too much."""
        limit = length_of(source)
        with self._aside:
            self._iterator = iter(source)
            straight = _range(self._iterator)
            if straight is not None and (limit is None or len(straight) <= limit):
                return straight
            if limit is None or (limit > _LISTED and not whole):
                return None
            head = _read(self._iterator, limit + 1)
        if len(head) <= limit:
            return head
        self._iterator = chain(head, self._iterator)
        return None

    def _take(self, count: int) -> list[Any]:
        with self._aside:
            return list(islice(self._iterator, count))

    def _feed(self, items: Iterable[Any]) -> None:
        if self._whole_batches:
            for batch in items:
                _feed(self._hash, [len(batch), *batch])
        else:
            _feed(self._hash, items)


def subsets(dataset: Any) -> Iterator[tuple[int, str]]:
    """For each subset within a data set, however wrapped: how many indices it has, and a hash of them."""
    for inside in map(instance_dict, reachable(dataset, code=False)):
        indices: Any = inside.get("indices") if "dataset" in inside else None  # torch's Subset, Paddle's, their likes
        if length_of(indices) is None or isinstance(indices, (str, bytes, bytearray)):
            continue
        try:
            packed = array("q", indices.tolist() if hasattr(indices, "tolist") else indices)
        except (TypeError, OverflowError):  # no whole numbers: of a data set that means something else by it
            continue
        yield len(packed), blake2b(packed, digest_size=8).hexdigest()


def _read(iterator: Iterator[Any], limit: int) -> list[Any] | array[int]:
    """Up to `limit` members; as machine integers if they are integers, since they have to stay for the epoch."""
    packed: array[int] = array("q")
    while chunk := list(islice(iterator, min(_CHUNK, limit - len(packed)))):
        try:
            words = array("q", chunk if set(map(type, chunk)) == {int} else ())
        except OverflowError:  # more than 64 bits
            words = array("q")
        if not words:
            return [*packed, *chunk, *islice(iterator, limit - len(packed) - len(chunk))]
        packed += words
    return packed


def _range(iterator: Iterator[Any]) -> range | None:
    """The range that is counted through, by a sampler that does nothing else, as those without a shuffle do."""
    if type(iterator) is not type(iter(range(0))):
        return None
    reduced: Any = iterator.__reduce__()  # (iter, (range,), position)
    return None if reduced[2] else reduced[1][0]


def _feed(digest: Any, items: Iterable[Any]) -> None:
    """Hash integers fast (1 M in 30 ms), anything else by its text, as far as that is the same in every process."""
    if isinstance(items, array):
        digest.update(items)
        return
    if isinstance(items, range):
        for start in range(0, len(items), _CHUNK):
            digest.update(array("q", items[start : start + _CHUNK]))
        return
    listed = list(items)
    try:
        digest.update(array("q", listed))
    except (TypeError, OverflowError):
        for item in listed:
            text = repr(item)
            digest.update((type(item).__qualname__ if " at 0x" in text else text).encode() + b"\x1f")


class MapEpoch:
    """The batches behind a place in the epoch's order. The loop's own random streams do not move.

    `facts` are those of `all_facts`, `state` what a session before told. `share`: what of each batch is loaded here;
    None: all. `inspector`: as in `Data.open`.
    """

    def __init__(
        self,
        adapted: Adapted,
        order: Order,
        place: Position,
        facts: Mapping[str, Any],
        state: Mapping[str, Any] | None,
        *,
        share: Share | None = None,
        inspector: Inspector | None = None,
    ) -> None:
        if state is not None and state["order"] not in (None, order.digest()):
            raise changed([_other_order(state, facts)])
        self.length = order.length
        self.positional = False  # the digest of an order that is followed is known for the last boundary, too
        self._followed = order.listed is None
        self.notes: Sequence[str] = tuple(_notes(state or facts, facts))
        self._adapted = adapted
        self._order = order
        self._place = place
        self._facts = facts
        self._share = share
        self._inspector = inspector
        self._ahead: deque[Any] = deque()  # indices handed to the loader, whose batches did not come out yet
        self._iterator: Any = None

    def __iter__(self) -> Iterator[Batch]:
        ahead, bare, followed, share = self._ahead, self._order.bare, self._followed, self._share
        indices = self._indices()
        if self._inspector is not None:
            indices = self._inspected(self._inspector, indices)
        self._iterator = self._adapted.begin(self._place, indices)
        try:
            if self._inspector is not None and self._adapted.away:
                self._inspector.found(next(self._iterator))
            for value in self._iterator:
                index = ahead.popleft()
                if followed:
                    self._order.consumed(index)
                samples = leading(value) if bare and not isinstance(index, (list, tuple)) else len(index)
                yield Batch(value, samples, None if share is None else share.own(len(index)))
        except GeneratorExit:
            self.close()
            raise
        # Not after an error: to end workers may take seconds each, and the last step is to be saved before.
        self.close()

    def state(self, batches: int | None = None) -> Tree:
        return {**self._facts, "order": self._order.digest(batches), "followed": self._followed}

    def note(self, *sentences: str) -> None:
        """Tell the user."""
        self.notes = (*self.notes, *sentences)

    def close(self) -> None:
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            self._adapted.end(iterator)

    def _inspected(self, inspector: Inspector, indices: Iterator[Any]) -> Iterator[Any]:
        """Let it see its samples: in the worker that gets the first index, or here and now."""
        if self._adapted.away:
            return chain([self._adapted.probing(inspector.probe)], indices)
        inspector.found(self._adapted.look(inspector.probe))
        return indices

    def _indices(self) -> Iterator[Any]:
        place, ahead, share = self._place, self._ahead, self._share
        quiet, epoch = self._adapted.quiet, place.epoch
        own = place.seed if share is None or not share.rank else derive(place.seed, "rank", share.rank)
        seeds = itertools.repeat(0) if quiet else derive_each(own, "batch", epoch, start=place.batches)
        for index, seed in zip(self._order.remaining(), seeds, strict=False):
            ahead.append(index)
            mine = index if share is None else share.of(index)
            yield mine if quiet else tag(seed, epoch, mine)


class Share(NamedTuple):
    """What one of several processes takes of each batch: its samples in `ranks` equal pieces, in order."""

    rank: int
    ranks: int

    def bounds(self, samples: int) -> tuple[int, int]:
        """From which sample to which (exclusive)."""
        return samples * self.rank // self.ranks, samples * (self.rank + 1) // self.ranks

    def own(self, samples: int) -> int:
        """How many of so many samples it counts."""
        begin, end = self.bounds(samples)
        return end - begin

    def held(self, samples: int) -> tuple[int, int]:
        """As `bounds`; of too few for all, one that another process counts: nothing can be computed of none."""
        begin, end = self.bounds(samples)
        return (begin, end) if begin < end else (min(begin, samples - 1), min(begin, samples - 1) + 1)

    def of(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Those that it loads, of the indices of a batch."""
        begin, end = self.held(len(indices))
        return indices[begin:end]


class SharedEpoch:
    """An epoch whose batches come whole, in each of several processes, and are cut here."""

    def __init__(self, whole: LoaderState, share: Share) -> None:
        self._whole, self._share = whole, share
        self.length, self.positional = whole.length, whole.positional

    @property
    def notes(self) -> Sequence[str]:
        return self._whole.notes

    def __iter__(self) -> Iterator[Batch]:
        share = self._share
        for value, samples, _ in self._whole:
            if not samples:
                raise UsageError(
                    problem=f"Several processes share each batch along its samples, and this {type(value).__name__} "
                    "does not show how many it has.",
                    remedy="Have the loader give tensors whose first dimension is the samples, in tuples, lists or "
                    "dicts; or train in one process.",
                )
            yield Batch(part(value, samples, *share.held(samples), shared=True), samples, share.own(samples))

    def state(self, batches: int | None = None) -> Tree:
        return self._whole.state(batches)

    def close(self) -> None:
        self._whole.close()


def fixed_facts(dataset: Any, sampling: Sampling, seed: int) -> dict[str, Any]:
    """What must not differ between the sessions of one run, and is known without drawing."""
    facts = {"kind": "a map-style DataLoader", "seed": seed, "data set length": length_of(dataset)}
    if sampling.cut is not None:
        facts["samples in an epoch"] = length_of(sampling.sampler)
    return {**facts, "sampler": type(sampling.sampler).__qualname__}


def all_facts(dataset: Any, sampling: Sampling, seed: int) -> dict[str, Any]:
    """These, and what may differ at a price."""
    size, drop_last = sampling.cut or (None, False)
    return {**fixed_facts(dataset, sampling, seed), "batch size": size, "drop_last": drop_last}


def _notes(stored: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in ("batch size", "drop_last"):
        if stored[name] != now[name]:
            yield Resized(
                f"{name} {stored[name]} → {now[name]} in the middle of an epoch: each sample is still seen once, but "
                "the weights will not be those of an uninterrupted run."
            )


def _other_order(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if stored["sampler"] != now["sampler"]:
        return f"the sampler, and with it the order: {stored['sampler']} → {now['sampler']}"
    line = f"the order of the samples: the {now['sampler']} was built, seeded or weighted differently"
    if now["sampler"] == "SeedableRandomSampler":  # of Accelerate: made of the seed that torch had when it was prepared
        return f"{line}: call accelerate.utils.set_seed(0) before accelerator.prepare(loader), in each session"
    return line


# A map-style loader is positioned by slicing the listed order of its sampler: nothing is loaded twice. Iterable data
# sets and loaders with an `__iter__` of their own continue from a state of their own, or are read again from the
# beginning of the epoch.


_BATCH = 32  # samples, where a data set is handed in and nothing is said


class LoaderData(IterableData):
    """The `Data` promise for a framework's loaders of any kind, and for anything else that can be iterated again.

    A loader with persistent workers is adapted once, so that its workers persist; others anew for each epoch. What is
    the framework's own is below `close`, and the types: of its loaders, data sets and streams; `Any` is one of its
    loaders.
    """

    kinds: Kinds
    arrays: Arrays
    loader: type[Any]
    dataset: type[Any]
    stream: type[Any]

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        super().__init__(self.kinds, self.arrays)
        self._kept: dict[int, Adapted] = {}
        self._share = Share(rank, ranks) if ranks > 1 else None

    def open(
        self,
        loader: Any,
        *,
        seed: int,
        epoch: int,
        batches: int,
        samples: int,
        state: Tree | None,
        inspector: Inspector | None = None,
    ) -> LoaderState:
        if not isinstance(loader, self.loader):
            opened = super().open(
                loader, seed=seed, epoch=epoch, batches=batches, samples=samples, state=state, inspector=inspector
            )
            return opened if self._share is None else SharedEpoch(opened, self._share)
        told = self.before(loader)
        found = [] if state is None else self.check(loader, seed=seed, state=state)
        if found:
            raise changed(found)
        place = Position(seed, epoch, batches, samples)
        inner = getattr(loader.batch_sampler, "sampler", None)
        set_epoch(epoch, getattr(loader, "sampler", None), loader.batch_sampler, inner, loader.dataset, loader)
        mapped = self.map_style(loader)
        epoch_of = self._map(loader, place, state, inspector) if mapped else self._replay(loader, place, state)
        epoch_of.note(*told)
        whole = self._share is not None and (not mapped or self.sampling(loader).bare)
        return SharedEpoch(epoch_of, self._share) if self._share is not None and whole else epoch_of

    def as_loader(self, data: object, batch_size: int | None) -> object:
        """Things of one sample each are batched if the framework calls them a data set, or a `batch_size` says so."""
        if isinstance(data, self.loader) or (batch_size is None and not isinstance(data, self.dataset)):
            return super().as_loader(data, batch_size)
        if length_of(data) == 0:
            raise no_batches(data)
        return self.loader(data, batch_size=batch_size or _BATCH, shuffle=not isinstance(data, self.stream))

    def check(self, loader: Any, *, seed: int, state: Tree) -> Sequence[str]:
        if isinstance(loader, self.loader) and self.map_style(loader):
            return differences(state, fixed_facts(loader.dataset, self.sampling(loader), seed))
        return super().check(loader, seed=seed, state=state)

    def facts(self, loader: Any) -> DataFacts:
        if not isinstance(loader, self.loader):
            return super().facts(loader)
        dataset = loader.dataset
        kind = "samples" if self.map_style(loader) else "stream"
        return DataFacts(
            kind=kind,
            length=length_of(dataset),
            name=type(dataset).__qualname__,
            subsets=tuple(subsets(dataset)),
            batch=getattr(loader, "batch_size", None),
        )

    def counts(self, loader: Any, epoch: int) -> Counts | None:
        by_order = isinstance(loader, self.loader) and self.map_style(loader)
        return None if by_order else super().counts(loader, epoch)

    def look(self, loader: Any, probe: Probe) -> Probed:
        if not isinstance(loader, self.loader):
            return super().look(loader, probe)
        adapted = self.adapted(self.alone(loader), 0)
        if not adapted.away:
            return adapted.look(probe)
        iterator = adapted.begin(Position(probe.seed, 0, 0, 0), iter([adapted.probing(probe)]))
        try:
            probed: Probed = next(iterator)
        finally:
            adapted.end(iterator)
        return probed

    def close(self) -> None:
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()

    def map_style(self, loader: Any) -> bool:
        """Does it load the items its sampler names, in the framework's own way?"""
        raise NotImplementedError

    def sampling(self, loader: Any) -> Sampling:
        """Where the indices of a map-style loader come from."""
        raise NotImplementedError

    def order(self, loader: Any, place: Position, *, whole: bool) -> Order:
        """What its sampler gives from a place on. `whole`: listed, however long, if it ends."""
        return Order(self.sampling(loader), place, self.kinds, whole=whole)

    def adapted(self, loader: Any, epoch: int) -> Adapted:
        """A copy of a map-style loader whose order can be set."""
        raise NotImplementedError

    def alone(self, loader: Any) -> Any:
        """A copy of a map-style loader with one worker, if it has workers, that ends with the epoch."""
        raise NotImplementedError

    def replayed(self, loader: Any, place: Position, workers: int) -> Source:
        """A copy of any other loader, for one epoch that starts as the user handed it over. Its workers do not persist:
        they would carry randomness from epoch to epoch.

        Raises:
            UsageError: the loader started to read when it was built.
        """
        raise NotImplementedError

    def before(self, loader: Any) -> Sequence[str]:
        """What has to be done or refused before it is opened; sentences for the user."""
        raise NotImplementedError

    def _map(self, loader: Any, place: Position, state: Tree | None, inspector: Inspector | None) -> MapEpoch:
        sampling = self.sampling(loader)
        # A session before this rule listed every order that ends: its hash is of the whole.
        order = self.order(loader, place, whole=state is not None and "followed" not in state)
        facts = all_facts(loader.dataset, sampling, place.seed)
        adapted, share = self._adapt(loader, place.epoch), None if sampling.bare else self._share
        return MapEpoch(adapted, order, place, facts, state, share=share, inspector=inspector)

    def _adapt(self, loader: Any, epoch: int) -> Adapted:
        kept = self._kept.get(id(loader))
        if kept is not None:
            return kept
        adapted = self.adapted(loader, epoch)
        if adapted.persists:
            self._kept[id(loader)] = adapted
            # When the user lets go of the loader, its workers go too, as they would without us.
            weakref.finalize(loader, self._let_go, id(loader)).atexit = False
        return adapted

    def _let_go(self, key: int) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.close()

    def _replay(self, loader: Any, place: Position, state: Tree | None) -> Replay:
        workers = loader.num_workers if state is None else state["workers"]
        replay = Replay(self.replayed(loader, place, workers), place, state, self._arrays, self._timer)
        if workers != loader.num_workers:
            replay.note(
                f"The rest of this epoch is read with num_workers={workers}, as it began; "
                f"num_workers={loader.num_workers} counts from the next one on."
            )
        return replay

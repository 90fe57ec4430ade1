"""One epoch of a map-style loader, from any batch on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from colabkeep.frameworks.base import Batch, Inspector, Resized
from colabkeep.frameworks.common.adapting import Adapted
from colabkeep.frameworks.common.batches import leading
from colabkeep.frameworks.common.cargo import tag
from colabkeep.frameworks.common.iterables import Place, changed, length_of
from colabkeep.frameworks.common.order import Order, Sampling
from colabkeep.vocabulary.seeds import derive_each
from colabkeep.vocabulary.state import Tree

__all__ = ["MapEpoch", "all_facts", "fixed_facts"]


class MapEpoch:
    """The batches behind a place in the epoch's order. The loop's own random streams do not move.

    `facts` are those of `all_facts`, `state` what a session before told, `bare` says that the loader gives single
    items. `inspector`: as in `Data.open`.
    """

    def __init__(
        self,
        adapted: Adapted,
        order: Order,
        place: Place,
        facts: Mapping[str, Any],
        state: Mapping[str, Any] | None,
        *,
        bare: bool,
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
        self._bare = bare
        self._inspector = inspector
        self._ahead: deque[Any] = deque()  # indices handed to the loader, whose batches did not come out yet
        self._iterator: Any = None

    def __iter__(self) -> Iterator[Batch]:
        ahead, bare, followed = self._ahead, self._bare, self._followed
        indices = self._indices()
        if self._inspector is not None:
            indices = self._inspected(self._inspector, indices)
        self._iterator = self._adapted.begin(self._place, indices, listed=not followed)
        try:
            if self._inspector is not None and self._adapted.away:
                self._inspector.found(next(self._iterator))
            for value in self._iterator:
                index = ahead.popleft()
                if followed:
                    self._order.consumed(index)
                yield Batch(value, leading(value) if bare and not isinstance(index, (list, tuple)) else len(index))
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
        place, ahead = self._place, self._ahead
        if self._adapted.quiet:
            for index in self._order.remaining():
                ahead.append(index)
                yield index
        else:
            seeds = derive_each(place.seed, "batch", place.epoch, start=place.batches)
            for index, seed in zip(self._order.remaining(), seeds, strict=False):
                ahead.append(index)
                yield tag(seed, place.epoch, index)


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

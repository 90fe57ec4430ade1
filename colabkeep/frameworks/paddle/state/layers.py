"""Layers: their parameters and buffers of both kinds, out.

The tree of a layer is {"kind": "module", "weights", "transient"}. `weights` has the names and order of the bare
layer's `state_dict()`; a tied tensor is there under each name, as one object. `transient` are the
non-persistable buffers (None where a buffer is None). A buffer without data yet is in neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from paddle import nn

from colabkeep.frameworks.common.shelf import Shelf
from colabkeep.frameworks.paddle.state.copies import Copies
from colabkeep.frameworks.paddle.state.leaves import refuse_dataless
from colabkeep.frameworks.paddle.state.places import Place, Places, held_by, is_frozen
from colabkeep.frameworks.paddle.state.staging import Slot
from colabkeep.frameworks.paddle.state.tensors import Entry, Recall, Tensors
from colabkeep.vocabulary.state import Tree

__all__ = ["LayerRecorder"]


class LayerRecorder:
    """Captures one layer. It plans once, and checks cheaply that the plan still holds.

    Raises:
        NotStorable: a tensor of the layer has no data, or no form that can be kept.
    """

    def __init__(self, part: str, layer: nn.Layer, recall: Recall) -> None:
        self.part = part
        self.target = layer
        self._recall = recall
        self._shelf: Shelf[Slot] = Shelf()
        self._plan = self._new_plan()

    def refresh(self) -> bool:
        """Plan anew if the layer changed since. True when so."""
        if self._plan.holds():
            return False
        self._plan = self._new_plan()
        return True

    def slots(self) -> Sequence[Slot]:
        """The slots of the plan."""
        return self._plan.tensors.slots

    def parameters(self) -> Iterator[tuple[str, Any]]:
        """Each parameter, under each of its names."""
        return self._plan.places.parameters()

    def record(self, copies: Copies) -> Tree:
        """The layer's tree; its tensors are filled when `copies` runs. After `refresh`."""
        plan = self._plan
        copies.take(plan.tensors)
        return {"kind": "module", "weights": plan.weights, "transient": plan.transient}

    def _new_plan(self) -> _Plan:
        places = Places(self.target)
        places.refuse_hidden(self.part)
        self._shelf.turn()
        plan = _Plan(places, self._slot, self._recall)
        self._shelf.sweep()
        return plan

    def _slot(self, place: Place) -> Slot:
        refuse_dataless(place.tensor, f"{self.part}.{place.name}")
        frozen = is_frozen(place)
        slot = self._shelf.take(place.name)
        if slot is None or not slot.fits(place.tensor):
            slot = Slot(place.tensor, frozen=frozen, lasting=True)
        elif slot.host.frozen != frozen:
            slot.show(frozen=frozen)
        return self._shelf.keep(place.name, slot)


class _Plan:
    """What a capture of a layer does, as long as its tensors are the same objects."""

    def __init__(self, places: Places, slot_for: Callable[[Place], Slot], recall: Recall) -> None:
        self.places = places
        self.weights: dict[str, Tree] = {}
        self.transient: dict[str, Tree] = {}
        entries: dict[int, Entry] = {}  # by tensor: a tied one has one slot
        self._unfilled = [place for place in places.places if place.tensor is not None and held_by(place) is None]
        for place in places.places:
            tensor = held_by(place)
            if tensor is None:
                if not place.kept and place.tensor is None:
                    self.transient[place.name] = None
                continue
            if id(tensor) not in entries:
                entries[id(tensor)] = Entry(tensor, slot_for(place))
            entries[id(tensor)].show(self.weights if place.kept else self.transient, place.name)
        self.tensors = Tensors(list(entries.values()), recall)

    def holds(self) -> bool:
        """Is the layer still the one that was planned for?"""
        filled = any(held_by(place) is not None for place in self._unfilled)
        return self.places.unchanged() and self.tensors.fits() and not filled

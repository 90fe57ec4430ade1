"""Modules: their parameters, buffers of both kinds, and extra state, out and in.

The tree of a module is {"kind": "module", "weights", "transient", "extra"}. `weights` has the names and order of
the bare module's `state_dict()`; a tied tensor is there under each name, as one object.
`transient` are the non-persistent buffers (None where a buffer is None).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from colabkeep.frameworks.common.shelf import Shelf
from colabkeep.frameworks.common.trees import encode
from colabkeep.frameworks.torch.state.copies import Copies
from colabkeep.frameworks.torch.state.host_memory import HostMemory
from colabkeep.frameworks.torch.state.leaves import TensorLeaves, refuse_dataless, refuse_expanded
from colabkeep.frameworks.torch.state.places import Place, Places
from colabkeep.frameworks.torch.state.staging import Slot, expect_slots
from colabkeep.frameworks.torch.state.tensors import Entry, Tensors
from colabkeep.vocabulary.state import Tree

__all__ = ["ModuleRecorder"]


class ModuleRecorder:
    """Captures one module. It plans once, and checks cheaply that the plan still holds.

    Raises:
        NotStorable: a tensor of the module has no data, or no form that can be kept.
    """

    def __init__(self, part: str, module: torch.nn.Module, memory: HostMemory) -> None:
        self.part = part
        self.target = module
        self._memory = memory
        self._leaves = TensorLeaves(memory, devices=False)
        self._shelf: Shelf[Slot] = Shelf()
        self._plan = self._new_plan()

    def refresh(self) -> bool:
        """Plan anew if the module changed since. True when so."""
        if self._plan.holds():
            return False
        self._plan = self._new_plan()
        return True

    def slots(self) -> Sequence[Slot]:
        """The slots of the plan."""
        return self._plan.tensors.slots

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each parameter, under each of its names."""
        return self._plan.places.parameters()

    def record(self, copies: Copies) -> Tree:
        """The module's tree; its tensors are filled when `copies` runs. After `refresh`.

        Raises:
            NotStorable: something in a module's extra state.
        """
        plan = self._plan
        copies.take(plan.tensors)
        self._leaves.turn(copies)
        weights, transient = plan.weights, plan.transient
        for place in plan.loose:
            section = weights if place.kept else transient
            section[place.name] = self._leaves(place.tensor, f"{self.part}.{place.name}")
        extra = {
            name: encode(module.get_extra_state(), f"{self.part}.{name}.get_extra_state()", self._leaves)
            for name, module in plan.places.extras()
        }
        self._leaves.sweep()
        return {"kind": "module", "weights": weights, "transient": transient, "extra": extra}

    def _new_plan(self) -> _Plan:
        places = Places(self.target)
        places.refuse_hidden(self.part)
        self._shelf.turn()
        expect_slots(self._memory, self._shelf, _planned(places, self.part))
        plan = _Plan(self.part, places, self._slot, self._memory)
        self._shelf.sweep()
        return plan

    def _slot(self, place: Place, tensor: torch.Tensor) -> Slot:
        frozen = place.parameter and not tensor.requires_grad
        slot = self._shelf.take(place.name)
        regain = slot is not None and slot.proof is not None and not frozen
        if slot is None or regain or not slot.fits(tensor):
            slot = Slot(tensor, self._memory, frozen=frozen)
        elif slot.host.frozen != frozen:
            slot.show(frozen=frozen)
        return self._shelf.keep(place.name, slot)


def _planned(places: Places, part: str) -> dict[str, torch.Tensor]:
    """The tensors that are one block of memory, each once, by the first of their names."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for place in places.places:
        tensor = place.tensor
        if tensor is not None and tensor.layout is torch.strided and id(tensor) not in found:
            refuse_dataless(tensor, f"{part}.{place.name}")
            if place.parameter:
                refuse_expanded(tensor, f"{part}.{place.name}")
            found[id(tensor)] = place.name, tensor
    return dict(found.values())


class _Plan:
    """What a capture of a module does, as long as its tensors are the same objects."""

    def __init__(
        self, part: str, places: Places, slot_for: Callable[[Place, torch.Tensor], Slot], memory: HostMemory
    ) -> None:
        self.places = places
        self.weights: dict[str, Tree] = {}
        self.transient: dict[str, Tree] = {}
        self.loose: list[Place] = []  # sparse tensors: no one block of memory, recorded each time
        entries: dict[int, Entry] = {}  # by tensor: a tied one has one slot
        for place in places.places:
            tensor = place.tensor
            if tensor is None:
                if not place.kept:
                    self.transient[place.name] = None
            elif tensor.layout is not torch.strided:
                self.loose.append(place)
            else:
                if id(tensor) not in entries:
                    name, slot = f"{part}.{place.name}", slot_for(place, tensor)
                    entries[id(tensor)] = Entry(name, tensor, slot)
                entries[id(tensor)].show(self.weights if place.kept else self.transient, place.name)
        self.tensors = Tensors(list(entries.values()), memory)

    def holds(self) -> bool:
        """Is the module still the one that was planned for?"""
        return self.places.unchanged() and self.tensors.fits()

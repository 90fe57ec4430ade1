"""Layers, out: where their tensors are, which are copied, and which are known to be as they were stored."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter, methodcaller
from typing import Any, ClassVar

import paddle
from paddle import nn

from colabkeep.core.state import Tree
from colabkeep.core.system import Breather
from colabkeep.frameworks.paddle.leaves import refuse_dataless, slot_leaf
from colabkeep.frameworks.paddle.staging import Copies, Slot, has_data, holding, on_cpu
from colabkeep.frameworks.shared import host_memory, modules
from colabkeep.frameworks.shared.host_memory import Frozen, Reader, Resting
from colabkeep.frameworks.shared.modules import Anatomy, Place
from colabkeep.frameworks.shared.trees import SlotCache

__all__ = [
    "Bulk",
    "Entry",
    "LayerRecorder",
    "Place",
    "Places",
    "Recall",
    "Tensors",
    "held_by",
    "is_frozen",
    "is_statistic",
    "owners",
]


class Bulk:
    """Tensors that are watched."""

    # An object may stay the same and its tensor change: x.data = …, layer.to(…), unfreezing.
    _FACTS: ClassVar[tuple[Callable[[Any], Any], ...]] = (
        *map(attrgetter, ("shape", "dtype", "stop_gradient")),
        methodcaller("is_contiguous"),  # copied by address
        on_cpu,
    )

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = tensors
        self._facts = [list(map(fact, tensors)) for fact in self._FACTS]

    def unchanged(self) -> bool:
        """Does what was found out about them still hold?"""
        # Whole lists compare by identity first; asking a dtype of Paddle whether it equals another takes 0.4 µs.
        return all(
            list(map(fact, self._tensors)) == known for fact, known in zip(self._FACTS, self._facts, strict=True)
        )


#     trained      copied; a large one only if it has other bytes than its copy
#     frozen       copied once, and proven from then on, as `common.resting` tells; on a device always copied
#
# Nothing is concluded from `tensor.inplace_version`: it stays as it is when an optimizer steps, when batch norm moves
# its means, and in `set_value` (tried with all optimizers of Paddle 3.3.1). One that has moved is a reason to copy.


_TINY = 2**12  # bytes; fewer are copied by the interpreter itself in 0.1 µs
_ADDRESS = paddle.Tensor.data_ptr


class Recall:
    """Whether bytes that were let go of are `needed` once more."""

    def __init__(self) -> None:
        self.needed = False

    def ask(self) -> None:
        """All is to be copied at the next capture. Any thread may call it."""
        self.needed = True


class Entry:
    """A tensor, its slot, and the places of the tree that show it."""

    __slots__ = ("slot", "spots", "tensor")

    def __init__(self, tensor: Any, slot: Slot) -> None:
        self.tensor, self.slot = tensor, slot
        self.spots: list[tuple[dict[str, Tree], str]] = []

    def show(self, section: dict[str, Tree], key: str) -> None:
        """Let `section[key]` show what the slot holds, now and whenever that is new."""
        self.spots.append((section, key))
        section[key] = slot_leaf(self.slot)

    def renew(self) -> None:
        """The slot's bytes are new."""
        self.slot.renew()
        leaf = slot_leaf(self.slot)
        for section, key in self.spots:
            section[key] = leaf


class Tensors:
    """The tensors of one part. One capture is `add_to`, the copies, `prove` and `renew`; then `stored`, if it is."""

    def __init__(self, entries: Sequence[Entry], recall: Recall) -> None:
        self._entries = entries
        self._recall = recall
        self._tensors = [entry.tensor for entry in entries]
        self.slots = [entry.slot for entry in entries]
        self._bulk = Bulk(self._tensors)
        self._addresses: list[int] = []
        self._frozen: list[Entry] = []
        self._others: list[Entry] = []
        self._small: list[Slot] = []
        self._tiny: list[tuple[memoryview, memoryview]] = []  # where to, and where from
        self._resting: Resting[Slot] = Resting()

    def fits(self) -> bool:
        """Do the slots still fit the tensors?"""
        return self._bulk.unchanged()

    def add_to(self, copies: Copies) -> None:
        """Have copied by `copies` what is not to be proven."""
        addresses = [
            _ADDRESS(tensor) if slot.size else 0 for tensor, slot in zip(self._tensors, self.slots, strict=True)
        ]
        if addresses != self._addresses:
            self._sort(addresses)
        self._resting.begin()
        for entry in self._frozen:
            tensor, slot = entry.tensor, entry.slot
            frozen = Frozen(tensor.data_ptr(), tensor.inplace_version, holding(tensor))
            if not self._resting.rests(slot, frozen, recalled=self._recall.needed):
                _copy(entry, copies)
        for entry in self._others:
            _copy(entry, copies)
        for slot in self._small:
            slot.new = True
        copies.assign(self._tiny)

    def prove(self, reader: Reader) -> bool:
        """The copies are made, and training goes on: has all that was not copied the bytes that are stored?"""
        proven = self._resting.prove(reader)
        if not proven:
            self._addresses = []
        return proven

    def renew(self) -> None:
        """Show what is new as new."""
        breather = Breather()
        for entry in self._entries:
            if entry.slot.new:
                entry.renew()
                breather.breathe()

    def stored(self) -> None:
        """The snapshot is stored: let go of what rests from now on."""
        for slot, proof in self._resting.stored():
            slot.let_go(proof, self._recall.ask)

    def _sort(self, addresses: list[int]) -> None:
        self._frozen, self._others, self._small, self._tiny = [], [], [], []
        for entry, address in zip(self._entries, addresses, strict=True):
            tensor, slot = entry.tensor, entry.slot
            straight = slot.landing is None and on_cpu(tensor) and tensor.is_contiguous()
            if (
                straight
                and host_memory.READS
                and slot.host.frozen
                and slot.size >= host_memory.LET_GO
                and not slot.restless
            ):
                self._frozen.append(entry)
            elif straight and not slot.host.frozen and 0 < slot.size <= _TINY:
                self._small.append(slot)
                self._tiny.append((slot.host.data, _view(address, slot.size)))
            else:
                self._others.append(entry)
        self._addresses = addresses


def _copy(entry: Entry, copies: Copies) -> None:
    if entry.slot.proof is not None:
        entry.slot.regain()
    copies.add(entry.slot, entry.tensor)


def _view(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


class Places(modules.Places):
    """The places of a Paddle layer and its children."""

    def __init__(self, layer: nn.Layer) -> None:
        super().__init__(_PADDLE, layer)


def held_by(place: Place) -> Any:
    """The tensor in a place; None for a buffer that the first forward pass will fill (the dropout state of an LSTM)."""
    tensor = place.tensor
    return tensor if place.parameter or tensor is None or has_data(tensor) else None


def is_statistic(parameter: Any) -> bool:
    """May a forward pass change this parameter?

    Paddle keeps running means and the vectors of spectral norms as parameters without gradient, and changes
    them without a trace. From frozen weights they differ in that they have one dimension at most.
    """
    return parameter is not None and bool(parameter.stop_gradient) and len(parameter.shape) < 2


def is_frozen(place: Place) -> bool:
    """Is it a weight that training does not change?"""
    return place.parameter and bool(place.tensor.stop_gradient) and not is_statistic(place.tensor)


def owners(layers: Iterable[nn.Layer]) -> list[tuple[dict[str, Any], Callable[[Any], bool]]]:
    """The dicts with tensors that a forward pass may change, each once, and a test for which of them it may."""
    found: dict[int, tuple[dict[str, Any], Callable[[Any], bool]]] = {}
    for layer in layers:
        for _, each in Places(layer).modules:
            if each._buffers:
                found[id(each._buffers)] = each._buffers, _always
            if any(map(is_statistic, each._parameters.values())):
                found[id(each._parameters)] = each._parameters, is_statistic
    return list(found.values())


def _always(_: Any) -> bool:
    return True


def _tells_plainly(layer: nn.Layer) -> bool:
    kind, base = type(layer), nn.Layer
    return kind.state_dict is base.state_dict and kind._state_dict_impl is base._state_dict_impl


_PADDLE = Anatomy(
    children="_sub_layers",
    transient="_non_persistable_buffer_names_set",
    wrappers=(("paddle.distributed.parallel", "DataParallel", "_layers"),),
    plain=_tells_plainly,
    told=lambda layer: layer.state_dict(),
    elsewhere="Its state_dict() holds more than parameters and buffers. Register them as buffers: "
    "self.register_buffer(name, tensor).",
)


# The tree of a layer is {"kind": "module", "weights", "transient"}. `weights` has the names and order of the bare
# layer's `state_dict()`; a tied tensor is there under each name, as one object. `transient` are the non-persistable
# buffers (None where a buffer is None). A buffer without data yet is in neither.


class LayerRecorder:
    """Captures one layer. It plans once, and checks cheaply that the plan still holds.

    Raises:
        NotStorable: a tensor of the layer has no data, or no form that can be kept.
    """

    def __init__(self, part: str, layer: nn.Layer, recall: Recall) -> None:
        self.part = part
        self.target = layer
        self._recall = recall
        self._shelf: SlotCache[Slot] = SlotCache()
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

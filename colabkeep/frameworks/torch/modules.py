"""Modules, out: where their tensors are, which are copied, which are known to be as they were stored, and gradients
between two steps.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, eq
from typing import Any, ClassVar

import torch

from colabkeep.core.errors import NotStorable
from colabkeep.core.state import Tree
from colabkeep.core.system import Breather
from colabkeep.frameworks.shared import host_memory, modules
from colabkeep.frameworks.shared.host_memory import Frozen, Reader, Resting
from colabkeep.frameworks.shared.modules import Anatomy, Place
from colabkeep.frameworks.shared.trees import SlotCache, encode
from colabkeep.frameworks.torch.copies import Copies
from colabkeep.frameworks.torch.leaves import TensorLeaves, refuse_dataless, refuse_expanded
from colabkeep.frameworks.torch.staging import HostMemory, Slot, expect_slots, row_major, slot_leaf

__all__ = [
    "Bulk",
    "Entry",
    "Gradients",
    "ModuleRecorder",
    "Place",
    "Places",
    "Tensors",
]


class Bulk:
    """Tensors that are copied together, each to a target of its own."""

    # An object may stay the same and its tensor change: x.data = …, module.to(…), unfreezing. One pass for each fact
    # is cheaper than one tuple for each tensor.
    _MARKS: ClassVar[tuple[Callable[[Any], Any], ...]] = tuple(map(attrgetter, ("dtype", "is_cuda", "requires_grad")))
    _SHAPE = attrgetter("shape")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._marks = [list(map(mark, tensors)) for mark in self._MARKS]
        strided = [tensor for tensor in tensors if tensor.layout is torch.strided]  # compressed ones have no strides
        self._sizes = [
            (fact, seen, list(map(fact, seen)))
            for fact, seen in ((self._SHAPE, tensors), (torch.Tensor.stride, strided))
        ]

    def unchanged(self) -> bool:
        """Do the targets still fit?"""
        return all(
            list(map(mark, self._tensors)) == known for mark, known in zip(self._MARKS, self._marks, strict=True)
        ) and all(
            # Compared one by one: lists of new shapes would be work for the garbage collector.
            all(map(eq, map(fact, seen), known))
            for fact, seen, known in self._sizes
        )


# trained      copied; a large one only if it has other bytes than its copy frozen       copied once, and proven from
# then on, as `common.resting` tells


_TINY = 2**12  # bytes; fewer are copied by the interpreter itself in 0.1 µs, a tenth of what torch takes to begin
_LARGE = 2**16  # bytes; from here on a copy is worth more than the microsecond that a block of its own takes
_ADDRESS = torch.Tensor.data_ptr
_EXACT = (torch.Tensor, torch.nn.Parameter)


class Entry:
    """A tensor, its slot, its name for people, and the places of the tree that show it."""

    __slots__ = ("name", "slot", "spots", "tensor")

    def __init__(self, name: str, tensor: torch.Tensor, slot: Slot) -> None:
        self.name, self.tensor, self.slot = name, tensor, slot
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

    def __init__(self, entries: Sequence[Entry], memory: HostMemory) -> None:
        self._entries = entries
        self._memory = memory
        self._tensors = [entry.tensor for entry in entries]
        self.slots = [entry.slot for entry in entries]
        self._bulk = Bulk(self._tensors)
        self._addresses: list[int] = []
        self._frozen: list[Entry] = []
        self._blocks: list[Entry] = []
        self._small: list[Slot] = []
        self._sources: list[torch.Tensor] = []
        self._tiny: list[tuple[memoryview, memoryview]] = []  # where to, and where from
        self._resting: Resting[Slot] = Resting()

    def fits(self) -> bool:
        """Do the slots still fit the tensors?"""
        return self._bulk.unchanged()

    def add_to(self, copies: Copies) -> None:
        """Have copied by `copies` what is not to be proven.

        Raises:
            NotStorable: a tensor has no memory.
            MemoryFull: there is no room for what was let go of.
        """
        addresses = list(map(_ADDRESS, self._tensors))
        if addresses != self._addresses:
            self._sort(addresses)
        self._resting.begin()
        for entry in self._frozen:
            tensor, slot = entry.tensor, entry.slot
            version = None if tensor.is_inference() else tensor._version
            landing = copies.device.look(tensor, checksum=True) if tensor.is_cuda else None
            frozen = Frozen(tensor.data_ptr(), version, tensor.detach(), landing)
            if not self._resting.rests(slot, frozen, recalled=self._memory.recalled):
                self._copy(entry, copies)
        for entry in self._blocks:
            self._copy(entry, copies)
        for slot in self._small:
            slot.new = True
        copies.extend(self._small[len(self._tiny) :], self._sources)
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
            slot.let_go(proof, self._memory)

    def _copy(self, entry: Entry, copies: Copies) -> None:
        slot = entry.slot
        if slot.proof is not None:
            self._memory.expect([entry.tensor])
            slot.regain(self._memory)
        if entry.tensor.is_cuda:
            copies.device.add(slot, entry.tensor)
        else:
            copies.host.add(slot, slot.memory.data_ptr(), entry.tensor.data_ptr(), slot.size)

    def _sort(self, addresses: list[int]) -> None:
        self._frozen, self._blocks, self._sources, self._tiny = [], [], [], []
        tiny, others = list[Slot](), list[Slot]()
        for entry, address in zip(self._entries, addresses, strict=True):
            tensor, slot = entry.tensor, entry.slot
            if not address and slot.size:
                raise _gone(entry.name)
            straight = _is_straight(tensor, slot)
            provable = straight and (tensor.is_cuda or host_memory.READS)
            if provable and slot.host.frozen and slot.size >= host_memory.LET_GO and not slot.restless:
                self._frozen.append(entry)
            elif tensor.is_cuda or (straight and (slot.host.frozen or slot.size >= _LARGE)):
                self._blocks.append(entry)
            elif straight and slot.size <= _TINY:
                tiny.append(slot)
                self._tiny.append((slot.host.data, _view(address, slot.size)))
            else:
                others.append(slot)
                self._sources.append(tensor)
        self._small = tiny + others
        self._addresses = addresses


def _is_straight(tensor: torch.Tensor, slot: Slot) -> bool:
    """Is it one gapless block of memory, in the very order that its slot has?"""
    return (
        type(tensor) in _EXACT
        and (tensor.is_cpu or tensor.is_cuda)
        and tensor.numel() > 0
        and tensor.stride() == (row_major(slot.shape) if slot.stride is None else slot.stride)
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _view(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _gone(name: str) -> NotStorable:
    return NotStorable(
        problem=f"{name} has no memory: its storage was given back, as offloading does, so there is nothing to save.",
        remedy="Save where the weights are in place: after the step that gathers them, or without offloading.",
    )


class Places(modules.Places):
    """The places of a torch module and its children."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(_TORCH, module)

    def extras(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Modules with state beside tensors (`get_extra_state`), by name."""
        own = torch.nn.Module.get_extra_state
        return ((prefix, each) for prefix, each in self.modules if type(each).get_extra_state is not own)


def _tells_plainly(module: torch.nn.Module) -> bool:
    kind, base = type(module), torch.nn.Module
    return kind.state_dict is base.state_dict and kind._save_to_state_dict is base._save_to_state_dict


_TORCH = Anatomy(
    children="_modules",
    transient="_non_persistent_buffers_set",
    wrappers=(
        ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
        ("torch.nn.parallel", "DataParallel", "module"),
        ("torch.nn.parallel", "DistributedDataParallel", "module"),
        (
            "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
            "CheckpointWrapper",
            "_checkpoint_wrapped_module",
        ),
    ),
    plain=_tells_plainly,
    told=lambda module: module.state_dict(keep_vars=True),
    elsewhere="Its state_dict() holds more than parameters and buffers. Register them as buffers, or return "
    "them from get_extra_state() and take them back in set_extra_state().",
)


_SURE = 8  # steps after which gradients that stood were cleared, and never added to
_Standing = dict[str, tuple["weakref.ref[torch.Tensor]", int]]


class Gradients:
    """Those of `parameters`, (name, parameter).

    Most loops clear them behind the optimizer's step, and none stand. Many do so before the next backward pass: they
    stand, are worth nothing, and are left out once that was seen often enough. What is added to, such as what an epoch
    left of an accumulation that it broke off, or a discriminator's from the generator's turn, decides about the next
    update and is kept.

    That is seen when an optimizer begins a step: a gradient that was cleared is another tensor by then; one that is the
    same and has another version was added to, or set to zero in place, which cannot be told apart and is kept, too.
    What stands now is held by weak references: no gradient lives longer for it. Sparse ones are not kept.

    A mark takes 0.05 µs for each parameter where none stand.
    """

    def __init__(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._parameters = dict(parameters)
        fewest = sorted(self._parameters, key=lambda name: _size(self._parameters[name]))[:2]
        self._sentinels = frozenset(fewest)  # these are looked at for ever: a loop may change its ways
        self._standing: _Standing = {}
        self._seen: set[str] = set()  # that they stood, while it was found out what the loop does
        self._clears = 0
        self._counted = self._added = False
        self._watch()

    def mark(self) -> None:
        """The training is between two steps."""
        self._counted = False
        standing: _Standing = {}
        for name, each in self._watched:
            grad = each.grad
            if grad is not None:
                standing[name] = weakref.ref(grad), grad._version
        if standing and not self._is_sure:
            self._seen.update(standing)
        self._standing = standing

    def begins(self) -> None:
        """An optimizer begins a step: what stood at the mark was cleared meanwhile, or added to, or is for another."""
        if not self._standing:
            return
        moved = {name: self._moved(name) for name in self._standing}
        if "added" in moved.values():
            self._added = True
            self._watch()
        elif "cleared" in moved.values() and not self._counted and not self._is_sure and not self._added:
            self._counted = True
            self._clears += 1
            self._watch()
        self._standing = {name: self._standing[name] for name, how in moved.items() if how is None}

    @property
    def changed(self) -> bool:
        """Was anything added since to gradients that stood at the last mark, and would be kept?"""
        return any(self._is_kept(name) and self._moved(name) == "added" for name in self._standing)

    def rewind(self) -> None:
        """Take away what came since the last mark."""
        for name, parameter in self._watched:
            if name not in self._standing or self._moved(name) == "cleared":
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """What stands now and is to be kept, live; those that are zero by name only. Empty if none ever stood."""
        values = {
            name: parameter.grad.detach()
            for name, parameter in self._parameters.items()
            if parameter.grad is not None and parameter.grad.layout is torch.strided and self._is_kept(name)
        }
        if not values and not self._seen:
            return {}
        zero = _zero(values) if self._added else []
        return {
            "values": {name: value for name, value in values.items() if name not in zero},
            "zero": zero,
            "clears": self._clears,
            "added": self._added,
            "seen": "".join("01"[name in self._seen] for name in self._parameters),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Gradients are as they were: those that were not kept are none."""
        values = state.get("values", {})
        for name, parameter in self._parameters.items():
            if name in values:
                parameter.grad = values[name].to(parameter.device)
            else:
                parameter.grad = torch.zeros_like(parameter) if name in state.get("zero", ()) else None
        self._clears, self._added = state.get("clears", 0), state.get("added", False)
        self._seen = {name for name, bit in zip(self._parameters, state.get("seen", ""), strict=False) if bit == "1"}
        self._watch()
        self.mark()

    def _watch(self) -> None:
        """Look at those from now on of which it is not known that they are cleared."""
        sure = self._seen - self._sentinels if self._is_sure else ()
        self._watched = [pair for pair in self._parameters.items() if pair[0] not in sure]

    def _moved(self, name: str) -> str | None:
        held, version = self._standing[name]
        now = self._parameters[name].grad
        if now is None or held() is not now:
            return "cleared"
        return None if now._version == version else "added"

    def _is_kept(self, name: str) -> bool:
        return not self._is_sure or name not in self._seen

    @property
    def _is_sure(self) -> bool:
        return self._clears >= _SURE and not self._added


def _zero(values: Mapping[str, torch.Tensor]) -> list[str]:
    """The names of those that are zero. One wait for each device that they are on."""
    places: dict[torch.device, list[str]] = {}
    for name, value in values.items():
        places.setdefault(value.device, []).append(name)
    found = []
    for device, names in places.items():
        counts = torch.stack([torch.count_nonzero(values[name]) for name in names])
        if device.type == "cuda":
            there, counts = counts, torch.empty(len(names), dtype=counts.dtype, device="cpu", pin_memory=True)
            counts.copy_(there, non_blocking=True)
            torch.cuda.current_stream(device).synchronize()
        found += [name for name, count in zip(names, counts.tolist(), strict=True) if not count]
    return found


def _size(parameter: torch.Tensor) -> int:
    return 0 if torch.nn.parameter.is_lazy(parameter) else parameter.numel()


# The tree of a module is {"kind": "module", "weights", "transient", "extra"}. `weights` has the names and order of the
# bare module's `state_dict()`; a tied tensor is there under each name, as one object. `transient` are the
# non-persistent buffers (None where a buffer is None).


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
        self._shelf: SlotCache[Slot] = SlotCache()
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

"""A capture: the plan of each part's tensors, slots of host memory for them, the copies, and the trees that show them.

A framework says what is its own in a `Kit`, and records its optimizers by itself.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from operator import eq, is_, methodcaller
from typing import Any, NamedTuple

from colabkeep.core.errors import NotStorable
from colabkeep.core.state import HostTensor, Stale, Tagged, Tree
from colabkeep.core.system import Breather
from colabkeep.frameworks.shared import host_memory
from colabkeep.frameworks.shared.host_memory import (
    FrozenTensor,
    FrozenTensors,
    HostCopy,
    HostMemory,
    Proof,
    Reader,
    address_of,
)
from colabkeep.frameworks.shared.trees import ArrayLeaves, SlotCache, encode_object, not_storable

_VALUES = methodcaller("values")


class Watch:
    """The keys and values of some dicts, compared by identity: about 50 ns for each."""

    def __init__(self, dicts: Iterable[Mapping[Any, Any]]) -> None:
        self._all = list(dicts)
        self._filled = [each for each in self._all if each]  # of the many that are empty, the length says all
        self._keys = list(chain.from_iterable(self._filled))
        self._values = list(chain.from_iterable(map(_VALUES, self._filled)))

    def unchanged(self) -> bool:
        """Are the same objects under the same keys?"""
        return (
            sum(map(len, self._all)) == len(self._keys)
            and all(map(is_, chain.from_iterable(self._filled), self._keys))
            and all(map(is_, chain.from_iterable(map(_VALUES, self._filled)), self._values))
        )


class ParameterNames:
    """The names of parameters, found by identity. "model.layer.weight": the part, then the name in it."""

    def __init__(self, parts: Iterable[tuple[str, Iterable[tuple[str, object]]]]) -> None:
        self._names: dict[int, str] = {}
        self._parameters: dict[str, object] = {}  # held, so that no id is given twice
        for part, parameters in parts:
            for name, parameter in parameters:
                self._names.setdefault(id(parameter), f"{part}.{name}")
                self._parameters[f"{part}.{name}"] = parameter

    def get(self, parameter: object) -> str | None:
        """The name; None if no module of the run holds it."""
        return self._names.get(id(parameter))

    def parameter(self, name: str) -> object | None:
        """The parameter of that name; None if no module of the run has one."""
        return self._parameters.get(name)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor's place. `kept` is false for non-persistent buffers. `constant`: it belongs to a quantised weight,
    which nothing trains."""

    name: str
    owner: dict[str, Any]
    key: str
    parameter: bool
    kept: bool
    constant: bool = False

    @property
    def tensor(self) -> Any:
        """What is there now: a tensor or None."""
        return self.owner[self.key]

    @property
    def weight(self) -> str:
        """Of a `constant` one, the name of the weight that it belongs to."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class ModuleLayout:
    """How a framework builds its modules.

    `children` and `transient` are the attributes with the modules inside one and with the names of its non-persistent
    buffers. `wrappers` are (module, class, name of the child inside) of those that only wrap. `plain` tells whether a
    module's class has the framework's own `state_dict`; `told` asks one that has not, for the live tensors.
    """

    children: str
    transient: str
    wrappers: tuple[tuple[str, str, str], ...]
    plain: Callable[[Any], bool]
    told: Callable[[Any], Mapping[str, Any]]
    elsewhere: str
    """What to do with a tensor that is neither a parameter nor a buffer."""
    beside: Callable[[str, Any], Iterable[TensorPlace]] = lambda _start, _module: ()
    """Where a module, whose names start so, has tensors that are neither, and that are known."""


class TensorPlaces:
    """All places of a module and its children, in the order of `state_dict()`.

    Wrappers that only wrap (compiled, data-parallel, checkpointed) leave no trace in names. They are
    recognised by their type: a child of the user's own that is called "module" keeps its name.
    """

    def __init__(self, layout: ModuleLayout, module: Any) -> None:
        self._layout = layout
        self.modules: list[tuple[str, Any]] = []
        self._all: list[Any] = []
        self._walk("", module)
        self.places = [place for prefix, each in self.modules for place in self._places(prefix, each)]
        self._watch = Watch(d for m in self._all for d in (m._parameters, m._buffers, getattr(m, layout.children)))

    def unchanged(self) -> bool:
        """Has the module the same children, parameters and buffers as when this was made?"""
        return self._watch.unchanged()

    def parameters(self) -> Iterator[tuple[str, Any]]:
        """Each parameter, under each of its names."""
        return ((place.name, place.tensor) for place in self.places if place.parameter and place.tensor is not None)

    def refuse_hidden(self, part: str) -> None:
        """Raise if a module's own `state_dict` tells of tensors that are in no place.

        Raises:
            NotStorable: names the module.
        """
        known = {id(place.tensor) for place in self.places}
        for prefix, each in self.modules:
            if self._layout.plain(each):
                continue
            for key, value in self._layout.told(each).items():
                if id(value) not in known and not key.endswith("_extra_state"):
                    path = ".".join(filter(None, (part, prefix, key)))
                    raise not_storable(each, path, self._layout.elsewhere)

    def _walk(self, prefix: str, module: Any) -> None:
        self._all.append(module)
        wrapped = self._wrapped(module)
        if wrapped is not None:
            self._walk(prefix, wrapped)
            return
        self.modules.append((prefix, module))
        for name, each in getattr(module, self._layout.children).items():
            if each is not None:
                self._walk(f"{prefix}.{name}" if prefix else name, each)

    def _wrapped(self, module: Any) -> Any:
        """The module inside a mere wrapper. A wrapper's own module must be loaded, or nothing is of its type."""
        for place, kind, child in self._layout.wrappers:
            loaded = sys.modules.get(place)
            if loaded is not None and isinstance(module, getattr(loaded, kind)):
                return getattr(module, self._layout.children)[child]
        return None

    def _places(self, prefix: str, module: Any) -> Iterator[TensorPlace]:
        start = f"{prefix}." if prefix else ""
        for key, value in module._parameters.items():
            if value is not None:
                yield TensorPlace(start + key, module._parameters, key, parameter=True, kept=True)
        transient = getattr(module, self._layout.transient)
        for key in module._buffers:
            yield TensorPlace(start + key, module._buffers, key, parameter=False, kept=key not in transient)
        yield from self._layout.beside(start, module)


class Snapshot:
    """A capture, and the snapshot it becomes. `finish` does what is `rest`; `keep` hears that it is stored."""

    def __init__(self, owner: Captures) -> None:
        self._owner = owner
        self.parts: dict[str, Tree] = {}
        self.rest: Callable[[], object] = lambda: None  # all is copied already
        self.keep: Callable[[], object] = lambda: None
        self.remark = ""

    def finish(self) -> Snapshot:
        """The snapshot, which is this object.

        Raises:
            Stale: as `Capture.finish`.
        """
        try:
            self.rest()
        except BaseException:
            self.release()
            raise
        return self

    def stored(self) -> None:
        """A checkpoint holds it."""
        self.keep()

    def release(self) -> None:
        """The memory may be reused. A late second call does not take a newer one's memory."""
        if self._owner.borrower is self:
            self._owner.borrower = None


class Captures:
    """Knows whether the memory of captures is lent to a snapshot."""

    def __init__(self) -> None:
        self.borrower: Snapshot | None = None

    @contextmanager
    def begin(self) -> Iterator[Snapshot]:
        """A new capture, to be filled inside. Where that fails, it takes the memory back.

        Raises:
            RuntimeError: the snapshot before has not been released; its memory would change under its reader.
        """
        if self.borrower is not None:
            raise RuntimeError("capture() was called while the snapshot before it is in use; release() it first")
        self.borrower = begun = Snapshot(self)
        try:
            yield begun
        except BaseException:
            begun.release()
            raise


class Form(NamedTuple):
    """How a tensor is kept. `same`: what another tensor must have to be kept in the same memory. `kind`: of its leaf,
    where that needs `details` beside the bytes, `dtype` and `shape` (as stored). `size`: in bytes. `stride`: the order
    of the copy in memory, None for row-major. `late`: its bytes come behind training."""

    same: object
    kind: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    details: Mapping[str, Tree]
    stride: tuple[int, ...] | None = None
    late: bool = False


class Reference(NamedTuple):
    """A frozen tensor that is not stored: the checksum that checkpoints name it by, and what proves it."""

    checksum: str
    proof: Proof


class Slot:
    """Host memory for one tensor, and the `HostTensor` that shows it.

    `new`: its bytes are others than those that `host` was shown with. `proof` is that of a tensor whose bytes are
    stored, or referred to, and were let go of; one that was proven to be `restless` keeps its memory. `view`: the
    memory as a tensor of the framework's, where one was needed.
    """

    __slots__ = ("address", "form", "host", "memory", "new", "proof", "restless", "view")

    def __init__(
        self, form: Form, memory: HostMemory, *, frozen: bool = False, reference: Reference | None = None
    ) -> None:
        self.form = form
        self.host = HostTensor(dtype=form.dtype, shape=form.shape, data=memoryview(b""), frozen=frozen, lasting=True)
        self.restless = False
        self.proof: Proof | None = None
        self.view: Any = None
        if reference is None:
            self.regain(memory)
        else:
            self.new = False
            self.host = replace(self.host, referred=reference.checksum)
            self.let_go(reference.proof, memory)

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return self.form.size

    def leaf(self, **details: Tree) -> Tree:
        """Bare where the bytes, shape and dtype say all, else tagged with the rest."""
        told = {**details, **self.form.details}
        return Tagged(self.form.kind, {"data": self.host, **told}) if told else self.host

    def show(self, *, frozen: bool) -> None:
        """Show the same memory as trained or frozen from now on."""
        self.host = replace(self.host, frozen=frozen)

    def renew(self) -> None:
        """Show the memory by another object: its bytes are new."""
        self.host = replace(self.host, data=self.host.data)
        self.new = False

    def let_go(self, proof: Proof, memory: HostMemory) -> None:
        """The bytes are stored, and `proof` tells whether the tensor still has them."""
        self.proof = proof
        self.host.let_go(memory.recall)
        self.memory, self.address, self.view = memoryview(b""), 0, None

    def regain(self, memory: HostMemory) -> None:
        """It is to be copied, for the first time or once more."""
        self.memory = memory.take(self.form.size, late=self.form.late)
        self.address, self.view = address_of(self.memory), None
        self.proof, self.new = None, True
        self.host = replace(self.host, data=self.memory, referred="")


class Kit:
    """What is a framework's own in a capture. Its types; `marks`: facts of a tensor of which a plan goes; `sizes`: more
    of them, each with a test for which tensors (None: all); `module_layout`: how its modules are built;
    `optimizer_recorder`: what captures an optimizer."""

    tensor: type[Any]
    module: type[Any]
    optimizer: type[Any]
    marks: tuple[Callable[[Any], Any], ...]
    sizes: tuple[tuple[Callable[[Any], Any], Callable[[Any], bool] | None], ...] = ()
    module_layout: ModuleLayout
    optimizer_recorder: type[Recorder]

    def same(self, tensor: Any) -> object:
        """As in `Form`."""
        raise NotImplementedError

    def form(self, tensor: Any, *, keep_order: bool) -> Form:
        """How it is kept; with `keep_order` in its own order of dimensions, so that the copy is one straight move."""
        raise NotImplementedError

    def refuse(self, tensor: Any, path: str) -> None:
        """Raise for a tensor whose numbers are not there, or not in a form that can be copied.

        Raises:
            NotStorable: with the remedy for its kind.
        """
        raise NotImplementedError

    def address(self, tensor: Any) -> int:
        """Where its memory is; 0 where it has none."""
        raise NotImplementedError

    def is_straight(self, tensor: Any, slot: Slot) -> bool:
        """Is it one gapless block of memory, in the very order that its slot has?"""
        raise NotImplementedError

    def is_here(self, tensor: Any) -> bool:
        """Is it in memory that the CPU reads directly?"""
        raise NotImplementedError

    def device(self, tensor: Any) -> str:
        """The kind of device that it is on: "cpu", "cuda"."""
        raise NotImplementedError

    def is_provable(self, tensor: Any) -> bool:
        """Can its bytes be summed up behind training?"""
        return host_memory.READS and self.is_here(tensor)

    def frozen_now(self, tensor: Any, copies: Any) -> FrozenTensor:
        """A frozen tensor as it is now."""
        raise NotImplementedError

    def is_frozen(self, place: TensorPlace) -> bool:
        """Is it a weight that training does not change?"""
        raise NotImplementedError

    def checksum(self, tensor: Any) -> bytes | None:
        """The BLAKE2b-256 of its bytes, row-major; None where its bytes cannot be had. Any thread may call it."""
        return None

    def is_referable(self, tensor: Any) -> bool:
        """Can it be proven at each capture, and is it worth that?"""
        return False

    def size(self, tensor: Any) -> int:
        """Its bytes."""
        raise NotImplementedError

    def is_unfilled(self, place: TensorPlace) -> bool:
        """Is it a buffer that the first forward pass will fill?"""
        return False

    def is_scattered(self, tensor: Any) -> bool:
        """Is it no one block of memory (a sparse tensor), so that its leaf is made anew for each capture?"""
        return False

    def beside(self, part: str, places: TensorPlaces, leaves: TensorLeaves) -> dict[str, Tree]:
        """What the tree of a module has beside "weights" and "transient"."""
        return {}

    def leaf(self, value: Any, path: str, leaves: TensorLeaves) -> Tree | None:
        """The leaf of a value of the framework's; None for any other."""
        raise NotImplementedError

    def tell(self, part: str, target: Any, leaves: TensorLeaves) -> Tree:
        """The tree of whatever tells its own state: schedulers, scalers, random streams, the user's own."""
        return encode_object(part, target, leaves)

    def copies(self) -> Copies:
        """Those of a new capture."""
        raise NotImplementedError


class Unchanged:
    """Tensors that a plan goes by. An object may stay the same and its tensor change: x.data = …, module.to(…),
    unfreezing. One pass for each fact is cheaper than one tuple for each tensor."""

    def __init__(self, kit: Kit, tensors: Sequence[Any]) -> None:
        self._tensors = tensors
        self._marks = [(mark, list(map(mark, tensors))) for mark in kit.marks]
        chosen = [(fact, tensors if only is None else list(filter(only, tensors))) for fact, only in kit.sizes]
        self._sizes = [(fact, some, list(map(fact, some))) for fact, some in chosen]

    def __call__(self) -> bool:
        """Does what was found out about them still hold?"""
        return all(list(map(mark, self._tensors)) == known for mark, known in self._marks) and all(
            # Compared one by one: lists of new shapes would be work for the garbage collector.
            all(map(eq, map(fact, some), known))
            for fact, some, known in self._sizes
        )


class Copies:
    """Copies from the live tensors to their slots: collected first, made in one go. `add` is the framework's own."""

    remark = ""
    """A clause, if they take longer than they need."""

    def __init__(self) -> None:
        self.host = HostCopy()
        self._tiny: list[tuple[memoryview, memoryview]] = []
        self._parts: list[Tensors] = []

    def add(self, slot: Slot, source: Any) -> None:
        """One copy."""
        raise NotImplementedError

    def assign(self, tiny: Iterable[tuple[memoryview, memoryview]]) -> None:
        """Many tiny copies, as views of where to and where from. The caller keeps the memory alive."""
        self._tiny += tiny

    def take(self, tensors: Tensors) -> None:
        """Those of a part's tensors that are to be copied."""
        tensors.add_to(self)
        self._parts.append(tensors)

    def run(self) -> None:
        """Make all copies, or launch them. When this returns, training may go on."""
        self.host.run(meanwhile=self.copy_small)

    def copy_small(self) -> None:
        """What one thread copies beside the others."""
        for place, live in self._tiny:
            place[:] = live

    def finish(self) -> None:
        """Behind training: prove what was not copied, and show what is new.

        Raises:
            Stale: something that was not copied has other bytes than are stored.
        """
        reader = Reader()
        proven = [part.prove(reader) for part in self._parts]  # all of them: no redoing one by one
        if not all(proven):
            raise Stale
        for part in self._parts:
            part.renew()

    def stored(self) -> None:
        """A checkpoint holds what was copied."""
        for part in self._parts:
            part.stored()


# trained      copied; a large one counts as new only if it has other bytes than its copy
# frozen       copied once, and proven from then on by checksums, where they can be made


_TINY = 2**12  # bytes; fewer are copied by the interpreter itself in 0.1 µs, a tenth of what a framework takes to begin


class Entry:
    """A tensor, its slot, its name for people, and the places of the tree that show it."""

    __slots__ = ("name", "slot", "spots", "tensor")

    def __init__(self, name: str, tensor: Any, slot: Slot, spots: list[tuple[dict[str, Tree], str]]) -> None:
        self.name, self.tensor, self.slot, self.spots = name, tensor, slot, spots
        self.show()

    def show(self) -> None:
        """Have the tree show what the slot holds."""
        leaf = self.slot.leaf()
        for section, key in self.spots:
            section[key] = leaf


class Tensors:
    """The tensors of one part. One capture is `add_to`, the copies, `prove` and `renew`; then `stored`, if it is."""

    def __init__(self, kit: Kit, entries: Sequence[Entry], memory: HostMemory) -> None:
        self._kit = kit
        self._entries = entries
        self._memory = memory
        self._tensors = [entry.tensor for entry in entries]
        self.unchanged = Unchanged(kit, self._tensors)
        self._addresses: list[int] = []
        self._frozen: list[Entry] = []
        self._others: list[Entry] = []
        self._tiny: list[Slot] = []
        self._views: list[tuple[memoryview, memoryview]] = []  # where to, and where from
        self._proven = FrozenTensors()

    def add_to(self, copies: Copies) -> None:
        """Have copied by `copies` what is not to be proven.

        Raises:
            NotStorable: a tensor has no memory.
            MemoryFull: there is no room for what was let go of.
        """
        addresses = list(map(self._kit.address, self._tensors))
        if addresses != self._addresses:
            self._sort(addresses)
        self._proven.begin()
        for entry in self._frozen:
            frozen = self._kit.frozen_now(entry.tensor, copies)
            if not self._proven.as_stored(entry.slot, frozen, recalled=self._memory.recalled):
                self._copy(entry, copies)
        for entry in self._others:
            self._copy(entry, copies)
        for slot in self._tiny:
            slot.new = True
        copies.assign(self._views)

    def prove(self, reader: Reader) -> bool:
        """The copies are made, and training goes on: has all that was not copied the bytes that are stored?"""
        proven = self._proven.prove(reader)
        if not proven:
            self._addresses = []
        return proven

    def renew(self) -> None:
        """Show what is new as new."""
        breather = Breather()
        for entry in self._entries:
            if entry.slot.new:
                entry.slot.renew()
                entry.show()
                breather.breathe()

    def stored(self) -> None:
        """The snapshot is stored: let go of what is proven from now on."""
        for slot, proof in self._proven.stored():
            slot.let_go(proof, self._memory)

    def _copy(self, entry: Entry, copies: Copies) -> None:
        if entry.slot.proof is not None:
            self._memory.expect([entry.slot.size])
            entry.slot.regain(self._memory)
        copies.add(entry.slot, entry.tensor)

    def _sort(self, addresses: list[int]) -> None:
        kit = self._kit
        self._frozen, self._others, self._tiny, self._views = [], [], [], []
        for entry, address in zip(self._entries, addresses, strict=True):
            tensor, slot = entry.tensor, entry.slot
            if not address and slot.size:
                raise _gone(entry.name, kit.device(tensor))
            straight = slot.size > 0 and kit.is_straight(tensor, slot)
            worth = slot.host.frozen and slot.size >= host_memory.LET_GO and not slot.restless
            if straight and worth and kit.is_provable(tensor):
                self._frozen.append(entry)
            elif straight and slot.size <= _TINY and not slot.host.frozen and kit.is_here(tensor):
                self._tiny.append(slot)
                self._views.append((slot.memory, view(address, slot.size)))
            else:
                self._others.append(entry)
        self._addresses = addresses


def view(address: int, size: int) -> memoryview:
    """So many bytes of memory there, which the caller keeps alive."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _gone(name: str, device: str) -> NotStorable:
    if device not in ("cpu", "cuda", "gpu"):
        return NotStorable(
            problem=f"{name} is on a device of the kind {device!r}, whose memory cannot be read, so it cannot be "
            "saved from there.",
            remedy="Train on a GPU with CUDA or on the CPU: choose such a machine (on Colab: Runtime → Change runtime "
            'type → T4 GPU), and model.to("cuda") before the optimizer is built.',
            path=name,
        )
    return NotStorable(
        problem=f"{name} has no memory: its storage was given back, as offloading does, so there is nothing to save.",
        remedy="Save where the weights are in place: after the step that gathers them, or without offloading.",
        path=name,
    )


class Plan:
    """The tensors of one part, collected by `show`; each has one slot, also where several names share it. `slots` keeps
    those of the plan before, by path."""

    def __init__(self, kit: Kit, memory: HostMemory, slots: SlotCache[Slot]) -> None:
        self._kit, self._memory, self._slots = kit, memory, slots
        self._found: dict[int, tuple[Any, str, Reference | bool, list[tuple[dict[str, Tree], str]]]] = {}

    def show(
        self, tensor: Any, path: str, section: dict[str, Tree], key: str, *, frozen: Reference | bool = False
    ) -> None:
        """Let `section[key]` show what the tensor's slot holds, now and whenever that is new. `frozen`: what names it,
        where it is not to be stored.

        Raises:
            NotStorable: it has no data, or no form that can be kept.
        """
        if id(tensor) not in self._found:
            self._kit.refuse(tensor, path)
            self._found[id(tensor)] = tensor, path, frozen, []
        section[key] = None  # in this order
        self._found[id(tensor)][3].append((section, key))

    def tensors(self, *, keep_order: bool) -> Tensors:
        """All of them, with their slots.

        Raises:
            MemoryFull: there is no room for them.
        """
        kit, slots, found = self._kit, self._slots, self._found.values()
        slots.turn()
        for tensor, path, frozen, _ in found:
            slot = slots.take(path)
            let_go = slot is not None and slot.proof is not None
            if slot is not None and slot.form.same == kit.same(tensor) and not (let_go and not frozen):
                slots.keep(path, slot)
        new = {path: kit.form(t, keep_order=keep_order) for t, path, *_ in found if slots.kept(path) is None}
        references = {
            path: frozen
            for _, path, frozen, _ in found
            if isinstance(frozen, Reference) and path in new and not new[path].details
        }
        self._memory.expect(form.size for path, form in new.items() if path not in references)
        entries = []
        for tensor, path, frozen, spots in found:
            slot = slots.kept(path)
            if slot is None:
                reference = references.get(path)
                slot = slots.keep(path, Slot(new[path], self._memory, frozen=bool(frozen), reference=reference))
            if slot.host.frozen != bool(frozen):
                slot.show(frozen=bool(frozen))
            entries.append(Entry(path, tensor, slot, spots))
        slots.sweep()
        return Tensors(kit, entries, self._memory)


class TensorLeaves:
    """The leaves of one part that are no plain values, with the slots it needs from capture to capture.

    `devices` notes the device of a tensor that is not on the CPU; a part that finds its own place on
    loading (an optimizer: beside its parameter) needs none.
    """

    def __init__(self, kit: Kit, memory: HostMemory, *, devices: bool) -> None:
        self.devices = devices
        self._kit = kit
        self._memory = memory
        self._arrays = ArrayLeaves()
        self._slots: SlotCache[Slot] = SlotCache()
        self._met: dict[int, tuple[object, Tree]] = {}  # holds the tensors, so that no id is given twice
        self.copies = Copies()

    def turn(self, copies: Copies) -> None:
        """A capture begins; copies go to `copies`."""
        self.copies = copies
        self._slots.turn()
        self._arrays.turn()
        self._met = {}

    def sweep(self) -> None:
        """A capture is complete."""
        self.copies = Copies()
        self._slots.sweep()
        self._arrays.sweep()
        self._met = {}

    def __call__(self, value: Any, path: str) -> Tree:
        """The leaf for `value`, of any type.

        Raises:
            NotStorable: nobody here knows its type.
        """
        met = self._met.get(id(value))
        if met is None:
            found = self._kit.leaf(value, path, self)
            if not isinstance(value, self._kit.tensor):
                return self._arrays(value, path) if found is None else found
            met = self._met[id(value)] = value, found
        return met[1]

    def dense(self, tensor: Any, path: str, **details: Tree) -> Tree:
        """The leaf of one that is a block of memory."""
        slot = self._slots.take(path)
        if slot is None or slot.form.same != self._kit.same(tensor):
            form = self._kit.form(tensor, keep_order=True)
            self._memory.expect([form.size])
            slot = Slot(form, self._memory)
        else:
            slot.renew()
        self._slots.keep(path, slot)
        self.copies.add(slot, tensor)
        return slot.leaf(**details)


class Recorder:
    """Captures one part: here, one that tells its own state. An optimizer's plans once, and checks cheaply that the
    plan still holds.

    `_leaves` are those of values that may be on any device, `_state_leaves` of those that go where a parameter is.
    """

    def __init__(self, part: str, target: Any, kit: Kit, memory: HostMemory) -> None:
        self.part = part
        self.target = target
        self._kit, self._memory = kit, memory
        self._leaves = TensorLeaves(kit, memory, devices=True)
        self._state_leaves = TensorLeaves(kit, memory, devices=False)

    def refresh(self, names: ParameterNames) -> None:
        """Plan anew if the part changed since.

        Raises:
            NotStorable: it cannot be kept.
            MemoryFull: there is no room for a copy of it.
        """

    def record(self, copies: Copies) -> Tree:
        """Its tree; tensors in it are filled when `copies` runs. After `refresh`.

        Raises:
            NotStorable: a value in it has no form that can be kept.
        """
        self._leaves.turn(copies)
        self._state_leaves.turn(copies)
        tree = self.tree(copies)
        self._leaves.sweep()
        self._state_leaves.sweep()
        return tree

    def tree(self, copies: Copies) -> Tree:
        """What `record` gives."""
        return self._kit.tell(self.part, self.target, self._leaves)


# The tree of a module is {"kind": "module", "weights", "transient", and what is the framework's own}. `weights` has the
# names and order of the bare module's `state_dict()`; a tied tensor is there under each name, as one object.
# `transient` are the non-persistent buffers (None where a buffer is None).


class ModuleRecorder:
    """Captures one module."""

    def __init__(self, part: str, module: Any, kit: Kit, memory: HostMemory) -> None:
        self.part = part
        self.target = module
        self._kit, self._memory = kit, memory
        self._leaves = TensorLeaves(kit, memory, devices=False)
        self._slots: SlotCache[Slot] = SlotCache()
        self._tensors: Tensors | None = None
        self.references: Mapping[str, Reference] = {}  # by name: what is not to be stored
        self.base = ""  # and where that comes from

    def refresh(self) -> bool:
        """Plan anew if the module changed since. True when so."""
        if self._tensors is not None and self._places.unchanged() and self._tensors.unchanged():
            changed = not all(map(self._kit.is_unfilled, self._unfilled))
        else:
            changed = True
        if changed:
            self._new_plan()
        return changed

    def parameters(self) -> Iterator[tuple[str, Any]]:
        """Each parameter, under each of its names."""
        return self._places.parameters()

    def record(self, copies: Copies) -> Tree:
        if self._tensors is not None:
            copies.take(self._tensors)
        self._leaves.turn(copies)
        for place in self._scattered:
            section = self._weights if place.kept else self._transient
            section[place.name] = self._leaves(place.tensor, f"{self.part}.{place.name}")
        extra = self._kit.beside(self.part, self._places, self._leaves)
        self._leaves.sweep()
        base = {"base": self.base} if self.references else {}
        return {"kind": "module", "weights": self._weights, "transient": self._transient, **extra, **base}

    def _new_plan(self) -> None:
        kit, places = self._kit, TensorPlaces(self._kit.module_layout, self.target)
        places.refuse_hidden(self.part)
        weights: dict[str, Tree] = {}
        transient: dict[str, Tree] = {}
        plan, scattered, unfilled = Plan(kit, self._memory, self._slots), [], []
        for place in places.places:
            tensor, path = place.tensor, f"{self.part}.{place.name}"
            if tensor is None:
                transient |= {} if place.kept else {place.name: None}
            elif kit.is_unfilled(place):
                unfilled.append(place)
            elif kit.is_scattered(tensor):
                scattered.append(place)
            else:
                frozen = kit.is_frozen(place) and self.references.get(place.name, True)
                plan.show(tensor, path, weights if place.kept else transient, place.name, frozen=frozen)
        self._tensors = plan.tensors(keep_order=False)
        self._places, self._scattered, self._unfilled = places, scattered, unfilled
        self._weights, self._transient = weights, transient


class Recorders:
    """The recorders of all parts, and the names of the parameters that they share. `references`: by part, what of its
    frozen tensors is not to be stored, and where that comes from."""

    def __init__(self, kit: Kit, memory: HostMemory) -> None:
        self._kit, self._memory = kit, memory
        self._all: dict[str, ModuleRecorder | Recorder] = {}
        self._named: list[str] = []  # the modules of which these are the names
        self._names = ParameterNames(())
        self.references: dict[str, tuple[str, Mapping[str, Reference]]] = {}

    def refresh(self, parts: Mapping[str, object]) -> None:
        """Plan for exactly these parts; the memory of those that are gone is let go.

        Raises:
            NotStorable: a part cannot be kept.
            MemoryFull: there is no room for a copy of it.
        """
        self._all = {name: self._recorder(name, target) for name, target in parts.items()}
        modules = {name: each for name, each in self._all.items() if isinstance(each, ModuleRecorder)}
        named, self._named = self._named, []  # where a module raises, those before it may have new names already
        renamed = [module.refresh() for module in modules.values()]
        if any(renamed) or list(modules) != named:
            self._names = ParameterNames((name, module.parameters()) for name, module in modules.items())
        self._named = list(modules)
        for each in self._all.values():
            if isinstance(each, Recorder):
                each.refresh(self._names)

    def record(self, parts: Mapping[str, object], copies: Copies) -> dict[str, Tree]:
        """The trees of all parts; their tensors are filled when `copies` runs. After `refresh`.

        Raises:
            NotStorable: a part cannot be kept.
        """
        return {name: self._all[name].record(copies) for name in parts}

    def _recorder(self, name: str, target: object) -> ModuleRecorder | Recorder:
        known = self._all.get(name)
        if known is not None and known.target is target:
            return known
        if isinstance(target, self._kit.module):
            module = ModuleRecorder(name, target, self._kit, self._memory)
            module.base, module.references = self.references.get(name, ("", {}))
            return module
        kind = self._kit.optimizer_recorder if isinstance(target, self._kit.optimizer) else Recorder
        return kind(name, target, self._kit, self._memory)

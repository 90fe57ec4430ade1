"""What the adapters of deep-learning frameworks have in common: they find out what each part is, and hand it to what
knows its kind.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any

from colabkeep.core.errors import MemoryFull
from colabkeep.core.settings import Item
from colabkeep.core.state import Capture, Stateful, Tree
from colabkeep.frameworks.base import Framework
from colabkeep.frameworks.shared.boundary import opaque_parts, updated_by_hand
from colabkeep.frameworks.shared.capture import Captures, Kit, ParameterNames, Recorders, Reference, TensorPlaces
from colabkeep.frameworks.shared.describe import Describe, described
from colabkeep.frameworks.shared.host_memory import FrozenTensor, HostMemory, Proof
from colabkeep.frameworks.shared.restore import untrained
from colabkeep.frameworks.shared.rng import GlobalStreams
from colabkeep.frameworks.shared.trees import missing_parts, object_differences, shortened

_HASHERS = 4  # threads: each hashes about a gigabyte a second, and whoever trains has few cores


class Adapter(Framework):
    """See `colabkeep.frameworks.base.Framework`. `kinds`: what the framework owns; `describe`: the items of a module
    without parameters. `memory`: where copies of the state go; None: what this machine has."""

    kinds: tuple[type[Any], ...]
    describe: Describe

    def __init__(self, kit: Kit, streams: GlobalStreams, memory: HostMemory | None = None) -> None:
        self._kit = kit
        self._streams = streams
        self._memory = memory or HostMemory()
        self._captures = Captures()
        self._recorders = Recorders(kit, self._memory)

    def owns(self, obj: object) -> bool:
        return isinstance(obj, self.kinds)

    def capture(self, parts: Mapping[str, object]) -> Capture:
        with self.copying(), self._captures.begin() as begun:
            copies = self._kit.copies()
            self._recorders.refresh(parts)
            begun.parts.update(self._recorders.record(parts, copies))
            copies.run()
            self._memory.captured()
            begun.rest, begun.keep = copies.finish, copies.stored
            begun.remark = copies.remark or self._memory.remark
        return begun

    def rehearse(self, parts: Mapping[str, object]) -> Capture:
        with self.copying(), self._captures.begin() as begun:
            self._recorders.refresh(parts)
            begun.parts.update(self._recorders.record(parts, self._kit.copies()))
        return begun

    def prepare(self, parts: Mapping[str, object]) -> None:
        """Get the memory that saves will be copied to. No save waits for it then."""
        if self._captures.borrower is None:  # the save that uses it has it
            with self.copying(), suppress(MemoryFull):  # the save that cannot do without will say so
                self._recorders.refresh(parts)

    def copying(self) -> AbstractContextManager[Any]:
        """What is around planning and copying."""
        raise NotImplementedError

    def checksums(self, parts: Mapping[str, object], named: Mapping[str, Container[str]]) -> dict[str, dict[str, str]]:
        found = {}
        for part, names in named.items():
            tensors = {
                place.name: place.tensor
                for place in TensorPlaces(self._kit.module_layout, parts[part]).places
                if place.tensor is not None and (place.name in names or (place.constant and place.weight in names))
            }
            with ThreadPoolExecutor(_HASHERS) as pool:
                sums = pool.map(self._kit.checksum, tensors.values())
                found[part] = {name: each.hex() for name, each in zip(tensors, sums, strict=True) if each is not None}
        return found

    def tensors(self, module: object, names: Container[str]) -> dict[str, Any]:
        places = TensorPlaces(self._kit.module_layout, module).places
        return {place.name: place.tensor.detach() for place in places if place.name in names}

    def refer(self, parts: Mapping[str, object], part: str, checksums: Mapping[str, str], base: str) -> int:
        places = TensorPlaces(self._kit.module_layout, parts[part]).places
        chosen = {
            place.name: place.tensor
            for place in places
            if place.name in checksums and self._kit.is_frozen(place) and self._kit.is_referable(place.tensor)
        }
        with self.copying():
            copies = self._kit.copies()
            now = {name: self._kit.frozen_now(tensor, copies) for name, tensor in chosen.items()}
            copies.run()
            copies.finish()
        references = {
            name: Reference(checksums[name], Proof(*frozen[:2], _proven_by(frozen, checksums[name])))
            for name, frozen in now.items()
        }
        self._recorders.references[part] = base, references
        own = {id(each): self._kit.size(each) for each in chosen.values()}
        return sum(own.values())

    def check(self, parts: Mapping[str, object], trees: Mapping[str, Tree]) -> Sequence[str]:
        lines = missing_parts(list(parts), list(trees))
        names = self._names(parts)
        for name, target in parts.items():
            if name in trees:
                lines += self.differences(name, target, trees[name], names)
        return shortened(lines)

    def differences(self, name: str, target: Any, tree: Tree, names: ParameterNames) -> Iterable[str]:
        """Those of one part."""
        return object_differences(name, target, tree)

    def untrained(self, parts: Mapping[str, object]) -> str:
        models = {name: list(model.named_parameters()) for name, model in self.of(parts, self._kit.module).items()}
        held = [each for part in self.of(parts, self._kit.optimizer).values() for each in self.trains(part)]
        return untrained(models, held, [name for name, each in models.get("model", ()) if self.is_trained(each)])

    def trains(self, optimizer: Any) -> Iterable[Any]:
        """The parameters that an optimizer holds."""
        raise NotImplementedError

    def is_trained(self, parameter: Any) -> bool:
        """Does it ask for gradients?"""
        raise NotImplementedError

    def restore(self, parts: Mapping[str, object], trees: Mapping[str, Tree]) -> None:
        names = self._names(parts)
        for name, tree in trees.items():
            self.restore_part(name, parts[name], tree, names)

    def restore_part(self, name: str, target: Any, tree: Tree, names: ParameterNames) -> None:
        """One of them."""
        raise NotImplementedError

    def rng(self) -> Stateful:
        return self._streams

    def described(self, value: object) -> Mapping[str, Item]:
        return described(value, type(self).describe)

    def of(self, parts: Mapping[str, object], kind: type[Any]) -> dict[str, Any]:
        """Those parts that are of this kind."""
        return {name: part for name, part in parts.items() if isinstance(part, kind)}

    def opaque(self, parts: Mapping[str, object]) -> list[str]:
        """The names of parts that may change at any moment, unheard."""
        by_hand = updated_by_hand(parts, self._kit.module, self._kit.optimizer, self.is_trained)
        return [*opaque_parts(parts, *self.kinds), *by_hand]

    def _names(self, parts: Mapping[str, object]) -> ParameterNames:
        modules = self.of(parts, self._kit.module)
        return ParameterNames(
            (n, TensorPlaces(self._kit.module_layout, each).parameters()) for n, each in modules.items()
        )


def _proven_by(frozen: FrozenTensor, checksum: str) -> bytes | None:
    """What the checksum of a later capture is compared with."""
    return bytes.fromhex(checksum) if frozen.landing is None else frozen.landing.bytes

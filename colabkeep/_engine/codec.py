"""A snapshot's trees as packs of tensors plus typed JSON, and back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colabkeep._engine.grouping import Grouping, Home, Members
from colabkeep._engine.packs import Pack
from colabkeep._engine.reading import UnknownKind
from colabkeep._engine.typed import decode, encode, tensor_node
from colabkeep.vocabulary.priority import Breather
from colabkeep.vocabulary.state import HostTensor, Tree

__all__ = ["Encoded", "Encoder", "decode_part", "encode_parts", "references"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The JSON form of each part, whose tensors are [number of the pack, key in it]."""

    parts: Mapping[str, Any]
    packs: Sequence[Pack]


class _Walk:
    """One walk through the parts of a snapshot: their JSON, and the tensors met, by home.

    `node` gives what stands for a tensor, by its key; the same object in one checkpoint after another, so that many
    that are kept take little memory.
    """

    def __init__(self, node: Callable[[str], Any]) -> None:
        self.tensors: dict[Home, Members] = {}
        self._node = node
        self._part = ""
        self._keys: dict[int, str] = {}  # by the tensor's id
        self._taken = {"__metadata__"}  # means something else to readers of safetensors
        self._breather = Breather()

    def trees(self, parts: Mapping[str, Tree]) -> dict[str, Any]:
        """The JSON of each part.

        Raises:
            NotStorable: a value cannot be kept.
        """
        found = {}
        for name, tree in parts.items():
            self._part = name
            found[name] = encode(tree, name, self._put)
        return found

    def _put(self, tensor: HostTensor, path: str) -> Any:
        self._breather.breathe()
        key = self._keys.get(id(tensor))
        if key is None:
            key, n = path, 2
            while key in self._taken:  # {"a.b": …} and {"a": {"b": …}} have one path
                key, n = f"{path}#{n}", n + 1
            self._taken.add(key)
            self._keys[id(tensor)] = key
            self.tensors.setdefault((self._part, tensor.frozen), {})[key] = tensor
        return self._node(key)


class Encoder:
    """Encodes one snapshot after another. Packs in which nothing has changed since the one before are the same
    objects."""

    def __init__(self) -> None:
        self._grouping = Grouping()
        self._foretold = self._grouping.pack_of
        self._nodes: Mapping[str, Any] = {}

    def encode(self, parts: Mapping[str, Tree]) -> Encoded:
        """Plan the packs and the JSON of a snapshot; nothing is copied, hashed or written yet.

        Raises:
            NotStorable: a value cannot be kept; the error names its path.
        """
        walk = _Walk(self._nodes.get)
        trees = walk.trees(parts)
        packs = self._grouping.packs(walk.tensors)
        pack_of = self._grouping.pack_of
        if pack_of is not self._foretold:
            # Which pack a tensor is in depends on how large its group becomes: only now is it known that it changed.
            self._nodes = {key: tensor_node([number, key]) for key, number in pack_of.items()}
            self._foretold = pack_of  # last: if that failed, the next snapshot makes them
            trees = _Walk(self._nodes.__getitem__).trees(parts)
        return Encoded(parts=trees, packs=packs)


def encode_parts(parts: Mapping[str, Tree]) -> Encoded:
    """One snapshot alone.

    Raises:
        NotStorable: as `Encoder.encode`.
    """
    return Encoder().encode(parts)


def decode_part(node: Any, packs: Sequence[Mapping[str, HostTensor]]) -> Tree:
    """The tree of one part, its tensors taken from the unpacked `packs`. Equal references, one object.

    Raises:
        UnknownKind: a value of a kind that a newer version may know.
        ValueError: the node is not one that `encode_parts` makes.
    """

    def get(reference: Any) -> HostTensor:
        number, key = reference
        if number < 0:
            raise IndexError(number)
        tensor: HostTensor = packs[number][key]
        return tensor

    try:
        return decode(node, get)
    except UnknownKind:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(f"a value of the state is not one that colabkeep writes ({error!r:.200})") from error


def references(node: Any) -> Iterator[tuple[int, str]]:
    """The tensors that the JSON form of a part (or of all) names: number of the pack and key, as often as named."""
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo.extend(node)
        elif isinstance(node, dict):
            match node.get("$tensor"):
                case [int(number), str(key)]:
                    yield number, key
            todo.extend(node.values())

"""A snapshot's trees as packs of tensors plus typed JSON, and back."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colabkeep._engine.grouping import Grouping, Place
from colabkeep._engine.packs import Pack
from colabkeep._engine.typed import decode, encode
from colabkeep.vocabulary.state import HostTensor, Tree

__all__ = ["Encoded", "decode_part", "encode_parts", "references"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The JSON form of each part, whose tensors are [number of the pack, key in it]."""

    parts: Mapping[str, Any]
    packs: Sequence[Pack]


class _Planner:
    """Gives each tensor a key; knows its pack only when all tensors are seen.

    References are lists that are filled in at the end, because the pack of a tensor depends on how
    large its group becomes. Keys are unique over all parts, since small groups share a pack.
    """

    def __init__(self) -> None:
        self._part = ""
        self._references: dict[int, list[Any]] = {}
        self._filled: dict[str, list[Any]] = {}
        self._places: dict[str, Place] = {}
        self._taken = {"__metadata__"}  # means something else to readers of safetensors

    def part(self, name: str) -> None:
        self._part = name

    def put(self, tensor: HostTensor, path: str) -> list[Any]:
        known = self._references.get(id(tensor))
        if known is not None:
            return known
        key, n = path, 2
        while key in self._taken:  # {"a.b": …} and {"a": {"b": …}} have one path
            key, n = f"{path}#{n}", n + 1
        self._taken.add(key)
        reference: list[Any] = []
        self._filled[key] = reference
        self._places[key] = Place((self._part, tensor.frozen), tensor)
        self._references[id(tensor)] = reference
        return reference

    def packs(self, grouping: Grouping) -> list[Pack]:
        packs = grouping.packs(self._places)
        for number, (keys, _) in enumerate(packs):
            for key in keys:
                self._filled[key][:] = number, key
        return [pack for _, pack in packs]


def encode_parts(parts: Mapping[str, Tree], grouping: Grouping | None = None) -> Encoded:
    """Plan the packs and the JSON of a snapshot; nothing is copied, hashed or written yet.

    With the `grouping` that was shown the snapshot before, packs in which nothing has changed are the same objects.

    Raises:
        NotStorable: a value cannot be kept; the error names its path.
    """
    planner = _Planner()
    trees = {}
    for name, tree in parts.items():
        planner.part(name)
        trees[name] = encode(tree, name, planner.put)
    return Encoded(parts=trees, packs=planner.packs(grouping or Grouping()))


def decode_part(node: Any, packs: Sequence[Mapping[str, HostTensor]]) -> Tree:
    """The tree of one part, its tensors taken from the unpacked `packs`. Equal references, one object.

    Raises:
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

"""A snapshot's trees as packs of tensors plus typed JSON, and back."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colabkeep._engine.packs import Pack
from colabkeep._engine.typed import decode, encode
from colabkeep.vocabulary.state import HostTensor, Tree

__all__ = ["Encoded", "decode_part", "encode_parts", "references"]

PACK_BYTES = 256 * 2**20
"""A pack is closed when it has this many bytes: few files for Drive and Kaggle, none too large to send again."""

SMALL_BYTES = 4 * 2**20
"""Groups below this share one pack, so that a small model is one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The JSON form of each part, whose tensors are [number of the pack, key in it]."""

    parts: Mapping[str, Any]
    packs: Sequence[Pack]


class _Planner:
    """Gives each tensor a key and a group; knows the packs only when all tensors are seen.

    References are lists that are filled in at the end, because the pack of a tensor depends on how
    large its group becomes. Keys are unique over all groups, since small ones share a pack.
    """

    def __init__(self) -> None:
        self._part = ""
        self._references: dict[int, list[Any]] = {}
        self._groups: dict[tuple[str, bool], dict[str, tuple[HostTensor, list[Any]]]] = {}
        self._taken = {"__metadata__"}  # means something else to readers of safetensors

    def part(self, name: str) -> None:
        self._part = name

    def put(self, tensor: HostTensor, path: str) -> list[Any]:
        known = self._references.get(id(tensor))
        if known is not None:
            return known
        group = self._groups.setdefault((self._part, tensor.frozen), {})
        key, n = path, 2
        while key in self._taken:  # {"a.b": …} and {"a": {"b": …}} have one path
            key, n = f"{path}#{n}", n + 1
        self._taken.add(key)
        reference: list[Any] = []
        group[key] = tensor, reference
        self._references[id(tensor)] = reference
        return reference

    def packs(self) -> list[Pack]:
        small: dict[str, tuple[HostTensor, list[Any]]] = {}
        bins: list[dict[str, tuple[HostTensor, list[Any]]]] = []
        for (_, frozen), group in self._groups.items():
            total = sum(tensor.data.nbytes for tensor, _ in group.values())
            if total < SMALL_BYTES and not frozen:
                small.update(group)
            else:
                bins += _split(group)
        bins += _split(small)
        for number, members in enumerate(bins):
            for key, (_, reference) in members.items():
                reference[:] = number, key
        return [Pack({key: tensor for key, (tensor, _) in members.items()}) for members in bins]


def _split(
    group: Mapping[str, tuple[HostTensor, list[Any]]],
) -> list[dict[str, tuple[HostTensor, list[Any]]]]:
    bins: list[dict[str, tuple[HostTensor, list[Any]]]] = []
    room = -1
    for key, (tensor, reference) in group.items():
        if not bins or tensor.data.nbytes > room:
            bins.append({})
            room = PACK_BYTES
        bins[-1][key] = tensor, reference
        room -= tensor.data.nbytes
    return bins


def encode_parts(parts: Mapping[str, Tree]) -> Encoded:
    """Plan the packs and the JSON of a snapshot; nothing is copied, hashed or written yet.

    Raises:
        NotStorable: a value cannot be kept; the error names its path.
    """
    planner = _Planner()
    trees = {}
    for name, tree in parts.items():
        planner.part(name)
        trees[name] = encode(tree, name, planner.put)
    packs = planner.packs()
    return Encoded(parts=trees, packs=packs)


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

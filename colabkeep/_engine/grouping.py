"""Which tensors are packed together: those that change together, so that the others need not be written again.

A tensor is as it was when it is the very `HostTensor` object of the snapshot before, and said that it is `lasting`.
All tensors of a part begin as one group, what is frozen apart. Where only some of a group have changed, it is divided,
and stays so. What has changed is packed anew, for it is written in any case; what has not stays in the packs that it
was in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from colabkeep._engine.packs import Pack
from colabkeep.vocabulary.state import HostTensor

__all__ = ["PACK_BYTES", "SMALL_BYTES", "Grouping", "Place"]

PACK_BYTES = 256 * 2**20
"""A pack is closed when it has this many bytes: few files for Drive and Kaggle, none too large to send again."""

SMALL_BYTES = 4 * 2**20
"""Groups below this share one pack, so that a small model is one file; nor is a group divided to spare fewer."""

_MOST = 8  # groups of one home that stayed, and as many that changed: more are joined, so that the files stay few

Home: TypeAlias = tuple[str, bool]
"""The part that a tensor belongs to, and whether it is frozen there."""


class Place(NamedTuple):
    """A tensor of a snapshot and its home."""

    home: Home
    tensor: HostTensor


Members: TypeAlias = dict[str, HostTensor]
_Groups: TypeAlias = dict[Home, list[Members]]


class _Past(NamedTuple):
    """Of a tensor in the snapshot before: its place, the number of its group, and that of its pack."""

    place: Place
    group: int
    pack: int


class Grouping:
    """Remembers the last snapshot that it was shown, and which tensors have always changed together.

    What it remembers keeps the memory of those tensors alive until the next snapshot, by when it is reused.
    """

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}
        self._packs: dict[tuple[str, ...], tuple[Sequence[HostTensor], Pack]] = {}

    def packs(self, snapshot: Mapping[str, Place]) -> list[tuple[Sequence[str], Pack]]:
        """The packs of a snapshot, each with the keys of its tensors.

        One whose tensors are all as they were is the same `Pack` object as before, its digest known.
        """
        stayed, changed = self._divided(snapshot)
        bins = [one for some in stayed.values() for one in some]
        small: Members = {}
        for (_, frozen), some in changed.items():
            for one in some:
                if frozen or _size(one) >= SMALL_BYTES:
                    bins += _split(one)
                else:
                    small |= one
        self._packs = {tuple(one): self._pack(one) for one in [*bins, *_split(small)]}
        numbers = {key: number for number, keys in enumerate(self._packs) for key in keys}
        groups = chain.from_iterable((*stayed.values(), *changed.values()))
        self._past = {key: _Past(snapshot[key], group, numbers[key]) for group, one in enumerate(groups) for key in one}
        return [(keys, pack) for keys, (_, pack) in self._packs.items()]

    def _divided(self, snapshot: Mapping[str, Place]) -> tuple[_Groups, _Groups]:
        """By home: what stayed as it was, in the packs that it was in; and what has changed, group by group."""
        found: dict[tuple[Home, int], tuple[Members, Members]] = defaultdict(lambda: ({}, {}))
        for key, place in snapshot.items():
            past = self._past.get(key)
            group = past.group if past is not None and past.place.home == place.home else -1
            stays = past is not None and _as_it_was(past.place.tensor, place.tensor)
            found[place.home, group][0 if stays else 1][key] = place.tensor
        stayed: _Groups = defaultdict(list)
        changed: _Groups = defaultdict(list)
        for (home, _), (still, moved) in found.items():
            if _size(still) < SMALL_BYTES and (moved or not home[1]):
                together = still.keys() | moved.keys()
                changed[home].append({key: snapshot[key].tensor for key in snapshot if key in together})
                continue
            stayed[home] += self._as_packed(still)
            if moved:
                changed[home].append(moved)
        return _few(stayed), _few(changed)

    def _as_packed(self, still: Members) -> list[Members]:
        bins: dict[int, Members] = defaultdict(dict)
        for key, tensor in still.items():
            bins[self._past[key].pack][key] = tensor
        return list(bins.values())

    def _pack(self, members: Members) -> tuple[Sequence[HostTensor], Pack]:
        tensors = list(members.values())
        before = self._packs.get(tuple(members))
        if before is not None and all(map(_as_it_was, before[0], tensors)):
            return before
        return tensors, Pack(members)


def _as_it_was(before: HostTensor, now: HostTensor) -> bool:
    return now is before and now.lasting


def _few(groups: _Groups) -> _Groups:
    """The same with small ones joined: whoever freezes a hundred layers one by one gets no hundred files.

    The smaller half at once, so that a tensor is joined, and written again for it, no more than a few times in all.
    """
    for some in groups.values():
        while len(some) > 1:
            sizes = sorted(map(_size, some))
            number = len(some) // 2 + 1 if len(some) > _MOST else 2 if sizes[1] < SMALL_BYTES else 0
            if not number or sum(sizes[:number]) > PACK_BYTES:
                break
            joined = dict(chain.from_iterable(one.items() for one in sorted(some, key=_size)[:number]))
            some[:] = [*(one for one in some if one.keys().isdisjoint(joined)), joined]
    return groups


def _split(members: Members) -> list[Members]:
    bins: list[Members] = []
    room = -1
    for key, tensor in members.items():
        if not bins or tensor.data.nbytes > room:
            bins.append({})
            room = PACK_BYTES
        bins[-1][key] = tensor
        room -= tensor.data.nbytes
    return bins


def _size(members: Members) -> int:
    return sum(tensor.data.nbytes for tensor in members.values())

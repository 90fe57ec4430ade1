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
from typing import TypeAlias

from colabkeep._engine.packs import Pack
from colabkeep.vocabulary.state import HostTensor

__all__ = ["PACK_BYTES", "SMALL_BYTES", "Grouping", "Home", "Members"]

PACK_BYTES = 256 * 2**20
"""A pack is closed when it has this many bytes: few files for Drive and Kaggle, none too large to send again."""

SMALL_BYTES = 4 * 2**20
"""Groups below this share one pack, so that a small model is one file; nor is a group divided to spare fewer."""

_MOST = 8  # groups of one home that stayed, and as many that changed: more are joined, so that the files stay few

Home: TypeAlias = tuple[str, bool]
"""The part that tensors belong to, and whether they are frozen there."""

Members: TypeAlias = dict[str, HostTensor]
_Groups: TypeAlias = dict[Home, list[Members]]


class Grouping:
    """Remembers the last snapshot that it was shown, and which tensors have always changed together.

    What it remembers keeps the memory of those tensors alive until the next snapshot, by when it is reused. It is kept
    in few containers: each that is made anew for each tensor brings the garbage collector's great round nearer, which
    stops training for 0.2 s.
    """

    def __init__(self) -> None:
        self.pack_of: Mapping[str, int] = {}
        """Key → number of its pack; the very same mapping as long as it is the same."""
        self._before: Mapping[Home, Members] = {}
        self._groups: Mapping[str, int] = {}
        self._packs: dict[tuple[str, ...], tuple[Sequence[HostTensor], Pack]] = {}

    def packs(self, snapshot: Mapping[Home, Members]) -> list[Pack]:
        """The packs of a snapshot; no key is in two homes.

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
        packs = {tuple(one): self._pack(one) for one in [*bins, *_split(small)]}
        pack_of = {key: number for number, keys in enumerate(packs) for key in keys}
        every = chain.from_iterable((*stayed.values(), *changed.values()))
        groups = {key: group for group, one in enumerate(every) for key in one}
        # All at once: what was planned by halves, as where memory is short, must not be remembered.
        self._packs, self._groups, self._before = packs, groups, snapshot
        if pack_of != self.pack_of:
            self.pack_of = pack_of
        return [pack for _, pack in self._packs.values()]

    def _divided(self, snapshot: Mapping[Home, Members]) -> tuple[_Groups, _Groups]:
        """By home: what stayed as it was, in the packs that it was in; and what has changed, group by group."""
        stayed: _Groups = defaultdict(list)
        changed: _Groups = defaultdict(list)
        for home, members in snapshot.items():
            before = self._before.get(home, {})
            found: dict[int, tuple[Members, Members]] = defaultdict(lambda: ({}, {}))
            for key, tensor in members.items():
                was = before.get(key)
                group = -1 if was is None else self._groups[key]
                found[group][0 if was is not None and _as_it_was(was, tensor) else 1][key] = tensor
            for still, moved in found.values():
                if _size(still) < SMALL_BYTES and (moved or not home[1]):
                    together = still.keys() | moved.keys()
                    changed[home].append({key: members[key] for key in members if key in together})
                    continue
                stayed[home] += self._as_packed(still)
                if moved:
                    changed[home].append(moved)
        return _few(stayed), _few(changed)

    def _as_packed(self, still: Members) -> list[Members]:
        bins: dict[int, Members] = defaultdict(dict)
        for key, tensor in still.items():
            bins[self.pack_of[key]][key] = tensor
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

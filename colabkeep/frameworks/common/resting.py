"""What rests: frozen tensors whose bytes are stored, and were let go of. How they are known to be as they were stored.

A frozen tensor is copied once. When that is stored, the copy is let go of, and from then on the checksum of all the
tensor's bytes, taken behind training, says whether they are those that are stored. If they are not, the snapshot is
stale, and the tensor counts as trained from then on.

Nothing is concluded from version counters: they do not see writes through NumPy, and by much else. One that has moved
is a reason to copy, no more.
"""

from __future__ import annotations

import builtins
from typing import Generic, NamedTuple, Protocol, TypeVar

from colabkeep.frameworks.common.checksums import Reader

__all__ = ["LET_GO", "READS", "Frozen", "Proof", "Resting"]

LET_GO = 2**17
"""Bytes; fewer are not worth a proof."""

READS = Reader.works()
"""Can memory be read here that may be given back meanwhile?"""


class Proof(NamedTuple):
    """What tells that a tensor is as it was stored: the checksum of its bytes. The address and the version that it had
    only tell when it is not."""

    address: int
    version: int | None
    checksum: bytes | None


class Owner(Protocol):
    """Of the copy of a frozen tensor: a slot."""

    proof: Proof | None
    restless: bool

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        ...

    @property
    def address(self) -> int:
        """Where its copy is."""
        ...


class Sum(Protocol):
    """A checksum on its way from a device."""

    @property
    def bytes(self) -> builtins.bytes | None:
        """It has come; None if it was lost."""
        ...


Slot = TypeVar("Slot", bound=Owner)


class Frozen(NamedTuple):
    """A frozen tensor at a capture. Its memory is held, so that nobody else is given it meanwhile."""

    address: int
    version: int | None
    held: object
    landing: Sum | None = None
    """Of a device, where its checksum comes to."""


class Resting(Generic[Slot]):
    """The frozen tensors of one part. One capture is `begin`, `rests` for each, `prove`; then `stored`, if it is."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A capture begins."""
        self._resting: list[tuple[Slot, Frozen]] = []  # not copied, to be proven
        self._copied: list[tuple[Slot, Frozen]] = []  # will rest
        self._proofs: list[tuple[Slot, Proof]] = []

    def rests(self, slot: Slot, frozen: Frozen, *, recalled: bool) -> bool:
        """Does it seem to be as it is stored? It is proven later then; else it is to be copied now."""
        known = slot.proof is not None and slot.proof[:2] == frozen[:2] and not recalled
        (self._resting if known else self._copied).append((slot, frozen))
        return known

    def prove(self, reader: Reader) -> bool:
        """The copies are made, and training goes on: has all that was not copied the bytes that are stored?"""
        wrong = [slot for slot, frozen in self._resting if not _is_as_stored(slot, frozen, reader)]
        for slot in wrong:
            slot.restless = True
        self._proofs = [(slot, _proof(slot, frozen, reader)) for slot, frozen in self._copied]
        self._resting, self._copied = [], []  # their memory is the user's alone again
        return not wrong

    def stored(self) -> list[tuple[Slot, Proof]]:
        """The snapshot is stored: what rests from now on, with its proof."""
        proofs, self._proofs = self._proofs, []
        return proofs


def _is_as_stored(slot: Owner, frozen: Frozen, reader: Reader) -> bool:
    now = reader.checksum(frozen.address, slot.size) if frozen.landing is None else frozen.landing.bytes
    return slot.proof is not None and now is not None and now == slot.proof.checksum


def _proof(slot: Owner, frozen: Frozen, reader: Reader) -> Proof:
    """That of the copy, which is what is stored."""
    checksum = reader.checksum(slot.address, slot.size) if frozen.landing is None else frozen.landing.bytes
    return Proof(frozen.address, frozen.version, checksum)

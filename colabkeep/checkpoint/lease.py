"""Who writes this run: each session takes the next fencing number; the highest (number, session) wins.

A lease is one sealed record, written once. A killed session's lease stops nobody. A zombie, that is
an old machine that still runs after the user moved on, finds a higher number before its next
commit and stops.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from colabkeep.checkpoint.repository import Repository
from colabkeep.core.errors import CheckpointDamaged, NameTaken, ObjectNotFound, RunTakenOver
from colabkeep.core.sealed import seal
from colabkeep.stores.base import BytesSource

__all__ = ["KEEPS", "LEASE_FILE", "Lease", "fences", "take_lease"]

LEASE_FILE = re.compile(r"(\d{6,12})-([0-9a-f]{8})\.json")
KEEPS = "keeps"
"""What a lease's record calls the rule by which its session kept checkpoints, in any words that say the same for the
same rule."""

_MOST = 10**12  # no run has as many sessions: a higher number is not ours, and could not be outranked


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """This session's right to write the run, as long as no higher one exists."""

    repository: Repository
    session: str
    fence: int
    about: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """See that no newer session has come.

        Raises:
            RunTakenOver: one has; this session's work since then is not part of the run.
        """
        highest = max(((fence, session) for session, fence in _leases(self.repository).items()), default=(0, ""))
        if highest <= (self.fence, self.session):
            return
        raise RunTakenOver(
            problem=(
                f"The run {self.repository.run!r} was taken over by session {highest[1]}"
                f"{_who(self.repository, *highest)}; this one is session {self.session}. "
                "What it trains from now on would not be part of the run, so it stops."
            ),
            remedy="Go on in the notebook that took over; or stop that one and run this cell again.",
        )

    def stands(self) -> bool:
        """Is this session's own record there still? One that a listing lacks is asked for by its name.

        Raises:
            StoreError: the store could not be asked.
        """
        if self.session in _leases(self.repository):
            return True
        try:
            self.repository.store.get(self._name).close()
        except ObjectNotFound:
            return False
        return True

    def keeps_like(self, fence: int, session: str) -> bool:
        """Was that session told to keep the same checkpoints as this one? Not known of those of the first versions.

        Raises:
            StoreError: the store could not be asked.
        """
        try:
            record = self.repository.sealed_record(f"lease/{fence:06d}-{session}.json")
        except CheckpointDamaged:
            return False
        return KEEPS in self.about and record.get(KEEPS) == self.about[KEEPS]

    def renew(self) -> None:
        """Write the record; one that is there already stays.

        Raises:
            StoreError: it could not be written.
        """
        record = {"session": self.session, "fence": self.fence, **self.about}
        with suppress(NameTaken):
            self.repository.store.put(self._name, BytesSource(seal(record)))

    @property
    def _name(self) -> str:
        return f"{self.repository.folder}/lease/{self.fence:06d}-{self.session}.json"


def fences(repository: Repository) -> dict[str, int]:
    """Session → fencing number, of all sessions that ever wrote this run.

    Where a lease was lost, a manifest of that session says the same, if it was there when anybody looked last.
    """
    found = _leases(repository)
    for id in repository.seen_ids():
        session = id.split("-")[1]
        if session not in found:
            found.update((manifest.session, manifest.fence) for manifest in repository.manifests([id]))
    return found


def _leases(repository: Repository) -> dict[str, int]:
    found = map(LEASE_FILE.fullmatch, repository.files("lease"))
    return {match[2]: int(match[1]) for match in found if match is not None}


def take_lease(repository: Repository, session: str, about: Mapping[str, Any]) -> Lease:
    """Take the next fencing number. `about` says who this is (machine, process, start), for people to read.

    Raises:
        RunTakenOver: another session took it at this very moment.
        CheckpointDamaged: the highest number is one that no session can have taken.
    """
    fence = max(fences(repository).values(), default=0) + 1
    if fence >= _MOST:
        raise CheckpointDamaged(
            problem=f"A file of the run {repository.run!r} claims to be of session number {fence - 1}; none had that.",
            remedy="It is not one of colabkeep's: remove it from lease/ or checkpoints/. `colabkeep verify` names it.",
        )
    lease = Lease(repository=repository, session=session, fence=fence, about=about)
    lease.renew()
    lease.check()  # another session may have taken the same number at this very moment
    return lease


def _who(repository: Repository, fence: int, session: str) -> str:
    try:
        record = repository.sealed_record(f"lease/{fence:06d}-{session}.json")
    except CheckpointDamaged:
        return ""  # the number in the name is what counts
    return f" (on {record.get('host', 'an unnamed machine')}, process {record.get('pid', '?')})"

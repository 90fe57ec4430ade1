"""Noticing that what a session has saved is not in its store any more, and beginning there anew.

Somebody deletes or renames the folder of a run, or moves it to Drive's trash, while it is trained. The next save would
make the folder again, and nobody would hear that all it held is gone.
"""

from __future__ import annotations

import secrets

from colabkeep._engine.commits import note_commit
from colabkeep._engine.lease import Lease
from colabkeep._engine.ledger import Ledger
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.errors import CheckpointDamaged, ObjectNotFound, StoreUnavailable

__all__ = ["Presence"]


class Presence:
    """Looks after the session's own lease and its newest checkpoint. Lives on the writer thread."""

    def __init__(self, lease: Lease, ledger: Ledger, clock: Clock) -> None:
        self._lease = lease
        self._clock = clock
        self._ledger = ledger
        self._repository = lease.repository
        self._noted = False  # does the run say that it has had a checkpoint?

    def missing(self, newest: str | None) -> str | None:
        """What has vanished, in words; None when all is there. `newest`: the last checkpoint of this session.

        A listing alone is not believed: what it lacks is asked for by its name.

        Raises:
            RunTakenOver: a newer session writes this run, and may have deleted what is missing.
            StoreError: the store could not be asked.
        """
        self._lease.check()
        if not self._lease.stands():
            return f"The folder of the run {self._repository.run!r} has"
        if newest is None:
            return None
        if newest not in self._repository.ids() and not self._is_there(f"checkpoints/{newest}.json"):
            return f"Checkpoint {newest} has"
        lost = self._repository.lost(self._repository.manifest(newest))
        if lost and not self._is_there(f"blobs/{lost[0].file}"):
            return f"{len(lost)} file(s) of checkpoint {newest} have"
        return None

    def note(self) -> None:
        """Once a checkpoint is safe, note that the run has had one.

        Raises:
            StoreError: it could not be written.
        """
        safe = None if self._noted else self._ledger.safe
        if safe is not None:
            note_commit(self._repository, safe)
            self._noted = True

    def begin_anew(self) -> None:
        """Nothing is relied on that was seen there; the run and this session's number are written down again.

        Raises:
            StoreError: it could not be written.
        """
        repository = self._repository
        repository.blobs.forget()
        self._noted = False
        try:
            repository.open_run(created=self._clock.time(), run_id=secrets.token_hex(8))
        except CheckpointDamaged:
            pass  # it is there
        except StoreUnavailable:
            if f"{repository.folder}/run.json" not in self._names():
                raise  # else it is there, on a side that does not answer now
        self._lease.renew()
        self._ledger.keep(self._names())

    def _names(self) -> set[str]:
        return {entry.name for entry in self._repository.store.list(self._repository.folder)}

    def _is_there(self, name: str) -> bool:
        try:
            self._repository.store.get(f"{self._repository.folder}/{name}").close()
        except ObjectNotFound:
            return False
        return True

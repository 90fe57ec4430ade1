"""What other sessions have left in the run, and nothing needs any more: when it may go for good.

A file that no manifest names may be a killed save's; or its manifest is there, and a listing does not show it. So one
listing decides nothing. A session that deletes what another one wrote is the newest (`Lease.check`), has the diary's
word that no checkpoint is missing, and, where listings lag, has seen twice that nothing names the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from colabkeep._engine.commits import vanished
from colabkeep._engine.repository import Repository
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.events import Event, Noted
from colabkeep.vocabulary.manifest import Manifest

__all__ = ["Strangers"]

_LAG = 120.0  # seconds between the two looks; no service says how far its listings may be behind

_DOUBT = (
    "{count} file(s) of earlier sessions ({size} MiB) are kept in {url}, though no checkpoint that is shown needs "
    "them: the diary says that checkpoint {id} exists, and it is not shown. They cost room and nothing else, and go "
    "when it is shown again. If you deleted that checkpoint yourself, `colabkeep prune {run}` removes them."
)


class Strangers:
    """Files below `blobs` that this session, `session`, did not write. Lives on the writer thread."""

    def __init__(self, repository: Repository, session: str, clock: Clock, say: Callable[[Event], None]) -> None:
        self._repository = repository
        self._session = session
        self._clock = clock
        self._say = say
        self._missing: list[str] | None = None  # checkpoints that the diary knows and no listing has shown
        self._seen: dict[str, float] = {}  # file → when it was first seen that nothing names it
        self._told = False

    def stay(self, files: Mapping[str, int], doomed: Sequence[Manifest]) -> set[str]:
        """Those of these files, needed by no checkpoint that is shown, that are not deleted now. `doomed`: the
        checkpoints that go. What one of another session names goes with it. What only this session's own name may be
        needed by another's that is not shown: two sessions that go on exactly from one checkpoint write the same bytes.

        Raises:
            StoreError: the store cannot be asked.
        """
        repository = self._repository
        foreign = files.keys() - repository.blobs.own
        if not foreign:
            return set()
        if self._missing is None:
            self._missing = vanished(repository)
        if self._missing:
            known = repository.known_ids()
            self._missing = [id for id in self._missing if id not in known]
        if self._missing:
            self._tell({file: files[file] for file in foreign}, self._missing[-1])
            return set(foreign)
        if not repository.store.properties.lists_lag:
            return set()
        named = {blob.file for manifest in doomed if manifest.session != self._session for blob in manifest.blobs}
        now = self._clock.monotonic()
        self._seen = {file: self._seen.get(file, now) for file in foreign - named}
        return {file for file, at in self._seen.items() if now - at < _LAG}

    def _tell(self, files: Mapping[str, int], id: str) -> None:
        if not self._told:
            self._told = True
            size, run, url = sum(files.values()) >> 20, self._repository.run, self._repository.store.url
            self._say(Noted(text=_DOUBT.format(count=len(files), size=size, url=url, id=id, run=run)))

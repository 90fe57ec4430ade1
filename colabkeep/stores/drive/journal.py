"""Remembers uploads that are under way, for the next kernel: where each was begun, and for which bytes.

A record is written once, in another store: the one on this machine's disk. It is worth nothing elsewhere, and little
here: with it the bytes of that one file can be sent, for a week at most. Still it is shown nowhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from colabkeep.stores.base import BytesSource, Source, Store
from colabkeep.vocabulary.errors import NameTaken, StoreError
from colabkeep.vocabulary.sealed import dumps, seal, unseal

__all__ = ["Upload", "UploadJournal"]

_FOLDER = "drive-uploads"
_RECORD = re.compile(r"drive-uploads/(\d{12})-([0-9a-f]{40})\.json")
_LIFE_SECONDS = 6 * 24 * 3600.0  # a session lives about a week ("Performing a Resumable Upload", Drive API guides)
_LARGEST = 1 << 16  # bytes of a record


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An upload that was begun: the id the file will have, and the address that takes its bytes."""

    file_id: str
    address: str = field(repr=False)


class UploadJournal:
    """The records of one place on Drive (`url`), in the store `store`. `now`: seconds since 1970.

    A journal that cannot be written or read costs bytes sent twice, never a checkpoint: `trouble` says so.
    """

    def __init__(self, store: Store, url: str, now: Callable[[], float]) -> None:
        self._store = store
        self._url = url
        self._now = now
        self.trouble: str | None = None

    def find(self, name: str, source: Source) -> Upload | None:
        """The upload that was begun for these very bytes under this name."""
        try:
            for record, _ in self._records(self._key(name, source)):
                if (upload := self._read(record)) is not None:
                    return upload
                self._store.delete(record)
        except StoreError as error:
            self._report(error)
        return None

    def keep(self, name: str, source: Source, upload: Upload) -> None:
        """Remember an upload that was begun just now, instead of any other for these bytes."""
        self.drop(name, source)
        record = seal({"file_id": upload.file_id, "address": upload.address})
        try:
            self._store.put(f"{_FOLDER}/{int(self._now()):012d}-{self._key(name, source)}.json", BytesSource(record))
        except NameTaken:
            return  # two uploads of the same bytes within a second, of which one is remembered
        except StoreError as error:
            self._report(error)
        else:
            self.trouble = None

    def drop(self, name: str, source: Source) -> None:
        """The upload is done, or lost."""
        try:
            for record, _ in self._records(self._key(name, source)):
                self._store.delete(record)
        except StoreError as error:
            self._report(error)

    def sweep(self) -> None:
        """Remove the records of uploads that are too old to be continued."""
        try:
            for record, age in self._records():
                if age >= _LIFE_SECONDS:
                    self._store.delete(record)
        except StoreError as error:
            self._report(error)

    def _key(self, name: str, source: Source) -> str:
        return hashlib.sha256(dumps([self._url, name, source.size, source.sha256])).hexdigest()[:40]

    def _records(self, key: str | None = None) -> Iterator[tuple[str, float]]:
        """The records, of one key or all, with their age in seconds."""
        for entry in list(self._store.list(_FOLDER)):
            match = _RECORD.fullmatch(entry.name)
            if match is not None and key in (None, match[2]):
                yield entry.name, self._now() - float(match[1])

    def _read(self, record: str) -> Upload | None:
        with self._store.get(record) as reader:
            text = reader.read(_LARGEST)
        try:
            values = unseal(text)
            return Upload(file_id=str(values["file_id"]), address=str(values["address"]))
        except (ValueError, KeyError):
            return None  # cut or changed: as good as none

    def _report(self, error: StoreError) -> None:
        self.trouble = (
            f"Uploads to Drive cannot be remembered in {self._store.url}, so a restarted kernel sends them from their "
            f"beginning; nothing else is lost. {error.problem}"
        )

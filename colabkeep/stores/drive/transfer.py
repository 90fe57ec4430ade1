"""Uploads in chunks that go on where the service says they stopped, also from the next kernel; downloads that go on
after a cut.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from typing import Any, BinaryIO

from colabkeep.core.errors import ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.core.layout import dumps, seal, unseal
from colabkeep.stores.base import BytesSource, Source, Store
from colabkeep.stores.drive.api import AGAIN, Api, decoded, no_answer
from colabkeep.stores.drive.files import FIELDS, MARK, Files, FolderGone, RemoteFile, read_file
from colabkeep.stores.shared import streaming
from colabkeep.stores.shared.retry import quiet
from colabkeep.stores.shared.streaming import Chunk, chunks

# A record is written once, in another store: the one on this machine's disk. It is worth nothing elsewhere, and little
# here: with it the bytes of that one file can be sent, for a week at most. Still it is shown nowhere.

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
    """The uploads to one place on Drive (`url`) that are under way; with a store, the next kernel knows them too.
    `now`: seconds since 1970.

    A journal that cannot be written or read costs bytes sent twice, never a checkpoint: `trouble` says so.
    """

    def __init__(self, store: Store | None, url: str, now: Callable[[], float]) -> None:
        self._store = store
        self._begun: dict[str, Upload] = {}  # by this process
        self._url = url
        self._now = now
        self.trouble: str | None = None

    def find(self, name: str, source: Source) -> Upload | None:
        """The upload that was begun for these very bytes under this name."""
        key = self._key(name, source)
        if key in self._begun:
            return self._begun[key]
        with self._told():
            for store, record, _ in self._records(key):
                if (upload := _read(store, record)) is not None:
                    return upload
                store.delete(record)
        return None

    def keep(self, name: str, source: Source, upload: Upload) -> None:
        """Remember an upload that was begun just now, instead of any other for these bytes."""
        self.drop(name, source)
        key = self._key(name, source)
        self._begun[key] = upload
        if self._store is not None:
            record = BytesSource(seal({"file_id": upload.file_id, "address": upload.address}))
            with self._told():
                self._store.put(f"{_FOLDER}/{int(self._now()):012d}-{key}.json", record)
                self.trouble = None

    def drop(self, name: str, source: Source) -> None:
        """The upload is done, or lost."""
        key = self._key(name, source)
        self._begun.pop(key, None)
        with self._told():
            for store, record, _ in self._records(key):
                store.delete(record)

    def sweep(self) -> None:
        """Remove the records of uploads that are too old to be continued."""
        with self._told():
            for store, record, age in self._records():
                if age >= _LIFE_SECONDS:
                    store.delete(record)

    def _key(self, name: str, source: Source) -> str:
        return hashlib.sha256(dumps([self._url, name, source.size, source.sha256])).hexdigest()[:40]

    def _records(self, key: str | None = None) -> Iterator[tuple[Store, str, float]]:
        """The records, of one key or all: where, under which name, and their age in seconds."""
        if self._store is None:
            return
        for entry in list(self._store.list(_FOLDER)):
            match = _RECORD.fullmatch(entry.name)
            if match is not None and key in (None, match[2]):
                yield self._store, entry.name, self._now() - float(match[1])

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self.trouble = (
                "Uploads to Drive cannot be remembered on this machine's disk, so a restarted kernel sends them from "
                f"their beginning; nothing else is lost. {error.problem}"
            )


def _read(store: Store, record: str) -> Upload | None:
    with store.get(record) as reader:
        text = reader.read(_LARGEST)
    try:
        values = unseal(text)
        return Upload(file_id=str(values["file_id"]), address=str(values["address"]))
    except (ValueError, KeyError):
        return None  # cut or changed: as good as none


# The service keeps what has arrived of an upload for about a week. After anything that went wrong, be it a lost answer
# or a killed kernel, it is asked how much it has, and only the rest is sent. A file appears, whole, with its last byte.
# The protocol: "Performing a Resumable Upload" (Drive API guides).

CHUNK_BYTES = 16 * 2**20
"""One chunk is what is sent again at most when a connection breaks."""

_NOTHING = memoryview(b"")
_UNIT = 256 * 1024  # bytes; a chunk has a multiple of them, unless it is the last
_PIECE = 256 * 1024
_LIVES = 8  # uploads begun for one object, and beginnings anew within one of them
_RANGE = re.compile(r"bytes=0-(\d+)")
_LOUD = ("urllib3.connectionpool", "urllib3.util.retry", "google.auth.transport.requests")  # log addresses at DEBUG


class Body:
    """Bytes of a request. They can be sent again from the start, which google-auth does after a 401; and they leave
    in small pieces, each with the whole timeout to itself, so that a chunk may take long on a slow link. `left` is
    called when one has."""

    def __init__(self, data: memoryview, left: Callable[[], None]) -> None:
        self._data = data
        self._left = left

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[memoryview]:
        for start in range(0, len(self._data), _PIECE):
            yield self._data[start : start + _PIECE]
            self._left()


class _UploadGone(Exception):
    """The service does not know the upload (any more)."""


class _Elsewhere(Exception):
    """The service wants bytes that the chunk at hand cannot give."""


class Uploads:
    """Sends objects. `chunk_bytes`: a multiple of 256 KiB; so much memory is used, and no more."""

    def __init__(self, api: Api, files: Files, journal: UploadJournal, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._api = api
        self._files = files
        self._journal = journal
        self._chunk_bytes = max(chunk_bytes // _UNIT, 1) * _UNIT

    def send(self, name: str, folder: str, source: Source) -> RemoteFile:
        """The file that the bytes have become. Whether they are the right ones is not looked at.

        Raises:
            FolderGone: there is no such folder.
            StoreError: it could not be sent. What arrived is continued when the same is sent again.
        """
        upload, known = self._journal.find(name, source), None
        if upload is not None and not upload.address.startswith(f"{self._api.service}/"):
            upload = None  # the token would be sent to whoever wrote that record
        file_id = self._files.new_id() if upload is None else upload.file_id
        for _ in range(_LIVES):
            if upload is None:
                begun = self._begin(name, folder, source, file_id)
                if isinstance(begun, RemoteFile):
                    return begun
                upload, known = begun, 0
                self._journal.keep(name, source, upload)
            transfer = _Transfer(self._api, self._files, upload, name, source, known)
            try:
                file = transfer.run(self._chunk_bytes)
            except _Elsewhere:
                known = transfer.known
            except _UploadGone:
                # Perhaps because it was done, and the answer was lost: then the id is taken, and beginning says so.
                self._journal.drop(name, source)
                upload = None
            else:
                self._journal.drop(name, source)
                return file
        raise _given_up(f"write {name!r}", "it lost the upload, or went back, again and again")

    def begun(self, name: str, source: Source) -> str | None:
        """The id that the file will have, if an upload of these very bytes under this name was begun."""
        upload = self._journal.find(name, source)
        return None if upload is None else upload.file_id

    def _begin(self, name: str, folder: str, source: Source, file_id: str) -> Upload | RemoteFile:
        doing = f"write {name!r}"
        body = {
            "id": file_id,
            "name": name.rpartition("/")[2],
            "mimeType": "application/octet-stream",
            "parents": [folder],
            "appProperties": {MARK: "object"},
        }

        def begin() -> Upload | RemoteFile:
            response = self._api.send(
                "POST",
                f"{self._api.service}/upload/drive/v3/files",
                doing=doing,
                query={"uploadType": "resumable", "fields": FIELDS, "supportsAllDrives": "true"},
                body=body,
                headers={"X-Upload-Content-Length": str(source.size)},
                accept=(200, 404, 409),
            )
            if response.status_code == 404:
                raise FolderGone(folder)
            if response.status_code == 409:  # an earlier attempt made it, and its answer was lost
                file = self._files.look(file_id, doing)
                if file is None:
                    raise _given_up(doing, "it calls an id taken that no file has")
                return file
            address = response.headers.get("Location", "")
            if not address:
                raise _given_up(doing, "it gave no address to send to")
            return Upload(file_id=file_id, address=address)

        return self._api.patiently(begin)


@dataclass(slots=True)
class _Transfer:
    """One upload of one source. `known`: how many bytes the service has; None: it is to be asked, for something was
    sent since it said so."""

    api: Api
    files: Files
    upload: Upload
    name: str
    source: Source
    known: int | None

    def run(self, chunk_bytes: int) -> RemoteFile:
        """Send everything that the service does not have.

        Raises:
            _Elsewhere: it wants other bytes than those at hand, from `known` on.
            _UploadGone: it does not know this upload.
            StoreError: it could not be sent.
        """
        if self.known is None:
            done = self.api.patiently(self._put)
            if done is not None:
                return done
        for chunk in chunks(self.name, self.source, chunk_bytes, self.known or 0):
            try:
                done = self.api.patiently(partial(self._attempt, chunk))
            except Exception:
                raise
            except BaseException:
                if chunk.is_last:  # the file may be there, and whoever interrupted believes that it is not
                    self.files.delete_once(self.upload.file_id, self._doing)
                raise
            if done is not None:
                return done
        raise _given_up(self._doing, "it has all bytes and makes no file of them")

    @property
    def _doing(self) -> str:
        return f"write {self.name!r}"

    def _attempt(self, chunk: Chunk) -> RemoteFile | None:
        """Bring the service to the end of the chunk; the file, if that was the last one."""
        before = -1
        while True:
            if self.known is None and (done := self._put()) is not None:
                return done
            at = self.known or 0
            if at <= before:
                raise _given_up(self._doing, "it took none of the bytes")
            whole = chunk.is_last or (chunk.end - at) % _UNIT == 0
            if not (chunk.start <= at <= chunk.end and whole):
                raise _Elsewhere
            if at == chunk.end and not chunk.is_last:
                return None
            if (done := self._put(chunk.data[at - chunk.start :], at)) is not None:
                return done
            before = at

    def _put(self, data: memoryview = _NOTHING, at: int = 0) -> RemoteFile | None:
        """Send bytes, or none to ask how much the service has: it is `known` then; or the file, if it has all.

        Raises:
            _UploadGone: it does not know this upload; or the file was deleted since.
        """
        self.known = None
        part = f"{at}-{at + len(data) - 1}" if data else "*"
        with quiet(*_LOUD):  # the address is a right to write
            response = self.api.send(
                "PUT",
                self.upload.address,
                doing=self._doing,
                data=Body(data, self.api.silence.heard) if data else b"",
                headers={"Content-Range": f"bytes {part}/{self.source.size}"},
                accept=(200, 201, 308, 404, 410, 499),  # 499: somebody cancelled it
            )
        if response.status_code in (404, 410, 499):
            raise _UploadGone
        if response.status_code == 308:
            match = _RANGE.fullmatch(response.headers.get("Range", ""))
            self.known = 0 if match is None else int(match[1]) + 1
            return None
        answer = decoded(response, self._doing)
        if data and "id" in answer and "size" in answer and ("sha256Checksum" in answer or "md5Checksum" in answer):
            return read_file(answer)
        file = self.files.look(self.upload.file_id, self._doing)
        if file is None:
            raise _UploadGone
        return file


def _given_up(doing: str, why: str) -> StoreError:
    return StoreUnavailable(problem=f"Google Drive could not {doing}: {why}.", remedy=AGAIN)


_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/\d+")


def download(api: Api, file: RemoteFile, name: str) -> BinaryIO:
    """A reader of the file's bytes. The first of them have come when this returns.

    Raises:
        ObjectNotFound: the file is not there any more.
        StoreError: it cannot be read.
    """
    doing = f"read {name!r}"

    def begin(start: int) -> Any:
        response = api.send(
            "GET",
            f"{api.service}/drive/v3/files/{file.id}",
            doing=doing,
            query={"alt": "media", "supportsAllDrives": "true"},
            # Packed on the way, the ranges would be of other bytes.
            headers={"Range": f"bytes={start}-", "Accept-Encoding": "identity"},
            accept=(200, 206, 404),
            stream=True,
        )
        match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        if response.status_code == 404:
            response.close()
            raise ObjectNotFound(
                problem=f"Google Drive has no file for {name!r} any more.",
                remedy="Was it deleted by hand, or by another session? An older checkpoint is used if there is one.",
            )
        if start != (int(match[1]) if response.status_code == 206 and match is not None else 0):
            response.close()
            raise StoreUnavailable(
                problem=f"Google Drive sent other bytes than those asked for (it was to {doing}).", remedy=AGAIN
            )
        return response.raw

    def ask(call: Callable[[], int]) -> int:
        return api.patiently(lambda: _explained(call, doing))

    reader = streaming.download(file.size or 0, begin, ask)
    reader.peek(1)  # the service refuses the range of an empty file: nothing is asked there
    return reader


def _explained(call: Callable[[], int], doing: str) -> int:
    from urllib3.exceptions import HTTPError

    try:
        return call()
    except StoreError:
        raise
    except (HTTPError, HTTPException, OSError) as error:
        failure = no_answer(error, doing)
    raise failure

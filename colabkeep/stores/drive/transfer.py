"""Uploads in chunks that go on where the service says they stopped, also from the next kernel; downloads that go on
after a cut.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from typing import Any, BinaryIO

from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.core.sealed import dumps, seal, unseal
from colabkeep.stores.base import BytesSource, Source, Store
from colabkeep.stores.drive.api import Api, decoded, no_answer
from colabkeep.stores.drive.files import FIELDS, MARK, Files, FolderGone, RemoteFile, read_file

__all__ = [
    "CHUNK_BYTES",
    "UNIT",
    "Body",
    "Chunk",
    "Upload",
    "UploadJournal",
    "Uploads",
    "chunks",
    "download",
]

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
        try:
            for store, record, _ in self._records(key):
                if (upload := _read(store, record)) is not None:
                    return upload
                store.delete(record)
        except StoreError as error:
            self._report(error)
        return None

    def keep(self, name: str, source: Source, upload: Upload) -> None:
        """Remember an upload that was begun just now, instead of any other for these bytes."""
        self.drop(name, source)
        key = self._key(name, source)
        self._begun[key] = upload
        if self._store is None:
            return
        record = seal({"file_id": upload.file_id, "address": upload.address})
        try:
            self._store.put(f"{_FOLDER}/{int(self._now()):012d}-{key}.json", BytesSource(record))
        except NameTaken:
            return  # two uploads of the same bytes within a second, of which one is remembered
        except StoreError as error:
            self._report(error)
        else:
            self.trouble = None

    def drop(self, name: str, source: Source) -> None:
        """The upload is done, or lost."""
        key = self._key(name, source)
        self._begun.pop(key, None)
        try:
            for store, record, _ in self._records(key):
                store.delete(record)
        except StoreError as error:
            self._report(error)

    def sweep(self) -> None:
        """Remove the records of uploads that are too old to be continued."""
        try:
            for store, record, age in self._records():
                if age >= _LIFE_SECONDS:
                    store.delete(record)
        except StoreError as error:
            self._report(error)

    def _key(self, name: str, source: Source) -> str:
        return hashlib.sha256(dumps([self._url, name, source.size, source.sha256])).hexdigest()[:40]

    def _records(self, key: str | None = None) -> Iterator[tuple[Store, str, float]]:
        """The records, of one key or all: where, under which name, and their age in seconds."""
        store = self._store
        if store is None:
            return
        for entry in list(store.list(_FOLDER)):
            match = _RECORD.fullmatch(entry.name)
            if match is not None and key in (None, match[2]):
                yield store, entry.name, self._now() - float(match[1])

    def _report(self, error: StoreError) -> None:
        self.trouble = (
            "Uploads to Drive cannot be remembered on this machine's disk, so a restarted kernel sends them from their "
            f"beginning; nothing else is lost. {error.problem}"
        )


def _read(store: Store, record: str) -> Upload | None:
    with store.get(record) as reader:
        text = reader.read(_LARGEST)
    try:
        values = unseal(text)
        return Upload(file_id=str(values["file_id"]), address=str(values["address"]))
    except (ValueError, KeyError):
        return None  # cut or changed: as good as none


UNIT = 256 * 1024
"""Bytes; a chunk has a multiple of them, unless it is the last ("Performing a Resumable Upload", Drive API guides)."""

_PIECE = 256 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes `start` to `end` of an object. `data` is valid until the next chunk is asked for."""

    start: int
    data: memoryview
    is_last: bool

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.start + len(self.data)


def chunks(name: str, source: Source, start: int, size: int) -> Iterator[Chunk]:
    """The bytes of `source` from `start` on in chunks of `size` bytes, the last one shorter, perhaps empty.

    The last one comes only when the source has come to its end and was as long as it said: sending it is what makes
    the object exist. One buffer is used for all of them.

    Raises:
        StoreError: the source has another number of bytes than it announced. What it raises comes out as it is.
    """
    buffer = memoryview(bytearray(max(min(size, source.size - start), 1)))
    filled, sent, total = 0, start, 0
    for piece in source.chunks():
        rest = memoryview(piece).cast("B") if piece.nbytes else piece
        skipped = min(max(start - total, 0), rest.nbytes)
        total += rest.nbytes
        if total > source.size:
            raise _changed(name, source.size, f"at least {total}")
        rest = rest[skipped:]
        while rest.nbytes:
            if filled == len(buffer):  # and more is to come, so it was not the last
                yield Chunk(sent, buffer, is_last=False)
                filled, sent = 0, sent + len(buffer)
            count = min(rest.nbytes, len(buffer) - filled)
            buffer[filled : filled + count] = rest[:count]
            filled, rest = filled + count, rest[count:]
    if total != source.size:
        raise _changed(name, source.size, str(total))
    yield Chunk(sent, buffer[:filled], is_last=True)


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


def _changed(name: str, announced: int, came: str) -> StoreError:
    return StoreError(
        problem=f"{name!r} was to have {announced} bytes and came with {came}; it is not kept.",
        remedy="Its data changed while it was being saved: leave arrays and files alone until their save is done.",
    )


# The service keeps what has arrived of an upload for about a week. After anything that went wrong, be it a lost answer
# or a killed kernel, it is asked how much it has, and only the rest is sent. A file appears, whole, with its last byte.
# The protocol: "Performing a Resumable Upload" (Drive API guides).


CHUNK_BYTES = 16 * 2**20
"""One chunk is what is sent again at most when a connection breaks."""

_LIVES = 4  # uploads begun for one object, and beginnings anew within one of them
_RANGE = re.compile(r"bytes=0-(\d+)")


class _UploadGone(Exception):
    """The service does not know the upload (any more)."""


class _Elsewhere(Exception):
    """The service wants the bytes from `offset` on, which the chunk at hand cannot give."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(offset)


class Uploads:
    """Sends objects. `chunk_bytes`: a multiple of 256 KiB; so much memory is used, and no more."""

    def __init__(self, api: Api, files: Files, journal: UploadJournal, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._api = api
        self._files = files
        self._journal = journal
        self._chunk_bytes = max(chunk_bytes // UNIT, 1) * UNIT

    def send(self, name: str, folder: str, source: Source) -> RemoteFile:
        """The file that the bytes have become. Whether they are the right ones is not looked at.

        Raises:
            FolderGone: there is no such folder.
            StoreError: it could not be sent. What arrived is continued when the same is sent again.
        """
        doing = f"write {name!r}"
        upload, offset = self._journal.find(name, source), None
        if upload is not None and not upload.address.startswith(f"{self._api.service}/"):
            upload = None  # the token would be sent to whoever wrote that record
        file_id = self._files.new_id() if upload is None else upload.file_id
        for _ in range(_LIVES):
            if upload is None:
                begun = self._begin(name, folder, source, file_id)
                if isinstance(begun, RemoteFile):
                    return begun
                upload, offset = begun, 0
                self._journal.keep(name, source, upload)
            transfer = _Transfer(self._api, self._files, upload, name, source)
            try:
                file = transfer.run(offset, self._chunk_bytes)
            except _UploadGone:
                # Perhaps because it was done, and the answer was lost: then the id is taken, and beginning says so.
                self._journal.drop(name, source)
                upload = None
            else:
                self._journal.drop(name, source)
                return file
        raise _given_up(doing, "it lost the upload again and again")

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
            if response.status_code == 409:
                return self._earlier(file_id, doing)
            address = response.headers.get("Location", "")
            if not address:
                raise _given_up(doing, "it gave no address to send to")
            return Upload(file_id=file_id, address=address)

        return self._api.patiently(begin)

    def _earlier(self, file_id: str, doing: str) -> RemoteFile:
        """The file that an earlier attempt made, whose answer was lost."""
        file = self._files.look(file_id, doing)
        if file is None:
            raise _given_up(doing, "it calls an id taken that no file has")
        return file


@dataclass(slots=True)
class _Position:
    """How far an upload is. `sure`: nothing was sent since the service said so."""

    offset: int
    sure: bool


class _Transfer:
    """One upload of one source."""

    def __init__(self, api: Api, files: Files, upload: Upload, name: str, source: Source) -> None:
        self._api = api
        self._files = files
        self._upload = upload
        self._name = name
        self._source = source
        self._doing = f"write {name!r}"

    def run(self, offset: int | None, chunk_bytes: int) -> RemoteFile:
        """Send everything from `offset` on; None: from where the service is.

        Raises:
            _UploadGone: the service does not know this upload.
            StoreError: it could not be sent.
        """
        if offset is None:
            answer = self._api.patiently(self._ask)
            if isinstance(answer, RemoteFile):
                return answer
            offset = answer
        for _ in range(_LIVES):
            try:
                return self._send_from(offset, chunk_bytes)
            except _Elsewhere as elsewhere:
                offset = elsewhere.offset
        raise _given_up(self._doing, "it went back again and again")

    def _send_from(self, offset: int, chunk_bytes: int) -> RemoteFile:
        for chunk in chunks(self._name, self._source, offset, chunk_bytes):
            position = _Position(chunk.start, sure=True)
            with self._undone_if_interrupted(chunk):
                done = self._api.patiently(partial(self._attempt, chunk, position))
            if done is not None:
                return done
        raise _given_up(self._doing, "it has all bytes and makes no file of them")

    @contextmanager
    def _undone_if_interrupted(self, chunk: Chunk) -> Iterator[None]:
        try:
            yield
        except Exception:
            raise
        except BaseException:
            if chunk.is_last:  # the file may be there, and whoever interrupted believes that it is not
                self._files.delete_once(self._upload.file_id, self._doing)
            raise

    def _attempt(self, chunk: Chunk, position: _Position) -> RemoteFile | None:
        """Bring the service to the end of the chunk; the file, if that was the last one."""
        if not position.sure:
            answer = self._ask()
            if isinstance(answer, RemoteFile):
                return answer
            position.offset, position.sure = self._within(chunk, answer), True
        while position.offset < chunk.end or chunk.is_last:
            before, position.sure = position.offset, False
            answer = self._send(chunk, before)
            if isinstance(answer, RemoteFile):
                return answer
            position.offset, position.sure = self._within(chunk, answer), True
            if position.offset <= before:
                raise _given_up(self._doing, "it took none of the bytes")
        return None

    def _within(self, chunk: Chunk, offset: int) -> int:
        """The offset, if the rest of the chunk can be sent from there."""
        whole = chunk.is_last or (chunk.end - offset) % UNIT == 0
        if not (chunk.start <= offset <= chunk.end and whole):
            raise _Elsewhere(offset)
        return offset

    def _send(self, chunk: Chunk, offset: int) -> RemoteFile | int:
        data, total = chunk.data[offset - chunk.start :], self._source.size
        if not data:
            return self._ask()
        return self._put(f"bytes {offset}-{chunk.end - 1}/{total}", data)

    def _ask(self) -> RemoteFile | int:
        """How much the service has, or the file if it has all.

        Raises:
            _UploadGone: it does not know this upload; or the file was deleted since.
        """
        answer = self._put(f"bytes */{self._source.size}", memoryview(b""))
        return answer if isinstance(answer, int) else self._file()

    def _put(self, content_range: str, data: memoryview) -> RemoteFile | int:
        response = self._api.send(
            "PUT",
            self._api.account.hidden.hide(self._upload.address),
            doing=self._doing,
            data=Body(data, self._api.silence.heard) if data else b"",
            headers={"Content-Range": content_range},
            accept=(200, 201, 308, 404, 410, 499),  # 499: somebody cancelled it
        )
        if response.status_code in (404, 410, 499):
            raise _UploadGone
        if response.status_code == 308:
            match = _RANGE.fullmatch(response.headers.get("Range", ""))
            return 0 if match is None else int(match[1]) + 1
        answer = decoded(response, self._doing)
        told = "id" in answer and "size" in answer and ("sha256Checksum" in answer or "md5Checksum" in answer)
        return read_file(answer) if told else self._file()

    def _file(self) -> RemoteFile:
        file = self._files.look(self._upload.file_id, self._doing)
        if file is None:
            raise _UploadGone
        return file


def _given_up(doing: str, why: str) -> StoreError:
    return StoreUnavailable(
        problem=f"Google Drive could not {doing}: {why}.",
        remedy="Nothing needs to be done: training goes on, and it is tried again.",
    )


_READ_PIECE = 2**20  # bytes read at a time: more would only be copied once more
_BUFFER = 2**18
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/\d+")


def download(api: Api, file: RemoteFile, name: str) -> BinaryIO:
    """A reader of the file's bytes. The first of them have been asked for when this returns.

    Raises:
        ObjectNotFound: the file is not there any more.
        StoreError: it cannot be read.
    """
    reader = _Download(api, file, name)
    reader.begin()
    return io.BufferedReader(reader, buffer_size=_BUFFER)


class _Download(io.RawIOBase):
    """One file from its beginning to its end, over as many connections as that takes."""

    def __init__(self, api: Api, file: RemoteFile, name: str) -> None:
        self._api = api
        self._file = file
        self._doing = f"read {name!r}"
        self._size = file.size or 0
        self._at = 0
        self._response: Any = None

    def begin(self) -> None:
        """Ask for the bytes, unless there are none: the service refuses the range of an empty file."""
        if self._size:
            self._api.patiently(self._connect)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")[:_READ_PIECE]
        if self._at >= self._size or not target:
            return 0
        target = target[: self._size - self._at]
        if self._response is not None:
            with suppress(StoreUnavailable):
                return self._fill(target)  # the way of almost every call
        return self._api.patiently(lambda: self._fill(target))

    def close(self) -> None:
        if not self.closed:
            self._hang_up()
        super().close()

    def _fill(self, target: memoryview) -> int:
        from urllib3.exceptions import HTTPError

        if self._response is None:
            self._connect()
        failure: StoreError | None = None
        data = b""
        try:
            data = self._response.raw.read(len(target))
        except (HTTPError, HTTPException, OSError) as error:
            failure = no_answer(error, self._doing)
        if not data:
            self._hang_up()
            raise failure or no_answer(EOFError("the answer ended early"), self._doing)
        target[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _connect(self) -> None:
        response = self._api.send(
            "GET",
            f"{self._api.service}/drive/v3/files/{self._file.id}",
            doing=self._doing,
            query={"alt": "media", "supportsAllDrives": "true"},
            # Packed on the way, the ranges would be of other bytes.
            headers={"Range": f"bytes={self._at}-", "Accept-Encoding": "identity"},
            accept=(200, 206, 404),
            stream=True,
        )
        if response.status_code == 404:
            response.close()
            raise ObjectNotFound(
                problem=f"Google Drive has no file for {self._doing.removeprefix('read ')} any more.",
                remedy="Was it deleted by hand, or by another session? An older checkpoint is used if there is one.",
            )
        match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        starts = int(match[1]) if response.status_code == 206 and match is not None else 0
        if starts != self._at:
            response.close()
            raise StoreUnavailable(
                problem=f"Google Drive sent other bytes than those asked for (it was to {self._doing}).",
                remedy="Nothing needs to be done: it is tried again.",
            )
        self._response = response

    def _hang_up(self) -> None:
        if self._response is not None:
            response, self._response = self._response, None
            response.close()

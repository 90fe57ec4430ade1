"""Sends an object in chunks, and goes on where the service says that it stopped.

The service keeps what has arrived of an upload for about a week. After anything that went wrong, be it a lost answer
or a killed kernel, it is asked how much it has, and only the rest is sent. A file appears, whole, with its last
byte. The protocol: "Performing a Resumable Upload" (Drive API guides).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from colabkeep.stores.base import Source
from colabkeep.stores.drive.api import Api, decoded
from colabkeep.stores.drive.files import FIELDS, MARK, Files, FolderGone, RemoteFile, read_file
from colabkeep.stores.drive.journal import Upload, UploadJournal
from colabkeep.stores.drive.pieces import UNIT, Body, Chunk, chunks
from colabkeep.vocabulary.errors import StoreError, StoreUnavailable

__all__ = ["CHUNK_BYTES", "Uploads"]

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

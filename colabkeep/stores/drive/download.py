"""Reads an object as it comes, and goes on after a cut where it stopped. Its digest is for the reader to check."""

from __future__ import annotations

import io
import re
from contextlib import suppress
from http.client import HTTPException
from typing import Any, BinaryIO

from colabkeep.stores.drive.api import Api
from colabkeep.stores.drive.files import RemoteFile
from colabkeep.stores.drive.refusals import no_answer
from colabkeep.vocabulary.errors import ObjectNotFound, StoreError, StoreUnavailable

__all__ = ["download"]

_PIECE = 2**20  # bytes read at a time: more would only be copied once more
_BUFFER = 2**18
_RANGE = re.compile(r"bytes (\d+)-\d+/\d+")


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
        target = memoryview(buffer).cast("B")[:_PIECE]
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
        match = _RANGE.match(response.headers.get("Content-Range", ""))
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

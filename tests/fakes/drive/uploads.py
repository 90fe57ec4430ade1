"""Resumable upload sessions, on disk: what has come so far, and how much of it is acknowledged.

"Performing a Resumable Upload" (Drive API guides). A session outlives the connection, the process and the server. Of a
broken chunk the service keeps whole multiples of 256 KiB at best, so a client must ask.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.drive.answers import ApiError
from tests.fakes.drive.content import Digests
from tests.fakes.drive.files import Caller
from tests.fakes.drive.shelf import Shelf

GRAIN = 256 * 1024


@dataclass
class Upload:
    """One session. `file` is the id of what is made or replaced; `total` bytes are expected (None: not said yet).

    `received` bytes are acknowledged; `done`: the file is made. `changes` is what the request said of the file, in the
    words of `File`. `cancelled`: nothing more is taken.
    """

    id: str
    version: str
    file: str
    new: bool
    changes: dict[str, Any]
    account: str
    client: str
    scopes: list[str]
    all_drives: bool
    created: float
    total: int | None = None
    fields: str | None = None
    received: int = 0
    done: bool = False
    cancelled: bool = False

    @property
    def caller(self) -> Caller:
        """Who started it: the session's address alone stands for that person later."""
        return Caller(self.account, self.client, frozenset(self.scopes), self.all_drives)


class Uploads:
    """All sessions. Changed under `State.guard`, but for the bytes."""

    def __init__(self, folder: Path) -> None:
        self._shelf = Shelf(folder, Upload)
        self._folder = folder
        self._digests: dict[str, Digests] = {}

    def save(self, upload: Upload) -> None:
        """Keep the session as it is now."""
        self._shelf.save(upload.id, upload)

    def get(self, upload_id: str, born_after: float) -> Upload:
        """The session. Raises ApiError 404 for one that is not there or was started before."""
        upload = self._shelf.get(upload_id)
        if upload is None or upload.created <= born_after:
            self.forget(upload_id)
            raise ApiError(404, "notFound", "The upload session was not found or has expired.")
        return upload

    def forget(self, upload_id: str) -> None:
        """Give up a session and its bytes."""
        if self._shelf.get(upload_id) is not None:
            self._shelf.remove(upload_id)
            self.drop_part(upload_id)

    def cancel(self, upload_id: str) -> None:
        """Nothing is taken any more, and what has come is gone. One that is done stays done."""
        upload = self._shelf.get(upload_id)
        if upload is not None and not upload.done:
            upload.cancelled = True
            self.save(upload)
            self.drop_part(upload_id)

    def drop_part(self, upload_id: str) -> None:
        """Its bytes are not needed any more."""
        self.part(upload_id).unlink(missing_ok=True)
        self._digests.pop(upload_id, None)

    def part(self, upload_id: str) -> Path:
        """The bytes so far."""
        return self._folder / f"{upload_id}.part"

    def digests(self, upload: Upload) -> dict[str, str]:
        """The digests of what was received; after a restart it is read once more."""
        digests = self._digests.setdefault(upload.id, Digests())
        part = self.part(upload.id)
        part.touch()
        digests.catch_up(part, upload.received)
        return digests.hexadecimal()

    def receive(self, upload: Upload, start: int, pieces: Iterator[bytes]) -> None:
        """Write the bytes that belong at `start`. Those acknowledged before are kept as they were: rclone 1.60 sends a
        broken chunk again from its start. When the pieces break off, `received` is a multiple of 256 KiB."""
        known = upload.received
        position = start
        handle = os.open(self.part(upload.id), os.O_WRONLY | os.O_CREAT, 0o600)
        whole = False
        try:
            for piece in pieces:
                fresh = piece[max(0, known - position) :]
                position += len(piece)
                os.pwrite(handle, fresh, position - len(fresh))
            whole = True
        finally:
            os.close(handle)
            upload.received = max(upload.received, position if whole else position - position % GRAIN)
        self.digests(upload)

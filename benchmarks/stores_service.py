"""The tests' Drive service in a process of its own, stores on it, and what it saw of them."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from colabkeep.core.system import Clock
from colabkeep.stores.base import Store
from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.files import read_place
from colabkeep.stores.google.account import Account, SignedIn, read_secret

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where `tests` is; colabkeep is imported already

from tests.fakes.drive import Drive, Seen, Settings, running_drive

__all__ = ["PIECE", "Look", "Source", "address", "opened", "service"]

PIECE = 2**20
_RANGE = re.compile(r"bytes (\d+)-(\d+)/")


class Source:
    """So many bytes, of one piece of memory again and again: as cheap as a source can be."""

    def __init__(self, size: int, piece: bytes = bytes(PIECE)) -> None:
        self.size = size
        self._piece = memoryview(piece)
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        self.sha256 = digest.hexdigest()

    def chunks(self) -> Iterator[memoryview]:
        for start in range(0, self.size, len(self._piece)):
            yield self._piece[: self.size - start]


@contextmanager
def service(folder: Path) -> Iterator[Drive]:
    """The service, with its state in a folder that is new."""
    folder.mkdir()
    with running_drive(folder, quota_bytes=None, settings=Settings(quota_bytes=None)) as drive:
        yield drive


def address(drive: Drive) -> tuple[str, str]:
    """What another process needs to open a store there: URL and secret."""
    return f"drive://colabkeep?service={drive.url}", json.dumps(drive.authorized_user())


def opened(
    where: tuple[str, str], *, clock: Clock | None = None, journal: Store | None = None, **options: Any
) -> DriveStore:
    """A store that knows nothing yet."""
    url, secret = where
    account = Account(lambda: SignedIn(credentials=read_secret(secret).credentials()))
    return DriveStore(read_place(url), account, clock=clock, journal=journal, **options)


class Look:
    """What the service is asked from now on."""

    def __init__(self, drive: Drive) -> None:
        self._drive = drive
        self._before = len(drive.requests())

    @property
    def all(self) -> list[Seen]:
        return [seen for seen in self._drive.requests()[self._before :] if not seen.path.startswith("/token")]

    @property
    def listings(self) -> int:
        """Questions what lies where; each may be answered in several pages, and a page is a request."""
        return len([seen for seen in self.all if "q" in seen.query and "pageToken" not in seen.query])

    @property
    def pages(self) -> int:
        return len([seen for seen in self.all if "q" in seen.query])

    @property
    def reads(self) -> int:
        """Objects read."""
        return len([seen for seen in self.all if seen.query.get("alt") == "media"])

    @property
    def offered(self) -> int:
        """Bytes of objects that were to be sent, whether they arrived or not."""
        ranges = [_RANGE.match(seen.headers.get("Content-Range", "")) for seen in self.all if seen.method == "PUT"]
        return sum(int(found[2]) + 1 - int(found[1]) for found in ranges if found is not None)

    @property
    def objects(self) -> int:
        """Uploads that were begun."""
        return len([seen for seen in self.all if seen.method == "POST" and "/upload/" in seen.path])

"""A Drive server on loopback, and stores on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from google.auth.transport.requests import AuthorizedSession

from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.files import read_place
from colabkeep.stores.google.account import Account, SignedIn
from colabkeep.testing.clock import FakeClock
from tests.fakes.drive import Drive, File, Seen, Settings
from tests.fakes.drive.checking import checked_drive

OpenDrive = Callable[..., DriveStore]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drive]:
    """The server of this file's tests; what it answers is checked against Google's own description of the service."""
    with checked_drive(tmp_path_factory.mktemp("drive"), settings=Settings(quota_bytes=None)) as drive:
        yield drive


@pytest.fixture
def drive(server: Drive) -> Iterator[Drive]:
    """The same, empty and without faults."""
    server.faults()
    tops = {file.parent for file in server.files()} - {file.id for file in server.files()}
    with AuthorizedSession(server.credentials(scopes=["drive"])) as session:
        for file in server.files():
            if file.parent in tops:
                answer = session.delete(f"{server.url}/drive/v3/files/{file.id}")
                assert answer.status_code == 204, answer.text
    yield server
    server.faults()


def store_on(drive: Drive, name: str, *, credentials: object = None, **options: object) -> DriveStore:
    """The store drive://`name` of that service. Its clock is a fake one by default, so no test waits for a retry."""
    signed = SignedIn(credentials=credentials or drive.credentials())
    options.setdefault("clock", FakeClock())
    place = read_place(f"drive://{name}{'&' if '?' in name else '?'}service={drive.url}")
    return DriveStore(place, Account(lambda: signed), **options)  # type: ignore[arg-type]


@pytest.fixture
def open_drive(drive: Drive) -> Iterator[OpenDrive]:
    """Opens stores, in the folder "colabkeep" or another, which are closed at the test's end."""
    opened: list[DriveStore] = []

    def open(folder: str = "", **options: object) -> DriveStore:
        opened.append(store_on(drive, folder or "colabkeep", **options))
        return opened[-1]

    yield open
    for store in opened:
        store.close()


class Watch:
    """What is asked and made from now on."""

    def __init__(self, drive: Drive) -> None:
        self._drive = drive
        self._requests = len(drive.requests())
        self._files = {file.id for file in drive.files()}

    def all(self, method: str | None = None, path: str = "") -> list[Seen]:
        """Requests."""
        new = self._drive.requests()[self._requests :]
        return [seen for seen in new if method in (None, seen.method) and path in seen.path]

    @property
    def listings(self) -> int:
        """How often files were searched for, each page counted."""
        return len([seen for seen in self.all("GET") if seen.path.endswith("/drive/v3/files")])

    @property
    def chunks(self) -> list[Seen]:
        """PUTs that were to carry bytes."""
        return [seen for seen in self.all("PUT") if "*" not in seen.headers["Content-Range"]]

    @property
    def carried(self) -> int:
        """Bytes of objects that arrived."""
        return sum(seen.received for seen in self.chunks)

    def files(self, *, folders: bool = False) -> list[File]:
        """Files that were made and are still there; or folders."""
        return [one for one in self._drive.files() if one.id not in self._files and (one.size is None) is folders]


@pytest.fixture
def watch(drive: Drive) -> Callable[[], Watch]:
    """`watch()`: from now on."""
    return lambda: Watch(drive)


@pytest.fixture
def traffic(watch: Callable[[], Watch]) -> Watch:
    """All of this test."""
    return watch()

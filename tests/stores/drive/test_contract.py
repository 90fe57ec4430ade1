"""The Drive store keeps every promise of a store, on a good day and on a bad one."""

from __future__ import annotations

import itertools

import pytest

from colabkeep.stores.base import BytesSource
from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.files import read_place
from colabkeep.stores.google.account import Account, SignedIn
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyStore
from colabkeep.testing.stores import StoreContract
from tests.fakes.drive import html, lose_answer, refuse, reset_request

CHUNK = 2**18


class _OnDrive(StoreContract):
    same_folder_same_place = True

    @pytest.fixture(autouse=True)
    def _server(self, drive):
        self.drive = drive

    def make_store(self, folder):
        # pytest numbers the folders of tests, so each has one of its own on Drive too.
        place = read_place(f"drive://contract/{folder.parent.name}?service={self.drive.url}")
        credentials = self.drive.credentials()
        account = Account(lambda: SignedIn(credentials=credentials))
        return DriveStore(place, account, clock=FakeClock(), chunk_bytes=CHUNK)


class TestDriveStore(_OnDrive):
    """A service without faults."""


class TestDriveStoreWithTroubles(_OnDrive):
    """One request in six goes wrong, in six ways."""

    @pytest.fixture(autouse=True)
    def _troubles(self, _server, request):
        seeds = itertools.count(sum(map(ord, request.node.name)))
        troubles = [
            refuse(503),
            refuse(429, "rateLimitExceeded", retry_after=3),
            refuse(403, "userRateLimitExceeded"),
            html(502),
            lose_answer(),
            reset_request(1000),
        ]
        self.drive.faults(*[one.on(path="/drive/v3/", count=None, chance=0.03, seed=next(seeds)) for one in troubles])

    def test_the_troubles_are_real(self, store):
        """A store that met none would have proven nothing."""
        before = len(self.drive.requests())
        for number in range(40):
            store.put(f"run/{number}", BytesSource(b"abc"))
        troubles = {seen.fault for seen in self.drive.requests()[before:] if seen.fault}
        assert len(troubles) >= 3


class TestWrappedDriveStore(_OnDrive):
    """The test kit's own wrapper sees no difference."""

    def make_store(self, folder):
        return FaultyStore(super().make_store(folder))

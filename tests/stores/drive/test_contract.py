"""The Drive store keeps every promise of a store, on a good day and on a bad one."""

from __future__ import annotations

import itertools

import pytest

from colabkeep.stores.base import BytesSource
from colabkeep.testing.stores import StoreContract
from tests.fakes.drive import html, lose_answer, refuse, reset_request

from .conftest import store_on

CHUNK = 2**18


class _OnDrive(StoreContract):
    same_folder_same_place = True

    @pytest.fixture(autouse=True)
    def _server(self, drive):
        self.drive = drive

    def make_store(self, folder):
        # pytest numbers the folders of tests, so each has one of its own on Drive too.
        return store_on(self.drive, f"contract/{folder.parent.name}", chunk_bytes=CHUNK)


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

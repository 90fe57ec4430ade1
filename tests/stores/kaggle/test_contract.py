"""A Kaggle dataset keeps every promise of a store."""

from __future__ import annotations

import hashlib

import pytest

from colabkeep.stores.kaggle.service import Pace, Service
from colabkeep.stores.kaggle.store import KaggleStore
from colabkeep.testing.stores import StoreContract
from tests.fakes.kaggle.server import FakeKaggle

PACE = Pace(first=3600, every=3600, retry=0.05, call=60, look=10, ready=30, appear=0.2, poll=0.01)


class Borrowed:
    """One child process for all stores of the suite, which would else start forty."""

    def __init__(self, process):
        self.ask = process.ask

    def close(self):
        """It is the others' too."""


@pytest.fixture(scope="module")
def shared(client, tmp_path_factory):
    """Makes services that share one child."""
    home = tmp_path_factory.mktemp("home")

    def made(handle):
        service = Service(handle, home, PACE)
        service.process = Borrowed(first.process)
        return service

    with FakeKaggle() as fake:
        first = Service("ada/nothing", home, command=fake.command, environ=fake.environ(home))
        yield made
        first.close()


class TestKaggleStore(StoreContract):
    """A dataset of a server on loopback; each folder is a machine, and a dataset, of its own."""

    same_folder_same_place = True

    @pytest.fixture(autouse=True)
    def _kaggle(self, shared):
        self.service = shared

    def make_store(self, folder):
        handle = f"ada/{hashlib.sha256(str(folder).encode()).hexdigest()[:20]}"
        return KaggleStore(self.service(handle), folder)

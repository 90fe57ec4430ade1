"""Kaggle on loopback, and stores of its datasets that are closed at the end of a test."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec

import pytest

from colabkeep.stores.kaggle.service import Pace, Service
from colabkeep.stores.kaggle.store import KaggleStore
from tests.fakes.kaggle.server import FakeKaggle

# Nothing is published but when a test waits for it; and what fails is tried again at once.
PACE = Pace(first=3600, every=3600, retry=0.05, call=30, look=10, ready=30, appear=0.2, poll=0.01)


@pytest.fixture(scope="session")
def client():
    """Kaggle's own client is installed. In CI it has to be."""
    if find_spec("kagglehub") is None and not os.environ.get("CI"):
        pytest.skip("Kaggle's client is not installed here: pip install 'colabkeep[kaggle]'")


@pytest.fixture
def fake(client):
    """Kaggle."""
    with FakeKaggle() as fake:
        yield fake


@pytest.fixture
def machine(fake, tmp_path):
    """Makes the store of ada's dataset "checkpoints" on a machine: "b" knows nothing of what "a" has on its disk.

    Options: `handle`, `token`, and every word of `Pace`.
    """
    made = []

    def make(name, *, handle="ada/checkpoints", token="KGAT_5ecret5ecret5ecret", **pace):
        folder = tmp_path / name
        environ = fake.environ(tmp_path / "home", token)
        store = KaggleStore(
            Service(handle, folder, replace(PACE, **pace), command=fake.command, environ=environ), folder
        )
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()

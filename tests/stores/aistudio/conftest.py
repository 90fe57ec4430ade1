"""AI Studio's hub on this machine, and stores in its repositories through the real aistudio-sdk."""

from __future__ import annotations

import hashlib

import pytest

from colabkeep.stores.hub import aistudio
from colabkeep.stores.shared.retry import Patience
from tests.fakes.aistudio.service import TOKEN, USER, running_aistudio

QUICK = Patience(first=0.0, longest=0.0)


@pytest.fixture(autouse=True)
def _nobody_signed_in(monkeypatch, tmp_path_factory):
    """Nothing of the user's own account may be looked at."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    for name in ("AISTUDIO_ACCESS_TOKEN", "AISTUDIO_CACHE_HOME", "STUDIO_GIT_HOST", "STUDIO_MODEL_API_URL_PREFIX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub():
    """The service."""
    with running_aistudio() as hub:
        yield hub


@pytest.fixture
def opened(hub):
    """place → a store there, which does not wait between two attempts."""
    stores = []

    def opened(url=f"aistudio://{USER}/run", **options):
        stores.append(aistudio.open_url(url, **{"token": TOKEN, "endpoint": hub.url, "patience": QUICK, **options}))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def place():
    """folder → a repository of its own."""
    return lambda folder: f"aistudio://{USER}/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"

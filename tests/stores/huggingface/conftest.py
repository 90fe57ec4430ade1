"""A Hub on this machine, and stores in its repositories through the real huggingface_hub."""

from __future__ import annotations

import hashlib
import time
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http, close_session

from colabkeep.stores.hub import huggingface
from colabkeep.stores.shared.retry import Patience
from tests.fakes.hub import TOKEN, running_hub

QUICK = Patience(first=0.0, longest=0.0)


@pytest.fixture(autouse=True)
def _no_xet(monkeypatch):
    """There is no Xet service here; and nothing of the user's own account may be looked at."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent/token")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    if detecting := find_spec("huggingface_hub.utils._detect_agent"):  # it asks huggingface.co itself, once a day
        monkeypatch.setattr(f"{detecting.name}._registry", {"standardEnvVars": [], "harnesses": {}})
    # Its waits between two attempts; it has no setting for them.
    monkeypatch.setattr(_http, "time", SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None}))
    yield
    close_session()


@pytest.fixture
def hub():
    """The service."""
    with running_hub() as hub:
        yield hub


@pytest.fixture
def opened(hub):
    """place → a store there, which does not wait between two attempts."""

    def opened(url="hf://ada/run", **options):
        return huggingface.open_url(url, **{"token": TOKEN, "endpoint": hub.url, "patience": QUICK, **options})

    return opened


@pytest.fixture
def place():
    """folder → a repository of its own."""
    return lambda folder: f"hf://ada/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"

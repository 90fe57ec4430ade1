"""Buckets: the real client over HTTP, with a stand-in for Xet, the one service that cannot be had here.

The same promises against the real Hub:
COLABKEEP_LIVE_BUCKET=owner/name HF_TOKEN=… pytest tests/stores/huggingface -k Live
"""

from __future__ import annotations

import os
import secrets

import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import _xet

from colabkeep.core.errors import MissingDependency, StoreError, UsageError
from colabkeep.stores.base import BytesSource
from colabkeep.stores.hub import huggingface
from colabkeep.testing.stores import ChunkedSource, StoreContract
from tests.fakes.hub_buckets import Xet

LIVE = os.environ.get("COLABKEEP_LIVE_BUCKET")


@pytest.fixture
def xet(hub, monkeypatch):
    """The stand-in."""
    xet = Xet(hub.buckets)
    monkeypatch.setattr(_xet, "get_xet_session", lambda: xet)
    return xet


class TestBucket(StoreContract):
    """A bucket that is not there yet."""

    same_folder_same_place = True

    @pytest.fixture(autouse=True)
    def _tools(self, opened, place, xet):
        self.opened, self.place = opened, place

    def make_store(self, folder):
        return self.opened(self.place(folder).replace("hf://", "hf://buckets/") + "/folder")


if LIVE is not None:

    class TestLiveBucket(StoreContract):
        """A folder of a real one, new for each test."""

        @pytest.fixture(autouse=True)
        def _no_xet(self):
            """Here it is needed."""

        def make_store(self, folder):
            return huggingface.open_url(f"hf://buckets/{LIVE}/colabkeep-test-{secrets.token_hex(8)}")


def test_a_new_bucket_is_private_and_its_objects_are_sent(hub, opened, xet):
    """The Hub states no digest of a bucket's files that could be compared, so nothing is called confirmed."""
    store = opened("hf://buckets/ada/b")
    assert hub.log == []
    assert store.put("run/a", BytesSource(b"x")).level == "sent"
    assert (store.properties.top_level, store.properties.persists) == ("sent", True)
    assert hub.buckets.private == {"ada/b"}


def test_an_upload_that_fails_leaves_nothing_here_or_there(hub, opened, xet, monkeypatch, tmp_path):
    """huggingface_hub's own temporary file goes too."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = opened("hf://buckets/ada/b")
    xet.fail = ConnectionResetError("gone")
    with pytest.raises(StoreError):
        store.put("run/a", BytesSource(b"x"))

    def interrupt(number):
        if number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put("run/a", ChunkedSource(b"x" * 9 * 2**20, b"y", before=interrupt))
    assert (list(tmp_path.iterdir()), hub.buckets.buckets["ada/b"]) == ([], {})
    store.put("run/a", BytesSource(b"x"))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_token_is_told(hub, opened, xet):
    """With the page to make one on."""
    with pytest.raises(StoreError) as caught:
        opened("hf://buckets/ada/b", token="hf_expired").put("run/a", BytesSource(b"x"))
    assert "settings/tokens" in caught.value.remedy


def test_a_client_without_buckets_says_what_to_do(opened, monkeypatch):
    """They came with huggingface_hub 1.5."""
    monkeypatch.delattr(HfApi, "batch_bucket_files")
    with pytest.raises(MissingDependency, match="repository"):
        list(opened("hf://buckets/ada/b").list("run"))


@pytest.mark.parametrize(
    "url",
    [
        "hf://",
        "hf://ada",
        "hf://datasets/ada/x",
        "hf://spaces/ada/x",
        "hf://ada/run@main",
        "hf://ada/run/../x",
        "hf://buckets/ada",
    ],
)
def test_what_names_no_repository_of_models_and_no_bucket_is_refused(opened, url):
    """With what to write instead."""
    with pytest.raises(UsageError, match="hf://owner/name"):
        opened(url)


def test_a_hub_client_that_is_missing_is_told_with_the_line_to_type(opened, monkeypatch):
    """The extra has a name."""
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(MissingDependency, match=r"colabkeep\[hf\]"):
        opened("hf://ada/run")

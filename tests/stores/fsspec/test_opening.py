"""What a user may write for a place that fsspec reaches, and what is answered when it is invalid."""

from __future__ import annotations

import builtins

import fsspec
import pytest

from colabkeep.core.errors import MissingDependency, UsageError
from colabkeep.stores import open_store
from colabkeep.stores.base import BytesSource
from colabkeep.stores.fsspec import store
from colabkeep.stores.fsspec.store import FsspecStore


@pytest.mark.parametrize("url", ["s3://bucket/runs", "S3://bucket/runs/", "s3a://bucket"])
def test_a_bucket_is_a_store(url):
    """Nothing is contacted by opening it; its url opens it again; it outlives the machine and cannot lock."""
    store = open_store(url)
    assert isinstance(store, FsspecStore)
    assert store.url == url.rstrip("/")
    assert open_store(store.url).url == store.url
    assert (store.properties.persists, store.properties.locks, store.properties.top_level) == (True, False, "confirmed")


def test_a_pair_with_a_bucket_behind():
    """The machine's own disk in front, by one string."""
    pair = open_store("/tmp/x + s3://bucket/runs")
    assert (pair.front.url, pair.behind.url) == ("/tmp/x", "s3://bucket/runs")


def test_memory_and_folders_are_colabkeep_s_own_unless_fsspec_is_asked_for(tmp_path):
    """The prefix "fsspec+" leads around colabkeep's stores; what is said of durability is as modest as it has to be."""
    assert not isinstance(open_store("memory://"), FsspecStore)
    store = open_store("fsspec+memory://somewhere")
    assert (store.put("a", BytesSource(b"x")).level, store.properties.top_level) == ("local", "local")
    assert store.properties.persists is False
    folder = open_store(f"fsspec+file://{tmp_path}")
    assert (folder.put("a", BytesSource(b"x")).level, folder.properties.persists) == ("local", None)
    assert (tmp_path / "a").read_bytes() == b"x"


@pytest.mark.parametrize(
    "url", ["sftp://ada:s3cr3t@host/runs", "ssh://ada:s3cr3t@host/runs", "s3://key:s3cr3t@bucket/x"]
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url):
    """It would stand in logs, journals and in `colabkeep list`."""
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "password" in str(caught.value)
    assert "s3cr3t" not in repr(caught.value)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("s3://", "s3://bucket/folder"),
        ("gs:///", "gs://bucket/folder"),
        ("s3:///b", "s3://bucket/folder"),
        ("s3a:////b/x", "s3a://bucket/folder"),
        ("s3://AKIA:a/s3cr3t@bucket/x", "s3://bucket/folder"),
        ("s3://bucket/x?key=s3cr3t", "environment"),
        ("fsspec+simplecache://x::s3://bucket/x", "chain"),
        ("nobody-has-this://x", "s3://"),
    ],
)
def test_what_cannot_be_meant_is_told_with_what_can(url, word):
    """No bucket, options, a chain, an unknown scheme."""
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert word in str(caught.value)
    assert "s3cr3t" not in repr(caught.value)


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("s3://bucket", r'pip install "colabkeep\[s3\]"'),
        ("gs://bucket", "pip install gcsfs"),
        ("sftp://host/x", "paramiko"),
    ],
)
def test_a_missing_package_is_told_with_the_line_to_type(url, remedy, monkeypatch):
    """Which differs: what Colab has already is not to be replaced."""
    monkeypatch.setattr(store, "find_spec", lambda name: None)

    def missing(protocol):
        raise ImportError(f"No module named {protocol}")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(MissingDependency, match=remedy):
        open_store(url)


def test_without_fsspec_it_is_told_as_well(monkeypatch):
    """A known scheme names what to install; an unknown one is unknown."""
    real = builtins.__import__

    def without_fsspec(name, *more, **options):
        if name == "fsspec":
            raise ImportError("No module named 'fsspec'")
        return real(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", without_fsspec)
    with pytest.raises(MissingDependency, match=r"colabkeep\[s3\]"):
        open_store("s3://bucket/x")
    with pytest.raises(UsageError):
        open_store("nobody-has-this://x")

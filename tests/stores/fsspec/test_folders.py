"""Places with folders (SFTP and its kind): nothing is seen by halves, and no file of anybody else is touched."""

from __future__ import annotations

import pytest

from colabkeep.core.errors import ObjectNotFound, StoreError, StoreFull, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.testing.stores import ChunkedSource


@pytest.fixture
def store(opened, tmp_path):
    """A folder, by fsspec."""
    return opened(f"fsspec+file://{tmp_path}/place")


@pytest.fixture
def fs(store):
    """The file system below the store."""
    return store._at_work()._fs


def failing(real, *errors):
    """A call that raises these errors first."""
    left = list(errors)

    def call(*arguments, **options):
        if left:
            raise left.pop(0)
        return real(*arguments, **options)

    return call


def test_a_killed_writer_s_draft_is_not_listed_and_is_swept_away(store, tmp_path):
    """A temporary file is no object; sweeping removes it, and nothing that only looks a little like it."""
    store.put("run/a", BytesSource(b"x"))
    folder = tmp_path / "place" / "run"
    (folder / ".b.0123456789abcdef.tmp").write_bytes(b"half")
    (folder / ".somebody-else.tmp").write_bytes(b"hers")
    (folder / "plain.tmp").write_bytes(b"an object's name")
    assert sorted(entry.name for entry in store.list("")) == ["run/a", "run/plain.tmp"]
    assert (store.sweep("other"), store.sweep("run"), store.sweep("")) == (0, 1, 0)
    assert sorted(path.name for path in folder.iterdir()) == [".somebody-else.tmp", "a", "plain.tmp"]


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(store, fs, monkeypatch):
    """A connection that broke in the middle of a listing: an error, else a training would start from zero."""
    store.put("run/a", BytesSource(b"x"))
    monkeypatch.setattr(fs, "ls", failing(fs.ls, *[ConnectionResetError("gone")] * 4))
    with pytest.raises(StoreUnavailable):
        list(store.list("run"))
    assert [entry.name for entry in store.list("run")] == ["run/a"]


def test_a_listing_that_fails_in_passing_is_tried_again(store, fs, monkeypatch):
    """Up to three times, unseen by anybody."""
    store.put("run/a", BytesSource(b"x"))
    monkeypatch.setattr(fs, "ls", failing(fs.ls, *[TimeoutError("slow")] * 3))
    assert [entry.name for entry in store.list("run")] == ["run/a"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(28, "No space left on device"), StoreFull),
        (OSError(122, "Disk quota exceeded"), StoreFull),
        (BrokenPipeError("gone"), StoreUnavailable),
        (EOFError(), StoreUnavailable),
    ],
)
def test_a_move_that_fails_leaves_nothing(store, fs, monkeypatch, tmp_path, error, kind):
    """The last step of a put: neither the object nor its draft is there, and the next attempt succeeds."""
    monkeypatch.setattr(fs, "mv", failing(fs.mv, error))
    with pytest.raises(kind):
        store.put("run/a", BytesSource(b"x"))
    assert [path for path in (tmp_path / "place").rglob("*") if path.is_file()] == []
    store.put("run/a", BytesSource(b"x"))


def test_links_are_no_objects(store, tmp_path):
    """Neither listed nor followed out of the place."""
    store.put("run/a", BytesSource(b"x"))
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "place" / "run" / "link").symlink_to(tmp_path / "outside")
    assert [entry.name for entry in store.list("")] == ["run/a"]
    with pytest.raises(ObjectNotFound):
        store.get("run/link")


def test_data_that_changes_while_it_is_saved_is_not_kept(store):
    """The same number of other bytes than the digest says."""

    class Changing(ChunkedSource):
        sha256 = "0" * 64

        def __init__(self, *chunks):
            self._data, self.size = b"".join(chunks), sum(map(len, chunks))

        def chunks(self):
            yield memoryview(self._data)

    with pytest.raises(OSError, match="not those that were captured"):
        store.put("run/a", Changing(b"abc"))
    assert list(store.list("")) == []


def test_a_source_that_does_not_end_is_not_followed(store):
    """As soon as more comes than was announced it is given up: no disk is filled by it."""

    class Endless(ChunkedSource):
        def chunks(self):
            while self.reads < 100:
                self.reads += 1
                yield memoryview(b"xyz")
            raise AssertionError("it was followed")

    with pytest.raises(StoreError, match="has at least 6"):
        store.put("run/a", Endless(b"xyz", announced=4))
    assert list(store.list("")) == []

"""What earlier sessions left, read-only, is gone on from; and what this one leaves is enough for the next."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import colabkeep
from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreError, StoreFull, StoreUnavailable
from colabkeep.core.manifest import Manifest
from colabkeep.stores import open_store
from colabkeep.stores.base import BytesSource, Receipt
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.overlay import OverlayStore
from colabkeep.testing.faults import FaultyFiles, FaultyStore, on, raising
from colabkeep.testing.stores import StoreContract
from tests.fakes.model import names, read
from tests.fakes.runs import Weights


class TestOverlayStore(StoreContract):
    """A folder in front of two empty ones."""

    same_folder_same_place = True

    def make_store(self, folder):
        return OverlayStore(DirectoryStore(folder), [DirectoryStore(folder.parent / "1"), MemoryStore()])


class TestOverlayStoreAfterAdoption(StoreContract):
    """The same once the run was adopted, so that the store behind is not asked any more."""

    def make_store(self, folder):
        store = OverlayStore(MemoryStore(), [MemoryStore()])
        store.settle("run", None)
        return store


def take(store):
    """What a session does first with the run "r"."""
    take_up(Repository(store, "r"))


def filled(**objects):
    store = MemoryStore()
    for name, data in objects.items():
        store.put(name.replace("__", "/"), BytesSource(data))
    return store


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


LARGE = 600_000  # numbers; from 4 MiB on an object has a blob of its own


def objects(size=LARGE):
    """A large array that never changes, and so is written once, and a small one that does."""
    return {"backbone": Weights(np.arange(size, dtype=np.float64)), "head": Weights(np.zeros(4))}


def train(storage, until, *, size=LARGE, **words):
    """A session of the run "r" up to step `until`. Returns the step it started from; by then the state is checked."""
    state = objects(size)
    words = {"keep_last": None, "save_every": None, **words}
    with colabkeep.Run("r", state=state, storage=storage, **words) as run:
        start = run.progress.step
        assert (state["head"].array == start).all()
        assert (state["backbone"].array == np.arange(size)).all()
        for _ in range(start, until):
            state["head"].array = state["head"].array + 1
            run.step()
        run.save(wait=True)
    return start


def blobs(folder):
    return sorted((folder / "r" / "blobs").iterdir())


# -- reading and writing ---------------------------------------------------------------------------


def test_what_lies_behind_is_read_and_listed_as_if_it_lay_in_front():
    """Front first, then the others in their order; each name once."""
    front, first, second = filled(r__a=b"front"), filled(r__a=b"1", r__b=b"first"), filled(r__b=b"2", r__c=b"second")
    store = OverlayStore(front, [first, second])
    assert [read(store, f"r/{name}") for name in "abc"] == [b"front", b"first", b"second"]
    assert {entry.name: entry.size for entry in store.list("r")} == {"r/a": 5, "r/b": 5, "r/c": 6}


def test_nothing_behind_is_ever_changed(tmp_path):
    """Putting, deleting, locking, sweeping and adopting leave the earlier output byte for byte as it was."""
    train(tmp_path / "old", 3)
    before = contents(tmp_path / "old")
    store = open_store(tmp_path / "new", [str(tmp_path / "old")])
    for name in names(store):
        store.delete(name)
    store.put("r/x", BytesSource(b"x"))
    store.lock("r/lock", "me").release()
    take(store)
    store.close()
    assert contents(tmp_path / "old") == before
    train(open_store(tmp_path / "newer", [str(tmp_path / "old")]), 5, keep_last=1)
    assert contents(tmp_path / "old") == before


def test_a_name_that_lies_behind_is_taken():
    """Names are written once, wherever the object lies."""
    store = OverlayStore(MemoryStore(), [filled(r__a=b"old")])
    with pytest.raises(NameTaken) as caught:
        store.put("r/a", BytesSource(b"new"))
    assert caught.value.remedy
    assert read(store, "r/a") == b"old"
    assert names(store.front) == []


def test_what_is_deleted_here_stays_away_and_its_name_is_free():
    """Retention sees it gone, as long as this store lives; the next one sees it again."""
    behind = filled(r__a=b"old", r__b=b"other")
    store = OverlayStore(MemoryStore(), [behind])
    store.delete("r/a")
    assert names(store) == ["r/b"]
    with pytest.raises(ObjectNotFound):
        store.get("r/a")
    store.put("r/a", BytesSource(b"new"))
    assert read(store, "r/a") == b"new"
    assert names(OverlayStore(MemoryStore(), [behind])) == ["r/a", "r/b"]


def test_a_damaged_copy_gives_way_to_the_next_one_as_long_as_there_is_one():
    """`doubt` turns to the next store that has it, for reading and for listing, and says when there is none."""
    store = OverlayStore(filled(r__a=b"bad"), [MemoryStore(), filled(r__a=b"worse"), filled(r__a=b"right")])
    assert store.doubt("r/a")
    assert read(store, "r/a") == b"worse"
    assert store.doubt("r/a")
    assert (read(store, "r/a"), [entry.size for entry in store.list("r")]) == (b"right", [5])
    assert not store.doubt("r/a")
    assert not store.doubt("r/nothing")
    assert read(store.front, "r/a") == b"bad"


def test_durability_and_locks_are_those_of_the_front():
    """Url, properties, receipts and locks: what is said of the place is said of where it is written."""
    store = OverlayStore(MemoryStore(), [filled(r__a=b"1")])
    receipt = store.put("r/b", BytesSource(b"2"))
    assert (store.url, store.properties) == (store.front.url, store.front.properties)
    assert store.confirm(receipt) == receipt == Receipt(
        name="r/b", size=1, sha256=hashlib.sha256(b"2").hexdigest(), level="local"
    )  # fmt: skip
    with store.lock("r/lock", "me"), pytest.raises(StoreError):
        store.front.lock("r/lock", "another")


def test_earlier_folders_make_an_overlay_and_none_make_none(tmp_path):
    """`open_store(storage, earlier)` reads the folders behind; without any it is the plain store."""
    store = open_store(tmp_path / "new", [str(tmp_path / "1"), str(tmp_path / "2")])
    assert isinstance(store, OverlayStore)
    assert [behind.url for behind in store.behind] == [str(tmp_path / "1"), str(tmp_path / "2")]
    assert isinstance(open_store(tmp_path / "new"), DirectoryStore)
    assert not (tmp_path / "new").exists()


# -- a run that goes on ----------------------------------------------------------------------------


def test_the_next_session_needs_this_ones_output_only(tmp_path):
    """Three sessions, each given only the output before; the frozen backbone, written once, is in each of them."""
    assert train(tmp_path / "1", 3) == 0
    assert train(open_store(tmp_path / "2", [str(tmp_path / "1")]), 5) == 3
    assert [len(blobs(tmp_path / name)) for name in "12"] == [2, 3]
    shutil.rmtree(tmp_path / "1")
    assert train(open_store(tmp_path / "3", [str(tmp_path / "2")]), 6) == 5
    shutil.rmtree(tmp_path / "2")
    assert train(tmp_path / "3", 6) == 6


def test_a_session_that_saves_nothing_leaves_enough_to_go_on_from(tmp_path):
    """Its output holds what it resumed, and the best checkpoint too: the next one does not start from zero."""
    train(tmp_path / "1", 3)
    with colabkeep.Run("r", state=objects(), storage=open_store(tmp_path / "2", [str(tmp_path / "1")])) as run:
        assert run.progress.step == 3
    shutil.rmtree(tmp_path / "1")
    assert train(tmp_path / "2", 3) == 3


def test_the_whole_run_is_handed_on(tmp_path):
    """What the first session wrote, its journal and its lease too, is in the second one's output byte for byte."""
    train(tmp_path / "1", 3)
    train(open_store(tmp_path / "2", [str(tmp_path / "1")]), 5)
    first, second = contents(tmp_path / "1"), contents(tmp_path / "2")
    mine = {name: data for name, data in first.items() if name.startswith("r/") and "/." not in name}
    assert {Path(name).parts[1] for name in mine} >= {"run.json", "journal", "lease", "checkpoints", "blobs"}
    assert {name: second.get(name) for name in mine} == mine


def test_of_two_outputs_the_newest_checkpoint_wins_in_either_order(tmp_path):
    """Both versions attached: the later session's state is gone on from."""
    train(tmp_path / "1", 3)
    train(open_store(tmp_path / "2", [str(tmp_path / "1")]), 5)
    for number, order in enumerate((["1", "2"], ["2", "1"])):
        both = [str(tmp_path / name) for name in order]
        assert train(open_store(tmp_path / f"new {number}", both), 5) == 5


def test_what_retention_drops_is_dropped_though_it_lies_behind(tmp_path):
    """With keep_last=1 one checkpoint is left to see, and the output has the blobs of that one only."""
    train(tmp_path / "1", 3)
    store = open_store(tmp_path / "2", [str(tmp_path / "1")])
    train(store, 5, keep_last=1)
    assert len([name for name in names(store) if "/checkpoints/" in name]) == 1
    assert len([name for name in names(store.front) if "/checkpoints/" in name]) == 1
    assert sorted(entry.name for entry in store.front.list("r/blobs")) == sorted(
        entry.name for entry in store.list("r/blobs")
    )


def test_an_adopted_run_does_not_need_the_earlier_output_any_more(tmp_path):
    """When the input fails in the middle of the session, training and saving go on."""
    train(tmp_path / "1", 3)
    behind = FaultyStore(DirectoryStore(tmp_path / "1"))
    store = OverlayStore(DirectoryStore(tmp_path / "2"), [behind])
    take(store)
    behind.at = lambda _: raising(StoreUnavailable(problem="The input is gone.", remedy="Attach it again."))()
    assert train(store, 5) == 3
    assert store.degraded is None


# -- what cannot be brought ------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_not_brought_and_the_one_before_is_gone_on_from(tmp_path):
    """It is reported as any damaged one; its bytes never get to the output; what it shares with others does."""
    train(tmp_path / "1", 3)
    before = {file.name for file in blobs(tmp_path / "1")}
    train(tmp_path / "1", 5)
    (newest,) = [file for file in blobs(tmp_path / "1") if file.name not in before]
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    store = open_store(tmp_path / "2", [str(tmp_path / "1")])
    assert train(store, 6) == 3
    assert newest.name in str(store.degraded)
    for file in blobs(tmp_path / "2"):
        assert file.name.startswith(hashlib.sha256(file.read_bytes()).hexdigest())
    shutil.rmtree(tmp_path / "1")
    assert train(tmp_path / "2", 6) == 6


def test_a_good_copy_in_another_output_is_brought(tmp_path):
    """Two outputs hold a checkpoint, one of them damaged: the run is adopted as a whole."""
    train(tmp_path / "1", 3)
    shutil.copytree(tmp_path / "1", tmp_path / "2")
    for file in blobs(tmp_path / "1"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    for file in (tmp_path / "1" / "r" / "checkpoints").iterdir():
        file.write_bytes(b"?")
    store = open_store(tmp_path / "3", [str(tmp_path / "1"), str(tmp_path / "2")])
    assert train(store, 3) == 3
    assert store.degraded is None


def test_without_room_for_all_the_newest_is_brought(tmp_path):
    """Older checkpoints stay behind where the next save would have no room, and that is said."""
    train(tmp_path / "1", 3)
    train(tmp_path / "1", 5)

    class Small(DirectoryStore):
        @property
        def properties(self):
            return replace(super().properties, free_bytes=2**20)

    store = OverlayStore(Small(tmp_path / "2"), [DirectoryStore(tmp_path / "1")])
    take(store)
    brought = [name for name in names(store.front) if "/checkpoints/" in name]
    assert [name.split("/")[-1][:12] for name in brought] == ["000000000005"]
    assert "attach" in store.degraded
    assert len([name for name in names(store) if "/checkpoints/" in name]) == 2


def test_a_checkpoint_brings_the_blobs_that_it_names(tmp_path):
    """What could not be adopted at first is brought before the manifest that needs it is written."""
    train(tmp_path / "1", 3)
    full = StoreFull(problem="The disk is full.", remedy="Delete something.")
    front = FaultyStore(DirectoryStore(tmp_path / "2"))
    front.at = lambda point: raising(full)() if point.startswith("before put r/blobs/") else None
    store = OverlayStore(front, [DirectoryStore(tmp_path / "1"), DirectoryStore(tmp_path / "nothing")])
    take(store)
    assert "full" in store.degraded
    assert not (tmp_path / "2" / "r" / "checkpoints").exists()
    front.at = lambda point: None
    assert train(NotTakenUp(store), 5) == 3
    shutil.rmtree(tmp_path / "1")
    assert train(tmp_path / "2", 6) == 5


class NotTakenUp:
    """A store of which nobody knows that it has inherited anything, so that nothing more is brought at the start."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        if name == "inherited":
            raise AttributeError(name)
        return getattr(self._inner, name)


def test_a_checkpoint_whose_blobs_cannot_be_brought_is_not_written(tmp_path):
    """No manifest is ever in the output without its blobs: the save fails, and says why."""
    train(tmp_path / "1", 3)
    behind = [DirectoryStore(tmp_path / name) for name in ("1", "nothing")]
    store = OverlayStore(DirectoryStore(tmp_path / "2"), behind)
    manifest = next(name for name in names(store) if "/checkpoints/" in name)
    text = read(store, manifest)
    store.delete(manifest)
    for file in blobs(tmp_path / "1"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(OSError, match="is not what was written"):
        store.put(manifest, BytesSource(text, needs=Manifest.from_bytes(text, id=Path(manifest).stem).needs("r")))
    assert contents(tmp_path / "2") == {}


def test_a_copy_that_went_bad_in_front_is_replaced_when_it_is_named_again(tmp_path):
    """The good copy behind is read, and brought before a new checkpoint names it."""
    train(tmp_path / "1", 3)
    store = OverlayStore(DirectoryStore(tmp_path / "2"), [DirectoryStore(tmp_path / "1")])
    take(store)
    for file in blobs(tmp_path / "2"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert train(store, 5) == 3
    shutil.rmtree(tmp_path / "1")
    assert train(tmp_path / "2", 6) == 5


def test_foreign_and_orphaned_files_of_an_output_are_left_there(tmp_path):
    """Only what is the run's own is copied, and they do not count as missing."""
    train(tmp_path / "1", 3)
    (tmp_path / "1" / "r" / "notes.txt").write_text("mine")
    (tmp_path / "1" / "r" / "blobs" / f"{'0' * 64}.safetensors").write_bytes(b"orphan")
    (tmp_path / "1" / "other.csv").write_text("1,2")
    store = open_store(tmp_path / "2", [str(tmp_path / "1")])
    take(store)
    assert store.degraded is None
    assert not any("notes" in name or "000000/" in name or "other" in name for name in names(store.front))
    assert f"r/blobs/{'0' * 64}.safetensors" not in names(store.front)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_adoption_cut_short_at_any_system_call_leaves_only_whole_checkpoints(tmp_path, when):
    """Whatever call fails, every manifest in the output has its blobs, and another session goes on from there."""
    train(tmp_path / "1", 1, size=9)
    train(tmp_path / "1", 3, size=9)
    probe = FaultyFiles()
    take(OverlayStore(DirectoryStore(tmp_path / "probe", files=probe.files), [DirectoryStore(tmp_path / "1")]))
    for at in range(0, len(probe.calls), 7):
        folder = tmp_path / f"{when} {at}"
        fault = raising(OSError(errno.EIO, os.strerror(errno.EIO)))
        files = FaultyFiles(at=at, fault=fault, when=when, lasting=True)
        store = OverlayStore(DirectoryStore(folder, files=files.files), [DirectoryStore(tmp_path / "1")])
        with suppress(StoreError):
            take(store)
        cut = DirectoryStore(folder)
        have = {name.rpartition("/")[2] for name in names(cut, "r/blobs")}
        for name in names(cut, "r/checkpoints"):
            manifest = Manifest.from_bytes(read(cut, name), id=Path(name).stem)
            assert {blob.file for blob in manifest.blobs} <= have
        assert train(open_store(folder, [str(tmp_path / "1")]), 3, size=9) == 3
        shutil.rmtree(folder)


def test_a_behind_that_cannot_be_listed_is_an_error_not_an_empty_run(tmp_path):
    """A run that cannot be seen is never begun anew beside the old one."""
    gone = StoreUnavailable(problem="The input does not answer.", remedy="Attach it again.")
    store = OverlayStore(MemoryStore(), [FaultyStore(MemoryStore(), at=on("before list r", raising(gone)))])
    with pytest.raises(StoreUnavailable):
        take(store)

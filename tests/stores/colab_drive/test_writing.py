"""Writing to a mounted Drive: an object is there as a whole or not at all, whatever goes wrong at whatever call."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreError, StoreFull, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.stores.colab_drive import MountedStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyFiles, raising
from colabkeep.testing.stores import ChunkedSource
from tests.fakes.mounts import FakeMount

NAME = "run/blobs/new.bin"
CHUNKS = (b"a" * 150_000, b"b" * 3000, b"c")
WHOLE = b"".join(CHUNKS)
DAYS = 24 * 3600.0


def contents(store):
    found = {}
    for entry in store.list(""):
        with store.get(entry.name) as reader:
            found[entry.name] = reader.read()
        assert len(found[entry.name]) == entry.size
    return found


def files_of(mount):
    return sorted(path for path in mount.root.rglob("*") if path.is_file())


def calls_of_a_put(folder):
    """The system calls of one undisturbed put."""
    mount = FakeMount(folder)
    MountedStore(mount.root / "colabkeep").put("run/old.bin", BytesSource(b"old"))
    files = FaultyFiles(inner=mount.files)
    MountedStore(mount.root / "colabkeep", files=files.files).put(NAME, ChunkedSource(*CHUNKS))
    return files.calls


def test_a_file_becomes_the_object_with_its_very_last_byte(mount, store):
    """Up to the end of the source, what lies on the mount is shorter than its own name says."""
    seen = []

    def look(_):
        seen.append([path.stat().st_size for path in files_of(mount)])
        assert contents(MountedStore(mount.root / "colabkeep")) == {}  # another process

    store.put(NAME, ChunkedSource(*CHUNKS, before=look))
    assert seen == [[], [150_000], [153_000], [153_000]]
    assert contents(MountedStore(mount.root / "colabkeep")) == {NAME: WHOLE}


def test_a_put_that_may_still_fail_shows_nothing(mount, make):
    """Another thread that reads meanwhile finds the object once it was read again and found right, not before."""
    seen = []

    def pread(descriptor, count, offset):
        seen.append([entry.name for entry in store.list("")])
        with pytest.raises(ObjectNotFound):
            store.get(NAME)
        return mount.files.pread(descriptor, count, offset)

    store = make(files=replace(mount.files, pread=pread))
    store.put(NAME, ChunkedSource(*CHUNKS))
    assert seen == [[], []]
    assert [entry.name for entry in store.list("")] == [NAME]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EIO, StoreUnavailable),
        (errno.ENOTCONN, StoreUnavailable),
    ],
)
def test_an_error_at_any_system_call_leaves_nothing_and_the_next_put_succeeds(tmp_path, when, code, kind):
    """Drive full or away, at each call of a put, made or not: no part of the object stays, and nothing else is hurt."""
    raised = 0
    for n in range(len(calls_of_a_put(tmp_path / "count"))):
        mount = FakeMount(tmp_path / str(n))
        root = mount.root / "colabkeep"
        MountedStore(root).put("run/old.bin", BytesSource(b"old"))
        files = FaultyFiles(at=n, fault=raising(OSError(code, os.strerror(code))), when=when, inner=mount.files)
        store = MountedStore(root, files=files.files, pauses=())
        try:
            store.put(NAME, ChunkedSource(*CHUNKS))
        except kind:
            raised += 1
            assert len(files_of(mount)) == 1
            assert contents(store) == contents(MountedStore(root)) == {"run/old.bin": b"old"}
            store.put(NAME, ChunkedSource(*CHUNKS))
        assert len(files_of(mount)) == 2
        assert contents(store) == contents(MountedStore(root)) == {"run/old.bin": b"old", NAME: WHOLE}
        assert mount.misuse == []
    assert raised > 15


def test_a_mount_that_dies_at_any_system_call_leaves_nothing_that_is_taken_for_the_object(tmp_path):
    """It cannot even be tidied up then; when the mount is back the put succeeds, and `sweep` removes the rest."""
    raised = left = 0
    for n in range(len(calls_of_a_put(tmp_path / "count"))):
        mount = FakeMount(tmp_path / str(n))
        root = mount.root / "colabkeep"
        MountedStore(root).put("run/old.bin", BytesSource(b"old"))
        dead = FaultyFiles(at=n, fault=raising(OSError(errno.ENOTCONN, "dead")), lasting=True, inner=mount.files)
        try:
            MountedStore(root, files=dead.files, pauses=()).put(NAME, ChunkedSource(*CHUNKS))
        except StoreUnavailable:
            raised += 1
            assert contents(MountedStore(root)) in ({"run/old.bin": b"old"}, {"run/old.bin": b"old", NAME: WHOLE})
        else:
            assert contents(MountedStore(root)) == {"run/old.bin": b"old", NAME: WHOLE}
        left += len(files_of(mount)) > 1
        mount.notice()
        store = MountedStore(root, files=mount.files)
        store.sweep("run")
        if NAME not in contents(store):
            store.put(NAME, ChunkedSource(*CHUNKS))
        assert contents(store) == {"run/old.bin": b"old", NAME: WHOLE}
        assert len(files_of(mount)) == 2
    assert raised > 15
    assert left > 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_at_any_system_call_leaves_the_whole_object_or_nothing(tmp_path, when):
    """The stop button in any moment of a put: the interrupt goes through as it is, and nothing is half there."""
    for n in range(len(calls_of_a_put(tmp_path / "count"))):
        mount = FakeMount(tmp_path / str(n))
        root = mount.root / "colabkeep"
        MountedStore(root).put("run/old.bin", BytesSource(b"old"))
        interrupt = KeyboardInterrupt()
        files = FaultyFiles(at=n, fault=raising(interrupt), when=when, inner=mount.files)
        store = MountedStore(root, files=files.files)
        with pytest.raises(KeyboardInterrupt) as caught:
            store.put(NAME, ChunkedSource(*CHUNKS))
        assert caught.value is interrupt
        found = contents(store)
        assert found == contents(MountedStore(root))
        if NAME not in found:
            assert len(files_of(mount)) == 1
            store.put(NAME, ChunkedSource(*CHUNKS))
        assert contents(store) == {"run/old.bin": b"old", NAME: WHOLE}


def test_an_interrupt_at_the_very_end_of_a_put_leaves_nothing(mount, store, monkeypatch):
    """Not even the waiting for an upload that will never be, which would hold up all others."""
    add = store._uploads.add

    def add_and_stop(*words):
        add(*words)
        raise KeyboardInterrupt

    monkeypatch.setattr(store._uploads, "add", add_and_stop)
    with pytest.raises(KeyboardInterrupt):
        store.put(NAME, ChunkedSource(*CHUNKS))
    monkeypatch.undo()
    assert (files_of(mount), contents(store), store._uploads.waiting()) == ([], {}, ())
    assert store.flush(0.0)
    store.put(NAME, ChunkedSource(*CHUNKS))
    assert contents(store) == {NAME: WHOLE}


# One process that kills a child of its own at each call: it has one thread, so forking is sound.
_KILLER = (
    f"NAME, SIZES = {NAME!r}, {[len(chunk) for chunk in CHUNKS]}"
    """
import os, sys
from pathlib import Path
from colabkeep.stores.base import BytesSource
from colabkeep.stores.colab_drive import MountedStore
from colabkeep.testing.faults import FaultyFiles
from colabkeep.testing.stores import ChunkedSource
from tests.fakes.mounts import FakeMount

CHUNKS = [letter * size for letter, size in zip((b"a", b"b", b"c"), SIZES)]
for when in ("before", "after"):
    for n in range(int(sys.argv[2])):
        mount = FakeMount(Path(sys.argv[1]) / f"{when}-{n}")
        MountedStore(mount.root / "colabkeep").put("run/old.bin", BytesSource(b"old"))
        child = os.fork()
        if child == 0:
            files = FaultyFiles(at=n, when=when, inner=mount.files).files
            MountedStore(mount.root / "colabkeep", files=files).put(NAME, ChunkedSource(*CHUNKS))
            os._exit(0)
        print(when, n, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
)


def test_a_sigkill_at_any_system_call_leaves_the_whole_object_or_nothing(tmp_path):
    """What is left over is taken for nothing, is in nobody's way, and is swept away once it is a day old."""
    total = len(calls_of_a_put(tmp_path / "count"))
    command = [sys.executable, "-c", _KILLER, str(tmp_path), str(total)]
    places = [*sys.path, str(Path(__file__).parents[3])]  # the last one for `tests.fakes`
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * total
    cut = whole = 0
    for line in lines:
        when, n, code = line.split()
        assert int(code) == -9, f"not killed {when} call {n}"
        root = tmp_path / f"{when}-{n}" / "machine" / "MyDrive" / "colabkeep"
        clock = FakeClock(time=max(path.stat().st_mtime for path in root.rglob("*.bin")))
        store = MountedStore(root, clock=clock)
        found = contents(store)
        assert found in ({"run/old.bin": b"old"}, {"run/old.bin": b"old", NAME: WHOLE})
        left = len(list(root.rglob("*.bin"))) - len(found)
        assert store.sweep("run") == 0  # the old machine may still be uploading it
        clock.advance(2 * DAYS)
        assert store.sweep("run") == left
        assert len(list(root.rglob("*.bin"))) == len(found)
        assert contents(store) == found
        cut, whole = cut + left, whole + (NAME in found)
        if NAME not in found:
            store.put(NAME, ChunkedSource(*CHUNKS))
            assert contents(store) == {"run/old.bin": b"old", NAME: WHOLE}
    assert cut > 10
    assert whole > 5


def test_what_a_kill_left_on_this_machine_is_swept_at_once(mount, store):
    """DriveFS says that it was never uploaded, so nobody else can be writing it."""
    store.put(NAME, BytesSource(b"data"))
    (whole,) = files_of(mount)
    cut = whole.with_name("other~100~0123456789abcdef.bin")
    cut.write_bytes(b"x" * 99)
    mount.notice()
    assert store.sweep("elsewhere") == 0
    assert store.sweep("run") == 1
    assert files_of(mount) == [whole]


@pytest.mark.parametrize("name", ["exp/lr1/blobs/new.bin", "exp/lr1/run.json"])
def test_a_run_that_lies_below_another_is_written_on_while_that_is_swept(mount, store, name):
    """Another process on this machine writes `exp/lr1`, of which Drive has nothing yet, when `exp` is opened."""
    other = MountedStore(mount.root / "colabkeep", files=mount.files, clock=store._clock)

    def sweep(number):
        mount.notice()
        assert other.sweep("exp") == 0

    store.put(name, ChunkedSource(*CHUNKS, before=sweep))
    assert contents(store) == {name: WHOLE}
    assert other.sweep("exp") == 0
    assert other._uploads.waiting() == ()  # for uploads of its own run only


def test_nothing_but_its_own_leftovers_is_swept(mount, store):
    """Short files of others, folders and what is whole stay, however old they are."""
    store.put("run/a", BytesSource(b"data"))
    for name in ("notes.txt", "a (1).json", "b~x~y.json", "c~0~0123456789abcdef", "d~4~0123456789abcdef"):
        (mount.root / "colabkeep" / "run" / name).write_bytes(b"four" if name[0] == "d" else b"")
    before = files_of(mount)
    mount.notice()
    store._clock.advance(1000 * DAYS)
    assert store.sweep("") == 0
    assert files_of(mount) == before


def test_bytes_that_the_mount_does_not_give_back_are_not_kept(mount, make):
    """The file is read again after it was written: what is not the same is written anew, and in the end refused."""
    mount.damages = True
    store = make(pauses=(1.0, 2.0))
    source = ChunkedSource(b"good bytes")
    with pytest.raises(StoreUnavailable, match="not what could be read"):
        store.put("run/a", source)
    assert source.reads == 3
    assert files_of(mount) == []
    mount.damages = False
    store.put("run/a", source)
    assert contents(store) == {"run/a": b"good bytes"}


def test_more_bytes_than_announced_never_make_an_object(mount, store):
    """Not even for a moment: the first byte too many ends it, before the file has the size of its name."""
    seen = []

    def look(_):
        seen.append(contents(MountedStore(mount.root / "colabkeep")))

    with pytest.raises(StoreError, match="has 3"):
        store.put("run/a", ChunkedSource(b"ab", b"c", b"d", announced=2, before=look))
    assert seen == [{}, {}]
    assert files_of(mount) == []


def test_bytes_other_than_announced_are_not_kept(mount, store):
    """The right number of bytes with another digest: something changed while it was being saved."""
    source = ChunkedSource(b"changed")
    source.sha256 = ChunkedSource(b"initial").sha256
    with pytest.raises(StoreError, match="should have"):
        store.put("run/a", source)
    assert files_of(mount) == []


def test_a_drive_without_room_is_full(mount, store):
    """`StoreFull`, which may pass, with nothing left behind and the old objects untouched."""
    store.put("run/a", BytesSource(b"x" * 5000))
    mount.quota_bytes, mount.refuses = 10_000, True
    assert store.properties.free_bytes == 4096
    with pytest.raises(StoreFull, match="keep_last"):
        store.put("run/b", BytesSource(b"x" * 6000))
    assert contents(store) == {"run/a": b"x" * 5000}
    assert len(files_of(mount)) == 1
    assert store._clock.slept == []  # waiting makes no room


def test_free_space_is_a_hint_that_refuses_nothing(mount, store):
    """The mount's figure is known to be wrong at times; a put is tried whatever it says."""
    mount.quota_bytes = 1
    assert store.properties.free_bytes == 0
    store.put("run/a", BytesSource(b"xyz"))
    mount.away = errno.ENOTCONN
    assert store.properties.free_bytes is None


def test_a_file_is_emptied_before_it_is_deleted(mount, store):
    """Drive's trash counts against the quota: what was emptied counts nothing there."""
    store.put("run/a", BytesSource(b"x" * 5000))
    mount.notice()
    mount.sync()
    store.delete("run/a")
    mount.sync()
    assert (mount.trash_bytes, list(mount.cloud.rglob("*.*"))) == (0, [])


def test_a_file_that_cannot_be_emptied_is_deleted_all_the_same(tmp_path, mount, make):
    """Emptying is a kindness to the quota, no more."""
    make().put("run/a", BytesSource(b"x" * 5000))
    for call in ("open", "ftruncate", "close"):
        make().put("run/b", BytesSource(b"x"))
        counted = FaultyFiles(inner=mount.files)
        store = make(files=counted.files)
        store.get("run/b").close()
        start = len(counted.calls)
        store.delete("run/b")
        n = start + counted.calls[start:].index(call)
        make().put("run/b", BytesSource(b"x"))
        files = FaultyFiles(at=n, fault=raising(OSError(errno.EIO, "no")), inner=mount.files)
        store = make(files=files.files, pauses=())
        store.get("run/b").close()
        store.delete("run/b")
        assert contents(make()) == {"run/a": b"x" * 5000}


def test_what_was_deleted_is_gone_also_where_a_listing_still_shows_it(mount, store):
    """And its name is free again: the new object is another file."""
    store.put("run/a", BytesSource(b"first"))
    mount.lags = True
    assert contents(store) == {"run/a": b"first"}
    store.delete("run/a")
    assert contents(store) == {}
    with pytest.raises(ObjectNotFound):
        store.get("run/a")
    assert store.sweep("run") == 0
    store.put("run/a", BytesSource(b"second"))
    assert contents(store) == {"run/a": b"second"}


def test_what_was_copied_to_drive_by_hand_is_read_and_never_emptied(mount, store):
    """Plain files under their objects' names, as an ordinary folder has them; deleted, they are in the trash, whole."""
    plain = mount.root / "colabkeep" / "run" / "blobs" / "a.bin"
    plain.parent.mkdir(parents=True)
    plain.write_bytes(b"by hand")
    assert contents(store) == {"run/blobs/a.bin": b"by hand"}
    with pytest.raises(NameTaken):
        store.put("run/blobs/a.bin", BytesSource(b"other"))
    mount.notice()
    mount.sync()
    store.delete("run/blobs/a.bin")
    mount.sync()
    assert (contents(store), mount.trash_bytes) == ({}, 7)
    plain.write_bytes(b"by hand, once more")
    assert store.sweep("run") == 0
    assert plain.exists()


def test_a_folder_takes_so_many_files_and_the_others_go_below_it(mount, make):
    """Drive answers with errors where a folder has too many entries; here that is more than five."""
    store = make(per_folder=3)
    mount.most_entries = 5
    for number in range(8):
        store.put(f"run/{number}", BytesSource(b"x" * number))
    folder = mount.root / "colabkeep" / "run"
    assert sorted(path.relative_to(folder).parent.as_posix() for path in files_of(mount)) == [
        *[".", ".", "."],
        *["~1", "~1", "~1"],
        *["~2", "~2"],
    ]
    mount.most_entries = None
    assert contents(make()) == {f"run/{number}": b"x" * number for number in range(8)}
    assert sorted(entry.name for entry in make().list("run")) == [f"run/{number}" for number in range(8)]
    store.delete("run/0")
    store.put("run/0", BytesSource(b"again"))
    assert len(list(folder.glob("0~*"))) == 1


def test_a_folder_with_too_many_files_of_others_is_an_error_that_may_pass(mount, make):
    """Errno 5 from a full folder is told as a mount that does not answer, not as an empty folder."""
    store = make(pauses=())
    store.put("run/a", BytesSource(b"1"))
    for number in range(10):
        (mount.root / "colabkeep" / "run" / f"photo {number}").touch()
    mount.most_entries = 5
    for call in (lambda: store.list("run"), lambda: store.put("run/b", BytesSource(b"2"))):
        with pytest.raises(StoreUnavailable, match="Input/output"):
            call()


@pytest.mark.parametrize(
    ("root", "missing"),
    [
        ("MyDrive/colabkeep", "MyDrive"),
        ("MyDrive/experiments/2026/colabkeep", "MyDrive"),
        ("My Drive/colabkeep", "My Drive"),
        ("MyDrive", "MyDrive"),
        ("Shareddrives/lab/colabkeep", "Shareddrives/lab"),
        ("elsewhere/colabkeep", "elsewhere"),
    ],
)
def test_a_drive_that_is_not_mounted_is_not_replaced_by_a_folder(tmp_path, root, missing):
    """Nothing is made on this machine's own disk; once Drive is there, what is missing below it is made."""
    store = MountedStore(tmp_path / root, pauses=())
    for call in (
        lambda: store.put("run/a", BytesSource(b"1")),
        lambda: store.get("run/a"),
        lambda: store.list(""),
        lambda: store.delete("run/a"),
        lambda: store.sweep("run"),
    ):
        with pytest.raises(StoreUnavailable, match="not mounted") as caught:
            call()
        assert "colabkeep.mount()" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []
    (tmp_path / missing).mkdir(parents=True)
    assert list(store.list("")) == []
    store.put("run/a", BytesSource(b"1"))
    assert contents(store) == {"run/a": b"1"}


def test_a_root_that_was_there_and_is_gone_is_not_made_anew(tmp_path, make, mount):
    """It is a failure that may pass, never an empty store."""
    store = make(pauses=())
    store.put("run/a", BytesSource(b"1"))
    (mount.root / "colabkeep").rename(mount.root / "away")
    for call in (lambda: store.put("run/b", BytesSource(b"2")), lambda: store.list(""), lambda: store.get("run/a")):
        with pytest.raises(StoreUnavailable, match="was there and is gone"):
            call()
    (mount.root / "away").rename(mount.root / "colabkeep")
    assert contents(store) == {"run/a": b"1"}


def test_links_are_not_followed(tmp_path, mount, store):
    """Shortcuts in a shared folder lead neither a read nor a write out of the store."""
    store.put("run/a", BytesSource(b"1"))
    outside = tmp_path / "outside"
    (outside / "blobs").mkdir(parents=True)
    (outside / "blobs" / "secret").write_bytes(b"secret")
    run = mount.root / "colabkeep" / "run"
    (run / "blobs").symlink_to(outside / "blobs")
    (run / "link").symlink_to(outside / "blobs" / "secret")
    assert contents(store) == {"run/a": b"1"}
    for name in ("run/blobs/secret", "run/link"):
        with pytest.raises(ObjectNotFound):
            store.get(name)
    with pytest.raises(StoreError, match="links"):
        store.put("run/blobs/b", BytesSource(b"2"))
    assert [path.name for path in (outside / "blobs").iterdir()] == ["secret"]

"""What is called confirmed is in Drive, and what cannot be known is called unknown."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.manifest import BlobRef, Manifest, Progress
from colabkeep.stores.base import BytesSource, Receipt
from colabkeep.stores.colab_drive import MountedStore
from colabkeep.stores.colab_drive.uploads import SILENCE
from colabkeep.testing.clock import FakeClock

ID, UNCOMMITTED = "user.drive.id", "user.drive.uncommitted"
ABSENT = OSError(errno.ENODATA, "no data")


def put(store, name, data=b"data", needs=None):
    return store.put(name, BytesSource(data, needs))


def levels(store, receipts):
    return [store.confirm(receipt).level for receipt in receipts]


def saying(mount, **attributes):
    """The mount's calls, with these attributes for every file."""
    answers = {ID: attributes["id"], UNCOMMITTED: attributes["uncommitted"]}

    def getxattr(path, name):
        if isinstance(answers[name], OSError):
            raise answers[name]
        return answers[name]

    return replace(mount.files, getxattr=getxattr)


@pytest.mark.parametrize(
    ("id", "uncommitted", "level"),
    [
        (b"1AbC-_9", b"0", "confirmed"),
        (b"1AbC-_9\0", b"0\n", "confirmed"),
        (b"1AbC-_9", b"1", "local"),
        (b"local-17", b"1", "local"),
        (b"local-17", b"0", "local"),
        (b"local-17", ABSENT, "local"),
        (b"1AbC-_9", ABSENT, "unknown"),
        (ABSENT, b"0", "unknown"),
        (ABSENT, ABSENT, "unknown"),
        (OSError(errno.ENOTSUP, "no attributes here"), b"0", "unknown"),
        (b"", b"0", "unknown"),
        (b"what is this?", b"0", "unknown"),
        (b"\xff\xfe", b"0", "unknown"),
        (b"1AbC-_9", b"", "unknown"),
        (b"1AbC-_9", b"2", "unknown"),
        (b"1AbC-_9", b"00", "unknown"),
    ],
)
def test_only_an_id_of_drive_together_with_nothing_uncommitted_is_confirmed(mount, make, tide, id, uncommitted, level):
    """Everything odd is unknown, in the end, and what DriveFS calls its own is on this machine only."""
    store = make(files=saying(mount, id=id, uncommitted=uncommitted))
    receipt = put(store, "run/a")
    assert receipt.level in {level, "local"}
    tide.advance(SILENCE)
    assert store.confirm(receipt).level == level
    assert store.flush(5.0) == (level == "confirmed")


def test_the_way_of_a_file_into_drive(mount, store):
    """Nothing is said, then it is on this machine only, then it is in Drive under an id of its own."""
    receipt = put(store, "run/a")
    assert (receipt.level, store.properties.persists) == ("local", None)
    mount.notice()
    assert (store.confirm(receipt).level, store.properties.persists) == ("local", None)
    mount.sync()
    confirmed = store.confirm(receipt)
    assert (confirmed.level, store.properties.persists) == ("confirmed", True)
    assert confirmed.id in map(mount._drive.id, mount._drive.names())
    assert store.confirm(confirmed) == confirmed


def test_an_ordinary_folder_says_nothing(tmp_path):
    """On a disk without Drive the level is unknown, for ever, and a flush says so; a young silence proves nothing."""
    clock = FakeClock()
    store = MountedStore(tmp_path / "colabkeep", clock=clock)
    receipt = put(store, "run/a")
    assert (receipt.level, store.flush(0.1), store.confirm(receipt).level) == ("local", False, "local")
    clock.advance(SILENCE)
    assert (store.confirm(receipt).level, put(store, "run/b").level, store.flush(0.1)) == ("unknown", "unknown", False)
    assert store.properties.persists is None


def test_a_file_that_drivefs_did_not_notice_yet_is_on_this_machine_only(mount, store, tide):
    """Where it speaks of others its silence is no answer, however long it lasts: a lost machine would take the file."""
    put(store, "run/a")
    mount.notice()
    mount.sync()
    tide.advance(100 * SILENCE)
    receipt = put(store, "run/b")
    tide.advance(100 * SILENCE)
    assert (receipt.level, store.confirm(receipt).level) == ("local", "local")


def test_nobody_waits_long_for_what_an_ordinary_folder_will_never_say(tmp_path):
    """After some seconds of silence about every file a flush ends, with much of its time left."""
    clock = FakeClock()
    store = MountedStore(tmp_path / "colabkeep", clock=clock)
    put(store, "run/a")
    began = clock.monotonic()
    assert not store.flush(600.0)
    assert 10.0 <= clock.monotonic() - began < 30.0


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="this system has no extended attributes")
def test_the_attributes_are_those_of_the_operating_system(tmp_path):
    """Set on a real file by another hand, they are read by the real call."""
    store = MountedStore(tmp_path / "colabkeep")
    receipt = put(store, "run/a")
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    try:
        os.setxattr(file, ID, b"local-1")
    except OSError as error:
        pytest.skip(f"this disk has no extended attributes: {error}")
    assert store.confirm(receipt).level == "local"
    os.setxattr(file, ID, b"1AbC")
    os.setxattr(file, UNCOMMITTED, b"0")
    assert store.confirm(receipt) == replace(receipt, level="confirmed", id="1AbC")


def test_an_object_is_as_durable_as_the_least_of_those_put_before_it(mount, store):
    """Uploads overtake each other: a manifest that arrived before its blobs is not yet called confirmed."""
    receipts = [put(store, "run/blobs/a"), put(store, "run/blobs/b"), put(store, "run/checkpoints/1")]
    mount.notice()
    arrived = {path: path.read_bytes() for path in mount.root.rglob("1~*")}
    for path in mount.root.rglob("*~*"):
        if path not in arrived:
            mount._noticed.discard(str(path))
    mount.sync()
    assert [path.name[0] for path in mount.cloud.rglob("*~*")] == ["1"]
    assert levels(store, receipts) == ["local", "local", "local"]
    mount.notice()
    assert levels(store, receipts) == ["local", "local", "local"]
    assert [store.confirm(receipt).id for receipt in receipts] == [None, None, None]
    mount.sync()
    assert levels(store, reversed(receipts)) == ["confirmed"] * 3


def test_an_object_that_waits_for_another_does_not_get_its_id(mount, make):
    """The id is a link to the file in Drive: that of another file would lead to the wrong one."""
    answers = {ID: lambda path: path[-4:].encode(), UNCOMMITTED: lambda path: b"1"}
    store = make(files=replace(mount.files, getxattr=lambda path, name: answers[name](path)))
    put(store, "run/a")
    receipt = put(store, "run/b")
    assert (store.confirm(receipt).level, store.confirm(receipt).id) == ("local", None)


def test_what_was_deleted_is_not_waited_for(mount, store):
    """A blob that is pruned before it was uploaded holds nothing up."""
    put(store, "run/blobs/a")
    receipt = put(store, "run/checkpoints/1")
    store.delete("run/blobs/a")
    mount.notice()
    mount.sync()
    assert levels(store, [receipt]) == ["confirmed"]


def test_uploads_of_an_earlier_session_on_this_machine_are_waited_for(mount, make):
    """After a restart of the kernel: a new manifest may need a blob that the last session wrote a moment ago."""
    put(make(), "run/blobs/a")
    mount.notice()
    store = make()
    assert store.sweep("run") == 0
    assert [entry.name for entry in store._uploads.waiting()] == ["run/blobs/a"]
    receipt = put(store, "run/checkpoints/1")
    mount.notice()
    for path in mount.root.rglob("a~*"):
        mount._noticed.discard(str(path))
    mount.sync()
    assert store.confirm(receipt).level == "local"
    mount.notice()
    mount.sync()
    assert store.confirm(receipt).level == "confirmed"
    assert store._uploads.waiting() == ()


def test_what_came_from_drive_is_not_waited_for(mount, make):
    """Where the attribute of pending bytes is missing, an id of Drive's own says that an old file came from there."""
    put(make(), "run/blobs/a")
    store = make(files=saying(mount, id=b"1AbC", uncommitted=ABSENT))
    store.sweep("run")
    assert store._uploads.waiting() == ()
    assert store.confirm(Receipt(name="run/blobs/a", size=4, sha256="", level="sent")).level == "unknown"


def test_a_flush_waits_until_all_is_in_drive(mount, store, tide):
    """It looks again and again, ever more seldom, and says True only when DriveFS said so of every object."""
    receipts = [put(store, f"run/{number}", bytes(number)) for number in range(20)]
    assert store.flush(600.0)
    assert levels(store, receipts) == ["confirmed"] * 20
    assert tide.slept == sorted(tide.slept)
    assert max(tide.slept) <= 5.0


def test_a_flush_gives_up_at_its_deadline(mount, store, tide):
    """Drive is full, and nobody is told: the file stays where it is."""
    mount.quota_bytes = 3
    put(store, "run/a", b"four")
    assert not store.flush(60.0)
    assert sum(tide.slept) == pytest.approx(60.0)
    assert [(entry.name, entry.size) for entry in store._uploads.waiting()] == [("run/a", 4)]
    mount.quota_bytes = None
    assert store.flush(60.0)


def test_a_flush_does_not_wait_for_what_is_gone(mount, store, tide):
    """A folder that was deleted arrives no more; what is still there is waited for all the same."""
    put(store, "run/a")
    put(store, "run/blobs/b")
    put(store, "other/c")
    mount.delete_folder("colabkeep/run")
    began = tide.monotonic()
    assert store.flush(1000.0) is False
    assert tide.monotonic() - began < 100.0
    assert levels(store, [put(store, "other/d")]) == ["local"]
    assert [entry.name for entry in store._uploads.waiting()] == ["run/a", "run/blobs/b", "other/d"]


def test_a_flush_of_nothing_is_done(store, tide):
    """Nothing was put: there is nothing to wait for."""
    assert store.flush(0.0)
    assert tide.slept == []


def test_a_flush_outlasts_an_outage(mount, store, tide):
    """The mount is away and comes back before the time is over."""
    put(store, "run/a")
    mount.die()
    sleep = tide.sleep

    def back_after_a_while(seconds):
        if tide.monotonic() > 30.0:
            mount.away = None
        sleep(seconds)

    tide.sleep = back_after_a_while
    assert store.flush(120.0)
    assert store.degraded is None


@pytest.mark.parametrize("losing", ["file", "bytes"])
def test_what_vanishes_before_it_was_uploaded_is_told_and_never_confirmed(mount, make, losing):
    """The mount died and took what it had not sent: neither this object nor one that needs it is called confirmed."""
    store = make(pauses=())
    lost = put(store, "run/blobs/a", b"long data")
    mount.die()
    mount.come_back()
    (file,) = (path for path in mount.root.rglob("a~*"))
    file.unlink() if losing == "file" else file.write_bytes(b"cut")
    later = put(store, "run/checkpoints/1", needs={lost.name: (lost.size, lost.sha256)})
    mount.notice()
    mount.sync()
    assert levels(store, [lost, later]) == ["local", "local"]
    assert not store.flush(10.0)
    assert "'run/blobs/a'" in store.degraded
    assert "Run this cell again" in store.degraded
    assert "run/blobs/a" not in [entry.name for entry in store.list("")]
    put(store, "run/blobs/a", b"long data")
    mount.notice()
    assert levels(store, [later]) == ["local"]  # it keeps the turn of the lost one, which the later one needs
    mount.sync()
    assert levels(store, [lost, later]) == ["confirmed", "confirmed"]
    assert store.degraded is None


def lose(mount, last):
    """The mount dies, and takes one file with it."""
    mount.die()
    mount.come_back()
    (file,) = mount.root.rglob(f"{last}~*")
    file.unlink()


@pytest.mark.parametrize("fate", ["missing", "empty", "cut"])
def test_what_was_lost_is_never_taken_for_what_an_ordinary_folder_keeps(mount, make, tide, fate):
    """ "unknown" counts as perhaps safe, so it is said of nothing that is known not to be there, on any mount."""
    mount.silent = True
    store = make()
    kept, lost = put(store, "run/blobs/a"), put(store, "run/blobs/b", b"long data")
    tide.advance(SILENCE)
    assert levels(store, [kept, lost]) == ["unknown", "unknown"]
    (file,) = mount.root.rglob("b~*")
    file.unlink() if fate == "missing" else file.write_bytes(b"" if fate == "empty" else b"cut")
    assert levels(store, [kept, lost]) == ["unknown", "local"]
    assert levels(make(), [lost]) == ["local"], "nor does another process"


@pytest.mark.parametrize("last", ["run.json", "lease/1", "journal/1", "checkpoints/1.json"])
def test_what_no_checkpoint_needs_holds_none_back_when_it_is_lost(mount, make, last):
    """Later checkpoints are confirmed; the loss is told, and a flush does not call it done."""
    store = make(pauses=())
    lost = put(store, f"run/{last}")
    lose(mount, last.rpartition("/")[2].partition(".")[0])
    later = [put(store, "run/blobs/b"), put(store, "run/checkpoints/2.json")]
    mount.notice()
    mount.sync()
    assert levels(store, [lost, *later]) == ["local", "confirmed", "confirmed"]
    assert lost.name in store.degraded
    assert not store.flush(10.0)


SHARED, OWN = "a" * 64 + ".safetensors", "b" * 64 + ".safetensors"


def put_manifest(store, step, *blobs):
    """Put a manifest that names these blobs."""
    id = f"{step:012d}-aaaaaaaa"
    named = tuple(BlobRef(file=file, sha256=file[:64], size=4) for file in blobs)
    words = {"id": id, "run": "run", "session": "aaaaaaaa", "fence": 1, "parts": {}, "framework": "none"}
    manifest = Manifest(progress=Progress(step=step), blobs=named, **words)
    return put(store, f"run/checkpoints/{id}.json", manifest.to_bytes(), manifest.needs("run"))


def test_a_lost_blob_holds_back_the_checkpoints_that_name_it_until_it_was_put_again(mount, make):
    """Those that do without are confirmed meanwhile, and in the end all are."""
    store = make(pauses=())
    shared = put(store, f"run/blobs/{SHARED}")
    old = put_manifest(store, 1, SHARED)
    lose(mount, "a" * 64)
    other = [put(store, f"run/blobs/{OWN}"), put_manifest(store, 2, OWN)]
    needing = put_manifest(store, 3, OWN, SHARED)
    mount.notice()
    mount.sync()
    for _ in range(2):
        assert levels(store, [shared, old, needing]) == ["local", "local", "local"]
        assert levels(store, other) == ["confirmed", "confirmed"]
    put(store, f"run/blobs/{SHARED}")
    mount.notice()
    assert levels(store, [shared, old, needing]) == ["local", "local", "local"]
    mount.sync()
    assert levels(store, [shared, old, needing, *other]) == ["confirmed"] * 5
    assert (store.degraded, store._uploads.waiting()) == (None, ())


def test_a_mount_that_is_away_has_lost_nothing(mount, make):
    """Its files are not seen while it is unmounted; that is told as what it is."""
    store = make(pauses=())
    put(store, "run/blobs/a")
    mount.away = errno.ENOENT
    assert not store.flush(0.0)
    assert "vanished from there" not in store.degraded
    assert "cannot be reached" in store.degraded


def test_asking_does_not_wait(mount, store, tide):
    """`confirm` tries once: it is asked often, and somebody waits for it."""
    receipt = put(store, "run/a")
    mount.die()
    with pytest.raises(StoreUnavailable):
        store.confirm(receipt)
    assert tide.slept == []
    mount.come_back()
    mount.notice()
    assert store.confirm(receipt).level == "local"


def test_a_put_is_not_undone_by_a_question_that_is_not_answered(mount, make):
    """The bytes were written and read again; while DriveFS cannot be asked it is on this machine."""
    store = make(files=saying(mount, id=OSError(errno.EIO, "not now"), uncommitted=ABSENT))
    assert put(store, "run/a").level == "local"
    assert [entry.name for entry in make().list("")] == ["run/a"]


def test_an_object_of_another_machine_is_asked_about_as_it_was_found(mount, make):
    """A receipt alone is enough, of an object that this process never saw; a missing one is not there."""
    receipt = put(make(), "run/a")
    mount.notice()
    mount.sync()
    assert make().confirm(replace(receipt, level="sent", id=None)).level == "confirmed"
    assert make().confirm(replace(receipt, name="run/b")).level == "local"

"""A mount that goes away is waited for a little, told in a sentence, mounted again where that may be; all goes on."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace

import pytest

from colabkeep.core.errors import MountError, ObjectNotFound, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.testing.stores import ChunkedSource
from tests.fakes.model import names, read

GONE = [errno.ENOTCONN, errno.EIO, errno.ENOENT]


def put(store, name, data=b"data"):
    return store.put(name, BytesSource(data))


def in_a_thread(call):
    """What the call raised there, or None."""
    caught = []

    def work():
        try:
            call()
        except StoreUnavailable as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return caught[0] if caught else None


CALLS = {
    "put": lambda store: put(store, "run/b"),
    "get": lambda store: read(store, "run/a"),
    "list": names,
    "delete": lambda store: store.delete("run/a"),
    "sweep": lambda store: store.sweep("run"),
}


@pytest.mark.parametrize("code", GONE, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_mount_that_is_back_in_time_is_not_noticed(mount, store, tide, call, code):
    """Each call waits, and tries again a bounded number of times."""
    put(store, "run/a")
    mount.away = code

    def back(seconds):
        tide.slept.append(seconds)
        mount.away = None if len(tide.slept) == 2 else mount.away

    tide.sleep = back
    call(store)
    assert tide.slept == [1.0, 2.0]
    assert store.degraded is None


@pytest.mark.parametrize("code", GONE, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_mount_that_stays_away_is_an_error_that_may_pass(mount, store, tide, call, code):
    """It says what it means for the training and what to do; and as soon as the mount is back all is well again."""
    put(store, "run/a")
    mount.away = code
    with pytest.raises(StoreUnavailable) as caught:
        call(store)
    assert caught.value.retryable
    assert "colabkeep.mount()" in caught.value.remedy
    assert tide.slept == [1.0, 2.0]
    for words in (str(mount.root), "only on this machine", "Training continues", "colabkeep.mount()"):
        assert words in store.degraded
    mount.away = None
    call(store)
    assert store.degraded is None


def test_only_the_first_call_of_an_outage_waits(mount, store, tide):
    """Saves that come while the mount is away must not take seconds each; after it was back, one waits again."""
    put(store, "run/a")
    for _ in range(2):
        mount.die()
        tide.slept.clear()
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                names(store)
        assert tide.slept == [1.0, 2.0]
        mount.come_back()
        assert names(store) == ["run/a"]


def test_a_source_that_fails_is_not_tried_again(mount, store, tide):
    """The disk in front failed, not the mount: its error comes out as it is, and no outage is told."""
    error = StoreUnavailable(problem="The disk in front is away.", remedy="None.")

    def fail(number):
        if number == 1:
            raise error

    source = ChunkedSource(b"ab", b"cd", before=fail)
    with pytest.raises(StoreUnavailable) as caught:
        store.put("run/a", source)
    assert (caught.value, source.reads, tide.slept, store.degraded) == (error, 1, [], None)


def test_a_put_that_is_tried_again_reads_its_source_from_the_start(mount, make, tide):
    """Each attempt writes a file of its own: what the one before left is never gone on with."""
    store = make(pauses=(1.0, 2.0))

    def die(number):
        if source.reads < 3 and number == 1:
            mount.die()

    def back(seconds):
        mount.come_back()

    tide.sleep = back
    source = ChunkedSource(b"first", b"second", before=die)
    store.put("run/a", source)
    assert (source.reads, read(store, "run/a")) == (3, b"firstsecond")
    sizes = sorted(path.stat().st_size for path in mount.root.rglob("*~*"))
    assert sizes == [5, 5, 11]
    assert store.sweep("run") == 2


@pytest.mark.parametrize("how", ["died", "glitch"])
def test_reading_goes_on_where_it_broke_off(mount, store, tide, how):
    """The descriptor of a mount that died is dead for ever: the file is opened again, at the same place."""
    data = bytes(range(256)) * 8000
    put(store, "run/a", data)
    with store.get("run/a") as reader:
        first = reader.read(700_001)
        if how == "died":
            mount.die()
        else:
            mount.away = errno.EIO
        tide.sleep = lambda seconds: mount.come_back()
        assert first + reader.read() == data


def test_reading_from_a_mount_that_stays_away_is_an_error_that_may_pass(mount, store):
    """The object is not shorter than it was; opened again when the mount is back, it is there as a whole."""
    put(store, "run/a", bytes(1_000_000))
    with store.get("run/a") as reader:
        reader.read(10)
        mount.die()
        with pytest.raises(StoreUnavailable):
            reader.read()
    mount.come_back()
    assert read(store, "run/a") == bytes(1_000_000)


def test_an_object_that_is_cut_while_it_is_read_is_an_error(mount, store):
    """A file that ends before its time is not a shorter object."""
    put(store, "run/a", bytes(1_000_000))
    with store.get("run/a") as reader:
        reader.read(10)
        (file,) = mount.root.rglob("a~*")
        file.write_bytes(b"x" * 300_000)
        with pytest.raises(StoreUnavailable):
            reader.read()


def test_a_mount_that_vanishes_during_a_listing_is_not_a_shorter_listing(mount, make):
    """Folders that were there a moment ago are gone with it: that must not look as if there were no checkpoints."""
    put(make(), "run/blobs/a")
    put(make(), "run/checkpoints/1")
    real, seen = mount.files.scandir, []

    def scandir(path):
        if path.endswith("blobs"):
            (mount.root).rename(mount.root.with_name("unmounted"))
        seen.append(path)
        return real(path)

    store = make(files=replace(mount.files, scandir=scandir), pauses=())
    with pytest.raises(StoreUnavailable):
        store.list("")
    assert len(seen) >= 3
    mount.root.with_name("unmounted").rename(mount.root)
    assert names(make()) == ["run/blobs/a", "run/checkpoints/1"]


class Mounting:
    """A call that mounts again, and counts how often it was asked."""

    def __init__(self, mount, error=None):
        self.mount = mount
        self.error = error
        self.threads = []

    def __call__(self):
        self.threads.append(threading.current_thread())
        if self.error is not None:
            raise self.error
        self.mount.come_back()


def test_a_dead_mount_is_mounted_again(mount, make, tide):
    """After the waiting was in vain, once in an outage; the next outage gets its own."""
    mounting = Mounting(mount)
    store = make(remount=mounting)
    put(store, "run/a")
    for outage in (1, 2):
        mount.die()
        assert names(store) == ["run/a"]
        assert len(mounting.threads) == outage
        assert store.degraded is None
    assert tide.slept == [1.0, 2.0] * 2


def test_mounting_is_tried_once_in_an_outage(mount, make):
    """It asks the user, so it must not ask again and again; what it said is told with the outage."""
    mounting = Mounting(mount, MountError(problem="Nobody agreed in the browser.", remedy="Agree."))
    store = make(remount=mounting)
    put(store, "run/a")
    mount.die()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            names(store)
    assert len(mounting.threads) == 1
    assert "Nobody agreed in the browser." in store.degraded


@pytest.mark.parametrize("error", [ValueError("mount failed"), RuntimeError("no kernel"), OSError(5, "no")], ids=repr)
def test_mounting_that_fails_in_any_way_is_told(mount, make, error):
    """A platform's own call raises what it likes: the outage stays an outage."""
    store = make(remount=Mounting(mount, error))
    put(store, "run/a")
    mount.die()
    with pytest.raises(StoreUnavailable):
        names(store)
    assert str(error) in store.degraded


def test_in_the_background_too_the_platform_is_asked(mount, make):
    """It leaves to the main thread what can be done there only (`Remounting`)."""
    mounting = Mounting(mount)
    store = make(remount=mounting)
    put(store, "run/a")
    mount.die()
    assert in_a_thread(lambda: names(store)) is None
    assert mounting.threads != [threading.main_thread()]


def test_a_missing_object_is_no_outage(store, tide):
    """Nothing is waited for, and nothing is out of order."""
    put(store, "run/a")
    with pytest.raises(ObjectNotFound):
        read(store, "run/b")
    assert (tide.slept, store.degraded) == ([], None)


def test_a_mount_that_never_comes_back_from_a_call_is_told(mount, make, tide):
    """A call that hangs raises nothing, ever: after twenty seconds the user hears of it, and when it is over."""
    hanging, release = threading.Event(), threading.Event()
    real = mount.files.open

    def hang(*args, **options):
        hanging.set()
        assert release.wait(30)
        return real(*args, **options)

    store = make(files=replace(mount.files, open=hang))
    thread = threading.Thread(target=put, args=(store, "run/a"))
    thread.start()
    assert hanging.wait(30)
    tide.advance(19)
    assert store.degraded is None
    tide.advance(2)
    for words in (str(mount.root), "has not answered for more than 20", "only on this machine", "colabkeep.mount()"):
        assert words in store.degraded
    release.set()
    thread.join(30)
    assert store.degraded is None
    assert names(store) == ["run/a"]

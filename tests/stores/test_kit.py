"""The public test kit does what it says, for a wrong fake makes every test that uses it worthless."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from colabkeep.core.errors import ObjectNotFound
from colabkeep.stores.base import BytesSource
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyFiles, FaultyStore, on, raising
from colabkeep.testing.stores import StoreContract


def test_the_fake_clock_moves_only_when_told():
    """Both times stand still; sleeping and advancing move both, setting moves the wall clock alone."""
    clock = FakeClock(time=1000.0, monotonic=5.0)
    assert (clock.time(), clock.time(), clock.monotonic()) == (1000.0, 1000.0, 5.0)
    clock.sleep(2.5)
    clock.advance(1.0)
    assert (clock.time(), clock.monotonic(), clock.slept) == (1003.5, 8.5, [2.5])
    clock.set_time(10.0)
    assert (clock.time(), clock.monotonic()) == (10.0, 8.5)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1.0)


def test_the_n_th_call_fails_and_no_other(tmp_path):
    """Calls are counted from 0; before the n-th all are real, after it too, unless the fault lasts."""
    (tmp_path / "x").mkdir()
    files = FaultyFiles(at=1, fault=raising(OSError(5, "a")))
    files.files.mkdir(tmp_path / "0")
    with pytest.raises(OSError, match="a"):
        files.files.mkdir(tmp_path / "1")
    files.files.mkdir(tmp_path / "2")
    assert files.calls == ["mkdir"] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2", "x"]


def test_a_fault_after_the_call_finds_it_done(tmp_path):
    """`when="after"` is the signal that arrives just then: the call was made."""
    files = FaultyFiles(at=0, fault=raising(KeyboardInterrupt()), when="after")
    with pytest.raises(KeyboardInterrupt):
        files.files.mkdir(tmp_path / "0")
    assert (tmp_path / "0").is_dir()


def test_a_lasting_fault_does_not_end(tmp_path):
    """A disk that is full stays full."""
    files = FaultyFiles(at=1, fault=raising(OSError(28, "full")), lasting=True)
    files.files.mkdir(tmp_path / "0")
    for name in ("1", "2"):
        with pytest.raises(OSError, match="full"):
            files.files.mkdir(tmp_path / name)


@pytest.mark.parametrize(("when", "made"), [("before", False), ("after", True)])
def test_kill_is_a_real_sigkill(tmp_path, when, made):
    """The process is gone without any clean-up, before or after the call."""
    program = (
        "import sys\n"
        "from colabkeep.testing.faults import FaultyFiles\n"
        "try:\n    FaultyFiles(at=0, when=sys.argv[2]).files.mkdir(sys.argv[1])\n"
        "finally:\n    print('cleaned up', flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "made"), when]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-9, "")
    assert (tmp_path / "made").exists() == made


def test_a_faulty_store_names_every_point():
    """Each call has a point before and, when it succeeded, one after it; a fault at a point comes out of the call."""
    store = FaultyStore(MemoryStore(), at=on("after put a", raising(RuntimeError("boom"))))
    with pytest.raises(RuntimeError, match="boom"):
        store.put("a", BytesSource(b"x"))
    store.get("a").close()
    list(store.list(""))
    store.delete("a")
    with pytest.raises(ObjectNotFound):
        store.get("a")
    with store.lock("l", "me"):
        store.sweep("run")
        store.flush(1.5)
    words = ["put a", "get a", "list ", "delete a", "get a", "lock l", "sweep run", "flush 1.5"]
    expected = [f"{when} {word}" for word in words for when in ("before", "after")]
    del expected[9]  # the get that failed
    assert store.points == expected


@pytest.mark.parametrize("size", [0, 1, 2**20, 5 * 2**20 + 7])
def test_a_source_of_bytes_keeps_what_is_promised_of_sources(size):
    """Pieces of a few MiB at most, not copied, again from the start each time; and bytes are hashed at most once."""
    data = random.Random(size).randbytes(size)
    source = BytesSource(data)
    for _ in range(2):
        pieces = list(source.chunks())
        assert all(piece.obj is data and piece.nbytes <= 4 * 2**20 for piece in pieces)
        assert b"".join(pieces) == data
    assert source.sha256 == hashlib.sha256(data).hexdigest()
    assert source.sha256 is source.sha256


class Overwriting(MemoryStore):
    """Overwrites what has the name already."""

    def put(self, name, source):
        self.delete(name)
        return super().put(name, source)


class Torn(MemoryStore):
    """Shows what has been written so far."""

    def put(self, name, source):
        data = b""
        for chunk in source.chunks():
            data += chunk
            self.delete(name)
            receipt = super().put(name, BytesSource(data))
        return receipt


class Littering(DirectoryStore):
    """Leaves its temporary file behind when a put fails."""

    def put(self, name, source):
        self.lock(name, "me").release()
        leftover = Path(self.url, f"{name}.0123456789abcdef.tmp")
        leftover = leftover.with_name(f".{leftover.name}")
        leftover.write_bytes(b"half")
        receipt = super().put(name, source)
        leftover.unlink()
        return receipt


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Overwriting, "test_a_name_is_written_once"),
        (Torn, "test_what_is_being_written_is_not_seen"),
        (Littering, "test_a_source_that_fails_leaves_nothing"),
    ],
)
def test_the_contract_notices_a_store_that_breaks_a_promise(tmp_path, broken, test):
    """A store that overwrites, shows half an object or leaves temporary files does not pass."""
    store = broken(tmp_path) if broken is Littering else broken()
    given = (KeyboardInterrupt(),) if broken is Littering else ()
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(StoreContract(), test)(store, *given)

"""Packs are hashed while others are written, each once, and nobody reads their memory afterwards."""

from __future__ import annotations

import hashlib
import threading

import pytest

from colabkeep.checkpoint.codec import Pack, hashing_ahead
from colabkeep.core.errors import StoreFull
from colabkeep.core.state import HostTensor
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.faults import FaultyStore

LONG = 30.0  # seconds


class Counted(Pack):
    """A pack that counts how often its bytes are read, and reads them only when it may."""

    def __init__(self, size: int) -> None:
        super().__init__({"a": HostTensor(dtype="U8", shape=(size,), data=memoryview(bytes(size)))})
        self.readers: list[str] = []
        self.free = threading.Event()
        self.free.set()

    def chunks(self):
        self.readers.append(threading.current_thread().name)
        assert self.free.wait(LONG)
        return super().chunks()


def test_the_next_packs_are_hashed_while_one_is_written():
    """Whoever writes the first finds the digests of the others ready, smallest first, computed by another thread."""
    packs = [Counted(3000), Counted(1000), Counted(2000)]
    with hashing_ahead(packs) as order:
        assert [pack.size for pack in order] == sorted(pack.size for pack in packs)
        for thread in threading.enumerate():
            if thread.name == "colabkeep-hasher":
                thread.join(LONG)
        assert [pack.hashed for pack in order] == [False, True, True]
        assert [pack.sha256 for pack in order] == [hashlib.sha256(b"".join(Pack.chunks(p))).hexdigest() for p in order]
    assert [len(pack.readers) for pack in packs] == [1, 1, 1], "each was read once to be hashed"
    assert packs[2].readers == ["colabkeep-hasher"]


def test_what_is_known_already_is_written_first_and_not_hashed():
    """A pack that has not changed keeps nobody waiting."""
    known, new = Counted(5000), Counted(100)
    known.sha256  # noqa: B018  # now it is known
    with hashing_ahead([new, known]) as order:
        assert order == [known, new]
    assert known.readers == [threading.current_thread().name]


def test_a_save_that_fails_leaves_no_thread_that_reads_its_memory(kit):
    """The memory of a snapshot is reused once a save is over, also when the disk is full."""

    def full(point):
        if point.startswith("before put run/blobs"):
            raise StoreFull(problem="No space is left.", remedy="Make room.")

    session = kit.Session(FaultyStore(MemoryStore(), at=full))
    large = {str(n): kit.floats(*range(n, n + 2**20)) for n in range(3)}
    with pytest.raises(StoreFull):
        session.save(1, {"model": large, "optimizer": dict.fromkeys("a", kit.floats(*range(2**20)))})
    assert "colabkeep-hasher" not in {thread.name for thread in threading.enumerate()}


def test_nothing_is_begun_once_writing_is_over(monkeypatch):
    """When writing ends early, by a failure, only the pack in work is read to its end."""
    packs = [Counted(size) for size in (1000, 2000, 3000)]
    packs[1].free.clear()
    join = threading.Thread.join

    def waited_for(thread, timeout=None):
        packs[1].free.set()
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", waited_for)
    with hashing_ahead(packs):
        pass
    assert packs[2].readers == []
    assert not any(thread.name == "colabkeep-hasher" for thread in threading.enumerate())


def test_a_save_goes_on_where_no_thread_is_to_be_had(kit, monkeypatch):
    """A machine that gives no more threads hashes a little later, and saves all the same."""

    start = threading.Thread.start

    def refused(thread):
        if thread.name == "colabkeep-hasher":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    parts = {"model": kit.floats(*range(2**20 + 1)), "optimizer": kit.floats(*range(2**20 + 2))}
    store = MemoryStore()
    session = kit.Session(store)
    session.save(1, parts)
    assert len(session.repository.manifest(session.committer.newest).blobs) == 2
    assert kit.same(kit.newest(store)[0].parts, parts)

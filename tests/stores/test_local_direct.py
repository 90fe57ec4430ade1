"""Large files go past the page cache where they can, and hold the same bytes whatever the disk answers."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from colabkeep.core.errors import StoreFull, StoreUnavailable
from colabkeep.stores.local import LARGE, DirectoryStore
from colabkeep.stores.shared.files import OS_FILES
from colabkeep.testing.faults import FaultyFiles, raising
from colabkeep.testing.stores import ChunkedSource

NAME = "run/blobs/large.bin"
BLOCK = 4096
DIRECT = getattr(os, "O_DIRECT", 0)
REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.ENOTTY)
SIZES = (LARGE - 1, LARGE, LARGE + 1, 2**23, 2**23 + 5, 2**24 + BLOCK, 2**24 + BLOCK + 17)


def source(size, seed=0):
    """Writable and read-only chunks of all lengths, which are overwritten as soon as the next is asked for."""

    class Reused(ChunkedSource):
        def chunks(self):
            for chunk in super().chunks():
                if chooser.random() < 0.5:
                    yield chunk
                else:
                    memory = bytearray(chunk)
                    yield memoryview(memory)
                    memory[:] = bytes(len(memory))

    chooser = random.Random(seed)
    data, at, chunks = chooser.randbytes(size), 0, []
    while at < size:
        count = chooser.choice((1, 100, BLOCK, 2**20, 2**22 + 3))
        chunks.append(data[at : at + count])
        at += count
    return Reused(*chunks)


def digest(store, name=NAME):
    with store.get(name) as reader:
        return hashlib.sha256(reader.read()).hexdigest()


class Picky:
    """A disk that takes whole blocks only while told to go past the cache, and keeps count of what it was told."""

    def __init__(self, *, refuses=None, late=None, block=BLOCK, short=None):
        self.direct = False
        self.directly = 0  # bytes that went past the cache
        self.refused = 0  # writes
        self._refuses, self._late, self._block, self._short = refuses, late, block, short
        self.files = replace(OS_FILES, write=self.write, set_flags=self.set_flags)

    def set_flags(self, descriptor, flags):
        if flags & DIRECT and self._refuses:
            raise OSError(self._refuses, "no such thing here")
        self.direct = bool(flags & DIRECT)  # the real flag stays off: the folder of the tests may be in memory

    def write(self, descriptor, view):
        view = view[: self._short]
        if self.direct and self._late:
            self.refused += 1
            raise OSError(self._late, "not so")
        if self.direct:
            broken = self._short is None and view.nbytes % self._block
            if broken or os.lseek(descriptor, 0, os.SEEK_CUR) % self._block:
                raise OSError(errno.EINVAL, "not a whole block")
            self.directly += view.nbytes
        return os.write(descriptor, view)


@pytest.mark.parametrize("size", SIZES)
def test_a_large_file_holds_the_bytes_it_was_given(tmp_path, size):
    """Of any size, from chunks of any size, on the disk that these tests run on."""
    given = source(size, seed=size)
    assert DirectoryStore(tmp_path).put(NAME, given).size == size
    assert digest(DirectoryStore(tmp_path)) == given.sha256
    assert (tmp_path / NAME).stat().st_size == size


@pytest.mark.skipif(not DIRECT, reason="this system has no way past the page cache")
@pytest.mark.parametrize("size", SIZES)
def test_whole_blocks_go_past_the_cache_and_only_a_broken_one_through_it(tmp_path, size):
    """A save does not push the data set of the training out of memory; a small file is left to the system."""
    disk, given = Picky(), source(size)
    DirectoryStore(tmp_path, files=disk.files).put(NAME, given)
    assert digest(DirectoryStore(tmp_path)) == given.sha256
    assert disk.directly == (size // BLOCK * BLOCK if size >= LARGE else 0)
    assert not disk.direct


@pytest.mark.parametrize(
    "disk",
    [
        *({"refuses": refusal} for refusal in REFUSALS),
        *({"late": refusal} for refusal in REFUSALS),
        {"block": 2**16 + 1},
        {"short": 1000},
        {"short": BLOCK * 3},
        {"short": BLOCK * 3 + 1},
    ],
    ids=str,
)
def test_a_disk_that_will_not_go_past_the_cache_gets_the_same_bytes_through_it(tmp_path, disk):
    """No such flag, larger blocks, writes that stop anywhere: the file is whole all the same."""
    given = source(2**23 + 5000)
    DirectoryStore(tmp_path, files=Picky(**disk).files).put(NAME, given)
    assert digest(DirectoryStore(tmp_path)) == given.sha256


@pytest.mark.skipif(not DIRECT, reason="this system has no way past the page cache")
@pytest.mark.parametrize(("error", "expected"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreUnavailable)])
def test_a_disk_that_fails_is_not_asked_again_another_way(tmp_path, error, expected):
    """A full or broken disk is told as what it is, at once."""
    disk = Picky(late=error)
    with pytest.raises(expected):
        DirectoryStore(tmp_path, files=disk.files).put(NAME, source(2**23 + 5000))
    assert disk.refused == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_large_put_that_fails_at_any_call_leaves_the_whole_object_or_nothing(tmp_path, when):
    """Full or interrupted at each system call: no half object, no temporary file, and the next put succeeds."""
    probe = FaultyFiles()
    DirectoryStore(tmp_path / "probe", files=probe.files).put(NAME, source(LARGE + 5))
    assert probe.calls.count("write") > 1
    for n in range(probe.calls.index("set_flags") if DIRECT else 0, len(probe.calls)):
        for error, expected in (
            (OSError(errno.ENOSPC, "full"), StoreFull),
            (KeyboardInterrupt(), KeyboardInterrupt),
        ):
            folder = tmp_path / f"{n}-{expected.__name__}"
            store = DirectoryStore(folder, files=FaultyFiles(at=n, fault=raising(error), when=when).files)
            given = source(LARGE + 5)
            try:
                store.put(NAME, given)
            except expected:
                left = [path for path in folder.rglob("*") if path.is_file()]
                assert left in ([], [folder / NAME])
                if not left:
                    DirectoryStore(folder).put(NAME, given)
            assert digest(DirectoryStore(folder)) == given.sha256


def test_files_that_take_turns_with_a_buffer_share_no_bytes(tmp_path):
    """One after another, after one that broke off, and two at a time: each holds what it was given."""

    class BreaksOff(ChunkedSource):
        def chunks(self):
            yield from super().chunks()
            raise InterruptedError

    together = threading.Barrier(2)

    class Together(ChunkedSource):
        def chunks(self):
            for chunk in super().chunks():
                together.wait(30)
                yield chunk

    store = DirectoryStore(tmp_path)
    given = {f"run/blobs/{n}.bin": source(LARGE + n, seed=n) for n in range(3)}
    store.put("run/blobs/0.bin", given["run/blobs/0.bin"])
    with pytest.raises(InterruptedError):
        store.put("run/blobs/broken.bin", BreaksOff(*[b"x" * 2**20] * 5))
    store.put("run/blobs/1.bin", given["run/blobs/1.bin"])
    pair = {f"run/blobs/{byte}.bin": Together(*[byte.encode() * 2**20] * 9) for byte in "ab"}
    with ThreadPoolExecutor(2) as pool:
        assert len(list(pool.map(store.put, pair, pair.values()))) == 2
    store.put("run/blobs/2.bin", given["run/blobs/2.bin"])
    assert all(digest(store, name) == kept.sha256 for name, kept in {**given, **pair}.items())

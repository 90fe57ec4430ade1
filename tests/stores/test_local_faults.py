"""A put into a folder that is interrupted at any of its system calls leaves the whole object, or nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from colabkeep.core.errors import NameTaken, StoreError, StoreFull, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.shared.files import OS_FILES
from colabkeep.testing.faults import FaultyFiles, raising
from colabkeep.testing.stores import ChunkedSource

NAME = "run/blobs/new.bin"
CHUNKS = (b"a" * 5000, b"b" * 3000, b"c")
WHOLE = b"".join(CHUNKS)


def no_links(*args, **options):
    raise PermissionError(errno.EPERM, "no hard links here")


FILE_SYSTEMS = {"with links": OS_FILES, "without links": replace(OS_FILES, link=no_links)}


def calls_of_a_put(folder, inner=OS_FILES, *, after_another=True):
    """The system calls of one undisturbed put."""
    if after_another:
        DirectoryStore(folder).put("run/old.bin", BytesSource(b"old"))
    files = FaultyFiles(inner=inner)
    DirectoryStore(folder, files=files.files).put(NAME, ChunkedSource(*CHUNKS))
    return files.calls


def contents(store):
    found = {}
    for entry in store.list(""):
        with store.get(entry.name) as reader:
            found[entry.name] = reader.read()
    return found


def failure_of_a_put(store):
    try:
        store.put(NAME, ChunkedSource(*CHUNKS))
    except StoreError as error:
        return error
    return None


def hidden_files(folder):
    return [path.name for path in folder.rglob(".*") if path.is_file()]


@pytest.mark.parametrize("inner", FILE_SYSTEMS.values(), ids=FILE_SYSTEMS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_system_call_leaves_nothing_and_the_next_put_succeeds(tmp_path, inner, when, code):
    """Disk full or drive away, at each call of a put, made or not: no half object, no temporary file, nothing lost."""
    raised = 0
    for n in range(len(calls_of_a_put(tmp_path / "count", inner))):
        folder = tmp_path / str(n)
        DirectoryStore(folder).put("run/old.bin", BytesSource(b"old"))
        files = FaultyFiles(at=n, fault=raising(OSError(code, os.strerror(code))), when=when, inner=inner)
        error = failure_of_a_put(DirectoryStore(folder, files=files.files))
        if error is not None:
            raised += 1
            assert isinstance(error, StoreFull if code == errno.ENOSPC else StoreUnavailable)
            assert str(folder) in error.problem + error.remedy
            assert hidden_files(folder) == []
            assert contents(DirectoryStore(folder)) == {"run/old.bin": b"old"}
            DirectoryStore(folder).put(NAME, ChunkedSource(*CHUNKS))
        assert hidden_files(folder) == []
        assert contents(DirectoryStore(folder)) == {"run/old.bin": b"old", NAME: WHOLE}
    assert raised > 10


@pytest.mark.parametrize("inner", FILE_SYSTEMS.values(), ids=FILE_SYSTEMS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_at_any_system_call_leaves_the_whole_object_or_nothing(tmp_path, inner, when):
    """The stop button in any moment of a put: the interrupt goes through as it is, and nothing is half there."""
    for n in range(len(calls_of_a_put(tmp_path / "count", inner))):
        folder = tmp_path / str(n)
        DirectoryStore(folder).put("run/old.bin", BytesSource(b"old"))
        interrupt = KeyboardInterrupt()
        files = FaultyFiles(at=n, fault=raising(interrupt), when=when, inner=inner)
        with pytest.raises(KeyboardInterrupt) as caught:
            DirectoryStore(folder, files=files.files).put(NAME, ChunkedSource(*CHUNKS))
        assert caught.value is interrupt
        assert hidden_files(folder) == []
        found = contents(DirectoryStore(folder))
        if NAME not in found:
            DirectoryStore(folder).put(NAME, ChunkedSource(*CHUNKS))
            found = contents(DirectoryStore(folder))
        assert found == {"run/old.bin": b"old", NAME: WHOLE}


@pytest.mark.parametrize("inner", FILE_SYSTEMS.values(), ids=FILE_SYSTEMS)
def test_a_fault_at_any_system_call_never_harms_the_object_that_has_the_name(tmp_path, inner):
    """A put under a taken name that also fails, in any way, leaves the old bytes alone."""
    DirectoryStore(tmp_path).put(NAME, BytesSource(b"old"))
    for when in ("before", "after"):
        for n in range(30):
            files = FaultyFiles(at=n, fault=raising(OSError(errno.EIO, "away")), when=when, inner=inner)
            with pytest.raises((NameTaken, StoreUnavailable)):
                DirectoryStore(tmp_path, files=files.files).put(NAME, ChunkedSource(*CHUNKS))
            assert contents(DirectoryStore(tmp_path)) == {NAME: b"old"}
            assert hidden_files(tmp_path) == []


@pytest.mark.parametrize("inner", FILE_SYSTEMS.values(), ids=FILE_SYSTEMS)
def test_a_name_taken_while_the_bytes_were_written_is_not_overwritten(tmp_path, inner):
    """Another writer may take the name in the last moment: its bytes stay, and the put is refused."""
    other = DirectoryStore(tmp_path)

    def overtake(number):
        if number == 2:
            other.put(NAME, BytesSource(b"the other's"))

    with pytest.raises(NameTaken):
        DirectoryStore(tmp_path, files=FaultyFiles(inner=inner).files).put(
            NAME, ChunkedSource(*CHUNKS, before=overtake)
        )
    assert contents(other) == {NAME: b"the other's"}
    assert hidden_files(tmp_path) == []


def test_a_disk_that_stays_full_is_reported_and_leaves_no_object(tmp_path):
    """When every call from the first write on fails, the error says that the disk is full and what to do."""
    first = calls_of_a_put(tmp_path / "count", after_another=False).index("write")
    full = raising(OSError(errno.ENOSPC, "No space left on device"))
    files = FaultyFiles(at=first, fault=full, lasting=True)
    with pytest.raises(StoreFull, match="keep_last"):
        DirectoryStore(tmp_path / "store", files=files.files).put(NAME, ChunkedSource(*CHUNKS))
    assert contents(DirectoryStore(tmp_path / "store")) == {}


def test_a_disk_without_room_is_noticed_by_the_real_system(tmp_path):
    """A process that may write 64 KiB only, by its own limit, gets a `StoreError`, and no object is left."""
    program = (
        "import resource, signal, sys\n"
        "from colabkeep.stores.base import BytesSource\n"
        "from colabkeep.stores.local import DirectoryStore\n"
        "from colabkeep.core.errors import StoreError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "try:\n"
        "    DirectoryStore(sys.argv[1]).put('run/a', BytesSource(bytes(100_000)))\n"
        "except StoreError as error:\n"
        "    sys.exit(7 if 'File too large' in error.problem else 1)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 7
    assert contents(DirectoryStore(tmp_path)) == {}
    assert hidden_files(tmp_path) == []


# One process that kills a child of its own at each call: it has one thread, so forking is sound.
_KILLER = (
    f"""
NAME, CHUNKS = {NAME!r}, {CHUNKS!r}
"""
    + """
import os, sys
from dataclasses import replace
from pathlib import Path
from colabkeep.stores.shared.files import OS_FILES
from colabkeep.stores.local import DirectoryStore
from colabkeep.testing.faults import FaultyFiles
from colabkeep.testing.stores import ChunkedSource

def no_links(*args, **options):
    raise PermissionError(1, "no hard links here")

top, links, total = Path(sys.argv[1]), sys.argv[2] == "with links", int(sys.argv[3])
inner = OS_FILES if links else replace(OS_FILES, link=no_links)
for when in ("before", "after"):
    for n in range(total):
        child = os.fork()
        if child == 0:
            files = FaultyFiles(at=n, when=when, inner=inner).files
            DirectoryStore(top / f"{when}-{n}", files=files).put(NAME, ChunkedSource(*CHUNKS))
            os._exit(0)
        print(when, n, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
)


@pytest.mark.parametrize("links", FILE_SYSTEMS)
def test_a_sigkill_at_any_system_call_leaves_the_whole_object_or_nothing_and_sweep_tidies_up(tmp_path, links):
    """Killed before or after each call of a put: the name is whole or free, and what is left over is swept away."""
    total = len(calls_of_a_put(tmp_path / "count", FILE_SYSTEMS[links], after_another=False))
    command = [sys.executable, "-c", _KILLER, str(tmp_path), links, str(total)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(lines) == 2 * total
    swept = 0
    for line in lines:
        when, n, code = line.split()
        assert int(code) == -9, f"not killed {when} call {n}"
        folder = tmp_path / f"{when}-{n}"
        store = DirectoryStore(folder)
        found = contents(store)
        assert found in ({}, {NAME: WHOLE})
        left = len(hidden_files(folder))
        assert store.sweep("run") == left
        assert hidden_files(folder) == []
        assert contents(store) == found
        swept += left
        if not found:
            store.put(NAME, ChunkedSource(*CHUNKS))
            assert contents(store) == {NAME: WHOLE}
    assert swept > 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EDQUOT, StoreFull),
        (errno.ESTALE, StoreUnavailable),
        (errno.ENOTCONN, StoreUnavailable),
        (errno.EROFS, StoreError),
        (errno.EACCES, StoreError),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else value.__name__,
)
def test_an_error_says_whether_trying_again_can_help(tmp_path, code, kind):
    """A quota or a lost mount may pass; a folder that may not be written to does not. The cause is kept."""
    write = calls_of_a_put(tmp_path / "count", after_another=False).index("write")
    files = FaultyFiles(at=write, fault=raising(OSError(code, os.strerror(code))))
    with pytest.raises(kind) as caught:
        DirectoryStore(tmp_path / "store", files=files.files).put(NAME, ChunkedSource(*CHUNKS))
    assert type(caught.value) is kind
    assert caught.value.retryable == (kind is not StoreError)
    assert os.strerror(code) in caught.value.problem
    assert caught.value.__cause__.errno == code


def test_a_drive_that_dies_in_the_middle_of_a_file_is_a_store_error(tmp_path):
    """Reading on after the disk fails raises `StoreUnavailable`, not a bare `OSError`, in each way of reading."""
    store = DirectoryStore(tmp_path)
    store.put("a", BytesSource(b"x" * 100))
    for read in (
        lambda r: r.read(10),
        lambda r: r.read(),
        lambda r: r.readinto(bytearray(10)),
        lambda r: r.raw.read(1),
    ):
        with store.get("a") as reader:
            with Path("/proc/self/mem").open("rb", buffering=0) as unreadable:  # the system answers EIO at its start
                os.dup2(unreadable.fileno(), reader.fileno())
            with pytest.raises(StoreUnavailable, match="read 'a'"):
                read(reader)


def test_a_mounted_drive_that_vanished_is_not_replaced_by_a_folder(tmp_path):
    """When the root of a store is gone, the put fails and can be tried again: nothing lands on another disk."""
    root = tmp_path / "mount"
    store = DirectoryStore(root)
    store.put("run/a", BytesSource(b"1"))
    root.rename(tmp_path / "unmounted")
    for call in (
        lambda: store.put("run/b", BytesSource(b"2")),
        lambda: store.get("run/a"),
        lambda: store.list("run"),
        lambda: store.delete("run/a"),
    ):
        with pytest.raises(StoreUnavailable, match="mount"):
            call()
    assert not root.exists()
    (tmp_path / "unmounted").rename(root)
    store.put("run/b", BytesSource(b"2"))
    assert contents(store) == {"run/a": b"1", "run/b": b"2"}

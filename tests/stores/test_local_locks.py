"""A lock is free the moment its process is gone, by whatever death and whoever lives on; and not a moment before."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from colabkeep.core.errors import StoreBusy, StoreError, StoreUnavailable
from colabkeep.stores.base import NoLock
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.shared.files import OS_FILES
from colabkeep.stores.shared.locks import FileLock
from colabkeep.testing.faults import FaultyFiles, raising

_HOLDER = """
import os, sys, time
from dataclasses import replace
from colabkeep.stores.shared.files import OS_FILES
from colabkeep.stores.local import DirectoryStore
from colabkeep.core.errors import StoreBusy

def cannot(*args, **options):
    raise OSError(5, "away")

def again():
    try:
        DirectoryStore(sys.argv[1]).lock("run/lock", "again").release()
        os.write(1, b"free\\n")
    except StoreBusy as error:
        os.write(1, b"held by %s\\n" % error.holder.encode())

lock = DirectoryStore(sys.argv[1], files={files}).lock("run/lock", "the first one")
heard, told = os.pipe()
child = os.fork()
if child == 0:
    {in_child}
    os.write(1, b"child\\n")
    os.write(told, b"x")
    time.sleep(600)
os.close(told)
os.read(heard, 1)  # the child comes first
os.write(1, b"holder %d\\n" % child)
{in_parent}
time.sleep(600)
"""


class Holder:
    """A process that holds the lock and has a forked child which lives on."""

    def __init__(self, folder, *, in_child="pass", in_parent="pass", files="OS_FILES"):
        program = _HOLDER.format(in_child=in_child, in_parent=in_parent, files=files)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.lines = []
        while not self.lines or not self.lines[-1].startswith("holder"):
            line = self.process.stdout.readline()
            if not line:
                self.__exit__()
                raise AssertionError(f"the holder did not start: {self.lines}")
            self.lines.append(line.strip())
        self.child = int(self.lines[-1].split()[1])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the child too
        self.process.wait()
        self.process.stdout.close()


def test_a_killed_holder_s_lock_is_free_at_once_though_its_child_lives_on(tmp_path):
    """A loader's worker that outlives its killed training does not make the next session wait."""
    store = DirectoryStore(tmp_path)
    with Holder(tmp_path) as holder:
        with pytest.raises(StoreBusy):
            store.lock("run/lock", "the second")
        holder.kill()
        os.kill(holder.child, 0)  # it lives
        with store.lock("run/lock", "the second"):
            pass


def test_a_live_holder_is_named_to_the_one_it_refuses(tmp_path):
    """The refused one is told what the holder wrote about itself, each time it asks."""
    store = DirectoryStore(tmp_path)
    with Holder(tmp_path):
        for _ in range(3):
            with pytest.raises(StoreBusy, match="another process: the first one") as caught:
                store.lock("run/lock", "the second")
            assert caught.value.holder == "the first one"


@pytest.mark.parametrize(
    "in_child",
    ["lock.release()", "del lock", "DirectoryStore(sys.argv[1]).lock('run/other', 'a child').release()"],
)
def test_a_child_of_the_holder_cannot_let_go_of_its_lock(tmp_path, in_child):
    """A forked child may release or forget its copy, or use the store itself: the parent holds the lock as before,
    against other processes and against itself."""
    finished = f"{in_child}; os.write(1, b'child\\n'); os._exit(0)"
    with Holder(tmp_path, in_child=finished, in_parent="os.waitpid(child, 0); again()") as holder:
        assert holder.process.stdout.readline() == "held by the first one\n"
        with pytest.raises(StoreBusy) as caught:
            DirectoryStore(tmp_path).lock("run/lock", "the second")
        assert caught.value.holder == "the first one"


def test_a_child_of_the_holder_is_refused_like_anyone(tmp_path):
    """The lock is the parent's alone: a forked child that asks for it is told who has it."""
    with Holder(tmp_path, in_child="again()", in_parent="") as holder:
        assert holder.lines == ["held by the first one", "child", f"holder {holder.child}"]


@pytest.mark.parametrize("files", ["OS_FILES", "replace(OS_FILES, unlink=cannot)"], ids=["tidy", "untidy"])
def test_a_lock_released_while_a_child_lives_is_free(tmp_path, files):
    """A finished session whose workers are still there does not block the next one, here or in another process,
    also when its holder file could not be removed."""
    with Holder(tmp_path, in_parent="lock.release(); again()", files=files) as holder:
        assert holder.process.stdout.readline() == "free\n"
        DirectoryStore(tmp_path).lock("run/lock", "the second").release()


def test_the_holder_file_of_a_live_process_is_not_tidied_away(tmp_path):
    """A process in the middle of asking for the lock keeps its holder file, whatever the lock's holder tidies up."""
    program = (
        "import os, sys, time\n"
        "from dataclasses import replace\n"
        "from colabkeep.stores.shared.files import OS_FILES\n"
        "from colabkeep.stores.local import DirectoryStore\n"
        "def wait(*args):\n    os.write(1, b'asking\\n')\n    time.sleep(600)\n"
        "DirectoryStore(sys.argv[1], files=replace(OS_FILES, lockf=wait)).lock('run/lock', 'slow')\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as slow:
        try:
            assert slow.stdout.readline() == b"asking\n"
            with DirectoryStore(tmp_path).lock("run/lock", "quick"):
                assert (tmp_path / "run" / f".lock.{slow.pid}.holder").exists()
        finally:
            slow.kill()


def test_a_refused_attempt_in_the_same_process_does_not_drop_the_lock(tmp_path):
    """A second cell that is refused must not break the first one's lock for other processes (POSIX locks would)."""
    store = DirectoryStore(tmp_path)
    attempt = [
        sys.executable,
        "-c",
        "import sys\n"
        "from colabkeep.stores.local import DirectoryStore\n"
        "from colabkeep.core.errors import StoreBusy\n"
        "try:\n    DirectoryStore(sys.argv[1]).lock('run/lock', 'another')\n"
        "except StoreBusy as error:\n    sys.exit(7 if error.holder == 'the first' else 8)\n",
        str(tmp_path),
    ]
    with store.lock("run/lock", "the first"):
        for _ in range(2):
            with pytest.raises(StoreBusy, match="this very process: the first"):
                DirectoryStore(tmp_path).lock("run/lock", "the second")
        assert subprocess.run(attempt, check=False).returncode == 7
    assert subprocess.run(attempt, check=False).returncode == 0


def test_of_many_threads_one_gets_the_lock(tmp_path):
    """Threads that ask at the same time: one holds, all others are refused, every round."""
    for _ in range(20):
        start, held, refused = threading.Barrier(8), [], []

        def ask(start=start, held=held, refused=refused):
            start.wait()
            try:
                held.append(DirectoryStore(tmp_path).lock("run/lock", "a thread"))
            except StoreBusy as error:
                refused.append(error)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(held), len(refused)) == (1, 7)
        held[0].release()


def test_of_many_processes_one_at_a_time_gets_the_lock(tmp_path):
    """Processes that take and release as fast as they can never hold it together."""
    program = (
        "import os, sys\n"
        "from colabkeep.stores.local import DirectoryStore\n"
        "from colabkeep.core.errors import StoreBusy\n"
        "store, got = DirectoryStore(sys.argv[1]), 0\n"
        "while got < 50:\n"
        "    try:\n        lock = store.lock('lock', 'x')\n"
        "    except StoreBusy:\n        continue\n"
        "    os.close(os.open(sys.argv[1] + '/inside', os.O_CREAT | os.O_EXCL))\n"
        "    os.unlink(sys.argv[1] + '/inside')\n"
        "    lock.release()\n"
        "    got += 1\n"
    )
    several = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(3)]
    assert [one.wait() for one in several] == [0, 0, 0]


def test_what_killed_holders_left_is_tidied_up_and_live_ones_stay(tmp_path):
    """Holder files of dead processes go when the next one gets the lock; those of a live process's other locks stay."""
    alone = "os.waitpid(child, 0); os.write(1, b'alone\\n')"
    with Holder(tmp_path, in_child="os.write(1, b'child\\n'); os._exit(0)", in_parent=alone) as holder:
        assert holder.process.stdout.readline() == "alone\n"
        holder.kill()
    (tmp_path / "run" / ".lock.12.holder.txt").write_bytes(b"foreign")
    store = DirectoryStore(tmp_path)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert f".lock.{holder.process.pid}.holder" in names
    with store.lock("run/lock", "the second"), store.lock("run/lock.7", "another"):
        names = {path.name for path in (tmp_path / "run").iterdir()}
        mine = os.getpid()
        assert names == {
            ".lock.lock",
            f".lock.{mine}.holder",
            ".lock.7.lock",
            f".lock.7.{mine}.holder",
            ".lock.12.holder.txt",
        }
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock.lock", ".lock.7.lock", ".lock.12.holder.txt"}


@pytest.mark.parametrize("call", ["flock", "lockf"])
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_says_so_and_refuses_nobody(tmp_path, call, code):
    """Where the system cannot lock, `properties.locks` turns False, and training is not stopped for it."""

    def cannot(*args):
        raise OSError(code, os.strerror(code))

    store = DirectoryStore(tmp_path, files=replace(OS_FILES, **{call: cannot}))
    with store.lock("run/lock", "the first") as first, store.lock("run/lock", "the second") as second:
        assert isinstance(first, NoLock)
        assert isinstance(second, NoLock)
    assert not store.properties.locks
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.endswith(".holder")] == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "away"), KeyboardInterrupt()], ids=["EIO", "interrupt"])
def test_a_failure_at_any_system_call_leaves_the_lock_free(tmp_path, error, when):
    """Whatever goes wrong while the lock is taken, it is not held afterwards, in this process or for others."""
    count = FaultyFiles()
    DirectoryStore(tmp_path / "count", files=count.files).lock("run/lock", "me").release()
    taken = count.calls.index("ftruncate", count.calls.index("lockf"))
    failed = 0
    for n in range(taken):
        files = FaultyFiles(at=n, fault=raising(error), when=when)
        folder = tmp_path / str(n)
        try:
            lock = DirectoryStore(folder, files=files.files).lock("run/lock", "the first")
        except (StoreError, KeyboardInterrupt):
            failed += 1
        else:
            lock.release()
        if files.calls[n] == "open" and when == "after":
            continue  # the number of an open file was lost: nobody can close it, in this test as in life
        with DirectoryStore(folder).lock("run/lock", "the second") as second:
            assert isinstance(second, FileLock)
    assert failed > taken // 2


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path):
    """A hostile link in the place of the lock file is an error; what it points to is not touched."""
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock.lock").symlink_to(tmp_path / "secret")
    with pytest.raises(StoreError):
        DirectoryStore(tmp_path).lock("run/lock", "me")
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_a_holder_file_that_always_vanishes_is_told(tmp_path):
    """A file system that never shows the file it just made cannot be locked on; the attempt ends with an error."""

    def hidden(name, **options):
        if str(name).endswith(".holder"):
            raise FileNotFoundError(errno.ENOENT, "hidden")
        return OS_FILES.stat(name, **options)

    with pytest.raises(StoreUnavailable, match="vanishes"):
        DirectoryStore(tmp_path, files=replace(OS_FILES, stat=hidden)).lock("run/lock", "me")

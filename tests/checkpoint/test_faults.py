"""A save that goes wrong at any moment leaves a checkpoint that loads, also when only one is kept.

Each system call meets one of the faults; `pytest tests/checkpoint/test_faults.py --every-fault` lets each meet all of
them.
"""

from __future__ import annotations

import errno
import os
import shutil

import pytest

from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.checkpoint.verify import audit
from colabkeep.core.errors import StoreError, StoreFull
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.faults import FaultyFiles, FaultyStore, raising

FAULTS = {
    "no space": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "input/output error": OSError(errno.EIO, os.strerror(errno.EIO)),
    "interrupt": KeyboardInterrupt(),
}


@pytest.fixture(scope="module")
def begun(kit, tmp_path_factory):
    """A run with one checkpoint, of step 1, that a session "aaaaaaaa" wrote and left."""
    folder = tmp_path_factory.mktemp("begun")
    kit.Session(DirectoryStore(folder), keep=KeepLast(1)).save(1, kit.state(1, frozen=True))
    return folder


@pytest.fixture(scope="module")
def calls(kit, begun, tmp_path_factory):
    """How many system calls the next session's save makes, and which."""
    folder = tmp_path_factory.mktemp("counted") / "run"
    shutil.copytree(begun, folder)
    files = FaultyFiles()
    session = next_session(kit, DirectoryStore(folder, files=files.files))
    first = len(files.calls)
    session.save(2, kit.state(2, frozen=True))
    return range(first, len(files.calls))


@pytest.fixture
def share(request, calls):
    """The calls at which a kind of fault is tried: all of them, or every third, for each kind others."""
    every = request.config.getoption("--every-fault")
    return lambda kind: calls if every else calls[list(FAULTS).index(kind) :: len(FAULTS)]


def next_session(kit, store):
    return kit.Session(store, "bbbbbbbb", keep=KeepLast(1), resume=kit.newest(store)[0])


def attempt(save):
    """Did the save succeed? What else than a known failure it raises is a failure of the test."""
    try:
        save()
    except (StoreError, KeyboardInterrupt):
        return False
    return True


def loaded_step(kit, folder):
    """The step that a resume goes on from, its state compared with what was saved at it."""
    loaded, _ = kit.newest(DirectoryStore(folder))
    step = loaded.manifest.progress.step
    assert kit.same(loaded.parts, kit.state(step, frozen=True))
    return step


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # files that the fault took away from who opened them
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_at_any_system_call_of_a_save_leaves_a_checkpoint(kit, begun, share, tmp_path, kind, when):
    """ENOSPC, EIO or an interrupt anywhere in a save with keep_last=1: a verified checkpoint loads, and the
    same session's next save succeeds and leaves exactly one checkpoint and no rubbish."""
    outcomes = set()
    for n in share(kind):
        folder = tmp_path / str(n)
        shutil.copytree(begun, folder)
        files = FaultyFiles(at=n, fault=raising(FAULTS[kind]), when=when)
        session = next_session(kit, DirectoryStore(folder, files=files.files))
        committed = attempt(lambda session=session: session.save(2, kit.state(2, frozen=True)))
        assert len(files.calls) > n, "the fault was reached"
        step = loaded_step(kit, folder)
        assert step == 2 or not committed
        outcomes.add((committed, step))
        session.save(3, kit.state(3, frozen=True))
        assert loaded_step(kit, folder) == 3
        repository = Repository(DirectoryStore(folder), kit.run)
        assert len(repository.ids()) == 1
        assert {finding.state for finding in audit(repository)} == {"ok"}
        shutil.rmtree(folder)
    assert (False, 1) in outcomes


@pytest.mark.parametrize(
    "fault", [StoreFull(problem="Full.", remedy="Make room."), KeyboardInterrupt()], ids=["full", "interrupt"]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fault_at_any_call_of_any_store_leaves_a_checkpoint(kit, fault, when):
    """The same holds for the calls of a store, whatever it is made of."""
    n = 0
    while True:
        disk = MemoryStore()
        store = FaultyStore(disk)
        session = kit.Session(store, keep=KeepLast(1))
        session.save(1)
        reached = [0]

        def at(point, reached=reached, n=n):
            if point.startswith(f"{when} "):
                reached[0] += 1
                if reached[0] == n + 1:
                    raise fault

        store.at = at
        committed = attempt(lambda session=session: session.save(2))
        store.at = lambda point: None
        loaded, passed = kit.newest(disk)
        assert passed == {}
        assert kit.same(loaded.parts, kit.state(loaded.manifest.progress.step))
        assert loaded.manifest.progress.step == 2 or not committed
        session.save(3)
        assert kit.newest(disk)[0].manifest.progress.step == 3
        assert len(Repository(disk, kit.run).ids()) == 1
        n += 1
        if reached[0] < n:
            break
    assert n > 8


def test_a_disk_that_stays_full_keeps_the_last_checkpoint(kit, begun, share, tmp_path):
    """From any call on, nothing can be written any more: what was there stays and loads."""
    for n in share("no space"):
        folder = tmp_path / str(n)
        shutil.copytree(begun, folder)
        files = FaultyFiles(at=n, fault=raising(FAULTS["no space"]), lasting=True)
        session = next_session(kit, DirectoryStore(folder, files=files.files))
        attempt(lambda session=session: session.save(2, kit.state(2, frozen=True)))
        assert loaded_step(kit, folder) in (1, 2)
        shutil.rmtree(folder)

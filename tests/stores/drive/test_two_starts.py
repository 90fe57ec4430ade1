"""Two machines start one new run at the same moment: one of them trains it, the other is told.

Their requests come in any order that Hypothesis thinks of, and some of the first listings show nothing at all.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.checkpoint.restore import load_newest
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.checkpoint.writer import Committer, Identity
from colabkeep.core.errors import ColabKeepError, RunTakenOver
from colabkeep.core.manifest import Progress
from colabkeep.stores.base import BytesSource
from colabkeep.stores.drive.files import RemoteFile, age
from colabkeep.testing.clock import FakeClock
from tests.fakes.drive import stale_listing
from tests.fakes.runs import Taken, state

from .conftest import store_on

MACHINES = ("aaaaaaaa", "bbbbbbbb")
PATIENCE = 30.0  # seconds until a hanging test gives up


class Turns:
    """Lets requests through in the order of `order`, a list of machines; when that is over, as they come."""

    def __init__(self, order):
        self._order = list(order)
        self._over = set()
        self._changed = threading.Condition()

    def wait(self, machine):
        with self._changed:
            assert self._changed.wait_for(lambda: self._next() in (None, machine), PATIENCE)
            if self._order:
                self._order.pop(0)
            self._changed.notify_all()

    def end(self, machine):
        with self._changed:
            self._over.add(machine)
            self._changed.notify_all()

    def _next(self):
        while self._order and self._order[0] in self._over:
            self._order.pop(0)
        return self._order[0] if self._order else None


class Machine:
    """Opens the store, takes the run, and commits again and again until it is told to stop."""

    def __init__(self, drive, folder, name, turns):
        self.name, self.clock, self.told, self._turns = name, FakeClock(), None, turns
        self.store = store_on(drive, folder, clock=self.clock)
        send = self.store._api.send

        def in_turn(*args, **options):
            turns.wait(name)
            return send(*args, **options)

        self.store._api.send = in_turn
        self.repository, self.events = Repository(self.store, "run"), deque()

    def start(self):
        try:
            self.repository.open_run(created=0.0, run_id=self.name * 2)
            newest = load_newest(self.repository, lambda *_: None, sleep=self.clock.advance)
            manifest = None if newest is None else newest.manifest
            lease = take_lease(self.repository, self.name, {})
            identity = Identity(framework="numpy", fingerprint={}, began=manifest)
            journal = Journal(self.repository, self.name)
            self.committer = Committer(lease, journal, KeepLast(None), self.clock, identity, self.events.append)
            self.commit(1)
        except RunTakenOver as error:
            self.told = error
        finally:
            self._turns.end(self.name)

    def commit(self, step):
        progress = Progress(step=step, seconds=float(step))
        self.committer.commit(Taken(state(step)), progress, "steps", {})

    def go_on(self, step):
        self.clock.advance(61)
        try:
            self.commit(step)
        except RunTakenOver as error:
            self.told = error


@pytest.fixture
def folders():
    """Names of storages, each used once."""
    return (f"two-{number}" for number in itertools.count())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.lists(st.sampled_from(MACHINES), max_size=60), blind=st.integers(0, 12), after=st.integers(0, 6))
def test_of_two_that_start_one_new_run_one_is_the_writer_and_the_other_is_told(drive, folders, order, blind, after):
    """Whatever the order of their requests, and also where the first listings of each do not show what is new."""
    turns = Turns(order)
    folder = next(folders)
    machines = [Machine(drive, folder, name, turns) for name in MACHINES]
    drive.faults(
        stale_listing(everywhere=True).on(
            "GET", "/drive/v3/files$", skip=after, count=blind or None, chance=float(blind > 0)
        )
    )
    threads = [threading.Thread(target=machine.start) for machine in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    drive.faults()
    for step in (2, 3):
        for machine in machines:
            if machine.told is None:
                machine.go_on(step)
    told = [machine for machine in machines if machine.told is not None]
    (writer,) = [machine for machine in machines if machine.told is None]
    assert len(told) == 1
    assert isinstance(told[0].told, ColabKeepError)
    assert writer.name in told[0].told.problem
    stranger = Machine(drive, folder, "cccccccc", Turns([]))
    assert f"{3:012d}-{writer.name}" in stranger.repository.ids()
    for machine in (*machines, stranger):
        machine.store.close()


def test_who_makes_the_second_folder_moves_into_the_first(drive, open_drive):
    """So that the user has all in one folder: the other one stays empty."""
    one, other = open_drive("runs"), open_drive("runs")
    one.put("run/a", BytesSource(b"1"))
    drive.faults(stale_listing(everywhere=True).on("GET", "/drive/v3/files$", count=3))  # as if at the same moment
    other.put("run/b", BytesSource(b"2"))
    files = {file.id: file for file in drive.files()}
    first, second = sorted((file for file in files.values() if file.name == "runs"), key=lambda file: file.created)
    (run,) = (file for file in files.values() if file.name == "run")
    assert run.parent == first.id
    assert [files[file.parent].id for file in files.values() if file.size is not None] == [run.id, run.id]
    assert not [file for file in files.values() if file.parent == second.id]
    assert sorted(entry.name for entry in other.list("run")) == ["run/a", "run/b"]


@pytest.mark.parametrize("seconds", ["12:00:00.001", "12:00:00.002"], ids=["at the same moment", "later"])
def test_which_of_two_folders_counts_is_the_same_on_all_machines(seconds):
    """In whatever order each of them has met the two: the older one, and of two of one moment that of the lesser id."""
    one, other = (
        RemoteFile(id=id, name="runs", size=None, is_folder=True, created=f"2026-11-23T{at}Z")
        for id, at in (("b", "12:00:00.001"), ("a", seconds))
    )
    expected = ("b", "a") if one.created < other.created else ("a", "b")
    for met in itertools.permutations((one, other)):
        assert tuple(folder.id for folder in sorted(met, key=age)) == expected


def test_a_second_folder_that_nobody_saw_at_first_is_seen_within_a_minute(drive, open_drive):
    """Listings may have lagged when it was made: both machines see all by then, and all of it is one run."""
    clock = FakeClock()
    one, other = open_drive("runs", clock=clock), open_drive("runs")
    one.put("run/a", BytesSource(b"1"))
    drive.faults(stale_listing(everywhere=True).on("GET", "/drive/v3/files$", count=None))
    other.put("run/b", BytesSource(b"2"))
    drive.faults()
    assert len([file for file in drive.files() if file.name == "runs"]) == 2
    clock.advance(61)
    assert sorted(entry.name for entry in one.list("run")) == ["run/a", "run/b"]

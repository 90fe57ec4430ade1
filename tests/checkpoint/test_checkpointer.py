"""Saving as the training thread sees it: it hands over, goes on, and hears of failures in time."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import pytest

from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.checkpoint.writer import Checkpointer, Committer, Identity
from colabkeep.core.errors import MemoryFull, NotStorable, RunTakenOver, SaveFailed, StoreFull, StoreUnavailable
from colabkeep.core.events import CatchingUp, Noted, SaveCommitted, SaveFailing, SaveSkipped, SaveStarted
from colabkeep.core.manifest import Progress
from colabkeep.core.state import Stale
from colabkeep.frameworks.numpy import NumpyFramework
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyStore

LONG = 30.0  # seconds
FULL = StoreFull(problem="No space is left.", remedy="Make room in the folder.")


class Model:
    """Weights that a step changes."""

    def __init__(self):
        self.weight = np.zeros(1000)

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight[:] = state["weight"]


class Desk:
    """A checkpointer on a store that can be stopped and made to fail."""

    def __init__(self):
        self.disk = MemoryStore()
        self.store = FaultyStore(self.disk, at=self._reached)
        self.free = threading.Event()
        self.free.set()
        self.error = None
        self.failing = "put run/blobs"
        repository = Repository(self.store, "run")
        self.lease = take_lease(repository, "aaaaaaaa", {})
        self.clock, self.events = FakeClock(), deque()
        self.framework, self.model = NumpyFramework(), Model()
        journal = Journal(repository, "aaaaaaaa")
        identity = Identity(framework="numpy", fingerprint={})
        committer = Committer(self.lease, journal, KeepLast(1), self.clock, identity, self.events.append)
        self.saver = Checkpointer(self._captured, committer, self.clock, self.events)

    def _captured(self, parts):
        return self.framework.capture(parts)

    def _reached(self, point):
        if f"before {self.failing}" in point:
            self.free.wait(LONG)
            if self.error is not None:
                raise self.error

    def save(self, step):
        self.model.weight[:] = step
        return self.saver.save({"model": self.model}, Progress(step=step), "asked", {})

    def finish(self):
        assert self.saver.wait(LONG)

    def of(self, kind):
        return [event for event in self.events if type(event) is kind]

    def loaded(self, kit):
        found = kit.newest(self.disk)[0]
        return None if found is None else float(self.framework.native(found.parts["model"])["state"]["weight"][0])


@pytest.fixture
def desk():
    desk = Desk()
    yield desk
    desk.free.set()
    desk.error = None
    desk.saver.close()


def test_training_goes_on_while_the_state_is_written(kit, desk):
    """What is saved is the state at the moment of the call, whatever training does to it afterwards."""
    desk.free.clear()
    assert desk.save(1)
    desk.model.weight[:] = 99
    assert desk.saver.busy
    desk.free.set()
    desk.finish()
    assert desk.loaded(kit) == 1
    assert desk.saver.saved == Progress(step=1)
    assert [type(event).__name__ for event in desk.events][:2] == ["SaveStarted", "SaveCommitted"]


def test_eight_saves_in_a_row_hold_one_copy_and_the_newest_wins(kit, desk):
    """Saves that come faster than the store takes them wait as one, which is told, and take the latest state."""
    desk.free.clear()
    assert [desk.save(step) for step in range(1, 9)] == [True] + [False] * 7
    assert len(desk.of(SaveStarted)) == 1
    assert desk.of(SaveSkipped)[0] == SaveSkipped(progress=Progress(step=2), reason="asked")
    assert desk.saver.due(0.0) is None, "nothing is due while one is in flight"
    desk.free.set()
    desk.finish()
    assert desk.saver.due(0.0) == "asked"
    assert desk.save(9)
    desk.finish()
    assert desk.saver.due(0.0) is None
    assert desk.loaded(kit) == 9
    assert [event.progress.step for event in desk.of(SaveCommitted)] == [1, 9]


def test_a_failure_in_the_background_stops_nothing_while_something_is_safe(kit, desk):
    """A full disk is told of, tried again after a pause that grows, and saving resumes when there is room."""
    desk.save(1)
    desk.finish()
    desk.error = FULL
    pauses = []
    for step in (2, 3, 4):
        assert desk.save(step)
        desk.finish()
        failing = desk.of(SaveFailing)[-1]
        assert failing.error == "No space is left."
        pauses.append(failing.retry_in)
        assert desk.saver.due(desk.clock.monotonic()) is None
        desk.clock.advance(failing.retry_in)
        assert desk.saver.due(desk.clock.monotonic()) == "retry"
    assert pauses == [15.0, 30.0, 60.0]
    assert desk.loaded(kit) == 1
    desk.error = None
    desk.save(5)
    desk.finish()
    assert desk.loaded(kit) == 5
    assert desk.saver.due(desk.clock.monotonic() + 1e6) is None


def test_training_stops_when_nothing_of_it_is_safe(desk):
    """Without a single checkpoint after two attempts, the next save raises: an hour of work would be for nothing."""
    desk.error = FULL
    desk.save(1)
    desk.finish()
    desk.save(2)
    desk.finish()
    with pytest.raises(SaveFailed, match="No space is left") as caught:
        desk.save(3)
    assert caught.value.remedy == "Make room in the folder."
    assert caught.value.__cause__ is FULL


def test_what_cannot_be_stored_is_raised_in_the_training_thread(desk):
    """A value without a plain form is told with its path, where the user can see it."""
    desk.save(1)
    desk.finish()
    desk.model.state_dict = lambda: {"weight": object()}
    with pytest.raises(NotStorable) as caught:
        desk.save(2)
    assert caught.value.path == "model.weight"


def test_a_session_that_was_taken_over_is_stopped_at_the_next_save(desk):
    """A zombie hears of it in its training loop."""
    desk.save(1)
    desk.finish()
    take_lease(Repository(desk.disk, "run"), "bbbbbbbb", {})
    desk.save(2)
    desk.finish()
    with pytest.raises(RunTakenOver, match="bbbbbbbb"):
        desk.save(3)


def test_closing_waits_for_the_save_and_writes_the_journal(kit, desk):
    """What was handed over is safe when close returns."""
    desk.free.clear()
    desk.save(1)
    desk.saver._committer._journal.add({"event": "last words"})
    threading.Timer(0.05, desk.free.set).start()
    desk.saver.close()
    assert desk.loaded(kit) == 1
    assert any("journal/" in name for name in desk.disk._objects)


def test_closing_does_not_tidy_up_on_two_threads(desk):
    """The writer's thread has ended before the last tidying up, so each line of the journal is written once."""
    threads = []
    tidy = desk.saver._committer.after_commit
    desk.saver._committer.after_commit = lambda: (
        threads.append((threading.current_thread(), threading.active_count())),
        tidy(),
    )[1]
    before = threading.active_count()
    desk.save(1)
    desk.finish()
    desk.saver.close()
    assert threads[-1] == (threading.main_thread(), before)


def test_the_metrics_of_a_checkpoint_are_those_of_its_moment(kit, desk):
    """What the loop logs after a save does not slip into it while it is being written."""
    metrics = {"loss": 0.5}
    desk.free.clear()
    desk.saver.save({"model": desk.model}, Progress(step=1), "asked", metrics)
    metrics["loss"] = 99.0
    desk.free.set()
    desk.finish()
    assert kit.newest(desk.disk)[0].manifest.metrics == {"loss": 0.5}


def test_a_failure_after_a_resume_keeps_what_was_resumed_from(kit, desk):
    """A session that went on from a checkpoint is not stopped by a store that is away: that one is still safe."""
    desk.save(1)
    desk.finish()
    desk.saver.close()
    repository = Repository(desk.store, "run")
    lease = take_lease(repository, "bbbbbbbb", {})
    identity = Identity(framework="numpy", fingerprint={}, began=repository.manifest("000000000001-aaaaaaaa"))
    committer = Committer(lease, Journal(repository, "bbbbbbbb"), KeepLast(1), desk.clock, identity, desk.events.append)
    desk.saver = Checkpointer(desk.framework.capture, committer, desk.clock, desk.events)
    desk.error = StoreUnavailable(problem="Away.", remedy="Wait.")
    for step in (2, 3):
        assert desk.save(step)
        desk.finish()
    assert desk.loaded(kit) == 1


class Narrow(NumpyFramework):
    """A machine that has room for a copy only now and then."""

    full = False

    def capture(self, parts):
        if self.full:
            raise MemoryFull(problem="The state cannot be copied.", remedy="Make room on the disk.")
        return super().capture(parts)


def test_a_state_that_outgrows_the_machine_does_not_end_the_training(kit, desk):
    """That save is left out, which is told, and made up for later, like any that failed."""
    desk.framework = Narrow()
    desk.save(1)
    desk.finish()
    desk.framework.full = True
    for step in (2, 3, 4):
        assert not desk.save(step)
    assert [failing.error for failing in desk.of(SaveFailing)] == ["The state cannot be copied."] * 3
    assert not desk.saver.busy
    assert desk.saver.due(desk.clock.monotonic() + 60.0) == "retry"
    desk.framework.full = False
    assert desk.save(5)
    desk.finish()
    assert desk.loaded(kit) == 5


def test_a_state_that_never_fitted_the_machine_ends_the_training_before_hours_are_lost(desk):
    """Without one checkpoint after two attempts it is no different from a storage that takes nothing."""
    desk.framework = Narrow()
    desk.framework.full = True
    assert not desk.save(1)
    assert not desk.save(2)
    with pytest.raises(SaveFailed, match="The state cannot be copied") as caught:
        desk.save(3)
    assert caught.value.remedy == "Make room on the disk."


class Slow:
    """A store whose other side catches up after some seconds of the clock, as if behind a narrow line."""

    def __init__(self, clock, seconds):
        self.clock, self.ready_at = clock, clock.monotonic() + seconds

    def flush(self, timeout):
        self.clock.advance(min(timeout, max(0.0, self.ready_at - self.clock.monotonic())))
        return self.clock.monotonic() >= self.ready_at


@pytest.mark.parametrize(
    ("takes", "patience", "there"), [(100.0, 600.0, True), (100.0, 40.0, False), (100.0, 0.0, False)]
)
def test_the_end_waits_as_long_as_it_was_told_and_says_what_is_left(desk, monkeypatch, takes, patience, there):
    """A user who said half an hour sees that something moves; one who said nothing is not held up."""
    slow, woken = Slow(desk.clock, takes), []
    monkeypatch.setattr(desk.store, "flush", slow.flush, raising=False)
    began = desk.clock.monotonic()
    assert desk.saver.close(patience, lambda: woken.append(desk.clock.monotonic() - began)) is there
    assert desk.clock.monotonic() - began == min(takes, patience)
    left = [event.left for event in desk.of(CatchingUp)]
    assert left == sorted(left, reverse=True)
    assert len(left) == max(0, (min(takes, patience) - 1) // 15)
    assert woken == [float(second) for second in range(1, int(min(takes, patience)))]


class StaleOnce(NumpyFramework):
    """What its first snapshot did not copy has changed."""

    stale = True

    def capture(self, parts):
        capture = super().capture(parts)
        if self.stale:
            self.stale = False
            capture.rest = self.raises
        return capture

    def raises(self):
        raise Stale


def test_a_stale_snapshot_is_made_again_at_the_next_step(kit):
    """Nothing wrong is written, training hears nothing of it, and the save is made up for."""
    desk = Desk()
    desk.framework = StaleOnce()
    desk.save(1)
    desk.finish()
    assert not [*desk.of(SaveCommitted), *desk.of(SaveFailing), *desk.of(Noted)]
    assert desk.saver.saved is None
    assert desk.saver.due(desk.clock.monotonic()) == "asked"
    desk.save(2)
    desk.finish()
    assert desk.loaded(kit) == 2.0
    assert desk.saver.due(desk.clock.monotonic()) is None


def test_a_save_interrupted_before_it_is_handed_over_does_not_block_the_next(kit, monkeypatch):
    """Whoever stops the cell in that moment gets the last save of the session all the same."""
    desk = Desk()

    def interrupted(job):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(desk.saver._writer, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            desk.save(1)
    desk.save(2)
    desk.finish()
    assert desk.loaded(kit) == 2.0

"""A run may lie below another, `exp/lr1` below `exp`: each is a run of its own, in every kind of store."""

from __future__ import annotations

import numpy as np
import pytest

import colabkeep
from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.core.layout import RUN_FOLDERS
from colabkeep.stores.base import BytesSource, Receipt, run_of
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.overlay import OverlayStore
from colabkeep.stores.shared.upload_queue import Queue, Task
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from tests.fakes.model import names
from tests.fakes.runs import Weights

PATIENCE = 30.0  # seconds until a hanging test gives up


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def tiered(clock):
    store = TieredStore(MemoryStore(), MemoryStore(), pauses=(0.001, 0.002), monotonic=clock.monotonic)
    yield store
    store.close()


def put(store, *names):
    for name in names:
        store.put(name, BytesSource(name.encode()))


def take(store, run):
    take_up(Repository(store, run))


def opened(store, run, session):
    """What a session does at its beginning, so far as the store is concerned."""
    take(store, run)
    take_lease(Repository(store, run), session, {})


def train(run, storage, until):
    """A session of the run, up to that step. Returns the step it started from; its state is checked."""
    value = Weights(np.zeros(3))
    with colabkeep.Run(run, state={"value": value}, storage=storage, save_every=None, progress=False) as session:
        start = session.progress.step
        assert (value.array == start).all()
        for _ in range(start, until):
            value.array = value.array + 1
            session.step()
    return start


@pytest.mark.parametrize("run", ["exp", "exp/lr1", "exp/lr1/again"])
def test_every_file_of_a_run_tells_which_run_it_is_of(run):
    """Its folders are known by their names, so that no other run is taken for a part of it."""
    assert run_of(f"{run}/run.json") == run
    assert {run_of(f"{run}/{folder}/file") for folder in RUN_FOLDERS} == {run}
    assert run_of(f"{run}/other/file") == f"{run}/other"


def test_the_folders_of_a_run_are_those_that_a_training_makes(tmp_path):
    """A new one that nobody told the stores about would be taken for a run."""
    train("exp", tmp_path, 2)
    made = {path.name for path in (tmp_path / "exp").iterdir() if path.is_dir()}
    assert made <= set(RUN_FOLDERS)
    assert set(RUN_FOLDERS) - made == {"aside"}  # only damaged checkpoints make that


def test_opening_a_run_sends_nothing_of_one_below_it(tiered):
    """What another process left in front for its own run is its own to send."""
    put(tiered.front, "exp/blobs/a", "exp/run.json", "exp/lr1/blobs/b", "exp/lr1/run.json")
    opened(tiered, "exp", "aaaaaaaa")
    assert tiered.flush(PATIENCE)
    assert names(tiered.behind) == ["exp/blobs/a", "exp/lease/000001-aaaaaaaa.json", "exp/run.json"]


def test_a_run_below_another_that_was_taken_over_is_let_be(tiered, clock):
    """Its newer session may need what this one deletes, and the user is told."""
    opened(tiered, "exp/lr1", "aaaaaaaa")
    put(tiered, "exp/lr1/blobs/a")
    assert tiered.flush(PATIENCE)
    put(tiered.behind, "exp/lr1/lease/000002-bbbbbbbb.json")
    clock.advance(61)
    tiered.delete("exp/lr1/blobs/a")
    assert tiered.flush(PATIENCE)
    assert "exp/lr1/blobs/a" in names(tiered.behind)
    assert "Session bbbbbbbb has taken over 'exp/lr1'" in tiered.degraded


def test_a_new_session_of_a_run_below_is_no_trouble_of_the_one_above(tiered, clock):
    """Whoever trains `exp` hears nothing of who trains `exp/lr1`, and deletes what is its own."""
    put(tiered.behind, "exp/lr1/lease/000001-aaaaaaaa.json")
    opened(tiered, "exp", "cccccccc")
    put(tiered, "exp/blobs/a")
    assert tiered.flush(PATIENCE)
    put(tiered.behind, "exp/lr1/lease/000002-bbbbbbbb.json")
    clock.advance(61)
    tiered.delete("exp/blobs/a")
    assert tiered.flush(PATIENCE)
    assert "exp/blobs/a" not in names(tiered.behind)
    assert tiered.degraded is None


def test_what_the_session_of_a_run_below_has_deleted_is_not_sent_again(tiered, clock):
    """Its process deletes in both places, one after the other; the one above does not undo that."""
    put(tiered.front, "exp/lr1/blobs/a")
    put(tiered.behind, "exp/lr1/blobs/a")
    take(tiered, "exp")
    put(tiered, "exp/blobs/b")
    assert tiered.flush(PATIENCE)
    tiered.behind.delete("exp/lr1/blobs/a")
    clock.advance(121)
    tiered._look()
    assert tiered.flush(PATIENCE)
    assert names(tiered.behind) == ["exp/blobs/b"]


def test_checkpoints_of_a_run_below_another_are_sent_whole_and_the_newest_first():
    """As those of any other run: its blobs come before its manifest, and a newer one before an older one."""
    old, new = "exp/lr1/checkpoints/000000000001-aaaaaaaa.json", "exp/lr1/checkpoints/000000000002-aaaaaaaa.json"
    lease, queue = "exp/lr1/lease/000001-aaaaaaaa.json", Queue()
    needs = {old: {"exp/lr1/blobs/1": (1, "")}, new: {"exp/lr1/blobs/2": (1, "")}, lease: {}}
    for name in ("exp/lr1/blobs/1", old, "exp/lr1/blobs/2", new, lease):
        queue.add(Task("copy", Receipt(name=name, size=1, sha256="", level="local"), needs.get(name)))
    order = []
    while (task := queue.next()) is not None:
        order.append(task.name)
        queue.done(task)
    assert order == [lease, "exp/lr1/blobs/2", new, "exp/lr1/blobs/1", old]


@pytest.mark.parametrize("runs", [("exp", "exp/lr1"), ("exp/lr1", "exp")])
def test_the_output_of_an_earlier_session_is_gone_on_from_in_runs_that_lie_in_each_other(tmp_path, runs):
    """As on Kaggle: whichever is opened first, the other one is found, too."""
    for run in runs:
        assert train(run, tmp_path / "1", 3) == 0
    store = OverlayStore(DirectoryStore(tmp_path / "2"), [DirectoryStore(tmp_path / "1")])
    assert [train(run, store, 5) for run in runs] == [3, 3]
    assert {run_of(name) for name in names(store)} == {"exp", "exp/lr1"}
    assert [train(run, tmp_path / "2", 6) for run in runs] == [5, 5]


def test_a_listing_shows_a_run_below_one_that_was_brought_to_the_front(tmp_path):
    """What lies behind only is not hidden by that."""
    train("exp", tmp_path / "1", 3)
    train("exp/lr1", tmp_path / "1", 3)
    store = OverlayStore(DirectoryStore(tmp_path / "2"), [DirectoryStore(tmp_path / "1")])
    before = names(store, "exp/lr1")
    take(store, "exp")
    assert names(store, "exp/lr1") == before
    assert set(before) < set(names(store, "exp"))

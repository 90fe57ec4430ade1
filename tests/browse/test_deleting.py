"""A whole run goes only when nobody trains it, and only what is its own; a killed deletion is taken up again."""

from __future__ import annotations

import time

import pytest

from colabkeep.checkpoint.inspect import run_names
from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.core.errors import CheckpointError, RunBusy
from colabkeep.core.system import SystemClock
from colabkeep.session.prune import delete_run, plan_deletion
from colabkeep.stores import open_store
from colabkeep.stores.base import StoreProperties
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.shared.files import write_note
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyStore


def planned(store, run="first"):
    return plan_deletion(Repository(store, run))


def filled(trained, kit, kind=MemoryStore):
    store = kind()
    store._objects.update(kit.contents(trained))
    return store


class Remote(MemoryStore):
    """A place that cannot lock."""

    @property
    def properties(self):
        return StoreProperties(top_level="local", persists=True)


def test_the_whole_run_goes_and_nothing_else(storage, kit):
    """Checkpoints, journal, lease and the notes beside it; not the other run, nor a run in a folder below, nor what the
    user keeps there, nor what only looks like one of ours."""
    inner = storage / "first/vision"
    kit.train(storage, "first/vision", 1)
    (storage / "first/notes.txt").write_text("mine")
    (storage / "first/blobs/model.safetensors").write_bytes(b"mine")
    (storage / "first/checkpoints/best.json").write_text("{}")
    for kind in ("html", "json"):
        write_note(str(storage), f"first.status.{kind}", b"finished")
        write_note(str(storage), f"second.status.{kind}", b"finished")
    before = kit.contents(storage)
    store = DirectoryStore(storage)
    plan = planned(store)
    told = []
    assert delete_run(store, plan, SystemClock(), lambda name, size: told.append((name, size)))
    after = kit.contents(storage)
    assert after == {name: data for name, data in before.items() if name in after}
    others = {"first/notes.txt", "first/blobs/model.safetensors", "first/checkpoints/best.json"}
    nested = {f"first/vision/{name}" for name in kit.contents(inner)}
    assert {name for name in after if name.startswith("first")} == others | nested
    assert others | nested == {f"first/{name}" for name in plan.others}
    assert {name for name in after if name.endswith((".html", "status.json"))} == {
        "second.status.html",
        "second.status.json",
    }
    assert run_names(store) == ["first/vision", "second"]
    assert told == list(plan.files.items())
    assert sum(size for _, size in told) == plan.bytes > 0
    assert [id[:12] for id in plan.checkpoints] == [f"{step:012d}" for step in (1, 2, 3)]


def test_a_run_that_may_be_trained_on_another_machine_is_refused(trained, kit):
    """Where locks cannot be had: heard of half an hour ago, and not that it stopped. After two hours it is gone."""
    store, clock = filled(trained, kit, Remote), FakeClock(time=time.time())
    take_lease(Repository(store, "first"), "99999999", {"host": "colab-7", "pid": 1, "started": clock.time()})
    clock.advance(1800)
    plan, before = planned(store), dict(store._objects)
    with pytest.raises(RunBusy, match="colab-7"):
        delete_run(store, plan, clock)
    assert store._objects == before
    clock.advance(7200)
    delete_run(store, plan, clock)
    assert run_names(store) == ["second"]


def test_a_run_that_went_on_since_it_was_looked_at_is_left_alone(storage, kit):
    """A checkpoint that the user was not told of is not deleted."""
    store = DirectoryStore(storage)
    plan = planned(store)
    kit.train(storage, "first", 5)
    before = kit.contents(storage)
    with pytest.raises(CheckpointError) as caught:
        delete_run(store, plan, SystemClock())
    assert "since you looked" in caught.value.problem
    assert kit.contents(storage) == before


def test_a_killed_deletion_is_taken_up_again(trained, kit):
    """Stopped at any of its steps: the newest checkpoint goes last of all checkpoints, the run stays listed until
    nothing of it is left, and the second time ends with what the first would have."""
    stopped = 0
    while True:
        store, left = filled(trained, kit), stopped

        def at(point):
            nonlocal left
            if point.startswith(("before delete", "before put")):
                if left == 0:
                    raise KeyboardInterrupt
                left -= 1

        try:
            delete_run(FaultyStore(store, at=at), planned(store), SystemClock())
        except KeyboardInterrupt:
            manifests = [name for name in store._objects if name.startswith("first/checkpoints/")]
            assert not manifests or max(manifests).startswith("first/checkpoints/000000000003")
            assert any(name.startswith("first/blobs/") for name in store._objects) or not manifests
            if any(name.startswith("first/") for name in store._objects):
                assert "first" in run_names(store), f"stopped at {stopped}"
                delete_run(store, planned(store), SystemClock())
        else:
            break
        assert not [name for name in store._objects if name.startswith("first/")]
        assert run_names(store) == ["second"]
        stopped += 1
    assert stopped > 16


def test_both_sides_of_a_pair_lose_the_run(storage, kit, tmp_path):
    """What goes in front goes behind, and is waited for."""
    pair = (storage, tmp_path / "behind")
    store = open_store(pair)
    for run in ("first", "second"):
        take_up(Repository(store, run))
    assert store.flush(60)
    assert run_names(DirectoryStore(tmp_path / "behind")) == ["first", "second"]
    assert delete_run(store, planned(store), SystemClock())
    store.close()
    assert run_names(DirectoryStore(storage)) == run_names(DirectoryStore(tmp_path / "behind")) == ["second"]
    assert not [name for name in kit.contents(tmp_path / "behind") if name.startswith("first/")]

"""A store behind that says nothing, refuses, or is changed by others: nobody waits for it, and nothing is believed."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from colabkeep.core.errors import StoreError, StoreUnavailable
from colabkeep.stores.base import BytesSource, StoreProperties
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyStore
from tests.fakes.model import names

PATIENCE = 30.0  # seconds until a hanging test gives up
LEASE = "run/lease/000001-aaaaaaaa.json"
NEWER = "run/lease/000002-bbbbbbbb.json"


class Silence:
    """For `FaultyStore`: while it lasts, whoever asks the store anything does not come back."""

    def __init__(self):
        self.over = threading.Event()
        self.over.set()
        self.asked = set()

    def __call__(self, point):
        if not self.over.is_set():
            self.asked.add(threading.current_thread().name)
            assert self.over.wait(PATIENCE)


class Sent(MemoryStore):
    """What is put is only sent there, until it is asked about."""

    @property
    def properties(self):
        return StoreProperties(top_level="confirmed", persists=True, lists_lag=True)

    def put(self, name, source):
        return replace(super().put(name, source), level="sent")


@pytest.fixture
def silence():
    found = Silence()
    yield found
    found.over.set()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def tiered(clock, silence):
    """Makes tiered stores, and closes them at the end."""
    made = []

    def make(behind):
        store = TieredStore(MemoryStore(), behind, pauses=(0.001, 0.002), monotonic=clock.monotonic)
        made.append(store)
        return store

    yield make
    silence.over.set()
    for store in made:
        store.close()


def put(store, name, data=b"data"):
    return store.put(name, BytesSource(data))


def look(store, clock, seconds=121):
    """Time passes, somebody lists, and the store behind is looked at again."""
    clock.advance(seconds)
    store.list("run")
    looker = store._looker
    assert looker is not None
    looker.join(PATIENCE)
    assert not looker.is_alive()


def test_nobody_waits_for_a_store_behind_that_says_nothing(tiered, silence, clock):
    """Once it was listed, puts, listings, deletions and questions are answered by this machine alone."""
    store = tiered(FaultyStore(Sent(), at=silence))
    store.sweep("run")
    put(store, LEASE)
    first = put(store, "run/a")
    assert store.flush(PATIENCE)
    silence.over.clear()
    for _ in range(3):
        clock.advance(61)
        receipt = put(store, f"run/b{clock.monotonic():.0f}")
        assert {LEASE, "run/a"} <= set(names_of_run(store))
        assert [store.confirm(each).level for each in (receipt, first)] == ["local", "sent"]
    store.delete("run/a")
    assert "run/a" not in names_of_run(store)
    assert not store.flush(0.05)
    assert silence.asked <= {"colabkeep-uploader", "colabkeep-looker"}
    silence.over.set()
    assert store.flush(PATIENCE)


def names_of_run(store):
    return [entry.name for entry in store.list("run")]


def test_a_store_behind_that_never_answers_is_not_waited_for_at_the_start(tiered, silence, monkeypatch):
    """It is refused in a true sentence, which names what this machine has: going on might fork the run."""
    monkeypatch.setattr("colabkeep.stores.shared.remote_index._FIRST", 0.05)
    store = tiered(FaultyStore(Sent(), at=silence))
    put(store.front, "run/checkpoints/000000000001-aaaaaaaa.json")
    silence.over.clear()
    with pytest.raises(StoreUnavailable) as caught:
        store.sweep("run")
    assert "does not answer" in caught.value.problem
    assert "another machine" in caught.value.problem
    assert f'storage="{store.front.url}"' in caught.value.remedy


def test_a_deletion_that_is_refused_holds_up_nothing_and_is_asked_once(tiered):
    """Without the right to delete, everything still arrives; it is told in words that stay the same."""

    def refuse(point):
        if point.startswith("before delete"):
            raise StoreError(problem="Not allowed.", remedy="Ask the owner.")

    behind = FaultyStore(Sent(), at=refuse)
    store = tiered(behind)
    for name in ("run/a", "run/b"):
        put(store, name)
    assert store.flush(PATIENCE)
    store.delete("run/a")
    assert store.flush(PATIENCE)
    told = store.degraded
    assert "Not allowed." in told
    assert "run/a" in told
    store.delete("run/a")
    store.delete("run/b")
    put(store, "run/c")
    assert store.flush(PATIENCE)
    assert store.degraded == told
    assert names(store) == ["run/c"]
    assert behind.points.count("before delete run/a") == 1
    assert "run/c" in names(behind)


def test_what_has_vanished_behind_is_not_believed_and_sent_again(tiered, clock):
    """An object that a listing does not show two minutes after it arrived is on this machine only, and is sent."""
    objects, silence = MemoryStore(), Silence()
    store = tiered(FaultyStore(objects, at=lambda point: silence(point) if " put " in point else None))
    store.sweep("run")
    receipts = [put(store, LEASE), put(store, "run/a")]
    assert store.flush(PATIENCE)
    objects.delete("run/a")
    look(store, clock, seconds=61)
    assert store.confirm(receipts[1]).level == "sent", "the listing may be late"
    silence.over.clear()
    look(store, clock)
    assert [store.confirm(each).level for each in receipts] == ["sent", "local"]
    silence.over.set()
    assert store.flush(PATIENCE)
    assert store.confirm(receipts[1]).level == "sent"
    assert names(objects) == ["run/a", LEASE]


def taken_over(store):
    """What a session asks before anything of its run is deleted behind."""
    return lambda: "Session bbbbbbbb has it" if NEWER in names_of_run(store) else None


def test_a_machine_that_was_away_deletes_nothing_of_a_run_that_was_taken_over(tiered, clock):
    """Before it deletes, it looks whose the run is: what it does not need any more, the newer session may."""
    objects = MemoryStore()
    store = tiered(objects)
    store.sweep("run")
    store.guard("run", taken_over(store))
    for name in (LEASE, "run/a", "other/a"):
        put(store, name)
    assert store.flush(PATIENCE)
    put(objects, NEWER)
    clock.advance(61)
    for name in ("run/a", "other/a"):
        store.delete(name)
    assert store.flush(PATIENCE)
    assert names(objects) == ["run/a", LEASE, NEWER]
    assert "Session bbbbbbbb has it, so nothing of it is deleted" in store.degraded


def test_after_trouble_it_looks_whose_the_run_is_whatever_it_saw_before(tiered):
    """In the seconds in which the store was away another machine may have come."""
    objects, away = MemoryStore(), []

    def fail_once(point):
        if point == "before put run/b" and not away:
            away.append(point)
            put(objects, NEWER)
            raise StoreUnavailable(problem="The drive is away.", remedy="Wait.")

    store = tiered(FaultyStore(objects, at=fail_once))
    store.sweep("run")
    store.guard("run", taken_over(store))
    for name in (LEASE, "run/a", "run/b"):
        put(store, name)
    assert store.flush(PATIENCE)
    store.delete("run/a")
    assert store.flush(PATIENCE)
    assert "run/a" in names(objects)


def test_a_newer_session_is_heard_of_within_a_minute_while_a_copy_takes_hours(tiered, clock):
    """The lease in the listing is what stops a session that was overtaken; a long upload does not hide it."""
    objects, silence = MemoryStore(), Silence()
    store = tiered(FaultyStore(objects, at=lambda point: silence(point) if point == "before put run/b" else None))
    store.sweep("run")
    put(store, LEASE)
    assert store.flush(PATIENCE)
    silence.over.clear()
    put(store, "run/b")
    put(objects, NEWER)
    look(store, clock, seconds=61)
    assert NEWER in names_of_run(store)
    silence.over.set()

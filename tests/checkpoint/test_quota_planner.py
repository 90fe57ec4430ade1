"""A run keeps within the room there is, deletes nothing but what is its own, and says in time when it will not fit."""

from __future__ import annotations

import pytest

from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import load_id
from colabkeep.checkpoint.retention import KeepBest, KeepLast
from colabkeep.core.errors import StoreFull
from colabkeep.core.events import SpaceShort
from colabkeep.stores.base import BytesSource, StoreProperties
from colabkeep.stores.memory import MemoryStore

HOUR = 3600.0  # seconds
SIZE = 100_000  # bytes of a checkpoint's tensors; what lies beside them is small
PART = SIZE // 10


class Quota(MemoryStore):
    """Has a limit; what is deleted comes free at once, or, with `trash`, not before it is emptied."""

    url = "quota"

    def __init__(self, limit, *, trash=False):
        super().__init__()
        self.limit = limit
        self.trashed = 0 if trash else None
        self.refused = 0

    @property
    def free(self):
        used = sum(entry.size for entry in self.list("") if "/blobs/" in entry.name) + (self.trashed or 0)
        return self.limit - used

    @property
    def properties(self):
        return StoreProperties(top_level="local", persists=True, locks=True, free_bytes=self.free)

    def put(self, name, source):
        if "/blobs/" in name and source.size > self.free:
            self.refused += 1
            raise StoreFull(problem="The quota is used up.", remedy="Make room.")
        return super().put(name, source)

    def delete(self, name):
        size = sum(entry.size for entry in self.list("") if entry.name == name and "/blobs/" in name)
        super().delete(name)
        if self.trashed is not None:
            self.trashed += size


def parts(kit, step):
    return {"model": {"weight": kit.floats(*([float(step)] * (SIZE // 4)))}}


def train(kit, session, steps, *, hours=0.5):
    for step in steps:
        session.clock.advance(hours * HOUR)
        session.save(step, parts(kit, step), loss=1 / step if step % 4 else 0.0)


def steps(store, kit):
    return sorted(int(id[:12]) for id in Repository(store, kit.run).ids())


def told(session):
    return [event for event in session.events if type(event) is SpaceShort]


def test_more_is_asked_for_than_fits(kit):
    """Six are to be kept in a place for four: fewer are, nothing is ever refused, and it is told once."""
    store = Quota(4 * SIZE + PART)
    session = kit.Session(store, keep=KeepLast(6))
    train(kit, session, range(1, 30))
    assert store.refused == 0
    assert steps(store, kit) == [27, 28, 29]
    assert [event.keeps for event in told(session) if event.keeps] == [1]
    assert told(session)[0].url == "quota"
    assert told(session)[0].save_bytes == pytest.approx(SIZE, rel=0.02)


def test_the_best_stay_as_long_as_anything_does(kit):
    """What goes first are those that are neither the newest nor the best."""
    store = Quota(4 * SIZE + PART)
    session = kit.Session(store, keep=KeepLast(5) + KeepBest(n=1, monitor="loss", mode="min"))
    train(kit, session, range(1, 14))
    assert store.refused == 0
    assert {4, 13} <= set(steps(store, kit))


def test_a_place_with_room_for_all_is_left_in_peace(kit):
    """Nothing is told, and all that was asked for is kept."""
    store = Quota(100 * SIZE)
    session = kit.Session(store, keep=KeepLast(6))
    train(kit, session, range(1, 20))
    assert steps(store, kit) == [14, 15, 16, 17, 18, 19]
    assert told(session) == []


def test_a_place_that_cannot_say_is_left_in_peace(kit, disk):
    """Without a word on free space nothing is planned, and nothing is told."""
    session = kit.Session(disk.store, keep=KeepLast(6))
    train(kit, session, range(1, 10))
    assert len(steps(disk.store, kit)) == 6
    assert told(session) == []


def test_the_hour_in_which_it_will_be_full_is_told_before(kit):
    """All is to be kept, so nothing is deleted: long before the place is full, the time is said, and it is right."""
    store = Quota(20 * SIZE + PART)
    session = kit.Session(store, keep=KeepLast(None))
    train(kit, session, range(1, 6))
    (event,) = told(session)
    hours = (event.full_at - session.clock.time()) / HOUR
    assert hours == pytest.approx(15 / 2, abs=1), "fifteen more fit, two in an hour"
    assert store.refused == 0
    train(kit, session, range(6, 21))
    assert store.refused == 0
    assert len(told(session)) > 1, "said again as it comes nearer"
    with pytest.raises(StoreFull):
        train(kit, session, [21])
    assert len(steps(store, kit)) == 20, "what was to be kept is kept, also then"


def test_the_hour_is_told_where_deleting_gives_nothing_back(kit):
    """A place that keeps what was deleted, for good: the run keeps few, and says when even these will not fit."""
    store = Quota(20 * SIZE, trash=True)
    session = kit.Session(store, keep=KeepLast(2))
    train(kit, session, range(1, 16))
    hours = [(event.full_at - session.clock.time()) / HOUR for event in told(session) if event.full_at]
    assert hours[-1] == pytest.approx(5 / 2, abs=1), "five more fit, two in an hour"
    assert store.refused == 0


def test_somebody_else_fills_the_place(kit):
    """Other people's files grow: no hour is foretold for them, but the run makes itself small in time, says so, and
    touches none of them."""
    store = Quota(20 * SIZE)
    others = {}
    session = kit.Session(store, keep=KeepLast(4))
    train(kit, session, range(1, 8))  # deleting is seen to give bytes back
    for step in range(8, 24):
        name = f"thesis/blobs/{step}"
        others[name] = bytes(SIZE + PART)
        store.put(name, BytesSource(others[name]))
        train(kit, session, [step])
    assert store.refused == 0
    assert [event.full_at for event in told(session) if event.full_at] == []
    assert [event.keeps for event in told(session) if event.keeps], "that it keeps fewer is said"
    assert len(steps(store, kit)) < 4
    assert {entry.name: entry.size for entry in store.list("thesis")} == {n: len(data) for n, data in others.items()}


@pytest.mark.parametrize("keep", [KeepLast(2), KeepLast(None)], ids=["two", "all"])
def test_small_saves_beside_a_busy_program_raise_no_alarm(kit, keep):
    """Somebody else takes a tenth of a large room with each save of a few bytes: that is no reason to make room."""
    store = Quota(400 * SIZE)
    session = kit.Session(store, keep=keep)
    for step in range(1, 10):
        store.put(f"thesis/blobs/{step}", BytesSource(bytes(30 * SIZE)))
        session.clock.advance(HOUR / 6)
        session.save(step, {"model": {"weight": kit.floats(float(step), 1.0, 2.0)}}, loss=1.0)
    assert store.refused == 0
    assert told(session) == []


def test_a_save_that_may_not_fit_next_time_is_said_without_an_hour(kit):
    """Nothing can be kept fewer, and there is less free than a save takes: said once, as what it is."""
    store = Quota(20 * SIZE)
    session = kit.Session(store, keep=KeepLast(None))
    train(kit, session, range(1, 3))
    store.put("thesis/blobs/1", BytesSource(bytes(store.free - 2 * SIZE - PART)))
    train(kit, session, [3, 4])
    assert [(event.full_at, event.keeps) for event in told(session)] == [(None, None)]


def test_a_trash_that_counts_is_planned_for(kit):
    """What is deleted does not come free until the trash is emptied, now and then: the place is never full all the
    same, for half of it is left alone until deleting has been seen to help."""
    store = Quota(12 * SIZE, trash=True)
    session = kit.Session(store, keep=KeepLast(9))
    for step in range(1, 60):
        train(kit, session, [step])
        if step % 4 == 0:
            store.trashed = 0
        assert store.refused == 0
        assert step in steps(store, kit)
    assert len(steps(store, kit)) >= 3


def test_a_save_that_does_not_fit_makes_room_for_the_next(kit):
    """A place whose free space was filled in a moment by somebody else: the attempt after that one succeeds, and there
    was a checkpoint all the time."""
    store = Quota(8 * SIZE + PART)
    session = kit.Session(store, keep=KeepLast(3))
    train(kit, session, range(1, 4))
    store.put("thesis/blobs/1", BytesSource(bytes(store.free)))
    with pytest.raises(StoreFull):
        train(kit, session, [4])
    assert steps(store, kit) == [3]
    train(kit, session, [5])
    assert 5 in steps(store, kit)
    assert kit.newest(store)[0].manifest.progress.step == 5


def test_a_session_that_goes_on_in_a_full_place_makes_room_too(kit):
    """Its first save does not fit: what the sessions before it need no longer goes, and never the one it came from."""
    store = Quota(3 * SIZE + PART)
    train(kit, kit.Session(store, keep=KeepLast(None)), range(1, 4))
    session = kit.Session(store, "bbbbbbbb", keep=KeepLast(3), resume=kit.newest(store)[0])
    with pytest.raises(StoreFull):
        train(kit, session, [4])
    assert steps(store, kit) == [3]
    train(kit, session, [5])
    assert steps(store, kit) == [3, 5]


def test_going_back_in_a_full_place_deletes_nothing_of_what_came_after(kit):
    """A session that goes on from an early checkpoint finds no room: the later ones, which it went back from, are not
    its to delete."""
    store = Quota(3 * SIZE + PART)
    earlier = kit.Session(store)
    train(kit, earlier, range(1, 4))
    early = load_id(Repository(store, kit.run), "000000000001-aaaaaaaa")
    session = kit.Session(store, "bbbbbbbb", keep=KeepLast(1), resume=early)
    with pytest.raises(StoreFull):
        train(kit, session, [9])
    assert steps(store, kit) == [1, 2, 3]

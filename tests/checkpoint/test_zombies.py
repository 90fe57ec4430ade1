"""The old machine still runs after the user reconnected: it advances nothing, damages nothing, and is shown."""

from __future__ import annotations

import pytest

from colabkeep.checkpoint.inspect import checkpoints
from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.checkpoint.restore import newest_first
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.core.errors import RunTakenOver, StoreUnavailable
from colabkeep.core.events import Noted
from colabkeep.stores.base import StoreProperties
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.faults import FaultyStore

LONG = 30.0  # seconds


class Place:
    """One drive, seen by two machines: what one writes, the other sees in its listings only after `settle`."""

    def __init__(self):
        self.objects = MemoryStore()
        self.views = []

    def machine(self):
        view = View(self.objects)
        self.views.append(view)
        return view

    def settle(self):
        for view in self.views:
            view.seen = {entry.name for entry in self.objects.list("")}


class View(FaultyStore):
    """What one machine sees of the place: everything that it wrote itself, of the others' what has settled."""

    def __init__(self, objects):
        super().__init__(objects)
        self.objects = objects
        self.seen = {entry.name for entry in objects.list("")}

    @property
    def properties(self):
        return StoreProperties(top_level="local", persists=True, lists_lag=True)

    def put(self, name, source):
        receipt = super().put(name, source)
        self.seen.add(name)
        return receipt

    def list(self, prefix):
        return [entry for entry in super().list(prefix) if entry.name in self.seen]


def steps(found):
    return [info.step for info in found]


def test_what_a_zombie_wrote_before_it_knew_is_not_gone_on_from(kit):
    """On a drive whose listings lag, the old machine saves three more: the run's newest is the new session's."""
    place = Place()
    zombie = kit.Session(place.machine(), "ffffffff")
    zombie.save(1)
    place.settle()
    machine = place.machine()
    new = kit.Session(machine, "00000000", resume=kit.newest(machine)[0])
    for step in (2, 3, 4):
        zombie.save(step)
    new.save(2)
    place.settle()
    with pytest.raises(RunTakenOver):
        zombie.save(5)
    assert newest_first(Repository(place.objects, kit.run))[0] == "000000000002-00000000"
    loaded, passed = kit.newest(place.objects)
    assert (loaded.manifest.session, loaded.manifest.progress.step, passed) == ("00000000", 2, {})


def test_a_zombie_deletes_nothing_of_the_new_session(kit):
    """It prunes while it cannot see the new session yet: its own old checkpoints, and no blob that it does not know."""
    place = Place()
    zombie = kit.Session(place.machine(), "ffffffff", keep=KeepLast(1))
    zombie.save(1)
    place.settle()
    machine = place.machine()
    new = kit.Session(machine, "00000000", keep=KeepLast(1), resume=kit.newest(machine)[0])
    new.save(12)
    for view in place.views:
        view.seen |= {entry.name for entry in place.objects.list(f"{kit.run}/blobs")}  # blobs come into sight first
    zombie.save(2)
    zombie.save(3)
    loaded, passed = kit.newest(place.objects)
    assert (loaded.manifest.progress.step, passed) == (12, {})
    assert kit.same(loaded.parts, kit.state(12))


def test_damage_by_a_zombie_is_noticed_before_anything_else_goes(kit):
    """Both train the same bits, so they share blobs; the old machine deletes one. The new one sees it when it would
    prune, keeps what it has, and writes the blob anew with its next save."""
    store = MemoryStore()
    faulty = FaultyStore(store)
    session = kit.Session(faulty, keep=KeepLast(1))
    session.save(1)

    def steal(point):
        if point.startswith(f"after list {kit.run}/aside"):
            manifest = session.repository.manifest("000000000002-aaaaaaaa")
            store.delete(f"{kit.run}/blobs/{manifest.blobs[0].file}")
            faulty.at = lambda point: None

    def arm(point):
        if point.startswith(f"after put {kit.run}/checkpoints/000000000002"):
            faulty.at = steal

    faulty.at = arm
    session.save(2)
    assert "vanished" in [event.text for event in session.events if type(event) is Noted][-1]
    assert kit.newest(store)[0].manifest.progress.step == 1
    session.save(3)
    loaded, _ = kit.newest(store)
    assert (loaded.manifest.progress.step, kit.same(loaded.parts, kit.state(3))) == (3, True)


def test_a_zombie_s_work_is_kept_apart_and_shown(kit):
    """It lies where it was written, says so, and no session's retention deletes it."""
    place = Place()
    zombie = kit.Session(place.machine(), "ffffffff")
    zombie.save(1)
    place.settle()
    machine = place.machine()
    new = kit.Session(machine, "00000000", keep=KeepLast(1), resume=kit.newest(machine)[0])
    zombie.save(2)
    zombie.save(3)
    place.settle()
    for step in (2, 3, 4):
        new.save(step)
    found = checkpoints(Repository(place.objects, kit.run))
    assert [(info.step, info.state) for info in found] == [(4, "committed"), (3, "apart"), (2, "apart")]


def test_of_two_that_took_one_number_the_loser_is_behind_whatever_its_steps(kit):
    """Both believed for a moment that the run was theirs: the one that goes on is the newest, though the other saved
    at a higher step before it noticed."""
    place = Place()
    machines = place.machine(), place.machine()
    loser, winner = kit.Session(machines[0], "aaaaaaaa"), kit.Session(machines[1], "bbbbbbbb")
    assert loser.lease.fence == winner.lease.fence == 1
    loser.save(9)
    winner.save(5)
    place.settle()
    winner.save(6)
    with pytest.raises(RunTakenOver):
        loser.save(10)
    repository = Repository(place.objects, kit.run)
    assert [id[9:] for id in newest_first(repository)] == ["006-bbbbbbbb", "005-bbbbbbbb", "009-aaaaaaaa"]
    assert [m.progress.step for m in repository.manifests(repository.ids())] == [9, 5, 6]


def test_a_new_session_is_heard_of_behind_before_its_predecessor_s_left_overs_arrive(kit):
    """The lease is the first thing that reaches the drive, so that the zombie stops as soon as it looks."""
    front, drive = MemoryStore(), MemoryStore()
    left = TieredStore(front, FaultyStore(drive, at=refuse_blobs), pauses=(0.001, 0.001))
    old = kit.Session(left, "ffffffff")
    old.save(1)
    assert not left.flush(0.05)
    left.close()
    behind = FaultyStore(drive)
    store = TieredStore(front, behind, pauses=(0.001, 0.001))
    take_up(Repository(store, kit.run))
    kit.Session(store, "00000000", resume=kit.newest(store)[0])
    assert store.flush(LONG)
    puts = [point.split("/")[1] for point in behind.points if point.startswith("before put")]
    assert puts[0] == "lease"
    assert [put for put in puts if put in ("blobs", "checkpoints")] == ["blobs", "checkpoints"]
    store.close()


def refuse_blobs(point):
    if point.startswith("before put run/blobs"):
        raise StoreUnavailable(problem="The link is slow.", remedy="Wait.")


def test_who_takes_the_run_next_in_the_same_process_is_no_stranger(kit):
    """As `prune` after a training: what that had still to delete on the drive goes, and nothing is out of order."""
    away, drive = [True], MemoryStore()

    def answer(point):
        if away[0] and point.startswith("before delete"):
            raise StoreUnavailable(problem="The drive is away.", remedy="Wait.")

    store = TieredStore(MemoryStore(), FaultyStore(drive, at=answer), pauses=(0.001, 0.001))
    first = kit.Session(store, "ffffffff", keep=KeepLast(1))
    first.save(1)
    assert store.flush(LONG)
    first.save(2)
    while "delete" not in store._uploader.pending().values():
        store.flush(0.01)
        first.committer.after_commit()
    take_lease(Repository(store, kit.run), "00000000", {})
    assert steps(checkpoints(Repository(drive, kit.run))) == [2, 1]
    away[0] = False
    assert store.flush(LONG)
    assert steps(checkpoints(Repository(drive, kit.run))) == [2]
    assert store.degraded is None
    store.close()

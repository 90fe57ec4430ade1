"""What happens around a commit: durability is followed, old checkpoints go, and the last safe one never does."""

from __future__ import annotations

import threading
import time

import pytest

from colabkeep.checkpoint.journal import read_segment
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.retention import KeepBest, KeepLast
from colabkeep.core.errors import CheckpointDamaged, StoreFull, StoreUnavailable
from colabkeep.core.events import PRUNING, DurabilityReached, Noted, Pruned, SaveCommitted, StoreDegraded
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.faults import FaultyStore, on, raising

AWAY = StoreUnavailable(problem="The drive does not answer.", remedy="Wait.")
LONG = 30.0  # seconds


def of(kind, events):
    return [event for event in events if type(event) is kind]


def steps(store, kit):
    return sorted(int(id[:12]) for id in Repository(store, kit.run).ids())


class Remote(FaultyStore):
    """A slow place that can be away."""

    def __init__(self):
        super().__init__(MemoryStore(), at=self._answer)
        self.away = False

    def _answer(self, point):
        if self.away:
            raise AWAY


def tiered(remote):
    return TieredStore(MemoryStore(), remote, pauses=(0.001, 0.001))


def test_a_commit_is_told_with_what_it_cost(kit, disk):
    """The event says which checkpoint exists now, how large it is, what had to be written, and how safe it is."""
    session = kit.Session(disk.store)
    manifest = session.save(1, val_loss=0.5)
    (event,) = of(SaveCommitted, session.events)
    assert (event.checkpoint, event.reason, event.level) == (manifest.id, "steps", "local")
    assert event.bytes == event.written == manifest.total_bytes
    assert event.progress == manifest.progress


def test_each_checkpoint_knows_the_one_before(kit, disk):
    """Parents make a line, through sessions too."""
    first = kit.Session(disk.store)
    one, two = first.save(1), first.save(2)
    three = kit.Session(disk.store, "bbbbbbbb", resume=kit.newest(disk.store)[0]).save(3)
    assert [one.parent, two.parent, three.parent] == [None, one.id, two.id]
    assert three.continues(one)
    assert three.lineage == (("aaaaaaaa", 2),)


def test_retention_keeps_the_newest_and_the_best(kit, disk):
    """keep_last=1 and keep_best=1 leave two checkpoints, whatever the order in which they came."""
    session = kit.Session(disk.store, keep=KeepLast(1) + KeepBest(n=1, monitor="loss", mode="min"))
    for step, loss in ((1, 0.5), (2, 0.1), (3, 0.4), (4, 0.3)):
        session.save(step, loss=loss)
    assert steps(disk.store, kit) == [2, 4]
    assert [event.checkpoints for event in of(Pruned, session.events)] == [
        ("000000000001-aaaaaaaa",),
        ("000000000003-aaaaaaaa",),
    ]


def test_what_is_pruned_is_in_the_journal_before_it_is_gone(kit, disk):
    """A kill in the middle of pruning leaves a journal that tells what was meant to go."""
    store = FaultyStore(disk.store)
    session = kit.Session(store, keep=KeepLast(1))
    first = session.save(1)
    told = []

    def look(point):
        if point == f"before delete {disk.manifest(first.id)}":
            told.extend(r for name in disk.names("journal/") for r in read_segment(disk.files[name]))

    store.at = look
    session.save(2)
    assert [(record["event"], record["checkpoints"]) for record in told] == [(PRUNING, [first.id])]


def test_a_full_store_is_made_room_in(kit, disk):
    """When there is room for a checkpoint and not for a line of the journal, the old one goes all the same."""
    store = FaultyStore(disk.store)
    session = kit.Session(store, keep=KeepLast(1))
    session.save(1)

    def full(point):
        if point.startswith(f"before put {kit.run}/journal"):
            raise StoreFull(problem="No space is left.", remedy="Make room.")

    store.at = full
    session.save(2)
    assert steps(disk.store, kit) == [2]
    assert "No space is left" in of(Noted, session.events)[-1].text
    store.at = lambda point: None
    session.save(3)
    lines = [record for name in disk.names("journal/") for record in read_segment(disk.files[name])]
    pruned = [record["checkpoints"] for record in lines if record["event"] == "Pruning"]
    assert pruned == [["000000000001-aaaaaaaa"], ["000000000002-aaaaaaaa"]]


def test_a_store_out_of_order_is_looked_at_until_it_works_again(kit, disk):
    """That is told without waiting for the next save, also when all has arrived by then."""

    class Ailing(FaultyStore):
        degraded = "It does not answer."

    store = Ailing(disk.store)
    session = kit.Session(store)
    session.save(1)
    assert session.committer.after_commit()
    store.degraded = None
    assert not session.committer.after_commit()
    assert [(event.detail, event.healed) for event in of(StoreDegraded, session.events)] == [
        ("It does not answer.", False),
        ("works again", True),
    ]
    assert "you would lose" in of(StoreDegraded, session.events)[0].durability.sentence


def test_what_has_not_arrived_does_not_replace_what_has(kit):
    """While the drive is away, the last checkpoint that it holds stays, whatever comes after it on this machine."""
    remote = Remote()
    store = tiered(remote)
    session = kit.Session(store, keep=KeepLast(1))
    session.save(1)
    assert store.flush(LONG)
    session.committer.after_commit()
    remote.away = True
    for step in (2, 3, 4):
        session.save(step)
    found = steps(store, kit)
    assert {1, 4} <= set(found)
    assert len(found) <= 3, "beside them at most the one that was to be sent next"
    remote.away = False
    assert kit.same(kit.newest(remote)[0].parts, kit.state(1)), "a machine lost now loses three steps, not all"
    assert store.flush(LONG)
    while session.committer.after_commit():
        assert store.flush(LONG)
    assert steps(store, kit) == [4]
    assert kit.same(kit.newest(remote)[0].parts, kit.state(4))
    assert [(e.checkpoint[:12], e.level) for e in of(DurabilityReached, session.events)][-1] == ("000000000004", "sent")
    store.close()


def test_a_question_that_fails_is_asked_again(kit):
    """When the store cannot say how durable a checkpoint is, it counts as not arrived until it can."""
    remote = Remote()
    inner = tiered(remote)
    store = FaultyStore(inner)
    session = kit.Session(store, keep=KeepLast(1))
    session.save(1)
    assert inner.flush(LONG)
    session.committer.after_commit()
    remote.away = True
    session.save(2)

    def cannot_say(point):
        if point.startswith("before confirm"):
            raise AWAY

    store.at = cannot_say
    session.save(3)
    store.at = lambda point: None
    session.save(4)
    assert 1 in steps(inner, kit)
    inner.close()


def test_waiting_for_the_store_asks_it_for_no_listing(kit):
    """While a checkpoint is on its way, the run is not listed every second: a drive counts its requests."""
    remote = Remote()
    inner = tiered(remote)
    store = FaultyStore(inner)
    session = kit.Session(store)
    session.save(1)
    remote.away = True
    session.save(2)
    store.points.clear()
    assert session.committer.after_commit() is True
    assert [point for point in store.points if point.startswith(("before list", "before get"))] == []
    inner.close()


def test_the_last_good_checkpoint_survives_a_broken_newer_one(kit, disk):
    """A save that lost its blob in the last moment does not count when the old ones are pruned."""
    store = FaultyStore(disk.store)
    session = kit.Session(store, keep=KeepLast(1))
    store.at = on("before list run/aside", raising(AWAY))  # so that there is something to tidy up still
    good = session.save(1)

    def steal(point):
        if point == f"before delete {disk.manifest('000000000002-aaaaaaaa')}":
            raise AWAY
        if point == f"before put {disk.manifest('000000000002-aaaaaaaa')}":
            for name in set(disk.names("blobs/")) - {disk.only_blob(good)}:
                del disk.files[name]

    store.at = steal
    with pytest.raises((CheckpointDamaged, StoreUnavailable)):
        session.save(2)
    store.at = lambda point: None
    session.committer.after_commit()
    assert kit.newest(disk.store)[0].manifest == good


def test_a_failure_while_tidying_up_does_not_undo_the_checkpoint(kit, disk):
    """Pruning that fails is told of and waits; the checkpoint stands and the next save prunes."""
    store = FaultyStore(disk.store)
    session = kit.Session(store, keep=KeepLast(1))
    session.save(1)

    def away(point):
        if point.startswith("before delete"):
            raise AWAY

    store.at = away
    session.save(2)
    assert of(Noted, session.events)[-1].text.startswith("Old checkpoints could not be deleted")
    assert steps(disk.store, kit) == [1, 2]
    store.at = lambda point: None
    session.save(3)
    assert steps(disk.store, kit) == [3]
    assert len(disk.names("blobs/")) == 1


def test_an_unfinished_snapshot_commits_nothing(kit, disk):
    """A state that cannot be stored leaves the run as it was."""
    session = kit.Session(disk.store)
    session.save(1)
    before = dict(disk.files)
    with pytest.raises(TypeError):
        session.save(2, {"model": {"weight": object()}})
    assert disk.files == before


def test_saves_that_come_faster_than_the_link_still_arrive(kit):
    """With keep_last=1 and a link that takes longer than a save: the checkpoint on its way is not deleted under it, so
    whole ones come over, one after the other, each the newest of its time."""
    allowed = threading.Semaphore(0)  # each release lets one blob through

    def slow(point):
        if point.startswith(f"before put {kit.run}/blobs"):
            assert allowed.acquire(timeout=LONG)

    remote = FaultyStore(MemoryStore(), at=slow)
    store = tiered(remote)
    session = kit.Session(store, keep=KeepLast(1))
    arrived = []
    end = time.monotonic() + LONG
    for step in range(1, 13):
        session.save(step)
        while store.properties.behind.sending is None:
            assert time.monotonic() < end, "nothing is sent"
            time.sleep(0.002)
        if step % 4 == 0:
            whole = store.properties.behind.sending
            allowed.release()
            while store.properties.behind.sending in {None, whole}:  # till the next one is chosen, before a newer comes
                assert time.monotonic() < end, "nothing arrives"
                time.sleep(0.002)
            arrived += sorted(Repository(remote, kit.run).ids() - set(arrived))
    assert [int(id[:12]) for id in arrived] == [1, 4, 8]
    for _ in range(20):
        allowed.release()
    assert store.flush(LONG)
    assert kit.newest(remote)[0].manifest.progress.step == 12
    store.close()


def test_before_its_first_save_a_session_deletes_nothing(kit, disk):
    """Retention was changed to keep fewer: what was there stays until there is something newer."""
    earlier = kit.Session(disk.store)
    for step in (1, 2, 3):
        earlier.save(step)
    session = kit.Session(disk.store, "bbbbbbbb", keep=KeepLast(1), resume=kit.newest(disk.store)[0])
    session.committer.ledger.add(session.repository.manifest("000000000003-aaaaaaaa"), {})
    session.committer._untidy = True
    session.committer.after_commit()
    assert steps(disk.store, kit) == [1, 2, 3]
    session.save(4)
    assert steps(disk.store, kit) == [4]

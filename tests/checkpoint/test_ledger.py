"""Each checkpoint on its level, and what would be lost: by all of its objects, and never surer than the store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colabkeep.checkpoint.durability import Ledger
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.events import DurabilityReached, DurabilityTold, UploadMeasured
from colabkeep.core.manifest import Progress
from colabkeep.stores.base import StoreProperties
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyStore

LONG = 30.0  # seconds
AWAY = StoreUnavailable(problem="The drive does not answer.", remedy="Wait.")


class Drive(MemoryStore):
    """Takes everything, and states the digest of an object once `state` has said so."""

    url = "drive"

    def __init__(self):
        super().__init__()
        self.stated = set()
        self.asked = []
        self.away = False

    @property
    def properties(self):
        return StoreProperties(top_level="confirmed", persists=True)

    def put(self, name, source):
        if self.away:
            raise AWAY
        return replace(super().put(name, source), level="sent", id=f"id of {name}")

    def confirm(self, receipt):
        self.asked.append(receipt)
        return replace(receipt, level="confirmed") if receipt.name in self.stated else receipt

    def state(self, *folders):
        """What lies in these folders is uploaded."""
        self.stated |= {entry.name for entry in self.list("") if entry.name.split("/")[1] in folders}


@pytest.fixture
def drive():
    return Drive()


@pytest.fixture
def tiered(drive):
    store = TieredStore(MemoryStore(), drive, pauses=(0.001, 0.001))
    yield store
    store.close()


def told(session):
    return [event.durability for event in session.events if type(event) is DurabilityTold]


def standings(session):
    return {each.step: each.level for each in session.committer.ledger.durability().standings}


def test_a_checkpoint_climbs_with_the_slowest_of_its_objects(kit, drive, tiered):
    """The manifest is small and confirmed long before the blobs: the checkpoint is not, and nothing says it is."""
    session = kit.Session(tiered)
    session.save(1)
    assert tiered.flush(LONG)
    session.committer.after_commit()
    assert standings(session) == {1: "sent"}
    drive.state("checkpoints")
    session.committer.after_commit()
    assert standings(session) == {1: "sent"}
    assert session.committer.ledger.durability().checkpoint is None
    drive.state("blobs")
    assert session.committer.after_commit() is False
    assert standings(session) == {1: "confirmed"}
    assert [event.level for event in session.events if type(event) is DurabilityReached] == ["sent", "confirmed"]


def test_what_would_be_lost_grows_with_time_and_shrinks_when_something_is_safe(kit, drive, tiered):
    """Training time, not the clock on the wall: a second each second, back to the step of what is confirmed."""
    session = kit.Session(tiered)
    ledger = session.committer.ledger
    session.clock.advance(100)
    assert (ledger.durability().lost_seconds, ledger.durability().step) == (100, 0)
    session.save(60)  # its state is of the 60th second
    assert ledger.durability().lost_seconds == 100
    assert tiered.flush(LONG)
    drive.state("checkpoints", "blobs")
    session.committer.after_commit()
    assert (ledger.durability().lost_seconds, ledger.durability().step) == (40, 60)
    session.clock.advance(30)
    assert ledger.durability().lost_seconds == 70
    session.clock.set_time(0)
    assert ledger.durability().lost_seconds == 70


def test_what_is_in_memory_is_on_the_lowest_level(kit, disk):
    """From the copy until the commit: captured, which is safe from nothing."""
    ledger = Ledger(disk.store, kit.run, FakeClock())
    ledger.captured(Progress(step=7, seconds=3.0))
    found = ledger.durability(10.0)
    assert [(each.checkpoint, each.step, each.level) for each in found.standings] == [(None, 7, "captured")]
    assert (found.step, found.lost_seconds) == (0, 10.0)
    ledger.released()
    assert ledger.durability(10.0).standings == ()


def test_a_blob_that_was_there_before_has_to_be_confirmed_too(kit, drive, tiered):
    """A frozen backbone that an earlier session sent, and that never arrived, keeps every later checkpoint below."""
    kit.Session(tiered).save(1, kit.state(1, frozen=True))
    assert tiered.flush(LONG)
    drive.state("checkpoints")
    session = kit.Session(tiered, "bbbbbbbb", resume=kit.newest(tiered)[0])
    before = {entry.name for entry in tiered.list(kit.run)}
    session.save(2, kit.state(2, frozen=True))
    assert tiered.flush(LONG)
    new = {entry.name for entry in tiered.list(f"{kit.run}/blobs")} - before
    assert len(new) == 1, "the backbone was there"
    drive.state("checkpoints")
    drive.stated |= new
    session.committer.after_commit()
    assert standings(session)[2] == "sent"
    drive.state("blobs")
    session.committer.after_commit()
    assert standings(session)[2] == "confirmed"


def test_the_store_is_asked_with_the_digest_that_was_written(kit, drive):
    """A remote can only compare if it is told with what; of what it was given itself, with its own handle."""
    first = kit.Session(drive)
    manifest = first.save(1)
    assert {receipt.id for receipt in drive.asked} == {f"id of {receipt.name}" for receipt in drive.asked}
    drive.asked.clear()
    session = kit.Session(drive, "bbbbbbbb", resume=kit.newest(drive)[0])
    session.committer.ledger.add(manifest, {})
    session.committer.after_commit()
    with drive.get(f"{kit.run}/checkpoints/{manifest.id}.json") as reader:
        size = len(reader.read())
    asked = {receipt.name.split("/")[1]: receipt for receipt in drive.asked}
    assert asked["checkpoints"].size == size
    assert asked["blobs"].sha256 == manifest.blobs[0].sha256


def test_what_is_at_the_top_is_not_asked_about_again(kit, drive):
    """A drive counts its requests: a backbone that was confirmed once is not asked about with each checkpoint."""
    session = kit.Session(drive)
    session.save(1, kit.state(1, frozen=True))
    drive.state("blobs", "checkpoints")
    session.committer.after_commit()
    drive.asked.clear()
    session.save(2, kit.state(2, frozen=True))
    shared = {blob.file for blob in session.repository.manifest("000000000001-aaaaaaaa").blobs}
    assert drive.asked
    assert not any(receipt.name.rpartition("/")[2] in shared for receipt in drive.asked)


def test_a_store_that_cannot_say_leaves_everything_where_it_was(kit, drive, tiered):
    """Silence is no confirmation, and what was stated before stays stated."""
    session = kit.Session(tiered)
    session.save(1)
    assert tiered.flush(LONG)
    drive.state("blobs", "checkpoints")
    session.committer.after_commit()
    session.save(2)
    assert tiered.flush(LONG)
    drive.state("blobs", "checkpoints")

    def silent(receipt):
        raise AWAY

    drive.confirm = silent
    session.committer.after_commit()
    assert standings(session) == {1: "confirmed", 2: "sent"}
    assert session.committer.ledger.durability().step == 1


def test_it_is_told_rarely_and_when_it_matters(kit, drive, tiered):
    """When something else has become safe, and each minute while something is on its way; not with every question."""
    session = kit.Session(tiered)
    session.save(1)
    for _ in range(5):
        session.committer.after_commit()
    assert [durability.step for durability in told(session)] == [0]
    session.clock.advance(61)
    session.committer.after_commit()
    assert [durability.lost_seconds for durability in told(session)] == [0, 61]
    session.clock.advance(11)
    assert tiered.flush(LONG)
    drive.state("blobs", "checkpoints")
    session.committer.after_commit()
    assert [durability.step for durability in told(session)] == [0, 0, 1]
    session.clock.advance(1000)
    session.committer.after_commit()
    assert len(told(session)) == 3, "nothing is on its way"


def test_the_speed_of_the_link_is_told(kit, drive, tiered):
    """In bytes per second, with what still waits, beside the figure."""
    session = kit.Session(tiered)
    session.save(1)
    assert tiered.flush(LONG)
    drive.state("blobs", "checkpoints")
    session.clock.advance(100)
    session.committer.after_commit()
    event = [event for event in session.events if type(event) is UploadMeasured][-1]
    assert event.url == "drive"
    assert event.bytes_per_second > 0
    assert event.waiting_bytes == 0


def test_the_last_telling_is_at_the_very_end(kit, tmp_path):
    """A session that ends within seconds of its last save still says how it stands."""
    session = kit.Session(DirectoryStore(tmp_path))
    session.save(1)
    session.save(2)
    assert [durability.step for durability in told(session)] == [1]
    session.committer.finish()
    assert [durability.step for durability in told(session)] == [1, 2]


def test_waiting_writes_no_journal(kit, drive, tiered):
    """A drive that is away for an hour does not get a file for each minute of it."""
    session = kit.Session(tiered)
    session.save(1)
    assert tiered.flush(LONG)  # sent, and the drive says no more of it: from here on nothing comes of asking
    for minute in range(5):
        session.journal.add({"event": "something", "minute": minute})
        session.clock.advance(61)
        session.committer.after_commit()
    before = session.repository.files("journal")
    session.clock.advance(61)
    session.journal.add({"event": "something"})
    session.committer.after_commit()
    assert session.repository.files("journal") == before
    session.committer.finish()
    assert session.repository.files("journal") != before


def test_what_retention_let_go_is_forgotten(kit, disk):
    """The list holds what there is."""
    session = kit.Session(disk.store, keep=KeepLast(2))
    for step in range(1, 6):
        session.save(step)
    assert standings(session) == {5: "local", 4: "local"}


def test_an_earlier_session_s_checkpoint_that_is_safe_is_found(kit, drive):
    """On a kernel that starts again while the newest is on this machine only, the older one in the drive counts."""
    front = MemoryStore()
    store = TieredStore(front, FaultyStore(drive), pauses=(0.001, 0.001))
    first = kit.Session(store, keep=KeepLast(3))
    first.save(1)
    assert store.flush(LONG)
    drive.state("blobs", "checkpoints")
    store.close()

    def refuse(point):
        if point.startswith("before put run/"):
            raise AWAY

    store = TieredStore(front, FaultyStore(drive, at=refuse), pauses=(0.001, 0.001))
    second = kit.Session(store, "bbbbbbbb", keep=KeepLast(3), resume=kit.newest(store)[0])
    second.save(2)
    assert standings(second) == {2: "local", 1: "confirmed"}
    assert second.committer.ledger.durability().step == 1
    assert Repository(drive, kit.run).ids() == {"000000000001-aaaaaaaa"}
    store.close()


def test_where_nothing_is_ever_stated_the_newest_that_left_the_machine_is_spared(kit, drive, tiered):
    """The drive takes bytes and says no more of them: what it was given last is all that a lost machine would leave."""
    session = kit.Session(tiered)
    saved = [session.save(1), session.save(2)]
    assert tiered.flush(LONG)
    drive.away = True
    saved.append(session.save(3))
    ledger = session.committer.ledger
    ledger.ask()
    assert standings(session) == {1: "sent", 2: "sent", 3: "local"}
    assert ledger.newest_arrived(saved) == saved[1].id
    assert ledger.newest_arrived(saved[2:]) is None, "that one did not leave"

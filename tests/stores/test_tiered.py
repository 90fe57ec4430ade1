"""Two stores as one: the fast one is enough to go on, the lasting one catches up, and nothing is silently lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreBusy, StoreError, StoreUnavailable
from colabkeep.stores.base import BytesSource, Receipt, StoreProperties
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyStore, on, raising
from tests.fakes.model import names, read

PATIENCE = 30.0  # seconds until a hanging test gives up
AWAY = StoreUnavailable(problem="The drive is away.", remedy="Mount it again.")
QUICK = (0.001, 0.002)
NEVER = (3600.0, 3600.0)


class Remote(MemoryStore):
    """A store that is sent to first and confirms later: `confirmed` holds the names it has stated the digest of."""

    def __init__(self):
        super().__init__()
        self.confirmed = set()

    @property
    def url(self):
        return "remote"

    @property
    def properties(self):
        return StoreProperties(top_level="confirmed", persists=True, max_object_bytes=100, lists_lag=True)

    def put(self, name, source):
        return replace(super().put(name, source), level="sent", id=f"id of {name}")

    def confirm(self, receipt):
        return replace(receipt, level="confirmed") if receipt.name in self.confirmed else receipt

    def flush(self, timeout):
        self.confirmed |= {entry.name for entry in self.list("")}
        return True


class Door:
    """For `FaultyStore`: the chosen points wait until the door is opened. `reached` tells that one waits."""

    def __init__(self, start):
        self.start = start
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, point):
        if point.startswith(self.start):
            self.reached.set()
            assert self.opened.wait(PATIENCE)


class Mood:
    """For `FaultyStore`: while `error` is set, every point raises it. `fails` makes the next so many fail."""

    def __init__(self, error=None, *, start="before"):
        self.error = error
        self.start = start
        self.happened = threading.Event()

    def __call__(self, point):
        if self.error is not None and point.startswith(self.start):
            self.happened.set()
            raise self.error


def put(store, name, data=b"data"):
    return store.put(name, BytesSource(data))


def send_on(store):
    """What whoever opens a run does with what an earlier session left on this machine only."""
    store.sweep("run")
    for entry in sorted(store.unsent("run"), key=lambda entry: entry.name):
        store.send(entry, None)


@pytest.fixture
def tiered():
    """Makes tiered stores, and closes them at the end."""
    made = []

    def make(front=None, behind=None, **options):
        store = TieredStore(front or MemoryStore(), behind or MemoryStore(), **{"pauses": QUICK, **options})
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


def test_a_put_waits_for_the_fast_store_only(tiered):
    """While the copy hangs, puts return, and their objects are read, listed and confirmed as on this machine."""
    door = Door("before put")
    store = tiered(behind=FaultyStore(MemoryStore(), at=door))
    receipts = [put(store, "run/blobs/a"), put(store, "run/checkpoints/a")]
    assert door.reached.wait(PATIENCE)
    assert [receipt.level for receipt in receipts] == ["local", "local"]
    assert [store.confirm(receipt).level for receipt in receipts] == ["local", "local"]
    assert read(store, "run/blobs/a") == b"data"
    assert names(store) == ["run/blobs/a", "run/checkpoints/a"]
    assert not store.flush(0.0)
    door.opened.set()
    assert store.flush(PATIENCE)
    assert [store.confirm(receipt).level for receipt in receipts] == ["sent", "sent"]


def test_objects_arrive_in_the_order_of_the_puts(tiered):
    """The manifest, put last, arrives last, so that what is behind is a checkpoint at every moment."""
    behind = FaultyStore(MemoryStore())
    store = tiered(behind=behind)
    order = ["run/blobs/z", "run/blobs/a", "run/checkpoints/1", "run/blobs/b", "run/checkpoints/2"]
    for name in order:
        put(store, name)
    assert store.flush(PATIENCE)
    assert [point for point in behind.points if " put " in point] == [
        f"{word} put {name}" for name in order for word in ("before", "after")
    ]


def test_the_level_is_the_one_of_the_store_behind(tiered):
    """local until it is copied, then what the store behind says: sent, and confirmed once it states the digest."""
    behind = Remote()
    store = tiered(behind=behind)
    receipt = put(store, "run/a")
    assert store.flush(PATIENCE)
    behind.confirmed.clear()
    assert store.confirm(receipt) == replace(receipt, level="sent")
    behind.confirmed.add("run/a")
    assert store.confirm(receipt) == replace(receipt, level="confirmed")
    assert store.confirm(receipt).level == store.properties.top_level


def test_a_folder_behind_counts_as_sent(tiered, tmp_path):
    """A plain folder behind cannot confirm anything; being there is its top level, and it is not called local."""
    store = tiered(behind=DirectoryStore(tmp_path))
    receipt = put(store, "run/a")
    assert (receipt.level, store.properties.top_level) == ("local", "sent")
    assert store.flush(PATIENCE)
    assert store.confirm(receipt).level == "sent"


def test_properties_tell_of_the_pair(tiered, tmp_path):
    """It persists as the store behind does, locks and has room as the one in front, and takes what both take."""
    properties = tiered(DirectoryStore(tmp_path), Remote()).properties
    assert (properties.top_level, properties.persists, properties.locks) == ("confirmed", True, True)
    assert (properties.max_object_bytes, properties.lists_lag) == (100, True)
    assert properties.free_bytes is not None


@pytest.mark.parametrize("error", [AWAY, StoreError(problem="Not allowed.", remedy="Ask."), RuntimeError("a bug")])
def test_a_store_behind_that_fails_is_tried_until_it_works(tiered, error):
    """Training is not held up; the state is seen and told, ends with the failure, and no object is left out."""
    mood = Mood(error, start="before put")
    store = tiered(behind=FaultyStore(MemoryStore(), at=mood))
    receipt = put(store, "run/a")
    assert mood.happened.wait(PATIENCE)
    put(store, "run/b")
    assert not store.flush(0.05)
    assert store.confirm(receipt).level == "local"
    assert "only on this machine" in store.degraded
    assert getattr(error, "problem", str(error)) in store.degraded
    mood.error = None
    assert store.flush(PATIENCE)
    assert names(store.behind) == ["run/a", "run/b"]
    assert store.degraded is None


def test_a_flush_does_not_wait_out_the_pause_between_attempts(tiered):
    """At the end of a session, what waits to be tried again in an hour is tried now."""
    mood = Mood(AWAY, start="before put")
    store = tiered(behind=FaultyStore(MemoryStore(), at=mood), pauses=NEVER)
    put(store, "run/a")
    while store.degraded is None:
        mood.happened.wait(PATIENCE)
    mood.error = None
    assert store.flush(PATIENCE)
    assert names(store.behind) == ["run/a"]


def test_trying_again_draws_no_random_numbers(tiered):
    """The waits carry no jitter: the generator of the training's own process stays where it was."""
    before = random.getstate()
    attempts = []

    def fail_ten_times(point):
        if point == "before put run/a" and len(attempts) < 10:
            attempts.append(point)
            raise AWAY

    store = tiered(behind=FaultyStore(MemoryStore(), at=fail_ten_times))
    put(store, "run/a")
    while len(attempts) < 10:
        store.flush(0.01)
    assert store.flush(PATIENCE)
    assert random.getstate() == before


def test_an_answer_that_got_lost_does_no_harm(tiered):
    """A store that did the work and then failed is asked again, has the same bytes already, and all is well."""
    lost = []

    def lose_the_first(point):
        if point == "after put run/a" and not lost:
            lost.append(point)
            raise AWAY

    store = tiered(behind=FaultyStore(MemoryStore(), at=lose_the_first))
    receipt = put(store, "run/a")
    assert store.flush(PATIENCE)
    assert lost
    assert store.confirm(receipt).level == "sent"
    assert store.degraded is None


def test_other_bytes_behind_under_the_same_name_are_told_and_left_alone(tiered):
    """Neither is overwritten; the object stays local, the rest goes on."""
    behind = MemoryStore()
    put(behind, "run/a", b"other")
    store = tiered(behind=behind)
    receipt = put(store, "run/a")
    put(store, "run/b")
    assert not store.flush(PATIENCE)
    assert "run/a is there already, with other bytes" in store.degraded
    assert store.confirm(receipt).level == "local"
    assert (read(behind, "run/a"), read(behind, "run/b"), read(store, "run/a")) == (b"other", b"data", b"data")


def test_an_earlier_session_s_object_of_another_size_behind_is_not_taken_for_it(tiered):
    """A torn upload of an earlier life is not called safe: the object stays local, and it is told."""
    front, behind = MemoryStore(), MemoryStore()
    put(behind, "run/a", b"half")
    receipt = put(front, "run/a", b"half and half")
    store = tiered(front, behind)
    send_on(store)
    assert store.confirm(receipt).level == "local"
    assert not store.flush(PATIENCE)
    assert store.confirm(receipt).level == "local"
    assert "run/a is there already" in store.degraded


def test_old_bytes_that_wait_to_be_deleted_behind_are_not_taken_for_the_new_ones(tiered):
    """A name that was deleted and put again is local until the new bytes are there, whatever a listing still shows."""
    door, behind = Door("before delete"), MemoryStore()
    store = tiered(behind=FaultyStore(behind, at=door))
    put(store, "run/a", b"old")
    assert store.flush(PATIENCE)
    store.delete("run/a")
    assert door.reached.wait(PATIENCE)
    receipt = put(store, "run/a", b"new")
    assert names(store) == names(behind) == ["run/a"]
    assert store.confirm(receipt).level == "local"
    door.opened.set()
    assert store.flush(PATIENCE)
    assert store.confirm(receipt).level == "sent"
    assert read(behind, "run/a") == b"new"


def test_damage_on_this_machine_is_not_passed_on(tiered, tmp_path):
    """An object whose bytes changed on the local disk before it was copied does not get behind, not even in part."""
    door = Door("before put run/a")
    store = tiered(DirectoryStore(tmp_path), FaultyStore(MemoryStore(), at=door))
    put(store, "run/a")
    put(store, "run/b", b"damaged soon")
    assert door.reached.wait(PATIENCE)
    (tmp_path / "run/b").write_bytes(b"damaged now!")
    door.opened.set()
    assert not store.flush(PATIENCE)
    assert "run/b was damaged" in store.degraded
    assert names(store.behind) == ["run/a"]
    store.delete("run/b")
    assert store.flush(PATIENCE)
    assert store.degraded is None


def test_an_object_that_vanished_before_it_was_copied_is_told(tiered, tmp_path):
    """Somebody empties the local folder while copies wait: what is lost is named, the rest is copied."""
    door = Door("before put run/a")
    store = tiered(DirectoryStore(tmp_path), FaultyStore(MemoryStore(), at=door))
    for name in ("run/a", "run/b", "run/c"):
        put(store, name)
    assert door.reached.wait(PATIENCE)
    (tmp_path / "run/b").unlink()
    door.opened.set()
    assert not store.flush(PATIENCE)
    assert "run/b vanished before it was copied" in store.degraded
    assert names(store.behind) == ["run/a", "run/c"]


def test_a_deleted_object_is_not_copied_any_more(tiered):
    """A copy that waits, or is under way, is given up when its object is deleted."""
    door = Door("before put run/a")
    behind = FaultyStore(MemoryStore(), at=door)
    store = tiered(behind=behind)
    for name in ("run/a", "run/b", "run/c"):
        put(store, name)
    assert door.reached.wait(PATIENCE)
    store.delete("run/a")
    store.delete("run/b")
    door.opened.set()
    assert store.flush(PATIENCE)
    assert names(store) == names(behind) == ["run/c"]
    assert "before put run/b" not in behind.points


def test_a_delete_while_the_store_behind_is_away_is_made_up_for(tiered):
    """The object is gone for everybody at once; behind it goes when the store is back. Its name can be used again."""
    mood = Mood()
    behind = MemoryStore()
    store = tiered(behind=FaultyStore(behind, at=mood))
    for name in ("run/a", "run/b"):
        put(store, name)
    assert store.flush(PATIENCE)
    assert names(store) == ["run/a", "run/b"]
    mood.error = AWAY
    store.delete("run/a")
    store.delete("run/b")
    receipt = put(store, "run/b", b"new")
    with pytest.raises(ObjectNotFound):
        store.get("run/a")
    assert names(store) == ["run/b"]
    assert store.confirm(receipt).level == "local"
    assert names(behind) == ["run/a", "run/b"]
    mood.error = None
    assert store.flush(PATIENCE)
    assert names(behind) == ["run/b"]
    assert read(behind, "run/b") == b"new"


def test_a_new_machine_finds_what_is_behind(tiered):
    """With an empty disk in front, objects are listed and read from behind, and their names are taken."""
    behind = MemoryStore()
    put(behind, "run/run.json", b"old")
    store = tiered(behind=behind)
    assert store.sweep("run") == 0
    assert names(store) == ["run/run.json"]
    assert read(store, "run/run.json") == b"old"
    with pytest.raises(NameTaken):
        put(store, "run/run.json", b"new")
    assert names(store.front) == []
    store.delete("run/run.json")
    put(store, "run/run.json", b"new")
    assert store.flush(PATIENCE)
    assert read(behind, "run/run.json") == b"new"


def test_a_store_behind_that_cannot_be_asked_is_not_taken_for_empty(tiered):
    """If it was never listed, it may hold all checkpoints: an error, so that no training starts from zero."""
    store = tiered(behind=FaultyStore(MemoryStore(), at=Mood(AWAY)))
    for call in (lambda: store.list("run"), lambda: store.sweep("run"), lambda: store.get("run/a")):
        with pytest.raises(StoreUnavailable):
            call()


def test_a_store_behind_that_goes_away_later_is_remembered(tiered):
    """In the middle of a training its listing is known, also below the prefix; saves go on, and it is told."""
    mood, behind, clock = Mood(), MemoryStore(), FakeClock()
    put(behind, "run/blobs/a")
    put(behind, "other/a")
    store = tiered(behind=FaultyStore(behind, at=mood), monotonic=clock.monotonic)
    store.sweep("run")
    mood.error = AWAY
    clock.advance(60)
    assert [entry.name for entry in store.list("run/blobs")] == ["run/blobs/a"]
    assert AWAY.problem in store.degraded
    with pytest.raises(StoreUnavailable):
        store.list("other")
    mood.error = None
    assert [entry.name for entry in store.list("other")] == ["other/a"]
    assert store.degraded is None


def test_who_asks_for_what_is_only_behind_lets_that_be_looked_at_again(tiered):
    """A listing failed while it was away, and nothing is sent or listed any more: it is back for all that."""
    mood, behind = Mood(), MemoryStore()
    put(behind, "other/a")
    store = tiered(behind=FaultyStore(behind, at=mood))
    put(store, "run/blobs/a")
    assert store.flush(PATIENCE)
    mood.error = AWAY
    with pytest.raises(StoreUnavailable):
        store.list("other")
    mood.error = None
    with pytest.raises(StoreUnavailable, match="only in"):
        store.get("other/a")  # at once, for a save may wait for it
    end = time.monotonic() + PATIENCE
    while store.degraded is not None:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert read(store, "other/a") == b"data"


def test_opening_lists_nothing_and_starts_no_thread(tiered):
    """A store over a folder of a million files is opened as fast as an empty one."""
    front, behind = FaultyStore(MemoryStore()), FaultyStore(MemoryStore())
    before = threading.active_count()
    tiered(front, behind)
    assert (front.points, behind.points) == ([], [])
    assert threading.active_count() == before


def test_what_a_killed_session_left_in_front_is_known(tiered):
    """What is behind already, or on its way there, or in another run, is no part of it."""
    front, behind = MemoryStore(), MemoryStore()
    for name in ("run/checkpoints/1", "run/blobs/a", "run/blobs/both", "other/blobs/a"):
        put(front, name)
    put(behind, "run/blobs/both")
    store = tiered(front, behind)
    assert {entry.name for entry in store.unsent("run")} == {"run/blobs/a", "run/checkpoints/1"}
    send_on(store)
    assert store.unsent("run") == []
    assert store.flush(PATIENCE)
    known = [Receipt(name=entry.name, size=entry.size, sha256="", level="local") for entry in store.list("run")]
    assert {store.confirm(receipt).level for receipt in known} == {"sent"}


_KILLED = """
import sys
from colabkeep.stores.base import BytesSource
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.faults import FaultyFiles

files = FaultyFiles(at=int(sys.argv[2]), when="after").files
store = TieredStore(DirectoryStore(sys.argv[1] + "/front"), DirectoryStore(sys.argv[1] + "/behind", files=files))
for name in ("run/blobs/a", "run/blobs/b", "run/checkpoints/1"):
    store.put(name, BytesSource(name.encode() * 100))
store.flush(600)
"""


@pytest.mark.parametrize("at", range(0, 48, 3))
def test_a_process_killed_in_the_middle_of_a_copy_leaves_order_behind(tiered, tmp_path, at):
    """SIGKILL at some system call of the copying: no manifest without its blobs, and the next session completes it."""
    assert subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), str(at)], check=False).returncode == -9
    there = names(DirectoryStore(tmp_path / "behind"))
    put_in_front = names(DirectoryStore(tmp_path / "front"))
    assert there == ["run/blobs/a", "run/blobs/b", "run/checkpoints/1"][: len(there)]
    store = tiered(DirectoryStore(tmp_path / "front"), DirectoryStore(tmp_path / "behind"))
    send_on(store)
    assert store.flush(PATIENCE)
    assert names(store.behind) == put_in_front
    assert all(read(store.behind, name) == name.encode() * 100 for name in put_in_front)
    assert [path.name for path in tmp_path.rglob(".*")] == []


def test_closing_stops_in_the_middle_of_a_copy(tiered):
    """Nothing half is behind, the thread is gone, and puts after it are kept in front for the next session."""
    door = Door("before get run/a")
    front, behind = FaultyStore(MemoryStore(), at=door), MemoryStore()
    store = tiered(front, behind)
    put(store, "run/a")
    assert door.reached.wait(PATIENCE)
    closing = threading.Thread(target=store.close)
    closing.start()
    while not store._uploader._closed:
        closing.join(0.001)
    door.opened.set()
    closing.join(PATIENCE)
    assert [thread for thread in threading.enumerate() if thread.name == "colabkeep-uploader"] == []
    put(store, "run/b")
    assert names(behind) == []
    later = tiered(front, behind)
    send_on(later)
    assert later.flush(PATIENCE)
    assert names(behind) == ["run/a", "run/b"]


def test_closing_while_the_store_behind_is_away_does_not_wait(tiered):
    """A session can end while the copy waits for its next attempt in an hour."""
    mood = Mood(AWAY, start="before put")
    store = tiered(behind=FaultyStore(MemoryStore(), at=mood), pauses=NEVER)
    put(store, "run/a")
    assert mood.happened.wait(PATIENCE)
    store.close()
    assert [thread for thread in threading.enumerate() if thread.name == "colabkeep-uploader"] == []


def test_asking_how_durable_something_is_does_not_wait_for_a_copy(tiered):
    """While a large object is on its way, the earlier ones' last known level is the answer."""
    door, behind = Door("before put run/b"), Remote()
    store = tiered(behind=FaultyStore(behind, at=door))
    receipt = put(store, "run/a")
    put(store, "run/b")
    assert door.reached.wait(PATIENCE)
    behind.confirmed.add("run/a")
    assert store.confirm(receipt).level == "sent"
    door.opened.set()
    assert store.flush(PATIENCE)
    end = time.monotonic() + PATIENCE
    while store.confirm(receipt).level != "confirmed":  # on a busy machine the answer comes later than in a moment
        assert time.monotonic() < end


def test_a_confirmation_that_cannot_be_had_now_is_had_later(tiered):
    """If the store behind does not answer, the level it stated last stays the answer, and the state is told."""
    mood, behind = Mood(start="before confirm"), Remote()
    store = tiered(behind=FaultyStore(behind, at=mood))
    receipt = put(store, "run/a")
    assert store.flush(PATIENCE)
    mood.error = AWAY
    assert store.confirm(receipt).level == "sent"
    assert AWAY.problem in store.degraded
    mood.error = None
    assert store.confirm(receipt).level == "confirmed"


def test_both_stores_are_locked(tiered):
    """Who has another disk in front but the same place behind is refused there, and keeps nothing locked in front."""
    behind = MemoryStore()
    first, second = tiered(behind=behind), tiered(behind=behind)
    with first.lock("run/lock", "the first"):
        with pytest.raises(StoreBusy) as caught:
            second.lock("run/lock", "the second")
        assert caught.value.holder == "the first"
        second.front.lock("run/lock", "free").release()
    second.lock("run/lock", "the second").release()


def test_a_store_behind_that_cannot_lock_is_not_asked_to(tiered):
    """A remote without locks leaves it to the fast store."""
    behind = FaultyStore(Remote(), at=on("before lock run/lock", raising(AssertionError("asked"))))
    with tiered(behind=behind).lock("run/lock", "me"):
        pass


def test_a_full_local_disk_is_the_caller_s_failure(tiered):
    """What did not get into the fast store is not stored, and nothing of it is copied."""
    front = FaultyStore(MemoryStore(), at=on("before put run/a", raising(AWAY)))
    store = tiered(front=front)
    with pytest.raises(StoreUnavailable):
        put(store, "run/a")
    assert store.flush(PATIENCE)
    assert names(store) == []


def test_a_copy_that_is_doubted_is_replaced_by_the_one_behind(tiered):
    """When the bytes in front turn out to be damaged, the lasting store's are given; nothing is changed."""
    front, behind = MemoryStore(), MemoryStore()
    front.put("run/a", BytesSource(b"damaged, and longer"))
    behind.put("run/a", BytesSource(b"good"))
    front.put("run/b", BytesSource(b"only here"))
    store = tiered(front, behind)
    assert store.doubt("run/a")
    assert not store.doubt("run/a")
    assert not store.doubt("run/b")
    with store.get("run/a") as reader:
        assert reader.read() == b"good"
    assert {entry.name: entry.size for entry in store.list("run")} == {"run/a": 4, "run/b": 9}
    with front.get("run/a") as reader:
        assert reader.read() == b"damaged, and longer"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities per thread")
def test_the_thread_that_uploads_has_a_lower_priority_than_the_training():
    """Also where the training's own thread is the one that begins it, as with the first object of a run."""
    seen = []

    def look(point):
        if point.startswith("before put"):
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    store = TieredStore(MemoryStore(), FaultyStore(MemoryStore(), at=look))
    store.put("run/run.json", BytesSource(b"{}"))
    assert store.flush(30.0)
    store.close()
    assert seen
    assert min(seen) > own
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own

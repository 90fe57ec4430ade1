"""What is sent next: whole checkpoints, the newest first when the link is slow, no manifest before its blobs."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace

import pytest

from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.core.errors import StoreError, StoreFull, StoreUnavailable
from colabkeep.core.manifest import BlobRef, Manifest, Progress
from colabkeep.stores.base import BytesSource, Receipt, StoreProperties
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.shared.upload_queue import Queue, Task
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyStore

PATIENCE = 30.0  # seconds until a hanging test gives up
QUICK = (0.001, 0.002)
AWAY = StoreUnavailable(problem="The drive is away.", remedy="Mount it again.")
FULL = StoreFull(problem="The drive is full.", remedy="Make room.")


def digest(number):
    return f"{number:064x}"


def blob(number):
    return f"run/blobs/{digest(number)}.safetensors"


def manifest(step, *blobs, fence=1, session="aaaaaaaa"):
    """A manifest that can be read: its name and its text."""
    record = Manifest(
        id=f"{step:012d}-{session}",
        run="run",
        session=session,
        fence=fence,
        progress=Progress(step=step),
        blobs=tuple(BlobRef(sha256=digest(n), size=4, file=f"{digest(n)}.safetensors") for n in blobs),
        parts={},
        framework="numpy",
    )
    return f"run/checkpoints/{record.id}.json", record.to_bytes()


def task(name, kind="copy", needs=None):
    needs = None if needs is None else dict.fromkeys(needs, (4, ""))
    return Task(kind, Receipt(name=name, size=4, sha256="", level="local"), needs)


def order(queue):
    """The names in the order in which they are done, if all goes well."""
    found = []
    while (following := queue.next()) is not None:
        found.append(following.name if following.kind == "copy" else f"delete {following.name}")
        queue.done(following)
    return found


def queue_of(*tasks, needs):
    """`needs` tells for a name what it needs; the others need nothing, and are part of wholes or of none."""
    queue = Queue()
    add(queue, *tasks, needs=needs)
    return queue


def add(queue, *tasks, needs):
    for each in tasks:
        queue.add(task(each, needs=needs.get(each)) if isinstance(each, str) else each)


OLD, NEW = "run/checkpoints/000000000001-aaaaaaaa.json", "run/checkpoints/000000000002-aaaaaaaa.json"
NEEDS = {OLD: {blob(1), blob(9)}, NEW: {blob(2), blob(9)}}
LEASE, JOURNAL = "run/lease/000002-aaaaaaaa.json", "run/journal/aaaaaaaa-00003.jsonl"


def test_a_part_of_the_journal_goes_only_when_what_holds_its_lines_has_arrived():
    """A machine that is lost in between takes nothing along that the drive had."""
    folded, later = (f"run/journal/aaaaaaaa-{n:05d}.jsonl" for n in (16, 17))
    queue = queue_of(folded, task(JOURNAL, "delete"), later, task("other/a", "delete"), needs={})
    assert order(queue) == [folded, f"delete {JOURNAL}", "delete other/a", later]


def test_a_checkpoint_goes_when_the_journal_that_tells_of_it_is_there():
    """The checkpoint on its way first, then the journal, then the deletion. If the machine is lost in between, whoever
    looks later can tell what was let go from what was destroyed."""
    needs = {NEW: {blob(2)}, LEASE: set()}
    tasks = [JOURNAL, task(OLD, "delete"), task(blob(1), "delete"), NEW, LEASE]
    gone = [JOURNAL, f"delete {OLD}", f"delete {blob(1)}"]
    assert order(queue_of(blob(2), *tasks, needs=needs)) == [LEASE, *gone, blob(2), NEW]
    queue = queue_of(blob(2), needs=needs)
    first = queue.next()
    add(queue, *tasks, needs=needs)
    queue.done(first)
    assert order(queue) == [NEW, LEASE, *gone]


def test_a_checkpoint_goes_when_the_part_that_took_its_diarys_place_is_there():
    """The one that told of it first is folded into another, and goes, before it was sent: as on a slow link."""
    newer = JOURNAL.replace("00003", "00004")
    queue = queue_of(OLD, JOURNAL, task(OLD, "delete"), newer, task(JOURNAL, "delete"), needs={OLD: set()})
    assert order(queue) == [newer, f"delete {OLD}", f"delete {JOURNAL}"]


def test_a_journal_that_cannot_be_brought_keeps_no_room_occupied():
    """On a full drive nothing arrives before something goes."""
    queue = queue_of(JOURNAL, task(OLD, "delete"), task(blob(1), "delete"), needs={})
    assert queue.next().name == JOURNAL
    queue.refuse(queue.next())
    assert order(queue) == [f"delete {OLD}", f"delete {blob(1)}", JOURNAL]


def test_the_newest_checkpoint_is_sent_first_and_whole():
    """With several waiting: the last one's blobs, shared ones too, then its manifest, then the older ones."""
    assert order(queue_of(blob(9), blob(1), OLD, blob(2), NEW, needs=NEEDS)) == [blob(9), blob(2), NEW, blob(1), OLD]


def test_a_checkpoint_that_was_begun_is_finished_before_a_newer_one():
    """Else a link that is slower than the saves would bring over halves of everything and the whole of nothing."""
    queue = queue_of(blob(9), blob(1), OLD, needs=NEEDS)
    queue.done(queue.next())
    assert queue.sending == OLD
    add(queue, blob(2), NEW, needs=NEEDS)
    assert order(queue) == [blob(1), OLD, blob(2), NEW]


def test_a_checkpoint_whose_blob_is_on_the_wire_already_is_begun():
    """Blobs are sent as they come. When the manifest follows, that checkpoint is the one that was begun."""
    queue = queue_of(blob(1), needs={})
    first = queue.next()
    add(queue, OLD, blob(2), NEW, needs={OLD: {blob(1)}, NEW: {blob(2)}})
    assert queue.sending == OLD
    queue.done(first)
    assert order(queue) == [OLD, blob(2), NEW]


def test_what_lacks_nothing_comes_first_then_deletions():
    """A session's number is there before what it wrote, and room is made before anything large comes."""
    tasks = [blob(1), OLD, LEASE, task(blob(7), "delete"), JOURNAL]
    queue = queue_of(*tasks, needs={OLD: {blob(1)}, LEASE: set()})
    assert order(queue) == [LEASE, f"delete {blob(7)}", blob(1), OLD, JOURNAL]


def test_what_is_deleted_is_not_sent_any_more():
    """Also when it is part of the checkpoint that was begun: then the newest of the others is chosen."""
    queue = queue_of(blob(1), OLD, blob(2), NEW, needs={OLD: {blob(1)}, NEW: {blob(2)}})
    assert queue.next().name == blob(2)
    add(queue, task(NEW, "delete"), task(blob(2), "delete"), needs={})
    assert queue.sending is None
    assert order(queue) == [f"delete {NEW}", f"delete {blob(2)}", blob(1), OLD]
    assert queue.waiting_bytes == 0


def test_what_is_refused_for_good_does_not_hold_up_the_others():
    """An object that the store will never take lets the rest pass, and is tried again after it."""
    queue = queue_of(blob(1), OLD, blob(2), NEW, needs={OLD: {blob(1)}, NEW: {blob(2)}})
    queue.refuse(queue.next())
    assert order(queue) == [blob(1), OLD, blob(2), NEW]


def test_a_name_that_is_used_again_is_deleted_before_it_is_sent():
    """Whatever else waits: the old bytes would be taken for the new ones, or the new ones deleted."""
    queue = queue_of(JOURNAL, task(blob(1), "delete"), blob(1), NEW, needs={NEW: {blob(1)}})
    assert order(queue) == [JOURNAL, f"delete {blob(1)}", blob(1), NEW]
    queue = queue_of(blob(9), needs={})
    queue.next()
    add(queue, JOURNAL, task(blob(1), "delete"), blob(1), NEW, needs={NEW: {blob(1), blob(9)}})
    assert order(queue) == [blob(9), f"delete {blob(1)}", blob(1), NEW, JOURNAL]


# -- the store that does so ----------------------------------------------------------------------------


class Door:
    """For `FaultyStore`: the chosen points wait until the door is opened."""

    def __init__(self, start):
        self.start = start
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, point):
        if point.startswith(self.start):
            self.reached.set()
            assert self.opened.wait(PATIENCE)


class Drive(MemoryStore):
    """A remote with a quota; `free` bytes are left."""

    def __init__(self, free=None):
        super().__init__()
        self.free = free

    @property
    def url(self):
        return "drive"

    @property
    def properties(self):
        return StoreProperties(top_level="local", persists=True, free_bytes=self.free)

    def put(self, name, source):
        if self.free is not None and source.size > self.free:
            raise FULL
        receipt = super().put(name, source)
        if self.free is not None:
            self.free -= receipt.size
        return receipt

    def delete(self, name):
        size = sum(entry.size for entry in self.list("") if entry.name == name)
        super().delete(name)
        if self.free is not None:
            self.free += size


@pytest.fixture
def tiered():
    """Makes tiered stores, and closes them at the end."""
    made = []

    def make(front=None, behind=None, **options):
        store = TieredStore(front or MemoryStore(), behind or Drive(), **{"pauses": QUICK, **options})
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


def put(store, name, data=b"data", needs=None):
    return store.put(name, BytesSource(data, needs))


def save(store, step, *blobs, **words):
    for number in blobs:
        put(store, blob(number))
    name, text = manifest(step, *blobs, **words)
    put(store, name, text, {blob(number): (4, digest(number)) for number in blobs})
    return name


def puts(store):
    return [point.removeprefix("before put ") for point in store.points if point.startswith("before put ")]


def test_a_slow_link_skips_what_was_overtaken(tiered):
    """While the first checkpoint is on its way three more are saved, and two of them deleted: never sent."""
    door = Door(f"before put {blob(1)}")
    behind = FaultyStore(Drive(), at=door)
    store = tiered(behind=behind)
    first = save(store, 1, 1)
    assert door.reached.wait(PATIENCE)
    second, third = save(store, 2, 2), save(store, 3, 3)
    fourth = save(store, 4, 4)
    for number, name in ((2, second), (3, third)):
        store.delete(name)
        store.delete(blob(number))
    door.opened.set()
    assert store.flush(PATIENCE)
    assert puts(behind) == [blob(1), first, blob(4), fourth]


def test_the_checkpoint_on_its_way_is_named(tiered):
    """Whoever prunes can spare it; when nothing is on its way, nothing is named."""
    door = Door("before put run/checkpoints")
    store = tiered(behind=FaultyStore(Drive(), at=door))
    name = save(store, 1, 1)
    assert door.reached.wait(PATIENCE)
    behind = store.properties.behind
    assert (behind.sending, behind.url) == (name, "drive")
    assert behind.waiting_bytes == len(manifest(1, 1)[1])
    door.opened.set()
    assert store.flush(PATIENCE)
    assert (store.properties.behind.sending, store.properties.behind.waiting_bytes) == (None, 0)


def test_a_manifest_whose_blobs_are_there_before_it_is_named_too(tiered):
    """The link may be faster than the session: the blobs arrive before the manifest is put."""
    door = Door("before put run/checkpoints")
    store = tiered(behind=FaultyStore(Drive(), at=door))
    put(store, blob(1))
    assert store.flush(PATIENCE)
    name, text = manifest(1, 1)
    put(store, name, text, {blob(1): (4, digest(1))})
    assert door.reached.wait(PATIENCE)
    assert store.properties.behind.sending == name
    door.opened.set()
    assert store.flush(PATIENCE)


def test_a_full_drive_is_made_room_in_by_what_is_deleted(tiered):
    """A copy that does not fit waits; the deletion asked for later is done before it, and then it fits."""
    behind = Drive(free=10_000)
    store = tiered(behind=behind)
    put(store, "run/blobs/old", b"x" * 8000)
    assert store.flush(PATIENCE)
    put(store, "run/blobs/new", b"y" * 8000)
    while not store.properties.behind.full:
        assert not store.flush(0.01)
    assert "full" in store.degraded
    store.delete("run/blobs/old")
    assert store.flush(PATIENCE)
    assert [entry.name for entry in behind.list("")] == ["run/blobs/new"]
    assert not store.properties.behind.full
    assert store.degraded is None


def test_the_room_behind_is_that_of_its_last_answer(tiered):
    """Free space there is known without a save having to ask: the copier does, after each object."""
    store = tiered(behind=Drive(free=1000))
    assert store.properties.behind.free_bytes == 1000
    put(store, "run/a", b"x" * 300)
    assert store.flush(PATIENCE)
    while store.properties.behind.free_bytes != 700:
        assert store.flush(PATIENCE)


def test_the_speed_of_the_link_is_measured(tiered):
    """Bytes over the time in which they were sent: 6 MB in 3 s, whatever time passes between them."""
    clock = FakeClock()

    def take_time(point):
        if point.startswith("after put run/"):
            clock.advance(1.5)

    store = tiered(behind=FaultyStore(Drive(), at=take_time), monotonic=clock.monotonic)
    assert store.properties.behind.bytes_per_second is None
    for name in ("run/a", "run/b"):
        put(store, name, bytes(3_000_000))
        assert store.flush(PATIENCE)
        clock.advance(1000)
    assert store.properties.behind.bytes_per_second == pytest.approx(2_000_000)


def test_an_object_that_the_drive_never_takes_lets_the_rest_pass(tiered):
    """One name is refused for good: what does not need it is brought over, and the trouble is told."""
    refused = StoreError(problem="Not allowed.", remedy="Ask.")

    def refuse(point):
        if point == f"before put {blob(2)}":
            raise refused

    behind = FaultyStore(Drive(), at=refuse)
    store = tiered(behind=behind)
    first, second = save(store, 1, 1), save(store, 2, 2)
    done = {blob(1), first}
    while store.degraded is None or not done <= {entry.name for entry in behind.list("run")}:
        assert not store.flush(0.01)
    assert second not in {entry.name for entry in behind.list("run")}, "a checkpoint behind is a whole one"
    put(store, "run/later")
    while "run/later" not in {entry.name for entry in behind.list("run")}:
        assert not store.flush(0.01)
    assert "Not allowed." in store.degraded, "what gets through does not end the trouble of what does not"


def test_an_object_that_got_there_unnoticed_is_not_fetched_if_the_drive_states_its_digest(tiered):
    """The answer to its upload was lost: gigabytes are not read again for what a question answers."""

    class Stating(Drive):
        def put(self, name, source):
            receipt = super().put(name, source)
            if self.answers_get_lost:
                self.answers_get_lost = False
                raise StoreUnavailable(problem="The answer was lost.", remedy="Wait.")
            return receipt

        def confirm(self, receipt):
            return replace(receipt, level="confirmed")

    drive = Stating()
    drive.answers_get_lost = True
    behind = FaultyStore(drive)
    store = tiered(behind=behind)
    put(store, "run/a")
    assert store.flush(PATIENCE)
    assert "run/a" in {entry.name for entry in drive.list("run")}
    assert not [point for point in behind.points if point.startswith("before get")]


def test_what_went_with_the_folder_in_front_is_not_waited_for_and_can_be_put_again(tiered, tmp_path):
    """No checkpoint that needs it is sent, nothing is out of order for ever; written again, it arrives, and so does
    the checkpoint that needs it then."""
    away = [True]

    def answer(point):
        if away[0]:
            raise StoreUnavailable(problem="The drive is away.", remedy="Wait.")

    drive = Drive()
    store = tiered(DirectoryStore(tmp_path / "front"), FaultyStore(drive, at=answer))
    save(store, 1, 1)
    shutil.rmtree(tmp_path / "front")
    put(store, *manifest(2, 1), {blob(1): (4, digest(1))})
    away[0] = False
    assert store.flush(PATIENCE)
    assert store.degraded is None
    assert list(drive.list("")) == []
    save(store, 3, 1)
    assert store.flush(PATIENCE)
    assert {entry.name for entry in drive.list("")} == {blob(1), manifest(3, 1)[0]}


def test_a_checkpoint_with_a_damaged_blob_is_not_sent(tiered):
    """A manifest never arrives without what it names: a lost machine would leave a checkpoint that is none."""
    front, behind = MemoryStore(), Drive()
    door = Door("before put run/a")
    store = tiered(front, FaultyStore(behind, at=door))
    put(store, "run/a")
    assert door.reached.wait(PATIENCE)
    name = save(store, 1, 1)
    front._objects[blob(1)] = b"evil"
    door.opened.set()
    assert not store.flush(PATIENCE)
    assert [entry.name for entry in behind.list("")] == ["run/a"]
    assert store.confirm(Receipt(name=name, size=1, sha256="", level="local")).level == "local"
    assert blob(1) in store.degraded


def test_what_a_killed_session_left_is_sent_newest_first_and_after_the_new_lease(tiered):
    """The next session's number is behind before anything else; then the newest checkpoint, by session and step."""
    front, behind = MemoryStore(), FaultyStore(Drive())
    names = [
        save(front, 9, 1, fence=1, session="ffffffff"),
        save(front, 3, 2, fence=2, session="aaaaaaaa"),
        save(front, 5, 3, fence=2, session="aaaaaaaa"),
    ]
    put(front, "run/blobs/orphan")
    store = tiered(front, behind)
    take_up(Repository(store, "run"))
    assert [thread for thread in threading.enumerate() if thread.name == "colabkeep-uploader"] == []
    take_lease(Repository(store, "run"), "bbbbbbbb", {})
    assert store.flush(PATIENCE)
    assert puts(behind) == [
        "run/lease/000003-bbbbbbbb.json",
        *(blob(3), names[2], blob(2), names[1], blob(1), names[0]),
        "run/blobs/orphan",
    ]


def test_a_manifest_that_cannot_be_read_is_sent_behind_all_that_it_may_name(tiered):
    """It is found damaged where it matters; meanwhile no checkpoint behind lacks a blob because of it."""
    front, behind = MemoryStore(), FaultyStore(Drive())
    torn = "run/checkpoints/000000000007-aaaaaaaa.json"
    for name in (torn, blob(1), blob(2)):
        put(front, name)
    store = tiered(front, behind)
    take_up(Repository(store, "run"))
    assert store.flush(PATIENCE)
    assert puts(behind) == [blob(1), blob(2), torn]


def test_what_is_confirmed_is_seen_while_the_queue_is_never_empty(tiered):
    """The store behind is asked between two objects: hours of sending do not hide what it has stated meanwhile."""
    asked = threading.Event()

    class Confirming(Drive):
        @property
        def properties(self):
            return StoreProperties(top_level="confirmed", persists=True)

        def confirm(self, receipt):
            asked.set()
            return Receipt(name=receipt.name, size=receipt.size, sha256=receipt.sha256, level="confirmed")

    gates = [Door("before put run/b"), Door("before put run/c")]

    def at(point):
        for door in gates:
            door(point)

    store = tiered(behind=FaultyStore(Confirming(), at=at))
    receipts = [put(store, name) for name in ("run/a", "run/b", "run/c")]
    assert gates[0].reached.wait(PATIENCE)
    store.confirm(receipts[0])
    assert not asked.is_set(), "not while an object is on the wire"
    gates[0].opened.set()
    assert gates[1].reached.wait(PATIENCE)
    assert store.confirm(receipts[0]).level == "confirmed"
    gates[1].opened.set()


@pytest.mark.parametrize("front_has", [5, 7])
def test_two_sides_that_disagree_show_what_either_has(tiered, front_has):
    """The listing is that of both: a resume finds the newest checkpoint, wherever it lies."""
    front, behind = MemoryStore(), Drive()
    here, there = save(front, front_has, 1), save(behind, 6, 2)
    store = tiered(front, behind)
    assert {here, there} <= {entry.name for entry in store.list("run/checkpoints")}
    for name in (here, there):
        with store.get(name) as reader:
            assert reader.read()

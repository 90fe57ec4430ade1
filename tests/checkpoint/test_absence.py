"""A listing that shows nothing proves nothing: no run begins anew by it, and nothing of others goes for good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colabkeep.checkpoint.durability import noted
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import LISTED_AGAIN, load_newest
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.core.errors import NoUsableCheckpoint, StoreUnavailable
from colabkeep.core.events import Noted
from colabkeep.core.layout import NOTE
from colabkeep.session.prune import prune
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.clock import FakeClock


class Partial(MemoryStore):
    """Its listings leave out what lies in the folders `hidden`, as a half-mounted drive's do."""

    hidden = ()

    @property
    def properties(self):
        return replace(super().properties, lists_lag=True)

    def list(self, prefix):
        return [entry for entry in super().list(prefix) if not any(f"/{name}/" in entry.name for name in self.hidden)]


def load(store, sleep=lambda _: None):
    repository = Repository(store, "run")
    repository.open_run(created=1.0, run_id="1" * 16)
    return load_newest(repository, lambda *_: None, sleep=sleep)


def journaled(session, *manifests):
    for manifest in manifests:
        session.journal.add({"event": "SaveCommitted", "checkpoint": manifest.id})
    session.journal.write()


def left_over(store, letter="f"):
    """What a killed save of another machine has left."""
    from colabkeep.stores.base import BytesSource

    file = f"{letter * 64}.safetensors"
    store.put(f"run/blobs/{file}", BytesSource(b"x" * 64))
    return f"run/blobs/{file}"


def notes(session):
    return [event.text for event in session.events if isinstance(event, Noted)]


# -- beginning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hidden", [("checkpoints", "journal"), ("checkpoints", "journal", "blobs"), ("checkpoints", "journal", "lease")]
)
def test_a_run_whose_checkpoints_are_not_shown_is_refused_and_not_begun_anew(kit, hidden):
    """Its journal may be hidden with them; that it has had a checkpoint is noted beside it."""
    store = Partial()
    manifest = kit.Session(store).save(1)
    before = dict(store._objects)
    store.hidden = hidden
    with pytest.raises(NoUsableCheckpoint, match="shows no checkpoint any more") as caught:
        load(store)
    assert manifest.id in caught.value.problem
    assert 'resume="never"' in caught.value.remedy
    assert "run/checkpoints" in caught.value.remedy
    assert store._objects == before


def test_it_is_listed_again_before_that(kit):
    """Late enough that the answer is a new one. What was left out comes back: the run goes on."""
    store, slept = Partial(), []
    manifest = kit.Session(store).save(1)
    store.hidden = ("checkpoints", "journal", "lease", "blobs")

    def sleep(seconds):
        slept.append(seconds)
        store.hidden = ()

    loaded = load(store, sleep)
    assert loaded is not None
    assert loaded.manifest.id == manifest.id
    assert slept == [LISTED_AGAIN]


def test_a_run_that_died_before_its_first_checkpoint_goes_on(kit):
    """It has a lease, a journal and half of a save, and never had a checkpoint."""
    store = Partial()
    session = kit.Session(store)
    session.journal.add({"event": "RunStarted"})
    session.journal.write()
    left_over(store)
    assert load(store) is None


def test_a_new_run_waits_for_nothing(kit):
    """There was nobody before: nothing can be hidden."""
    slept = []
    assert load(Partial(), slept.append) is None
    assert slept == []


def test_where_listings_do_not_lag_nobody_waits(kit, disk):
    """A disk says the same when it is asked again."""
    slept = []
    kit.Session(disk.store)
    assert load(disk.store, slept.append) is None
    assert set(slept) <= {0.0}


def test_a_run_of_an_earlier_version_has_no_note_and_its_journal_counts(kit):
    """It resumes as ever; without a checkpoint its journal is asked."""
    store = Partial()
    session = kit.Session(store)
    manifest = session.save(1)
    journaled(session, manifest)
    del store._objects[f"run/{NOTE}"]
    loaded = load(store)
    assert loaded is not None
    assert loaded.manifest.id == manifest.id
    store.hidden = ("checkpoints",)
    with pytest.raises(NoUsableCheckpoint, match="journal"):
        load(store)


class Remote(MemoryStore):
    """A place beyond the machine."""

    @property
    def properties(self):
        return replace(super().properties, top_level="sent")


@pytest.mark.parametrize("level", ["local", "sent", None])
def test_a_journal_that_arrived_before_its_checkpoint_keeps_no_run_from_beginning(kit, level):
    """Then the machine was lost, with the only copy. One that had been in this place is missed as ever, and so is one
    of which that is not told."""
    front, behind = MemoryStore(), Remote()
    session = kit.Session(front)
    manifest = session.save(1)
    told = {} if level is None else {"rung": "local"}
    session.journal.add({"event": "SaveCommitted", "checkpoint": manifest.id, **told})
    if level == "sent":
        session.journal.add({"event": "RungReached", "checkpoint": manifest.id, "rung": "sent"})
    session.journal.write()
    behind._objects.update({name: data for name, data in front._objects.items() if "/journal/" in name})
    repository, passed = Repository(behind, "run"), {}
    if level == "local":
        assert load_newest(repository, passed.__setitem__) is None
        assert "had not left the disk of its machine" in passed[manifest.id]
    else:
        with pytest.raises(NoUsableCheckpoint, match=f"journal says that there was {manifest.id}"):
            load_newest(repository, passed.__setitem__)
        assert passed == {}


def test_the_note_of_a_deleted_run_of_the_same_name_means_nothing(kit):
    """Whoever deletes a run with an older version leaves the note behind; the next run of that name is another one."""
    store = Partial()
    kit.Session(store).save(1)
    for name in list(store._objects):
        if not name.endswith(NOTE):
            del store._objects[name]
    assert load(store) is None
    assert noted(Repository(store, "run")) is None


def test_the_note_comes_after_the_checkpoint_has_arrived_and_is_written_once(kit, disk):
    """It would else be said of a run that has lost everything with its machine."""
    session = kit.Session(disk.store)
    session.save(1)
    text = disk.files[f"run/{NOTE}"]
    session.save(2)
    assert disk.files[f"run/{NOTE}"] == text
    assert noted(session.repository) == "000000000001-aaaaaaaa"


def test_what_vanished_and_is_written_again_is_noted_again(kit, disk):
    """The folder was deleted while training; what is saved into the new one counts."""
    session = kit.Session(disk.store)
    session.save(1)
    disk.files.clear()
    second = session.save(2)
    assert noted(Repository(disk.store, "run")) == second.id


# -- deleting -----------------------------------------------------------------------------------------


def test_what_another_session_left_goes_only_when_two_listings_far_apart_say_so(kit):
    """The first may have left out the manifest that names it."""
    store = Partial()
    kit.Session(store, "aaaaaaaa").save(1)
    strange = left_over(store)
    session = kit.Session(store, "bbbbbbbb", keep=KeepLast(1), resume=kit.newest(store)[0])
    session.save(2)
    session.save(3)
    assert strange in store._objects
    session.clock.advance(60)
    session.save(4)
    assert strange in store._objects
    session.clock.advance(61)
    session.save(5)
    assert strange not in store._objects


def test_what_the_journal_knows_and_no_listing_shows_keeps_everything_of_others(kit):
    """The newest checkpoint of the machine before is hidden: its blobs look like left-overs, and stay. It is told
    once. When all is shown again, that checkpoint is another line's and stays, and only what nothing needs goes."""
    store = Partial()
    first = kit.Session(store, "aaaaaaaa")
    kept, hidden = first.save(1), first.save(2)
    journaled(first, kept, hidden)
    name = f"run/checkpoints/{hidden.id}.json"
    text = store._objects.pop(name)
    session = kit.Session(store, "bbbbbbbb", keep=KeepLast(1), resume=kit.newest(store)[0])
    own = session.save(3)
    for step in range(4, 7):
        session.save(step)
        session.clock.advance(200)
    blobs = {f"run/blobs/{blob.file}" for manifest in (kept, hidden) for blob in manifest.blobs}
    assert blobs <= store._objects.keys()
    assert f"run/blobs/{own.blobs[0].file}" not in store._objects, "what it wrote itself is its to delete"
    (said,) = [text for text in notes(session) if "not shown" in text]
    assert hidden.id in said
    assert "colabkeep prune run" in said
    store._objects[name] = text
    assert kit.newest(store)[0] is not None
    session.save(7)
    session.clock.advance(200)
    session.save(8)
    assert f"run/blobs/{hidden.blobs[0].file}" in store._objects
    assert f"run/blobs/{kept.blobs[0].file}" not in store._objects


@pytest.mark.parametrize("shown", [True, False])
def test_bytes_that_another_session_wrote_too_stay_as_long_as_its_checkpoint_may_be_there(kit, shown):
    """Two sessions go on exactly from one checkpoint, so their next ones are of the same bytes, one file. The second
    has not been shown the first one's: when it prunes its own, the file stays until that would have been shown."""
    store = Partial()
    first = kit.Session(store, "aaaaaaaa")
    first.save(1)
    hidden = first.save(2)
    name, shared = f"run/checkpoints/{hidden.id}.json", f"run/blobs/{hidden.blobs[0].file}"
    text = store._objects.pop(name)
    session = kit.Session(store, "bbbbbbbb", keep=KeepLast(1), resume=kit.newest(store)[0])
    assert session.save(2).blobs == hidden.blobs
    session.save(3)
    assert shared in store._objects
    session.clock.advance(121)
    if shown:
        store._objects[name] = text
    session.save(4)
    assert (shared in store._objects) == shown


def test_what_a_session_wrote_itself_goes_at_once(kit):
    """Nobody waits for room that one's own old checkpoints take."""
    store = Partial()
    session = kit.Session(store, keep=KeepLast(1))
    first = session.save(1)
    session.save(2)
    assert f"run/blobs/{first.blobs[0].file}" not in store._objects


def test_two_listings_that_differ_delete_nothing_by_hand(kit):
    """`colabkeep prune` lists twice where listings lag, and says that nothing was deleted."""
    store = Partial()
    session = kit.Session(store)
    session.save(1)
    session.save(2)
    hidden = f"run/checkpoints/{session.save(3).id}.json"

    class Late(FakeClock):
        def sleep(self, seconds):
            store._objects[hidden] = text
            super().sleep(seconds)

    text = store._objects.pop(hidden)
    blobs = {name for name in store._objects if "/blobs/" in name}
    clock = Late()
    clock.advance(1e6)
    with pytest.raises(StoreUnavailable, match="two different lists"):
        prune(store, "run", KeepLast(1), clock)
    assert blobs <= store._objects.keys()


def test_who_prunes_by_hand_is_told_which_checkpoint_is_missing(kit):
    """And nobody waits for it any more when that is done."""
    from colabkeep.checkpoint.durability import vanished
    from colabkeep.session.prune import plan_prune

    store = Partial()
    session = kit.Session(store)
    first, second = session.save(1), session.save(2)
    journaled(session, first, second)
    del store._objects[f"run/checkpoints/{first.id}.json"]
    clock = FakeClock()
    clock.advance(1e6)
    assert plan_prune(Repository(store, "run"), KeepLast(1)).missing == (first.id,)
    prune(store, "run", KeepLast(1), clock)
    assert f"run/blobs/{first.blobs[0].file}" not in store._objects
    assert vanished(Repository(store, "run")) == []

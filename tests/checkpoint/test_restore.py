"""A resume takes the newest checkpoint that is whole, walks past what is not, and never begins anew in silence."""

from __future__ import annotations

import io
import json

import pytest

from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import load_best, load_id, load_newest, newest_first
from colabkeep.checkpoint.retention import KeepBest, KeepLast
from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    CheckpointUnsupported,
    NoUsableCheckpoint,
    StoreFull,
    StoreUnavailable,
)
from colabkeep.core.layout import seal, unseal
from colabkeep.core.manifest import FORMAT
from colabkeep.testing.faults import FaultyStore

GONE = StoreUnavailable(problem="The place does not answer.", remedy="Wait.")


def reseal(text, **fields):
    """What a hostile writer would leave: other fields, and a digest that is right."""
    return seal({**unseal(text), **fields})


def test_a_run_without_checkpoints_has_nothing_to_load(kit, disk):
    """Nothing there is nothing, not an error: the run begins."""
    assert kit.newest(disk.store) == (None, {})


def test_the_newest_checkpoint_is_loaded(kit, disk):
    """The last save is the one that a resume goes on from."""
    session = kit.Session(disk.store)
    for step in (1, 2, 3):
        session.save(step)
    loaded, passed = kit.newest(disk.store)
    assert kit.same(loaded.parts, kit.state(3))
    assert passed == {}


@pytest.mark.parametrize("part", ["blob", "manifest"])
def test_a_damaged_checkpoint_is_walked_past_and_told_of(kit, disk, damage, part):
    """Whatever happened to the newest, the one before it is used, the user hears why, and no file is deleted."""
    session = kit.Session(disk.store)
    good, bad = session.save(1), session.save(2)
    disk.damage(disk.only_blob(bad) if part == "blob" else disk.manifest(bad.id), damage)
    before = dict(disk.files)
    loaded, passed = kit.newest(disk.store)
    assert kit.same(loaded.parts, kit.state(1))
    assert loaded.manifest == good
    if disk.manifest(bad.id) in before:  # a manifest that is gone is no checkpoint: `verify` misses it
        assert list(passed) == [bad.id]
        assert bad.id in passed[bad.id]
        assert Repository(disk.store, kit.run).quarantined() == {bad.id}
    assert before.items() <= disk.files.items()


def test_swapped_blobs_are_noticed(kit, disk):
    """Two files that changed places are two damaged files."""
    session = kit.Session(disk.store)
    first, second, third = (session.save(step) for step in (1, 2, 3))
    one, other = disk.only_blob(second), disk.only_blob(third)
    disk.files[one], disk.files[other] = disk.files[other], disk.files[one]
    loaded, passed = kit.newest(disk.store)
    assert loaded.manifest == first
    assert set(passed) == {second.id, third.id}


def test_swapped_manifests_are_noticed(kit, disk):
    """A manifest under another checkpoint's name is not that checkpoint."""
    session = kit.Session(disk.store)
    first, second, third = (session.save(step) for step in (1, 2, 3))
    one, other = disk.manifest(second.id), disk.manifest(third.id)
    disk.files[one], disk.files[other] = disk.files[other], disk.files[one]
    loaded, passed = kit.newest(disk.store)
    assert loaded.manifest == first
    assert set(passed) == {second.id, third.id}


def test_a_checkpoint_of_another_run_is_not_ours(kit, disk):
    """A manifest that was copied in from another run is skipped, though every byte of it is right."""
    session = kit.Session(disk.store)
    good, other = session.save(1), session.save(2)
    disk.damage(disk.manifest(other.id), lambda text: reseal(text, run="another"))
    loaded, passed = kit.newest(disk.store)
    assert loaded.manifest == good
    assert "another" in passed[other.id]


def test_a_newer_format_is_walked_past_and_kept(kit, disk):
    """What a newer colabkeep wrote is left for it: the user is told to update, and no mark is made against it."""
    session = kit.Session(disk.store)
    good, newer = session.save(1), session.save(2)
    disk.damage(disk.manifest(newer.id), lambda text: reseal(text, format=FORMAT + 1))
    loaded, passed = kit.newest(disk.store)
    assert loaded.manifest == good
    assert f"format {FORMAT + 1}" in passed[newer.id]
    assert Repository(disk.store, kit.run).quarantined() == set()
    with pytest.raises(CheckpointUnsupported, match="format") as caught:
        load_id(Repository(disk.store, kit.run), newer.id)
    assert "pip install -U colabkeep" in caught.value.remedy


def test_when_none_is_usable_that_is_an_error_and_not_a_fresh_start(kit, disk, damage):
    """Checkpoints that exist are never silently trained over: the error names each with its reason."""
    session = kit.Session(disk.store)
    saved = [session.save(step) for step in (1, 2)]
    for manifest in saved:
        disk.damage(disk.only_blob(manifest), damage)
    with pytest.raises(NoUsableCheckpoint) as caught:
        kit.newest(disk.store)
    assert all(manifest.id in caught.value.problem for manifest in saved)
    assert 'resume="never"' in caught.value.remedy


def test_a_checkpoint_that_was_mended_is_used_again(kit, disk):
    """A mark is no sentence: when the file is whole again, it is loaded, and is one of the others again."""
    session = kit.Session(disk.store)
    session.save(1)
    newest = session.save(2)
    whole = disk.files[disk.only_blob(newest)]
    disk.damage(disk.only_blob(newest), kit.flip)
    assert kit.newest(disk.store)[0].manifest.progress.step == 1
    assert Repository(disk.store, kit.run).quarantined() == {newest.id}
    disk.files[disk.only_blob(newest)] = whole
    assert kit.newest(disk.store)[0].manifest == newest
    assert Repository(disk.store, kit.run).quarantined() == set()


def test_a_store_that_fails_to_read_leaves_no_mark(kit, disk):
    """A mount that is away for a moment does not make a checkpoint bad for ever."""
    session = kit.Session(disk.store)
    session.save(1)
    newest = session.save(2)
    store = FaultyStore(disk.store)

    def away(point):
        if point == f"before get {disk.only_blob(newest)}":
            raise GONE

    store.at = away
    loaded, passed = kit.newest(store)
    assert loaded.manifest.progress.step == 1
    assert passed == {newest.id: "The place does not answer."}
    assert kit.newest(disk.store)[0].manifest == newest


def test_a_full_store_does_not_keep_training_from_going_on(kit, disk):
    """The mark of a damaged checkpoint cannot be written: that is told, and the one before is used."""
    session = kit.Session(disk.store)
    session.save(1)
    newest = session.save(2)
    disk.damage(disk.only_blob(newest), kit.flip)
    store = FaultyStore(disk.store)

    def full(point):
        if point.startswith("before put"):
            raise StoreFull(problem="No space is left.", remedy="Make room.")

    store.at = full
    said = []
    loaded = load_newest(Repository(store, kit.run), lambda id, why: said.append((id, why)))
    assert loaded.manifest.progress.step == 1
    assert [id for id, _ in said] == [newest.id, newest.id]
    assert "No space is left" in said[1][1]


def test_a_reader_leaves_no_mark(kit, disk):
    """Somebody who only loads weights changes nothing in a run that may be training."""
    session = kit.Session(disk.store)
    session.save(1)
    disk.damage(disk.only_blob(session.save(2)), kit.flip)
    before, said = dict(disk.files), []
    loaded = load_newest(Repository(disk.store, kit.run), lambda id, why: said.append(id), marking=False)
    assert loaded.manifest.progress.step == 1
    assert len(said) == 1
    assert disk.files == before


def test_a_reader_that_gives_its_bytes_in_drops_is_read_whole(kit, disk):
    """A file that arrives a few bytes at a time, as over a network, is not taken for a short one."""

    class Drops(io.BytesIO):
        def read(self, size=-1):
            return super().read(min(size, 7) if size >= 0 else 7)

        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[:7])

    class Dripping(FaultyStore):
        def get(self, name):
            return Drops(super().get(name).read())

    kit.Session(disk.store).save(1)
    loaded, passed = kit.newest(Dripping(disk.store))
    assert kit.same(loaded.parts, kit.state(1))
    assert passed == {}


def test_a_checkpoint_too_large_for_this_machine_is_not_called_damaged(kit, disk):
    """When memory is short that is said, no mark is made, and the one before is tried."""
    session = kit.Session(disk.store)
    session.save(1)
    newest = session.save(2)
    huge = 2**60
    disk.damage(
        disk.manifest(newest.id),
        lambda text: reseal(text, blobs=[{**entry, "size": huge} for entry in unseal(text)["blobs"]]),
    )

    class Huge(FaultyStore):
        def list(self, prefix):
            for entry in super().list(prefix):
                mine = entry.name == disk.only_blob(newest)
                yield type(entry)(name=entry.name, size=huge if mine else entry.size)

    loaded, passed = kit.newest(Huge(disk.store))
    assert loaded.manifest.progress.step == 1
    assert "bytes of memory" in passed[newest.id]
    assert Repository(disk.store, kit.run).quarantined() == set()


def test_a_size_that_nobody_has_is_refused_before_memory_is_asked_for(kit, disk):
    """A manifest that claims an exabyte is compared with the file's size first."""
    saved = kit.Session(disk.store).save(1)
    disk.damage(
        disk.manifest(saved.id),
        lambda text: reseal(text, blobs=[{**entry, "size": 2**60} for entry in unseal(text)["blobs"]]),
    )
    with pytest.raises(CheckpointDamaged, match="bytes, written were"):
        load_id(Repository(disk.store, kit.run), saved.id)


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"$tensor": [0, "gone"]}},
        {"model": {"$tensor": [5, "x"]}},
        {"model": {"$call": "os.system"}},
        {"model": {"$float": "00"}},
    ],
    ids=str,
)
def test_a_manifest_that_was_made_up_is_walked_past(kit, disk, parts):
    """A state that no save can have written is damage, not a crash."""
    session = kit.Session(disk.store)
    good, bad = session.save(1), session.save(2)
    disk.damage(disk.manifest(bad.id), lambda text: reseal(text, parts=parts))
    loaded, passed = kit.newest(disk.store)
    assert loaded.manifest == good
    assert list(passed) == [bad.id]


def test_a_later_session_is_newer_than_a_further_step(kit, disk):
    """After a walk back, or beside a forgotten notebook, the line that was continued last is the run's."""
    store = FaultyStore(disk.store)
    first = kit.Session(store, "ffffffff")
    for step in (10, 20):
        first.save(step)

    def take_over(point):  # in the moment between the last look at the leases and the commit
        if point == f"before put {kit.run}/checkpoints/000000000030-ffffffff.json":
            kit.Session(disk.store, "00000000", resume=kit.newest(disk.store)[0]).save(25)

    store.at = take_over
    first.save(30)
    steps = [int(id[:12]) for id in newest_first(Repository(disk.store, kit.run))]
    assert steps == [25, 30, 20, 10]


def test_the_order_survives_a_lost_lease(kit, disk):
    """When the record of a session is gone, its checkpoints still come after those of the session before."""
    first = kit.Session(disk.store, "ffffffff")
    first.save(10)
    second = kit.Session(disk.store, "00000000", resume=kit.newest(disk.store)[0])
    second.save(11)
    for name in disk.names("lease/"):
        del disk.files[name]
    assert kit.newest(disk.store)[0].manifest.progress.step == 11
    third = kit.Session(disk.store, "11111111", resume=kit.newest(disk.store)[0])
    third.save(5)
    assert third.lease.fence == 3
    assert kit.newest(disk.store)[0].manifest.session == "11111111"


def test_any_checkpoint_can_be_asked_for_by_its_id(kit, disk):
    """An older state is loaded when that is what the user wants; a wrong id is answered with those there are."""
    session = kit.Session(disk.store)
    first, second = session.save(1), session.save(2)
    repository = Repository(disk.store, kit.run)
    assert kit.same(load_id(repository, first.id).parts, kit.state(1))
    with pytest.raises(CheckpointNotFound) as caught:
        load_id(repository, "../../etc/passwd")
    assert second.id in caught.value.remedy


def test_the_best_checkpoint_is_loaded_or_the_next_best(kit, disk):
    """The lowest loss wins; if its file is damaged, the next lowest; without the metric, an error that says so."""
    session = kit.Session(disk.store)
    for step, loss in ((1, 0.3), (2, 0.1), (3, 0.2), (4, float("nan"))):
        saved = session.save(step, loss=loss)
        if step == 2:
            best = saved
    repository = Repository(disk.store, kit.run)
    assert load_best(repository, KeepBest(n=1, monitor="loss", mode="min")).manifest == best
    assert load_best(repository, KeepBest(n=1, monitor="loss", mode="max")).manifest.progress.step == 1
    disk.damage(disk.only_blob(best), kit.flip)
    again = Repository(disk.store, kit.run)
    assert load_best(again, KeepBest(n=1, monitor="loss", mode="min")).manifest.progress.step == 3
    with pytest.raises(CheckpointNotFound, match="accuracy"):
        load_best(again, KeepBest(n=1, monitor="accuracy", mode="max"))


def test_pruning_leaves_other_lines_alone(kit, disk):
    """A session prunes what it came from; what an abandoned line wrote is not its own to delete."""
    first = kit.Session(disk.store, "aaaaaaaa")
    saved = [first.save(step) for step in (10, 20, 30)]
    disk.damage(disk.only_blob(saved[2]), kit.flip)
    loaded, _ = kit.newest(disk.store)
    assert loaded.manifest == saved[1]
    second = kit.Session(disk.store, "bbbbbbbb", keep=KeepLast(1), resume=loaded)
    last = second.save(25)
    assert Repository(disk.store, kit.run).ids() == {saved[2].id, last.id}, "quarantined: kept; its own line: pruned"
    fresh = kit.Session(disk.store, "cccccccc", keep=KeepLast(1))
    fresh.save(1)
    fresh.save(2)
    assert Repository(disk.store, kit.run).ids() == {saved[2].id, last.id, "000000000002-cccccccc"}


def test_a_manifest_is_plain_json(kit, disk):
    """Anybody can read by eye, or with any tool, what a checkpoint is."""
    saved = kit.Session(disk.store).save(1, val_loss=0.5)
    record = json.loads(disk.files[disk.manifest(saved.id)])
    assert record["progress"]["step"] == 1
    assert record["metrics"] == {"val_loss": 0.5}
    assert record["parts"]["notes"] == {"step": 1, "text": "step 1"}


def test_a_store_that_fails_for_a_moment_does_not_cost_the_newest_checkpoint(kit, disk):
    """A drive that hiccups while it is read is asked again, with a pause: going on from an older one would give up what
    was trained since."""
    session = kit.Session(disk.store)
    session.save(1)
    newest = session.save(2)
    failures, slept = [], []

    def hiccup(point):
        if point == f"before get {disk.only_blob(newest)}" and len(failures) < 2:
            failures.append(point)
            raise StoreUnavailable(problem="The drive hiccups.", remedy="Wait.")

    repository = Repository(FaultyStore(disk.store, at=hiccup), kit.run)
    passed = []
    loaded = load_newest(repository, lambda id, why: passed.append(id), sleep=slept.append)
    assert (loaded.manifest, passed) == (newest, [])
    assert len(failures) == len(slept) == 2


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew_in_silence(kit, disk):
    """Its journal knows of them: somebody emptied the folder, or the storage shows half of what it has."""
    session = kit.Session(disk.store, keep=KeepLast(1))
    first, second = session.save(1), session.save(2)
    for manifest in (first, second):
        session.journal.add({"event": "SaveCommitted", "checkpoint": manifest.id})
    session.committer.finish()
    for name in (*disk.names("checkpoints"), *disk.names("blobs")):
        del disk.files[name]
    with pytest.raises(NoUsableCheckpoint, match="no checkpoint any more") as caught:
        load_newest(Repository(disk.store, kit.run), lambda *_: None)
    assert second.id in caught.value.problem
    assert first.id not in caught.value.problem, "that one was pruned"
    assert "resume=" in caught.value.remedy


def test_a_run_that_was_killed_before_its_first_save_begins_anew(kit, disk):
    """It has a lease and no journal."""
    kit.Session(disk.store)
    assert load_newest(Repository(disk.store, kit.run), lambda *_: None) is None

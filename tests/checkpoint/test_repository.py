"""The order in which things come and go, so that there is always a checkpoint that can be loaded."""

from __future__ import annotations

import pytest

from colabkeep.checkpoint.codec import encode_parts
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.retention import KeepLast, remove
from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointUnsupported,
    NameTaken,
    NotStorable,
    StoreUnavailable,
    UsageError,
)
from colabkeep.core.layout import seal, unseal
from colabkeep.core.manifest import FORMAT
from colabkeep.stores.base import BytesSource, StoreProperties
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.faults import FaultyStore

GONE = StoreUnavailable(problem="The place does not answer.", remedy="Wait.")


def points(store, verb):
    return [point.split()[2] for point in store.points if point.startswith(f"before {verb} ")]


def test_a_checkpoint_comes_back_whole(kit, disk):
    """What was committed is loaded equal, and its manifest says what it was."""
    saved = kit.Session(disk.store).save(7, val_loss=0.25)
    repository = Repository(disk.store, kit.run)
    manifest = repository.manifest(saved.id)
    assert manifest == saved
    assert kit.same(repository.load(manifest), kit.state(7))
    assert (manifest.progress.step, manifest.metrics, manifest.reason) == (7, {"val_loss": 0.25}, "steps")
    assert manifest.fingerprint == {"threads": "1"}


def test_the_manifest_is_written_last(kit, disk):
    """A checkpoint exists when all it names is there, and never before."""
    store = FaultyStore(disk.store)
    saved = kit.Session(store).save(7)
    puts = [name for name in points(store, "put") if "/blobs/" in name or "/checkpoints/" in name]
    assert puts == [disk.only_blob(saved), disk.manifest(saved.id)]


def test_a_state_that_did_not_change_writes_no_blob(kit, disk):
    """Saving the same state again costs a manifest."""
    session = kit.Session(disk.store)
    first, second = session.save(1, kit.state(1)), session.save(2, kit.state(1))
    assert first.blobs == second.blobs
    assert len(disk.names("blobs/")) == 1
    written = [event.written for event in session.events if type(event).__name__ == "SaveCommitted"]
    assert written == [first.total_bytes, 0]


def test_what_is_frozen_is_written_once_in_a_run(kit, disk):
    """A frozen backbone costs its bytes once, in this session and the next."""
    store = FaultyStore(disk.store)
    first = kit.Session(store)
    saved = [first.save(step, kit.state(step, frozen=True)) for step in (1, 2)]
    second = kit.Session(store, "bbbbbbbb", resume=kit.newest(store)[0])
    saved.append(second.save(3, kit.state(3, frozen=True)))
    shared = set.intersection(*({blob.file for blob in manifest.blobs} for manifest in saved))
    assert len(shared) == 1
    assert [name for name in points(store, "put") if "/blobs/" in name].count(f"{kit.run}/blobs/{shared.pop()}") == 1


def test_a_damaged_blob_is_not_believed_and_not_touched(kit, disk, damage):
    """When the same bytes come again and the file that should hold them is bad, a good copy is written beside it."""
    first = kit.Session(disk.store).save(1)
    disk.damage(disk.only_blob(first), damage)
    before = disk.files.get(disk.only_blob(first))
    again = kit.Session(disk.store, "bbbbbbbb").save(2, kit.state(1))
    assert kit.same(Repository(disk.store, kit.run).load(again), kit.state(1))
    if before is not None:
        assert disk.files[disk.only_blob(first)] == before
        assert disk.only_blob(again).endswith("-bbbbbbbb.safetensors")
        third = kit.Session(disk.store, "bbbbbbbb").save(3, kit.state(1))
        assert third.blobs == again.blobs, "the good copy is found again"


def test_a_blob_that_cannot_be_read_for_now_is_written_beside_the_one_that_is_there(kit, disk):
    """With Drive away, a session that goes on from it can save on its own disk, its frozen layers too."""
    kit.Session(disk.store).save(1, kit.state(1))
    behind, front = FaultyStore(disk.store), MemoryStore()
    store = TieredStore(front, behind)

    def away(point):
        if "run/blobs/" in point:
            raise GONE

    session = kit.Session(store, "bbbbbbbb")
    behind.at = away
    saved = [session.save(step, kit.state(1)) for step in (2, 3)]
    assert disk.only_blob(saved[0]).endswith("-bbbbbbbb.safetensors")
    assert saved[1].blobs == saved[0].blobs, "once for the session"
    assert kit.same(Repository(front, kit.run).load(saved[1]), kit.state(1))
    behind.at = lambda point: None
    store.flush(30.0)
    store.close()


def test_a_blob_in_a_store_that_does_not_answer_is_not_sent_again(kit, disk):
    """Where there is no disk in front, a moment's silence costs another attempt and not another upload."""
    kit.Session(disk.store).save(1, kit.state(1))
    store = FaultyStore(disk.store)
    session = kit.Session(store, "bbbbbbbb")

    def away(point):
        if point.startswith("before get run/blobs/"):
            raise GONE

    store.at = away
    with pytest.raises(StoreUnavailable):
        session.save(2, kit.state(1))
    store.at = lambda point: None
    session.save(2, kit.state(1))
    assert len(disk.names("blobs/")) == 1


def test_a_copy_that_cannot_be_read_for_now_is_not_called_damaged(kit, disk):
    """A storage that does not answer at all fails the save as what it is: it is tried again."""
    kit.Session(disk.store).save(1, kit.state(1))
    disk.damage(next(iter(disk.names("blobs/"))), bytes.swapcase)
    kit.Session(disk.store, "bbbbbbbb").save(2, kit.state(1))
    store = FaultyStore(disk.store)

    def away(point):
        if point.startswith("before get run/blobs/"):
            raise GONE

    session = kit.Session(store, "bbbbbbbb")
    store.at = away
    with pytest.raises(StoreUnavailable):
        session.save(3, kit.state(1))


def test_a_storage_that_spoils_what_it_is_given_is_told_of(kit, disk):
    """When the copy beside a damaged blob is damaged too, the save fails with the reason."""
    session = kit.Session(disk.store)
    (blob,) = session.save(1).blobs
    for name in (blob.file, f"{blob.sha256}-bbbbbbbb.safetensors"):
        disk.files[f"{kit.run}/blobs/{name}"] = b"spoiled"
    with pytest.raises(CheckpointDamaged, match="both not what was written"):
        kit.Session(disk.store, "bbbbbbbb").save(2, kit.state(1))


def test_a_blob_that_a_lagging_listing_does_not_show_is_used_all_the_same(kit, disk):
    """A name that turns out to be taken is looked at, not failed over."""
    repository = kit.Session(disk.store).repository
    (pack,) = encode_parts(kit.state(1)).packs
    first, written = repository.blobs.put(pack, "aaaaaaaa", {})
    again, nothing = repository.blobs.put(pack, "aaaaaaaa", {})
    assert (again, nothing) == (first, 0)
    assert written == pack.size


def test_a_blob_that_vanishes_during_a_save_takes_the_checkpoint_back(kit, disk):
    """A manifest whose blob was taken away meanwhile does not stay as the newest checkpoint."""
    store = FaultyStore(disk.store)
    session = kit.Session(store)
    kept = session.save(1)

    def steal(point):
        if point.startswith("before put run/checkpoints/000000000002"):
            for name in disk.names("blobs/"):
                if name != disk.only_blob(kept):
                    del disk.files[name]

    store.at = steal
    with pytest.raises(CheckpointDamaged, match="vanished"):
        session.save(2)
    assert session.repository.ids() == {kept.id}
    store.at = lambda point: None
    assert kit.same(session.repository.load(session.save(2)), kit.state(2)), "the next attempt writes it again"


def test_a_failed_look_back_does_not_undo_a_checkpoint(kit, disk):
    """When all was written and only the listing afterwards fails, the checkpoint stands."""
    store = FaultyStore(disk.store)
    session = kit.Session(store)

    def away_after_commit(point):
        if point == "before list run/blobs" and any("after put run/checkpoints/" in seen for seen in store.points):
            raise GONE

    store.at = away_after_commit
    saved = session.save(1)
    assert session.committer.newest == saved.id
    assert kit.same(kit.newest(disk.store)[0].parts, kit.state(1))


def test_a_state_too_large_for_a_manifest_is_refused_before_it_is_the_newest(kit, disk):
    """Text that a resume would refuse to read is refused when it is saved, and the checkpoint before stays."""
    session = kit.Session(disk.store, keep=KeepLast(1))
    kept = session.save(1)
    with pytest.raises(NotStorable, match="MiB of plain values"):
        session.save(2, {"notes": {"log": "x" * (64 * 2**20)}})
    assert session.repository.ids() == {kept.id}


def test_two_checkpoints_of_one_step_have_two_names(kit, disk):
    """A step can be saved twice, with other metrics for example; the later one is the newer."""
    session = kit.Session(disk.store)
    ids = [session.save(5).id for _ in range(3)]
    assert ids == ["000000000005-aaaaaaaa", "000000000005-aaaaaaaa-1", "000000000005-aaaaaaaa-2"]
    assert kit.newest(disk.store)[0].manifest.id == ids[-1]


def test_pruning_takes_manifests_before_blobs(kit, disk):
    """A kill in the middle of pruning leaves blobs too many, never a manifest that names what is gone."""
    store = FaultyStore(disk.store)
    session = kit.Session(store, keep=KeepLast(1))
    for step in (1, 2, 3):
        session.save(step)
    deletes = ["/checkpoints/" in name for name in points(store, "delete") if "/journal/" not in name]
    assert deletes == [True, False, True, False]
    assert len(disk.names("blobs/")) == len(disk.names("checkpoints/")) == 1


def test_pruning_keeps_what_another_checkpoint_names(kit, disk):
    """A blob that two checkpoints share lives as long as one of them."""
    session = kit.Session(disk.store, keep=KeepLast(1))
    session.save(1, kit.state(1, frozen=True))
    last = session.save(2, kit.state(2, frozen=True))
    assert kit.same(Repository(disk.store, kit.run).load(last), kit.state(2, frozen=True))
    assert set(disk.names("blobs/")) == {f"{kit.run}/blobs/{blob.file}" for blob in last.blobs}


def test_pruning_keeps_what_the_listing_does_not_show_yet(kit, disk):
    """On a store whose listings lag, what this session has just committed is not taken for an orphan."""

    class Lagging(MemoryStore):
        hidden = ""

        @property
        def properties(self):
            return StoreProperties(top_level="local", lists_lag=True)

        def list(self, prefix):
            return [entry for entry in super().list(prefix) if not (self.hidden and self.hidden in entry.name)]

    store = Lagging()
    session = kit.Session(store)
    old = session.save(1)
    newest = session.save(2)
    store.hidden = newest.id
    remove(session.repository, [old])
    store.hidden = ""
    assert kit.same(Repository(store, kit.run).load(newest), kit.state(2))


def test_left_over_blobs_of_a_killed_save_are_removed(kit, disk):
    """What a save wrote before it was killed goes with the next pruning."""
    session = kit.Session(disk.store, keep=KeepLast(1))
    (pack,) = encode_parts(kit.state(99)).packs
    session.repository.blobs.put(pack, "aaaaaaaa", {})
    session.save(1)
    session.save(2)
    assert len(disk.names("blobs/")) == 1


def test_orphans_stay_while_a_manifest_cannot_be_read(kit, disk):
    """Blobs that an unreadable manifest may name are kept for whoever wants to rescue it."""
    rescued = kit.Session(disk.store).save(1)
    disk.damage(disk.manifest(rescued.id), kit.flip)
    session = kit.Session(disk.store, "bbbbbbbb", keep=KeepLast(1))
    session.save(2)
    session.save(3)
    assert disk.only_blob(rescued) in disk.files
    assert len(disk.names("blobs/")) == 2


def test_a_mark_protects_what_it_names_when_all_manifests_can_be_read_again(kit, disk):
    """The blobs of a checkpoint that is in quarantine stay, also when its manifest is gone altogether."""
    rescued = kit.Session(disk.store).save(1)
    disk.damage(disk.manifest(rescued.id), kit.flip)
    Repository(disk.store, kit.run).quarantine(rescued.id, "its manifest is damaged")
    del disk.files[disk.manifest(rescued.id)]
    session = kit.Session(disk.store, "bbbbbbbb", keep=KeepLast(1))
    session.save(2)
    session.save(3)
    assert disk.only_blob(rescued) in disk.files


@pytest.mark.parametrize(
    "mark",
    [b"garbage", b"", seal({"id": 1}), seal({"protects": 5}), seal({"protects": None}), b"[" * 10**6],
    ids=["garbage", "empty", "no list", "a number", "null", "deep"],
)
def test_a_mark_that_cannot_be_read_stops_pruning_but_not_saving(kit, disk, mark):
    """Nobody knows what it protects, so nothing is deleted, and the user is told; checkpoints go on."""
    session = kit.Session(disk.store, keep=KeepLast(1))
    first = session.save(1)
    disk.files[f"{kit.run}/aside/000000000009-cccccccc.json"] = mark
    second = session.save(2)
    assert session.repository.ids() == {first.id, second.id}
    assert "Old checkpoints could not be deleted" in session.events[-1].text
    del disk.files[f"{kit.run}/aside/000000000009-cccccccc.json"]
    third = session.save(3)
    assert session.repository.ids() == {third.id}


def test_strange_files_beside_the_marks_stop_nothing(kit, disk):
    """A file that a drive's own program leaves in a folder is not a mark."""
    session = kit.Session(disk.store, keep=KeepLast(1))
    disk.files.update({f"{kit.run}/aside/desktop.ini": b"[x]", f"{kit.run}/checkpoints/desktop.ini": b"[x]"})
    session.save(1)
    second = session.save(2)
    assert session.repository.ids() == {second.id}


def test_a_mark_lists_once_and_for_all(kit, disk):
    """Setting the same checkpoint aside again changes nothing."""
    saved = kit.Session(disk.store).save(1)
    disk.damage(disk.only_blob(saved), kit.flip)
    repository = Repository(disk.store, kit.run)
    repository.quarantine(saved.id, "first")
    repository.quarantine(saved.id, "second")
    record = repository.sealed_record(f"aside/{saved.id}.json")
    assert (record["reason"], record["protects"]) == ("first", [blob.file for blob in saved.blobs])


def test_a_run_belongs_to_the_version_that_knows_its_format(kit, disk):
    """An older colabkeep does not write into a run that a newer one has begun, and changes nothing."""
    record = {"format": FORMAT + 1, "run": kit.run, "id": "x", "created": 0}
    disk.store.put(f"{kit.run}/run.json", BytesSource(seal(record)))
    with pytest.raises(CheckpointUnsupported, match="format"):
        Repository(disk.store, kit.run).open_run(created=1.0, run_id="y")
    assert unseal(disk.files[f"{kit.run}/run.json"]) == record


def test_the_run_record_is_written_once(kit, disk):
    """When a run began stays what it was, in all later sessions."""
    Repository(disk.store, kit.run).open_run(created=1.0, run_id="first")
    Repository(disk.store, kit.run).open_run(created=2.0, run_id="second")
    assert unseal(disk.files[f"{kit.run}/run.json"])["id"] == "first"


@pytest.mark.parametrize("name", ["", "..", "a/../b", "/etc", "a\\b", ".hidden", "a//b", "a\n", "a ", "a" * 600])
def test_a_run_name_cannot_leave_the_store(name):
    """A run may be called in any script; what could lead elsewhere is refused."""
    with pytest.raises(UsageError):
        Repository(MemoryStore(), name)


def test_the_same_name_is_never_written_twice(kit, disk):
    """No file of a run is ever overwritten: a store that refuses to is all that is needed."""
    saved = kit.Session(disk.store).save(1)
    with pytest.raises(NameTaken):
        Repository(disk.store, kit.run).commit(saved)
    assert kit.same(Repository(disk.store, kit.run).load(saved), kit.state(1))


def test_only_the_blobs_that_are_needed_are_read(kit, disk):
    """Loading one part of a checkpoint does not read the rest of it."""
    saved = kit.Session(disk.store).save(1, kit.state(1, frozen=True))
    store = FaultyStore(disk.store)
    parts = Repository(store, kit.run).load(saved, ["notes"])
    assert kit.same(parts, {"notes": kit.state(1)["notes"]})
    assert points(store, "get") == []

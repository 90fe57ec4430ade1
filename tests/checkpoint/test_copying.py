"""`colabkeep copy`: whole checkpoints to another store or another name; never less than what was read, never twice."""

from __future__ import annotations

import pytest

from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import load_newest
from colabkeep.checkpoint.verify import audit
from colabkeep.core.errors import CheckpointDamaged, RunBusy, StoreError, StoreFull, StoreUnavailable, UsageError
from colabkeep.core.layout import seal, unseal
from colabkeep.core.manifest import FORMAT
from colabkeep.core.system import SystemClock
from colabkeep.session.copy import copy_run, plan_copy
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.faults import FaultyStore


@pytest.fixture
def saved(kit, disk):
    """Three checkpoints that share a blob, and a journal."""
    session = kit.Session(disk.store)
    found = [session.save(step, kit.state(step, frozen=True)) for step in (1, 2, 3)]
    session.journal.add({"event": "Noted", "text": "x"})
    session.journal.write()
    return found


def copied(disk, target, name="run", **words):
    return copy_run(Repository(disk.store, "run"), Repository(target, name), SystemClock(), **words)


def newest(store, name="run"):
    passed = []
    loaded = load_newest(Repository(store, name), lambda id, why: passed.append(id))
    return loaded, passed


def states(store, name="run"):
    return {finding.state for finding in audit(Repository(store, name))}


def test_a_copy_is_the_run_to_the_last_byte(disk, saved, tmp_path):
    """Every file of the run lies in the other store as it was, the source is as before, and what was said is true."""
    before, target, seen = dict(disk.files), DirectoryStore(tmp_path), []
    found = copied(disk, target, watch=lambda name, size: seen.append((name, size)))
    assert found.arrived
    assert found.checkpoints == tuple(manifest.id for manifest in reversed(saved))
    assert disk.files == before
    assert {entry.name for entry in target.list("")} == set(before)
    for name, data in before.items():
        with target.get(name) as reader:
            assert reader.read() == data
    assert (found.written, found.bytes) == (len(seen), sum(size for _, size in seen))
    assert found.bytes == sum(map(len, before.values()))
    assert states(target) == {"ok"}


def test_the_copy_may_have_another_name(kit, disk, saved):
    """Also in the same store; it goes on as a run of its own, with all that a newer version wrote beside the name."""
    disk.damage(disk.manifest(saved[2].id), lambda text: seal({**unseal(text), "surprise": {"a": 1}}))
    copied(disk, disk.store, "other/name")
    loaded, passed = newest(disk.store, "other/name")
    assert not passed
    assert (loaded.manifest.run, loaded.manifest.unknown) == ("other/name", {"surprise": {"a": 1}})
    assert kit.same(loaded.parts, kit.state(3, frozen=True))
    assert states(disk.store, "other/name") == states(disk.store) == {"ok"}


def nth_put(n, when):
    """A fault before or after the n-th object is written."""
    count = iter(range(1, 1000))

    def at(point):
        if point.startswith(f"{when} put") and next(count) == n:
            raise StoreUnavailable(problem="The drive is away.", remedy="Wait.")

    return at


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_copy_that_is_broken_off_anywhere_is_taken_up_again(disk, saved, when):
    """At each write in turn: whatever lies there then is never an older checkpoint without the newest, and the same
    command makes the copy whole without writing anything twice."""
    whole = MemoryStore()
    writes = copied(disk, whole).written
    for broken in range(1, writes + 1):
        inner = MemoryStore()
        with pytest.raises(StoreError):
            copied(disk, FaultyStore(inner, at=nth_put(broken, when)))
        there = {name for name in inner._objects if "/checkpoints/" in name}
        assert not there or f"run/checkpoints/{saved[2].id}.json" in there
        again = copied(disk, inner)
        done = broken - 1 if when == "before" else broken
        assert (again.written, again.there) == (writes - done, done)
        assert inner._objects == whole._objects


def test_a_damaged_checkpoint_is_left_out_and_told(kit, disk, saved, damage):
    """Nothing damaged is ever written to the target, and those before it are there."""
    (own,) = {blob.file for blob in saved[2].blobs} - {blob.file for blob in saved[1].blobs}
    disk.damage(f"run/blobs/{own}", damage)
    target = MemoryStore()
    found = copied(disk, target)
    assert set(found.left_out) == {saved[2].id}
    assert not found.newer
    assert found.arrived
    assert newest(target)[0].manifest == saved[1]
    assert f"run/blobs/{own}" not in target._objects
    assert states(target) <= {"ok", "missing"}  # the journal knows of one more


def test_what_is_newer_is_left_out_as_such(disk, saved):
    """A checkpoint of a newer version is not called damaged."""
    disk.damage(disk.manifest(saved[2].id), lambda text: seal({**unseal(text), "format": FORMAT + 1}))
    found = copied(disk, MemoryStore())
    assert (set(found.left_out), found.newer) == ({saved[2].id}, {saved[2].id})
    assert "newer" in found.left_out[saved[2].id] or "format" in found.left_out[saved[2].id]


def test_what_the_target_holds_is_read_again(disk, saved, damage):
    """A target that has other bytes under a name is an error that names the file: it is not called a copy."""
    target = MemoryStore()
    copied(disk, target)
    name = disk.only_blob(saved[0]) if len(saved[0].blobs) == 1 else f"run/blobs/{saved[0].blobs[0].file}"
    changed = damage(target._objects[name])
    if changed is None:
        del target._objects[name]
        assert copied(disk, target).written == 1
        return
    target._objects[name] = changed
    with pytest.raises(CheckpointDamaged, match="does not hold"):
        copied(disk, target)


def test_the_place_that_lasts_is_what_is_verified(disk, saved):
    """Of a pair of stores the slower side is written to, and read; this machine needs no room for it."""
    behind = MemoryStore()
    target = TieredStore(MemoryStore(), behind)
    try:
        assert copied(disk, target).arrived
        assert behind._objects == disk.files
        assert not target.front._objects
        name = f"run/blobs/{saved[0].blobs[0].file}"
        behind._objects[name] = behind._objects[name][:-1] + b"\xff\xff"
        with pytest.raises(CheckpointDamaged, match="does not hold"):
            copied(disk, target)
    finally:
        target.close()


@pytest.mark.parametrize(
    "refusal",
    [StoreError(problem="You may not write.", remedy="Ask."), StoreFull(problem="It is full.", remedy="Make room.")],
    ids=["forbidden", "full"],
)
def test_a_place_that_refuses_is_an_error_with_what_to_do(disk, saved, refusal):
    """Said at once, with the next step; what arrived stays, and the same command brings the rest."""

    def refuse(point):
        if point.startswith("before put run/checkpoints/"):
            raise refusal

    behind = FaultyStore(MemoryStore(), at=refuse)
    target = TieredStore(MemoryStore(), behind)
    try:
        with pytest.raises(StoreError, match=f"not complete: {refusal.problem}") as caught:
            copied(disk, target)
        assert caught.value.remedy.startswith(refusal.remedy)
        assert "same command again" in caught.value.remedy
        behind.at = lambda _: None
        again = copied(disk, target)
        assert (again.arrived, again.trouble, states(behind)) == (True, None, {"ok"})
        assert again.there
    finally:
        target.close()


def test_a_place_that_has_not_confirmed_is_not_called_verified(disk, saved):
    """A mounted Drive that uploads by itself and is not through: what it lacks, and why, is said."""

    class Slow(FaultyStore):
        degraded = "The upload waits."

        def flush(self, timeout):
            return False

    found = copied(disk, Slow(MemoryStore(), at=lambda _: None))
    assert (found.arrived, found.trouble) == (False, "The upload waits.")


def test_a_run_that_is_no_copy_is_not_touched(kit, disk, saved):
    """Another run of that name, and a copy that was trained since, are refused with the words to write."""
    other, trained = type(disk)(), MemoryStore()
    kit.Session(other.store, "bbbbbbbb").save(1)
    copied(disk, trained)
    kit.Session(trained, "cccccccc", resume=newest(trained)[0]).save(4)
    for target in (other.store, trained):
        before = dict(target._objects)
        with pytest.raises(UsageError, match="not a copy") as caught:
            copied(disk, target)
        assert "--as" in caught.value.remedy
        assert target._objects == before


def test_a_source_that_went_on_is_copied_on(kit, disk, saved):
    """The same command again brings what came since."""
    target = MemoryStore()
    copied(disk, target)
    kit.Session(disk.store, "bbbbbbbb", resume=newest(disk.store)[0]).save(4)
    assert copied(disk, target).arrived
    assert newest(target)[0].manifest.progress.step == 4


def test_a_run_is_not_copied_onto_itself(disk, saved):
    """Said before anything is done."""
    with pytest.raises(UsageError, match="where it is"):
        copied(disk, disk.store)


def test_a_target_that_is_trained_is_refused(disk, saved, tmp_path):
    """Its lock is held."""
    target = DirectoryStore(tmp_path)
    with target.lock("run/lease/lock", "me"), pytest.raises(RunBusy):
        copied(disk, target)


def test_a_dry_run_says_what_would_be_copied_and_writes_nothing(disk, saved):
    """The same numbers, before and after."""
    target = MemoryStore()
    plan = plan_copy(Repository(disk.store, "run"), Repository(target, "run"))
    assert not target._objects
    done = copied(disk, target)
    assert (plan.checkpoints, plan.written, plan.bytes) == (done.checkpoints, done.written, done.bytes)
    after = plan_copy(Repository(disk.store, "run"), Repository(target, "run"))
    assert (after.written, after.there) == (0, done.written)

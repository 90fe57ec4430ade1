"""`colabkeep prune`: says what would be deleted, does just that, under the run's lock, and can be begun again."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.checkpoint.verify import audit
from colabkeep.core.errors import RunBusy, StoreUnavailable
from colabkeep.core.system import SystemClock
from colabkeep.session.open import take_lock
from colabkeep.session.prune import plan_prune, prune
from colabkeep.stores import open_store
from colabkeep.stores.base import StoreProperties
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyStore

AWAY = StoreUnavailable(problem="The drive is away.", remedy="Wait.")


def contents(storage):
    """Path → bytes of all files but locks, which hold no data."""
    files = (path for path in Path(storage).rglob("*") if path.is_file() and not path.name.startswith(".lock"))
    return {str(path.relative_to(storage)): path.read_bytes() for path in files}


def steps(storage, run="first"):
    return sorted(int(path.stem[:12]) for path in (Path(storage) / run / "checkpoints").iterdir())


def blobs(storage, run="first"):
    return {path.name: path.stat().st_size for path in (Path(storage) / run / "blobs").iterdir()}


def states(storage, run="first"):
    return {finding.state for finding in audit(Repository(DirectoryStore(storage), run))}


def test_a_dry_run_says_what_would_go_and_touches_nothing(colabkeep_cli, storage):
    """The checkpoints by name, and the bytes that would come free; not a file is written, no lock is left."""
    before = contents(storage)
    said = colabkeep_cli("prune", "first", "--keep-last", 1, "--keep-best", 0, "--dry-run", "--storage", storage)
    assert said.status == 0
    lines = said.out.splitlines()
    assert [line.split()[0][:12] for line in lines[:2]] == ["000000000002", "000000000004"]
    assert lines[2].startswith("first: 2 checkpoint(s) and ")
    assert lines[2].endswith("would be deleted, 1 checkpoint(s) stay")
    assert contents(storage) == before


def test_what_was_said_is_what_goes(colabkeep_cli, storage):
    """The same checkpoints and the same bytes; the other run, and all that the newest needs, is untouched; an audit
    finds nothing missing; the run goes on from where it was."""
    other = contents(storage / "second")
    words = ["prune", "first", "--keep-last", 1, "--keep-best", 0, "--storage", storage, "--json"]
    planned = colabkeep_cli(*words, "--dry-run").json
    before = blobs(storage)
    done = colabkeep_cli(*words)
    assert done.status == 0
    assert {**done.json, "dry_run": True} == planned
    assert [checkpoint["step"] for checkpoint in planned["checkpoints"]] == [2, 4]
    assert sum(before.values()) - sum(blobs(storage).values()) == planned["bytes"] > 0
    assert len(before) - len(blobs(storage)) == planned["files"]
    assert (steps(storage), states(storage)) == ([6], {"ok"})
    assert contents(storage / "second") == other
    assert colabkeep_cli("verify", "--storage", storage).status == 0


def test_the_best_stay(colabkeep_cli, storage):
    """By the metric and the mode that are named; what has no such metric is judged by its age alone."""
    words = ["prune", "first", "--keep-last", 1, "--keep-best", 1, "--storage", storage]
    assert colabkeep_cli(*words, "--dry-run", "--json").json["kept"][0].startswith("000000000004")
    assert colabkeep_cli(*words, "--mode", "max", "--dry-run", "--json").json["kept"][0].startswith("000000000002")
    assert colabkeep_cli(*words).status == 0
    assert steps(storage) == [4, 6]


def test_by_default_two_and_the_best_stay(colabkeep_cli, storage):
    """The words and numbers of a training."""
    assert colabkeep_cli("prune", "first", "--storage", storage).status == 0
    assert steps(storage) == [4, 6]


def test_pruning_twice_finds_nothing_to_do(colabkeep_cli, storage):
    """And writes nothing then."""
    words = ["prune", "first", "--keep-last", 1, "--storage", storage]
    assert colabkeep_cli(*words).status == 0
    before = contents(storage)
    said = colabkeep_cli(*words)
    assert "0 checkpoint(s) and 0 B in 0 file(s) are deleted" in said.out
    assert contents(storage) == before


def test_left_overs_of_a_killed_save_go_too(colabkeep_cli, storage):
    """A blob that nothing names is counted and deleted; one that a mark protects is not."""
    orphan = storage / "first/blobs" / f"{'0' * 64}.safetensors"
    orphan.write_bytes(b"x" * 1000)
    said = colabkeep_cli("prune", "first", "--keep-last", 9, "--storage", storage, "--json").json
    assert (said["checkpoints"], said["files"], said["bytes"]) == ([], 1, 1000)
    assert not orphan.exists()
    orphan.write_bytes(b"x" * 1000)
    repository = Repository(DirectoryStore(storage), "first")
    repository.quarantine(min(repository.ids()), "why")
    assert colabkeep_cli("prune", "first", "--keep-last", 9, "--storage", storage).status == 0
    assert orphan.exists()


def test_a_run_that_is_being_trained_is_refused(colabkeep_cli, storage):
    """Its lock is held: nothing is deleted, who holds it is said, and the exit status says so."""
    before = contents(storage)
    about = {"pid": os.getpid(), "host": "here"}
    with take_lock(DirectoryStore(storage), "first", about):
        said = colabkeep_cli("prune", "first", "--keep-last", 1, "--storage", storage)
        assert said.status == 6
        assert f"process {os.getpid()} on here" in said.err
        assert colabkeep_cli("prune", "first", "--keep-last", 1, "--dry-run", "--storage", storage).status == 0
    assert contents(storage) == before


@pytest.mark.parametrize(
    ("words", "status"),
    [(["nope"], 3), (["first", "--keep-last", "0"], 2), (["first", "--keep-best", "-1"], 2)],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(colabkeep_cli, trained, words, status):
    """An unknown run, and a number that would leave nothing."""
    said = colabkeep_cli("prune", *words, "--storage", trained)
    assert said.status == status
    assert "→" in said.err


def test_both_sides_of_a_pair_are_pruned(colabkeep_cli, storage, tmp_path):
    """What goes in front goes behind: the command waits for the slower one."""
    pair = f"{storage} + {tmp_path}/behind"
    store = open_store(pair)
    take_up(Repository(store, "first"))
    assert store.flush(60)
    store.close()
    assert steps(tmp_path / "behind") == [2, 4, 6]
    said = colabkeep_cli("prune", "first", "--keep-last", 1, "--keep-best", 0, "--storage", pair)
    assert said.status == 0
    assert (steps(storage), steps(tmp_path / "behind")) == ([6], [6])
    assert blobs(storage) == blobs(tmp_path / "behind")


def test_the_slower_side_of_a_pair_is_waited_for(storage, tmp_path):
    """A drive that takes its time for each deletion has done all of them when the command ends."""
    behind = DirectoryStore(tmp_path / "behind")

    def slow(point):
        if point.startswith("before delete"):
            time.sleep(0.03)

    store = TieredStore(DirectoryStore(storage), FaultyStore(behind, at=slow))
    take_up(Repository(store, "first"))
    assert store.flush(60)
    _, caught_up = prune(store, "first", KeepLast(1), SystemClock())
    store.close()
    assert caught_up
    assert steps(tmp_path / "behind") == [6]


def test_a_killed_prune_is_taken_up_again(trained, tmp_path):
    """Stopped at any of its steps: the newest checkpoint is whole at every moment, and the second time ends with what
    the first would have; an audit finds nothing missing."""
    stopped = 0
    while True:
        storage = tmp_path / str(stopped)
        store = DirectoryStore(storage)
        for name, data in contents(trained).items():
            if name.startswith("first/"):
                (storage / name).parent.mkdir(parents=True, exist_ok=True)
                (storage / name).write_bytes(data)
        count = [0]

        def at(point, count=count, stopped=stopped):
            if point.startswith(("before delete", "before put")):
                count[0] += 1
                if count[0] == stopped + 1:
                    raise KeyboardInterrupt

        try:
            prune(FaultyStore(store, at=at), "first", KeepLast(1), SystemClock())
        except KeyboardInterrupt:
            assert steps(storage)[-1] == 6
            assert "damaged" not in states(storage)
        else:
            break
        plan, _ = prune(store, "first", KeepLast(1), SystemClock())
        assert (steps(storage), states(storage)) == ([6], {"ok"})
        assert len(plan.kept) == 1
        stopped += 1
    assert stopped > 6


class Remote(MemoryStore):
    """A place that cannot lock."""

    @property
    def properties(self):
        return StoreProperties(top_level="local", persists=True)


def filled(trained):
    remote = Remote()
    for name, data in contents(trained).items():
        remote._objects[name] = data
    return remote


def test_where_locks_cannot_be_had_a_session_that_may_live_is_refused(trained):
    """On another machine, heard of half an hour ago, and not that it stopped: pruning would end it. Two hours of
    silence later it is gone. One that said that it stopped does not count."""
    remote, clock = filled(trained), FakeClock(time=time.time())
    plan, _ = prune(filled(trained), "first", KeepLast(1), clock)
    assert len(plan.doomed) == 2, "it had stopped"
    repository = Repository(remote, "first")
    take_lease(repository, "99999999", {"host": "colab-7", "pid": 1, "started": clock.time()})
    clock.advance(1800)
    before = dict(remote._objects)
    with pytest.raises(RunBusy) as caught:
        prune(remote, "first", KeepLast(1), clock)
    assert "colab-7" in caught.value.problem
    assert "30 min ago" in caught.value.problem
    assert "prune in 30 min" in caught.value.remedy
    assert remote._objects == before
    clock.advance(7200)
    plan, caught_up = prune(remote, "first", KeepLast(1), clock)
    assert (len(plan.doomed), caught_up) == (2, True)


def test_a_session_killed_on_this_very_machine_is_known_to_be_gone(trained):
    """It would hold the lock, where there are locks."""
    store, clock = MemoryStore(), FakeClock(time=time.time())
    store._objects.update(filled(trained)._objects)
    about = {"host": socket.gethostname(), "pid": 1, "started": clock.time()}
    take_lease(Repository(store, "first"), "99999999", about)
    plan, _ = prune(store, "first", KeepLast(1), clock)
    assert len(plan.doomed) == 2


def test_whoever_prunes_outranks_a_session_that_was_thought_gone(trained):
    """It finds a higher number before its next commit: two writers never work on one run."""
    remote, clock = filled(trained), FakeClock(time=time.time())
    old = take_lease(Repository(remote, "first"), "99999999", {"host": "colab-7", "started": clock.time()})
    clock.advance(7200)
    prune(remote, "first", KeepLast(1), clock)
    with pytest.raises(Exception, match="taken over"):
        old.check()


def test_what_lies_apart_goes_only_when_asked_for(colabkeep_cli, storage):
    """Checkpoints that are not on the newest one's line are shown, stay, and go with --apart."""
    repository = Repository(DirectoryStore(storage), "first")
    manifest = repository.manifest(max(repository.ids()))
    early = manifest.progress._replace(step=1)
    apart = replace(manifest, id="000000000001-eeeeeeee", session="eeeeeeee", fence=0, progress=early)
    repository.commit(apart)
    shown = colabkeep_cli("show", "first", "--storage", storage)
    assert "apart: not on the line of the newest checkpoint" in shown.out
    words = ["prune", "first", "--keep-last", 9, "--storage", storage]
    assert apart.id in colabkeep_cli(*words, "--json").json["kept"]
    said = colabkeep_cli(*words, "--apart", "--json").json
    assert [checkpoint["id"] for checkpoint in said["checkpoints"]] == [apart.id]
    assert steps(storage) == [2, 4, 6]


def test_a_checkpoint_that_is_all_that_a_lost_machine_would_leave_stays(trained, tmp_path):
    """The newest are on this machine only: the last one that has arrived behind is not deleted, whatever is asked."""
    behind = DirectoryStore(tmp_path / "behind")
    front = DirectoryStore(trained)
    for name, data in contents(trained).items():
        if name.startswith("first/") and "000000000004" not in name and "000000000006" not in name:
            (tmp_path / "behind" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "behind" / name).write_bytes(data)
    store = TieredStore(front, behind)
    plan = plan_prune(Repository(store, "first"), KeepLast(1))
    assert [manifest.progress.step for manifest in plan.doomed] == [4]
    store.close()


def test_a_drive_that_is_away_is_said(trained, tmp_path):
    """Nothing is deleted, and it is an error of the storage."""
    store = FaultyStore(DirectoryStore(trained), at=lambda point: (_ for _ in ()).throw(AWAY))
    with pytest.raises(StoreUnavailable):
        plan_prune(Repository(store, "first"), KeepLast(1))


def test_nothing_goes_before_the_newest_has_arrived_where_it_lasts(storage, tmp_path):
    """The newest checkpoint is on this machine only, and the drive does not take it: what it has stays."""
    behind = tmp_path / "behind"
    store = TieredStore(DirectoryStore(storage), DirectoryStore(behind))
    take_up(Repository(store, "first"))
    assert store.flush(60)
    store.close()
    newest = max((behind / "first" / "checkpoints").iterdir())
    newest.unlink()

    def refuse(point):
        if point.startswith("before put first/checkpoints/"):
            raise AWAY

    there = steps(behind)
    store = TieredStore(DirectoryStore(storage), FaultyStore(DirectoryStore(behind), at=refuse), pauses=(0.01, 0.02))
    store.flush = lambda seconds: TieredStore.flush(store, 1.0)
    with pytest.raises(StoreUnavailable, match="Nothing was deleted"):
        prune(store, "first", KeepLast(1), SystemClock())
    store.close()
    assert (steps(storage), steps(behind)) == ([2, 4, 6], there)


def test_the_newest_that_left_the_machine_stays_where_nothing_is_ever_confirmed(storage):
    """A place that cannot state digests was given the older two; the newest is on its way."""
    newest = max((storage / "first" / "checkpoints").iterdir()).stem

    class Silent(DirectoryStore):
        @property
        def properties(self):
            return StoreProperties(top_level="confirmed", persists=True)

        def confirm(self, receipt):
            return replace(receipt, level="local" if newest in receipt.name else "sent")

    plan = plan_prune(Repository(Silent(storage), "first"), KeepLast(1))
    assert [manifest.progress.step for manifest in plan.doomed] == [2]

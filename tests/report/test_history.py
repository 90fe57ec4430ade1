"""What became of a run, read from what its sessions left behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from colabkeep.checkpoint.journal import read_segment
from colabkeep.core.errors import CheckpointNotFound, StoreUnavailable
from colabkeep.session.history import read_history
from colabkeep.stores import open_store
from colabkeep.stores.base import BytesSource, Receipt, StoreProperties
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from tests.processes import Life, Say
from tests.trainings.torch import hard_training

HOUR = 3600.0
AWAY = StoreUnavailable(problem="The drive is away.", remedy="Mount it again.")


def test_each_session_is_told_with_its_machine_and_its_steps(
    tmp_path: Path, kit: SimpleNamespace, clock: FakeClock
) -> None:
    """Which service and cards it had, when, from which step to which, and how long there was no machine."""
    kit.session(tmp_path, clock, to=7)
    clock.advance(HOUR)
    kit.session(tmp_path, clock, to=30, machine=kit.KAGGLE)
    run_history = read_history(open_store(tmp_path), "r")
    first, second = run_history.sessions
    assert (first.number, first.platform, first.kind, first.accelerators) == (1, "colab", "hosted", ("Tesla T4",))
    assert (second.number, second.platform, second.accelerators) == (2, "kaggle", ("Tesla P100", "Tesla P100"))
    assert (first.began, first.last_seen) == (1_700_000_000.0, 1_700_000_000.0 + 7 * kit.MINUTE)
    assert (first.resumed_at, first.reached, first.stopped, first.gap) == (0, 7, "max_steps", None)
    assert (second.resumed_at, second.reached, second.stopped, second.gap) == (7, 30, "max_steps", HOUR)
    assert (first.trained, second.trained) == (7 * kit.MINUTE, 30 * kit.MINUTE)
    assert second.redone is not None
    assert (second.redone.steps, second.redone.seconds, second.redone.exact) == (0, 0.0, True)
    total = run_history.totals
    assert (total.sessions, total.steps, total.trained, total.gaps) == (2, 30, 30 * kit.MINUTE, HOUR)
    assert total.wall == HOUR + 30 * kit.MINUTE
    assert (total.redone_steps, total.lost_at_least, total.lost_at_most) == (0, 0.0, 0.0)
    assert run_history.troubles == ()


def test_the_curve_of_a_story_is_the_one_of_the_checkpoints(
    tmp_path: Path, kit: SimpleNamespace, clock: FakeClock
) -> None:
    """Put together from the journal, over all sessions, it has the same points."""
    for step in (7, 400, 1300):
        run = kit.session(tmp_path, clock, to=step, save_every="50 steps")
    run_history = read_history(open_store(tmp_path), "r")
    assert run_history.points == run.losses.points
    assert len(run_history.points) == 325
    assert run_history.resumed_at == (7, 400)


def test_a_session_that_went_on_from_an_older_checkpoint_did_the_steps_between_again(
    tmp_path: Path, kit: SimpleNamespace, clock: FakeClock
) -> None:
    """After a goodbye the figures are exact; the curve is that of the line that was gone on with."""
    kit.session(tmp_path, clock, to=20, keep_last=None, loss=lambda step: 1.0)
    checkpoint = next(
        path.stem for path in (tmp_path / "r/checkpoints").iterdir() if path.stem.startswith("0" * 11 + "5")
    )
    clock.advance(HOUR)
    kit.session(tmp_path, clock, to=12, resume=checkpoint, keep_last=None, loss=lambda step: 2.0)
    run_history = read_history(open_store(tmp_path), "r")
    redone = run_history.sessions[1].redone
    assert redone is not None
    assert (redone.steps, redone.seconds, redone.exact, redone.at_most) == (15, 15 * kit.MINUTE, True, None)
    assert run_history.points == tuple((step, 1.0 if step <= 5 else 2.0) for step in range(1, 13))
    assert (run_history.totals.redone_steps, run_history.totals.lost_at_most) == (15, 15 * kit.MINUTE)


def test_a_start_from_zero_beside_checkpoints_is_no_loss(
    tmp_path: Path, kit: SimpleNamespace, clock: FakeClock
) -> None:
    """It was asked for, and its curve begins anew."""
    kit.session(tmp_path, clock, to=20)
    kit.session(tmp_path, clock, to=3, resume="never")
    run_history = read_history(open_store(tmp_path), "r")
    assert (run_history.sessions[1].resumed_at, run_history.sessions[1].redone) == (0, None)
    assert [step for step, _ in run_history.points] == [1, 2, 3]
    assert (run_history.totals.steps, run_history.totals.lost_at_most) == (3, 0.0)


def killed(storage: Path, at: int, save_every: str | None = "4 steps") -> None:
    """A real training in a process of its own, which is gone at that step without a goodbye."""

    def work(say: Say) -> None:
        import colabkeep

        def heard(step: int, epoch: int, samples: list[int]) -> None:
            if step == at:
                os.kill(os.getpid(), signal.SIGKILL)

        words = {**hard_training(epochs=3, heard=heard), "run_name": "r", "storage": storage, "save_every": save_every}
        colabkeep.resumable_fit(**words)
        say("it was not killed")

    with Life(work) as life:
        assert list(life.messages(within=60)) == []
        assert life.status == -signal.SIGKILL


@pytest.fixture
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.mark.usefixtures("_one_thread")
def test_a_killed_session_is_told_as_lost_with_the_least_and_the_most_that_was_lost(tmp_path: Path) -> None:
    """No goodbye: what it is known to have done, from when it was heard last, and how much can have been lost."""
    import colabkeep

    killed(tmp_path, 14)
    colabkeep.resumable_fit(**hard_training(epochs=3), run_name="r", storage=tmp_path)
    run_history = read_history(open_store(tmp_path), "r")
    lost, last = run_history.sessions
    assert (lost.stopped, last.stopped) == (None, "finished")
    assert lost.began is not None
    assert lost.last_seen is not None
    assert last.began is not None
    assert lost.began <= lost.last_seen <= last.began
    assert last.redone is not None
    assert lost.reached is not None
    assert last.resumed_at is not None
    assert 4 <= last.resumed_at <= lost.reached <= 14
    assert (last.redone.exact, last.redone.steps) == (False, lost.reached - last.resumed_at)
    assert last.redone.at_most is not None
    assert last.redone.seconds <= last.redone.at_most
    assert [save.step for save in lost.saves][-1] == last.resumed_at, "also the save that it could not note any more"
    assert run_history.totals.lost_at_most == last.redone.at_most
    assert [step for step, _ in run_history.points] == list(range(1, 34))


@pytest.mark.usefixtures("_one_thread")
def test_a_session_that_was_killed_before_its_first_save_is_not_forgotten(tmp_path: Path) -> None:
    """Nothing but its lease is left; all of it was lost, and that is bounded by the clock."""
    import colabkeep

    killed(tmp_path, 3, save_every=None)
    alone = read_history(open_store(tmp_path), "r")
    assert [(each.noted, each.reached, each.stopped) for each in alone.sessions] == [(False, None, None)]
    colabkeep.resumable_fit(**hard_training(epochs=1), run_name="r", storage=tmp_path)
    run_history = read_history(open_store(tmp_path), "r")
    lost, last = run_history.sessions
    assert lost.host
    assert lost.began is not None
    assert last.began is not None
    assert last.redone is not None
    assert (last.resumed_at, last.redone.exact, last.redone.steps) == (0, False, 0)
    assert last.redone.at_most == pytest.approx(last.began - lost.began)


def test_saves_are_told_with_reason_size_price_and_what_became_of_them(
    tmp_path: Path, kit: SimpleNamespace, clock: FakeClock
) -> None:
    """Those that were deleted since, too."""
    kit.session(tmp_path, clock, to=12)
    (session_history,) = read_history(open_store(tmp_path), "r").sessions
    assert [(save.step, save.reason, save.kept) for save in session_history.saves] == [
        (5, "steps", False),
        (10, "steps", True),
        (12, "max_steps", True),
    ]
    for save in session_history.saves:
        assert save.bytes is not None
        assert save.bytes > 0
        assert save.blocked == 0.0, "in this time nothing but steps takes any"
        assert save.level == "local"
        assert save.at is not None
        late = save.at - (1_700_000_000.0 + save.step * kit.MINUTE)
        assert 0 <= late <= kit.MINUTE, "of one that is gone, when it was told"


class Drive(MemoryStore):
    """Outlives the machine; while it is `away`, nothing gets through."""

    url = "drive"
    away = False

    @property
    def properties(self) -> StoreProperties:
        return StoreProperties(top_level="confirmed", persists=True)

    def put(self, name: str, source: Any) -> Receipt:
        if self.away:
            raise AWAY
        receipt = super().put(name, source)
        return Receipt(name=receipt.name, size=receipt.size, sha256=receipt.sha256, level="confirmed")


def test_a_time_in_which_the_drive_was_away_is_a_spell_with_an_end(
    tmp_path: Path, kit: SimpleNamespace, clock: FakeClock
) -> None:
    """From when to when saves were on the machine's disk only, and in the end each is on its level."""
    drive = Drive()
    store = TieredStore(DirectoryStore(tmp_path), drive, pauses=(0.001, 0.002))

    def each(run: Any) -> None:
        drive.away = 7 <= run.progress.step < 22
        if drive.away and run.progress.step == 12:  # what was due at 10 was saved when the loop went on
            end = time.monotonic() + 30.0
            while store.degraded is None:
                assert time.monotonic() < end
                time.sleep(0.01)
        if run.progress.step == 22:
            assert store.flush(30.0)

    kit.session(store, clock, to=30, each=each)
    run_history = read_history(store, "r")
    store.close()
    (outage,) = run_history.sessions[0].outages
    assert outage.since is not None
    assert outage.until is not None
    assert 1_700_000_000.0 + 7 * kit.MINUTE <= outage.since < outage.until <= 1_700_000_000.0 + 30 * kit.MINUTE
    assert "drive" in outage.url + outage.detail
    assert {save.level for save in run_history.sessions[0].saves if save.kept} == {"confirmed"}
    assert run_history.durability is not None
    assert (run_history.durability.step, run_history.durability.level) == (30, "confirmed")


class Counting(DirectoryStore):
    """Counts what it is asked for."""

    asked: list[tuple[str, str]]

    def list(self, prefix: str) -> Any:
        self.asked.append(("list", prefix))
        return super().list(prefix)

    def get(self, name: str) -> Any:
        self.asked.append(("get", name))
        return super().get(name)


def test_a_run_of_many_saves_is_read_within_bounds(
    tmp_path: Path, kit: SimpleNamespace, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first and the last part of each session's journal before all, then the newest; what is not read is said."""
    monkeypatch.setattr("colabkeep.checkpoint.journal._FULL", 0)  # a segment with each save
    kit.session(tmp_path, clock, to=40, save_every="1 steps", machine=kit.KAGGLE)
    kit.session(tmp_path, clock, to=60, save_every="1 steps")
    store = Counting(tmp_path)
    store.asked = []
    run_history = read_history(store, "r", most=10)
    segments = [name for kind, name in store.asked if kind == "get" and "/journal/" in name]
    total = len(list((tmp_path / "r/journal").iterdir()))
    assert run_history.left_out == total - 10 > 10
    assert len(set(segments)) == 10
    first, last = run_history.sessions
    assert (first.platform, first.resumed_at, first.reached, first.stopped) == ("kaggle", 0, 40, "max_steps")
    assert (last.platform, last.resumed_at, last.reached, last.stopped) == ("colab", 40, 60, "max_steps")
    assert [step for step, _ in run_history.points][:40] == list(range(1, 41)), "what a session recalls spares the rest"


def test_a_story_needs_few_requests(tmp_path: Path, kit: SimpleNamespace, clock: FakeClock) -> None:
    """One listing, and one for each part of the journal, lease and checkpoint."""
    for step in (10, 20, 30):
        kit.session(tmp_path, clock, to=step)
    store = Counting(tmp_path)
    store.asked = []
    read_history(store, "r")
    listings = [prefix for kind, prefix in store.asked if kind == "list"]
    files = [
        path for folder in ("journal", "lease", "checkpoints") for path in (tmp_path / "r" / folder).glob("*.json*")
    ]
    assert listings == ["r"]
    assert len(store.asked) - len(listings) <= len(files) + 3


def test_a_run_below_the_name_of_another_is_another_run(tmp_path: Path, kit: SimpleNamespace, clock: FakeClock) -> None:
    """`vision` does not tell of `vision/first`."""
    kit.session(tmp_path, clock, to=3, run_name="vision")
    kit.session(tmp_path, clock, to=4, run_name="vision/first")
    assert [each.reached for each in read_history(open_store(tmp_path), "vision").sessions] == [3]
    assert [each.reached for each in read_history(open_store(tmp_path), "vision/first").sessions] == [4]


def test_a_run_that_is_not_there_is_an_error_that_names_those_that_are(
    tmp_path: Path, kit: SimpleNamespace, clock: FakeClock
) -> None:
    """A misspelt name is easy to see."""
    kit.session(tmp_path, clock, to=3)
    with pytest.raises(CheckpointNotFound, match="It has: r"):
        read_history(open_store(tmp_path), "q")


BAD = {"at": "yesterday", "event": "Restored", "progress": {"step": -3, "seconds": "long"}, "age": [], "checkpoint": 7}
HOSTILE: dict[str, list[dict[str, Any]]] = {
    "wrong types": [BAD, {"event": 3}, {"event": "SaveCommitted", "checkpoint": None}, {"event": "RunStopped"}],
    "huge numbers": [{"at": 10**400, "event": "Noted", "text": "x"}, {"at": 1e308, "event": "EpochDone"}],
    "an endless step": [{"at": 1.0, "event": "EpochDone", "progress": {"step": 10**40, "seconds": 10**40}}],
    "foreign names": [{"event": "SaveCommitted", "checkpoint": "../../etc/passwd", "progress": {}, "bytes": -1}],
    "deep": [{"event": "Noted", "text": "x", "points": []}],
    "points": [{"event": "Losses", "points": [[1, "nan"], [2, None], "x", [3, 1e308]]}],
    "lists for texts": [{"event": "MachineGiven", "platform": ["a"], "accelerators": {"a": 1}, "kind": None}],
    "a pruning of nothing": [
        {"event": "pruning", "checkpoints": [1, None, "x"]},
        {"event": "Pruned", "checkpoints": 3},
    ],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_journal_changes_nothing_but_its_own_lines(
    tmp_path: Path, kit: SimpleNamespace, clock: FakeClock, name: str
) -> None:
    """Whole and well-formed, and full of lies: what is of another form tells nothing, and nothing is raised."""
    run = kit.session(tmp_path, clock, to=12)
    honest = read_history(open_store(tmp_path), "r")
    body = b"".join(json.dumps(record).encode() + b"\n" for record in HOSTILE[name])  # as a stranger writes it
    text = body + json.dumps({"sha256": hashlib.sha256(body).hexdigest()}, separators=(",", ":")).encode() + b"\n"
    assert len(read_segment(text)) == len(HOSTILE[name])
    open_store(tmp_path).put(f"r/journal/{run._session.id}-90000.jsonl", BytesSource(text))
    run_history = read_history(open_store(tmp_path), "r")
    assert [(save.step, save.kept) for save in run_history.sessions[0].saves] == [(5, False), (10, True), (12, True)]
    assert (run_history.sessions[0].reached, run_history.totals.steps) == (12, 12)
    assert run_history.totals.trained == honest.totals.trained
    assert run_history.durability == honest.durability


DAMAGES: dict[str, bytes] = {
    "empty": b"",
    "cut": b'{"event":"Not',
    "binary": bytes(range(256)),
    "another digest": b'{"event":"Noted","text":"x"}\n{"sha256":"' + b"0" * 64 + b'"}\n',
    "deep": b"[" * 200_000,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_torn_part_of_the_journal_is_named_and_walked_past(
    tmp_path: Path, kit: SimpleNamespace, clock: FakeClock, name: str
) -> None:
    """Its neighbours tell the rest, and so do the checkpoints."""
    kit.session(tmp_path, clock, to=12)
    kit.session(tmp_path, clock, to=14)
    file = sorted((tmp_path / "r/journal").iterdir())[0]
    file.write_bytes(DAMAGES[name])
    run_history = read_history(open_store(tmp_path), "r")
    assert [trouble.split(":")[0] for trouble in run_history.troubles] == [f"journal/{file.name}"]
    assert [each.reached for each in run_history.sessions] == [12, 14]


def test_a_segment_that_is_nested_without_end_is_walked_past(
    tmp_path: Path, kit: SimpleNamespace, clock: FakeClock
) -> None:
    """With the right digest, too: a reader's stack is not a writer's to fill."""
    run = kit.session(tmp_path, clock, to=12)
    body = b'{"event":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"
    text = body + b'{"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    (tmp_path / f"r/journal/{run._session.id}-00099.jsonl").write_bytes(text)
    run_history = read_history(open_store(tmp_path), "r")
    assert "nested too deeply" in " ".join(run_history.troubles)
    assert run_history.totals.steps == 12


def test_damaged_leases_and_manifests_are_named(tmp_path: Path, kit: SimpleNamespace, clock: FakeClock) -> None:
    """And what the journal says of that session is told all the same."""
    kit.session(tmp_path, clock, to=12)
    (lease,) = (tmp_path / "r/lease").glob("*.json")
    newest = sorted((tmp_path / "r/checkpoints").iterdir())[-1]
    lease.write_bytes(b"{}")
    newest.write_bytes(b"{}")
    (tmp_path / "r/run.json").write_bytes(b"{}")
    run_history = read_history(open_store(tmp_path), "r")
    assert sorted(trouble.split(":")[0] for trouble in run_history.troubles) == [
        f"checkpoints/{newest.name}",
        f"lease/{lease.name}",
    ]
    (session_history,) = run_history.sessions
    assert (session_history.number, session_history.platform, session_history.reached) == (1, "colab", 12)
    assert [save.step for save in session_history.saves] == [5, 10, 12]
    assert run_history.created is None


def test_a_story_needs_no_framework(tmp_path: Path, kit: SimpleNamespace, clock: FakeClock) -> None:
    """On a laptop without torch, from files that were downloaded."""
    kit.session(tmp_path, clock, to=3)
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'numpy', 'IPython', 'matplotlib', 'ipywidgets')))\n"
        "import colabkeep; report = colabkeep.report('r', storage=sys.argv[1])\n"
        "assert '<table' in report._repr_html_(); print(report)"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("r: finished.")

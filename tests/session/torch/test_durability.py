"""While it trains, and afterwards: what would be lost if the machine vanished, in the run, in its events, in `show`."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from colabkeep.checkpoint.inspect import durability_of, last_record
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.events import CheckpointSkipped, Durability, DurabilityTold, Event, Restored, SpaceShort, StepDone
from colabkeep.session.open import RunArguments, wire_run
from colabkeep.session.run import Run
from colabkeep.stores.base import Receipt, StoreProperties
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyStore
from colabkeep.ui.cli import main
from colabkeep.ui.panel.displays import Lines

AWAY = StoreUnavailable(problem="The drive is away.", remedy="Mount it again.")
LONG = 30.0  # seconds


class Drive(MemoryStore):
    """Outlives the machine, and states at once what it has; while it is `away`, nothing gets through."""

    url = "drive"
    away = False

    @property
    def properties(self) -> StoreProperties:
        return StoreProperties(top_level="confirmed", persists=True)

    def put(self, name: str, source: Any) -> Receipt:
        if self.away:
            raise AWAY
        return replace(super().put(name, source), level="sent")

    def confirm(self, receipt: Receipt) -> Receipt:
        return replace(receipt, level="confirmed")


class Model:
    """One number."""

    def __init__(self) -> None:
        self.value = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def opened(store: Any, clock: FakeClock, **changes: Any) -> Run:
    """A run whose time is ours."""
    arguments = RunArguments(run_name="r", objects={"model": Model()}, storage=store, save_every=None, **changes)
    return Run(replace(wire_run(arguments), clock=clock))


def settled(run: Run, store: TieredStore) -> Durability:
    """When all that was saved is where it should be."""
    run.save(wait=True)
    assert store.flush(LONG)
    end = time.monotonic() + LONG
    while any(each.level != "confirmed" for each in run.durability.standings):
        assert time.monotonic() < end
        time.sleep(0.01)
    return run.durability


def test_a_run_says_at_any_moment_what_would_be_lost(tmp_path: Path) -> None:
    """Nothing is safe at first; then back to what the drive has confirmed, and a second more each second."""
    drive, clock = Drive(), FakeClock()
    store = TieredStore(DirectoryStore(tmp_path), drive, pauses=(0.001, 0.002))
    with opened(store, clock) as run:
        for _ in run.epochs(1):
            for batch in run.batches([1, 2, 3, 4, 5]):
                clock.advance(60)
                run.step()
                if batch == 1:
                    assert run.durability.sentence.startswith("If this machine vanished now, you would lose all 60 s")
                if batch == 2:
                    found = settled(run, store)
                    assert (found.step, found.lost_seconds, found.level) == (2, 0, "confirmed")
                    drive.away = True
                if batch == 4:
                    run.save(wait=True)
                    clock.advance(30)
                    found = run.durability
                    assert (found.step, found.lost_seconds) == (2, 150)
                    assert [(each.step, each.level) for each in found.standings] == [(4, "local"), (2, "confirmed")]
                    drive.away = False
    assert (run.durability.step, run.durability.lost_seconds, run.durability.level) == (5, 0, "confirmed")
    clock.advance(10_000)
    assert run.durability.lost_seconds == 0, "nothing is trained any more"
    store.close()


def test_a_session_goes_on_counting_where_the_last_one_ended(tmp_path: Path) -> None:
    """After a resume what is at stake is what this session has trained, and what the last one had not made safe."""
    drive, clock = Drive(), FakeClock()
    drive.away = True
    store = TieredStore(DirectoryStore(tmp_path), drive, pauses=(0.001, 0.002))
    with opened(store, clock) as run:
        for _ in run.epochs(1):
            for _batch in run.batches([1, 2]):
                clock.advance(600)
                run.step()
            break
        run._saver.close = lambda *_: True  # type: ignore[method-assign]  # the kernel dies before it catches up
    with opened(store, clock) as run:
        assert (run.resumed_from is not None, run.durability.lost_seconds) == (True, 1200)
        clock.advance(5)
        assert run.durability.lost_seconds == 1205
        drive.away = False
        store.flush(LONG)
        end = time.monotonic() + LONG
        while run.durability.level != "confirmed":
            assert time.monotonic() < end, "what it came from arrives, without a save"
            time.sleep(0.01)
        assert run.durability.lost_seconds == 5
    store.close()


def test_what_is_told_counts_the_step_that_came_before_it_was_shown(tmp_path: Path) -> None:
    """It is looked up when a save is written, and shown after the step that was computed meanwhile, maybe for long."""
    clock, told = FakeClock(), list[Event]()
    with opened(DirectoryStore(tmp_path), clock, observers=(told.append,)) as run:
        for _, batch in ((epoch, batch) for epoch in run.epochs(1) for batch in run.batches([1, 2, 3, 4])):
            if batch == 3:
                end = time.monotonic() + LONG
                while not any(isinstance(event, DurabilityTold) for event in run._event_bus.queue):
                    assert time.monotonic() < end
                    time.sleep(0.001)
            if batch == 4:
                (figure,) = (event.durability for event in told if isinstance(event, DurabilityTold))
                assert (figure.step, figure.lost_seconds) == (2, 60)
                assert figure.sentence == run.durability.sentence
            clock.advance(60)
            run.step()
            if batch == 2:
                run.save()


def test_the_figure_is_an_event_but_none_of_each_step(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Observers hear of it when it changes; thousands of steps cause none."""
    events: list[Event] = []
    result = kit.fit(tmp_path, callbacks=[events.append], save_every=None)
    figures = [event.durability for event in events if isinstance(event, DurabilityTold)]
    assert result is not None
    assert 1 <= len(figures) <= 2
    assert figures[-1].step == 33
    assert sum(isinstance(event, StepDone) for event in events) > 10
    journal = b"".join(path.read_bytes() for path in tmp_path.glob("r/journal/*.jsonl"))
    assert b"RunStopped" in journal
    assert b"DurabilityTold" not in journal


def test_memory_is_never_called_safe(kit: SimpleNamespace) -> None:
    """What goes with the process is no checkpoint to go on from on another machine."""
    events: list[Event] = []
    kit.fit(MemoryStore(), callbacks=[events.append], max_steps=3)
    figures = [event.durability for event in events if isinstance(event, DurabilityTold)]
    assert {figure.checkpoint for figure in figures} == {None}
    assert "goes with it" in figures[-1].sentence


def test_the_display_says_it_once_and_again_when_it_is_much(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A drive that is away for hours: said when half an hour is at stake, and when that has doubled."""
    drive, clock = Drive(), FakeClock()
    drive.away = True
    store = TieredStore(DirectoryStore(tmp_path), drive, pauses=(0.001, 0.002))
    with opened(store, clock, observers=(Lines(clock),)) as run:
        for _ in run.epochs(1):
            for _batch in run.batches(list(range(12))):
                clock.advance(600)
                run.step()
                run.save(wait=True)
        drive.away = False
    store.close()
    said = [line for line in capfd.readouterr().out.splitlines() if "[colabkeep] If this machine vanished" in line]
    assert ["all 30 min" in said[0], "all 60 min" in said[1], "all 2 h 00 min" in said[2]] == [True] * 3
    assert len(said) == 3


def test_the_display_says_what_is_at_stake_when_the_drive_is_away(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one breath with the trouble, however little it is; and that it works again, without another save."""
    drive, clock = Drive(), FakeClock()
    drive.away = True
    store = TieredStore(DirectoryStore(tmp_path), drive, pauses=(0.001, 0.002))
    said, end = "", time.monotonic() + LONG
    with opened(store, clock, observers=(Lines(clock),)) as run:
        for step in run.steps(100_000):
            run.step()
            if step == 0:
                clock.advance(60)
                run.save(wait=True)
            said += capfd.readouterr().out
            if "The drive is away." in said:
                drive.away = False
                store.flush(LONG)
            if "works again" in said:
                break
            assert time.monotonic() < end, said
            time.sleep(0.01)
    assert "you would lose all 60 s of this training" in said
    store.close()


def test_the_display_names_the_hour_in_which_a_place_is_full(capfd: pytest.CaptureFixture[str]) -> None:
    """In the user's own time, with what to do; and says how many checkpoints are kept where there is less room."""
    noon = datetime(2026, 11, 20, 12, 34).astimezone().timestamp()
    lines = Lines(FakeClock())
    lines(SpaceShort(url="drive", free_bytes=3 * 2**30, save_bytes=2**30, full_at=noon))
    lines(SpaceShort(url="drive", free_bytes=3 * 2**30, save_bytes=2**30, keeps=2))
    lines(SpaceShort(url="drive", free_bytes=2**29, save_bytes=2**30))
    full, kept, short = capfd.readouterr().out.splitlines()
    assert "3.0 GiB are free in drive, and a save takes 1.0 GiB" in full
    assert "FULL between 12:00 and 13:00 on 2026-11-20" in full
    assert "at this run's pace" in full
    assert "only 2 checkpoint(s) are kept" in kept
    assert "the next one may not fit" in short


# -- of a run that this process does not train ---------------------------------------------------------


def test_show_tells_what_would_be_lost(
    tmp_path: Path, kit: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words and in JSON, with the level of the checkpoints that were asked about."""
    kit.fit(tmp_path / "front", storage=f"{tmp_path}/front + {tmp_path}/behind", max_steps=5)
    capsys.readouterr()
    for storage, level in ((f"{tmp_path}/front + {tmp_path}/behind", "sent"), (f"{tmp_path}/behind", "local")):
        assert main(["show", "r", "--storage", storage, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["durability"]["step"] == 5
        assert told["durability"]["level"] == told["checkpoints"][0]["level"] == level
        assert told["durability"]["lost_seconds"] < 60
        assert main(["show", "r", "--storage", storage]) == 0
        out = capsys.readouterr().out
        assert told["durability"]["sentence"] in out
        assert f"  {level}  " in out


def test_what_is_on_a_dead_machine_s_disk_only_is_not_counted(tmp_path: Path) -> None:
    """Two checkpoints, one of which has reached the drive: the journal says how much is at stake."""
    drive, clock = Drive(), FakeClock()
    front = DirectoryStore(tmp_path)
    store = TieredStore(front, drive, pauses=(0.001, 0.002))
    with opened(store, clock) as run:
        for _ in run.epochs(1):
            for batch in run.batches([1, 2, 3]):
                clock.advance(60)
                run.step()
                if batch == 1:
                    settled(run, store)
                    drive.away = True
        run._saver.close = lambda *_: True  # type: ignore[method-assign]  # nothing arrives any more
    store.close()
    later = TieredStore(front, FaultyStore(drive), pauses=(0.001, 0.002))
    found = durability_of(Repository(later, "r"))
    assert (found.step, found.level, found.lost_seconds) == (1, "confirmed", 120)
    assert [(each.step, each.level) for each in found.standings] == [(3, "local"), (1, "confirmed")]
    later.close()


def test_a_run_without_a_journal_is_judged_by_its_checkpoints(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Every file of the journal lost or damaged: the figure is that of the manifests."""
    kit.fit(tmp_path, max_steps=5)
    for number, path in enumerate(tmp_path.glob("r/journal/*.jsonl")):
        path.write_bytes(b"garbage") if number % 2 else path.unlink()
    repository = Repository(DirectoryStore(tmp_path), "r")
    assert last_record(repository) is None
    assert durability_of(repository).lost_seconds == 0


def test_a_checkpoint_with_a_lost_blob_is_not_counted(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Nobody could go on from it."""
    kit.fit(tmp_path, max_steps=3)
    kit.fit(tmp_path, max_steps=5)
    repository = Repository(DirectoryStore(tmp_path), "r")
    newest = repository.manifest(max(repository.ids()))
    older = {blob.file for m in repository.manifests(repository.ids() - {newest.id}) for blob in m.blobs}
    (tmp_path / "r/blobs" / next(b.file for b in newest.blobs if b.file not in older)).unlink()
    assert durability_of(Repository(DirectoryStore(tmp_path), "r")).step == 3


def test_a_run_without_a_checkpoint_loses_all(tmp_path: Path) -> None:
    """Before the first save there is nothing to resume from, and it is said so."""
    repository = Repository(DirectoryStore(tmp_path), "r")
    repository.open_run(0.0, "0" * 16)
    found = durability_of(repository)
    assert (found.checkpoint, found.lost_seconds) == (None, 0.0)
    assert "no checkpoint is known to be safe" in found.sentence


def test_two_sides_that_disagree_go_on_from_the_newest_good_one(tmp_path: Path, kit: SimpleNamespace) -> None:
    """The newest is damaged in front and whole behind: that is gone on from. Damaged there too, it is the older one,
    and it is said what was skipped. A newer one that is behind only, of another machine, is the one."""
    pair = tmp_path / "front", tmp_path / "behind"
    for steps in (3, 5):
        kit.fit(tmp_path, storage=pair, max_steps=steps)
    events: list[Event] = []

    def resumed(**words: Any) -> int:
        events.clear()
        kit.fit(tmp_path, callbacks=[events.append], **words)
        return next(event.progress.step for event in events if isinstance(event, Restored))

    (name,) = [path.name for path in (pair[0] / "r/checkpoints").glob("000000000005-*")]
    damage(pair[0] / "r/checkpoints" / name)
    assert resumed(storage=pair, max_steps=5) == 5
    damage(pair[1] / "r/checkpoints" / name)
    assert resumed(storage=pair, max_steps=4) == 3
    assert [event.checkpoint for event in events if isinstance(event, CheckpointSkipped)] == [
        name.removesuffix(".json")
    ]
    assert resumed(storage=(tmp_path / "another", pair[1]), max_steps=8) == 4
    assert resumed(storage=pair, max_steps=8) == 8


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])

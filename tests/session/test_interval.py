"""`save_every="auto"` in a training: what it measures, when it saves, and that the user is told."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colabkeep.checkpoint.journal import read_segment
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.events import (
    CadenceChosen,
    EpochDone,
    Event,
    MachineGiven,
    Noted,
    SaveCommitted,
    SaveFailing,
    SaveStarted,
)
from colabkeep.core.layout import dumps
from colabkeep.core.manifest import Progress
from colabkeep.core.policies import EverySteps, SessionLifetime, parse_save_every
from colabkeep.platforms.base import SessionLimits
from colabkeep.platforms.colab.platform import limits_of
from colabkeep.session.machine import UNKNOWN, UsualLifetime, usual_lifetime
from colabkeep.session.open import RunArguments, wire_run
from colabkeep.session.run import Run
from colabkeep.session.scheduler import IntervalTuner, earlier_lifetimes
from colabkeep.stores import open_store
from colabkeep.testing.clock import FakeClock
from tests.session.slow import Slow

HOUR = 3600.0
COLAB = MachineGiven(platform="colab", kind="hosted", accelerators=("Tesla T4",), id="m1")
HOSTED = usual_lifetime(limits_of("hosted"))


class Number:
    """The smallest model: one number, whose copy takes `seconds` of a fake clock."""

    def __init__(self, clock: FakeClock | None = None, seconds: float = 0.0) -> None:
        self.value = 0
        self._clock, self._seconds = clock or FakeClock(), seconds

    def state_dict(self) -> dict[str, int]:
        self._clock.advance(self._seconds)
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


class Session:
    """A session on a fake clock, in steps of some seconds; each save is done before the next step."""

    def __init__(
        self,
        folder: Path,
        *,
        store_seconds: float = 0.0,
        copy_seconds: float = 0.0,
        usual: UsualLifetime = HOSTED,
        machine: MachineGiven = COLAB,
        **words: Any,
    ) -> None:
        self.clock = FakeClock()
        self.events: list[Event] = []
        spec = wire_run(
            RunArguments(
                run_name="r",
                objects={"model": Number(self.clock, copy_seconds)},
                storage=Slow(open_store(folder), self.clock, store_seconds),
                observers=(self.heard,),
                **words,
            )
        )
        self.run = Run(replace(spec, clock=self.clock, machine=lambda: machine, usual=usual, deadline=None))

    def heard(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, SaveStarted):
            self.run._saver.wait()
        for thread in threading.enumerate():  # the past is read before it is used
            if thread.name == "colabkeep-past":
                thread.join()

    def train(self, steps: int, *, step_seconds: float = 1.0, epoch: int = 10**6) -> Session:
        with self.run as run:
            done = 0
            for _ in run.epochs(None):
                for _batch in run.batches([0] * epoch):
                    self.clock.advance(step_seconds)
                    run.step()
                    done += 1
                    if done == steps:
                        run.stop()
        return self

    def saves(self) -> list[tuple[str, int]]:
        return [(each.reason, each.progress.step) for each in self.events if isinstance(each, SaveStarted)]

    def chosen(self) -> list[CadenceChosen]:
        return [each for each in self.events if isinstance(each, CadenceChosen)]


def test_a_training_is_saved_at_once_and_then_at_the_chosen_interval(tmp_path: Path) -> None:
    """After 20 steps, to prove that it works; then every 15 seconds, for a save costs nothing here; and at the end."""
    session = Session(tmp_path).train(60)
    assert session.saves() == [("first", 20), ("auto", 35), ("auto", 50), ("asked", 60)]
    (told,) = session.chosen()
    assert (told.interval, told.cost, told.session, told.reason) == (15.0, 0.0, 2.5 * HOUR, "floor")
    assert told.text.startswith("saving every 15 s: a save costs less than 1 ms here, assuming sessions of about 2.5 h")
    assert "colabtools" in told.source


def test_slow_steps_are_saved_after_two_minutes(tmp_path: Path) -> None:
    """Twenty steps of half an hour each would come too late to prove anything."""
    assert Session(tmp_path).train(3, step_seconds=100.0).saves()[0] == ("first", 2)


def test_the_choice_is_the_same_each_time(tmp_path: Path) -> None:
    """On a clock that tells the same, saves come at the same steps: nothing is drawn, nothing depends on threads."""
    first, second = (Session(tmp_path / name, store_seconds=7.0).train(400) for name in "ab")
    assert first.saves() == second.saves()
    assert [each.text for each in first.chosen()] == [each.text for each in second.chosen()]


def test_a_storage_that_takes_long_is_saved_to_less_often(tmp_path: Path) -> None:
    """A save takes 40 s in the background: the next one comes after 50, so that each is through before."""
    session = Session(tmp_path, store_seconds=40.0).train(300)
    (told,) = session.chosen()
    assert (told.interval, told.reason) == (50.0, "storage")
    assert "storage takes one per 40 s" in told.text


def test_an_epoch_that_ends_near_a_due_save_is_saved_at_its_end(tmp_path: Path) -> None:
    """A save costs 0.05 s, so 30 s lie between two; an epoch that ends after 20 s of that takes the save."""
    session = Session(tmp_path, copy_seconds=0.05).train(110, epoch=24)
    assert session.chosen()[0].interval == 30.0
    assert session.saves() == [("first", 20), ("epoch", 48), ("epoch", 72), ("epoch", 96), ("asked", 110)]


class Meter:
    """An interval tuner on a fake clock, to which a test plays a training."""

    def __init__(
        self,
        *,
        save_every: Any = "auto",
        overhead: float = 0.01,
        far: bool = False,
        past: Sequence[SessionLifetime] = (),
    ) -> None:
        self.clock, self.told, self.step = FakeClock(), list[Event](), 0
        self.arrival = 0.0  # seconds from a commit until the save is safe
        self.patience = 10.0  # seconds for the past to be read before a save is committed
        self.interval_tuner = IntervalTuner(
            policy=parse_save_every(save_every),
            overhead=overhead,
            usual=HOSTED,
            far=far,
            past=lambda: past,
            step=lambda: self.step,
            arrival=lambda now: self.arrival,
            clock=self.clock,
            say=self.told.append,
        )

    def train(self, steps: int, seconds: float) -> None:
        for _ in range(steps):
            self.step += 1
            self.clock.advance(seconds)

    def save(self, *, blocked: float = 0.0, steps: int = 0, slow: float = 0.1, **words: Any) -> None:
        """A save that stops training for `blocked` seconds and lies beside some steps of `slow` seconds."""
        here = Progress(step=self.step)
        self.clock.advance(blocked)
        self.interval_tuner(SaveStarted(progress=here, reason="auto", blocked=blocked))
        self.interval_tuner.close(self.patience)
        self.train(steps, slow)
        facts = {"bytes": 10**6, "written": 10**6, "seconds": steps * slow, "level": "local", **words}
        self.interval_tuner(SaveCommitted(checkpoint=f"{self.step}", progress=here, reason="auto", **facts))

    @property
    def cost(self) -> float:
        assert self.interval_tuner._cadence is not None
        return self.interval_tuner._cadence.measures.cost

    @property
    def chosen(self) -> CadenceChosen:
        found = self.told[-1]
        assert isinstance(found, CadenceChosen)
        return found


def test_slower_steps_count_as_much_as_a_stop() -> None:
    """Ten steps that took 0.13 s instead of 0.1 beside a save are 0.3 s; that is what the save cost, with its 0.05."""
    meter = Meter()
    meter.save()
    meter.train(50, 0.1)
    meter.save(blocked=0.05, steps=10, slow=0.13)
    assert meter.cost == pytest.approx(0.35)


def test_steps_that_happen_to_be_quicker_make_no_save_cheaper_than_its_stop() -> None:
    """Noise never counts as a gain."""
    meter = Meter()
    for _ in range(3):
        meter.train(50, 0.1)
        meter.save(blocked=0.2, steps=10, slow=0.05)
    assert meter.cost == pytest.approx(0.2)


def test_a_single_disturbed_save_changes_little() -> None:
    """One of nine that took half a minute, while the user downloaded something, leaves the interval as it was."""
    meter = Meter()
    for blocked in (0.1, 0.1, 0.1, 30.0, 0.1):
        meter.train(50, 0.1)
        meter.save(blocked=blocked, steps=10, slow=0.1)
    assert len(meter.told) == 1


def test_a_validation_beside_a_save_is_not_taken_for_slowness() -> None:
    """The end of an epoch makes a stretch incomparable, and so does a save that failed."""
    for event in (
        EpochDone(epoch=0, progress=Progress(), metrics={}),
        SaveFailing(progress=Progress(), error="?", retry_in=1.0),
    ):
        meter = Meter()
        meter.save(blocked=0.1)
        meter.train(50, 0.1)
        meter.interval_tuner(SaveStarted(progress=Progress(step=50), reason="auto", blocked=0.1))
        meter.clock.advance(60.0)
        meter.interval_tuner(event)
        meter.train(5, 0.1)
        facts = {"bytes": 1, "written": 1, "seconds": 60.5, "level": "local"}
        meter.interval_tuner(SaveCommitted(checkpoint="x", progress=Progress(step=50), reason="auto", **facts))
        assert meter.cost == pytest.approx(0.1)


def test_a_place_that_confirms_slowly_bounds_the_cadence() -> None:
    """Where no link can be measured, as with a mounted drive that uploads by itself: what the last saves took until
    they were safe. More often would only queue."""
    meter = Meter(far=True)
    meter.save()
    assert meter.chosen.interval == 60.0
    meter.arrival = 200.0
    meter.save()
    assert (meter.chosen.interval, meter.chosen.reason, meter.chosen.carried) == (120.0, "storage", 200.0)
    meter.save()
    assert meter.interval_tuner._cadence is not None
    assert meter.interval_tuner._cadence.seconds == 240.0, "in bounded steps, up to 250 s but for a trifle"


def test_a_save_over_a_network_keeps_a_minute_of_distance() -> None:
    """Each one is some requests and files, and services count these."""
    meter = Meter(far=True)
    meter.save()
    assert (meter.chosen.interval, meter.chosen.reason) == (60.0, "floor")


def test_the_users_share_of_time_is_kept_to() -> None:
    """With overhead=0.05 a save of 2 s may come five times as often as with 0.01."""
    intervals = []
    for overhead in (0.01, 0.05):
        meter = Meter(overhead=overhead)
        meter.save(blocked=2.0)
        intervals.append(meter.chosen.interval)
    assert intervals == [200.0, 190.0], "190: what loses the least"


def test_sessions_that_vanished_early_make_saves_more_frequent() -> None:
    """Four sessions of this run lived for 20 minutes: what is usual counts as one of five."""
    calm, hunted = Meter(), Meter(past=[SessionLifetime(seconds=1200.0, vanished=True)] * 4)
    for meter in (calm, hunted):
        meter.save(blocked=0.3)
    assert hunted.chosen.session == pytest.approx((2.5 * HOUR + 4 * 1200) / 5)
    assert hunted.chosen.interval < calm.chosen.interval
    assert hunted.chosen.source.startswith("4 earlier session(s) of this run, and users report")


def test_a_save_that_came_to_nothing_is_no_measure_of_a_pace() -> None:
    """Steps beside it were slow for its sake; the next save is not taken to be cheap for that."""
    meter = Meter()
    meter.save()
    meter.train(50, 0.1)
    meter.interval_tuner(SaveStarted(progress=Progress(step=50), reason="auto", blocked=0.0))
    meter.train(50, 0.5)
    for _ in range(2):
        meter.save(steps=10, slow=0.13)
    assert meter.cost == pytest.approx(0.3)


def test_while_the_first_save_is_on_its_way_no_other_is_due() -> None:
    """One that takes minutes is not followed by another after twenty steps."""
    from colabkeep.core.policies import SaveMark

    meter = Meter()
    meter.interval_tuner(SaveStarted(progress=Progress(step=20), reason="first", blocked=0.1))
    meter.interval_tuner.close(10)
    mark = SaveMark(progress=Progress(step=20), at=0.0)
    assert meter.interval_tuner.policy.due(Progress(step=500, batches=3), mark, 599.0) is None
    assert meter.interval_tuner.policy.due(Progress(step=500, batches=3), mark, 600.0) == "auto"


def test_a_cadence_of_the_users_own_is_left_alone() -> None:
    """Nothing is measured, read or told."""
    meter = Meter(save_every="500 steps")
    meter.save(blocked=1.0)
    assert (meter.interval_tuner.policy, meter.told, meter.interval_tuner.chooses) == (EverySteps(500), [], False)


def test_a_past_that_cannot_be_read_is_said_and_what_is_usual_counts() -> None:
    """Training goes on and the user reads why, also where the answer comes after the first save is through."""
    meter, committed = Meter(), threading.Event()
    meter.patience = 0.0

    def away() -> Sequence[SessionLifetime]:
        assert committed.wait(60)
        raise StoreUnavailable(problem="The drive is away.", remedy="Mount it.")

    meter.interval_tuner.past = away
    meter.save(blocked=0.1)
    assert (meter.chosen.session, meter.chosen.source) == (2.5 * HOUR, HOSTED.source)
    committed.set()
    meter.interval_tuner.close(60)
    (noted,) = [event for event in meter.told if isinstance(event, Noted)]
    assert "could not be read (StoreUnavailable: The drive is away.), so the save interval" in noted.text


def test_a_pace_takes_some_steps_to_compare_with() -> None:
    """Two steps are no pace."""
    meter = Meter()
    meter.save()
    meter.train(2, 1.0)
    meter.save(steps=2, slow=4.0)
    assert meter.cost == 0.0
    meter.train(3, 1.0)
    meter.save(steps=2, slow=1.5)
    assert meter.cost == pytest.approx(1.0)


def killed(folder: Path, steps: int, machine: MachineGiven = COLAB) -> None:
    """A session that vanishes after so many seconds of training: its journal has no goodbye."""
    session = Session(folder, save_every="1 steps", machine=machine)
    session.clock.set_time(1_700_000_000.0 + len(list(folder.glob("r/lease/*"))) * 10**5)
    session.train(steps)
    for file in (folder / "r/journal").glob(f"{session.run._session.id}-*"):
        records = [record for record in read_segment(file.read_bytes()) if record["event"] != "RunStopped"]
        body = b"".join(dumps(record) + b"\n" for record in records)
        file.chmod(0o600)
        file.write_bytes(body + dumps({"sha256": hashlib.sha256(body).hexdigest()}) + b"\n")


def test_earlier_sessions_are_found_in_the_journal(tmp_path: Path) -> None:
    """How long each lived at least, whether it said goodbye, and only those of this platform."""
    killed(tmp_path, 50)
    killed(tmp_path, 30, replace(COLAB, platform="kaggle"))
    Session(tmp_path, save_every="1 steps").train(80)
    lives = earlier_lifetimes(Repository(open_store(tmp_path), "r"), "", "colab")
    assert sorted((life.vanished, round(life.seconds)) for life in lives) == [(False, 80), (True, 50)]
    last = max((tmp_path / "r/lease").glob("*.json")).stem.split("-")[1]
    assert [life.vanished for life in earlier_lifetimes(Repository(open_store(tmp_path), "r"), last, "colab")] == [True]


def test_a_clock_that_was_set_in_the_middle_of_a_session_makes_it_no_older_than_a_week(tmp_path: Path) -> None:
    """A machine that began in 1970 did not live for fifty years: it would hide what the others tell."""
    session = Session(tmp_path, save_every="1 steps")
    session.clock.set_time(1000.0)
    with session.run as run:
        for _ in run.epochs(1):
            for _batch in run.batches([0] * 3):
                session.clock.set_time(1_700_000_000.0)
                run.step()
    (life,) = earlier_lifetimes(Repository(open_store(tmp_path), "r"), "", "colab")
    assert life == SessionLifetime(seconds=7 * 24 * HOUR, vanished=False)


def test_a_run_that_was_killed_before_counts_that(tmp_path: Path) -> None:
    """The third session knows of the two before it, without having asked for anything before its first step."""
    killed(tmp_path, 40)
    killed(tmp_path, 40)
    session = Session(tmp_path).train(60)
    assert session.chosen()[0].source.startswith("2 earlier session(s) of this run")
    assert session.chosen()[0].session < 2.5 * HOUR


@pytest.mark.parametrize(
    ("limits", "hours", "vanishes"),
    [
        (SessionLimits(max_seconds=12 * HOUR, source="", confidence="high"), 6, True),
        (SessionLimits(max_seconds=None, idle_seconds=HOUR, source="", confidence="low"), 4, True),
        (SessionLimits(max_seconds=None, source="", confidence="high"), 24, False),
        (limits_of("hosted"), 2.5, True),
    ],
    ids=str,
)
def test_each_platform_has_a_figure_to_begin_with(limits: SessionLimits, hours: float, vanishes: bool) -> None:
    """What users report; else the middle of the limit; else a guess that says that it is one."""
    usual = usual_lifetime(limits)
    assert (usual.seconds, usual.vanishes) == (hours * HOUR, vanishes)
    assert usual.source
    assert UNKNOWN.vanishes is False

"""What the panel knows of a run after each event."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from colabkeep.core.events import (
    CadenceChosen,
    DeadlineNear,
    DurabilityTold,
    EpochDone,
    LengthTold,
    MetricsLogged,
    Noted,
    Place,
    Pruned,
    Recalled,
    SaveCommitted,
    SaveStarted,
    StepDone,
    StoreDegraded,
)
from colabkeep.core.manifest import Progress
from colabkeep.testing.clock import FakeClock
from colabkeep.ui.panel.displays import Lines, record
from colabkeep.ui.panel.render import line, render
from colabkeep.ui.panel.state import PanelState
from tests.panel.conftest import PHASES, RunHistory, at, in_phase, text_of


@pytest.mark.parametrize("phase", PHASES)
def test_each_state_is_reached_by_what_happens(phase: str) -> None:
    """The ten states, and the moment before the run is open."""
    assert in_phase(phase).state.phase == phase


def test_what_matters_most_is_shown() -> None:
    """Failed before ending, ending before degraded, degraded before saving, saving before durable."""
    run_history = in_phase("durable")
    order = ["durable"]
    run_history.save(212, level=None)
    order.append(run_history.state.phase)
    run_history.tell(StoreDegraded(url="drive", detail="away"))
    order.append(run_history.state.phase)
    run_history.tell(DeadlineNear(seconds=60.0))
    order.append(run_history.state.phase)
    run_history.stop("error")
    order.append(run_history.state.phase)
    assert order == ["durable", "saving", "degraded", "ending", "failed"]


def test_what_is_safe_is_said_before_the_ledger_counts_it_again() -> None:
    """A checkpoint that the place has confirmed is one to go on from, at once; the panel does not contradict itself."""
    run_history = in_phase("durable")
    told = [event for event in run_history.save(300).events[-4:] if not isinstance(event, DurabilityTold)]
    early = in_phase("durable").train(213, 300).tell(*told)
    assert early.state.phase == "durable"
    assert (early.state.safe_step, early.state.safe_seconds) == (300, pytest.approx(100.0))
    assert early.state.lost_steps == 0


def test_a_place_that_goes_with_the_machine_is_not_called_safe_before_it_is_told_either() -> None:
    """A checkpoint that arrives there saves nothing."""
    place = Place(url="memory://", top="local", persists=False)
    run_history = RunHistory(place=place).start().train(1, 50).save(50, level="local").train(51, 60)
    told = [event for event in run_history.events if type(event).__name__ == "SaveCommitted"]
    assert run_history.tell(*told).state.safe_step is None


def test_a_save_says_how_far_the_training_is() -> None:
    """A display hears of few steps: what is safe is never beyond what is shown as trained."""
    run_history = in_phase("durable").save(260, level="confirmed")
    assert run_history.state.progress.step == 260
    assert run_history.state.lost_steps == 0


def test_a_storage_that_works_again_ends_the_alarm() -> None:
    """The chip goes back to what it was when the store says so, and a later alarm has its own time."""
    run_history = in_phase("degraded")
    assert run_history.state.trouble_since == pytest.approx(run_history.clock.time())
    run_history.tell(StoreDegraded(url="drive", detail="works again", healed=True))
    assert run_history.state.phase == "durable"
    run_history.clock.advance(100)
    run_history.tell(StoreDegraded(url="drive", detail="away"))
    assert run_history.state.trouble_since == pytest.approx(run_history.clock.time())


def test_a_save_that_works_ends_the_alarm_of_one_that_failed() -> None:
    """ "Not saved" stands until something is saved."""
    run_history = in_phase("unsaved")
    assert (run_history.state.phase, run_history.state.failing) == ("degraded", "The disk is full.")
    assert run_history.save(212).state.phase == "durable"


def test_what_would_be_lost_counts_from_the_last_safe_step() -> None:
    """Not from the newest checkpoint, which is on this machine only yet."""
    run_history = in_phase("uploading")
    assert (run_history.state.safe_step, run_history.state.lost_steps) == (100, 112)
    assert run_history.state.lost_seconds == pytest.approx(112 / 3)


def test_nothing_is_safe_in_a_place_that_goes_with_the_machine() -> None:
    """All of it would be lost, and the state is not called durable."""
    run_history = (
        RunHistory(place=Place(url="memory://", top="local", persists=False))
        .start()
        .train(1, 50)
        .save(50, level="local")
    )
    assert (run_history.state.phase, run_history.state.safe_step, run_history.state.lost_steps) == (
        "degraded",
        None,
        50,
    )


def test_a_place_that_cannot_tell_is_not_waited_for() -> None:
    """Its checkpoints stay "unknown" for ever, and the panel does not say "uploading" for ever."""
    run_history = (
        RunHistory(place=Place(url="mount", top="sent", persists=True)).start().train(1, 50).save(50, level="unknown")
    )
    assert run_history.state.phase == "durable"


@pytest.mark.parametrize(
    ("told", "share", "total"),
    [
        ([LengthTold(max_epochs=10)], 0.212, 1000),
        ([LengthTold(max_steps=400)], 0.53, 400),
        ([LengthTold(max_steps=400), LengthTold(max_epochs=10)], 0.53, 400),
        ([LengthTold(max_epochs=2), LengthTold(max_steps=400)], 1.0, 200),
        ([], None, None),
    ],
    ids=["epochs", "steps", "both, steps first", "both, epochs first", "neither"],
)
def test_progress_goes_by_what_ends_the_run_first(told: list[Any], share: float | None, total: int | None) -> None:
    """By epochs or by steps; unknown where neither was said."""
    run_history = RunHistory().tell(*told).train(201, 212)
    assert (run_history.state.share, run_history.state.total_steps) == (pytest.approx(share) if share else None, total)


def test_steps_in_all_are_not_guessed_where_a_step_takes_several_batches() -> None:
    """With gradient accumulation the share is known from the batches; a number of steps would be made up."""
    progress = Progress(epoch=1, step=75, batches=50, seconds=60.0)
    state = PanelState(max_epochs=10, epoch_batches=100, progress=progress)
    assert (state.share, state.total_steps) == (pytest.approx(0.15), None)


def test_speed_and_time_left_are_those_of_the_last_half_minute() -> None:
    """A slow beginning does not make the rest look long."""
    run_history = RunHistory().tell(LengthTold(max_steps=1000))
    for step in range(1, 101):
        run_history.tell(StepDone(progress=Progress(step=step, seconds=step * 10.0), epoch_batches=None))
    for n in range(1, 201):
        run_history.tell(StepDone(progress=Progress(step=100 + n, seconds=1000.0 + n * 0.2), epoch_batches=None))
    assert run_history.state.steps_per_second == pytest.approx(5.0)
    assert run_history.state.seconds_left == pytest.approx(700 / 5)


def test_epochs_without_steps_have_no_speed() -> None:
    """A loop that trains somebody else's trainer for an epoch, and takes no step of its own, has nothing to count."""
    run_history = RunHistory().tell(LengthTold(max_epochs=9))
    for epoch in (1, 2, 3):
        run_history.tell(StepDone(progress=Progress(epoch=epoch, seconds=epoch * 10.0), epoch_batches=None))
    assert run_history.state.steps_per_second is None
    assert run_history.state.seconds_left == pytest.approx(60.0)


def test_what_is_logged_brings_the_panel_to_its_step() -> None:
    """Of steps a display hears few: an epoch's metrics are not told beside a step that was before them."""
    run_history = RunHistory().start().train(1, 40)
    run_history.tell(MetricsLogged(progress=at(99), metrics={"val_loss": 1.0}))
    assert run_history.state.progress.step == 99
    run_history.tell(MetricsLogged(progress=at(98), metrics={"late": 1.0}))
    assert run_history.state.progress.step == 99


def test_the_curve_covers_all_sessions_and_stays_bounded() -> None:
    """What was recalled comes first, own steps follow, in order; a day of steps does not make the page heavy."""
    run_history = RunHistory().start(resumed_at=500).train(501, 3000)
    steps = [step for step, _ in run_history.state.points]
    assert steps == sorted(steps)
    assert (steps[0], run_history.state.resumed_at, run_history.state.sessions) == (1, (500,), 2)
    assert steps[-1] > 2900
    assert 200 < len(steps) <= 512


def test_every_resumption_is_marked() -> None:
    """Those of earlier sessions and this one's own, each once."""
    run_history = RunHistory().start(resumed_at=300)
    run_history.tell(Recalled(points=(), resumed_at=(100, 200, 300), sessions=4))
    assert (run_history.state.resumed_at, run_history.state.sessions) == ((100, 200, 300), 4)


@pytest.mark.parametrize(
    ("loss", "shown"),
    [(0.5, 0.5), (torch.tensor(0.25), 0.25), (None, None), (torch.ones(3), None), ("no", None), ({}, None)],
    ids=["number", "tensor", "none", "tensor of many", "text", "mapping"],
)
def test_a_loss_that_is_no_number_is_not_drawn(loss: object, shown: float | None) -> None:
    """The panel goes on without it."""
    state = PanelState()
    state.take(StepDone(progress=at(1), epoch_batches=None, loss=loss), 0.0)
    assert state.loss == shown
    assert state.points == (() if shown is None else ((1, shown),))


def test_a_loss_that_is_not_finite_is_kept_as_it_is() -> None:
    """The picture says where the training broke."""
    state = PanelState()
    state.take(StepDone(progress=at(7), epoch_batches=None, loss=math.nan), 0.0)
    assert [step for step, value in state.points if math.isnan(value)] == [7]


def test_what_was_deleted_stays_on_the_curve_only() -> None:
    """Its step was safe then; the table lists what is there."""
    run_history = in_phase("durable").tell(Pruned(checkpoints=("000000000100-s1",)))
    assert [(saved.step, saved.gone) for saved in run_history.state.saves] == [(200, False), (100, True)]
    run_history.tell(Pruned(checkpoints=("000000000200-s1",)))
    assert run_history.state.newest_own is None


def test_a_repeated_sentence_is_listed_once() -> None:
    """And the list has an end."""
    run_history = RunHistory()
    for n in range(40):
        run_history.tell(Noted(text=f"note {n // 2}"))
    assert [happened.text for happened in run_history.state.happened] == [f"note {n}" for n in range(19, 7, -1)]


@pytest.mark.parametrize("cut", range(0, 240, 7))
def test_a_run_that_breaks_off_is_a_state_like_any_other(cut: int) -> None:
    """A process can die after any event: each prefix of a run can be shown."""
    whole = in_phase("failed").events
    state = PanelState()
    for event in whole[:cut]:
        state.take(event, 0.0)
    assert "<table" in render(state)
    assert line(state).startswith("[colabkeep ")


def cadence(seconds: float) -> CadenceChosen:
    figures = {"interval": seconds, "cost": 0.02, "session": 9000.0, "overhead": 0.01, "carried": 80.0}
    return CadenceChosen(**figures, reason="storage", text=f"saving every {seconds:g} s: said")


def test_how_often_it_saves_is_shown_with_why() -> None:
    """The latest choice with what the last save cost and how it was copied, also in the file for programs; not among
    the last events, and not when all is over."""
    run_history = in_phase("durable").tell(cadence(15.0), cadence(100.0))
    told = "aving every 1 min 40 s: a save costs 20 ms here, assuming sessions of about 2.5 h, storage takes one per"
    last = "The last save paused training for 0.1 s (memory is short)."
    text = text_of(render(run_history.state))
    assert f"S{told} 1 min 20 s; saves come no faster than the storage can take them. {last}" in text
    assert "every 15 s" not in text
    assert not [each for each in run_history.state.happened if "saving every" in each.text]
    assert record(run_history.state)["cadence"].startswith(f"s{told}")
    assert record(run_history.state)["last_save"] == {
        "stopped_training_seconds": 0.1,
        "copy": "memory is short",
    }
    over = text_of(render(run_history.stop("finished").state))
    assert "aving every" not in over
    assert last not in over


def test_how_often_it_saves_is_said_in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same figures."""
    monkeypatch.setenv("COLABKEEP_LANG", "zh")
    chinese = text_of(render(in_phase("durable").tell(cadence(100.0)).state))
    assert "每 1 min 40 s 保存一次" in chinese
    assert "存储每 1 min 20 s 接收一次" in chinese
    assert "上一次保存使训练暂停 0.1 s" in chinese


def test_who_says_himself_when_to_save_reads_what_it_costs() -> None:
    """Without a word of a cadence that nobody chose; and before the first save nothing is said."""
    text = text_of(render(in_phase("durable").state))
    assert "The last save paused training for 0.1 s (memory is short)." in text
    assert "aving every" not in text
    assert "paused training" not in text_of(render(in_phase("fresh").state))


def test_how_often_it_saves_is_said_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no panel, once for each time that it is told."""
    Lines(FakeClock())(cadence(100.0))
    assert capsys.readouterr().out == "[colabkeep] saving every 100 s: said\n"


def test_what_a_save_costs_is_said_in_the_log_once_for_each_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """The first save, and the first one that something made slower; not hundreds that are like these."""
    lines = Lines(FakeClock())
    for step, why in enumerate(["", "memory is short"] * 3):
        lines(SaveStarted(progress=at(step), reason="auto", blocked=0.006))
        facts = {"progress": at(step), "reason": "auto", "bytes": 9, "written": 9, "seconds": 1.0, "level": "local"}
        lines(SaveCommitted(checkpoint=f"{step}", copy=why, **facts))
    assert capsys.readouterr().out.splitlines() == [
        "[colabkeep] The last save paused training for 6 ms.",
        "[colabkeep] The last save paused training for 6 ms (memory is short).",
    ]


def logged(epoch: int, step: int, **metrics: float) -> MetricsLogged:
    return MetricsLogged(progress=Progress(epoch=epoch, step=step, batches=1), metrics=metrics)


def test_a_metric_counts_with_its_last_value_of_an_epoch() -> None:
    """Several loggings of one epoch are one row; `metrics` has the newest of each, whenever it was logged."""
    panel = PanelState()
    for event in (logged(0, 5, a=1.0), logged(0, 10, a=2.0, b=3.0), logged(1, 20, a=4.0)):
        panel.take(event, 0.0)
    assert [(row.epoch, row.step, row.metrics) for row in panel.epochs] == [
        (0, 10, {"a": 2.0, "b": 3.0}),
        (1, 20, {"a": 4.0}),
    ]
    assert panel.metrics == {"a": 4.0, "b": 3.0}
    assert panel.series("b") == ((10, 3.0),)


@pytest.mark.parametrize(
    ("monitor", "mode", "best"),
    [("", "min", 1), ("accuracy", "max", 2), ("accuracy", "min", 0), ("nowhere", "min", None)],
)
def test_the_best_epoch_is_that_of_the_monitored_metric_or_of_the_validation(
    monitor: str, mode: str, best: int | None
) -> None:
    """The first of equals; what is no number is never the best."""
    panel = PanelState(started=replace(PanelState().started, monitor=monitor, mode=mode))
    for epoch, (loss, accuracy) in enumerate([(0.9, 0.1), (0.5, 0.7), (0.5, 0.9), (math.nan, math.nan)]):
        panel.take(logged(epoch, epoch + 1, val_loss=loss, accuracy=accuracy), 0.0)
    assert (None if panel.best_epoch is None else panel.best_epoch.epoch) == best


def test_the_epochs_of_earlier_sessions_are_there_without_a_time() -> None:
    """How long an epoch took is known where its beginning was seen."""
    history = ({"epoch": 0, "step": 100, "val_loss": 2.0}, {"epoch": 1, "step": 200, "val_loss": 1.0})
    run = RunHistory().start(resumed_at=250)
    run.tell(Recalled(points=(), resumed_at=(250,), sessions=2, history=history))
    for epoch in (2, 3):
        run.train(epoch * 100 + 51, epoch * 100 + 100)
        run.tell(logged(epoch, (epoch + 1) * 100, val_loss=0.5))
        run.tell(EpochDone(epoch=epoch, progress=at((epoch + 1) * 100), metrics={}))
    rows = run.state.epochs
    assert [(row.epoch, row.metrics["val_loss"]) for row in rows] == [(0, 2.0), (1, 1.0), (2, 0.5), (3, 0.5)]
    assert [row.seconds for row in rows[:3]] == [None] * 3
    assert rows[3].seconds == pytest.approx(100 / 3)

"""However a session ends, the next one goes on, and the end has the bits of a training in one piece."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.core.events import Event, Noted, RunStopped
from tests.trainings.torch import hard_training

Whole = Callable[..., dict[str, str]]


def in_the_loss(words: dict[str, Any], kit: SimpleNamespace) -> None:
    words["loss_fn"] = kit.breaking(words["loss_fn"], call=16)


def in_a_forward_pass(words: dict[str, Any], kit: SimpleNamespace) -> None:
    words["model"].second.forward = kit.breaking(words["model"].second.forward, call=16)


def in_a_validation(words: dict[str, Any], kit: SimpleNamespace) -> None:
    words["loss_fn"] = kit.breaking(words["loss_fn"], call=14)


def in_a_metric(words: dict[str, Any], kit: SimpleNamespace) -> None:
    def measure(output: Any, target: Any) -> Any:
        return output.mean()

    words["metrics"] = {"mean": kit.breaking(measure, call=4)}


def after_the_optimizers_step(words: dict[str, Any], kit: SimpleNamespace) -> None:
    words["optimizer"].register_step_post_hook(kit.breaking(lambda *_: None, call=7))


def after_the_emas_update(words: dict[str, Any], kit: SimpleNamespace) -> None:
    words["ema"].update_parameters = kit.breaking(words["ema"].update_parameters, call=7)


def after_the_schedulers_step(words: dict[str, Any], kit: SimpleNamespace) -> None:
    words["scheduler"].step = kit.breaking(words["scheduler"].step, call=7)


PLACES = [
    in_the_loss, in_a_forward_pass, in_a_validation, in_a_metric,
    after_the_optimizers_step, after_the_emas_update, after_the_schedulers_step,
]  # fmt: skip
TORN = [after_the_optimizers_step, after_the_emas_update, after_the_schedulers_step]


@pytest.mark.parametrize(
    ("place", "accumulate"),
    [*((place, 3) for place in PLACES), (in_the_loss, 1), (after_the_optimizers_step, 1)],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_an_error_anywhere_costs_no_bit(
    tmp_path: Path, kit: SimpleNamespace, whole: Whole, place: Callable[..., None], accumulate: int
) -> None:
    """It comes out as it is, also inside an accumulation window; the corrected cell ends like one piece."""
    words = kit.cell(tmp_path, **hard_training(epochs=kit.EPOCHS, accumulate=accumulate))
    words |= {"save_every": "2 steps"}
    place(words, kit)
    with pytest.raises(kit.Breakage):
        colabkeep.resumable_fit(**words)
    again = kit.cell(tmp_path, **hard_training(epochs=kit.EPOCHS, accumulate=accumulate), on_change="apply")
    if place is in_a_metric:
        again["metrics"] = {"mean": lambda output, target: output.mean()}
    result = colabkeep.resumable_fit(**again)
    assert result.resumed_from is not None
    state, wanted = kit.state(tmp_path, "r"), whole(accumulate)
    if place is in_a_metric:  # which is in this history only
        del state["history.state.lines"], wanted["history.state.lines"]
    assert state == wanted


@pytest.mark.parametrize("place", [in_the_loss, in_a_forward_pass], ids=lambda place: place.__name__)
def test_an_error_between_two_steps_loses_no_step(
    tmp_path: Path, kit: SimpleNamespace, place: Callable[..., None]
) -> None:
    """The last finished step is saved on the way out, although no save was due."""
    words = kit.cell(tmp_path, save_every=None)
    place(words, kit)
    with pytest.raises(kit.Breakage):
        colabkeep.resumable_fit(**words)
    again = kit.fit(tmp_path, on_change="apply")  # the loss was corrected
    assert again.resumed_from == 13  # the first epoch's 11 batches, 2 of validation, 2 more; not the 16th


@pytest.mark.parametrize("place", TORN, ids=lambda place: place.__name__)
def test_half_a_step_is_not_saved(tmp_path: Path, kit: SimpleNamespace, place: Callable[..., None]) -> None:
    """After an error in the middle of an update the last whole checkpoint counts, and the user is told why."""
    events: list[Event] = []
    words = kit.cell(tmp_path, save_every="4 steps", callbacks=[events.append])
    place(words, kit)
    with pytest.raises(kit.Breakage):
        colabkeep.resumable_fit(**words)
    assert any("half a step cannot be saved" in event.text for event in events if isinstance(event, Noted))
    assert kit.fit(tmp_path).resumed_from == 4


def test_an_error_after_the_epochs_scheduler_has_moved_steps_it_once(tmp_path: Path, kit: SimpleNamespace) -> None:
    """A loop left between the scheduler's step and the end of the epoch does not step it a second time."""

    def words(folder: Path) -> dict[str, Any]:
        words: dict[str, Any] = kit.cell(folder, scheduler_interval="epoch", ema=None, save_every="4 steps")
        words["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(words["optimizer"], 0.5)
        return words

    broken = words(tmp_path / "a")
    broken["scheduler"].step = kit.breaking(broken["scheduler"].step, call=2)
    with pytest.raises(kit.Breakage):
        colabkeep.resumable_fit(**broken)
    assert 4 <= colabkeep.resumable_fit(**words(tmp_path / "a")).resumed_from <= 22
    colabkeep.resumable_fit(**words(tmp_path / "b"))
    assert kit.state(tmp_path / "a", "r") == kit.state(tmp_path / "b", "r")


@pytest.mark.parametrize(
    ("number", "status", "reason"),
    [("SIGINT", -2, "interrupt"), ("SIGTERM", 143, "sigterm"), ("SIGHUP", 129, "sighup")],
)
def test_a_signal_saves_the_last_step_and_ends_the_process_as_always(
    tmp_path: Path, kit: SimpleNamespace, whole: Whole, number: str, status: int, reason: str
) -> None:
    """Ctrl-C, a machine that is shut down, a terminal that is closed: nothing is lost, and the exit status is what a
    shell expects."""
    with kit.Child(tmp_path) as child:
        child.reach(6)
        assert child.signal(signal.Signals[number]) == status
        steps = child.steps
    assert 6 <= steps < 33
    result = kit.fit(tmp_path)
    assert result.resumed_from == steps
    assert [info.manifest.reason for info in result.checkpoints if info.step == steps] == [reason]
    assert kit.state(tmp_path, "r") == whole()


def test_the_users_own_signal_handlers_come_back(tmp_path: Path, kit: SimpleNamespace) -> None:
    """After a run, also one that failed, Ctrl-C means what it meant before."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    kit.fit(tmp_path, max_steps=2)
    words = kit.cell(tmp_path)
    in_a_forward_pass(words, kit)
    with pytest.raises(kit.Breakage):
        colabkeep.resumable_fit(**words)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_time_that_runs_out_is_a_clean_end(tmp_path: Path, kit: SimpleNamespace, whole: Whole) -> None:
    """`max_time` stops between two steps without an error, says so, and the next sessions finish the run."""
    events: list[Event] = []
    first = kit.fit(tmp_path, max_time=1e-6, callbacks=[events.append])
    assert (first.stopped, first.steps, first.resumed_from) == ("max_time", 1, None)
    assert [event.reason for event in events if isinstance(event, RunStopped)] == ["max_time"]
    for step in (2, 3, 4):
        assert kit.fit(tmp_path, max_time=1e-6).steps == step
    assert kit.fit(tmp_path).stopped == "finished"
    assert kit.state(tmp_path, "r") == whole()


def test_an_own_loop_may_stop_itself(tmp_path: Path) -> None:
    """`run.stop()` leaves the block without an error, and what was trained is saved."""
    words = hard_training(epochs=2)
    parts = {name: words[name] for name in ("model", "optimizer")}
    with colabkeep.Run("r", **parts, storage=tmp_path, save_every=None, progress=False) as run:
        for _ in run.epochs(2):
            for features, target in run.batches(words["train_loader"]):
                words["loss_fn"](words["model"](features), target).backward()
                words["optimizer"].step()
                run.step()
                if run.progress.step == 5:
                    run.stop("enough")
    assert (run.stopped, run.finished) == ("enough", False)
    assert run.checkpoint is not None
    assert int(run.checkpoint.split("-")[0]) == 5


def test_what_an_own_loop_draws_before_its_first_batch_is_drawn_again(tmp_path: Path) -> None:
    """A number drawn at the start of an epoch has its old value after a resume in the middle of that epoch."""

    def session(folder: Path, end: int) -> list[float]:
        torch.manual_seed(1)
        model, drawn = torch.nn.Linear(8, 8), []
        with colabkeep.Run("r", model=model, storage=folder, save_every="2 steps", progress=False) as run:
            for _ in run.epochs(2):
                strength = float(torch.rand(()))  # of this epoch's augmentation, say
                for features in run.batches([torch.ones(4, 8)] * 5):
                    drawn.append(strength + float(torch.rand(())) + float(model(features).detach().mean()))
                    run.step()
                    if run.progress.step == end:
                        run.stop()
        return drawn

    parts = [number for end in (3, 4, 8, 99) for number in session(tmp_path / "parts", end)]
    assert parts == session(tmp_path / "whole", 99)
    assert len(set(parts)) == 10


def test_leaving_an_own_loop_early_saves(tmp_path: Path) -> None:
    """A `break` out of the loop is as good: the last step is there."""
    words = hard_training(epochs=2)
    with colabkeep.Run("r", model=words["model"], storage=tmp_path, save_every=None, progress=False) as run:
        for _ in run.epochs(2):
            for _batch in run.batches(words["train_loader"]):
                run.step()
                if run.progress.step == 4:
                    break
            break
    with colabkeep.Run("r", model=words["model"], storage=tmp_path, progress=False) as again:
        assert again.progress.step == 4
        assert (again.progress.epoch, again.progress.batches) == (0, 4)


def test_a_loop_left_in_mid_epoch_may_be_begun_again(tmp_path: Path) -> None:
    """Breaking out of both loops and looping on is allowed: the epoch goes on where it was left."""
    model = torch.nn.Linear(1, 1)
    batches = [torch.full((1, 1), float(i)) for i in range(6)]
    seen: list[float] = []
    with colabkeep.Run("r", model=model, storage=tmp_path, progress=False) as run:
        for _ in range(3):
            for _ in run.epochs(1):
                for batch in run.batches(batches):
                    seen.append(batch.item())
                    run.step()
                    if len(seen) in (2, 4):
                        break
                else:
                    continue
                break
        assert run.finished
    assert seen == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

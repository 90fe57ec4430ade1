"""However a session of Paddle ends, the next one goes on, and the end has the bits of a training in one piece."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import colabkeep
from colabkeep.core.events import Event, StepDone
from tests.trainings.paddle import hard_training

Whole = Callable[..., dict[str, str]]


def in_the_loss(words: dict[str, Any], kit: SimpleNamespace) -> None:
    words["loss_fn"] = kit.breaking(words["loss_fn"], call=16)


def in_a_forward_pass(words: dict[str, Any], kit: SimpleNamespace) -> None:
    words["model"].second.forward = kit.breaking(words["model"].second.forward, call=16)


def in_a_validation(words: dict[str, Any], kit: SimpleNamespace) -> None:
    words["loss_fn"] = kit.breaking(words["loss_fn"], call=12)


def in_the_average(words: dict[str, Any], kit: SimpleNamespace) -> None:
    words["ema"].update_parameters = kit.breaking(words["ema"].update_parameters, call=7)


def in_the_optimizers_step(words: dict[str, Any], kit: SimpleNamespace) -> None:
    words["optimizer"].step = kit.breaking(words["optimizer"].step, call=7)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    "place", [in_the_loss, in_a_forward_pass, in_a_validation, in_the_average, in_the_optimizers_step]
)
def test_an_exception_in_a_step_costs_no_bit(
    tmp_path: Path, kit: SimpleNamespace, whole: Whole, place: Callable[..., None], accumulate: int
) -> None:
    """The error reaches the user as it is; the cell run again ends as if it had never happened."""
    words = hard_training(epochs=kit.EPOCHS, accumulate=accumulate)
    place(words, kit)
    with pytest.raises(kit.Breakage):
        kit.fit(tmp_path, **words, save_every="2 steps")
    again = hard_training(epochs=kit.EPOCHS, accumulate=accumulate)
    result = kit.fit(tmp_path, **again, on_change="apply")  # the loss was corrected
    assert result.resumed_from is not None
    assert result.resumed_from > 0
    assert kit.state(tmp_path, "r") == whole(accumulate)


def test_the_stop_button_saves_the_last_step_and_costs_no_bit(
    tmp_path: Path, kit: SimpleNamespace, whole: Whole
) -> None:
    """Ctrl-C in the middle of an epoch: KeyboardInterrupt, and the next session goes on at that very step."""

    def press(event: Event) -> None:
        if isinstance(event, StepDone) and event.progress.step == 14:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        kit.fit(tmp_path, save_every=None, callbacks=[press])
    assert kit.fit(tmp_path).resumed_from == 14
    assert kit.state(tmp_path, "r") == whole()


def test_the_time_limit_ends_a_session_cleanly(tmp_path: Path, kit: SimpleNamespace, whole: Whole) -> None:
    """max_time stops at a step and saves it; nothing is lost."""
    result = kit.fit(tmp_path, max_time=0.001)
    assert result.stopped == "max_time"
    assert 0 < result.steps < 33
    assert kit.fit(tmp_path).resumed_from == result.steps
    assert kit.state(tmp_path, "r") == whole()


def test_an_own_loop_may_stop_early_and_say_why(tmp_path: Path, kit: SimpleNamespace) -> None:
    """run.stop() in a loop on Run: the state is saved, and the next session begins there."""
    for expected in (None, 5, 10):
        words = kit.cell(tmp_path)
        own = {name: words[name] for name in ("model", "optimizer", "scheduler", "ema")}
        with colabkeep.Run("r", **own, storage=tmp_path, progress=False) as run:
            resumed = run.resumed_from.progress.step if run.resumed_from else None
            assert resumed == expected
            for _ in run.epochs(3):
                for features, target in run.batches(words["train_loader"]):
                    words["loss_fn"](own["model"](features), target).backward()
                    own["optimizer"].step()
                    own["scheduler"].step()
                    own["optimizer"].clear_grad()
                    own["ema"].update_parameters(own["model"])
                    run.step()
                    if run.progress.step % 5 == 0:
                        run.stop("early")
        assert run.stopped == "early"

"""The forms of loops, with Paddle: steps, a second stream, variables with tensors, a mean, a loop that is not seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
import pytest
from paddle import nn
from paddle.io import DataLoader, TensorDataset

import colabkeep
from colabkeep.core.events import Event, Noted, RunStarted, StepDone
from tests.trainings import final_state

BATCHES = 5


class Death(BaseException):
    """An end after which the last finished step counts."""


class Training:
    """A session of a loop, everything built anew."""

    def __init__(self, folder: Path, die_at: int = -1) -> None:
        paddle.seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = paddle.optimizer.Adam(0.01, parameters=self.model.parameters())
        self.loader = DataLoader(TensorDataset([paddle.randn([20, 4]), paddle.randint(0, 2, [20, 1])]), batch_size=4)
        self.other = DataLoader(TensorDataset([paddle.randn([9, 4])]), batch_size=2, shuffle=True)
        self.events: list[Event] = []
        self.die_at = die_at
        words: dict[str, Any] = {"storage": str(folder), "save_every": "2 steps", "keep_last": None, "progress": False}
        self.run = colabkeep.Run(
            "r", model=self.model, optimizer=self.optimizer, callbacks=[self.events.append], **words
        )

    def learn(self, batch: Any) -> Any:
        features, target = batch
        loss = nn.functional.cross_entropy(self.model(features), target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        return loss.detach()

    def died(self) -> None:
        """Is this the step?"""
        if self.run.progress.step == self.die_at:
            raise Death


def by_epochs(training: Training) -> None:
    with training.run as run:
        run.state.hidden, run.state.best = paddle.zeros([3]), 9.0
        for _ in run.epochs(3):
            for i, batch in run.enumerate(training.loader):
                training.died()
                (more,) = run.next(training.other)
                loss = training.learn(batch)
                run.state.hidden = run.state.hidden * 0.5 + paddle.rand([3]) + i + more.mean()
                run.average(loss=loss)
                run.step(loss=loss)
                run.state.best = min(run.state.best, float(loss))
            run.log(loss=run.average.loss)


def by_steps(training: Training) -> None:
    with training.run as run:
        for _ in run.steps(3 * BATCHES):
            training.died()
            run.step(loss=training.learn(run.next(training.loader)))


@pytest.mark.parametrize("form", [by_epochs, by_steps], ids=lambda form: form.__name__)
def test_a_loop_that_is_left_again_and_again_ends_with_the_same_bits(
    form: Callable[[Training], None], tmp_path: Path
) -> None:
    """By an error at the beginning of a step, in the middle of an epoch and in its first batch."""
    form(Training(tmp_path / "whole"))
    for step in (1, 3, 5, 6, 12):
        with pytest.raises(Death):
            form(Training(tmp_path / "parts", die_at=step))
    form(Training(tmp_path / "parts"))
    assert final_state(str(tmp_path / "parts"), "r") == final_state(str(tmp_path / "whole"), "r")


def test_what_no_checkpoint_holds_with_paddle_is_named_where_the_promise_stands(tmp_path: Path) -> None:
    """Gradients that a loop leaves for its next step: with torch they are kept."""
    training = Training(tmp_path)
    with training.run:
        pass
    (started,) = [event for event in training.events if isinstance(event, RunStarted)]
    assert "gradients that you do not clear behind a step" in started.unseen


def test_an_epoch_that_reads_elsewhere_is_saved_at_its_end_and_told(tmp_path: Path) -> None:
    """And steps that are not counted are told too."""
    training = Training(tmp_path)
    with training.run as run:
        for epoch in run.epochs(2):
            for batch in training.loader:
                loss = training.learn(batch)
                if epoch == 0:
                    run.step(loss=loss)
            if epoch == 1:
                run.step(loss=loss)
    told = " ".join(event.text for event in training.events if isinstance(event, Noted))
    assert "can be saved at its end only" in told
    assert f"the optimizer took {BATCHES} steps, and run.step() was called once" in told
    assert len([event for event in training.events if isinstance(event, StepDone)]) == BATCHES + 1

"""What a script does between opening its run and its loop it does in each session; the checkpoint has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import colabkeep
from colabkeep.core.events import Event, RestoredInexactly
from tests.trainings import final_state

STEPS, EPOCHS = 12, 3
DATA = [torch.full((2, 3), float(i)) for i in range(4)]


class Walk:
    """An environment: it moves by random numbers, and begins anew when it is reset."""

    def __init__(self) -> None:
        self.at, self.lives = 0.0, 0

    def reset(self) -> None:
        self.at, self.lives = float(torch.rand(1)), self.lives + 1

    def move(self) -> float:
        self.at += float(torch.rand(1))
        return self.at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "lives": self.lives}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.lives = state["at"], state["lives"]


def by_steps(run: colabkeep.Run) -> Iterator[int]:
    return run.steps(STEPS)


def by_epochs(run: colabkeep.Run) -> Iterator[int]:
    return (i for _ in run.epochs(EPOCHS) for i, _ in run.enumerate(DATA))


def of_its_own(run: colabkeep.Run) -> Iterator[int]:
    while run.progress.step < STEPS:
        yield run.progress.step


class Session:
    """One session of a script that resets its environment, sets a rate and counts in a buffer above its loop."""

    def __init__(self, folder: Path, above: Any = None) -> None:
        torch.manual_seed(0)
        self.events: list[Event] = []
        self.walk, self.model = Walk(), nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.above = above or (lambda _: None)
        parts = {"model": self.model, "optimizer": self.optimizer, "state": {"walk": self.walk}}
        options = {"storage": str(folder), "save_every": "1 steps", "progress": False}
        self.run = colabkeep.Run("r", **parts, **options, callbacks=[self.events.append])

    def train(self, loop: Any, until: int | None = None) -> Session:
        with self.run as run:
            self.walk.reset()
            self.optimizer.param_groups[0]["lr"] = 0.05
            self.model(torch.ones(4, 3))  # moves the statistics of BatchNorm
            self.above(self)
            for _ in loop(run):
                self.model(torch.rand(2, 3) + self.walk.move()).sum().mul(0.01).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.optimizer.param_groups[0]["lr"] *= 0.9
                run.step()
                if run.progress.step == until:
                    run.save(wait=True)
                    break
        return self

    @property
    def inexact(self) -> str:
        return " ".join(each.reason for each in self.events if isinstance(each, RestoredInexactly))


@pytest.mark.parametrize("loop", [by_steps, by_epochs])
@pytest.mark.parametrize("until", [4, 6])  # the end of an epoch, and the middle of one
def test_it_is_undone_in_a_session_that_resumes(loop: Any, until: int, tmp_path: Path) -> None:
    """The environment lives on where it was, and nothing is told: all is exact."""
    Session(tmp_path / "whole").train(loop)
    Session(tmp_path / "cut").train(loop, until)
    again = Session(tmp_path / "cut").train(loop)
    assert again.run.resumed_from is not None
    assert again.run.resumed_from.progress.step == until
    assert final_state(str(tmp_path / "cut"), "r") == final_state(str(tmp_path / "whole"), "r")
    assert again.walk.lives == 1
    assert again.inexact == ""


def halve(session: Session) -> None:
    with torch.no_grad():
        session.model[0].weight.mul_(0.5)


@pytest.mark.parametrize("loop", [by_steps, by_epochs])
def test_weights_that_are_changed_there_are_told(loop: Any, tmp_path: Path) -> None:
    """Pretrained ones that are loaded once more would otherwise take the place of the trained ones without a word."""
    assert Session(tmp_path, halve).train(loop, 6).inexact == ""
    told = Session(tmp_path, halve).train(loop).inexact
    assert "model.0.weight" in told
    assert "above the line that opens the run" in told


def test_a_loop_of_the_users_own_count_goes_on_with_what_stands_there(tmp_path: Path) -> None:
    """Where such a loop begins cannot be told, so nothing is undone, and the optimizer takes new groups again."""
    Session(tmp_path).train(of_its_own, 5)
    again = Session(tmp_path).train(of_its_own)
    assert again.walk.lives == 2
    assert "add_param_group" not in vars(again.optimizer)

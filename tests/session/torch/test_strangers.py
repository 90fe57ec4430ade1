"""What moves the training and was not handed in is told: in the first session as a note, in a resumed one as what it
costs. What was handed in, in whatever way, is not."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.data import DataLoader, Dataset, TensorDataset

import colabkeep
from colabkeep.core.errors import UsageError
from colabkeep.core.events import Event, Noted, RestoredInexactly, RunStarted


class Cell:
    """A script with two models, two optimizers and a schedule; what it hands in is the test's."""

    def __init__(self) -> None:
        self.model, self.critic = nn.Linear(2, 2), nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.other = torch.optim.Adam(self.critic.parameters())
        self.events: list[Event] = []

    def run(self, folder: Path, steps: int, also: Callable[[], object] = lambda: None, **parts: Any) -> list[str]:
        """Train; what was told."""
        options = {"storage": str(folder), "progress": False, "callbacks": [self.events.append]}
        with colabkeep.Run("r", model=self.model, optimizer=self.optimizer, **parts, **options) as run:
            for _ in run.steps(steps):
                self.critic(self.model(torch.randn(4, 2))).square().mean().backward()
                self.optimizer.step()
                also()
                run.step()
        return [e.text for e in self.events if isinstance(e, Noted)] + [
            e.reason for e in self.events if isinstance(e, RestoredInexactly)
        ]


@pytest.mark.parametrize("kind", [schedules.ExponentialLR, schedules.ReduceLROnPlateau])
def test_a_schedule_that_was_forgotten_is_told_before_the_disconnect_and_after_it(kind: Any, tmp_path: Path) -> None:
    """With what to write. In a resumed session it has begun anew already, so that is no note any more."""

    def build() -> tuple[Cell, Any]:
        cell = Cell()
        return cell, kind(cell.optimizer, *([0.9] if kind is schedules.ExponentialLR else []))

    cell, _scheduler = build()
    (told,) = cell.run(tmp_path, 2)
    assert f"A scheduler ({kind.__name__}) of this run's optimizer was not passed to colabkeep" in told
    assert "scheduler=" in told
    again, _scheduler = build()
    (told,) = again.run(tmp_path, 4)
    assert [event for event in again.events if isinstance(event, RestoredInexactly) and event.reason == told]


def test_an_optimizer_that_was_forgotten_is_told_with_what_it_trains(tmp_path: Path) -> None:
    """The second one of a GAN: its moments would be gone."""
    cell = Cell()
    (told,) = cell.run(tmp_path, 2, cell.other.step, state={"critic": cell.critic})
    assert "critic.weight (and 1 more) is trained by an optimizer (Adam) that was not passed to colabkeep" in told
    assert "state={" in told


def test_what_was_handed_in_is_told_to_nobody(tmp_path: Path) -> None:
    """Schedules that run others, an object of the script's that holds optimizers and schedules, and all by itself."""

    class Trainer:
        def __init__(self, *parts: Any) -> None:
            self.parts = list(parts)

        def state_dict(self) -> dict[str, Any]:
            return {str(i): part.state_dict() for i, part in enumerate(self.parts)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            for i, part in enumerate(self.parts):
                part.load_state_dict(state[str(i)])

    for number, build in enumerate(
        [
            lambda c: {"scheduler": schedules.StepLR(c.optimizer, 1), "state": {"other": c.other}},
            lambda c: {
                "scheduler": schedules.SequentialLR(
                    c.optimizer, [schedules.LinearLR(c.optimizer), schedules.StepLR(c.optimizer, 1)], [3]
                ),
                "state": {"other": c.other, "plateau": schedules.ReduceLROnPlateau(c.other)},
            },
            lambda c: {"state": {"trainer": Trainer(c.other, schedules.StepLR(c.other, 1))}},
        ]
    ):
        cell = Cell()
        assert cell.run(tmp_path / str(number), 3, cell.other.step, **build(cell)) == []


def test_what_an_optimizer_counts_in_attributes_is_told_before_the_disconnect_and_after_it(tmp_path: Path) -> None:
    """Of the numbers that it was made with: no flag, no setting that stays, and none of a class that keeps them."""

    class Fading(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, lr=0.1)
            self.count, self.fade, self.warm = 0, 0.9, False

        def step(self, closure: Any = None) -> Any:
            self.count, self.warm = self.count + 1, True
            for group in self.param_groups:
                group["lr"] = 0.1 * self.fade**self.count
            return super().step(closure)

    class Kept(Fading):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]
            super().load_state_dict({key: value for key, value in state.items() if key != "count"})

    def cell(kind: type[Fading]) -> Cell:
        made = Cell()
        made.optimizer = kind(made.model.parameters())
        return made

    (told,) = cell(Fading).run(tmp_path / "fading", 2)
    assert told.startswith("Fading.count changes when the optimizer steps")
    again = cell(Fading)
    assert again.run(tmp_path / "fading", 4) == [told]
    assert [event for event in again.events if isinstance(event, RestoredInexactly)]
    assert cell(Kept).run(tmp_path / "kept", 2) == cell(Kept).run(tmp_path / "kept", 4) == []


def test_tensors_in_plain_attributes_that_training_moves_are_told_before_the_disconnect_and_after_it(
    tmp_path: Path,
) -> None:
    """Also in tuples and queues, and with their graph. No table that stays or is computed again, no loss of a step, and
    nothing that only shows the weights."""

    class Centred(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.table, self.again, self.loss = torch.ones(2), torch.zeros(2), torch.zeros(())
            self.shows, self.empty = [self.weight.detach()], []
            self.centre, self.drawn, self.queue = torch.zeros(2), torch.zeros(2), deque(maxlen=3)
            self.hidden = torch.zeros(4, 2), torch.zeros(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output = super().forward(x) + self.hidden[0].detach()
            self.again, self.loss = torch.zeros(2), output.square().mean()
            self.centre = 0.9 * self.centre + 0.1 * output.detach().mean(0)
            self.drawn.add_(output.detach()[0])
            self.queue.append(output.detach().mean(0))
            self.hidden = output, output
            return output - self.centre * self.table

    def cell() -> Cell:
        made = Cell()
        made.model = Centred()
        made.optimizer = torch.optim.SGD(made.model.parameters(), lr=0.1)
        return made

    told = cell().run(tmp_path, 2)
    assert [text.partition(" holds")[0] for text in told] == [
        f"Centred.{name}" for name in ("centre", "drawn", "queue", "hidden")
    ]
    for steps in (4, 6):  # the second time nobody has to look: the first resumed session left it in its checkpoints too
        again = cell()
        assert again.run(tmp_path, steps) == told
        assert len([event for event in again.events if isinstance(event, RestoredInexactly)]) == 4
        (started,) = (event for event in again.events if isinstance(event, RunStarted))
        assert started.promise.startswith("Not bit for bit")


@pytest.mark.parametrize("together", [list, tuple, lambda two: dict(zip("gd", two, strict=True))])
def test_two_in_the_place_of_one_are_told_how_to_be_handed_in(tmp_path: Path, together: Any) -> None:
    """As Accelerate and other trainers take them."""
    cell = Cell()
    with pytest.raises(UsageError, match=r"optimizer is a \w+ of several objects") as caught:
        colabkeep.Run("r", model=cell.model, optimizer=together([cell.optimizer, cell.other]), storage=tmp_path)
    assert "state={" in caught.value.remedy


def test_an_optimizer_of_one_step_is_no_stranger(tmp_path: Path) -> None:
    """Meta-learning makes one for each task, and lets it go."""

    def inner() -> None:
        task = nn.Linear(2, 1)
        task(torch.ones(1, 2)).sum().backward()
        torch.optim.SGD(task.parameters(), lr=0.1).step()

    assert Cell().run(tmp_path, 2, inner) == []


def test_nobody_listens_behind_the_first_step_or_the_session(tmp_path: Path) -> None:
    """Torch's hooks for all optimizers are as they were, also where no step was done."""
    before, heard = len(_global_optimizer_pre_hooks), []
    Cell().run(tmp_path, 3, lambda: heard.append(len(_global_optimizer_pre_hooks)))
    assert heard == [before + 1, before, before]
    Cell().run(tmp_path / "none", 0)
    assert len(_global_optimizer_pre_hooks) == before


class Stop(Exception):
    """What goes wrong on purpose."""


def validated(folder: Path, epochs: int) -> tuple[list[bytes], list[Any]]:
    """Epochs with dropout, and a validation by a worker that stays; it fails in the last one of five. Weights, and
    whether the loaders' workers stay: while the run trains, and behind it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(12, 4))
    held_out = DataLoader(data, batch_size=6, num_workers=1, persistent_workers=True)
    stay = []
    with (
        contextlib.suppress(Stop),
        colabkeep.Run("r", model=model, optimizer=optimizer, storage=str(folder), progress=False) as run,
    ):
        for epoch in run.epochs(4):
            for (x,) in run.batches(DataLoader(data, batch_size=4, shuffle=True)):
                model(x).square().mean().backward()
                optimizer.step()
                run.step()
            for (x,) in held_out:
                model(x)
            stay.append(held_out.persistent_workers)
            if epoch == epochs:
                raise Stop
    return [each.detach().numpy().tobytes() for each in model.parameters()], [*stay, held_out.persistent_workers]


def test_a_validation_with_workers_that_stay_draws_as_many_numbers_in_each_session(tmp_path: Path) -> None:
    """Torch draws one when workers begin: in the first validation of a session, but in none after it."""
    whole, stay = validated(tmp_path / "whole", 5)
    assert stay == [False, False, False, False, True]
    validated(tmp_path / "kept", 1)
    assert validated(tmp_path / "kept", 5)[0] == whole


class Who(Dataset):  # type: ignore[type-arg]
    """Which process reads it."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def test_workers_of_a_loader_that_the_run_reads_stay_from_whenever_it_is_first_read(tmp_path: Path) -> None:
    """It is only first read behind the first step, as the data of a later stage, or of a validation, are."""
    model, seen = nn.Linear(1, 1), set()
    late = DataLoader(Who(), batch_size=4, num_workers=1, persistent_workers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=str(tmp_path), progress=False) as run:
        for step in run.steps(4):
            if step:
                seen.update(run.next(late).tolist())
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            run.step()
    assert len(seen) == 1

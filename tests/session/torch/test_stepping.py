"""A scheduler that counts optimizer steps is stepped once per step, and one that counts epochs once per epoch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import colabkeep
from colabkeep.core.errors import UsageError
from colabkeep.core.events import Event, Noted
from tests.trainings import final_state

pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # an older SequentialLR's own

DATA = TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 2)
Make = Callable[[torch.optim.Optimizer], Any]
EPOCHS, STEPS = 3, 24  # of 8 batches each


def cell(folder: Path, make: Make, **words: Any) -> tuple[Any, list[str], Any]:
    """A training of 3 epochs with 8 batches: result, what was said of the scheduler, the scheduler."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = make(optimizer)
    told: list[Event] = []
    given: dict[str, Any] = {
        "train_loader": DataLoader(DATA, 4),
        "max_epochs": EPOCHS,
        "run_name": "r",
        "storage": folder,
        "loss_fn": F.cross_entropy,
        "callbacks": [told.append],
        "progress": False,
        "keep_last": None,
        **words,
    }
    result = colabkeep.resumable_fit(
        model, given.pop("train_loader"), optimizer=optimizer, scheduler=scheduler, **given
    )
    return result, [e.text for e in told if isinstance(e, Noted) and type(scheduler).__name__ in e.text], scheduler


def warm_up(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
    return min(1.0, step / max(1, num_warmup_steps)) * max(0.0, (num_training_steps - step) / num_training_steps)


def in_phases(step: int, *, num_warmup_steps: int, num_stable_steps: int, num_decay_steps: int) -> float:
    whole = num_warmup_steps + num_stable_steps + num_decay_steps
    return 1.0 if step < num_warmup_steps + num_stable_steps else max(0.0, (whole - step) / num_decay_steps)


def closed_over(num_training_steps: int) -> Callable[[int], float]:
    """As older transformers wrote them."""

    def rate(step: int) -> float:
        return max(0.0, 1 - step / num_training_steps)

    return rate


def after_warm_up(total: int) -> Make:
    def make(optimizer: torch.optim.Optimizer) -> Any:
        parts = [lr_scheduler.LinearLR(optimizer, total_iters=2), lr_scheduler.CosineAnnealingLR(optimizer, total - 2)]
        return lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])

    return make


COUNTING: dict[str, Callable[[int], Make]] = {
    "OneCycleLR": lambda total: lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=total),
    "CosineAnnealingLR": lambda total: lambda o: lr_scheduler.CosineAnnealingLR(o, total),
    "PolynomialLR": lambda total: lambda o: lr_scheduler.PolynomialLR(o, total_iters=total),
    "LinearLR": lambda total: lambda o: lr_scheduler.LinearLR(o, total_iters=total),
    "transformers": lambda total: (
        lambda o: lr_scheduler.LambdaLR(o, partial(warm_up, num_warmup_steps=1, num_training_steps=total))
    ),
    "transformers, in phases": lambda total: (
        lambda o: lr_scheduler.LambdaLR(
            o, partial(in_phases, num_warmup_steps=1, num_stable_steps=1, num_decay_steps=total - 2)
        )
    ),
    "closure": lambda total: lambda o: lr_scheduler.LambdaLR(o, closed_over(total)),
    "SequentialLR": after_warm_up,
    "ChainedScheduler": lambda total: (
        lambda o: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(o, total_iters=2), lr_scheduler.CosineAnnealingLR(o, total)]
        )
    ),
}


@pytest.mark.parametrize("kind", COUNTING)
def test_one_over_the_steps_of_the_run_is_stepped_each_step(tmp_path: Path, kind: str) -> None:
    """3 of 24 steps of a schedule were taken, in silence. The weights are those of scheduler_interval="step"."""
    _, said, scheduler = cell(tmp_path / "a", COUNTING[kind](STEPS))
    assert getattr(scheduler, "last_epoch", STEPS) == STEPS
    assert any("once per optimizer step" in text and "counts to 24" in text for text in said), said
    cell(tmp_path / "b", COUNTING[kind](STEPS), scheduler_interval="step")
    assert final_state(tmp_path / "a", "r") == final_state(tmp_path / "b", "r")


@pytest.mark.parametrize("kind", COUNTING)
def test_one_over_the_epochs_is_stepped_each_epoch(tmp_path: Path, kind: str) -> None:
    """As most are written, and as all were before."""
    _, said, _ = cell(tmp_path / "a", COUNTING[kind](EPOCHS))
    assert any("once per epoch" in text and "counts to 3" in text for text in said), said
    cell(tmp_path / "b", COUNTING[kind](EPOCHS), scheduler_interval="epoch")
    assert final_state(tmp_path / "a", "r") == final_state(tmp_path / "b", "r")


@pytest.mark.parametrize("kind", [kind for kind in COUNTING if kind != "OneCycleLR"])
def test_one_over_something_else_is_told(tmp_path: Path, kind: str) -> None:
    """It is stepped per epoch, as before, and who meant steps hears it before the first one."""
    _, said, _ = cell(tmp_path, COUNTING[kind](200))
    assert len(said) == 1
    assert "counts to 200" in said[0]
    assert "24 optimizer steps in 3 epoch(s)" in said[0]
    assert 'scheduler_interval="step"' in said[0]


@pytest.mark.parametrize("total", [200, 23, 7])
def test_a_cycle_over_something_else_is_refused(tmp_path: Path, total: int) -> None:
    """With the number that fits, and the word for who means it."""
    with pytest.raises(UsageError, match=f"OneCycleLR counts to {total}") as caught:
        cell(tmp_path, COUNTING["OneCycleLR"](total))
    assert "total_steps=24" in caught.value.remedy
    assert 'scheduler_interval="epoch"' in caught.value.remedy
    assert list(tmp_path.iterdir()) == []
    if total == 200:
        cell(tmp_path, COUNTING["OneCycleLR"](total), scheduler_interval="epoch")


def test_one_that_counts_nothing_is_stepped_each_epoch(tmp_path: Path) -> None:
    """StepLR and its like say nothing; CyclicLR is made for steps."""
    _, said, scheduler = cell(tmp_path / "a", lambda o: lr_scheduler.StepLR(o, 1))
    assert scheduler.last_epoch == EPOCHS
    assert "StepLR is stepped once per epoch" in said[0]
    _, said, scheduler = cell(tmp_path / "b", lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=5))
    assert scheduler.last_epoch == STEPS
    assert "CyclicLR is stepped once per optimizer step (it is made for that)" in said[0]
    _, said, _ = cell(tmp_path / "c", lr_scheduler.ReduceLROnPlateau)
    assert "ReduceLROnPlateau is stepped once per epoch" in said[0]


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    """The run has as many steps as the optimizer makes, rests of an epoch included."""
    words = {"accumulate_grad_batches": 3}
    result, _, scheduler = cell(tmp_path / "a", COUNTING["OneCycleLR"](9), **words)
    assert (result.steps, scheduler.last_epoch) == (9, 9)
    with pytest.raises(UsageError, match="9 optimizer steps in 3 epoch"):
        cell(tmp_path / "b", COUNTING["OneCycleLR"](STEPS), **words)


def test_max_steps_are_the_steps_of_the_run(tmp_path: Path) -> None:
    """Also where the loader does not know its length, and where epochs are given besides."""
    words = {"max_epochs": None, "max_steps": 10}
    assert cell(tmp_path / "a", COUNTING["OneCycleLR"](10), **words)[2].last_epoch == 10
    assert cell(tmp_path / "b", COUNTING["OneCycleLR"](10), train_loader=DataLoader(Stream(), 4), **words)
    assert cell(tmp_path / "c", COUNTING["OneCycleLR"](STEPS), max_steps=10)[2].last_epoch == 10
    assert cell(tmp_path / "d", COUNTING["CosineAnnealingLR"](2), **words)[2].last_epoch == 1


class Stream(IterableDataset[Any]):
    """Data of a length that nobody knows."""

    def __iter__(self) -> Any:
        return iter(DATA)


@pytest.mark.parametrize("kind", ["OneCycleLR", "CosineAnnealingLR"])
def test_where_nobody_knows_the_steps_it_is_asked_for(tmp_path: Path, kind: str) -> None:
    """No guess: the word to write is said."""
    with pytest.raises(UsageError, match="counts to 24") as caught:
        cell(tmp_path / "a", COUNTING[kind](STEPS), train_loader=DataLoader(Stream(), 4))
    assert 'scheduler_interval="step"' in caught.value.remedy
    words: dict[str, Any] = {"train_loader": DataLoader(Stream(), 4), "scheduler_interval": "step"}
    assert cell(tmp_path / "b", COUNTING[kind](STEPS), **words)[2].last_epoch == STEPS


def test_what_is_written_wins_and_is_not_talked_about(tmp_path: Path) -> None:
    """An explicit word is no question."""
    _, said, scheduler = cell(tmp_path, COUNTING["CosineAnnealingLR"](STEPS), scheduler_interval="epoch")
    assert scheduler.last_epoch == EPOCHS
    assert said == []


def test_a_run_goes_on_as_it_began(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Cut short by max_steps and then trained on, its schedule is stepped as before, whatever its length is now."""
    cell(tmp_path / "a", COUNTING["CosineAnnealingLR"](STEPS), max_steps=7)
    _, said, scheduler = cell(tmp_path / "a", COUNTING["CosineAnnealingLR"](STEPS))
    assert scheduler.last_epoch == STEPS
    cell(tmp_path / "b", COUNTING["CosineAnnealingLR"](STEPS))
    assert final_state(tmp_path / "a", "r") == final_state(tmp_path / "b", "r")
    _, said, scheduler = cell(tmp_path / "a", COUNTING["CosineAnnealingLR"](STEPS), max_epochs=5)
    assert scheduler.last_epoch == 40
    assert any('began with scheduler_interval="step", and continues so' in text for text in said), said


def test_a_run_of_an_earlier_version_goes_on_as_it_was_stepped(tmp_path: Path) -> None:
    """It was stepped per epoch by default; nothing is changed under it, and the word to change it is said."""
    make = COUNTING["CosineAnnealingLR"](STEPS)
    cell(tmp_path, make, max_epochs=1, scheduler_interval="epoch")
    _, said, scheduler = cell(tmp_path, make)
    assert scheduler.last_epoch == EPOCHS
    assert any('began with scheduler_interval="epoch"' in text and "24" in text for text in said), said


def test_a_proof_of_resume_steps_as_the_training_would(tmp_path: Path) -> None:
    """`verify_resume` trains a few steps only, and asks nothing about their number."""

    def make(total: int, **words: Any) -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return {
            "model": model,
            "train_loader": DataLoader(DATA, 4),
            "optimizer": optimizer,
            "scheduler": COUNTING["OneCycleLR"](total)(optimizer),
            "loss_fn": F.cross_entropy,
            **words,
        }

    assert colabkeep.verify_resume(lambda: make(STEPS, max_epochs=EPOCHS))
    assert colabkeep.verify_resume(lambda: make(STEPS))
    with pytest.raises(UsageError, match="OneCycleLR counts to 200"):
        colabkeep.verify_resume(lambda: make(200, max_epochs=EPOCHS))

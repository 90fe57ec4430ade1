"""The same cell with another learning rate, on Paddle: refused, kept or applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
import pytest
from paddle import nn
from paddle.optimizer import lr

import colabkeep
from colabkeep.core.errors import Incompatible
from colabkeep.core.events import Event, Noted

_BATCHES = 4  # of an epoch


def cell(folder: Path, *, rate: Any = 0.1, p: float = 0.3, **changes: Any) -> dict[str, Any]:
    paddle.seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(p), nn.Linear(8, 2))
    scheduler = rate if isinstance(rate, lr.LRScheduler) else None
    data = paddle.io.TensorDataset([paddle.randn([16, 4]), paddle.randn([16, 2])])
    words = {
        "model": model,
        "train_loader": paddle.io.DataLoader(data, batch_size=16 // _BATCHES, shuffle=True),
        "optimizer": paddle.optimizer.Momentum(rate, parameters=model.parameters(), use_nesterov=True),
        "scheduler": scheduler,
        "loss_fn": nn.functional.mse_loss,
        "run_name": "r",
        "storage": folder,
        "progress": False,
        "max_epochs": 2,
    }
    return {**words, **changes}


def fit(folder: Path, **changes: Any) -> Any:
    return colabkeep.resumable_fit(**cell(folder, **changes))


def test_what_changes_the_training_is_listed_and_nothing_is_touched(tmp_path: Path) -> None:
    """Rate, schedule, dropout, loss, batch size, all at once."""
    fit(tmp_path, rate=lr.StepDecay(0.1, 1), max_epochs=1)
    words = cell(tmp_path, rate=lr.StepDecay(0.2, 3), p=0.5, loss_fn=nn.functional.l1_loss)
    words["train_loader"] = paddle.io.DataLoader(words["train_loader"].dataset, batch_size=8, shuffle=True)
    before = {name: value.numpy().tobytes() for name, value in words["model"].state_dict().items()}
    with pytest.raises(Incompatible) as caught:
        colabkeep.resumable_fit(**words)
    assert sorted(caught.value.differences) == [
        "batch_size: 4 → 8",
        "loss_fn: paddle.nn.functional.loss.mse_loss → paddle.nn.functional.loss.l1_loss",
        "model.1.p: 0.3 → 0.5",
        "scheduler.base_lr: 0.1 → 0.2",
        "scheduler.step_size: 1 → 3",
    ]
    assert before == {name: value.numpy().tobytes() for name, value in words["model"].state_dict().items()}
    assert fit(tmp_path, rate=lr.StepDecay(0.1, 1)).epochs == 2


def test_what_is_kept_ends_as_if_nothing_had_been_changed(tmp_path: Path) -> None:
    """A rate, a decay of Paddle's own that no state tells, a dropout."""
    for folder in ("whole", "parts"):
        fit(tmp_path / folder, max_epochs=1)
    words = cell(tmp_path / "parts", rate=5.0, p=0.9, on_change="keep")
    words["optimizer"] = paddle.optimizer.Momentum(5.0, momentum=0.1, parameters=words["model"].parameters())
    assert colabkeep.resumable_fit(**words).epochs == 2
    fit(tmp_path / "whole")
    one, other = (colabkeep.load_weights("r", storage=tmp_path / name) for name in ("whole", "parts"))
    assert {name: value.numpy().tobytes() for name, value in one.items()} == {
        name: value.numpy().tobytes() for name, value in other.items()
    }
    assert fit(tmp_path / "parts", max_epochs=3).epochs == 3


def test_a_longer_schedule_is_longer_and_does_not_climb_again(tmp_path: Path) -> None:
    """T_max 2 → 6 by "apply": the rates of the rest are those of a schedule of six from its start; it is told."""
    events: list[Event] = []
    fit(tmp_path, rate=lr.CosineAnnealingDecay(0.1, 2))
    longer = cell(tmp_path, rate=lr.CosineAnnealingDecay(0.1, 6), max_epochs=6, on_change="apply")
    result = colabkeep.resumable_fit(**longer, callbacks=(events.append,))
    schedule, rates = lr.CosineAnnealingDecay(0.1, 6), []
    for _ in range(6):
        rates.append(schedule())
        schedule.step()
    assert [record["lr"] for record in result.history][2:] == rates[2:]
    assert any(isinstance(event, Noted) and "scheduler.T_max: 2 → 6" in event.text for event in events)


def test_objects_of_the_last_cell_are_no_change_and_are_known_again(tmp_path: Path) -> None:
    """The training cell alone, again; and with another name, where it is told what they are."""
    events: list[Event] = []
    words = cell(tmp_path, rate=lr.StepDecay(0.1, 1), callbacks=(events.append,))
    for epochs in (1, 2, 3):
        assert colabkeep.resumable_fit(**{**words, "max_epochs": epochs}).epochs == epochs
    assert not [event for event in events if isinstance(event, Noted) and "→" in event.text]
    colabkeep.resumable_fit(**{**words, "run_name": "second"})
    assert any(isinstance(event, Noted) and "the run 'r' had at step 12" in event.text for event in events)


def test_a_scheduler_of_another_class_is_refused(tmp_path: Path) -> None:
    """An optimizer of Paddle is bound to its schedule: also by "apply"."""
    fit(tmp_path, rate=lr.StepDecay(0.1, 1), max_epochs=1)
    with pytest.raises(Incompatible, match="its learning rate was StepDecay in the checkpoint"):
        fit(tmp_path, rate=lr.ExponentialDecay(0.1, 0.9), on_change="apply")

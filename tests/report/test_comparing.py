"""Runs beside each other: what differs in their settings, how good each became, and what is shown of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.core.errors import CheckpointNotFound, UsageError
from colabkeep.testing.clock import FakeClock
from colabkeep.ui.cli import main


def train(storage: Path, name: str, rate: float, accuracy: list[float], **words: Any) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)  # the optimizer then holds its first rate beside it
    words = {"monitor": "accuracy", "mode": "max", "storage": storage, "progress": False, **words}
    with colabkeep.Run(name, model=model, optimizer=optimizer, scheduler=scheduler, **words) as run:
        for epoch in run.epochs(len(accuracy)):
            for batch in run.batches([torch.ones(2, 1)] * 3):
                loss = model(batch).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step(loss=loss)
            run.log(accuracy=accuracy[epoch], val_loss=1 - accuracy[epoch])


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, two of them with another learning rate, one of these with another seed too."""
    folder = tmp_path_factory.mktemp("compared")
    train(folder, "lr-1", 0.1, [0.5, 0.7, 0.6])
    train(folder, "lr-2", 0.2, [0.8, 0.75])
    train(folder, "other", 0.2, [0.1], seed=7)
    return folder


def test_the_best_comes_first_with_what_it_was_set_up_with(storage: Path) -> None:
    """By what the runs themselves monitor; only settings that differ are told, and one that follows another is not."""
    found = colabkeep.compare(storage=storage)
    assert (found.metric, found.mode) == ("accuracy", "max")
    assert [row.history.run for row in found.rows] == ["lr-2", "lr-1", "other"]
    bests = [(row.best.value, row.best.epoch, row.best.step) for row in found.rows if row.best is not None]
    assert bests == [(0.8, 1, 3), (0.7, 2, 6), (0.1, 1, 3)]
    assert [dict(row.settings) for row in found.rows] == [
        {"optimizer.lr": 0.2, "seed": "0"},
        {"optimizer.lr": 0.1, "seed": "0"},
        {"optimizer.lr": 0.2, "seed": "7"},
    ]


def test_another_metric_and_the_training_loss_can_tell(storage: Path) -> None:
    """Runs are chosen by patterns; less is better where nobody says otherwise."""
    found = colabkeep.compare("lr-*", storage=storage, metric="val_loss")
    assert found.mode == "min"
    assert [row.history.run for row in found.rows] == ["lr-2", "lr-1"]
    assert [list(row.settings) for row in found.rows] == [["optimizer.lr"]] * 2
    turned = colabkeep.compare(["lr-1", "lr-2"], storage=storage, metric="val_loss", mode="max")
    assert [row.history.run for row in turned.rows] == ["lr-1", "lr-2"]
    by_loss = colabkeep.compare("lr-*", storage=storage, metric="training loss")
    values = [row.best.value for row in by_loss.rows if row.best is not None]
    assert values == sorted(values)
    assert len(values) == 2


def test_it_is_shown_as_text_as_html_and_as_a_figure(storage: Path, kit: SimpleNamespace) -> None:
    """A line for each run, and the curves over each other."""
    pytest.importorskip("matplotlib")
    found = colabkeep.compare(storage=storage)
    head, *lines = str(found).splitlines()
    assert head == f"3 run(s) in {storage}, the best accuracy first"
    assert lines[0].split()[:3] == ["run", "best", "accuracy"]
    assert lines[1].split()[:6] == ["lr-2", "0.8", "1", "0.2", "0", "6"]
    shown = kit.Shown(found._repr_html_())
    assert "3 run(s), the best accuracy first" in shown.text
    assert len(shown.pictures) == 2
    assert all("lr-1" in picture and "other" in picture for picture in shown.pictures)
    drawn = {line.get_label() for axes in found.plot().axes for line in axes.lines}
    names, metrics = ("lr-1", "lr-2", "other"), ("training loss", "accuracy", "val_loss")
    assert drawn == {f"{metric}, {run}" for metric in metrics for run in names}


def test_the_command_says_the_same(storage: Path, kit: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """As text, and as one JSON object."""
    assert main(["compare", "--storage", str(storage)]) == 0
    assert capsys.readouterr().out.rstrip() == str(colabkeep.compare(storage=storage))
    assert main(["compare", "lr-*", "--metric", "val_loss", "--json", "--storage", str(storage)]) == 0
    record = kit.strict(capsys.readouterr().out)
    assert (record["metric"], record["mode"], record["settings"]) == ("val_loss", "min", ["optimizer.lr"])
    first, second = record["runs"]
    assert (first["name"], first["step"], first["epochs"]) == ("lr-2", 6, 2)
    assert first["best"] == {"value": pytest.approx(0.2), "epoch": 1, "step": 3}
    assert second["last"]["accuracy"] == 0.6
    assert [step for step, _ in first["losses"]] == [1, 2, 3, 4, 5, 6]


def test_what_cannot_be_compared_is_said_with_what_there_is(storage: Path) -> None:
    """A name that no run has, a metric that none has measured, and words that mean nothing."""
    with pytest.raises(CheckpointNotFound, match=r"(?s)'nothing'.*lr-1, lr-2, other"):
        colabkeep.compare("nothing", storage=storage)
    with pytest.raises(UsageError, match=r"(?s)measured 'f1'.*accuracy, val_loss"):
        colabkeep.compare(storage=storage, metric="f1")
    with pytest.raises(UsageError, match="mode='most'"):
        colabkeep.compare(storage=storage, mode="most")
    with pytest.raises(UsageError, match="names in quotes"):
        colabkeep.compare([3], storage=storage)  # type: ignore[list-item]


def test_runs_that_are_set_up_alike_say_so_and_odd_numbers_are_never_the_best(
    tmp_path: Path, kit: SimpleNamespace, clock: FakeClock
) -> None:
    """What no run tells is not made up."""
    kit.session(tmp_path, clock, to=10, run_name="a", loss=lambda step: 2.0)
    kit.session(tmp_path, clock, to=10, run_name="b", loss=lambda step: float("nan"))
    found = colabkeep.compare(storage=tmp_path)
    assert (found.metric, [row.history.run for row in found.rows]) == ("training loss", ["a", "b"])
    assert [row.best is None for row in found.rows] == [False, True]
    assert str(found).splitlines()[-1] == "No setting that colabkeep knows of differs."

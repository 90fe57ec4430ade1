"""Metrics in the files of other programs: one curve over all sessions, with no step twice."""

from __future__ import annotations

import csv
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.core.errors import MissingDependency, UsageError
from colabkeep.core.events import Event, Noted


class Breakage(Exception):
    """What goes wrong on purpose."""


def train(folder: Path, loggers: Any, *, fail_at: int | None = None, events: list[Event] | None = None) -> None:
    """Six epochs of one step, of which each second is saved; each logs twice."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = colabkeep.Run(
        "curve",
        model=model,
        optimizer=optimizer,
        storage=folder / "runs",
        save_every=2,
        loggers=loggers,
        progress=False,
        callbacks=[] if events is None else [events.append],
    )
    with run:
        for epoch in run.epochs(6):
            for _ in run.batches([1]):
                run.step()
            run.log(train_loss=float(epoch))
            if epoch % 2:
                run.log(accuracy=epoch / 10)
            if epoch == fail_at:
                raise Breakage


def in_three_sessions(folder: Path, *places: Path) -> None:
    """Each killed behind its last save, so that what it logged there is logged once more; each in its own folder of
    logs, the last one of them again in the first."""
    for place, fail_at in zip(places, (2, 4, None), strict=True):
        with suppress(Breakage):
            train(folder, {"csv": place, **({"tensorboard": place} if TENSORBOARD else {})}, fail_at=fail_at)


try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    TENSORBOARD = True
except ImportError:
    TENSORBOARD = False

STEPS = [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("fresh", [False, True], ids=["the same machine", "fresh machines"])
def test_a_csv_file_has_each_step_once(tmp_path: Path, fresh: bool) -> None:
    """Whole, whichever machine it is on; a metric that comes later is a column more."""
    places = [tmp_path / f"logs{i if fresh else 0}" for i in range(3)]
    in_three_sessions(tmp_path, *places)
    with (places[-1] / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == STEPS
    assert [float(row["train_loss"]) for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["accuracy"] for row in rows] == ["", "0.1", "", "0.3", "", "0.5"]


@pytest.mark.skipif(not TENSORBOARD, reason="needs tensorboard")
@pytest.mark.parametrize("fresh", [False, True], ids=["the same machine", "fresh machines"])
def test_tensorboard_shows_each_step_once(tmp_path: Path, fresh: bool) -> None:
    """As its own reader reads the files of all sessions."""
    places = [tmp_path / f"logs{i if fresh else 0}" for i in range(3)]
    in_three_sessions(tmp_path, *places)
    files = EventAccumulator(str(places[-1])).Reload()
    assert [(each.step, each.value) for each in files.Scalars("train_loss")] == [(n, n - 1.0) for n in STEPS]
    assert [each.step for each in files.Scalars("accuracy")] == [2, 4, 6]


def test_what_is_not_known_or_not_there_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is trained."""
    with pytest.raises(UsageError, match="tensorboards"):
        train(tmp_path, ["tensorboards"])
    with pytest.raises(UsageError, match="a list of words"):
        train(tmp_path, "csv")
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(MissingDependency, match="pip install tensorboard"):
        train(tmp_path, ["tensorboard"])
    assert not list(tmp_path.iterdir())


def test_a_logger_that_cannot_write_ends_no_training(tmp_path: Path) -> None:
    """It is told, and the rest goes on."""
    (tmp_path / "file").touch()
    events: list[Event] = []
    train(tmp_path, {"csv": tmp_path / "file"}, events=events)
    assert any("An observer failed" in event.text for event in events if isinstance(event, Noted))
    assert colabkeep.load_weights("curve", storage=tmp_path / "runs")


def test_without_a_folder_it_is_one_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the folder where the program is."""
    monkeypatch.chdir(tmp_path)
    train(tmp_path, ["csv"])
    assert (tmp_path / "logs" / "curve" / "metrics.csv").is_file()

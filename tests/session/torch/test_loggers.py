"""Metrics in the files of other programs: one curve over all sessions, with no step twice."""

from __future__ import annotations

import csv
import json
import struct
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.core.errors import MissingDependency, UsageError
from colabkeep.core.events import Event, Noted
from colabkeep.ui.loggers import _mlflow_name


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


def in_three_sessions(folder: Path, places: list[Path], *loggers: str) -> None:
    """Each killed behind its last save, so that what it logged there is logged once more; each in its own folder of
    logs, the last one of them again in the first."""
    for place, fail_at in zip(places, (2, 4, None), strict=True):
        with suppress(Breakage):
            train(folder, dict.fromkeys(loggers, place), fail_at=fail_at)


try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    TENSORBOARD = True
except ImportError:
    TENSORBOARD = False

STEPS = [1, 2, 3, 4, 5, 6]
LOSSES = [(step, step - 1.0) for step in STEPS]


@pytest.mark.parametrize("fresh", [False, True], ids=["the same machine", "fresh machines"])
def test_a_csv_file_has_each_step_once(tmp_path: Path, fresh: bool) -> None:
    """Whole, whichever machine it is on; a metric that comes later is a column more."""
    places = [tmp_path / f"logs{i if fresh else 0}" for i in range(3)]
    in_three_sessions(tmp_path, places, "csv")
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
    in_three_sessions(tmp_path, places, "csv", "tensorboard")
    files = EventAccumulator(str(places[-1])).Reload()
    assert [(each.step, each.value) for each in files.Scalars("train_loss")] == LOSSES
    assert [each.step for each in files.Scalars("accuracy")] == [2, 4, 6]


def records_of_wandb(file: Path) -> list[Any]:
    """A `.wandb` file: a log of LevelDB's kind, with records of W&B's own."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, piece, records = file.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        if place + 7 + length > len(data):  # half written
            break
        piece += data[place + 7 : place + 7 + length]
        place += 7 + length
        if (1 << 15) - place % (1 << 15) < 7:  # the rest of a block
            place += -place % (1 << 15)
        if kind in (1, 4):  # whole, or the last part
            records.append(Record.FromString(piece))
            piece = b""
    return records


def rows_of_wandb(file: Path) -> dict[int, dict[str, Any]]:
    """What the file of a run that is over says of each step. W&B's own process may write its end a moment later."""
    while not (records := records_of_wandb(file)) or records[-1].WhichOneof("record_type") != "exit":
        time.sleep(0.05)
    rows: dict[int, dict[str, Any]] = {}
    for record in records:
        if record.WhichOneof("record_type") == "history":
            step, items = record.history.step.num, record.history.item
            assert step not in rows, f"step {step} is there twice"
            rows[step] = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
    return rows


@pytest.mark.skipif(find_spec("wandb") is None, reason="needs wandb: scripts/loggers.sh")
@pytest.mark.parametrize("fresh", [False, True], ids=["the same machine", "fresh machines"])
def test_the_newest_run_of_wandb_has_each_step_once(tmp_path: Path, fresh: bool) -> None:
    """An offline run for each session, of one id: the newest, which `wandb sync` takes for the run, is whole."""
    places = [tmp_path / f"logs{i if fresh else 0}" for i in range(3)]
    in_three_sessions(tmp_path, places, "wandb")
    files = [file for place in dict.fromkeys(places) for file in place.glob("wandb/offline-run-*/*.wandb")]
    assert len(files) == 3
    assert len({file.name for file in files}) == 1
    (newest,) = (places[-1] / "wandb" / "latest-run").glob("*.wandb")
    rows = rows_of_wandb(newest)
    assert [(step, row["train_loss"]) for step, row in rows.items()] == LOSSES
    assert {step: row["accuracy"] for step, row in rows.items() if "accuracy" in row} == {2: 0.1, 4: 0.3, 6: 0.5}


@pytest.mark.skipif(find_spec("wandb") is None, reason="needs wandb: scripts/loggers.sh")
def test_runs_of_wandb_have_an_id_for_each_run_and_one_of_the_user_goes_on(tmp_path: Path) -> None:
    """A run of the same name elsewhere is another one, which replaces nothing."""
    import wandb

    own = wandb.init(mode="offline", dir=tmp_path / "own", settings=wandb.Settings(console="off", silent=True))
    try:
        for folder in ("a", "b"):
            train(tmp_path / folder, {"wandb": tmp_path / folder})
        own.log({"mine": 1.0}, step=1)
    finally:
        own.finish()
    assert len({file.name for file in tmp_path.glob("[ab]/wandb/offline-run-*/*.wandb")}) == 2
    (file,) = tmp_path.glob("own/wandb/offline-run-*/*.wandb")
    assert [row["mine"] for row in rows_of_wandb(file).values()] == [1.0]


@pytest.mark.skipif(find_spec("mlflow") is None, reason="needs mlflow: scripts/loggers.sh")
@pytest.mark.filterwarnings("ignore")  # of MLflow's own, about the SQLAlchemy that it asks for
@pytest.mark.parametrize("fresh", [False, True], ids=["the same machine", "fresh machines"])
def test_mlflow_has_one_run_with_each_step_once(tmp_path: Path, fresh: bool) -> None:
    """As its own client reads the database; the times of the machine before do not count."""
    from mlflow.tracking import MlflowClient

    places = [tmp_path / f"logs{i if fresh else 0}" for i in range(3)]
    in_three_sessions(tmp_path, places, "mlflow")
    client = MlflowClient(tracking_uri=f"sqlite:///{places[-1]}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("colabkeep").experiment_id])
    assert (run.info.run_name, run.info.status) == ("curve", "FINISHED")

    def points(name: str) -> list[tuple[int, float]]:
        return [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]

    assert points("train_loss") == LOSSES
    assert points("accuracy") == [(2, 0.1), (4, 0.3), (6, 0.5)]


@pytest.mark.parametrize(
    ("name", "known"),
    [("eval/loss", "eval/loss"), ("损失 1", "损失 1"), ("F1 (macro)", "F1 _macro_"), ("/../a//b", "a/b"), ("..", "_")],
)
def test_a_name_that_mlflow_does_not_take_is_changed(name: str, known: str) -> None:
    """No metric is lost, and none is written elsewhere."""
    assert _mlflow_name(name) == known
    if find_spec("mlflow") is not None:
        from mlflow.utils.validation import _validate_metric_name

        _validate_metric_name(known)


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

"""The metrics of a run in the files of other programs: one curve over all sessions, with no step twice.

What a run has logged is part of each of its checkpoints. So whoever goes on from one writes all of it again, and what a
session had logged behind that checkpoint is taken back: on a fresh machine the curve is whole, and on the same one it
has no step twice.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from colabkeep.core.arguments import run_folder
from colabkeep.core.errors import MissingDependency, UsageError
from colabkeep.core.events import Event, MetricsLogged, RunStopped
from colabkeep.stores.shared.files import write_note

__all__ = ["LOGGERS", "Logger", "make_loggers"]

Record: TypeAlias = Mapping[str, Any]
"""The numbers of one step: "epoch", "step", and by name."""


class RunName(NamedTuple):
    """Which run it is: as the user calls it, and what no other run is called."""

    name: str
    unique: str


class Writer(Protocol):
    """Writes to one place."""

    def begin(self, folder: Path, run: RunName, history: Sequence[Record]) -> None:
        """Have in `folder` what was logged so far, and nothing else of this run."""
        ...

    def write(self, record: Record) -> None:
        """More numbers of a step: of a new one, or of the last."""
        ...

    def end(self) -> None:
        """The session is over."""
        ...


class Logger:
    """An observer of a run, which hears first of what was logged before. No step waits for it."""

    steps_from = math.inf

    def __init__(self, writer: Writer, folder: Path | None) -> None:
        self._writer, self._folder = writer, folder

    def recall(self, run: str, run_id: str, history: Sequence[Record]) -> None:
        """A session of this run begins, with this past."""
        folder = self._folder or Path("logs").absolute() / run_folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        unique = hashlib.sha256(f"{run_id}/{run}".encode()).hexdigest()[:16]  # a copy of a run has its id
        self._writer.begin(folder, RunName(run, unique), history)

    def __call__(self, event: Event) -> None:
        if isinstance(event, MetricsLogged):
            self._writer.write({"epoch": event.progress.epoch, "step": event.progress.step, **event.metrics})
        elif isinstance(event, RunStopped):
            self._writer.end()


class CsvFile:
    """metrics.csv: a row for each step, a column for each metric. It is written as a whole, once a second at most:
    what a killed session did not write, the next one does."""

    def begin(self, folder: Path, run: RunName, history: Sequence[Record]) -> None:
        self._folder = folder
        self._rows: list[dict[str, Any]] = [dict(record) for record in history]
        self._columns = list(dict.fromkeys(["epoch", "step", *(name for row in self._rows for name in row)]))
        self._write()

    def write(self, record: Record) -> None:
        last = self._rows[-1] if self._rows else {}
        if (last.get("epoch"), last.get("step")) == (record["epoch"], record["step"]):
            last.update(record)
        else:
            self._rows.append(dict(record))
        self._columns += [name for name in record if name not in self._columns]
        if time.monotonic() >= self._next:
            self._write()

    def end(self) -> None:
        self._write()

    def _write(self) -> None:
        self._next = time.monotonic() + _PAUSE
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(self._rows)
        write_note(str(self._folder), "metrics.csv", text.getvalue().encode())


class TensorBoard:
    """Event files, by TensorBoard's own writer. What lies in the folder from earlier sessions is replaced by what a new
    file says, as TensorBoard itself defines it: a file that begins with the start of a session at step 0 takes back all
    that the files before it say."""

    def __init__(self) -> None:
        self._event = import_module("tensorboard.compat.proto.event_pb2")
        self._summary = import_module("tensorboard.compat.proto.summary_pb2")
        self._files = import_module("tensorboard.summary.writer.event_file_writer")

    def begin(self, folder: Path, run: RunName, history: Sequence[Record]) -> None:
        self._file = self._files.EventFileWriter(str(folder))
        log = self._event.SessionLog
        self._file.add_event(self._event.Event(wall_time=time.time(), step=0, session_log=log(status=log.START)))
        for record in history:
            self._add(record)
        self._file.flush()

    def write(self, record: Record) -> None:
        self._add(record)
        self._file.flush()

    def end(self) -> None:
        self._file.close()

    def _add(self, record: Record) -> None:
        value = self._summary.Summary.Value
        values = [value(tag=name, simple_value=number) for name, number in record.items() if name not in _PLACE]
        step = self._summary.Summary(value=values)
        self._file.add_event(self._event.Event(wall_time=time.time(), step=record["step"], summary=step))


class WeightsAndBiases:
    """An offline run of W&B for each session, all with one id and with all that was logged: `wandb sync` replaces what
    is there of the run by the one that it uploads. Nothing is sent from here."""

    def __init__(self) -> None:
        self._wandb = import_module("wandb")

    def begin(self, folder: Path, run: RunName, history: Sequence[Record]) -> None:
        self._run = self._wandb.init(
            project="colabkeep",
            name=run.name,
            id=run.unique,
            dir=str(folder),
            mode="offline",
            reinit="create_new",  # one of the user's own goes on beside it
            settings=self._wandb.Settings(console="off", silent=True),
        )
        for record in history:
            self.write(record)

    def write(self, record: Record) -> None:
        values = {name: value for name, value in record.items() if name != "step"}
        self._run.log(values, step=record["step"])

    def end(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow in a database in the folder. A session deletes that of the session before and logs all of it
    again, once a second at most: what a killed session did not write, the next one does."""

    def __init__(self) -> None:
        self._tracking, self._entities = import_module("mlflow.tracking"), import_module("mlflow.entities")

    def begin(self, folder: Path, run: RunName, history: Sequence[Record]) -> None:
        place = f"sqlite:///{folder}/mlflow.db" if find_spec("sqlalchemy") else (folder / "mlruns").as_uri()
        self._client = self._tracking.MlflowClient(tracking_uri=place, registry_uri=place)
        found = self._client.get_experiment_by_name("colabkeep")
        where = (folder / "artifacts").as_uri()
        experiment = found.experiment_id if found else self._client.create_experiment("colabkeep", where)
        before = self._client.search_runs([experiment], f"tags.colabkeep = '{run.unique}'")
        self._run = self._client.create_run(experiment, run_name=run.name, tags={"colabkeep": run.unique}).info.run_id
        self._waiting: list[Any] = []
        for record in history:
            self._add(record)
        self._write()
        for each in before:
            self._client.delete_run(each.info.run_id)

    def write(self, record: Record) -> None:
        self._add(record)
        if time.monotonic() >= self._next:
            self._write()

    def end(self) -> None:
        self._write()
        self._client.set_terminated(self._run)

    def _add(self, record: Record) -> None:
        now = int(time.time() * 1000)
        values = {_mlflow_name(name): value for name, value in record.items() if name not in _PLACE}
        self._waiting += [self._entities.Metric(name, value, now, record["step"]) for name, value in values.items()]

    def _write(self) -> None:
        self._next = time.monotonic() + _PAUSE
        for start in range(0, len(self._waiting), _BATCH):
            self._client.log_batch(self._run, self._waiting[start : start + _BATCH])
        self._waiting.clear()


def _mlflow_name(name: str) -> str:
    """One that MLflow takes: no other signs, no path that leads elsewhere, and not too long."""
    parts = re.sub(r"[^\w.\- :/]", "_", name).split("/")
    return "/".join(part for part in parts if part.strip("."))[:250] or "_"


_BATCH = 1000  # metrics in a request of MLflow's
_PLACE = ("epoch", "step")
_PAUSE = 1.0  # seconds

LOGGERS: dict[str, tuple[Callable[[], Writer], str]] = {
    "csv": (CsvFile, ""),
    "mlflow": (MLflow, "mlflow"),
    "tensorboard": (TensorBoard, "tensorboard"),
    "wandb": (WeightsAndBiases, "wandb"),
}
"""The word → what writes, and the package that it needs."""


def make_loggers(loggers: object) -> tuple[Logger, ...]:
    """The observers that `loggers` asks for.

    Raises:
        UsageError: a word is unknown.
        MissingDependency: its package is not installed.
    """
    if isinstance(loggers, str) or not isinstance(loggers, (Iterable, Mapping)):
        raise UsageError(
            problem=f"loggers must be a list of words, and is {loggers!r:.100}.",
            remedy='Pass a list: loggers=["tensorboard"]; or a folder for each: loggers={"csv": "my-logs"}.',
        )
    folders = dict(loggers) if isinstance(loggers, Mapping) else dict.fromkeys(loggers)
    made = []
    for word, folder in folders.items():
        if word not in LOGGERS:
            raise UsageError(
                problem=f"loggers has {word!r:.100}, which is unknown.",
                remedy=f"There are: {', '.join(sorted(LOGGERS))}.",
            )
        make, package = LOGGERS[word]
        try:
            writer = make()
        except ImportError as error:
            raise MissingDependency(
                problem=f"loggers=[{word!r}] needs {package}, which is not installed here ({error}).",
                remedy=f"pip install {package}",
            ) from error
        made.append(Logger(writer, None if folder is None else Path(folder).expanduser().absolute()))
    return tuple(made)

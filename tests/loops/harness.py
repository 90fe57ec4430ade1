"""Runs the ports in `tests/loops/ports`: loops of public training scripts, killed and compared with themselves.

A port is a module with

* ``train(colabkeep)``: the script with colabkeep in it. Everything is built inside, from one seed. ``colabkeep.Run(…)``
  makes a run in the suite's storage. What is returned is what the script ends with (weights, a log), to be compared.
* ``original()``: the script as its public author would have it, with the same result; or ``NO_ORIGINAL``, why the two
  have no numbers in common.
* ``RESUMES``: where its sessions go on: "mid-epoch", "epoch" (at the end of one), or "step" (it has no epochs).
* ``TOLD``: what its user must be told in a session that nobody disturbed, as pieces of sentences; and ``TOLD_AFTER``
  in one that resumed. Whatever else is told is an error: a note that is not needed is read once too often.
* ``EXACT``: False where no bits are promised. Then each difference must have been told as an inexact restore.
* ``REFUSED``: a piece of the error that a session ends with which cannot go on, in such a case.
* ``NEEDS``: a package that not every environment has; where it is missing the port is left out.
* ``FIRST_KILL``: the step of the first kill, where what goes wrong does so in a part of the training only.

A training is killed with SIGKILL, again and again, and must end with everything that an undisturbed one ends with:
weights, optimizer, random streams, history, variables, losses, and what the script returns.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

import colabkeep
from colabkeep.core.errors import ColabKeepError
from colabkeep.core.events import (
    EpochDone,
    Event,
    Noted,
    Restored,
    RestoredInexactly,
    SaveCommitted,
    SaveStarted,
    StepDone,
)
from tests.processes import Life, Message, Say
from tests.trainings import final_state

__all__ = ["NEVER", "PORTS", "Door", "Port", "Record", "examine", "names"]

PORTS = Path(__file__).parent / "ports"

EVERY = "3 steps"  # between saves
PATIENCE = 60.0  # seconds; a session that takes longer hangs
POINTS = (StepDone, SaveStarted, SaveCommitted, EpochDone)
MOST_NAMED = 5  # differences
REFUSED = 77  # exit status of a session that ended with the error that the port declares


@dataclass(frozen=True)
class Point:
    """Where a session ends: at the first event of this `kind` at `step` or later, by SIGKILL or an `interrupt`; with
    "time" for a kind, after so many `seconds`; with "fault", by an error in that `call` of a module, counted over the
    session. `patient`: each save is written before the next step is done."""

    kind: str
    step: int = 0
    patient: bool = False
    interrupt: bool = False
    seconds: float = 0.0
    call: int = 0

    def __str__(self) -> str:
        if self.kind == "time":
            return f"after {self.seconds:.3f} s"
        if self.kind == "fault":
            return f"an error in call {self.call} of a module"
        return f"{'interrupted' if self.interrupt else 'killed'} at {self.kind} of step {self.step}"


class Port:
    """One module of `tests/loops/ports`."""

    def __init__(self, name: str) -> None:
        self.name = name
        module = importlib.import_module(f"tests.loops.ports.{name}")
        self.train: Callable[[Any], Mapping[str, Any]] = module.train
        self.original: Callable[[], Mapping[str, Any]] | None = getattr(module, "original", None)
        self.no_original: str = getattr(module, "NO_ORIGINAL", "")
        self.resumes: str = module.RESUMES
        self.told: tuple[str, ...] = getattr(module, "TOLD", ())
        self.told_after: tuple[str, ...] = getattr(module, "TOLD_AFTER", ())
        self.exact: bool = getattr(module, "EXACT", True)
        self.refused: str = getattr(module, "REFUSED", "")
        self.needs: str = getattr(module, "NEEDS", "")
        self.first_kill: int | None = getattr(module, "FIRST_KILL", None)
        assert self.resumes in ("mid-epoch", "epoch", "step"), self.resumes
        assert (self.original is None) == bool(self.no_original), "one of the two: original, NO_ORIGINAL"
        assert self.exact or self.told_after, "what is not exact has to be told"

    @property
    def missing(self) -> bool:
        """Is what it needs not installed here?"""
        return bool(self.needs) and find_spec(self.needs) is None


def names() -> list[str]:
    """Those of all ports."""
    return sorted(file.stem for file in PORTS.glob("*.py") if not file.stem.startswith("_"))


class Door:
    """What a port calls `colabkeep`. Its `Run` makes runs in one storage, says what they tell, and ends the process at
    a point."""

    def __init__(self, folder: Path, say: Say, point: Point) -> None:
        self._folder = folder
        self._say = say
        self._point = point
        self._over = False
        self.Run = self._open

    def _open(self, run_name: str, **words: Any) -> colabkeep.Run:
        def hear(event: Event) -> None:
            self._tell(run_name, event)
            if self._point.patient and isinstance(event, StepDone):
                run._saver.wait()
            self._end_at(event)

        options = {"storage": str(self._folder), "save_every": EVERY, "progress": False, **words}
        run = colabkeep.Run(run_name, **options, callbacks=[hear])
        return run

    def _tell(self, run_name: str, event: Event) -> None:
        name = type(event).__name__
        if isinstance(event, POINTS):
            progress = event.progress
            self._say("reached", name, progress.step, progress.epoch, progress.batches)
        elif isinstance(event, Restored):
            progress = event.progress
            self._say("resumed", run_name, progress.step, progress.epoch, progress.batches)
        elif isinstance(event, Noted):
            self._say("told", name, event.text)
        elif isinstance(event, RestoredInexactly):
            self._say("told", name, event.reason)

    def _end_at(self, event: Event) -> None:
        point = self._point
        if self._over or type(event).__name__ != point.kind or event.progress.step < point.step:
            return
        self._over = True
        os.kill(os.getpid(), signal.SIGINT if point.interrupt else signal.SIGKILL)


@dataclass(kw_only=True)
class Told:
    """What one session said, and how it ended: "whole", "killed", "refused", or what went wrong."""

    end: str
    seconds: float
    reached: list[tuple[str, int, int, int]] = field(default_factory=list)
    resumed: list[tuple[str, int, int, int]] = field(default_factory=list)
    sentences: list[tuple[str, str]] = field(default_factory=list)
    called: list[tuple[int]] = field(default_factory=list)
    faulted: bool = False

    def hear(self, message: Message) -> None:
        kind, *words = message
        {"reached": self.reached, "resumed": self.resumed, "told": self.sentences, "called": self.called}[kind].append(
            tuple(words)
        )


class Fault(Exception):
    """An error in the user's code."""


NEVER = Point("never")
UNDISTURBED = Point("never", patient=True)  # so that all of its saves are there to choose points by


def live(port: Port, folder: Path, point: Point = NEVER) -> Told:
    """One session of a port in a process of its own. What it returns is left beside the storage."""

    def work(say: Say) -> None:
        calls = count()

        def called(module: torch.nn.Module, arguments: Any) -> None:
            if next(calls) + 1 == point.call:
                raise Fault

        register_module_forward_pre_hook(called)
        try:
            ended = port.train(Door(folder, say, point))
        except (KeyboardInterrupt, Fault):
            if not (point.interrupt or point.call):
                raise
            os._exit(signal.SIGINT)
        except ColabKeepError as error:
            if not port.refused or port.refused not in str(error):
                raise
            os._exit(REFUSED)
        say("called", next(calls))
        _result(folder).write_text(json.dumps(digests(ended)))

    told = _watched(work, point.seconds if point.kind == "time" else None)
    told.faulted = point.call > 0
    return told


def live_originally(port: Port, folder: Path) -> Told:
    """The port's original, in a process of its own."""
    original = port.original
    assert original is not None

    def work(say: Say) -> None:
        _result(folder).write_text(json.dumps(digests(original())))

    return _watched(work, None)


def _watched(work: Callable[[Say], None], seconds: float | None) -> Told:
    began, told = time.monotonic(), Told(end="", seconds=0.0)
    with Life(work) as life:
        for message in life.messages(within=PATIENCE if seconds is None else seconds):
            told.hear(message)
        alone = life.status
        life.kill()
        for message in life.messages(within=0):
            told.hear(message)
    told.seconds = time.monotonic() - began
    if alone is None:
        told.end = "killed" if seconds is not None else f"did not end in {PATIENCE:.0f} s"
    else:
        told.end = {0: "whole", -signal.SIGKILL: "killed", int(signal.SIGINT): "killed", REFUSED: "refused"}.get(
            alone, f"failed: {alone}"
        )
    return told


def _result(folder: Path) -> Path:
    return folder.with_suffix(".json")


def digests(value: Any, path: str = "") -> dict[str, str]:
    """Path → digest or text of all that a script ends with."""
    if isinstance(value, Mapping):
        parts = {f"{path}.{key}" if path else str(key): each for key, each in value.items()}
    elif isinstance(value, (list, tuple)):
        parts = {f"{path}[{i}]": each for i, each in enumerate(value)}
    elif isinstance(value, (torch.Tensor, np.ndarray)):
        array = value.detach().cpu().contiguous() if isinstance(value, torch.Tensor) else np.ascontiguousarray(value)
        data = array.view(torch.uint8).numpy() if isinstance(array, torch.Tensor) and array.dim() else np.asarray(array)
        return {path: f"{array.dtype} {tuple(array.shape)} {hashlib.sha256(data.tobytes()).hexdigest()}"}
    else:
        assert value is None or isinstance(value, (bool, int, float, str, np.generic)), f"{path}: {type(value)}"
        return {path: repr(value)}
    return {name: digest for key, each in parts.items() for name, digest in digests(each, key).items()}


@dataclass(kw_only=True)
class Record:
    """What came of a port. `faults` is empty if all is well."""

    name: str
    faults: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    resumed: list[tuple[str, int, int, int]] = field(default_factory=list)
    original: str = ""
    kills: int = 0
    seconds: float = 0.0


def examine(name: str, kills: int, chance: random.Random, folder: Path, *, timed: bool = False) -> Record:
    """Kill a port `kills` times, let it end, and compare. `timed`: some of the kills come at any moment at all."""
    began, port, record = time.monotonic(), Port(name), Record(name=name)
    whole = live(port, folder / "whole", UNDISTURBED)
    if whole.end != "whole":
        record.faults.append(f"undisturbed, it {whole.end}")
    else:
        _compare_original(port, folder, record)
        trained = list(_kill(port, folder, points(port, whole, kills, chance, timed=timed), record))
        _judge(port, folder, record, whole, trained)
    record.seconds = round(time.monotonic() - began, 2)
    return record


def points(port: Port, whole: Told, kills: int, chance: random.Random, *, timed: bool) -> list[Point]:
    """Where the sessions end. Behind the first one a session resumes in the middle; the others follow further on."""
    steps = _after_a_save(port, whole)
    assert port.first_kill is None or port.first_kill in steps, (
        f"behind FIRST_KILL nobody resumes as he should: {steps}"
    )
    first = Point("StepDone", port.first_kill or chance.choice(steps), patient=True)
    reached = [each for each in whole.reached if first.step <= each[1] < whole.reached[-1][1]]
    found = []
    for _ in range(kills - 1):
        kind = chance.choice(sorted({each[0] for each in reached}))
        step = chance.choice([each[1] for each in reached if each[0] == kind])
        if timed and chance.random() < 0.3:
            found.append(Point("time", step, seconds=chance.uniform(0.02, whole.seconds / 2)))
        elif timed and chance.random() < 0.3:
            found.append(Point("fault", step, call=chance.randint(1, 1 + whole.called[0][0] // 2)))
        else:
            patient = kind.startswith("Save") or chance.random() < 0.5
            found.append(Point(kind, step, patient=patient, interrupt=timed and chance.random() < 0.2))
    return [first, *sorted(found, key=lambda point: point.step)]


def _after_a_save(port: Port, whole: Told) -> list[int]:
    """The steps of an undisturbed run behind a checkpoint, and where that is to be, in an epoch that has one inside."""
    steps: list[int] = []
    committed: tuple[int, int, int] | None = None
    for kind, step, epoch, batches in whole.reached:
        if kind == "SaveCommitted":
            committed = (step, epoch, batches)
        elif kind == "StepDone" and committed is not None and step > committed[0]:
            inside = committed[2] > 0 and committed[1] == epoch
            steps += [step] if inside or port.resumes != "mid-epoch" else []
    steps = [step for step in steps if step < whole.reached[-1][1]]  # so that there is a place for the others
    assert steps, f"{port.name}: an undisturbed run has no checkpoint to resume from as it should: {whole.reached}"
    return steps


def _kill(port: Port, home: Path, where: list[Point], record: Record) -> Iterator[tuple[Path, list[Told]]]:
    """Trainings that end one session at each point; a new one begins where a session ended before it got there."""
    left = list(where)
    while left:
        folder, lives = home / f"parts-{len(left)}", []
        while left and (not lives or lives[-1].end == "killed"):
            point = left.pop(0)
            lives.append(live(port, folder, point))
            record.ends.append(f"{point}: {lives[-1].end}")
        if lives[-1].end == "killed":
            lives.append(live(port, folder))
            record.ends.append(lives[-1].end)
        yield folder, lives
        if lives[-1].end not in ("whole", "refused"):
            record.faults.append(f"a session {lives[-1].end}")
            return


def _compare_original(port: Port, folder: Path, record: Record) -> None:
    if port.original is None:
        record.original = port.no_original
        return
    told = live_originally(port, folder / "original")
    if told.end != "whole":
        record.faults.append(f"its original {told.end}")
        return
    wanted, found = (json.loads(_result(folder / each).read_text()) for each in ("original", "whole"))
    record.original = "equal" if wanted == found else "other numbers"
    record.faults += _named(wanted, found, "is not what the original loop ends with")


def _judge(port: Port, home: Path, record: Record, whole: Told, trained: list[tuple[Path, list[Told]]]) -> None:
    faults, every = record.faults, [life for _, lives in trained for life in lives]
    record.kills = sum(life.end == "killed" for life in every)
    record.resumed = [place for life in every for place in life.resumed]
    if not any(step > 0 for _, step, _, _ in record.resumed):
        faults.append("no session resumed behind step 0")
    if port.resumes == "mid-epoch" and not any(batches for _, _, _, batches in record.resumed):
        faults.append("no session resumed in the middle of an epoch")
    faults += _unheard(port, whole, every)
    found = [each for folder, lives in trained if lives[-1].end == "whole" for each in _differences(home, folder)]
    if port.exact:
        faults += found
    elif found and not any(kind == "RestoredInexactly" for life in every for kind, _ in life.sentences):
        faults += ["it differs, and nobody was told:", *found]
    elif not found:
        faults.append("EXACT = False, but it ended with the same bits")


def _differences(home: Path, folder: Path) -> list[str]:
    """Between what an undisturbed training and that in `folder` ended with."""
    whole = home / "whole"
    found = _named(*(json.loads(_result(each).read_text()) for each in (whole, folder)), "differs")
    for run in sorted(file.parent.name for file in whole.glob("*/run.json")):
        found += _named(*(_final(each, run) for each in (whole, folder)), f"of {run} differs")
    return found


def _final(folder: Path, run: str) -> dict[str, str]:
    """The last checkpoint, but for what an epoch began with: at the end of one nobody asks for that any more."""
    state = final_state(str(folder), run)
    return {path: value for path, value in state.items() if "_at_epoch" not in path.partition(".")[0]}


def _unheard(port: Port, whole: Told, lives: list[Told]) -> list[str]:
    """What was not told, and what was told for nothing."""
    first = [text for _, text in whole.sentences]
    later = [text for life in lives if life.resumed for _, text in life.sentences]
    faults = [f"undisturbed, nobody was told: {part}" for part in port.told if not any(part in text for text in first)]
    faults += [f"resumed, nobody was told: {part}" for part in port.told_after if not any(part in t for t in later)]
    known = (*port.told, *port.told_after)
    every = [
        text
        for life in (whole, *lives)
        for _, text in life.sentences
        if not (life.faulted and text.startswith("The error came"))
    ]
    return faults + [
        f"told without need: {text}" for text in dict.fromkeys(every) if not any(part in text for part in known)
    ]


def _named(wanted: Mapping[str, str], found: Mapping[str, str], what: str) -> list[str]:
    paths = [path for path in {**wanted, **found} if wanted.get(path) != found.get(path)]
    more = [f"and {len(paths) - MOST_NAMED} more"] if len(paths) > MOST_NAMED else []
    return [
        f"{p} {what}: {wanted.get(p, 'absent')} → {found.get(p, 'absent')}"[:300] for p in paths[:MOST_NAMED]
    ] + more

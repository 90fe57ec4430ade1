"""A training that is cut short and resumed, beside the same one left alone."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.session import launch
from tests.programs import Forked, Program
from tests.trainings import final_state
from tests.trainings.torch import hard_training

EPOCHS = 3

# A cell that tells its steps, slow enough to be met in the middle. Arguments: the folder, the number of workers.
CELL = f"""
import sys, time, torch
import colabkeep
from tests.trainings.torch import hard_training

def heard(step, epoch, samples):
    print("step", step, flush=True)
    time.sleep(0.02)

torch.set_num_threads(1)
words = hard_training(epochs={EPOCHS}, workers=int(sys.argv[2]), heard=heard)
colabkeep.resumable_fit(**words, run_name="r", storage=sys.argv[1], save_every=None)
"""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that `colabkeep.launch` begins are forks of one that has imported torch, see tests/programs.py."""
    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": Forked}))


def cell(folder: Path, **changes: Any) -> dict[str, Any]:
    """The arguments in a user's cell: everything built anew, run "r" in the folder."""
    words = {"run_name": "r", "storage": folder, "keep_last": None, **hard_training(epochs=EPOCHS)}
    words["callbacks"] = (*words["callbacks"], *changes.pop("callbacks", ()))
    return {**words, **changes}


def fit(folder: Path, **changes: Any) -> colabkeep.session.fit.FitResult:
    """The cell, run."""
    return colabkeep.resumable_fit(**cell(folder, **changes))


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """Everything that an uninterrupted training ends with, by the number of batches in a step."""
    known: dict[int, dict[str, str]] = {}

    def state(accumulate: int = 1) -> dict[str, str]:
        if accumulate not in known:
            folder = tmp_path_factory.mktemp("whole")
            fit(folder, **hard_training(epochs=EPOCHS, accumulate=accumulate))
            known[accumulate] = final_state(folder, "r")
        return dict(known[accumulate])

    return state


class Breakage(Exception):
    """What goes wrong on purpose."""


def breaking(function: Callable[..., Any], *, call: int) -> Callable[..., Any]:
    """The function, whose n-th call (from 1) fails after it has done its work."""
    calls = 0

    def broken(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        result = function(*arguments, **options)
        if calls == call:
            raise Breakage(f"call {call}")
        return result

    return broken


class Child:
    """The cell in a process of its own, which is gone at the end of the `with`."""

    def __init__(self, folder: Path, workers: int = 0) -> None:
        self.process = Program(CELL, folder, workers, strict=True)
        self.steps = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def reach(self, step: int) -> None:
        """Wait until it has done that step."""
        for line in self.process.stdout:
            if line.startswith("step"):
                self.steps = int(line.split()[1])
            if self.steps >= step:
                return
        raise AssertionError(f"it ended at step {self.steps}")

    def signal(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; its status."""
        self.process.send_signal(number)
        out, _ = self.process.communicate()
        self.steps = max([self.steps, *(int(line.split()[1]) for line in out.splitlines() if line.startswith("step"))])
        return self.process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.__exit__(None, None, None)


def contents(folder: Path) -> dict[str, bytes]:
    """Path → bytes of all files; locks, which hold no data, are left out."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if not file.name.startswith(".lock")}


@pytest.fixture
def kit() -> SimpleNamespace:
    return SimpleNamespace(
        EPOCHS=EPOCHS,
        cell=cell,
        fit=fit,
        breaking=breaking,
        Breakage=Breakage,
        Child=Child,
        contents=contents,
        state=final_state,
    )

"""A Paddle training that is cut short and resumed, beside the same one left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paddle
import pytest

import colabkeep
from tests.trainings import final_state
from tests.trainings.paddle import hard_training, one_thread

EPOCHS = 3

# A cell that tells its steps, slow enough to be met in the middle. Arguments: the folder, the number of workers.
CELL = f"""
import sys, time
sys.path.append({str(Path(__file__).resolve().parents[3])!r})
from tests.trainings.paddle import hard_training, one_thread
import colabkeep

def heard(step, epoch, samples):
    print("step", step, flush=True)
    time.sleep(0.02)

one_thread()
words = hard_training(epochs={EPOCHS}, workers=int(sys.argv[2]), heard=heard)
colabkeep.resumable_fit(**words, run_name="r", storage=sys.argv[1], save_every="4 steps")
assert "torch" not in sys.modules
"""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    one_thread()


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


def killed(folder: Path, *, step: int, workers: int = 0) -> int:
    """Run the cell in a process of its own, and kill it once it has told of that step; the last step it told of."""
    command = [sys.executable, "-W", "error", "-W", "ignore:No ccache", "-W", "ignore:When training, we now"]
    with subprocess.Popen(
        [*command, "-c", CELL, str(folder), str(workers)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        reached = 0
        for line in process.stdout:
            reached = int(line.split()[1]) if line.startswith("step") else reached
            if reached >= step:
                os.kill(process.pid, signal.SIGKILL)
                break
        rest = [int(line.split()[1]) for line in process.stdout if line.startswith("step")]
    assert process.returncode == -signal.SIGKILL
    return max([reached, *rest])


def bits(layer: paddle.nn.Layer) -> dict[str, bytes]:
    """Name → bytes of the weights and buffers."""
    return {name: value.numpy().tobytes() for name, value in layer.state_dict().items()}


@pytest.fixture
def kit() -> SimpleNamespace:
    return SimpleNamespace(
        EPOCHS=EPOCHS,
        cell=cell,
        fit=fit,
        bits=bits,
        killed=killed,
        breaking=breaking,
        Breakage=Breakage,
        state=final_state,
    )

"""A training over a sampler that nobody can list, as minGPT's, is killed or fails, and goes on bit for bit."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import colabkeep
from tests.programs import Program

STEPS = 24


def train(folder: Path | str, *, steps: int = STEPS, fails_at: int | None = None, tells: bool = False) -> int | None:
    """One session of a loop over ten billion draws; the step it went on from, None for a fresh start."""
    torch.manual_seed(0)
    data = TensorDataset(torch.linspace(-1, 1, 40).reshape(10, 4))
    loader = DataLoader(data, 3, sampler=RandomSampler(data, replacement=True, num_samples=int(1e10)))
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run = colabkeep.Run(
        "r", model=model, optimizer=optimizer, storage=folder, save_every="4 steps", progress=False, keep_last=None
    )
    with run:
        for _ in run.epochs(1):
            for (batch,) in run.batches(loader):
                if run.progress.step == fails_at:
                    raise RuntimeError("in the middle of a step")
                loss = model(batch).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step(loss=loss)
                if tells:
                    print("step", run.progress.step, flush=True)
                    time.sleep(0.02)  # slow enough to be saved before it is killed
                if run.progress.step == steps:
                    run.stop()
    return None if run.resumed_from is None else run.resumed_from.progress.step


def weights(folder: Path) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in colabkeep.load_weights("r", storage=folder).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    train(folder)
    return weights(folder)


def test_killed_it_ends_with_the_weights_of_one_left_alone(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """SIGKILL in the middle, no goodbye; run again, the training has the same bits in the end."""
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import test_long_orders as cell; cell.torch.set_num_threads(1); cell.train(sys.argv[1], tells=True)"
    )
    with Program(program, tmp_path, strict=True) as process:
        for line in process.stdout:
            if line == "step 13\n":
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait() == -signal.SIGKILL
    assert train(tmp_path) in range(4, 14)  # a save that is due while one is written comes a step or two later
    assert weights(tmp_path) == whole


def test_an_error_in_the_middle_of_a_step_costs_no_step(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """The loader has moved on to the next batch, and the last finished step is saved all the same."""
    with pytest.raises(RuntimeError, match="in the middle"):
        train(tmp_path, fails_at=14)
    assert train(tmp_path) == 14
    assert weights(tmp_path) == whole

"""The loop of Accelerate's own guide, in bf16 and with accumulation: killed and resumed, it comes to the same."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import colabkeep
from colabkeep.core.errors import UsageError
from colabkeep.core.events import Event, Noted
from tests.programs import run_module

accelerate = pytest.importorskip("accelerate")
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import GradientAccumulationPlugin  # noqa: E402


class Noisy(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pairs, augmented at random from three sources."""

    def __len__(self) -> int:
        return 42

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.rand(4) + random.random() + np.random.random()
        return torch.full((4,), index / 42) + 0.1 * noise, torch.tensor([index / 42])


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Accelerate keeps what it was told in class attributes, for the whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def train(folder: Path, *, kill_at: int = 0, seed: int = 0, whole_windows: bool = False) -> list[Any]:
    """One session; what it came to: weights, steps, the means of its epochs, the next random numbers, what was told."""
    AcceleratorState._reset_state(reset_partial_state=True)
    torch.manual_seed(seed)
    plugin = GradientAccumulationPlugin(num_steps=3, sync_with_dataloader=not whole_windows)
    here = not torch.cuda.is_available()
    accelerator = accelerate.Accelerator(cpu=here, mixed_precision="bf16", gradient_accumulation_plugin=plugin)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    loader = torch.utils.data.DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    events, means = list[Event](), []
    run = colabkeep.Run(
        "bf16",
        model=model,
        optimizer=optimizer,
        scheduler=schedule,
        storage=folder,
        save_every="1 steps",
        progress=False,
        callbacks=[events.append],
    )
    with run:
        for _ in run.epochs(3):
            for inputs, targets in run.batches(loader):
                with accelerator.accumulate(model):
                    loss = nn.functional.mse_loss(model(inputs), targets)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                run.average(loss=loss)
                if accelerator.sync_gradients:
                    run.step(loss=loss)
                    if run.progress.step == kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)
            means.append(run.average.loss)
    weights = b"".join(each.detach().cpu().numpy().tobytes() for each in model.state_dict().values())
    told = [event.text for event in events if isinstance(event, Noted)]
    return [hashlib.sha256(weights).hexdigest(), run.progress.step, means[-1], torch.rand(2).tolist(), told]


def test_a_killed_training_in_bf16_comes_to_the_same(tmp_path: Path) -> None:
    """SIGKILL in an epoch, between two windows of `accumulate`, a fresh process with another seed: the same bits."""
    whole = train(tmp_path / "whole")
    assert whole[1] == 12  # 11 batches: three windows and a short one, in each of three epochs
    assert train(tmp_path / "again", seed=0)[:-1] == whole[:-1]
    assert run_module("tests.integrations.test_accelerate", tmp_path / "kept", 6).returncode == -signal.SIGKILL
    assert train(tmp_path / "kept", seed=3)[:-1] == whole[:-1]


def test_a_window_that_goes_on_behind_its_epoch_is_refused(tmp_path: Path) -> None:
    """The accelerator alone knows how far it is in one. A window of one batch is over with it."""
    with pytest.raises(UsageError, match="beyond the end of an epoch"):
        train(tmp_path, whole_windows=True)
    assert not list(tmp_path.iterdir())


if __name__ == "__main__":
    train(Path(sys.argv[1]), kill_at=int(sys.argv[2]))

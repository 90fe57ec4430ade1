"""One training on two GPUs, by `nn.DataParallel`. CI runs these on two simulated ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import colabkeep

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.orders,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.filterwarnings("ignore:PyTorch is not compiled with NCCL"),  # DataParallel copies without it
]


def trained(folder: Path, epochs: int) -> dict[str, Any]:
    """New objects, as a new session makes them, trained up to that epoch; the weights and the device streams then."""
    torch.manual_seed(0)
    model = nn.DataParallel(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1)).cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
    with colabkeep.Run("two", model=model, optimizer=optimizer, storage=folder, progress=False) as run:
        for _ in run.epochs(epochs):
            for x, y in run.batches(DataLoader(data, batch_size=8)):
                loss = (model(x.cuda()) - y.cuda()).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.step(loss=loss)
    streams = {f"stream {index}": torch.cuda.get_rng_state(index) for index in range(torch.cuda.device_count())}
    return {**{name: value.cpu() for name, value in model.state_dict().items()}, **streams}


def test_both_gpus_train_and_a_resume_has_the_same_bits(tmp_path: Path) -> None:
    """Each batch is split over both, each with its own dropout; one that went on ends like a whole one."""
    whole = trained(tmp_path / "whole", 3)
    trained(tmp_path / "cut", 1)
    resumed = trained(tmp_path / "cut", 3)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)

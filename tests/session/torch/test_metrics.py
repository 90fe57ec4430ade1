"""What metrics of torchmetrics have counted, which is in no `state_dict()` of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import colabkeep
from colabkeep.frameworks.torch.ranks import TorchRanks
from colabkeep.session.open import _own

torchmetrics = pytest.importorskip("torchmetrics")

DATA = TensorDataset(torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3)


class Breakage(Exception):
    """What goes wrong on purpose."""


class Counting(nn.Module):
    """A net that keeps its own measure."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.losses = torchmetrics.MeanMetric()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.layer(x)
        loss = F.cross_entropy(output, y)
        self.losses.update(loss)
        return output, loss


def train(folder: Path, breaks_at: int | None = None) -> tuple[list[float], list[torch.Tensor]]:
    """What all metrics came to in 8 steps. One that breaks does so when its step has counted, and is not done."""
    torch.manual_seed(0)
    model = Counting()
    right = torchmetrics.MetricCollection([torchmetrics.Accuracy("multiclass", num_classes=3)])
    right.persistent(True)  # then its `state_dict()` tells some of it
    seen = torchmetrics.CatMetric()
    least = torchmetrics.MinMaxMetric(torchmetrics.MeanMetric())  # its bounds are no states of it
    words: dict[str, Any] = {
        "state": {"right": right, "seen": seen, "least": least},
        "storage": folder,
        "progress": False,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with colabkeep.Run("r", model=model, optimizer=optimizer, save_every="3 steps", **words) as run:
        for _ in run.epochs(2):
            right.reset()
            for x, y in run.batches(DataLoader(DATA, batch_size=6, shuffle=True)):
                output, loss = model(x, y)
                right.update(output, y)
                seen.update(y)
                least.update(y)
                least.compute()
                if run.progress.step == breaks_at:
                    raise Breakage
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step(loss=loss)
    return [
        float(each) for each in (model.losses.compute(), *right.compute().values(), least.min_val, least.max_val)
    ], seen.value


def test_metrics_go_on_counting_where_they_were(tmp_path: Path) -> None:
    """In the model and in `state=`, sums and lists, in the middle of an epoch. What a step that failed had counted is
    taken back with it, and what the top of an epoch does to them is not done again in its middle."""
    sums, seen = train(tmp_path / "whole")
    for place in (2, 5):
        with pytest.raises(Breakage):
            train(tmp_path / "broken", place)
    again, seen_again = train(tmp_path / "broken")
    assert again == sums
    assert torch.cat(seen_again).tolist() == torch.cat(seen).tolist()
    assert len(torch.cat(seen)) == 48


def test_each_of_several_processes_has_what_its_own_metrics_have_counted() -> None:
    """It tells that beside its buffers, and gets it back in the place of what rank 0 had counted."""
    model = Counting()
    model.losses.update(torch.tensor(3.0))
    told: Any = TorchRanks.buffers(cast("TorchRanks", None), {"model": model})["model"]
    tree: Any = {"kind": "module", "weights": {}, "transient": {}, "metrics": {"losses": {"mean_value": 0.0}}}
    own: Any = _own(tree, told)
    assert float(own["metrics"]["losses"]["mean_value"]) == 3.0

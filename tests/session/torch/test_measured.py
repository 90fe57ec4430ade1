"""What a training tells its displays of each step, beside its loss."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import colabkeep
from colabkeep.core.events import Event, StepDone

pytestmark = pytest.mark.torch


class SlowData(TensorDataset):
    """A sample takes 5 ms."""

    def __getitem__(self, index: Any) -> Any:
        time.sleep(0.005)
        return super().__getitem__(index)


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    data = SlowData(torch.randn(16, 4), torch.randint(0, 2, (16,)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=4)


def test_clipping_tells_the_norm_that_it_found_and_reading_its_time(tmp_path: Path) -> None:
    """The norm is that of the whole gradient, before it was clipped; without clipping there is none."""
    told: list[StepDone] = []

    def hear(event: Event) -> None:
        if isinstance(event, StepDone):
            told.append(event)

    norms: list[float] = []
    whole = torch.nn.utils.clip_grad_norm_

    def clipped(parameters: Any, largest: float) -> torch.Tensor:
        held = list(parameters)
        norms.append(float(torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in held]))))
        return whole(held, largest)

    words: dict[str, Any] = {"loss_fn": F.cross_entropy, "max_epochs": 1, "storage": tmp_path, "progress": False}
    words |= {"callbacks": [hear], "save_every": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", clipped)
        model, optimizer, loader = parts()
        colabkeep.resumable_fit(model, loader, optimizer=optimizer, gradient_clip_val=0.01, run_name="clipped", **words)
    assert [float(step.grad_norm) for step in told] == pytest.approx(norms)
    assert min(norms) > 0.01
    waited = [step.waited or 0.0 for step in told]
    assert waited == sorted(waited)
    assert waited[0] >= 4 * 0.005

    told.clear()
    model, optimizer, loader = parts()
    colabkeep.resumable_fit(model, loader, optimizer=optimizer, run_name="whole", **words)
    assert [step.grad_norm for step in told] == [None] * 4
    assert [step.tokens for step in told] == [None] * 4


def test_a_loop_tells_its_norm_and_its_tokens(tmp_path: Path) -> None:
    """Tokens are summed up, also where they are tensors; a loop that reads no batches here waits for none."""
    told: list[StepDone] = []

    def hear(event: Event) -> None:
        if isinstance(event, StepDone):
            told.append(event)

    model, _, _ = parts()
    with colabkeep.Run("r", model=model, storage=tmp_path, progress=False, save_every=None, callbacks=[hear]) as run:
        for step in run.steps(3):
            run.step(loss=1.0, grad_norm=torch.tensor(0.5 + step), tokens=torch.tensor(100))
    assert [float(step.grad_norm) for step in told] == [0.5, 1.5, 2.5]
    assert [int(step.tokens) for step in told] == [100, 200, 300]
    assert [step.waited for step in told] == [None] * 3

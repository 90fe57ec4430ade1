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
from colabkeep.core.errors import UsageError
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


def test_tokens_are_counted_of_each_batch_of_a_step(tmp_path: Path) -> None:
    """Those of all batches between two updates, of this session; a mask's sum is a tensor, and counts as well."""
    told: list[StepDone] = []

    def hear(event: Event) -> None:
        if isinstance(event, StepDone):
            told.append(event)

    words: dict[str, Any] = {"loss_fn": F.cross_entropy, "storage": tmp_path, "progress": False, "callbacks": [hear]}
    words |= {"run_name": "r", "accumulate_grad_batches": 3, "save_every": None}
    model, optimizer, loader = parts()
    counts = {"numel": lambda batch: batch[0].numel(), "a tensor": lambda batch: torch.ones_like(batch[0]).sum()}
    for epochs, count in enumerate(counts.values(), start=1):
        told.clear()
        colabkeep.resumable_fit(model, loader, optimizer=optimizer, max_epochs=epochs, count_tokens=count, **words)
        assert [int(step.tokens) for step in told] == [3 * 16, 4 * 16]  # the rest of the epoch is a step of one batch


@pytest.mark.parametrize(
    ("count", "problem"),
    [
        (128, "count_tokens is a int, which cannot be called."),
        (type("Count", (), {}), "count_tokens is the class Count, not an object of it."),
        (lambda batch: None, "count_tokens returned a NoneType; it must return one number."),
        (lambda batch: batch[0], "count_tokens returned a Tensor; it must return one number."),
    ],
)
def test_what_cannot_count_tokens_is_refused(tmp_path: Path, count: Any, problem: str) -> None:
    """With the line to write instead."""
    model, optimizer, loader = parts()
    words: dict[str, Any] = {"loss_fn": F.cross_entropy, "max_epochs": 1, "storage": tmp_path, "progress": False}
    with pytest.raises(UsageError) as raised:
        colabkeep.resumable_fit(model, loader, optimizer=optimizer, run_name="r", count_tokens=count, **words)
    assert raised.value.problem == problem


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

"""Orders of work that nothing forces: no one waits for the device between the step, the save and the next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from colabkeep.frameworks.torch.adapter import TorchFramework

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.orders,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: python -m tests.simcuda"),
]


def training(width: int, fused: bool) -> tuple[dict[str, Any], Callable[[], None]]:
    model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)).cuda()
    optimizer, x = torch.optim.AdamW(model.parameters(), fused=fused), torch.randn(8, width, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return {"model": model, "optimizer": optimizer}, step


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("width", [24, 520])  # tensors that are gathered, and such that are copied one by one
@pytest.mark.parametrize("forced", [True, False])  # does the next forward make the device run all before it?
def test_what_a_save_keeps_is_of_its_moment(width: int, fused: bool, forced: bool) -> None:
    """The update before it may still be queued, the one after it may come first: neither is seen. Nor is a forward
    pass, which changes what BatchNorm keeps: its count of batches is the only tensor of its type."""
    framework = TorchFramework()
    parts, step = training(width, fused)
    boundary = framework.boundary(parts)
    for _ in range(6):
        step()
        boundary.mark()
        capture = framework.capture(parts)
        model = parts["model"]
        truth = {name: one.detach().clone() for name, one in model.state_dict().items()}  # on the device, in its order
        parts["optimizer"].step()
        boundary.mark()
        if forced:
            model(torch.ones(8, width, device="cuda"))
        snapshot = capture.finish()
        kept = framework.native(snapshot.parts["model"]["weights"])
        assert all(torch.equal(kept[name].cpu(), one.cpu()) for name, one in truth.items())
        snapshot.release()

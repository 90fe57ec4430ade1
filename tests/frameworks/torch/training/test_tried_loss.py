"""A loss function of several processes, tried in its first call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from colabkeep.frameworks.torch.pieces import TriedLoss

OUTPUT, TARGET = torch.arange(24.0).reshape(6, 4) % 5, torch.tensor([0, 1, 2, 3, 0, 1])


class Counting(nn.Module):
    """Draws, and counts in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return nn.functional.cross_entropy(output, target) * torch.rand(())


def test_what_is_tried_leaves_no_trace() -> None:
    """The loss, the random stream and the module's buffers are those of one call."""
    plain, tried = Counting(), TriedLoss(Counting(), torch.device("cpu"))
    tried.begin()
    told = []
    for loss in (plain, tried):
        torch.manual_seed(3)
        told.append((loss(OUTPUT, TARGET).item(), torch.rand(()).item()))
    assert told[0] == told[1]
    assert tried._loss_fn.calls == plain.calls == 1
    assert tried.differs


@pytest.mark.parametrize(
    ("output", "begun"), [(OUTPUT[:1], True), ({"logits": OUTPUT}, True), (OUTPUT, False)], ids=["one", "dict", "later"]
)
def test_what_cannot_be_tried_is_not_said(output: object, begun: bool) -> None:
    """One sample, what is no tensor, and a session that is not the first."""

    def loss(output: object, _: object) -> torch.Tensor:
        return (output["logits"] if isinstance(output, dict) else output).sum()  # type: ignore[union-attr]

    tried = TriedLoss(loss, torch.device("cpu"))
    if begun:
        tried.begin()
    tried(output, TARGET)
    assert tried.differs == ""

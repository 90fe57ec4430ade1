"""A graph net in full batch. The shape of tkipf/pygcn, train.py: an epoch is one step over the whole graph, with
dropout, and a validation in evaluation mode. The graph's convolution is written out, over a sparse matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import seed

RESUMES = "epoch"
TOLD = ("can be saved at its end only",)
EPOCHS, NODES = 15, 20


class GraphConvolution(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(before, after) * 0.2), nn.Parameter(torch.zeros(after))

    def forward(self, x: torch.Tensor, adj: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(adj, x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gc1, self.gc2 = GraphConvolution(6, 16), GraphConvolution(16, 3)

    def forward(self, x: torch.Tensor, adj: torch.Tensor) -> torch.Tensor:
        x = F.dropout(F.relu(self.gc1(x, adj)), 0.5, training=self.training)
        return F.log_softmax(self.gc2(x, adj), dim=1)


def build() -> tuple[Any, ...]:
    seed(42)
    links = torch.rand(NODES, NODES) < 0.15
    adj = (links | links.t() | torch.eye(NODES, dtype=torch.bool)).float()
    adj = (adj / adj.sum(1, keepdim=True)).to_sparse()
    features, labels = torch.randn(NODES, 6), torch.arange(NODES) % 3
    model = GCN()
    return adj, features, labels, model, torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def epoch_of(adj: Any, features: Any, labels: Any, model: Any, optimizer: Any) -> tuple[torch.Tensor, float]:
    model.train()
    optimizer.zero_grad()
    loss = F.nll_loss(model(features, adj)[:12], labels[:12])
    loss.backward()
    optimizer.step()
    model.eval()
    return loss, F.nll_loss(model(features, adj)[12:], labels[12:]).item()


def original() -> dict[str, Any]:
    parts = build()
    return {"log": [epoch_of(*parts)[1] for _ in range(EPOCHS)], "model": parts[3].state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    parts = build()
    with colabkeep.Run("gcn", model=parts[3], optimizer=parts[4]) as run:
        run.state.log = []
        for _ in run.epochs(EPOCHS):
            loss, loss_val = epoch_of(*parts)
            run.step(loss=loss)
            run.log(loss_val=loss_val)
            run.state.log.append(loss_val)
    return {"log": run.state.log, "model": parts[3].state_dict()}

"""Lookahead. The shape of alphadl/lookahead.pytorch and its many copies: an optimizer that wraps another one, without
being built as one (it never calls `super().__init__`), and has a `state_dict` of its own in two halves."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, seed, small_net

RESUMES = "mid-epoch"
EPOCHS = 3


class Lookahead(torch.optim.Optimizer):
    def __init__(self, optimizer: Any, k: int = 4, alpha: float = 0.5) -> None:
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.param_groups, self.state = optimizer.param_groups, defaultdict(dict)
        self.fast_state, self.defaults = optimizer.state, optimizer.defaults
        for group in self.param_groups:
            group["counter"] = 0

    @torch.no_grad()
    def update(self, group: dict[str, Any]) -> None:
        for fast in group["params"]:
            slow = self.state[fast]
            if "slow_param" not in slow:
                slow["slow_param"] = fast.detach().clone()
            slow["slow_param"] += (fast - slow["slow_param"]) * self.alpha
            fast.copy_(slow["slow_param"])

    def step(self, closure: Any = None) -> Any:
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            if group["counter"] == 0:
                self.update(group)
            group["counter"] = (group["counter"] + 1) % self.k
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        fast = self.optimizer.state_dict()
        parameters = [p for group in self.param_groups for p in group["params"]]
        slow = {i: dict(self.state[p]) for i, p in enumerate(parameters) if p in self.state}
        return {"fast_state": fast["state"], "slow_state": slow, "param_groups": fast["param_groups"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict({"state": state["fast_state"], "param_groups": state["param_groups"]})
        self.param_groups, self.fast_state = self.optimizer.param_groups, self.optimizer.state
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.state = defaultdict(dict, {parameters[int(i)]: dict(each) for i, each in state["slow_state"].items()})


def build() -> tuple[Any, ...]:
    seed()
    model = small_net()
    return by_epoch(digits()), model, Lookahead(torch.optim.Adam(model.parameters(), lr=1e-2))


def update(model: Any, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    loader, model, optimizer = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            update(model, optimizer, x, y)
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer = build()
    with colabkeep.Run("lookahead", model=model, optimizer=optimizer) as run:
        for _ in run.epochs(EPOCHS):
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
    return {"model": model.state_dict()}

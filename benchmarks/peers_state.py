"""The training that all contestants save: linear layers, AdamW, one thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from states import built, copied, size, tensors, trained

__all__ = ["Work"]


class Work:
    """A model with its optimizer. `waited` adds up the seconds that others made the optimizer wait before a step."""

    def __init__(self, megabytes: float, *, fresh: bool = False) -> None:
        torch.set_num_threads(1)
        self.model, adam = built(megabytes) if fresh else trained(megabytes)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        if not fresh:
            self.optimizer.load_state_dict(adam.state_dict())
        first: Any = next(self.model.parameters())
        self.batch = torch.randn(32, first.shape[1])
        self.waited = 0.0
        self._began = 0.0
        self.optimizer.register_step_pre_hook(self._begin)
        self.loss().backward()  # so that gradients have had their memory before anybody measures
        self.optimizer.zero_grad()
        self.buffers: Sequence[torch.Tensor] = () if fresh else copied(self.state)
        self.size = size(self.buffers)

    @property
    def state(self) -> list[torch.Tensor]:
        return tensors(self.model, self.optimizer)

    def attached(self) -> None:
        """Whoever hooks into the optimizer has done so: what its hooks take is added up from here on."""
        self.optimizer.register_step_pre_hook(self._end)

    def loss(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(self.batch).square().mean()
        return loss

    def step(self) -> None:
        """One step of a training by hand."""
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def copy(self) -> float:
        """Seconds of a bare copy of the state into ready buffers."""
        start = time.perf_counter()
        torch._foreach_copy_(list(self.buffers), self.state)
        return time.perf_counter() - start

    def _begin(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self.waited += time.perf_counter() - self._began

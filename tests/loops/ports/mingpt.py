"""A trainer that draws for ever. The shape of karpathy/minGPT, mingpt/trainer.py: a sampler with replacement of 10^10
draws, an iterator kept by hand and begun anew when it ends, a callback after each batch. The iterator becomes
`run.next`."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler

from tests.loops.ports._parts import digits, mlp, seed

RESUMES = "step"
NO_ORIGINAL = "colabkeep draws the order from a seed of its own, the script from the global stream"
MAX_ITERS = 20


class Trainer:
    def __init__(self) -> None:
        seed()
        data = digits()
        sampler = RandomSampler(data, replacement=True, num_samples=int(1e10))
        self.loader = DataLoader(data, sampler=sampler, shuffle=False, batch_size=4)
        self.model = mlp(64, 32, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def run(self, colabkeep: Any) -> None:
        model, optimizer = self.model, self.optimizer
        with colabkeep.Run("mingpt", model=model, optimizer=optimizer) as run:
            run.state.seen = []
            model.train()
            for _ in run.steps(MAX_ITERS):
                x, y = run.next(self.loader)
                run.state.seen.append(x.sum().item())
                self.loss = F.cross_entropy(model(x.flatten(1)), y)
                model.zero_grad(set_to_none=True)
                self.loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                run.step(loss=self.loss)
            self.seen = run.state.seen


def train(colabkeep: Any) -> dict[str, Any]:
    trainer = Trainer()
    trainer.run(colabkeep)
    return {"model": trainer.model.state_dict(), "seen": trainer.seen}

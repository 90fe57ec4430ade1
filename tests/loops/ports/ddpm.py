"""Diffusion. The shape of lucidrains/denoising-diffusion-pytorch, its Trainer: a loader cycled for ever, `while step
< n`, several micro-batches to a step, an average model with a count and a flag of its own, samples drawn at
milestones. The noise comes from a generator of the script's own, which is handed in. The cycle becomes `run.next`."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from tests.loops.ports._parts import by_epoch, digits, mlp, seed

RESUMES = "step"
STEPS, MICRO, MILESTONE, LEVELS = 15, 2, 5, 10


class EMA(nn.Module):
    """Follows a model every second step, from the fourth on; before that it is a copy of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.ema_model = deepcopy(model)
        self.register_buffer("step", torch.tensor(0))
        self.register_buffer("initted", torch.tensor(False))

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        step = self.step.item()
        self.step += 1
        if step % 2 != 0:
            return
        if not self.initted.item():
            self.initted.data.copy_(torch.tensor(step >= 4))
        for ours, theirs in zip(self.ema_model.parameters(), model.parameters(), strict=True):
            if self.initted.item():
                ours.lerp_(theirs, 0.3)
            else:
                ours.copy_(theirs)


class Trainer:
    def __init__(self) -> None:
        seed()
        self.loader = by_epoch(digits(20))
        self.model = mlp(65, 48, 64)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3, betas=(0.9, 0.99))
        self.ema = EMA(self.model).requires_grad_(False)
        self.generator = torch.Generator().manual_seed(5)
        self.samples: list[torch.Tensor] = []

    def loss(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1)
        level = torch.randint(0, LEVELS, (len(pixels), 1), generator=self.generator) / LEVELS
        noise = torch.randn(pixels.shape, generator=self.generator)
        return ((self.model(torch.cat([pixels * (1 - level) + noise * level, level], 1)) - noise) ** 2).mean()

    def update(self, batches: Any) -> torch.Tensor:
        total = torch.zeros(())
        for _ in range(MICRO):
            loss = self.loss(next(batches)[0]) / MICRO
            total += loss.detach()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad()
        return total

    def sample(self) -> torch.Tensor:
        with torch.no_grad():
            image = torch.randn(2, 64)
            for level in reversed(range(LEVELS)):
                told = self.ema.ema_model(torch.cat([image, torch.full((2, 1), level / LEVELS)], 1))
                image = image - told / LEVELS
        return image

    def ended(self, samples: list[torch.Tensor]) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "ema": self.ema.state_dict(), "samples": samples}


def cycle(loader: Any) -> Any:
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def original() -> dict[str, Any]:
    trainer, step, samples = Trainer(), 0, []
    batches = cycle(trainer.loader)
    while step < STEPS:
        trainer.update(batches)
        step += 1
        trainer.ema.update(trainer.model)
        if step % MILESTONE == 0:
            samples.append(trainer.sample())
    return trainer.ended(samples)


def train(colabkeep: Any) -> dict[str, Any]:
    trainer = Trainer()
    parts = {"model": trainer.model, "optimizer": trainer.opt, "ema": trainer.ema}
    with colabkeep.Run("ddpm", **parts, state={"noise": trainer.generator}) as run:
        run.state.samples = []
        batches = iter(lambda: run.next(trainer.loader), None)
        for step in run.steps(STEPS):
            run.step(loss=trainer.update(batches))
            trainer.ema.update(trainer.model)
            if (step + 1) % MILESTONE == 0:
                run.state.samples.append(trainer.sample())
    return trainer.ended(run.state.samples)

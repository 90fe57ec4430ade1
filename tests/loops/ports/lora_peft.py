"""LoRA with peft. The shape of huggingface/peft, examples/multilayer_perceptron: `get_peft_model` over a model of one's
own, its head trained whole; the optimizer is given all parameters, of which the frozen ones never have a gradient."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, seed

RESUMES = "mid-epoch"
NEEDS = "peft"  # brings transformers along, 140 MB: too much for every run of the tests
EPOCHS = 3


def build() -> tuple[Any, ...]:
    import peft

    seed()
    base = nn.Sequential(
        OrderedDict(
            flat=nn.Flatten(), lin0=nn.Linear(64, 32), relu=nn.ReLU(), lin1=nn.Linear(32, 16), head=nn.Linear(16, 4)
        )
    )
    config = peft.LoraConfig(
        r=4, target_modules=["lin0", "lin1"], modules_to_save=["head"], lora_dropout=0.1, lora_alpha=8
    )
    model = peft.get_peft_model(base, config)
    return by_epoch(digits()), model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def update(model: Any, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def original() -> dict[str, Any]:
    loader, model, optimizer = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            update(model, optimizer, x, y)
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer = build()
    with colabkeep.Run("peft", model=model, optimizer=optimizer) as run:
        for _ in run.epochs(EPOCHS):
            model.train()
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
    return {"model": model.state_dict()}

"""Torch's words for the tests of the arithmetic."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import LBFGS, SGD

from colabkeep.frameworks.torch.training import TorchTraining as Training

__all__ = ["F", "Training", "nn"]

MODEL, OPTIMIZER = "torch.nn.Module", "torch.optim.Optimizer"
OPTIMIZERS = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam", "Rprop", "ASGD"]
seed, tensor = torch.manual_seed, torch.as_tensor


def sgd(model: Any) -> SGD:
    return SGD(model.parameters(), lr=0.1)


def lbfgs(model: Any) -> LBFGS:
    return LBFGS(model.parameters())


def optimizer(name: str, model: Any) -> torch.optim.Optimizer:
    made = getattr(torch.optim, name)(model.parameters())
    torch.optim.lr_scheduler.StepLR(made, 1)  # wraps optimizer.step
    return made


class Closing(SGD):
    """An optimizer of the user's own that must have its closure."""

    def step(self, closure: Any) -> Any:
        return closure()


def closing(model: Any) -> Closing:
    return Closing(model.parameters())


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == target).float().mean()


def modules(model: nn.Module) -> list[nn.Module]:
    return list(model.modules())


def has_graph(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad


def stream() -> Any:
    return torch.get_rng_state().tolist()

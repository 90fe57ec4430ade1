"""What a training loop in torch refuses, and the sentence for it."""

from __future__ import annotations

from typing import Any

import torch

from colabkeep.frameworks.base import TrainingOptions
from colabkeep.frameworks.common.refusals import (
    as_number,
    check_functions,
    check_held,
    check_one_loss,
    no_gradient,
    unfit_loss,
    unfit_number,
    wrong_kind,
)
from colabkeep.vocabulary.errors import UsageError

__all__ = ["check_options", "one_number", "refuse_loss"]


def check_options(options: TrainingOptions) -> None:
    """Refuse what cannot be meant so, before the first batch.

    Raises:
        UsageError: the sentence says which option, and what to pass instead.
    """
    model, optimizer = options.model, options.optimizer
    if not isinstance(model, torch.nn.Module):
        remedy = "Pass the model object itself, for example resumable_fit(MyModel(), …)."
        raise wrong_kind("model", model, "torch.nn.Module", remedy)
    if not isinstance(optimizer, torch.optim.Optimizer):
        remedy = "Pass an optimizer object, for example torch.optim.AdamW(model.parameters(), lr=1e-3)."
        raise wrong_kind("optimizer", optimizer, "torch.optim.Optimizer", remedy)
    check_held(model.parameters(), (p for group in optimizer.param_groups for p in group["params"]))
    check_one_loss(optimizer)
    check_functions(options)
    for name, metric in (options.metrics or {}).items():
        if isinstance(metric, type) or not callable(metric):
            kind = f"the class {metric.__name__}" if isinstance(metric, type) else f"a {type(metric).__name__}"
            raise UsageError(
                problem=f"The metric {name!r} is {kind}.",
                remedy="Pass a function of (output, target) that returns a number, or an object that can be called so.",
            )


def one_number(name: str, value: Any) -> Any:
    """`value` if it is a number or a tensor of one, for a running mean; nothing waits for the device.

    Raises:
        UsageError: it is anything else.
    """
    if not isinstance(value, torch.Tensor):
        return as_number(name, value)
    if value.dim():
        raise unfit_number(name, f"a tensor of shape {tuple(value.shape)}")
    return value


def refuse_loss(loss: Any, own_step: bool) -> UsageError:
    """Why a backward pass cannot start from this value."""
    if not isinstance(loss, torch.Tensor):
        return unfit_loss(loss, None, own_step)
    if loss.dim():
        return unfit_loss(loss, tuple(loss.shape), own_step)
    return no_gradient(own_step, ".detach(), .item(), torch.no_grad() or argmax", "requires_grad_(False)")

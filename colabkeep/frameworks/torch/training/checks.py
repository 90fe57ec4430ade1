"""What a training loop refuses, and the sentence for it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from colabkeep.frameworks.base import TrainingOptions
from colabkeep.vocabulary.errors import UsageError

__all__ = ["check_options", "one_number", "unfit_batch", "unfit_loss"]


def check_options(options: TrainingOptions) -> None:
    """Refuse what cannot be meant so, before the first batch.

    Raises:
        UsageError: the sentence says which option, and what to pass instead.
    """
    model, optimizer = options.model, options.optimizer
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            problem=f"model is a {type(model).__name__}, not a torch.nn.Module.",
            remedy="Pass the model object itself, for example resumable_fit(MyModel(), …).",
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            problem=f"optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer.",
            remedy="Pass an optimizer object, for example torch.optim.AdamW(model.parameters(), lr=1e-3).",
        )
    own = {id(p) for p in model.parameters()}
    if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise UsageError(
            problem="The optimizer holds none of the model's parameters, so training would change nothing.",
            remedy="Build the optimizer from this model's parameters(), after the last thing that replaces the model "
            "or its parameters.",
        )
    if _needs_closure(optimizer):
        raise UsageError(
            problem=f"{type(optimizer).__name__} evaluates the loss several times in one step, by a closure; "
            "resumable_fit computes it once.",
            remedy="Keep your own loop on colabkeep.Run, with optimizer.step(closure) and then run.step(loss=loss), "
            "or use another optimizer.",
        )
    _check_functions(options)


def _check_functions(options: TrainingOptions) -> None:
    if (options.loss_fn is None) == (options.step_fn is None):
        raise UsageError(
            problem="Training needs exactly one of loss_fn and step_fn.",
            remedy="Pass loss_fn=f with f(output, target) -> loss for batches of (input, target), "
            "or step_fn=f with f(model, batch) -> loss for any other.",
        )
    if options.metrics and options.step_fn is not None:
        raise UsageError(
            problem="metrics are functions of (output, target), and with step_fn nobody knows these.",
            remedy="Pass loss_fn instead of step_fn, or leave metrics out and measure in a callback.",
        )
    if "loss" in (options.metrics or {}):
        raise UsageError(
            problem='A metric is named "loss", which is the name of the loss itself.',
            remedy="Give the metric another name.",
        )
    if options.gradient_clip_val is not None and not options.gradient_clip_val > 0:
        raise UsageError(
            problem=f"gradient_clip_val={options.gradient_clip_val!r} would clip every gradient to nothing.",
            remedy="Pass the largest gradient norm you allow, for example 1.0, or None for no clipping.",
        )


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    _, *parameters = inspect.signature(type(optimizer).step).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(p.default is p.empty and p.kind in by_name for p in parameters)


def one_number(name: str, value: Any) -> Any:
    """`value` if it is a number or a tensor of one, for a running mean; nothing waits for the device.

    Raises:
        UsageError: it is anything else.
    """
    if isinstance(value, torch.Tensor):
        if value.dim() == 0:
            return value
        found = f"a tensor of shape {tuple(value.shape)}"
    else:
        try:
            return float(value)
        except (TypeError, ValueError):
            found = f"a {type(value).__name__}"
    raise UsageError(
        problem=f"In validation {name!r} is {found}, not one number.",
        remedy="Return one number or a tensor of shape (), for example by .mean().",
    )


def unfit_batch(batch: Any) -> UsageError:
    """Why loss_fn cannot be used on this batch."""
    shape = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    example = "model(**batch).loss" if isinstance(batch, Mapping) else "loss of the batch"
    return UsageError(
        problem=f"The loader gives a {type(batch).__name__}{shape} as a batch; loss_fn(output, target) needs "
        "(input, target), or (inputs …, target).",
        remedy=f"Pass step_fn instead of loss_fn: def step_fn(model, batch): return {example}",
    )


def unfit_loss(loss: Any, own_step: bool) -> UsageError:
    """Why a backward pass cannot start from this value."""
    function = "step_fn" if own_step else "loss_fn"
    if not isinstance(loss, torch.Tensor):
        return UsageError(
            problem=f"{function} returned a {type(loss).__name__}; the loss must be a tensor of one number, shape ().",
            remedy='Return only the loss, for example return out["loss"] or return loss (not loss.item(), '
            "nor loss and something else).",
        )
    if loss.dim():
        return UsageError(
            problem=f"{function} returned a tensor of shape {tuple(loss.shape)}; a loss is one number, shape ().",
            remedy="End it with .mean().",
        )
    return UsageError(
        problem=f"The loss that {function} returned does not depend on any trainable parameter: it has no gradient.",
        remedy="Look for .detach(), .item(), torch.no_grad() or argmax on the way from the model to the loss, "
        "and for parameters frozen by requires_grad_(False).",
    )

"""What a training loop in Paddle refuses, and the sentence for it."""

from __future__ import annotations

from typing import Any

import paddle

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
from colabkeep.frameworks.paddle.modes import refuse_static_mode
from colabkeep.vocabulary.errors import UsageError

__all__ = ["check_options", "held_parameters", "one_number", "refuse_loss"]

_SCHEDULER = paddle.optimizer.lr.LRScheduler


def check_options(options: TrainingOptions) -> None:
    """Refuse what cannot be meant so, before the first batch.

    Raises:
        UsageError: the sentence says which option, and what to pass instead.
    """
    model, optimizer = options.model, options.optimizer
    refuse_static_mode()
    if not isinstance(model, paddle.nn.Layer):
        remedy = "Pass the model object itself, for example resumable_fit(MyModel(), …)"
        inner = ": that is model.network of a paddle.Model." if isinstance(model, paddle.Model) else "."
        raise wrong_kind("model", model, "paddle.nn.Layer", remedy + inner)
    if not isinstance(optimizer, paddle.optimizer.Optimizer):
        remedy = "Pass an optimizer object, for example paddle.optimizer.AdamW(parameters=model.parameters())."
        raise wrong_kind("optimizer", optimizer, "paddle.optimizer.Optimizer", remedy)
    check_held(model.parameters(), held_parameters(optimizer))
    check_one_loss(optimizer)
    check_functions(options)
    _check_scheduler(optimizer, options.scheduler)
    if options.gradient_clip_val is not None and _clips(optimizer):
        raise UsageError(
            problem="Gradients would be clipped twice: by gradient_clip_val and by the optimizer's own grad_clip.",
            remedy="Leave out one of the two.",
        )


def held_parameters(optimizer: paddle.optimizer.Optimizer) -> list[Any]:
    """The parameters of now, of all groups: some may have been added since the start (unfreezing)."""
    entries = getattr(optimizer, "_param_groups", None) or optimizer._parameter_list or ()
    return [p for entry in entries for p in (entry["params"] if isinstance(entry, dict) else (entry,))]


def one_number(name: str, value: Any) -> Any:
    """`value` if it is a number or a tensor of one, for a running mean; nothing waits for the device.

    Raises:
        UsageError: it is anything else.
    """
    if not isinstance(value, paddle.Tensor):
        return as_number(name, value)
    if value.ndim:
        raise unfit_number(name, f"a tensor of shape {tuple(value.shape)}")
    return value


def refuse_loss(loss: Any, own_step: bool) -> UsageError:
    """Why a backward pass cannot start from this value."""
    if not isinstance(loss, paddle.Tensor):
        return unfit_loss(loss, None, own_step)
    if loss.ndim:
        return unfit_loss(loss, tuple(loss.shape), own_step)
    return no_gradient(own_step, ".detach(), .item(), .numpy(), paddle.no_grad() or argmax", "stop_gradient = True")


def _clips(optimizer: paddle.optimizer.Optimizer) -> bool:
    groups = getattr(optimizer, "_param_groups", None) or ()
    own = [group.get("grad_clip") for group in groups if isinstance(group, dict)]
    return any(clip is not None for clip in [getattr(optimizer, "_grad_clip", None), *own])


def _check_scheduler(optimizer: paddle.optimizer.Optimizer, scheduler: object) -> None:
    """In Paddle a scheduler acts on the one optimizer whose learning_rate it is: any other would change nothing."""
    own = optimizer._learning_rate
    if isinstance(own, _SCHEDULER) and scheduler is None:
        raise UsageError(
            problem=f"The optimizer's learning rate follows a {type(own).__name__}, which nobody would step.",
            remedy='Pass it as scheduler=… too (and scheduler_interval="step" if it counts steps, not epochs). '
            "One that you step yourself goes with a loop of your own, on colabkeep.Run.",
        )
    if isinstance(scheduler, _SCHEDULER) and own is not scheduler:
        raise UsageError(
            problem=f"The {type(scheduler).__name__} is not the learning rate of this optimizer, "
            "so it would change nothing.",
            remedy="Build the optimizer with it: paddle.optimizer.AdamW(learning_rate=scheduler, …), "
            "and pass the same object as scheduler=….",
        )

"""Schedulers and scalers: what they tell of themselves, and what they forget to tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle
from paddle.amp import AmpScaler
from paddle.optimizer.lr import LRScheduler

from colabkeep.frameworks.common.objects import restore_object
from colabkeep.frameworks.paddle.state.leaves import native
from colabkeep.vocabulary.state import Tree

__all__ = ["restore_helper", "restore_scheduler", "scheduler_state"]

_WARMED = "LinearWarmup_LR"  # under which LinearWarmup tells the state of the scheduler inside it


def scheduler_state(scheduler: LRScheduler) -> dict[str, Any]:
    """The state of a scheduler: its numbers, the schedulers inside it, and what else it tells.

    What it tells is not enough: CosineAnnealingWarmRestarts leaves out where in its cycle it is, and the best loss
    of a ReduceOnPlateau, a tensor, is told as a number, with which the next comparison is rounded differently.
    """
    own = {key: value for key, value in vars(scheduler).items() if _is_number(value)}
    inside = {key: scheduler_state(value) for key, value in vars(scheduler).items() if isinstance(value, LRScheduler)}
    told = {key: value for key, value in scheduler.state_dict().items() if key not in own and key != _WARMED}
    return {"own": own, "inside": inside, "told": told}


def restore_scheduler(scheduler: LRScheduler, state: Mapping[str, Any]) -> None:
    """Give a scheduler what `scheduler_state` told."""
    vars(scheduler).update(state["own"])
    for key, inner in state["inside"].items():
        restore_scheduler(vars(scheduler)[key], inner)
    if state["told"]:
        scheduler.set_state_dict({**scheduler.state_dict(), **state["told"]})


def _is_number(value: object) -> bool:
    return type(value) in (int, float) or isinstance(value, paddle.Tensor)


def restore_helper(target: Any, tree: Tree) -> None:
    """Hand a stored state to a scheduler, scaler or any other object.

    A scaler that was off has an empty state, which one that is on would refuse: it begins anew, as it would have there.
    """
    if isinstance(target, LRScheduler):
        restore_scheduler(target, native(tree["state"], devices=True))
    elif not (isinstance(target, AmpScaler) and not tree["state"]):
        restore_object(target, tree, lambda stored: native(stored, devices=True))

"""What torch's own helpers put into their state that is no state."""

from __future__ import annotations

from typing import Any

import torch

from colabkeep.frameworks.common.objects import restore_object
from colabkeep.frameworks.common.trees import FUNCTIONS
from colabkeep.frameworks.torch.state.leaves import native
from colabkeep.vocabulary.state import Tree

__all__ = ["restore_helper", "without_functions"]


def without_functions(state: Any) -> Any:
    """A scheduler's state without the functions that it was built with.

    Torch leaves out lambdas itself, and forgets others (SWALR.anneal_func before 2.6, OneCycleLR before
    2.2). The constructor has put them into the new scheduler already.
    """
    if isinstance(state, dict):
        return {key: without_functions(value) for key, value in state.items() if not isinstance(value, FUNCTIONS)}
    if isinstance(state, list):
        return [without_functions(value) for value in state]
    return state


def restore_helper(target: Any, tree: Tree) -> None:
    """Hand a stored state to a scheduler, scaler or any other object.

    A scaler that was off has an empty state, which one that is on would refuse: it begins anew, as it would have there.
    """
    if isinstance(target, torch.amp.GradScaler) and not tree["state"]:
        return
    restore_object(target, tree, lambda stored: native(stored, devices=True))

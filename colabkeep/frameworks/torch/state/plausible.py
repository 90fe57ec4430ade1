"""Is what is stored of one of torch's own optimizers of the kinds that it keeps? Else torch fails at its first step."""

from __future__ import annotations

from typing import Any

import torch

from colabkeep.frameworks.torch.state.leaves import native
from colabkeep.frameworks.torch.state.unguarded import is_torchs_own
from colabkeep.vocabulary.state import HostTensor, Tagged, Tree

__all__ = ["check_optimizer"]

_COUNTS = frozenset(("step", "eta", "mu", "mu_product", "func_evals", "n_iter"))  # a tensor, or a number
_TENSORS = frozenset(
    ("acc_delta", "ax", "exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "prev", "square_avg", "step_size", "sum")
)


def check_optimizer(optimizer: torch.optim.Optimizer, tree: Tree) -> None:
    """What an optimizer of another class keeps, and what somebody has added to one of torch's, nobody knows.

    Raises:
        ValueError: a setting, or an entry of a parameter's state, is of a kind that the class never has there.
    """
    if not is_torchs_own(optimizer):
        return
    for group, live in zip(tree["groups"], optimizer.param_groups, strict=False):
        for name, value in native(group["options"]).items():
            if name in optimizer.defaults and not (_alike(live[name], value) and _is_set(live[name], value)):
                raise ValueError(f"the setting {name} of an optimizer is {value!r:.80}")
    for name, entry in tree["state"].items():
        if not isinstance(entry, dict):
            raise ValueError(f"an optimizer's state of {name} is {entry!r:.80}")
        for key, value in entry.items():
            if not _fits(key, value):
                raise ValueError(f"{key} in an optimizer's state of {name} is {value!r:.80}")


def _fits(key: str, value: Tree) -> bool:
    if isinstance(value, HostTensor) or (isinstance(value, Tagged) and value.kind in ("torch.tensor", "torch.sparse")):
        return True
    return _is_number(value) if key in _COUNTS else key not in _TENSORS and (key != "momentum_buffer" or value is None)


def _alike(live: Any, stored: Any) -> bool:
    """May the one take the other's place? None leaves the choice to torch."""
    if live is None or stored is None:
        return isinstance(stored if live is None else live, (bool, int, float, str, type(None)))
    if isinstance(live, bool) or isinstance(stored, bool):
        return stored in (0, 1) and live in (0, 1)
    if isinstance(live, (tuple, list)):
        return isinstance(stored, (tuple, list)) and len(live) == len(stored) and all(map(_alike, live, stored))
    numbers = (int, float, torch.Tensor)
    return isinstance(stored, numbers if isinstance(live, numbers) else type(live))


def _is_set(live: Any, stored: Any) -> bool:
    """A number is never left to torch; one among several may be (Adafactor's eps)."""
    return stored is not None or not _is_number(live)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

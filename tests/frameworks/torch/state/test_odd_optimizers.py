"""Optimizers that were made without `super().__init__()`, as wrappers around another one often are."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import nn

from colabkeep.core.errors import NotStorable
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import captured, same_bits
from tests.frameworks.torch.state.trainings import WIDE, Training, finished

Parts = dict[str, Any]


class Wrapper(torch.optim.Optimizer):
    """Steps the optimizer that it has."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        self.base, self.param_groups, self.defaults = base, base.param_groups, base.defaults
        self.state: Any = defaultdict(dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        self.base.step(closure)


class Whole(Wrapper):
    """And tells its state."""

    def state_dict(self) -> Any:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.base.load_state_dict(state_dict)


def make(kind: type[Wrapper]) -> Parts:
    model = nn.Linear(WIDE, WIDE)
    return {"model": model, "optimizer": kind(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))}


def test_a_wrapper_that_tells_its_state_is_kept() -> None:
    """Its step cannot be heard; its saves are whole."""
    training = Training(make(Whole))
    training.step(2)
    for _ in range(3):
        capture, reference = training.save()
        training.step()
        assert same_bits(finished(capture), reference)
    later = make(Whole)
    framework, trees = TorchFramework(), captured(TorchFramework(), training.parts)
    assert list(framework.check(later, trees)) == []
    framework.restore(later, trees)
    assert same_bits(captured(TorchFramework(), later)["model"], trees["model"])
    momenta = [
        parts["optimizer"].base.state[parts["model"].weight]["momentum_buffer"] for parts in (training.parts, later)
    ]
    assert torch.equal(*momenta)


def test_a_wrapper_that_cannot_tell_its_state_is_refused() -> None:
    """In a sentence that says what to write, before training begins."""
    with pytest.raises(NotStorable, match="optimizer: Wrapper cannot tell its state") as refusal:
        TorchFramework().rehearse(make(Wrapper))
    assert "super().__init__(params, defaults)" in refusal.value.remedy

"""Optimizers around others: what the inner one keeps, what the two share, and states of another form."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn, optim

from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import captured

Parts = dict[str, Any]


class Around(optim.Optimizer):
    """As sharpness-aware minimization is written: steps another optimizer, with whose groups it shares its settings."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, options)
        self.base_optimizer = optim.SGD(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["old_p"] = parameter.detach().clone()
        self.base_optimizer.step()


class Relinking(Around):
    """And sees to it itself that loading does not part the two."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self.base_optimizer.param_groups = self.param_groups


class Halves(optim.Optimizer):
    """Tells its state in two halves, under names of its own."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.defaults, self.state = optimizer.defaults, optimizer.state
        self.count = 0

    def step(self, closure: Any = None) -> None:
        self.count += 1
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {"fast": self.optimizer.state_dict(), "slow": {"count": self.count}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict["fast"])
        self.count = state_dict["slow"]["count"]


def made(kind: type[Around]) -> Parts:
    model = nn.Linear(4, 2)
    return {"model": model, "optimizer": kind(model.parameters(), lr=0.1, momentum=0.9)}


def halves() -> Parts:
    model = nn.Linear(4, 2)
    return {"model": model, "optimizer": Halves(optim.SGD(model.parameters(), lr=0.1, momentum=0.9))}


def step(parts: Parts) -> None:
    parts["model"](torch.randn(8, 4)).square().mean().backward()
    parts["optimizer"].step()
    parts["model"].zero_grad()


def test_an_inner_optimizer_goes_on_with_its_momentum(continues: Any) -> None:
    """Torch's state_dict() of the outer one lacks it; both ways to load leave the two with one set of settings."""
    for kind in (Around, Relinking):
        later = continues(lambda kind=kind: made(kind), step)["optimizer"]
        later.param_groups[0]["lr"] = 0.01
        assert later.base_optimizer.param_groups[0]["lr"] == 0.01
        assert later.base_optimizer.state


def test_an_inner_optimizer_that_is_handed_in_too_goes_on(continues: Any) -> None:
    """Twice the same state does no harm, and what the two share is shared again."""
    for kind in (Around, Relinking):

        def make(kind: type[Around] = kind) -> Parts:
            parts = made(kind)
            return {**parts, "state.inner": parts["optimizer"].base_optimizer}

        later = continues(make, step)
        later["optimizer"].param_groups[0]["lr"] = 0.01
        assert later["state.inner"].param_groups[0]["lr"] == 0.01


def test_a_group_that_a_line_of_the_users_holds_stays_the_optimizers(resumed: Any) -> None:
    """`head = optimizer.param_groups[1]`, written above the run, sets the learning rate of a resumed optimizer too."""
    held: list[dict[str, Any]] = []

    def make() -> Parts:
        model = nn.Linear(4, 2)
        optimizer = optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], lr=0.1)
        held.append(optimizer.param_groups[1])
        return {"model": model, "optimizer": optimizer}

    before = make()
    before["optimizer"].param_groups[1]["lr"] = 0.25
    later = resumed(make, before)
    assert later["optimizer"].param_groups[1] is held[1]
    assert held[1]["lr"] == 0.25


def test_a_checkpoint_of_before_resumes_without_the_inner_state() -> None:
    """Earlier versions stored none: nothing is missing that they had."""
    parts = made(Around)
    step(parts)
    trees = captured(TorchFramework(), parts)
    del trees["optimizer"]["inner"]
    later, framework = made(Around), TorchFramework()
    assert list(framework.check(later, trees)) == []
    framework.restore(later, trees)
    assert not later["optimizer"].base_optimizer.state


def test_an_inner_optimizer_that_is_gone_is_a_difference() -> None:
    """Its momentum would be dropped in silence."""
    parts = made(Around)
    trees = captured(TorchFramework(), parts)
    del parts["optimizer"].base_optimizer
    told = list(TorchFramework().check(parts, trees))
    assert told == ["optimizer: it had an optimizer inside, base_optimizer, and has none there now."]


def test_a_state_in_another_form_than_torchs_goes_on(continues: Any) -> None:
    """As of Lookahead in its many copies: asked for, stored as it is told, and handed back."""
    later = continues(halves, step)["optimizer"]
    assert later.count > 0
    assert later.optimizer.state


def test_a_state_in_another_form_is_no_state_of_torchs_own() -> None:
    """An optimizer of another kind in its place is refused, in both directions."""
    odd, plain = halves(), halves()
    plain["optimizer"] = optim.SGD(plain["model"].parameters(), lr=0.1, momentum=0.9)
    for stored, handed_in in ((odd, plain), (plain, odd)):
        told = list(TorchFramework().check(handed_in, captured(TorchFramework(), stored)))
        assert any("SGD" in line and "Halves" in line for line in told), told

"""The code at the top of an epoch runs again when the run goes on in its middle: what it does is undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as lrs

from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import Keeper, captured, same_bits

Parts = dict[str, Any]


class Meter:
    """A running mean, as scripts have it."""

    def __init__(self) -> None:
        self.total, self.taken = torch.zeros(2), 0

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "nested": [{"count": 3}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total, self.taken = state["total"], self.taken + 1


def trained(steps: int = 3) -> Parts:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.4), nn.Linear(4, 2))
    optimizer = optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[3].parameters(), "lr": 0.3}], lr=0.1, momentum=0.9
    )
    meter = Meter()
    meter.total += 7
    parts = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": lrs.StepLR(optimizer, 2),
        "state.meter": meter,
        "state.plain": Keeper({"best": 0.5, "generator": torch.Generator().manual_seed(8)}),
    }
    for _ in range(steps):
        step(parts)
    model[1].eval()
    model[2].p = 0.1
    model[3].bias.requires_grad_(False)
    return parts


def step(parts: Parts) -> None:
    parts["optimizer"].zero_grad(set_to_none=False)
    parts["model"](torch.randn(5, 3)).square().mean().backward()
    parts["optimizer"].step()
    parts["scheduler"].step()


TOPS: dict[str, Callable[[Parts], object]] = {
    "adjust_learning_rate": lambda parts: [
        group.update(lr=group["lr"] * 0.1) for group in parts["optimizer"].param_groups
    ],
    "scheduler.step()": lambda parts: parts["scheduler"].step(),
    "model.train()": lambda parts: parts["model"].train(),
    "freeze": lambda parts: [p.requires_grad_(False) for p in parts["model"].parameters()],
    "unfreeze": lambda parts: [p.requires_grad_(True) for p in parts["model"].parameters()],
    "dropout": lambda parts: setattr(parts["model"][2], "p", parts["model"][2].p * 0.5),
    "meter.reset()": lambda parts: parts["state.meter"].total.zero_(),
    "draw": lambda parts: torch.rand(1, generator=parts["state.plain"].value["generator"]),
    "reset statistics": lambda parts: parts["model"][1].reset_running_stats(),
    "zero_grad": lambda parts: parts["optimizer"].zero_grad(),
    "group as a generator": lambda parts: parts["optimizer"].add_param_group(
        {"params": parts["model"][3].parameters(), "lr": 9.0}
    ),
    "group of one tensor": lambda parts: parts["optimizer"].add_param_group({"params": parts["model"][0].weight}),
    "nothing": lambda parts: None,
}


@pytest.mark.parametrize("top", TOPS)
def test_what_the_top_of_an_epoch_does_is_undone(top: str) -> None:
    """It stands in the checkpoint already; twice would be once too often."""
    parts, reference = trained(), trained()
    back = TorchFramework().remember(parts)
    TOPS[top](parts)
    assert back() is None
    assert same_bits(captured(TorchFramework(), parts), captured(TorchFramework(), reference))
    assert "add_param_group" not in vars(parts["optimizer"])
    modes = [[each.training for each in one["model"].modules()] for one in (parts, reference)]
    trains = [[each.requires_grad for each in one["model"].parameters()] for one in (parts, reference)]
    assert modes[0] == modes[1]
    assert trains[0] == trains[1]
    assert parts["model"][2].p == 0.1
    for each in (parts, reference):
        torch.manual_seed(0)
        step(each)
    assert same_bits(captured(TorchFramework(), parts), captured(TorchFramework(), reference))


def test_an_object_that_nobody_changed_is_not_given_its_state() -> None:
    """Taking a state may have effects: an iterator that begins again."""
    parts = trained()
    TorchFramework().remember(parts)()
    assert parts["state.meter"].taken == 0


def test_a_weight_that_was_changed_is_named_and_left() -> None:
    """Weights are not copied for this; that they changed is known, and is for the run to tell."""
    parts = trained()
    back = TorchFramework().remember(parts)
    with torch.no_grad():
        parts["model"][0].weight.mul_(0.5)
    told = back()
    assert told is not None
    assert "model.0.weight" in told
    assert "model.3" not in told


def test_a_group_that_is_new_is_added() -> None:
    """Only one that is there is not added twice."""
    parts, extra = trained(), nn.Linear(2, 2)
    back = TorchFramework().remember(parts)
    parts["optimizer"].add_param_group({"params": extra.parameters(), "lr": 0.5})
    back()
    assert [group["lr"] for group in parts["optimizer"].param_groups][1:] == [
        parts["optimizer"].param_groups[1]["lr"],
        0.5,
    ]
    parts["optimizer"].add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(ValueError, match="more than one"):
        parts["optimizer"].add_param_group({"params": extra.parameters()})


def test_an_optimizer_that_has_a_method_of_its_own_keeps_it() -> None:
    """Somebody else may stand there, too."""
    parts, calls = trained(), []
    vars(parts["optimizer"])["add_param_group"] = own = calls.append
    back = TorchFramework().remember(parts)
    parts["optimizer"].add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    back()
    assert vars(parts["optimizer"])["add_param_group"] is own
    assert len(calls) == 1


def test_what_is_large_is_not_copied() -> None:
    """A replay buffer of gigabytes: there may be no room for another one. The numbers beside it go back."""
    large = torch.zeros(2**24 + 1)
    parts: Parts = {"state.replay": Keeper({"buffer": large, "filled": [1]})}
    back = TorchFramework().remember(parts)
    parts["state.replay"].value["filled"][0] = 0
    back()
    assert parts["state.replay"].value["buffer"] is large
    assert parts["state.replay"].value["filled"] == [1]

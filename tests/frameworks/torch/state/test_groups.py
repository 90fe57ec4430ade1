"""Parameter groups that are added in the middle of a training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as lrs

from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import captured, same_bits

Parts = dict[str, Any]
KINDS = {
    "SGD": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: optim.AdamW(parameters, lr=0.1, amsgrad=True),
}


def make(kind: str, *, groups: int = 1) -> Parts:
    """A head that is trained from the start, and two layers that may come later."""
    torch.manual_seed(2)
    model = nn.ModuleDict({name: nn.Linear(3, 3) for name in ("head", "middle", "bottom")})
    optimizer = KINDS[kind](model["head"].parameters())
    parts = {"model": model, "optimizer": optimizer, "scheduler": lrs.ExponentialLR(optimizer, 0.9)}
    for name in ("middle", "bottom")[: groups - 1]:
        unfreeze(parts, name)
    return parts


def unfreeze(parts: Parts, name: str) -> None:
    parts["optimizer"].add_param_group({"params": parts["model"][name].parameters(), "lr": 0.02, "initial_lr": 0.03})
    parts["scheduler"].base_lrs.append(0.03)


def train(parts: Parts, steps: int) -> None:
    for i in range(steps):
        torch.manual_seed(i)
        parts["optimizer"].zero_grad()
        x = torch.randn(4, 3)
        for name in ("bottom", "middle", "head"):
            x = parts["model"][name](x).tanh()
        x.square().mean().backward()
        parts["optimizer"].step()
        parts["scheduler"].step()


def resumed(before: Parts, live: Parts) -> Parts:
    framework, trees = TorchFramework(), captured(TorchFramework(), before)
    assert list(framework.check(live, trees)) == []
    framework.restore(live, trees)
    return live


def differences(before: Parts, live: Parts) -> list[str]:
    return list(TorchFramework().check(live, captured(TorchFramework(), before)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("built", [1, 2])
def test_a_group_that_was_added_is_added_again(kind: str, built: int) -> None:
    """The script builds what it built at first; options, state and order of the groups are those of the run."""
    before = make(kind)
    train(before, 2)
    unfreeze(before, "middle")
    train(before, 2)
    unfreeze(before, "bottom")
    train(before, 2)
    live = resumed(before, make(kind, groups=built))
    assert [group["lr"] for group in live["optimizer"].param_groups] == [
        group["lr"] for group in before["optimizer"].param_groups
    ]
    for each in (before, live):
        train(each, 3)
    assert same_bits(captured(TorchFramework(), live), captured(TorchFramework(), before))


@pytest.mark.parametrize("kind", KINDS)
def test_the_groups_are_in_the_order_of_the_run(kind: str) -> None:
    """Also where the script now begins with another of them."""
    before = make(kind, groups=3)
    train(before, 2)
    live = make(kind)
    live["optimizer"] = KINDS[kind](live["model"]["bottom"].parameters())
    live["scheduler"] = lrs.ExponentialLR(live["optimizer"], 0.9)
    resumed(before, live)
    names = {id(p): name for name, p in live["model"].named_parameters()}
    assert [names[id(g["params"][0])] for g in live["optimizer"].param_groups] == [
        "head.weight",
        "middle.weight",
        "bottom.weight",
    ]
    for each in (before, live):
        train(each, 3)
    one, other = (captured(TorchFramework(), each) for each in (live, before))
    groups = [tree["optimizer"].pop("groups") for tree in (one, other)]
    assert groups[0] == groups[1]  # the order of the options in a group means nothing
    assert same_bits(one, other)


def test_groups_with_the_names_of_their_parameters() -> None:
    """Newer versions of torch keep them, in all groups or in none."""
    before = make("SGD", groups=2)
    train(before, 1)
    live = make("SGD")
    try:
        live["optimizer"] = optim.SGD(live["model"]["head"].named_parameters(), lr=0.1, momentum=0.9)
    except TypeError:
        pytest.skip("this torch has no such names")
    live["scheduler"] = lrs.ExponentialLR(live["optimizer"], 0.9)
    resumed(before, live)
    assert live["optimizer"].param_groups[1]["param_names"] == ["middle.weight", "middle.bias"]


def test_a_group_of_parameters_that_no_model_has_is_refused_by_name() -> None:
    """Nobody could give them their values."""
    before, extra = make("SGD"), nn.Linear(3, 1)
    before["optimizer"].add_param_group({"params": [extra.weight], "lr": 0.1})
    (line,) = differences(before, make("SGD"))
    assert "it was given group1.0 in the training, and no model of this run" in line


def test_a_group_that_is_written_now_and_was_not_is_refused() -> None:
    """New objects with more groups than the run has are another optimizer."""
    assert "it had 1 parameter groups, and has 2 now" in differences(make("SGD"), make("SGD", groups=2))[0]


def test_a_parameter_that_moved_to_another_group_is_refused() -> None:
    """It would be in two."""
    before, live = make("SGD", groups=3), make("SGD")
    live["optimizer"] = KINDS["SGD"]([live["model"]["head"].weight, live["model"]["bottom"].weight])
    assert any("it had 3 parameter groups" in line for line in differences(before, live))


def test_a_group_that_came_after_the_checkpoint_is_let_go_from_objects_of_the_last_cell() -> None:
    """An earlier checkpoint, and the objects that have gone on from it in this process."""
    before = make("AdamW")
    train(before, 2)
    trees, live = captured(TorchFramework(), before), before
    settings = TorchFramework().settings(live)
    settings.begin(settings.written())
    unfreeze(live, "middle")
    train(live, 2)
    settings.leave("r", 4, failed=False)
    framework = TorchFramework()
    assert list(framework.check(live, trees)) == []
    framework.restore(live, trees)
    assert len(live["optimizer"].param_groups) == 1
    assert len(live["optimizer"].state) == 2
    assert same_bits(captured(TorchFramework(), live), trees)


def test_functions_for_groups_that_came_later_cannot_be_brought_back_and_that_is_said() -> None:
    """A LambdaLR that was given a function with the group."""
    before, live = make("SGD"), make("SGD")
    for each in (before, live):
        each["scheduler"] = lrs.LambdaLR(each["optimizer"], lambda epoch: 0.9**epoch)
    unfreeze(before, "middle")
    before["scheduler"].lr_lambdas.append(lambda epoch: 0.5**epoch)
    (line,) = differences(before, live)
    assert "functions for 2 parameter groups and has 1 now" in line

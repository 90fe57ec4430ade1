"""Schedulers, scalers and averages go on where they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as lrs
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import captured, same_bits

Parts = dict[str, Any]


def halved(epoch: int) -> float:
    return 0.5**epoch


class Decay:
    """A learning-rate function with state of its own: torch keeps the state of such objects."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return 0.9**self.calls


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lrs.StepLR(o, 2),
    "MultiStepLR": lambda o: lrs.MultiStepLR(o, [2, 4, 5]),
    "ConstantLR": lambda o: lrs.ConstantLR(o, total_iters=4),
    "LinearLR": lambda o: lrs.LinearLR(o, total_iters=5),
    "ExponentialLR": lambda o: lrs.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lrs.PolynomialLR(o, total_iters=7, power=1.5),
    "CosineAnnealingLR": lambda o: lrs.CosineAnnealingLR(o, 9),
    "CosineAnnealingWarmRestarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 3, T_mult=2),
    "OneCycleLR": lambda o: lrs.OneCycleLR(o, 0.3, total_steps=20),
    "OneCycleLR linear": lambda o: lrs.OneCycleLR(o, 0.3, total_steps=20, anneal_strategy="linear", three_phase=True),
    "CyclicLR": lambda o: lrs.CyclicLR(o, 0.01, 0.1, step_size_up=3, mode="exp_range", gamma=0.9),
    "CyclicLR own scale": lambda o: lrs.CyclicLR(o, 0.01, 0.1, step_size_up=3, scale_fn=halved),
    "LambdaLR": lambda o: lrs.LambdaLR(o, lambda epoch: 0.8**epoch),
    "LambdaLR with state": lambda o: lrs.LambdaLR(o, Decay()),
    "MultiplicativeLR": lambda o: lrs.MultiplicativeLR(o, lambda epoch: 0.95),
    "SWALR": lambda o: SWALR(o, swa_lr=0.01, anneal_epochs=5),
    "SWALR linear": lambda o: SWALR(o, swa_lr=0.01, anneal_epochs=5, anneal_strategy="linear"),
    "SequentialLR": lambda o: lrs.SequentialLR(
        o, [lrs.LinearLR(o, total_iters=2), lrs.LambdaLR(o, halved), lrs.MultiStepLR(o, [1, 2])], milestones=[2, 4]
    ),
    "ChainedScheduler": lambda o: lrs.ChainedScheduler([lrs.ConstantLR(o, total_iters=4), lrs.ExponentialLR(o, 0.9)]),
    "ReduceLROnPlateau": lambda o: lrs.ReduceLROnPlateau(o, patience=1, cooldown=1),
    "ReduceLROnPlateau max": lambda o: lrs.ReduceLROnPlateau(o, mode="max", threshold_mode="abs"),
}


def step(parts: Parts) -> None:
    parts["optimizer"].zero_grad()
    parts["model"](torch.randn(8, 3)).square().mean().backward()
    parts["optimizer"].step()
    plateau = isinstance(parts["scheduler"], lrs.ReduceLROnPlateau)
    parts["scheduler"].step(*([1.0] if plateau else []))


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:Please also save or load the state of the optimizer")
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # an older SequentialLR passes it itself
def test_the_schedule_goes_on(name: str, lr: Any, continues: Any) -> None:
    """Every learning rate after a resume is the one an uninterrupted run would have had."""
    rates: dict[int, list[float]] = {}

    def make() -> Parts:
        model = nn.Linear(3, 2)
        start = lr.clone() if isinstance(lr, torch.Tensor) else lr
        optimizer = optim.SGD([{"params": [p]} for p in model.parameters()], lr=start, momentum=0.9, foreach=False)
        scheduler = SCHEDULERS[name](optimizer)
        (group, _) = optimizer.param_groups
        if isinstance(lr, torch.Tensor) and group.get("initial_lr") is group["lr"]:
            pytest.skip("in this torch a schedule moves its own starting point, when the learning rate is a tensor")
        return {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    def noted(parts: Parts) -> None:
        step(parts)
        rates.setdefault(id(parts["optimizer"]), []).append(float(parts["optimizer"].param_groups[1]["lr"]))

    continues(make, noted, steps=4)
    uninterrupted, resumed = rates.values()
    assert uninterrupted[4:] == resumed


def test_every_scheduler_of_torch_is_tried() -> None:
    """A scheduler that a new torch brings is missed here, not by a user."""
    known = {name.split()[0] for name in SCHEDULERS} | {"LRScheduler", "_LRScheduler"}
    there = {name for name, kind in vars(lrs).items() if isinstance(kind, type) and issubclass(kind, lrs.LRScheduler)}
    assert there <= known


def test_functions_of_a_scheduler_are_left_to_its_constructor(framework: TorchFramework) -> None:
    """A plain function in a scheduler's state, at any depth, is not state."""
    optimizer = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler = lrs.StepLR(optimizer, 2)
    scheduler.anneal_func, scheduler.bound, scheduler.deep = halved, scheduler.get_lr, [{"fn": halved, "n": 1}]
    state = captured(framework, {"scheduler": scheduler})["scheduler"]["state"]
    assert "anneal_func" not in state
    assert "bound" not in state
    assert state["deep"] == [{"n": 1}]


def test_another_scheduler_is_refused(framework: TorchFramework) -> None:
    """Numbers of one schedule mean something else in another."""
    optimizer = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    trees = captured(framework, {"scheduler": lrs.StepLR(optimizer, 2)})
    lines = framework.check({"scheduler": lrs.ExponentialLR(optimizer, 0.9)}, trees)
    assert list(lines) == ["scheduler: the checkpoint was made with StepLR, this run uses ExponentialLR."]


def scaled_step(parts: Parts) -> None:
    loss = parts["model"](torch.randn(8, 3)).square().mean()
    parts["optimizer"].zero_grad()
    parts["scaler"].scale(loss).backward()
    if torch.rand(()) < 0.5:
        parts["model"].weight.grad.fill_(float("inf"))  # a step that the scaler skips
    parts["scaler"].step(parts["optimizer"])
    parts["scaler"].update()


def scaled(enabled: bool = True) -> Parts:
    model = nn.Linear(3, 2)
    return {
        "model": model,
        "optimizer": optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "scaler": torch.amp.GradScaler("cpu", enabled=enabled, init_scale=512.0, growth_interval=2),
    }


def test_the_loss_scale_goes_on(continues: Any) -> None:
    """Scale and growth count are those of the uninterrupted run, skipped steps included."""
    after = continues(scaled, scaled_step, steps=6)
    assert after["scaler"].get_scale() != 512.0


def test_a_scaler_that_was_off_may_be_on_now(framework: TorchFramework) -> None:
    """Resuming on a GPU that needs scaling what began on one that did not."""
    trees = captured(framework, scaled(enabled=False))
    after = scaled(enabled=True)
    assert list(framework.check(after, trees)) == []
    framework.restore(after, trees)
    assert after["scaler"].get_scale() == 512.0
    framework.restore(scaled(enabled=False), captured(framework, after))


@pytest.mark.parametrize("use_buffers", [True, False])
def test_the_averaged_model_goes_on(use_buffers: bool, continues: Any) -> None:
    """An exponential moving average keeps its weights, its buffers and its count."""

    def make() -> Parts:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
        return {"model": model, "optimizer": optim.SGD(model.parameters(), lr=0.1), "ema": ema}

    def averaged(parts: Parts) -> None:
        parts["optimizer"].zero_grad()
        parts["model"](torch.randn(8, 3)).square().mean().backward()
        parts["optimizer"].step()
        parts["ema"].update_parameters(parts["model"])

    after = continues(make, averaged)
    assert int(after["ema"].n_averaged) == 6


def test_state_that_already_is_a_copy_is_as_good(framework: TorchFramework) -> None:
    """An object of the user's own: tensors, generators and numbers, without any class of torch."""

    class Own:
        def __init__(self) -> None:
            self.shadow = [torch.zeros(3), None]
            self.generator = torch.Generator().manual_seed(3)
            self.score = float("nan")

        def state_dict(self) -> Any:
            return {"own": dict(self.__dict__)}

        def load_state_dict(self, state: Any) -> None:
            self.__dict__.update(state["own"])

    before = Own()
    before.shadow[0] += torch.randn(3, generator=before.generator)
    trees = captured(framework, {"own": before})
    after = Own()
    framework.restore({"own": after}, trees)
    assert same_bits(captured(framework, {"own": after}), trees)
    assert torch.equal(torch.randn(4, generator=after.generator), torch.randn(4, generator=before.generator))

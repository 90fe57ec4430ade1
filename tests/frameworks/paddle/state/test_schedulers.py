"""Schedulers, loss scalers and averages: what tells its own state, or forgets to."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import paddle
import pytest
from paddle import nn
from paddle.optimizer import lr

from colabkeep.frameworks.paddle.adapter import PaddleFramework
from colabkeep.testing.frameworks import Keeper, captured, same_bits

Parts = dict[str, Any]

LOSSES = (1.0, 0.9, 0.9, 0.95, 0.9, 0.91, 0.8, 0.8, 0.85, 0.8, 0.8, 0.8, 0.8, 0.79, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8)


def decay(epoch: int) -> float:
    return 0.95**epoch


SCHEDULERS: dict[str, Callable[[], Any]] = {
    "NoamDecay": lambda: lr.NoamDecay(64, 5, learning_rate=1.0),
    "PiecewiseDecay": lambda: lr.PiecewiseDecay([3, 6, 9], [0.1, 0.05, 0.02, 0.01]),
    "NaturalExpDecay": lambda: lr.NaturalExpDecay(0.5, 0.1),
    "InverseTimeDecay": lambda: lr.InverseTimeDecay(0.5, 0.1),
    "PolynomialDecay": lambda: lr.PolynomialDecay(0.5, 7, cycle=True),
    "LinearWarmup": lambda: lr.LinearWarmup(0.5, 8, 0.0, 0.5),
    "LinearWarmup of cosine": lambda: lr.LinearWarmup(lr.CosineAnnealingDecay(0.5, 6), 8, 0.0, 0.5),
    "LinearWarmup of restarts": lambda: lr.LinearWarmup(lr.CosineAnnealingWarmRestarts(0.5, 3, 2), 4, 0.0, 0.5),
    "ExponentialDecay": lambda: lr.ExponentialDecay(0.5, 0.9),
    "MultiStepDecay": lambda: lr.MultiStepDecay(0.5, [3, 7]),
    "StepDecay": lambda: lr.StepDecay(0.5, 3),
    "LambdaDecay": lambda: lr.LambdaDecay(0.5, decay),
    "ReduceOnPlateau": lambda: lr.ReduceOnPlateau(0.5, patience=1, cooldown=1),
    "CosineAnnealingDecay": lambda: lr.CosineAnnealingDecay(0.5, 6),
    "MultiplicativeDecay": lambda: lr.MultiplicativeDecay(0.5, decay),
    "OneCycleLR": lambda: lr.OneCycleLR(0.5, 30),
    "CyclicLR": lambda: lr.CyclicLR(0.1, 0.5, 4, 3),
    "LinearLR": lambda: lr.LinearLR(0.5, 9),
    "CosineAnnealingWarmRestarts": lambda: lr.CosineAnnealingWarmRestarts(0.5, 3, 2),
}


def rates(scheduler: Any, first: int, last: int) -> list[tuple[float, int]]:
    seen = []
    for i in range(first, last):
        if isinstance(scheduler, lr.ReduceOnPlateau):
            scheduler.step(paddle.to_tensor(LOSSES[i]))
        else:
            scheduler.step()
        seen.append((float(scheduler()), scheduler.last_epoch))
    return seen


@pytest.mark.parametrize("steps", [0, 1, 4, 8, 11])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_schedule_goes_on(name: str, steps: int, framework: PaddleFramework) -> None:
    """Stopped anywhere, every scheduler of Paddle gives the rates that it would have given."""
    before, later = SCHEDULERS[name](), SCHEDULERS[name]()
    rates(before, 0, steps)
    trees = captured(framework, {"scheduler": before})
    assert framework.check({"scheduler": later}, trees) == []
    framework.restore({"scheduler": later}, trees)
    assert float(later()) == float(before())
    assert rates(later, steps, len(LOSSES)) == rates(before, steps, len(LOSSES))


def test_the_best_loss_of_a_plateau_stays_a_tensor(framework: PaddleFramework) -> None:
    """The next comparison is rounded as it would have been."""
    before, later = SCHEDULERS["ReduceOnPlateau"](), SCHEDULERS["ReduceOnPlateau"]()
    rates(before, 0, 3)
    framework.restore({"scheduler": later}, captured(framework, {"scheduler": before}))
    assert type(later.best) is type(before.best) is paddle.Tensor
    assert (later.best.dtype, later.best.item()) == (before.best.dtype, before.best.item())


def test_every_scheduler_of_paddle_is_tried() -> None:
    """One that a new version brings is noticed here."""
    assert set(lr.__all__) - {"LRScheduler"} == {name.split()[0] for name in SCHEDULERS}


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_scheduler_in_the_optimizer_goes_on(handed_over: bool, continues: Any) -> None:
    """Paddle attaches it to the optimizer; handing it over as well restores it to the same place, not twice as far."""

    def make() -> Parts:
        model = nn.Linear(3, 2)
        scheduler = lr.CosineAnnealingWarmRestarts(0.5, 3, 2)
        parts: Parts = {
            "model": model,
            "optimizer": paddle.optimizer.Momentum(scheduler, parameters=model.parameters()),
        }
        return {**parts, "scheduler": scheduler} if handed_over else parts

    def step(parts: Parts) -> None:
        parts["optimizer"].clear_grad()
        parts["model"](paddle.randn([4, 3])).square().mean().backward()
        parts["optimizer"].step()
        parts["optimizer"]._learning_rate.step()

    later = continues(make, step, steps=4)
    assert later["optimizer"]._learning_rate.last_epoch == 8


class Sawtooth(lr.LRScheduler):
    """A user's own, with state that is no number."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        super().__init__(0.5)

    def state_keys(self) -> None:
        self.keys = ["last_epoch", "last_lr", "seen"]

    def get_lr(self) -> float:
        self.seen.append(self.base_lr / (1 + len(self.seen) % 3))
        return self.seen[-1]


def test_a_scheduler_of_the_users_own_goes_on(framework: PaddleFramework) -> None:
    """What its `state_keys` name is kept, whatever it is."""
    before, later = Sawtooth(), Sawtooth()
    rates(before, 0, 4)
    framework.restore({"scheduler": later}, captured(framework, {"scheduler": before}))
    assert later.seen == before.seen
    assert rates(later, 0, 4) == rates(before, 0, 4)


def test_another_scheduler_is_refused(framework: PaddleFramework) -> None:
    """It would take the numbers and mean something else by them."""
    trees = captured(framework, {"scheduler": lr.StepDecay(0.5, 3)})
    differences = framework.check({"scheduler": lr.ExponentialDecay(0.5, 0.9)}, trees)
    assert differences == ["scheduler: the checkpoint was made with StepDecay, this run uses ExponentialDecay."]


def scaler(on: bool) -> Any:
    """Paddle turns a scaler off where there is no GPU; its arithmetic runs on the CPU all the same."""
    if not on:
        return paddle.amp.GradScaler(enable=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = paddle.amp.GradScaler(init_loss_scaling=1024.0)
    made = SWITCHED_ON | {"_scale": paddle.to_tensor([1024.0])}
    for name in (
        "_found_inf",
        "_temp_found_inf_value_false",
        *(f"_temp_found_inf_{t}" for t in ("fp16", "bf16", "fp32")),
    ):
        made[name] = paddle.to_tensor([False])
    vars(found).update(made)
    return found


SWITCHED_ON: dict[str, Any] = {
    "_enable": True, "_init_loss_scaling": 1024.0, "_incr_ratio": 2.0, "_decr_ratio": 0.5, "_incr_every_n_steps": 4,
    "_decr_every_n_nan_or_inf": 3, "_incr_count": 0, "_decr_count": 0, "_use_dynamic_loss_scaling": True,
    "_cache_found_inf": None,
}  # fmt: skip


def test_the_loss_scale_goes_on(framework: PaddleFramework) -> None:
    """Scale and counters: the next growth comes when it would have come, and the halving is as near."""

    def course(one: Any, finite: list[bool]) -> list[tuple[float, int, int]]:
        seen = []
        for good in finite:
            one._cache_found_inf = one._cache_founf_inf = not good  # as Paddle 2 spells it
            one._update()
            seen.append((one._scale.item(), one._incr_count, one._decr_count))
        return seen

    before, later = scaler(on=True), scaler(on=True)
    course(before, [True, True, True, True, False, True, True, True])
    framework.restore({"scaler": later}, captured(framework, {"scaler": before}))
    rest = [True, False, False, True, True, True, True]
    assert course(later, rest) == course(before, rest)
    assert later._scale.item() == 8192.0
    assert same_bits(captured(framework, {"scaler": later}), captured(framework, {"scaler": before}))


def test_a_scaler_that_was_off_may_be_on_now(framework: PaddleFramework) -> None:
    """From a machine without GPU to one with: it begins with its own scale."""
    trees = captured(framework, {"scaler": scaler(on=False)})
    later = scaler(on=True)
    assert framework.check({"scaler": later}, trees) == []
    framework.restore({"scaler": later}, trees)
    assert later._scale.item() == 1024.0


class Average:
    """An average as training kits for Paddle write it: its state is handed over by `set_state_dict`."""

    def __init__(self, model: nn.Layer) -> None:
        self.state = {name: value.clone() for name, value in model.state_dict().items()}
        self.step = 0

    def update(self, model: nn.Layer) -> None:
        self.step += 1
        for name, value in model.state_dict().items():
            self.state[name] = self.state[name] * 0.9 + value.detach() * 0.1

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state, "step": self.step}

    def set_state_dict(self, state: dict[str, Any]) -> None:
        self.state, self.step = state["state"], state["step"]


def test_an_average_of_the_users_own_goes_on(continues: Any) -> None:
    """Whatever tells its state and takes it under Paddle's name for it."""

    def make() -> Parts:
        model = nn.Linear(3, 2)
        return {"model": model, "optimizer": paddle.optimizer.SGD(0.1, model.parameters()), "ema": Average(model)}

    def step(parts: Parts) -> None:
        parts["optimizer"].clear_grad()
        parts["model"](paddle.randn([4, 3])).square().mean().backward()
        parts["optimizer"].step()
        parts["ema"].update(parts["model"])

    later = continues(make, step)
    assert later["ema"].step == 6


def test_state_that_already_is_a_copy_is_as_good(framework: PaddleFramework) -> None:
    """A state_dict that clones its tensors each time is stored with this time's numbers."""
    keeper = Keeper([paddle.ones([2])])
    captured(framework, {"keeper": keeper})
    keeper.value = [paddle.full([2], 5.0)]
    later = Keeper()
    framework.restore({"keeper": later}, captured(framework, {"keeper": keeper}))
    assert later.value[0].tolist() == [5.0, 5.0]

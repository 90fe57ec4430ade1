"""Every optimizer goes on bit for bit, with its state found by the user's parameter names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import pytest
from paddle import nn
from paddle import optimizer as optim
from paddle.incubate import LookAhead, ModelAverage

from colabkeep.core.state import HostTensor
from colabkeep.frameworks.paddle.adapter import PaddleFramework
from colabkeep.frameworks.paddle.restore import create_accumulators
from colabkeep.testing.frameworks import captured, same_bits, tensors_of

Parts = dict[str, Any]
Build = Callable[[Any], Any]

OPTIMIZERS: dict[str, Build] = {
    "SGD": lambda p: optim.SGD(0.05, p),
    "SGD with decay": lambda p: optim.SGD(0.05, p, weight_decay=0.01),
    "Momentum": lambda p: optim.Momentum(0.05, 0.9, p, use_nesterov=True),
    "Momentum together": lambda p: optim.Momentum(0.05, 0.9, p, use_multi_tensor=True),
    "Adam": lambda p: optim.Adam(0.01, parameters=p),
    "Adam together": lambda p: optim.Adam(0.01, parameters=p, use_multi_tensor=True),
    "AdamW": lambda p: optim.AdamW(0.01, parameters=p),
    "AdamW named": lambda p: optim.AdamW(0.01, parameters=p, name="mine"),
    "AdamW clipped by global norm": lambda p: optim.AdamW(0.01, parameters=p, grad_clip=nn.ClipGradByGlobalNorm(0.1)),
    "SGD clipped by norm": lambda p: optim.SGD(0.05, p, grad_clip=nn.ClipGradByNorm(0.1)),
    "SGD clipped by value": lambda p: optim.SGD(0.05, p, grad_clip=nn.ClipGradByValue(0.01)),
    "Adam with L1 decay": lambda p: optim.Adam(0.01, parameters=p, weight_decay=paddle.regularizer.L1Decay(0.01)),
    "Adamax": lambda p: optim.Adamax(0.01, parameters=p),
    "Adagrad": lambda p: optim.Adagrad(0.01, parameters=p),
    "Adadelta": lambda p: optim.Adadelta(0.01, parameters=p),
    "RMSProp": lambda p: optim.RMSProp(0.01, parameters=p, momentum=0.5, centered=True),
    "Lamb": lambda p: optim.Lamb(0.01, parameters=p),
    "LBFGS": lambda p: optim.LBFGS(0.5, max_iter=3, history_size=3, line_search_fn="strong_wolfe", parameters=p),
    "LookAhead": lambda p: LookAhead(optim.Adam(0.01, parameters=p), alpha=0.5, k=2),
}
if hasattr(optim, "NAdam"):  # since Paddle 3
    OPTIMIZERS |= {
        "Adam amsgrad": lambda p: optim.Adam(0.01, parameters=p, amsgrad=True),
        "NAdam": lambda p: optim.NAdam(0.01, parameters=p),
        "RAdam": lambda p: optim.RAdam(0.01, parameters=p),
        "ASGD": lambda p: optim.ASGD(0.01, 2, p),
        "Rprop": lambda p: optim.Rprop(0.01, parameters=p, learning_rate_range=(1e-4, 0.1)),
    }
NAMES = list(OPTIMIZERS)
pytestmark = [  # Paddle's own optimizers, at each step: LBFGS, LookAhead
    pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Op .* is executed through `append_op`:DeprecationWarning"),
]


def net() -> nn.Layer:
    return nn.Sequential(("first", nn.Linear(4, 6)), ("act", nn.Tanh()), ("second", nn.Linear(6, 2)))


def maker(build: Build) -> Callable[[], Parts]:
    def make() -> Parts:
        model = net()
        return {"model": model, "optimizer": build(model.parameters())}

    return make


def step(parts: Parts) -> None:
    model, optimizer = parts["model"], parts["optimizer"]
    x = paddle.randn([8, 4])

    def closure() -> Any:
        optimizer.clear_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    if isinstance(optimizer, optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


def test_every_optimizer_of_paddle_is_tried() -> None:
    """One that a new version brings is noticed here. All run on the CPU; LBFGS wants a closure, and gets one."""
    tried = {name.split()[0] for name in NAMES}
    assert set(optim.__all__) - {"Optimizer"} <= tried


@pytest.mark.parametrize("name", NAMES)
def test_the_optimizer_continues_with_the_same_bits(name: str, continues: Any) -> None:
    """Resumed in a model that was built again in the same notebook, it takes the steps it would have taken."""
    continues(maker(OPTIMIZERS[name]), step)


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_that_has_not_stepped_yet_continues(name: str, continues: Any) -> None:
    """A checkpoint from before the first step, when state does not exist yet, resumes too."""
    continues(maker(OPTIMIZERS[name]), step, steps=0)


def test_the_average_of_the_weights_goes_on(continues: Any) -> None:
    """ModelAverage, Paddle's own running average, is an optimizer that only watches."""

    def make() -> Parts:
        model = net()
        return {
            "model": model,
            "optimizer": optim.SGD(0.05, model.parameters()),
            "ema": ModelAverage(0.5, model.parameters(), min_average_window=2, max_average_window=4),
        }

    def watched(parts: Parts) -> None:
        parts["optimizer"].clear_grad()
        parts["model"](paddle.randn([8, 4])).square().mean().backward()
        parts["optimizer"].step()
        parts["ema"].step()

    later = continues(make, watched)
    with later["ema"].apply(need_restore=True):
        averaged = later["model"].first.weight.clone()
    assert not paddle.equal_all(averaged, later["model"].first.weight)


class Scale(nn.Layer):
    """Half-precision weights that a CPU can train: its matrix products have no kernel for them."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.factor = self.create_parameter([4], default_initializer=nn.initializer.Normal())
        self.to(dtype=dtype)

    def forward(self, x: Any) -> Any:
        return x * self.factor.astype(x.dtype)


@pytest.mark.parametrize("name", ["SGD", *(name for name in ("Rprop",) if hasattr(optim, name))])
def test_master_weights_go_on(name: str, continues: Any) -> None:
    """Multi-precision training loses no bits of its float32 weights."""

    def make() -> Parts:
        model = Scale("bfloat16")
        kind = getattr(optim, name)
        return {"model": model, "optimizer": kind(0.01, parameters=model.parameters(), multi_precision=True)}

    later = continues(make, step)
    tree = captured(PaddleFramework(), later)["optimizer"]
    assert tree["masters"]["model.factor"].dtype == "F32"


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Momentum", "Lamb"])
def test_master_weights_of_optimizers_that_need_a_gpu_are_found_by_name(name: str, resumed: Any) -> None:
    """Their float32 weights and moments, in the form they have before a first step, which no kernel here can take."""

    def make() -> Parts:
        model = Scale("float16")
        optimizer = getattr(optim, name)(parameters=model.parameters(), multi_precision=True)
        create_accumulators(optimizer, model.parameters())
        for entries in (optimizer._master_weights, *optimizer._accumulators.values()):
            for tensor in entries.values():
                tensor.set_value(paddle.rand(tensor.shape))
        return {"model": model, "optimizer": optimizer}

    def bare() -> Parts:
        model = Scale("float16")
        return {"model": model, "optimizer": getattr(optim, name)(parameters=model.parameters(), multi_precision=True)}

    before = make()
    for fresh in (make, bare):
        later = resumed(fresh, before)
        assert same_bits(captured(PaddleFramework(), later), captured(PaddleFramework(), before))
        (master,) = later["optimizer"]._master_weights.values()
        (moment,) = next(iter(later["optimizer"]._accumulators.values())).items()
        assert moment[0] == master.name


def test_groups_keep_their_settings(continues: Any) -> None:
    """Decay and learning rate of each group, also one that was changed on the way."""

    def make() -> Parts:
        model = net()
        groups = [
            {"params": model.first.parameters(), "learning_rate": 0.1},
            {"params": model.second.parameters(), "weight_decay": 0.5},
        ]
        return {"model": model, "optimizer": optim.AdamW(0.01, parameters=groups)}

    def changed(parts: Parts) -> None:
        step(parts)
        for group in parts["optimizer"]._param_groups:
            group["weight_decay"] = 0.25
        group = parts["optimizer"]._param_groups[0]
        group["learning_rate"] = 0.3
        for parameter in group["params"]:
            parameter.optimize_attr["learning_rate"] = 0.3

    later = continues(make, changed)
    assert later["model"].first.weight.optimize_attr["learning_rate"] == 0.3


def test_a_learning_rate_set_by_hand_is_kept(continues: Any) -> None:
    """`optimizer.set_lr` in the middle of a training holds after the resume."""

    def halving(parts: Parts) -> None:
        step(parts)
        parts["optimizer"].set_lr(parts["optimizer"].get_lr() / 2)

    later = continues(maker(OPTIMIZERS["SGD"]), halving)
    assert later["optimizer"].get_lr() == 0.05 / 2**6


def test_no_name_that_paddle_generates_is_stored(framework: PaddleFramework) -> None:
    """The state is under the names that the user sees in `named_parameters()`."""
    parts = maker(OPTIMIZERS["AdamW"])()
    step(parts)
    tree = captured(framework, parts)["optimizer"]
    assert list(tree["state"]) == [f"model.{name}" for name, _ in parts["model"].named_parameters()]
    assert set(tree["state"]["model.first.weight"]) == {"moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc"}
    assert parts["model"].first.weight.name not in repr(tree)


def test_parameters_in_another_order_keep_their_own_state(framework: PaddleFramework) -> None:
    """State goes by name: handing over the parameters in another order changes nothing."""
    before = maker(OPTIMIZERS["AdamW"])()
    step(before)
    model = net()
    after = {"model": model, "optimizer": optim.AdamW(0.01, parameters=model.parameters()[::-1])}
    trees = captured(framework, before)
    later = PaddleFramework()
    assert later.check(after, trees) == []
    later.restore(after, trees)
    mine, theirs = captured(later, after)["optimizer"]["state"], trees["optimizer"]["state"]
    assert {name: bytes(entry["moment1"].data) for name, entry in mine.items()} == {
        name: bytes(entry["moment1"].data) for name, entry in theirs.items()
    }


def test_state_that_was_loaded_and_not_used_yet_is_not_lost(continues: Any) -> None:
    """An optimizer that the user gave an old state, saved before it takes its first step."""
    old = maker(OPTIMIZERS["AdamW"])()
    for _ in range(2):
        step(old)
    told = {key: value.clone() if isinstance(value, paddle.Tensor) else value for key, value in told_by(old).items()}

    def make() -> Parts:
        return maker(OPTIMIZERS["AdamW"])()

    parts = make()
    names = zip(old["model"].parameters(), parts["model"].parameters(), strict=True)
    renamed = {one.name: other.name for one, other in names}
    parts["optimizer"].set_state_dict(
        {renamed[next(name for name in renamed if key.startswith(f"{name}_"))] + suffix(key, renamed): value
         for key, value in told.items()}
    )  # fmt: skip
    assert not parts["optimizer"]._accumulators
    trees = captured(PaddleFramework(), parts)
    later = make()
    PaddleFramework().restore(later, trees)
    assert same_bits(captured(PaddleFramework(), later), trees)
    for each in (parts, later):
        paddle.seed(3)
        step(each)
    assert same_bits(captured(PaddleFramework(), later), captured(PaddleFramework(), parts))


def told_by(parts: Parts) -> dict[str, Any]:
    told: dict[str, Any] = parts["optimizer"].state_dict()
    return told


def suffix(key: str, names: dict[str, str]) -> str:
    return next(key.removeprefix(name) for name in names if key.startswith(f"{name}_"))


def test_parameters_that_no_layer_holds_are_kept_with_the_optimizer(continues: Any) -> None:
    """A bare parameter, trained beside the model, goes on too."""

    def make() -> Parts:
        model = net()
        bare = paddle.create_parameter([2], "float32", default_initializer=nn.initializer.Normal())
        return {"model": model, "optimizer": optim.Adam(0.01, parameters=[*model.parameters(), bare])}

    def stepped(parts: Parts) -> None:
        bare = parts["optimizer"]._parameter_list[-1]
        parts["optimizer"].clear_grad()
        (parts["model"](paddle.randn([8, 4])) + bare).square().mean().backward()
        parts["optimizer"].step()

    continues(make, stepped)


def test_two_optimizers_over_one_model_continue(continues: Any) -> None:
    """As a GAN has them. Paddle counts their state up under the same names; each finds its own."""

    def make() -> Parts:
        model = net()
        return {
            "model": model,
            "first": optim.Adam(0.01, parameters=model.parameters()),
            "second": optim.Adam(0.02, parameters=model.parameters()),
        }

    def both(parts: Parts) -> None:
        step({"model": parts["model"], "optimizer": parts["first"]})
        step({"model": parts["model"], "optimizer": parts["second"]})

    continues(make, both)


@pytest.mark.parametrize("zero", [True, False])
def test_a_parameter_that_some_steps_do_not_use_moves_as_it_would_have(zero: bool, resumed: Any) -> None:
    """By a gradient of zero, as `clear_grad()` leaves it, Adam's moments move it on; without a gradient it stays."""

    def make() -> Parts:
        model = net()
        return {"model": model, "optimizer": optim.Adam(0.01, parameters=model.parameters())}

    def first_only(parts: Parts) -> None:
        parts["model"].first(paddle.randn([8, 4])).square().mean().backward()
        parts["optimizer"].step()
        parts["optimizer"].clear_grad(set_to_zero=zero)

    parts = make()
    step(parts)
    parts["optimizer"].clear_grad(set_to_zero=zero)
    later = resumed(make, parts)
    before = later["model"].second.weight.clone()
    for each in (parts, later):
        paddle.seed(3)
        first_only(each)
    assert same_bits(captured(PaddleFramework(), later), captured(PaddleFramework(), parts))
    assert bool(paddle.equal_all(before, later["model"].second.weight)) is not zero


def test_a_layer_that_is_frozen_at_first_continues(resumed: Any) -> None:
    """Parameters without gradient have no state until they get one, after the resume."""

    def make() -> Parts:
        model = net()
        model.second.weight.stop_gradient = True
        return {"model": model, "optimizer": optim.Adam(0.01, parameters=model.parameters())}

    parts = make()
    step(parts)
    later = resumed(make, parts)
    assert "model.second.weight" not in captured(PaddleFramework(), later)["optimizer"]["state"]
    for each in (parts, later):
        each["model"].second.weight.stop_gradient = False
        paddle.seed(3)
        step(each)
    assert same_bits(captured(PaddleFramework(), later), captured(PaddleFramework(), parts))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda p: optim.SGD(0.1, p), "made with AdamW, this run uses SGD"),
        (lambda p: optim.AdamW(optim.lr.StepDecay(0.1, 3), parameters=p), "its learning rate was a number"),
        (lambda p: optim.AdamW(0.1, parameters=p[:1]), "group 0 trained model.first.bias"),
        (lambda p: optim.AdamW(0.1, parameters=[{"params": p[:2]}, {"params": p[2:]}]), "it had 1 parameter groups"),
    ],
    ids=["class", "schedule", "parameters", "groups"],
)
def test_another_optimizer_is_refused(build: Build, words: str, framework: PaddleFramework) -> None:
    """What does not fit is said in words before anything is touched."""
    before = maker(OPTIMIZERS["AdamW"])()
    step(before)
    trees = captured(framework, before)
    assert any(words in line for line in PaddleFramework().check(maker(build)(), trees))


def test_state_that_appears_or_is_replaced_is_seen(framework: PaddleFramework) -> None:
    """A plan made before the first step, or before a state was put in by hand, does not outlive it."""
    parts = maker(OPTIMIZERS["Adam"])()
    assert not tensors_of(captured(framework, parts)["optimizer"])
    step(parts)
    assert len(tensors_of(captured(framework, parts)["optimizer"])) == 16
    moments = parts["optimizer"]._accumulators["moment1"]
    name = parts["model"].first.bias.name
    moments[name] = paddle.full([6], 7.0)
    stored = captured(framework, parts)["optimizer"]["state"]["model.first.bias"]["moment1"]
    assert isinstance(stored, HostTensor)
    assert framework.native(stored).tolist() == [7.0] * 6


@pytest.mark.parametrize("name", ["SGD", "Adam", "LBFGS"])
@pytest.mark.parametrize("steps", [0, 2])
def test_an_optimizer_that_trained_on_goes_back(name: str, steps: int, framework: PaddleFramework) -> None:
    """The cell that resumes is run again, and the one that builds is not: the objects have stepped since."""
    parts = maker(OPTIMIZERS[name])()
    for _ in range(steps):
        step(parts)
    trees = captured(framework, parts)
    for _ in range(2):
        step(parts)
    framework.restore(parts, trees)
    assert same_bits(captured(framework, parts), trees)


def test_paddles_own_saving_works_after_a_resume(resumed: Any) -> None:
    """The restored state has Paddle's names in `optimizer.state_dict()`, each once, and a copy of it can be set."""
    before = maker(OPTIMIZERS["AdamW"])()
    step(before)
    later = resumed(maker(OPTIMIZERS["AdamW"]), before)
    told = later["optimizer"].state_dict()
    names = {parameter.name for parameter in later["model"].parameters()}
    assert len(told) == len(before["optimizer"].state_dict()) == 16
    assert {key for key in told if key.endswith("_moment1_0")} == {f"{name}_moment1_0" for name in names}
    later["optimizer"].set_state_dict({key: value.clone() for key, value in told.items()})
    assert same_bits(captured(PaddleFramework(), later), captured(PaddleFramework(), before))


def test_names_follow_the_parts(framework: PaddleFramework) -> None:
    """The same objects under another part's name: the state goes with the name of this save."""
    parts = maker(OPTIMIZERS["Adam"])()
    step(parts)
    captured(framework, parts)
    tree = captured(framework, {"net": parts["model"], "optimizer": parts["optimizer"]})["optimizer"]
    assert {name.partition(".")[0] for name in tree["state"]} == {"net"}

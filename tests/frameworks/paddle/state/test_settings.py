"""What Paddle's objects are set up with: read, compared with what was stored, moved by training, applied anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import pytest
from paddle import nn
from paddle.optimizer import lr

from colabkeep.core.settings import Change, changes
from colabkeep.frameworks.paddle.adapter import PaddleFramework
from colabkeep.testing.frameworks import Keeper, captured, same_bits

Parts = dict[str, Any]


def decay(epoch: int) -> float:
    return 0.95**epoch


SCHEDULERS: dict[str, Callable[[float], Any]] = {
    "NoamDecay": lambda rate: lr.NoamDecay(64, 5, learning_rate=rate),
    "PiecewiseDecay": lambda rate: lr.PiecewiseDecay([3, 6, 9], [rate, 0.05, 0.02, 0.01]),
    "NaturalExpDecay": lambda rate: lr.NaturalExpDecay(rate, 0.1),
    "InverseTimeDecay": lambda rate: lr.InverseTimeDecay(rate, 0.1),
    "PolynomialDecay": lambda rate: lr.PolynomialDecay(rate, 7, cycle=True),
    "LinearWarmup": lambda rate: lr.LinearWarmup(rate, 8, 0.0, 0.5),
    "LinearWarmup of cosine": lambda rate: lr.LinearWarmup(lr.CosineAnnealingDecay(rate, 6), 3, 0.0, 0.5),
    "ExponentialDecay": lambda rate: lr.ExponentialDecay(rate, 0.9),
    "MultiStepDecay": lambda rate: lr.MultiStepDecay(rate, [3, 7]),
    "StepDecay": lambda rate: lr.StepDecay(rate, 3),
    "LambdaDecay": lambda rate: lr.LambdaDecay(rate, decay),
    "CosineAnnealingDecay": lambda rate: lr.CosineAnnealingDecay(rate, 6),
    "OneCycleLR": lambda rate: lr.OneCycleLR(rate, 30),
    "CyclicLR": lambda rate: lr.CyclicLR(0.1, rate, 4, 3),
    "CosineAnnealingWarmRestarts": lambda rate: lr.CosineAnnealingWarmRestarts(rate, 3, 2),
    "ReduceOnPlateau": lambda rate: lr.ReduceOnPlateau(rate, patience=1),
}


def parts(rate: Any = 0.1, **options: Any) -> Parts:
    paddle.seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1D(4), nn.Dropout(0.3), nn.Linear(4, 2))
    optimizer = paddle.optimizer.AdamW(rate, parameters=model.parameters(), **options)
    found = {"model": model, "optimizer": optimizer}
    return {**found, "scheduler": rate} if isinstance(rate, lr.LRScheduler) else found


def train(live: Parts, steps: int) -> None:
    for _ in range(steps):
        live["model"](paddle.ones([4, 3])).square().mean().backward()
        live["optimizer"].step()
        live["optimizer"].clear_grad()
        if "scheduler" in live:
            live["scheduler"].step(*([1.0] if isinstance(live["scheduler"], lr.ReduceOnPlateau) else []))


def differing(then: Parts, now: Parts) -> list[Change]:
    return changes(*(PaddleFramework().settings(each).written() for each in (then, now)))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_what_a_schedule_counts_and_moves_is_no_setting_of_it(name: str) -> None:
    """Stepped or not, Paddle's own schedulers read alike, and the optimizers that others trained say nothing."""
    live = parts(SCHEDULERS[name](0.4))
    train(live, 5)
    assert differing(parts(SCHEDULERS[name](0.4)), live) == []


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (parts, lambda: parts(0.01), "optimizer.learning_rate: 0.1 → 0.01"),
        (parts, lambda: parts(beta1=0.8), "optimizer.beta1: 0.9 → 0.8"),
        (parts, lambda: parts(weight_decay=0.2), "optimizer.weight_decay: 0.01 → 0.2"),
        (lambda: parts(lr.StepDecay(0.1, 3)), lambda: parts(lr.StepDecay(0.1, 4)), "scheduler.step_size: 3 → 4"),
        (
            lambda: parts(lr.MultiStepDecay(0.1, [1, 2])),
            lambda: parts(lr.MultiStepDecay(0.1, [1, 3])),
            "scheduler.milestones: (1, 2) → (1, 3)",
        ),
        (
            lambda: {"optimizer": parts(lr.StepDecay(0.1, 3))["optimizer"]},
            lambda: {"optimizer": parts(lr.StepDecay(0.2, 3))["optimizer"]},
            "optimizer.learning_rate.base_lr: 0.1 → 0.2",
        ),
        (
            lambda: {"model": nn.Dropout(0.1)},
            lambda: {"model": nn.Dropout(0.2)},
            "model.p: 0.1 → 0.2",
        ),
        (
            lambda: {"model": nn.Sequential(nn.BatchNorm1D(2))},
            lambda: {"model": nn.Sequential(nn.BatchNorm1D(2, momentum=0.5))},
            "model.0._momentum: 0.9 → 0.5",
        ),
        (
            lambda: {"model": nn.Sequential(nn.ReLU())},
            lambda: {"model": nn.Sequential(nn.GELU())},
            "model.0: ReLU → GELU",
        ),
    ],
)
def test_what_they_were_built_with_is(before: Any, after: Any, line: str) -> None:
    """Options of optimizers, schedulers and layers, and the classes of layers."""
    assert line in [change.text for change in differing(before(), after())]


def test_a_decay_and_a_clipping_are_compared_although_they_are_objects() -> None:
    """By what they hold."""
    model = nn.Linear(2, 2)

    def sgd(decay: float, clip: float) -> Parts:
        clipping = nn.ClipGradByGlobalNorm(clip)
        return {"optimizer": paddle.optimizer.SGD(0.1, model.parameters(), paddle.regularizer.L2Decay(decay), clipping)}

    assert differing(sgd(0.1, 1.0), sgd(0.1, 1.0)) == []
    found = [change.text for change in differing(sgd(0.1, 1.0), sgd(0.2, 5.0))]
    assert len(found) == 2
    assert all("L2Decay" in text or "clip_norm=5.0" in text for text in found)


def applied(before: Parts, then: Parts, live: Parts) -> Parts:
    """New objects that take the state of others, and keep their own settings; `then`: as the run began."""
    framework, trees = PaddleFramework(), captured(PaddleFramework(), before)
    written, settings = framework.settings(then).written(), framework.settings(live)
    found = changes(written, settings.written())
    state = repr(vars(live["scheduler"])) if "scheduler" in live else ""
    assert list(settings.plan(found, trees)) == []
    assert state == (repr(vars(live["scheduler"])) if "scheduler" in live else "")
    framework.restore(live, trees)
    settings.settle(written, {}, new=found, kept=[])
    return live


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "ReduceOnPlateau"])
@pytest.mark.parametrize("count", [1, 5])
def test_a_new_rate_is_where_its_schedule_has_it_at_the_count_of_the_run(name: str, count: int) -> None:
    """The run counted with 0.4; with 0.6 it goes on as if it had counted with 0.6."""
    before, wanted = parts(SCHEDULERS[name](0.4)), SCHEDULERS[name](0.6)
    train(before, count)
    for _ in range(count):
        wanted.step()
    live = applied(before, parts(SCHEDULERS[name](0.4)), parts(SCHEDULERS[name](0.6)))
    for _ in range(5):
        assert (live["scheduler"](), live["scheduler"].last_epoch) == (wanted(), wanted.last_epoch)
        train(live, 1)
        wanted.step()


def test_a_rate_that_is_a_number_and_the_options_of_groups_are_set() -> None:
    """What was restored over them is new again; what was not changed stays as the run has it."""

    def grouped(rate: float, share: float) -> Parts:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        groups = [{"params": model[0].parameters(), "learning_rate": share}, {"params": model[1].parameters()}]
        return {"model": model, "optimizer": paddle.optimizer.Adam(rate, parameters=groups)}

    before = grouped(0.1, 0.5)
    train(before, 2)
    live = applied(before, grouped(0.1, 0.5), grouped(0.2, 0.25))
    assert live["optimizer"].get_lr() == pytest.approx(0.2)
    assert live["optimizer"]._param_groups[0]["learning_rate"] == 0.25
    assert live["model"][0].weight.optimize_attr["learning_rate"] == 0.25


def test_a_plateau_keeps_what_it_has_seen() -> None:
    """Its best and its bad epochs; a rate that is new is set."""
    before = parts(lr.ReduceOnPlateau(0.4, patience=9))
    train(before, 3)
    live = applied(
        before, parts(lr.ReduceOnPlateau(0.4, patience=9)), parts(lr.ReduceOnPlateau(0.4, patience=2, factor=0.5))
    )
    assert (live["scheduler"].num_bad_epochs, live["scheduler"].patience) == (2, 2)
    train(live, 1)
    assert live["scheduler"]() == 0.2
    other = applied(before, parts(lr.ReduceOnPlateau(0.4, patience=9)), parts(lr.ReduceOnPlateau(0.3, patience=9)))
    assert (other["scheduler"](), other["scheduler"].num_bad_epochs) == (0.3, 2)


def test_what_cannot_be_run_again_is_told_and_everything_is_as_it_was() -> None:
    """A schedule of the last cell, and one that is too short."""
    before = parts(lr.OneCycleLR(0.4, 30))
    train(before, 8)
    trees = captured(PaddleFramework(), before)
    written = PaddleFramework().settings(parts(lr.OneCycleLR(0.4, 30))).written()
    live = parts(lr.OneCycleLR(0.4, 5))
    settings, state = PaddleFramework().settings(live), repr(vars(live["scheduler"]))
    (line,) = settings.plan(changes(written, settings.written()), trees)
    assert "cannot take 8 steps" in line
    assert repr(vars(live["scheduler"])) == state
    before["scheduler"].total_steps = 60
    settings = PaddleFramework().settings(before)
    (line,) = settings.plan(changes(written, settings.written()), trees)
    assert "has counted to 8 already" in line


def test_what_is_kept_is_put_back() -> None:
    """Options that Paddle's own state does not tell, lists and texts of schedules, attributes of layers."""
    before, live = parts(lr.MultiStepDecay(0.4, [2, 3])), parts(lr.MultiStepDecay(0.4, [2, 9], gamma=0.7), beta1=0.5)
    live["model"][2].p = 0.8
    train(before, 1)
    framework, trees = PaddleFramework(), captured(PaddleFramework(), before)
    settings = framework.settings(live)
    written = framework.settings(parts(lr.MultiStepDecay(0.4, [2, 3]))).written()
    found = changes(written, settings.written())
    assert all(settings.keepable(change) for change in found)
    framework.restore(live, trees)
    settings.settle(written, {"model": {"modes": {"training": True, "others": []}}}, new=(), kept=found)
    assert (live["optimizer"]._beta1, live["model"][2].p) == (0.9, 0.3)
    assert (live["scheduler"].milestones, live["scheduler"].gamma) == ([2, 3], 0.1)
    paddle.seed(0)
    train(before, 3)
    paddle.seed(0)
    train(live, 3)
    assert same_bits(captured(PaddleFramework(), live)["model"], captured(PaddleFramework(), before)["model"])


def test_a_loss_is_described_with_the_weights_of_its_classes() -> None:
    """A layer without parameters."""
    one, other = (nn.CrossEntropyLoss(weight=paddle.to_tensor([1.0, each])) for each in (1.0, 2.0))
    items = [{"": PaddleFramework().described(each)} for each in (one, other)]
    assert [change.text for change in changes(*items)] == ["weight: (1.0, 1.0) → (1.0, 2.0)"]


def test_what_training_moved_in_layers_comes_back() -> None:
    """Dropout, a count, the mode of one layer, what is trained."""
    live, later = parts()["model"], parts()["model"]
    settings = PaddleFramework().settings({"model": live})
    settings.begin(settings.written())
    live[2].p, live.calls = 0.0, 7
    live[1].eval()
    live[0].weight.stop_gradient = True
    moved = settings.moved()
    again = PaddleFramework().settings({"model": later})
    again.settle(again.written(), moved, new=(), kept=())
    assert (later[2].p, later.calls, later[0].weight.stop_gradient) == (0.0, 7, True)
    assert [each.training for each in later] == [True, False, True, True]


TOPS: dict[str, Callable[[Parts], object]] = {
    "set_lr": lambda live: live["optimizer"].set_lr(0.001),
    "train": lambda live: live["model"].train(),
    "freeze": lambda live: [setattr(p, "stop_gradient", True) for p in live["model"].parameters()],
    "dropout": lambda live: setattr(live["model"][2], "p", 0.9),
    "statistics": lambda live: live["model"][1]._mean.set_value(paddle.ones([4])),
    "meter": lambda live: live["state.meter"].value["sum"].zero_(),
    "gradients": lambda live: [p.clear_gradient(False) for p in live["model"].parameters()],
    "nothing": lambda live: None,
}


@pytest.mark.parametrize("top", TOPS)
def test_what_the_top_of_an_epoch_does_is_undone(top: str) -> None:
    """It stands in the checkpoint already."""

    def trained() -> Parts:
        live = parts()
        live["state.meter"] = Keeper({"sum": paddle.ones([2]), "n": 3})
        train(live, 2)
        live["model"][1].eval()
        return live

    live, reference = trained(), trained()
    back = PaddleFramework().remember(live)
    TOPS[top](live)
    assert back() is None
    assert same_bits(captured(PaddleFramework(), live), captured(PaddleFramework(), reference))
    assert [each.training for each in live["model"]] == [each.training for each in reference["model"]]
    assert [p.stop_gradient for p in live["model"].parameters()] == [
        p.stop_gradient for p in reference["model"].parameters()
    ]
    assert live["model"][2].p == 0.3


def test_a_schedule_that_is_only_attached_goes_back_too() -> None:
    """scheduler.step() at the top of an epoch, the old way."""
    live = {"optimizer": parts(lr.StepDecay(0.4, 1))["optimizer"]}
    rate = live["optimizer"]._learning_rate
    back = PaddleFramework().remember(live)
    rate.step()
    assert back() is None
    assert (rate.last_epoch, rate()) == (0, 0.4)


def test_a_weight_that_was_changed_is_named() -> None:
    """It is seen by some of its numbers: Paddle's tensors do not tell when they are set."""
    live = parts()
    back = PaddleFramework().remember(live)
    live["model"][3].weight.set_value(paddle.zeros([4, 2]))
    told = back()
    assert told is not None
    assert "model.3.weight" in told


def test_modes_and_rates_that_changed_since_the_mark_are_taken_back(framework: PaddleFramework) -> None:
    """An interrupt in a validation, or at the top of an epoch."""
    live = parts()
    boundary = framework.boundary(live)
    live["model"][1].eval()
    boundary.mark()
    live["model"].eval()
    live["optimizer"].set_lr(0.5)
    boundary.rewind()
    boundary.close()
    assert [each.training for each in live["model"]] == [True, False, True, True]
    assert live["optimizer"].get_lr() == pytest.approx(0.1)


def test_objects_that_were_trained_are_known_again() -> None:
    """By the mark that a run leaves, and by their own state."""
    live = parts(lr.StepDecay(0.4, 3))
    settings = PaddleFramework().settings(live)
    assert list(settings.trained()) == []
    settings.begin(settings.written())
    train(live, 2)
    settings.leave("first", 2, failed=False)
    facts = PaddleFramework().settings(live).trained()
    assert facts[0] == "model holds the weights that the run 'first' had at step 2"
    assert facts[1:] == ["optimizer has the state of earlier steps", "scheduler has counted to 2"]
    assert differing(parts(lr.StepDecay(0.4, 3)), live) == []
    assert "_colabkeep_left" not in live["optimizer"].state_dict()

"""What torch's objects are set up with: read, compared with what was stored, moved by training, applied anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as lrs
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from colabkeep.core.settings import Change, changes
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import captured

Parts = dict[str, Any]
pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # an older SequentialLR's own


def faster(epoch: int) -> float:
    return 0.8**epoch


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
    "CyclicLR": lambda o: lrs.CyclicLR(o, 0.01, 0.1, step_size_up=3, mode="exp_range", gamma=0.9),
    "LambdaLR": lambda o: lrs.LambdaLR(o, faster),
    "MultiplicativeLR": lambda o: lrs.MultiplicativeLR(o, lambda epoch: 0.95),
    "SWALR": lambda o: SWALR(o, swa_lr=0.01, anneal_epochs=5),
    "SequentialLR": lambda o: lrs.SequentialLR(
        o, [lrs.LinearLR(o, total_iters=2), lrs.LambdaLR(o, faster), lrs.MultiStepLR(o, [1, 2])], milestones=[2, 4]
    ),
    "ChainedScheduler": lambda o: lrs.ChainedScheduler([lrs.ConstantLR(o, total_iters=4), lrs.ExponentialLR(o, 0.9)]),
    "ReduceLROnPlateau": lambda o: lrs.ReduceLROnPlateau(o, patience=1, cooldown=1),
}


def parts(schedule: Callable[[Any], Any], lr: float = 0.1) -> Parts:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=0.9, foreach=False)
    return {"model": model, "optimizer": optimizer, "scheduler": schedule(optimizer)}


def train(live: Parts, steps: int) -> None:
    for _ in range(steps):
        live["optimizer"].zero_grad()
        live["model"](torch.ones(2, 3)).square().mean().backward()
        live["optimizer"].step()
        live["scheduler"].step(*([1.0] if isinstance(live["scheduler"], lrs.ReduceLROnPlateau) else []))


def differing(then: Parts, now: Parts) -> list[Change]:
    return changes(*(TorchFramework().settings(each).written() for each in (then, now)))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_what_a_schedule_counts_and_moves_is_no_setting_of_it(name: str) -> None:
    """Stepped or not, torch's own schedulers read alike; nobody else is asked about the optimizer's rate."""
    fresh, live = parts(SCHEDULERS[name]), parts(SCHEDULERS[name])
    train(live, 5)
    assert [change for change in differing(fresh, live) if change.part != "optimizer"] == []
    assert differing(fresh, parts(SCHEDULERS[name])) == []


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (lambda o: lrs.StepLR(o, 2), lambda o: lrs.StepLR(o, 3), "scheduler.step_size: 2 → 3"),
        (lambda o: lrs.MultiStepLR(o, [2, 4]), lambda o: lrs.MultiStepLR(o, [2, 5]), "milestones: (2, 4) → (2, 5)"),
        (
            lambda o: lrs.LambdaLR(o, faster),
            lambda o: lrs.LambdaLR(o, lambda e: 0.7**e),
            "lr_lambdas(): 'faster' → '<lambda>'",
        ),
        (
            lambda o: lrs.OneCycleLR(o, 0.3, total_steps=20),
            lambda o: lrs.OneCycleLR(o, 0.3, total_steps=20, pct_start=0.5),
            "scheduler._schedule_phases[0].end_step: 5.0 → 9.0",
        ),
        (
            lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o), lrs.ExponentialLR(o, 0.9)], [2]),
            lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o), lrs.ExponentialLR(o, 0.8)], [2]),
            "scheduler._schedulers[1].gamma: 0.9 → 0.8",
        ),
        (
            lambda o: lrs.ReduceLROnPlateau(o, patience=3),
            lambda o: lrs.ReduceLROnPlateau(o, patience=4),
            "scheduler.patience: 3 → 4",
        ),
    ],
)
def test_what_it_was_built_with_is(before: Any, after: Any, line: str) -> None:
    """Attributes, milestones, functions, those of the schedulers inside it."""
    found = [change.text for change in differing(parts(before), parts(after))]
    assert any(line in text for text in found), found


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "ReduceLROnPlateau"])
@pytest.mark.parametrize("count", [1, 5])
def test_a_new_rate_is_where_its_schedule_has_it_at_the_count_of_the_run(name: str, count: int) -> None:
    """The run counted five steps with 0.1; with 0.4 it goes on as if it had counted them with 0.4."""
    before, wanted = parts(SCHEDULERS[name]), parts(SCHEDULERS[name], lr=0.4)
    train(before, count)
    train(wanted, count)
    live = applied(before, parts(SCHEDULERS[name], lr=0.4))
    for _ in range(4):
        assert options(live) == options(wanted)
        assert live["scheduler"].get_last_lr() == wanted["scheduler"].get_last_lr()
        train(live, 1)
        train(wanted, 1)


def applied(before: Parts, live: Parts) -> Parts:
    """New objects that take the state of others, and keep their own settings."""
    framework, trees = TorchFramework(), captured(TorchFramework(), before)
    then, settings = framework.settings(built_like(before)).written(), framework.settings(live)
    found = changes(then, settings.written())
    untouched = options(live), repr(live["scheduler"].state_dict())
    assert list(settings.plan(found, trees)) == []
    assert (options(live), repr(live["scheduler"].state_dict())) == untouched
    framework.restore(live, trees)
    settings.settle(then, {}, new=found, kept=[])
    return live


def built_like(before: Parts) -> Parts:
    """As `before` was when it was new, as far as the optimizer goes."""
    return {"model": before["model"], "optimizer": optim.SGD(before["model"].parameters(), lr=0.1, momentum=0.9)}


def options(live: Parts) -> list[dict[str, Any]]:
    return [{k: v for k, v in group.items() if k != "params"} for group in live["optimizer"].param_groups]


def test_a_rate_that_counts_itself_is_as_it_was_after_the_trial() -> None:
    """An object as learning rate: to find out what new settings mean must not move it."""

    class Decay:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, epoch: int) -> float:
            self.calls += 1
            return 0.9**self.calls

    before, wanted = parts(lambda o: lrs.LambdaLR(o, Decay())), parts(lambda o: lrs.LambdaLR(o, Decay()), lr=0.4)
    train(before, 3)
    train(wanted, 3)
    live = parts(lambda o: lrs.LambdaLR(o, Decay()), lr=0.4)
    calls = live["scheduler"].lr_lambdas[0].calls
    framework, trees = TorchFramework(), captured(TorchFramework(), before)
    settings = framework.settings(live)
    found = changes(framework.settings(built_like(before)).written(), settings.written())
    assert list(settings.plan(found, trees)) == []
    assert live["scheduler"].lr_lambdas[0].calls == calls
    framework.restore(live, trees)
    settings.settle({}, {}, new=found, kept=[])
    train(live, 2)
    train(wanted, 2)
    assert options(live) == options(wanted)


def test_two_schedules_of_one_optimizer_are_not_run_again() -> None:
    """Nobody knows in which order they were stepped."""
    before, live = (parts(lambda o: lrs.ExponentialLR(o, 0.9), lr=lr) for lr in (0.1, 0.2))
    for each in (before, live):
        each["state.warmup"] = lrs.LinearLR(each["optimizer"])
    framework, settings = TorchFramework(), TorchFramework().settings(live)
    found = changes(framework.settings(built_like(before)).written(), settings.written())
    (line,) = settings.plan(found, captured(framework, before))
    assert "in which order" in line


def test_an_option_that_no_schedule_knows_leaves_the_schedule_alone() -> None:
    """More weight decay, a rate that somebody else set: it stays set."""
    before = parts(SCHEDULERS["StepLR"])
    train(before, 5)
    before["optimizer"].param_groups[0]["lr"] = 0.07
    live = parts(SCHEDULERS["StepLR"])
    live["optimizer"].param_groups[0]["weight_decay"] = 0.5
    applied(before, live)
    assert (options(live)[0]["lr"], options(live)[0]["weight_decay"]) == (0.07, 0.5)
    assert live["scheduler"].last_epoch == 5


class Net(nn.Module):
    """With everything that a module may hold beside tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.3))
        self.twin = self.body[0]
        self.layer = nn.TransformerEncoderLayer(4, 2, activation=torch.nn.functional.gelu, batch_first=True)
        self.rate, self.sizes, self.shape, self.device = 0.5, [1, [2, 3]], (4, 5), "cuda:0"
        self.cache: dict[str, int] = {}
        self.plain_tensor = torch.ones(2)


def settled(live: nn.Module, moved: Mapping[str, Any], *, kept: Sequence[Change] = ()) -> None:
    settings = TorchFramework().settings({"model": live})
    settings.settle(TorchFramework().settings({"model": Net()}).written(), moved, new=(), kept=kept)


def watched(model: nn.Module) -> Any:
    settings = TorchFramework().settings({"model": model})
    settings.begin(settings.written())
    return settings


def test_plain_attributes_are_read_and_tensors_caches_and_hidden_ones_are_not() -> None:
    """Of torch's own classes all that is public, functions by name; of the user's all that is plain."""
    items = TorchFramework().settings({"model": Net()}).written()["model"]
    assert items[""].options == {"rate": 0.5, "sizes": [1, [2, 3]], "shape": (4, 5), "device": "cuda:0"}
    assert items["body.1"].options["momentum"] == 0.1
    assert items["body.2"].options == {"p": 0.3, "inplace": False}
    assert items["layer"].options["activation()"] == "torch._C._nn.gelu"
    assert "twin" not in items
    assert (items[""].sure, items["body.2"].sure) == (False, True)


def test_what_a_user_hangs_on_a_layer_of_torchs_own_is_of_unknown_meaning() -> None:
    """A temperature on a Sequential: told, while the layer's own rate is an error."""

    def made(temperature: float, p: float) -> Parts:
        model = nn.Sequential(nn.Dropout(p), nn.LSTM(2, 2, dropout=0.1, num_layers=2))
        model.temperature = model[0].temperature = temperature
        return {"model": model}

    found = {change.text: change.sure for change in differing(made(1.0, 0.5), made(2.0, 0.1))}
    assert found == {
        "model.temperature: 1.0 → 2.0": False,
        "model.0.temperature: 1.0 → 2.0": False,
        "model.0.p: 0.5 → 0.1": True,
    }
    items = TorchFramework().settings(made(1.0, 0.5)).written()["model"]
    assert items["1"].doubtful == ()
    assert set(items["1"].options) >= {"dropout", "num_layers", "batch_first", "bidirectional"}


def test_every_layer_of_torch_has_its_attributes_from_its_class() -> None:
    """Were one not seen, a change of it would be told only."""
    made = [
        nn.Conv2d(1, 1, 3, padding_mode="reflect"), nn.BatchNorm2d(1), nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.PReLU(),
        nn.ReLU(inplace=True), nn.GELU("tanh"), nn.Dropout2d(0.2), nn.Embedding(3, 2, padding_idx=1), nn.GRU(2, 2),
        nn.MultiheadAttention(2, 1), nn.TransformerDecoderLayer(2, 1), nn.Upsample(scale_factor=2), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.LeakyReLU(0.2), nn.Softmax(1), nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.InstanceNorm1d(2), nn.Flatten(), nn.PixelShuffle(2), nn.ConvTranspose1d(1, 1, 2), nn.Bilinear(1, 1, 1),
    ]  # fmt: skip
    items = TorchFramework().settings({"model": nn.ModuleList(made)}).written()["model"]
    assert {name: item.doubtful for name, item in items.items() if item.doubtful} == {}


def test_what_was_not_moved_is_not_kept() -> None:
    """Nothing but the modes, whatever there is; setting the same again is no move."""
    model = Net()
    settings = watched(model)
    model.rate, model.sizes, model.shape = 0.25 * 2, [1, [2, 3]], (4, 5)
    assert settings.moved() == {"model": {"modes": {"training": True, "others": []}}}


def test_what_was_moved_is_kept_and_comes_back_into_a_new_model() -> None:
    """Numbers, lists, members of lists, attributes that were not there; modes; what is trained. Not a device's name."""
    model = Net()
    settings = watched(model)
    model.rate, model.shape, model.device = 0.1, (6,), "cuda:7"
    model.sizes[1].append(4)
    model.body[2].p = 0.0
    model.seen = 3
    model.body[1].eval()
    model.body[0].weight.requires_grad_(False)
    moved = settings.moved()
    assert moved["model"]["attributes"] == {
        "": {"rate": 0.1, "sizes": [1, [2, 3, 4]], "shape": (6,), "seen": 3},
        "body.2": {"p": 0.0},
    }
    later = Net()
    alias = later.sizes
    settled(later, moved)
    assert (later.rate, later.sizes, later.shape, later.seen, later.body[2].p) == (0.1, [1, [2, 3, 4]], (6,), 3, 0.0)
    assert later.sizes is alias
    assert later.device == "cuda:0"
    assert [name for name, each in later.named_modules() if not each.training] == ["body.1"]
    assert [name for name, each in later.named_parameters() if not each.requires_grad] == ["body.0.weight"]
    assert TorchFramework().settings({"model": later}).moved() != {}


def test_a_list_that_changed_inside_was_moved() -> None:
    """It is the same object as before, and not the same list."""
    model = Net()
    settings = watched(model)
    model.sizes[1].append(4)
    assert settings.moved()["model"]["attributes"] == {"": {"sizes": [1, [2, 3, 4]]}}


def test_what_had_not_been_moved_yet_goes_back_to_what_was_written() -> None:
    """Objects of the last cell, and an earlier checkpoint."""
    live = Net()
    settings = watched(live)
    live.rate, live.body[2].p = 0.1, 0.0
    live.body.eval()
    live.body[0].bias.requires_grad_(False)
    settings.leave("r", 5, failed=False)
    assert (
        changes(
            watched(Net()).moved() and TorchFramework().settings({"model": Net()}).written(),
            TorchFramework().settings({"model": live}).written(),
        )
        == []
    )
    settled(live, {"model": {"modes": {"training": True, "others": []}}})
    assert (live.rate, live.body[2].p) == (0.5, 0.3)
    assert all(each.training for each in live.modules())
    assert all(each.requires_grad for each in live.parameters())


def test_the_rule_of_an_average_is_a_setting() -> None:
    """Its decay stands in a function's closure."""
    fast, slow = (AveragedModel(nn.Linear(1, 1), multi_avg_fn=get_ema_multi_avg_fn(decay)) for decay in (0.9, 0.99))
    assert [change.text for change in differing({"ema": fast}, {"ema": slow})] == [
        "ema.multi_avg_fn.func().decay: 0.9 → 0.99"
    ]


def test_kernels_and_names_are_no_settings() -> None:
    """Which kernel runs is for the device to say."""
    model = nn.Linear(1, 1)
    one, other = ({"optimizer": optim.AdamW(model.parameters(), foreach=each)} for each in (True, False))
    assert differing(one, other) == []


def test_a_rate_that_is_a_tensor_is_the_number_in_it() -> None:
    """On whatever device."""
    one, other = ({"optimizer": optim.AdamW(nn.Linear(1, 1).parameters(), lr=torch.tensor(lr))} for lr in (0.5, 0.25))
    assert [change.text for change in differing(one, other)] == ["optimizer.lr: 0.5 → 0.25"]


def test_of_an_optimizer_that_others_trained_nobody_knows_what_was_written() -> None:
    """A state loaded from a file of the user's own has the rate of that day."""
    model = nn.Linear(2, 1)
    fresh, live = ({"optimizer": optim.SGD(model.parameters(), lr=0.1, momentum=0.9)} for _ in range(2))
    model(torch.ones(1, 2)).sum().backward()
    live["optimizer"].step()
    live["optimizer"].param_groups[0]["lr"] = 0.001
    assert differing(fresh, live) == []

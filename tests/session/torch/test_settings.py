"""The same cell with another learning rate: nothing that was written is ignored, and nothing is lost by it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as lrs

import colabkeep
from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.core.events import Event, Noted, RestoredInexactly
from colabkeep.core.manifest import Manifest
from tests.trainings.torch import hard_training

Words = dict[str, Any]


class Net(nn.Module):
    """Two layers, with all that a notebook changes between them."""

    def __init__(self, p: float = 0.2, act: nn.Module | None = None, momentum: float = 0.1) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8, momentum=momentum)
        self.act = act or nn.ReLU()
        self.drop = nn.Dropout(p)
        self.second = nn.Linear(8, 2)
        self.temperature = 1.0
        self.calls = 0
        self.folder = "/content/data"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (n, 4) → (n, 2)."""
        self.calls += 1
        result: torch.Tensor = self.second(self.drop(self.act(self.norm(self.first(x))))) / self.temperature
        return result


def smoothed(label_smoothing: float) -> Callable[..., torch.Tensor]:
    return lambda output, target: F.cross_entropy(output, target, label_smoothing=label_smoothing)


def cell(folder: Path, **changes: Any) -> Words:
    """The arguments of a user's cell, everything built anew: as functions where a test changes them."""
    torch.manual_seed(3)
    words: Words = {
        "model": Net,
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "scheduler": lambda optimizer: lrs.CosineAnnealingLR(optimizer, T_max=2),
        "loss_fn": F.cross_entropy,
        "batch_size": 4,
        "run_name": "r",
        "storage": folder,
        "progress": False,
        "max_epochs": 2,
    }
    words |= changes
    data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.arange(16) % 2)
    batches = words.pop("batch_size")
    words["train_loader"] = torch.utils.data.DataLoader(data, batches, shuffle=True)
    words["model"] = words["model"]()
    words["optimizer"] = words["optimizer"](words["model"])
    if words["scheduler"] is not None:
        words["scheduler"] = words["scheduler"](words["optimizer"])
    return words


def fit(folder: Path, **changes: Any) -> Any:
    return colabkeep.resumable_fit(**cell(folder, **changes))


def refused(folder: Path, **changes: Any) -> Incompatible:
    with pytest.raises(Incompatible) as caught:
        fit(folder, **changes)
    return caught.value


def sgd(**options: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), **{"lr": 0.01, "momentum": 0.9, **options})


CHANGES = {
    "lr": ({"optimizer": sgd(lr=0.0001)}, ["optimizer.lr: 0.01 → 0.0001"]),
    "momentum": ({"optimizer": sgd(momentum=0.5)}, ["optimizer.momentum: 0.9 → 0.5"]),
    "weight decay": ({"optimizer": sgd(weight_decay=0.1)}, ["optimizer.weight_decay: 0 → 0.1"]),
    "nesterov": ({"optimizer": sgd(nesterov=True)}, ["optimizer.nesterov: False → True"]),
    "schedule": ({"scheduler": lambda o: lrs.CosineAnnealingLR(o, T_max=6)}, ["scheduler.T_max: 2 → 6"]),
    "dropout": ({"model": lambda: Net(p=0.5)}, ["model.drop.p: 0.2 → 0.5"]),
    "batch norm": ({"model": lambda: Net(momentum=0.3)}, ["model.norm.momentum: 0.1 → 0.3"]),
    "activation": ({"model": lambda: Net(act=nn.GELU())}, ["model.act: ReLU → GELU"]),
    "batch size": ({"batch_size": 8}, ["batch_size: 4 → 8"]),
    "accumulation": ({"accumulate_grad_batches": 2}, ["accumulate_grad_batches: 1 → 2"]),
    "clipping": ({"gradient_clip_val": 1.0}, ["gradient_clip_val: None → 1.0"]),
    "precision": ({"precision": "bf16-mixed"}, ["precision: 'auto' → 'bf16-mixed'"]),
    "interval": ({"scheduler_interval": "step"}, ["scheduler_interval: 'epoch' → 'step'"]),
    "loss": (
        {"loss_fn": nn.CrossEntropyLoss()},
        ["loss_fn: torch.nn.functional.cross_entropy → CrossEntropyLoss"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_training_is_an_error_that_says_from_what_to_what(tmp_path: Path, change: str) -> None:
    """It lists exactly what was changed, offers three ways on, and has touched nothing."""
    changes, lines = CHANGES[change]
    fit(tmp_path, max_epochs=1)
    words = cell(tmp_path, **changes)
    before = {name: value.clone() for name, value in words["model"].state_dict().items()}
    with pytest.raises(Incompatible) as caught:
        colabkeep.resumable_fit(**words)
    assert list(caught.value.differences) == lines
    assert all(way in caught.value.remedy for way in ('on_change="keep"', 'on_change="apply"', "run_name"))
    assert all(value.equal(before[name]) for name, value in words["model"].state_dict().items())
    assert not words["optimizer"].state
    assert fit(tmp_path).epochs == 2  # the cell as it was goes on


def test_everything_that_changed_is_in_one_list(tmp_path: Path) -> None:
    """The settings, and what never fitted: nobody finds out one by one."""
    fit(tmp_path, max_epochs=1)
    lines = refused(
        tmp_path, optimizer=sgd(lr=0.1), batch_size=8, model=lambda: Net(p=0.5), gradient_clip_val=1.0, seed=4
    ).differences
    for wanted in (
        "lr: 0.01 → 0.1",
        "batch_size: 4 → 8",
        "drop.p: 0.2 → 0.5",
        "gradient_clip_val: None → 1.0",
        "seed was 0",
    ):
        assert any(wanted in line for line in lines), wanted


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), "loss_fn.label_smoothing: 0.0 → 0.1"),
        (
            nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0])),
            nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])),
            "loss_fn.weight: (1.0, 1.0) → (1.0, 3.0)",
        ),
        (
            functools.partial(F.cross_entropy, label_smoothing=0.1),
            functools.partial(F.cross_entropy, label_smoothing=0.2),
            "loss_fn.label_smoothing: 0.1 → 0.2",
        ),
        (smoothed(0.1), smoothed(0.2), "loss_fn.label_smoothing: 0.1 → 0.2"),
        (lambda o, t: F.cross_entropy(o, t) * 0.5, lambda o, t: F.cross_entropy(o, t) * 0.7, "0.5"),
        (lambda o, t: F.cross_entropy(o, t) + 0.5, lambda o, t: F.cross_entropy(o, t) - 0.5, "loss_fn: its code"),
        (lambda o, t: F.cross_entropy(o, t) + 0, lambda o, t: F.multi_margin_loss(o, t) + 0, "multi_margin_loss"),
    ],
)
def test_another_loss_is_found_in_whatever_way_it_is_written(
    tmp_path: Path, before: Any, after: Any, line: str
) -> None:
    """A module, a partial, a closure, a constant in a lambda, another operator, another function."""
    fit(tmp_path, max_epochs=1, loss_fn=before)
    assert any(line in each for each in refused(tmp_path, loss_fn=after).differences)
    assert fit(tmp_path, loss_fn=before).epochs == 2


def test_a_step_function_is_compared_as_a_loss_is(tmp_path: Path) -> None:
    """With the loss that it names, wherever that stands."""
    criterion = nn.CrossEntropyLoss()

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = criterion(model(batch[0]), batch[1])
        return loss

    fit(tmp_path, max_epochs=1, loss_fn=None, step_fn=step)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.3)
    found = refused(tmp_path, loss_fn=None, step_fn=step).differences
    assert list(found) == ["step_fn.criterion.label_smoothing: 0.0 → 0.3"]


def test_what_may_change_freely_is_no_matter(tmp_path: Path) -> None:
    """How much is kept, how often it is saved, who listens, how long it trains."""
    events: list[Event] = []
    fit(tmp_path, max_epochs=1)
    words = cell(
        tmp_path, keep_last=3, keep_best=2, monitor="train_loss", save_every=2, max_epochs=3, scheduler_interval="epoch"
    )
    words["callbacks"] = (events.append,)
    words["train_loader"] = torch.utils.data.DataLoader(words["train_loader"].dataset, 4, shuffle=True, num_workers=1)
    assert colabkeep.resumable_fit(**words).epochs == 3
    assert not [event for event in events if isinstance(event, RestoredInexactly)]


def test_objects_of_the_last_cell_are_no_change(
    tmp_path: Path, kit: SimpleNamespace, whole: Callable[..., Any]
) -> None:
    """The cell with the training alone, run again and again: what the schedule moved was not written by anybody."""
    words = hard_training(epochs=kit.EPOCHS)
    for end in (7, 8, 20, None):
        kit.fit(tmp_path, **words, max_steps=end)
    assert kit.state(tmp_path, "r") == whole()


def test_what_training_moves_in_the_model_is_no_change(tmp_path: Path) -> None:
    """Counters and a curriculum, in objects of the last cell and, after a step that failed, ahead of the checkpoint."""
    words = cell(tmp_path, max_epochs=4)
    model, calls = words["model"], [0]

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        model.drop.p = 0.2 + model.calls / 1000
        calls[0] += 1
        if calls[0] == 7:
            raise RuntimeError("out of luck")
        return F.cross_entropy(output, target)

    words["loss_fn"] = loss
    with pytest.raises(RuntimeError, match="out of luck"):
        colabkeep.resumable_fit(**words)
    assert colabkeep.resumable_fit(**words).epochs == 4


def test_a_live_optimizer_that_was_edited_by_hand_is_a_change(tmp_path: Path) -> None:
    """A line in a cell of its own, and the training cell again."""
    words = cell(tmp_path, scheduler=None, max_epochs=1)
    colabkeep.resumable_fit(**words)
    words["optimizer"].param_groups[0]["lr"] = 0.0001
    with pytest.raises(Incompatible, match=r"lr: 0\.01 → 0\.0001"):
        colabkeep.resumable_fit(**{**words, "max_epochs": 2})


def test_an_attribute_of_unknown_meaning_is_told_and_stops_nobody(tmp_path: Path) -> None:
    """Of the user's own class only the user knows what an attribute does."""

    def other() -> Net:
        model = Net()
        model.folder, model.temperature = "/kaggle/input", 2.0
        return model

    events: list[Event] = []
    fit(tmp_path, max_epochs=1)
    words = cell(tmp_path, model=other, callbacks=(events.append,))
    assert colabkeep.resumable_fit(**words).epochs == 2
    (note,) = [event.text for event in events if isinstance(event, Noted) and "differ" in event.text]
    assert "model.temperature: 1.0 → 2.0" in note
    assert "model.folder: '/content/data' → '/kaggle/input'" in note
    assert (words["model"].temperature, words["model"].folder) == (2.0, "/kaggle/input")


class TestKeep:
    """on_change="keep": the values that the run began with win."""

    def test_the_run_ends_as_if_nothing_had_been_changed(self, tmp_path: Path) -> None:
        """Learning rate, schedule and dropout of the cell are left aside, and that is told."""
        events: list[Event] = []
        for folder in ("whole", "parts"):
            fit(tmp_path / folder, max_epochs=2, scheduler=lambda o: lrs.StepLR(o, 1))
        changed = {
            "optimizer": sgd(lr=3.0, weight_decay=0.1),
            "scheduler": lambda o: lrs.StepLR(o, 7, gamma=0.3),
            "model": lambda: Net(p=0.9),
        }
        kept = fit(tmp_path / "parts", max_epochs=4, on_change="keep", callbacks=(events.append,), **changed)
        assert kept.epochs == 4
        fit(tmp_path / "whole", max_epochs=4, scheduler=lambda o: lrs.StepLR(o, 1))
        one, other = (colabkeep.load_weights("r", storage=tmp_path / name) for name in ("whole", "parts"))
        assert all(value.equal(other[name]) for name, value in one.items())
        (note,) = [event.text for event in events if isinstance(event, Noted) and "keep" in event.text]
        assert "lr: 0.01 → 3.0" in note
        fit(tmp_path / "parts", max_epochs=5, scheduler=lambda o: lrs.StepLR(o, 1))  # what was written stays

    def test_what_cannot_be_put_back_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        """Code is not stored: a loss, a batch size, a class."""
        fit(tmp_path, max_epochs=1)
        error = refused(
            tmp_path,
            on_change="keep",
            loss_fn=nn.MSELoss(),
            batch_size=8,
            optimizer=sgd(lr=1.0),
            model=lambda: Net(act=nn.GELU()),
        )
        assert len(error.differences) == 3
        assert all(line.endswith("(cannot be restored)") for line in error.differences)
        assert "run_name" in error.remedy


class TestApply:
    """on_change="apply": the new values win, from here on."""

    def test_a_longer_schedule_is_longer_and_does_not_climb_again(self, tmp_path: Path) -> None:
        """max_epochs 2 → 6 with T_max 2 → 6: the rates of the rest are those of a schedule of six from its start."""
        events: list[Event] = []
        fit(tmp_path)
        longer = {"scheduler": lambda o: lrs.CosineAnnealingLR(o, T_max=6), "max_epochs": 6}
        result = fit(tmp_path, on_change="apply", callbacks=(events.append,), **longer)
        reference = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
        schedule, rates = lrs.CosineAnnealingLR(reference, T_max=6), []
        for _ in range(6):
            rates.append(reference.param_groups[0]["lr"])
            reference.step()
            schedule.step()
        assert [record["lr"] for record in result.history][2:] == rates[2:]
        (note,) = [event.text for event in events if isinstance(event, Noted) and "apply" in event.text]
        assert "scheduler.T_max: 2 → 6" in note
        assert "step 8" in note

    def test_the_new_values_are_those_that_were_written_from_then_on(self, tmp_path: Path) -> None:
        """The cell as it is now goes on without the word; the one of before is the change now."""
        fit(tmp_path, max_epochs=1)
        changed = {"optimizer": sgd(lr=0.1), "batch_size": 8, "model": lambda: Net(p=0.5)}
        fit(tmp_path, on_change="apply", max_epochs=2, **changed)
        assert fit(tmp_path, max_epochs=3, **changed).epochs == 3
        assert any("lr: 0.1 → 0.01" in line for line in refused(tmp_path, max_epochs=4).differences)

    def test_a_rate_without_a_schedule_is_set_and_moments_stay(self, tmp_path: Path) -> None:
        """Only what was changed is new: the momentum buffers are those of the run."""
        fit(tmp_path, scheduler=None, max_epochs=1)
        words = cell(tmp_path, scheduler=None, optimizer=sgd(lr=0.5, weight_decay=0.1), on_change="apply", max_epochs=2)
        words["callbacks"] = ((seen := []).append,)
        colabkeep.resumable_fit(**words)
        group = words["optimizer"].param_groups[0]
        assert (group["lr"], group["weight_decay"], group["momentum"]) == (0.5, 0.1, 0.9)
        assert any(isinstance(event, Noted) and "optimizer.lr: 0.01 → 0.5" in event.text for event in seen)

    def test_a_scheduler_of_another_class_takes_the_count(self, tmp_path: Path) -> None:
        """A cosine instead of steps, in the middle: it is where it would have been."""
        fit(tmp_path, max_epochs=3, scheduler=lambda o: lrs.StepLR(o, 1, gamma=0.5))
        assert "StepLR → CosineAnnealingLR" in str(refused(tmp_path, max_epochs=4))
        words = cell(tmp_path, max_epochs=4, on_change="apply", scheduler=lambda o: lrs.CosineAnnealingLR(o, T_max=8))
        result = colabkeep.resumable_fit(**words)
        assert words["scheduler"].last_epoch == 4
        assert result.history[3]["lr"] == pytest.approx(
            0.01 * (1 + torch.cos(torch.tensor(3 / 8 * torch.pi)).item()) / 2
        )

    def test_a_plateau_keeps_what_it_has_seen(self, tmp_path: Path) -> None:
        """Its best and its bad epochs are the run's; how patient it is and by how much it reduces are new."""

        def plateau(**options: Any) -> Callable[[torch.optim.Optimizer], lrs.ReduceLROnPlateau]:
            return lambda optimizer: lrs.ReduceLROnPlateau(optimizer, threshold=1e9, threshold_mode="abs", **options)

        fit(tmp_path, max_epochs=3, scheduler=plateau(patience=100))
        words = cell(tmp_path, max_epochs=4, on_change="apply", scheduler=plateau(patience=2, factor=0.5))
        result = colabkeep.resumable_fit(**words)
        assert words["optimizer"].param_groups[0]["lr"] == 0.005  # the third bad epoch, after two before
        assert words["scheduler"].best == result.history[0]["train_loss"]

    def test_a_schedule_of_the_last_cell_is_not_run_again_and_the_remedy_says_so(self, tmp_path: Path) -> None:
        """It has counted already: it cannot be at its beginning."""
        words = cell(tmp_path, max_epochs=1)
        colabkeep.resumable_fit(**words)
        words["scheduler"].T_max = 9
        with pytest.raises(Incompatible, match="has counted to 1 already") as caught:
            colabkeep.resumable_fit(**{**words, "on_change": "apply", "max_epochs": 2})
        assert any("build the optimizer and the scheduler again" in line for line in caught.value.differences)

    def test_a_schedule_that_is_too_short_is_refused_before_anything_is_touched(self, tmp_path: Path) -> None:
        """A one-cycle of two steps cannot be stepped eight times."""
        fit(tmp_path, scheduler_interval="step", scheduler=lambda o: lrs.OneCycleLR(o, 0.1, total_steps=20))
        words = cell(
            tmp_path,
            max_epochs=3,
            scheduler_interval="step",
            scheduler=lambda o: lrs.OneCycleLR(o, 0.1, total_steps=2),
            on_change="apply",
        )
        before = dict(words["optimizer"].param_groups[0]), words["scheduler"].state_dict()
        with pytest.raises(Incompatible, match="cannot take 8 steps"):
            colabkeep.resumable_fit(**words)
        assert (dict(words["optimizer"].param_groups[0]), words["scheduler"].state_dict()) == before


def test_a_word_that_is_none_is_refused_before_anything_is_looked_at(tmp_path: Path) -> None:
    """A typing mistake, in both doors."""
    with pytest.raises(UsageError, match="on_change='ignore' is unknown"):
        fit(tmp_path, on_change="ignore")
    with pytest.raises(UsageError, match="on_change"):
        colabkeep.Run("r", model=Net(), storage=tmp_path, progress=False, on_change="always")  # type: ignore[arg-type]


def test_a_checkpoint_of_before_resumes_and_claims_nothing(tmp_path: Path) -> None:
    """It holds no settings but those that resumable_fit told then; from now on they are compared."""
    fit(tmp_path, max_epochs=1)
    for path in (tmp_path / "r" / "checkpoints").glob("*.json"):
        manifest = Manifest.from_bytes(path.read_bytes(), id=path.stem)
        parts = {name: part for name, part in manifest.parts.items() if name != "settings"}
        path.write_bytes(replace(manifest, parts=parts).to_bytes())
    assert list(refused(tmp_path, accumulate_grad_batches=2).differences) == ["accumulate_grad_batches: 1 → 2"]
    other = {"optimizer": sgd(lr=0.5), "model": lambda: Net(p=0.9)}
    assert fit(tmp_path, max_epochs=2, **other).epochs == 2
    assert any("drop.p: 0.9 → 0.2" in line for line in refused(tmp_path, max_epochs=3).differences)


def test_a_change_is_listed_once_where_the_average_is_a_copy_of_the_model(tmp_path: Path) -> None:
    """The dropout of the model, and not that of its exponential average besides."""

    def words(p: float) -> Words:
        words = cell(tmp_path, model=lambda: Net(p=p))
        return {**words, "ema": torch.optim.swa_utils.AveragedModel(words["model"])}

    colabkeep.resumable_fit(**words(0.2))
    with pytest.raises(Incompatible) as caught:
        colabkeep.resumable_fit(**{**words(0.5), "max_epochs": 3})
    assert list(caught.value.differences) == ["model.drop.p: 0.2 → 0.5"]
    average = words(0.5)
    colabkeep.resumable_fit(**{**average, "max_epochs": 3, "on_change": "keep"})
    assert (average["model"].drop.p, average["ema"].module.drop.p) == (0.2, 0.2)


def test_a_precision_that_is_chosen_by_the_device_is_told_and_no_error(tmp_path: Path) -> None:
    """ "auto" on another card: the user changed nothing, and the bits are others."""
    events: list[Event] = []
    fit(tmp_path, max_epochs=1)
    for path in (tmp_path / "r" / "checkpoints").glob("*.json"):
        manifest = Manifest.from_bytes(path.read_bytes(), id=path.stem)
        parts: dict[str, Any] = copy.deepcopy(dict(manifest.parts))
        parts["fit"]["state"]["settings"]["precision"] = "16-mixed"
        path.write_bytes(replace(manifest, parts=parts).to_bytes())
    assert fit(tmp_path, callbacks=(events.append,)).epochs == 2
    (told,) = [event.reason for event in events if isinstance(event, RestoredInexactly)]
    assert "precision was 16-mixed and is 32-true" in told


def test_another_batch_size_in_the_middle_of_an_epoch_is_applied_or_refused_in_words(tmp_path: Path) -> None:
    """The place in the epoch is counted in samples and batches of before."""
    fit(tmp_path, max_steps=2)
    assert any("batch_size: 4 → 8" in line for line in refused(tmp_path, batch_size=8).differences)
    assert fit(tmp_path, batch_size=8, on_change="apply").epochs == 2


def test_a_loop_of_ones_own_asks_the_same(tmp_path: Path) -> None:
    """Run: two models, two optimizers, each part by its name; kept, applied, and told before anything is touched."""

    def run(lr: float, p: float, **words: Any) -> tuple[Any, list[str]]:
        events: list[Event] = []
        generator, judge = nn.Sequential(nn.Linear(2, 2), nn.Dropout(p)), nn.Linear(2, 1)
        optimizers = [torch.optim.Adam(each.parameters(), lr=lr) for each in (generator, judge)]
        own = {
            "model": generator,
            "optimizer": optimizers[0],
            "state": {"judge": judge, "judge_optimizer": optimizers[1]},
        }
        words |= {"storage": tmp_path, "progress": False, "callbacks": (events.append,)}
        with colabkeep.Run("gan", **own, **words) as run:
            for _ in run.steps(run.progress.step + 2):
                judge(generator(torch.ones(1, 2))).sum().backward()
                for optimizer in optimizers:
                    optimizer.step()
        rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
        return (rates, generator[1].p), [event.text for event in events if isinstance(event, Noted)]

    run(0.1, 0.5)
    with pytest.raises(Incompatible) as caught:
        run(0.2, 0.4)
    assert list(caught.value.differences) == [
        "model.1.p: 0.5 → 0.4",
        "optimizer.lr: 0.1 → 0.2",
        "state.judge_optimizer.lr: 0.1 → 0.2",
    ]
    kept, notes = run(0.2, 0.4, on_change="keep")
    assert kept == ([0.1, 0.1], 0.5)
    assert any("without these changes: model.1.p: 0.5 → 0.4" in note for note in notes)
    assert run(0.1, 0.5)[1] == []
    assert run(0.2, 0.4, on_change="apply")[0] == ([0.2, 0.2], 0.4)
    assert run(0.2, 0.4)[0] == ([0.2, 0.2], 0.4)


class TestTrainedBefore:
    """A start at step 0 with objects that were trained is no start from zero, and that is said."""

    def notes(self, **words: Any) -> list[str]:
        events: list[Event] = []
        colabkeep.resumable_fit(**{**words, "callbacks": (events.append,)})
        return [event.text for event in events if isinstance(event, Noted) and "not with new objects" in event.text]

    def test_another_name_with_the_objects_of_the_last_cell(self, tmp_path: Path) -> None:
        """It names the run whose weights these are, the steps of the optimizer and the count of the schedule."""
        words = cell(tmp_path)
        assert self.notes(**words) == []
        (note,) = self.notes(**{**words, "run_name": "second"})
        assert "model holds the weights that the run 'r' had at step 8" in note
        assert "optimizer has the state of" in note
        assert "scheduler has counted to 2" in note
        assert "run the cells that build model, optimizer and scheduler again" in note

    def test_resume_never_with_them(self, tmp_path: Path) -> None:
        """The same, where the run is told to begin anew."""
        words = cell(tmp_path)
        self.notes(**words)
        assert len(self.notes(**{**words, "resume": "never"})) == 1

    def test_new_objects_and_pretrained_weights_are_not_talked_about(self, tmp_path: Path) -> None:
        """Other weights in the object of before are not those of the run."""
        self.notes(**cell(tmp_path))
        assert self.notes(**cell(tmp_path, run_name="second")) == []
        model = cell(tmp_path)["model"]
        self.notes(**cell(tmp_path, run_name="third", model=lambda: model))
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        assert self.notes(**cell(tmp_path, run_name="fourth", model=lambda: model)) == []

    def test_a_saved_model_is_read_without_us_and_its_state_has_no_trace(self, tmp_path: Path) -> None:
        """The mark is plain data on the object: torch.save(model) stays readable, state_dict() is what it was."""
        words = cell(tmp_path)
        names = list(words["model"].state_dict()), list(words["optimizer"].state_dict())
        self.notes(**words)
        assert (list(words["model"].state_dict()), list(words["optimizer"].state_dict())) == names
        torch.save(words["model"], tmp_path / "model.pt")
        assert b"colabkeep." not in (tmp_path / "model.pt").read_bytes()
        again = torch.load(tmp_path / "model.pt", weights_only=False)
        assert len(self.notes(**cell(tmp_path, run_name="second", model=lambda: again))) == 1

"""Slips that went through in silence: each is refused before anything is written, or told, with what to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import colabkeep
from colabkeep.core.errors import NotStorable, UsageError
from colabkeep.core.events import Event, Noted
from tests.trainings import final_state

Words = dict[str, Any]
X, Y = torch.randn(32, 4, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 2


def loader(**words: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), **{"batch_size": 8, **words})


def fit(folder: Path, model: Any = None, **words: Any) -> Any:
    """The smallest cell, with something changed."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2) if model is None else model
    given = {
        "train_loader": loader(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1) if isinstance(model, nn.Module) else "adam",
        "loss_fn": F.cross_entropy,
        "max_epochs": 2,
        "run_name": "r",
        "storage": folder,
        "progress": False,
    }
    given.update(words)
    return colabkeep.resumable_fit(model, given.pop("train_loader"), **given)


class Nothing(IterableDataset[Any]):
    """A stream that a filter has emptied; nobody can know how long it is."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Keraslike:
    """A model that trains itself."""

    def fit(self, x: Any, y: Any) -> None:
        raise AssertionError("not called")


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == target).float().mean()


VALIDATED: Words = {"val_loader": loader(), "metrics": {"accuracy": accuracy}}
SLIPS: dict[str, tuple[Words, str, str]] = {
    "monitor": ({"monitor": "val_loss"}, "never measured", "train_loss, lr"),
    "monitor without val_": ({**VALIDATED, "monitor": "accuracy"}, "never measured", 'monitor="val_accuracy"'),
    "monitor misspelt": ({**VALIDATED, "monitor": "val_los"}, "never measured", 'monitor="val_loss"'),
    "no batches": ({"train_loader": []}, "no batch", "len(dataset)"),
    "empty data set": ({"train_loader": loader(batch_size=8, shuffle=False), "val_loader": []}, "no batch", "dataset"),
    "empty samples": ({"train_loader": TensorDataset(X[:0], Y[:0])}, "no batch", "dataset"),
    "all dropped": ({"train_loader": loader(batch_size=64, drop_last=True)}, "32 samples", "drop_last=False"),
    "callback": ({"callbacks": [3]}, "a int", "callbacks=[tell]"),
    "callback's class": ({"callbacks": [Nothing]}, "the class Nothing", "callbacks=[tell]"),
    "callbacks": ({"callbacks": print}, "must be a list of functions", "callbacks=[tell]"),
    "arrays": ({"train_loader": (X, Y)}, "32 samples", "TensorDataset(X, Y)"),
    "listed arrays": ({"train_loader": [X, Y]}, "32 samples", "TensorDataset(X, Y)"),
    "NumPy's arrays": ({"train_loader": (X.numpy(), Y.numpy())}, "32 samples", "TensorDataset(X, Y)"),
    "validation's arrays": ({"val_loader": (X, Y)}, "32 samples", "TensorDataset(X, Y)"),
    "a loader's class": ({"train_loader": DataLoader}, "the class DataLoader", "train_loader=DataLoader(…)"),
    "a scheduler's class": (
        {"scheduler": torch.optim.lr_scheduler.StepLR},
        "the class StepLR",
        "scheduler=StepLR(…)",
    ),
    "an optimizer's class": ({"optimizer": torch.optim.SGD}, "the class SGD", "optimizer=SGD(…)"),
    "a loss's class": ({"loss_fn": nn.CrossEntropyLoss}, "the class CrossEntropyLoss", "loss_fn=CrossEntropyLoss(…)"),
    "a loss's value": ({"loss_fn": torch.tensor(0.0)}, "cannot be called", "loss_fn=F.cross_entropy"),
    "a metric's value": ({"val_loader": loader(), "metrics": {"accuracy": 0.5}}, "'accuracy' is a float", "function"),
    "a metric's class": ({"val_loader": loader(), "metrics": {"m": nn.L1Loss}}, "the class L1Loss", "function"),
    "a name": ({"run_name": 7}, "type int", 'run_name="my-run"'),
    "resume=True": ({"resume": True}, "resume=True", '"must"'),
    "resume=False": ({"resume": False}, "resume=False", '"never"'),
    "resume=None": ({"resume": None}, "resume=None", '"auto"'),
    "resume='latest'": ({"resume": "latest"}, "resume='latest'", '"auto"'),
    "a seed": ({"seed": "a"}, "seed must be a whole number", "seed=0"),
    "max_epochs=True": ({"max_epochs": True}, "max_epochs must be a whole number", "max_epochs=30"),
    "max_epochs='3'": ({"max_epochs": "3"}, "max_epochs must be a whole number", "without quotes"),
    "keep_best=0.5": ({"keep_best": 0.5, "monitor": "train_loss"}, "and is 0.5", "keep_best=1"),
    "Keras": ({"model": Keraslike()}, "a fit\\(\\) of its own", "BackupAndRestore"),
    "NumPy": ({"model": object()}, "torch.nn.Module", "colabkeep.Run"),
}


LENGTHS = [
    ("epochs", "3", "run.epochs(3)"),
    ("epochs", 2.5, "run.epochs(2)"),
    ("epochs", float("inf"), "run.epochs(None)"),
    ("epochs", True, "run.epochs(30)"),
    ("epochs", -1, "run.epochs(None)"),
    ("steps", "1000", "run.steps(int(…))"),
    ("steps", [5], "run.steps(30)"),
]


@pytest.mark.parametrize(("loop", "length", "remedy"), LENGTHS)
def test_a_length_that_a_loop_cannot_have_is_refused_with_what_to_write(
    tmp_path: Path, loop: str, length: Any, remedy: str
) -> None:
    """A number in quotes, as a command line gives it, or half an epoch: the line to write, and no step is taken."""
    model = nn.Linear(4, 2)
    with colabkeep.Run("r", model=model, storage=tmp_path, progress=False) as run:
        with pytest.raises(UsageError, match="must be a whole number, 0 or more") as caught:
            next(getattr(run, loop)(length))
        assert run.progress.step == 0
    assert remedy in caught.value.remedy


def test_a_length_of_numpy_s_is_a_number(tmp_path: Path) -> None:
    """What a computation with arrays gives is a whole number too; and 0 is a loop that does nothing."""
    import numpy as np

    with colabkeep.Run("r", model=nn.Linear(4, 2), storage=tmp_path, progress=False) as run:
        assert list(run.epochs(0)) == []
        assert list(run.epochs(np.int64(2))) == [0, 1]


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_refused_with_what_to_write(tmp_path: Path, slip: str) -> None:
    """Before the first step, and nothing is written."""
    words, said, remedy = SLIPS[slip]
    with pytest.raises(UsageError, match=said) as caught:
        fit(tmp_path, **words)
    assert remedy in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [{"scheduler": torch.optim.lr_scheduler.StepLR}, {"callbacks": [3]}, {"resume": True}, {"seed": 0.5}, {"model": 3}],
    ids=lambda words: next(iter(words)),
)
def test_a_loop_of_ones_own_refuses_the_same(tmp_path: Path, words: Words) -> None:
    """The same words, the same answers."""
    given = {"model": nn.Linear(4, 2), "storage": tmp_path, "progress": False, **words}
    with pytest.raises((UsageError, NotStorable)) as caught, colabkeep.Run("r", **given):
        raise AssertionError("it began")
    assert caught.value.remedy


def test_a_stream_that_gives_nothing_ends_the_training(tmp_path: Path) -> None:
    """Its length is not known before; at the end of the epoch it is, and two empty epochs are no training."""
    with pytest.raises(UsageError, match="no batch"):
        fit(tmp_path, train_loader=DataLoader(Nothing()))


@pytest.mark.parametrize("batches", [[], (X, Y), DataLoader(TensorDataset(X[:0], Y[:0]))])
def test_a_loop_of_ones_own_is_told_that_there_is_no_batch(tmp_path: Path, batches: Any) -> None:
    """`run.batches` answers as `resumable_fit` does."""
    with colabkeep.Run("r", model=nn.Linear(4, 2), storage=tmp_path, progress=False) as run:
        for _ in run.epochs(1):
            with pytest.raises(UsageError, match=r"no batch|32 samples"):
                next(run.batches(batches))
            run.stop()


def test_a_forgotten_with_is_said(tmp_path: Path) -> None:
    """Whatever is called first: the line to write, instead of an AttributeError of ours."""
    run = colabkeep.Run("r", model=nn.Linear(4, 2), storage=tmp_path, progress=False)
    calls: list[Callable[[], Any]] = [
        lambda: next(run.epochs(3)),
        lambda: next(run.batches([1])),
        run.step,
        lambda: run.log(a=1),
        run.save,
        lambda: run.progress,
        lambda: run.checkpoint,
        lambda: run.durability,
    ]
    for call in calls:
        with pytest.raises(UsageError, match="has not begun") as caught:
            call()
        assert "with colabkeep.Run(…) as run:" in caught.value.remedy
    with pytest.raises(AttributeError, match="no attribute 'epoch'"):
        _ = run.epoch
    assert not hasattr(run, "_ipython_display_")
    assert "NOT STARTED" in run._repr_html_()


def replaced() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A model whose head was replaced after its optimizer was built."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[1] = nn.Linear(4, 2)
    return model, optimizer


def test_an_optimizer_of_a_head_that_is_gone_is_refused(tmp_path: Path) -> None:
    """The new head would stay as it was drawn: both sides are named, and the line."""
    model, optimizer = replaced()
    with pytest.raises(UsageError, match=r"1\.weight, 1\.bias") as caught:
        fit(tmp_path, model, optimizer=optimizer)
    assert "(3, 4)" in caught.value.problem
    assert "after the last change of the model" in caught.value.remedy
    with pytest.raises(UsageError, match=r"1\.weight, 1\.bias"):
        colabkeep.Run("r", model=model, optimizer=optimizer, storage=tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_the_parameters_of_all_parts_count(tmp_path: Path) -> None:
    """Several models and optimizers of one run are looked at together; an average has no optimizer."""
    body, head = nn.Linear(4, 4), nn.Linear(4, 2)
    both = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(body)
    told: list[Event] = []
    words: Words = {"optimizer": both, "ema": average, "state": {"head": head}, "callbacks": [told.append]}
    with colabkeep.Run("r", model=body, storage=tmp_path, progress=False, **words):
        pass
    assert not [event for event in told if isinstance(event, Noted) and "trainable" in event.text]


def test_what_no_optimizer_holds_is_told_once_and_trained_all_the_same(tmp_path: Path) -> None:
    """Feature extraction without requires_grad_(False) may be meant; with it nothing is said."""
    told: list[Event] = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    words: Words = {"optimizer": torch.optim.SGD(model[1].parameters(), lr=0.1), "callbacks": [told.append]}
    assert fit(tmp_path, model, **words).steps == 8
    said = [event.text for event in told if isinstance(event, Noted) and "trainable" in event.text]
    assert len(said) == 1
    assert "0.weight, 0.bias" in said[0]
    told.clear()
    model[0].requires_grad_(False)
    fit(tmp_path / "b", model, **words)
    assert not [event for event in told if isinstance(event, Noted) and "trainable" in event.text]


def test_an_expanded_parameter_is_refused_at_the_start(tmp_path: Path) -> None:
    """One number in memory for many: no optimizer can write it. A buffer of that kind is kept and comes back."""
    model = nn.Linear(4, 2)
    model.scale = nn.Parameter(torch.ones(1).expand(2))
    with pytest.raises(NotStorable, match=r"model\.scale is an expanded tensor") as caught:
        fit(tmp_path / "a", model)
    assert ".clone()" in caught.value.remedy
    model = nn.Linear(4, 2)
    model.register_buffer("mask", torch.ones(1).expand(2))
    fit(tmp_path / "b", model, max_steps=3)
    assert fit(tmp_path / "b", model).resumed_from == 3


class Graph(nn.Module):
    """A layer over a graph, whose matrix is a buffer."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)
        self.register_buffer("matrix", getattr(torch.tensor([[1.0, 2.0], [0.0, 3.0]]), f"to_sparse{layout}")())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.matrix @ self.inner(x).T).T


@pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support is in beta")
@pytest.mark.parametrize("layout", ["", "_csr", "_csc"])
def test_a_sparse_buffer_of_any_layout_resumes_bit_for_bit(tmp_path: Path, kit: SimpleNamespace, layout: str) -> None:
    """The adjacency of a graph net; it ended the training at its start where its layout has no strides."""

    def cell(folder: Path, **words: Any) -> Any:
        torch.manual_seed(0)
        return fit(folder, Graph(layout), train_loader=loader(shuffle=True), keep_last=None, **words)

    cell(tmp_path / "a", max_steps=3)
    assert cell(tmp_path / "a").resumed_from == 3
    cell(tmp_path / "b")
    assert final_state(tmp_path / "a", "r") == final_state(tmp_path / "b", "r")


def logging(folder: Path, *names: str, epochs: int = 2, monitor: str | None = "val_loss") -> list[str]:
    """What is said where a loop logs these names each epoch."""
    told: list[Event] = []
    model = nn.Linear(4, 2)
    words: Words = {"monitor": monitor, "callbacks": [told.append], "progress": False}
    with colabkeep.Run("r", model=model, storage=folder, **words) as run:
        for _ in run.epochs(epochs):
            for _ in run.batches(loader()):
                run.step()
            if names:
                run.log(**dict.fromkeys(names, 1.0))
    return [event.text for event in told if isinstance(event, Noted) and "was not logged" in event.text]


def test_a_monitor_that_is_never_logged_is_told_once(tmp_path: Path) -> None:
    """At the end of the first epoch in which something was logged, with the names that were; or at the end of all."""
    said = logging(tmp_path / "a", "val_acc", "loss")
    assert len(said) == 1
    assert "val_acc, loss" in said[0]
    assert logging(tmp_path / "b", "val_loss", "loss") == []
    (nothing,) = logging(tmp_path / "c")
    assert "Logged: nothing." in nothing
    assert logging(tmp_path / "d", "loss", monitor=None) == []


def test_a_monitor_that_was_logged_before_is_not_asked_for_again(tmp_path: Path) -> None:
    """A session that resumes behind its run.log() does not say that it never came."""
    logging(tmp_path, "val_loss", epochs=1)
    assert logging(tmp_path, "loss", epochs=2) == []

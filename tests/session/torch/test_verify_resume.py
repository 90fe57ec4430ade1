"""`colabkeep.verify_resume` finds what a checkpoint does not hold, on the user's own code, and says where."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import colabkeep
from colabkeep.core.errors import NotStorable, UsageError
from tests.trainings.torch import Noisy, Tied, hard_training

COUNTER = {"steps": 0}  # a global, as notebooks have them


def made(model: nn.Module, **more: Any) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = DataLoader(Noisy(), 4, shuffle=True)
    return {"model": model, "optimizer": optimizer, "train_loader": data, "loss_fn": loss, **more}


def loss(output: torch.Tensor, target: Any) -> torch.Tensor:
    return nn.functional.mse_loss(output, target[0])


def full() -> dict[str, Any]:
    words = hard_training(epochs=3)
    return {**words, "loss_fn": loss}


def test_a_training_that_keeps_nothing_outside_is_exact() -> None:
    """Augmentation, dropout, BatchNorm, schedule and EMA included: true, and a sentence that says so."""
    report = colabkeep.verify_resume(full, steps=6)
    assert report, str(report)
    assert (report.differing, report.outside) == ((), ())
    assert str(report).startswith("exact: 12 steps, killed after 6")


class WithAttribute(Tied):
    """Keeps a running number where no state_dict sees it: in a plain attribute that is enough for us."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.scale *= 0.9
        return super().forward(features) * self.scale


class WithCache(Tied):
    """Keeps running numbers in a dict, which may be anything."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = {"scale": 1.0}

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.cache["scale"] *= 0.9
        return super().forward(features) * self.cache["scale"]


class WithGenerator(Tied):
    """Draws its noise from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.own = np.random.default_rng(7)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return super().forward(features) + float(self.own.normal())


class WithHiddenBuffer(Tied):
    """Keeps a running number in a buffer that is not persistent: that is enough for us."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.scale.mul_(0.9)
        return super().forward(features) * self.scale


def with_forgotten_ema() -> dict[str, Any]:
    model = Tied()
    average = [parameter.detach().clone() for parameter in model.parameters()]

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)
        return loss(model(batch[0]), batch[1]) + sum(mean.square().sum() for mean in average)

    return {**made(model), "loss_fn": None, "step_fn": step}


def with_global() -> dict[str, Any]:
    COUNTER["steps"] = 0

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        COUNTER["steps"] += 1
        return loss(model(batch[0]), batch[1]) * (1 + COUNTER["steps"])

    return {**made(Tied()), "loss_fn": None, "step_fn": step}


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: made(WithCache()), "model.cache.scale"),
        (lambda: made(WithGenerator()), "model.own"),
        (with_forgotten_ema, "step_fn.<average>"),
        (with_global, "step_fn.<global COUNTER>"),
    ],
    ids=["cache", "private generator", "EMA left out", "global"],
)
def test_what_is_kept_outside_is_found_and_named(make: Any, where: str) -> None:
    """False, with the path of what a restore does not bring back, and what to do about it."""
    report = colabkeep.verify_resume(make, steps=3)
    assert not report
    assert any(line.startswith(where) for line in report.outside), report.outside
    assert "NOT exact" in str(report)
    assert "state={" in str(report)
    assert "run.state" in str(report)
    assert report.deterministic


@pytest.mark.parametrize("model", [WithHiddenBuffer, WithAttribute])
def test_what_no_state_dict_holds_is_kept_where_it_is_plain_or_a_buffer(model: type[Tied]) -> None:
    """A buffer that is not persistent, a number in an attribute: they are in a checkpoint all the same."""
    report = colabkeep.verify_resume(lambda: made(model()), steps=3)
    assert report, str(report)


def test_a_training_that_draws_from_nowhere_is_told_apart() -> None:
    """Where two uninterrupted trainings differ too, the report says that it is not the resume."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss(model(batch[0]), batch[1]) * (1 + os.urandom(1)[0])

    report = colabkeep.verify_resume(lambda: {**made(Tied()), "loss_fn": None, "step_fn": step}, steps=3)
    assert not report
    assert report.deterministic is False
    assert "no seed governs" in str(report)


def test_asking_changes_nothing(kit: SimpleNamespace, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's random streams are where they were, and nothing was written anywhere."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(4)
    before = torch.get_rng_state()
    colabkeep.verify_resume(lambda: hard_training(epochs=3), steps=2)
    assert torch.get_rng_state().equal(before)
    assert list(tmp_path.iterdir()) == []


def test_what_make_returns_has_to_be_what_resumable_fit_takes() -> None:
    """Old objects, unknown words and missing ones are refused with a remedy; words of the run are ignored."""
    kept = made(Tied())
    with pytest.raises(UsageError, match="same model or optimizer twice"):
        colabkeep.verify_resume(lambda: kept)
    with pytest.raises(UsageError, match="what resumable_fit does not take: nonsense"):
        colabkeep.verify_resume(lambda: made(Tied(), nonsense=1))
    with pytest.raises(UsageError, match="did not return optimizer"):
        colabkeep.verify_resume(lambda: {"model": Tied(), "train_loader": [], "loss_fn": loss})
    with pytest.raises(UsageError, match="steps=0"):
        colabkeep.verify_resume(lambda: made(Tied()), steps=0)
    with pytest.raises(UsageError, match="neither trained"):
        colabkeep.verify_resume(lambda: None)
    assert colabkeep.verify_resume(lambda: made(Tied(), run_name="r", keep_last=3, max_epochs=9), steps=2)


def test_what_cannot_be_stored_is_named() -> None:
    """The first thing a proof of resuming needs is a state that can be kept."""

    class Keeper:
        def state_dict(self) -> dict[str, Any]:
            return {"file": open}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError("nothing was ever saved")

    with pytest.raises(NotStorable) as caught:
        colabkeep.verify_resume(lambda: made(Tied(), state={"keeper": Keeper()}))
    assert "file" in f"{caught.value.path} {caught.value.problem}"


SEEN = {"batches": 0}  # another global


class Loop:
    """An own loop over seven batches, four epochs; what a test adds is called in each step."""

    def __init__(self, each: Callable[..., Any] = lambda *_: None, *, compiled: bool = False, numbered: bool = True):
        self.each, self.compiled, self.numbered = each, compiled, numbered
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        torch.manual_seed(0)
        np.random.seed(0)
        SEEN["batches"] = 0
        model: Any = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if self.compiled:
            model = torch.compile(model, backend="eager")
        loader = DataLoader(Noisy(28), 4, shuffle=True)
        began, best, seen = time.time(), 9.0, 0
        with colabkeep.Run("mine", model=model, optimizer=optimizer, storage="auto") as run:
            run.state.best = 9.0
            for _ in run.epochs(4):
                batches: Any = run.enumerate(loader) if self.numbered else enumerate(run.batches(loader))
                for _i, (features, target) in batches:
                    error = loss(model(features), target)
                    factor = self.each(model, error, seen, best)
                    seen += 1
                    error = error if factor is None else error * factor
                    error.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    best = min(best, float(error.detach()))
                    run.state.best = min(run.state.best, float(error.detach()))
                    run.step(loss=error)
                elapsed = time.time() - began
                run.log(elapsed=elapsed)


def test_an_own_loop_is_proven_by_killing_it() -> None:
    """Interrupted in mid-epoch and at an end, every bit compared; variables that are not kept are named, kept ones and
    clocks are not."""
    loop = Loop()
    report = colabkeep.verify_resume(loop)
    assert (report.steps, report.interrupted, report.differing, report.told) == (28, (6, 14), (), ())
    named = sorted(line.partition(":")[2].partition(":")[0].strip() for line in report.outside)
    assert named == ["best", "seen"], report.outside
    assert loop.calls == 5


def test_a_loop_that_goes_by_what_is_not_kept_is_not_exact() -> None:
    """The weights differ, and the two variables that did it are among those that are named."""
    report = colabkeep.verify_resume(Loop(lambda model, error, seen, best: 1.0 + seen))
    assert any(line.startswith("model.weights") for line in report.differing)
    assert any("seen" in line for line in report.outside)
    assert report.deterministic
    assert "NOT exact" in str(report)


def test_a_global_that_a_loop_counts_in_is_named() -> None:
    """Notebooks have many."""

    def count(*_: Any) -> None:
        SEEN["batches"] += 1

    report = colabkeep.verify_resume(Loop(count))
    assert any("SEEN" in line and "batches" in line for line in report.outside), report.outside


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")  # of the compiler
def test_a_compiled_model_is_no_loss() -> None:
    """What the compiler remembers of itself belongs to no checkpoint."""
    report = colabkeep.verify_resume(Loop(compiled=True))
    assert report.differing == ()
    assert all("best" in line or "seen" in line for line in report.outside), report.outside


def test_what_the_resumed_loop_said_itself_is_in_the_report() -> None:
    """A plain enumerate counts from 0 in the epoch that is resumed."""
    report = colabkeep.verify_resume(Loop(numbered=False))
    assert not report
    assert "run.enumerate(loader)" in str(report)


def test_a_loop_that_draws_from_nowhere_is_told_apart() -> None:
    """Two uninterrupted ones differ as well."""
    report = colabkeep.verify_resume(Loop(lambda *_: 1.0 + os.urandom(1)[0]))
    assert report.deterministic is False
    assert "no seed governs" in str(report)


def test_folds_and_resumable_fit_are_proven_too() -> None:
    """Each run of a function is killed or left alone, and all of them are compared."""

    def folds() -> None:
        for number in range(2):
            words = {name: value for name, value in full().items() if name != "callbacks"}
            colabkeep.resumable_fit(**words, run_name=f"fold{number}", storage="auto")

    report = colabkeep.verify_resume(folds)
    assert (report.differing, report.told) == ((), ())
    assert report.steps == 2 * 33
    assert len(report.interrupted) == 2


def test_a_loop_that_is_too_short_to_be_killed_is_refused() -> None:
    """With what to do."""

    def short() -> None:
        model = nn.Linear(8, 8)
        with colabkeep.Run("short", model=model, storage="auto") as run:
            for _ in run.steps(2):
                run.step()

    with pytest.raises(UsageError, match="ended after 2 steps") as caught:
        colabkeep.verify_resume(short)
    assert "eight steps" in caught.value.remedy

"""What a training must not do: print when asked not to, and wait for the device in each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import colabkeep
from colabkeep.core.events import Event, Noted, StepDone
from colabkeep.session.open import RunArguments, wire_run
from colabkeep.session.run import Run
from colabkeep.testing.clock import FakeClock
from tests.trainings.torch import hard_training

WAITING = ("item", "__float__", "__int__", "__bool__", "__index__", "tolist", "cpu", "numpy")


def test_progress_false_prints_nothing(tmp_path: Path, kit: SimpleNamespace, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither a fresh session nor a resumed or a failed one, on neither stream."""
    kit.fit(tmp_path, max_steps=5)
    kit.fit(tmp_path)
    with pytest.raises(colabkeep.ColabKeepError):
        kit.fit(tmp_path, seed=3)
    words = hard_training(epochs=1)
    with colabkeep.Run("own", model=words["model"], storage=tmp_path, progress=False) as run:
        for _ in run.epochs(1):
            for _batch in run.batches(words["train_loader"]):
                run.step()
    assert capfd.readouterr() == ("", "")


def test_progress_says_where_checkpoints_are_and_what_came_of_it(
    tmp_path: Path, kit: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    """The display is on unless it is switched off, and a resume is one clear line."""
    kit.fit(tmp_path, max_time=1e-6, progress=True)
    kit.fit(tmp_path, progress=True)
    out, err = capfd.readouterr()
    assert str(tmp_path) in out
    assert "stopped (max_time) at step 1" in out
    assert "resumed from epoch 1, step 1" in out
    assert "finished at step 33" in out
    assert err == ""


def test_no_step_waits_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps no number is asked of a tensor: on a GPU each would stop the queue. A loss on the CPU, where
    nothing is waited for, is looked at once: two for each step here, which accumulates."""
    calls: list[str] = []
    found: list[list[str]] = []
    for name in WAITING:
        real = getattr(torch.Tensor, name)

        def counted(self: torch.Tensor, *arguments: Any, name: str = name, real: Any = real, **options: Any) -> Any:
            calls.append(name)
            return real(self, *arguments, **options)

        monkeypatch.setattr(torch.Tensor, name, counted)

    def tell(event: Event) -> None:
        if isinstance(event, StepDone):
            found.append(calls.copy())
            calls.clear()

    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 8))
    batches = [(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(40)]
    colabkeep.resumable_fit(
        model,
        batches,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        loss_fn=nn.functional.mse_loss,
        max_epochs=1,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        precision="bf16-mixed",
        save_every=None,
        run_name="r",
        storage=tmp_path,
        callbacks=[tell],
        progress=False,
    )
    assert len(found) == 20
    assert found[1:] == [["item", "item"]] * 19
    assert calls, "the counting works: the end of the epoch reads the mean"


class Numbers(IterableDataset):
    """A stream of samples that no index can reach, made noisy at random."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(30):
            features = torch.full((8,), number / 30) + 0.1 * torch.randn(8)
            yield features, features.flip(0)


class Pairs(Dataset):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.full((8,), index / 200) + 0.1 * torch.randn(8)
        return features, features.flip(0)


class Generated:
    """A loader of the user's own: only its `__iter__` is known."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(9):
            features = torch.randn(4, 8)
            yield features, features.flip(0)


@pytest.mark.parametrize(
    ("data", "words", "note"),
    [
        (lambda: DataLoader(Numbers(), 4), {}, "read from its beginning"),
        (lambda: DataLoader(Numbers(), 4, num_workers=1), {}, "read from its beginning"),
        (Generated, {}, "read from its beginning"),
        (Pairs, {"batch_size": 4}, ""),
        (Pairs, {}, ""),
        (lambda: DataLoader(Pairs(), batch_size=None), {"loss_fn": nn.functional.l1_loss}, ""),
    ],
    ids=["iterable", "iterable, a worker", "own loader", "data set, batch size", "data set", "no batches"],
)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_any_data_resumes_in_the_middle_of_an_epoch(
    tmp_path: Path, data: Any, words: dict[str, Any], note: str, accumulate: int
) -> None:
    """Iterable, home-made, unbatched, or a bare data set: stopped within an epoch, the same weights in the end."""
    events: list[Event] = []

    def session(folder: str, **more: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 8))
        options = {"loss_fn": nn.functional.mse_loss, **words, **more, "accumulate_grad_batches": accumulate}
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        colabkeep.resumable_fit(
            model,
            data(),
            optimizer=optimizer,
            **options,
            max_epochs=2,
            run_name="r",
            storage=tmp_path / folder,
            progress=False,
        )
        return model.state_dict()

    whole = session("whole")
    session("parts", max_steps=1)
    session("parts", max_steps=3)
    parts = session("parts", callbacks=[events.append])
    assert all(parts[name].equal(value) for name, value in whole.items())
    told = " ".join(event.text for event in events if isinstance(event, Noted))
    assert note in told


class Glancing:
    """An observer that wants to hear of every tenth step, and of everything else."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.others: list[Event] = []
        self.steps_from = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self.steps.append(event.progress.step)
            self.steps_from += 10.0
        else:
            self.others.append(event)


def test_an_observer_hears_of_a_step_when_it_wants_to(tmp_path: Path) -> None:
    """A display that moves twice a second costs the steps between nothing."""
    glancing, clock = Glancing(), FakeClock()
    words = RunArguments(
        run_name="r", objects={"model": nn.Linear(1, 1)}, storage=tmp_path, save_every=None, observers=(glancing,)
    )
    with Run(replace(wire_run(words), clock=clock)) as run:
        for _ in run.epochs(1):
            for _batch in run.batches([0] * 35):
                run.step()
                clock.advance(1.0)
    assert glancing.steps == [1, 11, 21, 31]
    assert {"RunStarted", "EpochDone", "RunStopped"} <= {type(event).__name__ for event in glancing.others}

"""Saves that no later one could stand in for are not copied behind the next step, where an edit could spoil them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import colabkeep
from colabkeep.frameworks.common.choosing import HIDDEN, Choice
from colabkeep.vocabulary.errors import UsageError
from colabkeep.vocabulary.events import Event, Noted, SaveCommitted

AT_ONCE = "copied at once: this very step is to be kept"
WIDE = 160


@pytest.fixture(autouse=True)
def always_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine measures, copies hide where they may."""
    monkeypatch.setattr(Choice, "hides", lambda self: True)


class Trained:
    """A run over epochs of three steps, in which `val` is logged and weights are edited as an epoch begins."""

    def __init__(self, folder: Path, *, edits: bool = True, **words: Any) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.events: list[Event] = []
        self.model = nn.Linear(WIDE, WIDE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.ends: list[torch.Tensor] = []
        self._edits = edits
        self.run = colabkeep.Run(
            "r", storage=str(folder), keep_last=None, model=self.model, optimizer=self.optimizer, progress=False,
            callbacks=[self.events.append], **words,
        )  # fmt: skip

    def steps(self) -> Iterator[int]:
        for _ in range(3):
            self.optimizer.zero_grad()
            self.model(torch.randn(4, WIDE)).square().mean().backward()
            self.optimizer.step()
            self.run.step()
            yield self.run.progress.step

    def epochs(self, values: list[float]) -> None:
        with self.run:
            for epoch in self.run.epochs(len(values)):
                if epoch and self._edits:
                    with torch.no_grad():
                        self.model.weight.add_(0.01)  # noise, a reset, an average swapped in
                list(self.steps())
                self.ends.append(self.model.weight.detach().clone())
                self.run._saver.wait()  # else a save that comes too early would be put off
                self.run.log(val=values[epoch])

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def weight(self, checkpoint: str) -> torch.Tensor:
        found: torch.Tensor = colabkeep.load_weights("r", storage=str(self.folder), which=checkpoint)["weight"]
        return found


def test_the_best_epoch_is_kept_though_the_next_begins_with_an_edit(tmp_path: Path) -> None:
    """`keep_best` has the weights that were measured, and the copy says that training stood still for them."""
    trained = Trained(tmp_path, save_every=1, keep_best=1, monitor="val")
    trained.epochs([1.0, 5.0, 9.0])
    best = trained.of(SaveCommitted)[0]
    assert (best.progress.step, best.copy) == (3, AT_ONCE)
    assert torch.equal(trained.weight(best.checkpoint), trained.ends[0])


def test_an_epoch_that_is_not_among_the_best_is_saved_without_a_stop(tmp_path: Path) -> None:
    """The price is paid only where it buys something."""
    trained = Trained(tmp_path, edits=False, save_every=1, keep_best=1, monitor="val")
    trained.epochs([1.0, 5.0, 9.0])
    ways = {event.progress.step: event.copy for event in trained.of(SaveCommitted)}
    assert (ways[3], ways[6]) == (AT_ONCE, HIDDEN)
    assert not [note.text for note in trained.of(Noted) if "copy" in note.text or "changed" in note.text]


@pytest.mark.parametrize("leaving", ["the end", "an exception", "SIGTERM"])
def test_the_last_save_of_a_session_is_copied_at_once(tmp_path: Path, leaving: str) -> None:
    """On the way out nothing trains any more that a copy could hide behind."""
    trained = Trained(tmp_path, save_every=None)
    errors = {"an exception": ZeroDivisionError, "SIGTERM": SystemExit}
    try:
        with trained.run:
            list(trained.steps())
            if leaving in errors:
                raise errors[leaving](143)
    except (ZeroDivisionError, SystemExit):
        pass
    (last,) = trained.of(SaveCommitted)
    assert last.copy == AT_ONCE
    assert torch.equal(trained.weight(last.checkpoint), trained.model.weight)


def test_a_save_that_is_waited_for_is_copied_at_once(tmp_path: Path) -> None:
    """`run.save(wait=True)` returns with a checkpoint, never with one that has to be made again."""
    trained = Trained(tmp_path, save_every=None)
    with trained.run:
        for step in trained.steps():
            trained.run.save(wait=step != 2)
            if step == 3:
                assert trained.of(SaveCommitted)[-1].progress.step == 3
    ways = {event.progress.step: event.copy for event in trained.of(SaveCommitted)}
    assert ways == {1: AT_ONCE, 2: HIDDEN, 3: AT_ONCE}


@pytest.mark.parametrize(
    ("copy", "way"), [("auto", HIDDEN), ("at_once", 'copied at once: asked for by copy="at_once"')]
)
def test_hiding_can_be_turned_off(tmp_path: Path, copy: Any, way: str) -> None:
    """Whoever changes single numbers past every counter has each save copied while training stands still."""
    trained = Trained(tmp_path, save_every=None, copy=copy)
    with trained.run:
        for step in trained.steps():
            if step == 2:
                trained.run.save()
    assert {event.progress.step: event.copy for event in trained.of(SaveCommitted)}[2] == way


@pytest.mark.parametrize("door", ["Run", "resumable_fit"])
def test_an_unknown_way_to_copy_is_refused(door: str) -> None:
    """Before anything is touched, with the two words that there are."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrong: Any = {"copy": "hidden", "optimizer": optimizer}
    doors: dict[str, Callable[[], object]] = {
        "Run": lambda: colabkeep.Run("r", model=model, **wrong),
        "resumable_fit": lambda: colabkeep.resumable_fit(
            model, [], loss_fn=nn.functional.mse_loss, max_epochs=1, **wrong
        ),
    }
    with pytest.raises(UsageError, match="copy='hidden' is unknown") as refusal:
        doors[door]()
    assert refusal.value.remedy == 'Use "auto" or "at_once".'

"""Gradients that stand at a checkpoint decide about the next update, unless the loop clears them first."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import colabkeep
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import load_newest
from colabkeep.core.events import Event, Noted, SaveCommitted, StepDone
from colabkeep.stores.local import DirectoryStore
from tests.trainings import final_state

EPOCHS = 4
Batch = tuple[torch.Tensor, torch.Tensor]


class Killed(BaseException):
    """Stands for a kill: nothing may be saved after it."""


class Session:
    """One session of a loop whose updates are those of `body`; it dies at a step, or in the code behind a backward."""

    def __init__(self, folder: Path, body: Callable[[Session, int, Batch], None], *, head_only: bool = False) -> None:
        torch.manual_seed(0)
        self.folder, self.body = folder, body
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))
        self.critic = nn.Linear(2, 1)
        self.trained = self.model[2] if head_only else self.model
        self.optimizer = torch.optim.AdamW(self.trained.parameters(), lr=0.01)
        self.other = torch.optim.Adam(self.critic.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(1)
        data = TensorDataset(torch.randn(70, 4, generator=generator), torch.randint(0, 2, (70,), generator=generator))
        self.loader = DataLoader(data, 8, shuffle=True)  # nine batches
        self.events: list[Event] = []
        self.dies: int | None = None
        self.fails: int | None = None
        self.top: Callable[[Session, int], None] = lambda *_: None

    def train(self) -> Session:
        state = {"critic": self.critic, "other": self.other}
        options = {"storage": str(self.folder), "save_every": "1 steps", "keep_last": None, "progress": False}
        parts = {"model": self.model, "optimizer": self.optimizer, "state": state}
        with colabkeep.Run("r", **parts, **options, callbacks=[self.events.append, self._die]) as self.run:
            for epoch in self.run.epochs(EPOCHS):
                self.top(self, epoch)
                for i, batch in self.run.enumerate(self.loader):
                    self.body(self, i, batch)
        return self

    def _die(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self.run._saver.wait()
            if event.progress.step == self.dies:
                raise Killed

    def backward(self, batch: Batch) -> None:
        F.cross_entropy(self.model(batch[0]), batch[1]).backward()
        if self.run.progress.step == self.fails:
            raise RuntimeError("broken")

    def step(self) -> None:
        self.optimizer.step()

    def stored(self) -> Any:
        """What the newest checkpoint has of gradients."""
        loaded = load_newest(Repository(DirectoryStore(self.folder), "r"), lambda *_: None)
        assert loaded is not None
        return loaded.parts.get("gradients", {"state": None})["state"]


def accumulates(session: Session, i: int, batch: Batch) -> None:
    """The last batch of each epoch is left over, and counts in the next one."""
    session.backward(batch)
    if (i + 1) % 2 == 0:
        session.step()
        session.optimizer.zero_grad()
        session.run.step()


def counts_micro_batches(session: Session, _: int, batch: Batch) -> None:
    session.backward(batch)
    if (session.run.progress.step + 1) % 2 == 0:
        session.step()
        session.optimizer.zero_grad()
    session.run.step()


def clears_first(session: Session, _: int, batch: Batch) -> None:
    session.optimizer.zero_grad()
    session.backward(batch)
    session.step()
    session.run.step()


def sets_to_zero_first(session: Session, _: int, batch: Batch) -> None:
    session.optimizer.zero_grad(set_to_none=False)
    session.backward(batch)
    session.step()
    session.run.step()


def clears_last(session: Session, _: int, batch: Batch) -> None:
    session.backward(batch)
    session.step()
    session.optimizer.zero_grad()
    session.run.step()


def plays(session: Session, _: int, batch: Batch) -> None:
    """The generator's turn leaves gradients in the critic, and nobody clears them before its own."""
    session.critic(session.model(batch[0]).detach()).square().mean().backward()
    session.other.step()
    session.other.zero_grad()
    loss = session.critic(session.model(batch[0])).mean()
    session.optimizer.zero_grad()
    loss.backward()
    session.step()
    session.run.step()


BODIES = [accumulates, counts_micro_batches, clears_first, sets_to_zero_first, clears_last, plays]


def cut(folder: Path, body: Any, dies: int, **words: Any) -> None:
    session = Session(folder, body, **words)
    session.dies = dies
    with pytest.raises(Killed):
        session.train()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], dict[str, str]]:
    """What a loop ends with that nobody disturbs."""

    @cache
    def of(body: Any) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("whole")
        Session(folder, body).train()
        return final_state(str(folder), "r")

    return of


@pytest.mark.parametrize(
    ("body", "dies"),  # the fifth step of `accumulates` is the first behind an epoch
    [*((body, 10) for body in BODIES), (accumulates, 3), (accumulates, 5), (counts_micro_batches, 5), (plays, 5)],
)
def test_a_loop_that_is_killed_ends_with_the_same_bits(body: Any, dies: int, whole: Any, tmp_path: Path) -> None:
    """However it clears its gradients, or does not."""
    cut(tmp_path / "cut", body, dies)
    assert Session(tmp_path / "cut", body).train().run.resumed_from is not None
    assert final_state(str(tmp_path / "cut"), "r") == whole(body)


def test_layers_that_no_optimizer_had_yet_bring_their_gradients_with_them(tmp_path: Path) -> None:
    """They were not frozen, so their gradients grew in each step since the beginning."""

    def unfreezes(session: Session, epoch: int) -> None:
        if epoch == 2 and len(session.optimizer.param_groups) == 1:
            session.optimizer.add_param_group({"params": session.model[0].parameters()})

    for folder, dies in (("whole", None), ("cut", 13), ("cut", None)):
        session = Session(tmp_path / folder, clears_last, head_only=True)
        session.top, session.dies = unfreezes, dies
        if dies is None:
            session.train()
        else:
            with pytest.raises(Killed):
                session.train()
    assert final_state(str(tmp_path / "cut"), "r") == final_state(str(tmp_path / "whole"), "r")


@pytest.mark.parametrize("body", [clears_first, clears_last])
def test_gradients_that_are_cleared_cost_no_space(body: Any, tmp_path: Path) -> None:
    """Most loops clear theirs before they add to them: once that was seen, none is saved."""
    stored = Session(tmp_path, body).train().stored()
    assert not stored or (stored["values"], stored["zero"]) == ({}, [])


def test_a_loop_that_changes_its_ways_is_noticed(tmp_path: Path) -> None:
    """It cleared its gradients first, for long enough to be believed, and then accumulates."""

    def later(session: Session, i: int, batch: Batch) -> None:
        (clears_first if session.run.progress.epoch < 2 else counts_micro_batches)(session, i, batch)

    Session(tmp_path / "whole", later).train()
    cut(tmp_path / "cut", later, 23)
    Session(tmp_path / "cut", later).train()
    assert final_state(str(tmp_path / "cut"), "r") == final_state(str(tmp_path / "whole"), "r")


@pytest.mark.parametrize("body", [clears_first, clears_last, accumulates])
@pytest.mark.parametrize("fails", [2, 12])
def test_an_error_behind_a_backward_pass_costs_no_step(body: Any, fails: int, whole: Any, tmp_path: Path) -> None:
    """What the pass left in the gradients is taken away, and the last finished step is saved."""
    session = Session(tmp_path / "cut", body)
    session.fails = fails
    with pytest.raises(RuntimeError, match="broken"):
        session.train()
    again = Session(tmp_path / "cut", body).train()
    assert again.run.resumed_from is not None
    assert again.run.resumed_from.progress.step == fails
    assert final_state(str(tmp_path / "cut"), "r") == whole(body)


def test_after_an_error_what_was_added_to_is_not_saved(tmp_path: Path) -> None:
    """Half of an accumulation that goes over a checkpoint cannot be taken back: the checkpoint before counts."""
    session = Session(tmp_path, counts_micro_batches)
    session.fails = 11
    with pytest.raises(RuntimeError, match="broken"):
        session.train()
    saves = [event.progress.step for event in session.events if isinstance(event, SaveCommitted)]
    told = [event.text for event in session.events if isinstance(event, Noted)]
    assert saves[-1] == 11 or any("half a step cannot be saved" in text for text in told)
    Session(tmp_path / "whole", counts_micro_batches).train()
    Session(tmp_path, counts_micro_batches).train()
    assert final_state(str(tmp_path), "r") == final_state(str(tmp_path / "whole"), "r")

"""What is frozen is copied and written once; and it is never taken for what it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import colabkeep
from colabkeep.core.errors import UnknownArgument
from colabkeep.core.events import Event, Noted, SaveCommitted, SaveFailing

WIDE = 1100  # a frozen weight of 4.8 MB: in a file of its own


class Student:
    """A run that trains a small layer beside a frozen one, the teacher."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.events: list[Event] = []
        self.teacher = nn.Linear(WIDE, WIDE).requires_grad_(False)
        self.model = nn.Linear(WIDE, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.run = colabkeep.Run(
            "r", storage=str(folder), keep_last=None, model=self.model, optimizer=self.optimizer, save_every=None,
            state={"teacher": self.teacher}, progress=False, callbacks=[self.events.append],
        )  # fmt: skip

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.teacher(torch.randn(4, WIDE))).square().mean().backward()
        self.optimizer.step()
        self.run.step()

    def saved(self) -> SaveCommitted:
        self.run.save(wait=True)
        self.step()
        return self.of(SaveCommitted)[-1]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def stored(self) -> torch.Tensor:
        """The teacher's weight as a resumed run has it."""
        later = Student(self.folder)
        with later.run:
            return later.teacher.weight.detach().clone()


def test_what_is_frozen_is_written_once(tmp_path: Path) -> None:
    """Later checkpoints name its file; the checkpoint of each of them is whole."""
    student = Student(tmp_path)
    with student.run:
        first, second, third = (student.saved() for _ in range(3))
    assert first.written > 4_000_000
    assert max(second.written, third.written) < 100_000
    assert torch.equal(student.stored(), student.teacher.weight)


def test_a_teacher_that_is_edited_is_in_the_checkpoint_that_is_waited_for(tmp_path: Path) -> None:
    """`run.save(wait=True)` returns with a checkpoint that has the edit, and nothing went wrong."""
    student = Student(tmp_path)
    with student.run:
        student.saved()
        student.teacher.weight.data[17] = 0
        edited = student.saved()
        assert edited.progress.step == 1
        assert edited.written > 4_000_000
        kept = student.teacher.weight.detach().clone()
    assert not student.of(SaveFailing)
    assert not [note.text for note in student.of(Noted) if "cop" in note.text or "chang" in note.text]
    assert torch.equal(student.stored(), kept)


def test_a_teacher_that_is_edited_is_in_the_last_save_of_a_session(tmp_path: Path) -> None:
    """Nobody comes after it who could make it again."""
    student = Student(tmp_path)
    with student.run:
        student.saved()
        student.teacher.weight.data.view(-1)[7] += 1
    assert torch.equal(student.stored(), student.teacher.weight)


def test_frozen_weights_whose_file_vanished_are_written_again(tmp_path: Path) -> None:
    """Their copy in memory is gone by then, and the training has them still."""
    student = Student(tmp_path)
    with student.run:
        student.saved()
        for blob in tmp_path.glob("r/blobs/*"):
            blob.unlink()
        assert student.saved().written > 4_000_000
    assert torch.equal(student.stored(), student.teacher.weight)


@pytest.mark.parametrize("way", ["auto", "at_once"])
def test_the_argument_of_earlier_versions_is_refused_kindly(way: str) -> None:
    """Who copied a cell from an older page learns to leave it out."""
    words: dict[str, Any] = {"copy": way}
    with pytest.raises(UnknownArgument, match="'copy'") as refusal:
        colabkeep.Run("r", model=nn.Linear(2, 2), **words)
    assert refusal.value.remedy.startswith("Leave it out")

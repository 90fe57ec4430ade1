"""What is frozen is copied and written once; and it is never taken for what it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

import colabkeep
from colabkeep.core.events import Event, Noted, SaveCommitted, SaveFailing
from colabkeep.frameworks.paddle.capture import bytes_of

WIDE = 1100  # a frozen weight of 4.8 MB: in a file of its own


class Student:
    """A run that trains a small layer beside a frozen one, the teacher."""

    def __init__(self, folder: Path) -> None:
        paddle.seed(0)
        self.folder = folder
        self.events: list[Event] = []
        self.teacher = nn.Linear(WIDE, WIDE)
        for parameter in self.teacher.parameters():
            parameter.stop_gradient = True
        self.model = nn.Linear(WIDE, 2)
        self.optimizer = paddle.optimizer.SGD(0.01, parameters=self.model.parameters())
        self.run = colabkeep.Run(
            "r", storage=str(folder), keep_last=None, model=self.model, optimizer=self.optimizer, save_every=None,
            state={"teacher": self.teacher}, progress=False, callbacks=[self.events.append],
        )  # fmt: skip

    def step(self) -> None:
        self.model(self.teacher(paddle.randn([4, WIDE]))).square().mean().backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        self.run.step()

    def saved(self) -> SaveCommitted:
        self.run.save(wait=True)
        self.step()
        return self.of(SaveCommitted)[-1]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def stored(self) -> bytes:
        """The teacher's weight as a resumed run has it."""
        later = Student(self.folder)
        with later.run:
            return bits(later.teacher)


def numbers(layer: nn.Layer) -> Any:
    """A layer's weight, as NumPy sees it where it lies."""
    return np.frombuffer(bytes_of(layer.weight), np.float32)


def bits(layer: nn.Layer) -> bytes:
    return numbers(layer).tobytes()


def test_what_is_frozen_is_written_once(tmp_path: Path) -> None:
    """Later checkpoints name its file; the checkpoint of each of them is whole."""
    student = Student(tmp_path)
    with student.run:
        first, second, third = (student.saved() for _ in range(3))
    assert first.written > 4_000_000
    assert max(second.written, third.written) < 100_000
    assert student.stored() == bits(student.teacher)


def test_a_teacher_that_is_edited_is_in_the_checkpoint_that_is_waited_for(tmp_path: Path) -> None:
    """`run.save(wait=True)` returns with a checkpoint that has the edit, and nothing went wrong."""
    student = Student(tmp_path)
    with student.run:
        student.saved()
        student.teacher.weight.set_value(np.zeros([WIDE, WIDE], np.float32))
        edited = student.saved()
        assert edited.progress.step == 1
        assert edited.written > 4_000_000
        kept = bits(student.teacher)
    assert not student.of(SaveFailing)
    assert not [note.text for note in student.of(Noted) if "cop" in note.text or "chang" in note.text]
    assert student.stored() == kept


def test_a_teacher_that_is_edited_is_in_the_last_save_of_a_session(tmp_path: Path) -> None:
    """Nobody comes after it who could make it again."""
    student = Student(tmp_path)
    with student.run:
        student.saved()
        numbers(student.teacher)[7] += 1
    assert student.stored() == bits(student.teacher)


def test_frozen_weights_whose_file_vanished_are_written_again(tmp_path: Path) -> None:
    """Their copy in memory is gone by then, and the training has them still."""
    student = Student(tmp_path)
    with student.run:
        student.saved()
        for blob in tmp_path.glob("r/blobs/*"):
            blob.unlink()
        assert student.saved().written > 4_000_000
    assert student.stored() == bits(student.teacher)

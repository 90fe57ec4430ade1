"""Loaders that count by themselves, such as their passes, from which they shuffle: the count is part of a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import colabkeep
from colabkeep.core.events import RestoredInexactly


class Passes:
    """Another order in each pass."""

    def __init__(self) -> None:
        self.passed, self.token = 0, "token 0"

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.passed += 1
        self.token = f"token {self.passed}"
        yield from torch.tensor(random.Random(self.passed).sample(range(100), 4)).unsqueeze(1)


class Told(Passes):
    """It is told the epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.passed = 7 * epoch


class Within(IterableDataset[torch.Tensor]):
    """Another object counts, for a stream."""

    def __init__(self) -> None:
        self.passes = Passes()

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.passes)


class Noted(Within):
    """It is counted in a dict."""

    def __init__(self) -> None:
        self.seen = {"passed": 0}

    def __iter__(self) -> Iterator[torch.Tensor]:
        passes = Passes()
        passes.passed = self.seen["passed"]
        self.seen["passed"] += 1
        return iter(passes)


class Endless:
    """Goes on where it was left, in each pass; at first the class says where that is."""

    at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < 100:
            self.at += 1
            yield torch.tensor([self.at])


class Buffered(IterableDataset[torch.Tensor]):
    """Shuffles in a buffer, and tells its place."""

    def __init__(self) -> None:
        self.at, self.buffer = 0, list[int]()

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < 40:
            while len(self.buffer) < 8:
                self.at += 1
                self.buffer.append(self.at)
            yield torch.tensor([self.buffer.pop(int(torch.randint(8, ())))])

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "buffer": list(self.buffer)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.buffer = state["at"], list(state["buffer"])


LOADERS: dict[str, Callable[[], Any]] = {
    "its own": Passes,
    "of a stream": lambda: DataLoader(Within(), batch_size=None),
    "in a dict": lambda: DataLoader(Noted(), batch_size=None),
    "its place": Endless,
    "a buffer": lambda: DataLoader(Buffered(), batch_size=None),
}


def read(
    folder: Path, make: Callable[[], Any], stop: tuple[int, int] | None = None, *, anew: bool = False
) -> tuple[list[int], list[str]]:
    """What is drawn in four epochs of three batches, unless it dies at `stop` (epoch, batches), and what is not exact.
    `anew`: the loop sets its place in each epoch."""
    drawn, told, loader = list[int](), list[str](), make()

    def hear(event: object) -> None:
        told.extend([event.reason] if isinstance(event, RestoredInexactly) else [])

    words: dict[str, Any] = {"storage": str(folder), "progress": False, "save_every": 1, "callbacks": [hear]}
    with colabkeep.Run("r", model=nn.Linear(1, 1), **words) as run:
        for epoch in run.epochs(4):
            if stop == (epoch, 0):
                raise InterruptedError
            if anew:
                loader.at = 10
            for number, batch in run.enumerate(loader):
                drawn.append(int(batch))
                run.step()
                if stop == (epoch, number + 1):
                    run.save(wait=True)
                    raise InterruptedError
                if number == 2:
                    break
    return drawn, told


@pytest.mark.parametrize("stop", [(0, 2), (1, 1), (2, 0), (3, 0), (3, 2)])
@pytest.mark.parametrize("name", LOADERS)
def test_a_resumed_run_counts_on(tmp_path: Path, name: str, stop: tuple[int, int]) -> None:
    """In the middle of an epoch, and between two."""
    whole, _ = read(tmp_path / "whole", LOADERS[name])
    with pytest.raises(InterruptedError):
        read(tmp_path / "parts", LOADERS[name], stop)
    rest, told = read(tmp_path / "parts", LOADERS[name])
    assert rest == whole[-len(rest) :]
    assert len(rest) == 12 - 3 * stop[0] - stop[1]
    assert not told


@pytest.mark.parametrize("stop", [(1, 1), (2, 0), (3, 0)])
def test_what_the_loop_sets_anew_stays_as_it_is_set(tmp_path: Path, stop: tuple[int, int]) -> None:
    """It is not overwritten by where the epoch before ended."""
    with pytest.raises(InterruptedError):
        read(tmp_path, Endless, stop, anew=True)
    rest, told = read(tmp_path, Endless, anew=True)
    assert rest[-3:] == [11, 12, 13]
    assert not told


def test_what_is_set_with_the_epoch_is_no_doubt(tmp_path: Path) -> None:
    """As the line about the other ones says."""
    whole, _ = read(tmp_path / "whole", Told)
    with pytest.raises(InterruptedError):
        read(tmp_path / "parts", Told, (1, 0))
    rest, told = read(tmp_path / "parts", Told)
    assert rest == whole[3:]
    assert not told


def test_after_the_first_epoch_nobody_can_tell_the_two_apart(tmp_path: Path) -> None:
    """It counts on, and the resume is not called exact."""
    whole, _ = read(tmp_path / "whole", Passes)
    with pytest.raises(InterruptedError):
        read(tmp_path / "parts", Passes, (1, 0))
    rest, told = read(tmp_path / "parts", Passes)
    assert rest == whole[3:]
    (reason,) = told
    assert "Passes[0].passed" in reason
    stored = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert stored
    assert not any(b"token" in data for data in stored), "a sign-in may have changed it"

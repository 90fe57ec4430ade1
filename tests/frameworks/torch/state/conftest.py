"""Training stopped and resumed, for tests of torch's state."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from colabkeep.frameworks.common import moves
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import captured, same_bits

Parts = dict[str, Any]


@pytest.fixture
def framework() -> TorchFramework:
    return TorchFramework()


@pytest.fixture
def resumed() -> Callable[[Callable[[], Parts], Parts], Parts]:
    """New objects, as another session would build them, with the state of others."""

    def resume(make: Callable[[], Parts], before: Parts) -> Parts:
        trees = captured(TorchFramework(), before)
        torch.manual_seed(99)
        parts = make()
        later = TorchFramework()
        assert list(later.check(parts, trees)) == []
        later.restore(parts, trees)
        return parts

    return resume


@pytest.fixture
def continues(resumed: Any) -> Callable[..., Parts]:
    """Asserts that a training stopped and resumed in new objects ends with the same bits; returns the resumed."""

    def check(make: Callable[[], Parts], step: Callable[[Parts], None], *, steps: int = 3) -> Parts:
        torch.manual_seed(1)
        parts = make()
        for _ in range(steps):
            step(parts)
        later = resumed(make, parts)
        assert same_bits(captured(TorchFramework(), later), captured(TorchFramework(), parts))
        for i in range(steps):
            for one in (parts, later):
                torch.manual_seed(i)
                step(one)
        assert same_bits(captured(TorchFramework(), later), captured(TorchFramework(), parts))
        return later

    return check


@pytest.fixture
def late_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copying thread begins when somebody waits for it, so that what follows a save comes before its copy."""
    really, wait = _thread.start_new_thread, moves.Moves.wait
    gates: dict[int, threading.Event] = {}

    def late(work: Any, arguments: tuple[Any, ...]) -> int:
        gate = gates[id(work.__self__)] = threading.Event()
        return really(lambda: (gate.wait(), work(*arguments)), ())

    def waited_for(self: moves.Moves) -> None:
        if id(self) in gates:
            gates[id(self)].set()
        wait(self)

    monkeypatch.setattr(moves._thread, "start_new_thread", late)
    monkeypatch.setattr(moves.Moves, "wait", waited_for)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The copying thread begins when this is set."""
    gate, really = threading.Event(), _thread.start_new_thread

    def held(work: Callable[..., None], arguments: tuple[Any, ...]) -> int:
        return really(lambda: (gate.wait(60), work(*arguments)), ())

    monkeypatch.setattr(moves._thread, "start_new_thread", held)
    return gate

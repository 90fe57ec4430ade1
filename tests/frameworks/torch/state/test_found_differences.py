"""What seemed unchanged at a save, and was found to differ by the comparison in the background."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
import torch
from torch import nn

from colabkeep.testing.frameworks import same_bits
from colabkeep.vocabulary.state import Torn
from tests.frameworks.torch.state.trainings import HIDDEN, WIDE, Parts, Training, finished


def table_that_seldom_steps() -> Training:
    """Two optimizers; that of the table steps only when `parts["turn"]` asks for it. A frozen part keeps the thread
    busy."""
    first, table, frozen = nn.Linear(WIDE, WIDE), nn.Embedding(2000, 64), nn.Linear(600, 600).requires_grad_(False)
    parts: Parts = {
        "model": nn.ModuleList([first, table, frozen]),
        "optimizer": torch.optim.Adam(first.parameters()),
        "optimizer2": torch.optim.Adam(table.parameters(), lr=0.1),
    }
    turns: list[bool] = []

    def step(parts: Parts) -> None:
        if not turns or turns.pop():
            parts["optimizer2"].zero_grad()
            table(torch.randint(0, 2000, (4,))).sum().backward()
            parts["optimizer2"].step()
        parts["optimizer"].zero_grad()
        first(torch.randn(4, WIDE)).square().mean().backward()
        parts["optimizer"].step()

    training = Training(parts, step)
    training.framework._hiding._choice.hides = lambda: True  # type: ignore[method-assign]
    training.turns = turns  # type: ignore[attr-defined]
    return training


@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_a_step_does_not_hide_what_was_done_by_hand_before_the_save(delay: float) -> None:
    """A row set past the counter is in the checkpoint, or the save is thrown away, also if a step moves the counter
    before anybody has looked at what was found."""
    training = table_that_seldom_steps()
    training.step(2)
    finished(training.save()[0])
    training.turns.append(False)  # type: ignore[attr-defined]
    training.step()
    table = training.parts["model"][1].weight
    table.data[3] += 1
    capture, reference = training.save()
    assert capture.mode == HIDDEN
    time.sleep(delay)
    training.step()
    with pytest.raises(Torn, match=r"model\.1\.weight"):
        finished(capture)
    training.framework._hiding._choice.hides = lambda: False  # type: ignore[method-assign]
    capture, reference = training.save()
    assert same_bits(finished(capture), reference)


def test_an_average_that_follows_some_steps_costs_one_save_and_no_more(gate: threading.Event) -> None:
    """An average that was changed while it was compared throws that save away; from then on it is copied."""
    model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE))
    average = nn.Linear(WIDE, WIDE).requires_grad_(False)
    parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "average": average}
    training = Training(parts)
    training.framework._hiding._choice.hides = lambda: True  # type: ignore[method-assign]
    gate.set()
    training.step(2)
    finished(training.save()[0])
    torn: list[str] = []
    for _ in range(4):
        training.step()
        for _ in range(2):  # the second save finds the average as it was
            gate.clear()
            capture, reference = training.save()
            training.step()
            with torch.no_grad():
                average.weight.lerp_(model[0].weight, 0.5)
            gate.set()
            try:
                assert same_bits(finished(capture), reference)
            except Torn as error:
                torn.append(str(error))
        with contextlib.suppress(Torn):
            finished(training.save()[0])
    assert len(torn) == 1
    assert "average.weight" in torn[0]

"""Random generators of the script's own, handed in by `state=`: a resumed training draws the numbers it would have."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import colabkeep
from colabkeep.core.errors import NotStorable

GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "torch": (lambda: torch.Generator().manual_seed(1), lambda g: float(torch.randn((), generator=g))),
    "numpy": (lambda: np.random.default_rng(1), lambda g: float(g.normal())),
    "numpy, MT19937": (lambda: np.random.Generator(np.random.MT19937(1)), lambda g: float(g.normal())),
    "numpy, a bit generator": (lambda: np.random.PCG64(1), lambda g: float(g.random_raw())),
    "numpy, legacy": (lambda: np.random.RandomState(1), lambda g: float(g.normal())),
    "python": (lambda: random.Random(1), lambda g: g.gauss(0, 1)),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_goes_on_where_it_was(kind: str, tmp_path: Path) -> None:
    """Also with half of a pair of normal numbers pending."""
    make, draw = GENERATORS[kind]

    def session(folder: Path, steps: int) -> list[float]:
        model, generator = nn.Linear(2, 2), make()
        drawn = []
        with colabkeep.Run("r", model=model, state={"noise": generator}, storage=str(folder), progress=False) as run:
            for _ in run.steps(steps):
                drawn.append(draw(generator))
                run.step()
        return drawn

    whole = session(tmp_path / "whole", 7)
    assert session(tmp_path / "parts", 3) + session(tmp_path / "parts", 7) == whole
    assert len(set(whole)) == 7


def test_numbers_that_nobody_can_draw_again_are_refused(tmp_path: Path) -> None:
    """The system's own randomness has no state; it is said before training begins."""
    run = colabkeep.Run("r", state={"noise": random.SystemRandom()}, model=nn.Linear(1, 1), storage=str(tmp_path))
    with pytest.raises(NotStorable, match=r"state\.noise"), run:
        pass

"""A device that fails: its own error reaches the user, and the last checkpoint stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simcuda.device import Simulation
from tests.simcuda.lives import live
from tests.simcuda.programs import fp32, scaled, spread

pytestmark = pytest.mark.simulated


@pytest.mark.parametrize("program", [fp32, scaled, spread])
def test_the_last_checkpoint_stands_when_the_device_is_lost(program, simulation: Simulation, tmp_path: Path) -> None:
    """In the middle of a save's drain. Nothing of that save is stored, and a new session ends with the same bits."""
    whole = live(program, tmp_path / "whole")
    lost = live(program, tmp_path / "cut", "lost")
    assert lost.status == 1
    assert "CUDA error" in lost.error
    resumed = live(program, tmp_path / "cut")
    assert resumed.restored
    assert resumed.restored[0] >= lost.committed[-1]
    assert (resumed.status, resumed.inexact, resumed.digest) == (0, [], whole.digest)

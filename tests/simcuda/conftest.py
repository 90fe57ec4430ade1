"""The simulated device, for tests that need what only a simulation can do."""

from __future__ import annotations

import pytest

from tests.simcuda.device import Simulation, running


@pytest.fixture
def simulation() -> Simulation:
    """Skipped where the device is a real one, or there is none."""
    if (here := running()) is None:
        pytest.skip("needs the simulated device: python -m tests.simcuda")
    return here

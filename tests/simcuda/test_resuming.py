"""Programs on a CUDA device that are killed in a save and started again end with the bits of one that nobody disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.simcuda.lives import KILLED, live
from tests.simcuda.programs import PROGRAMS

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.orders,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices: python -m tests.simcuda"),
    pytest.mark.filterwarnings("ignore:PyTorch is not compiled with NCCL"),  # DataParallel copies without it
]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_killed_in_a_save_and_resumed_it_has_the_same_bits(program, tmp_path: Path) -> None:
    """SIGKILL while the copy of a save drains; the save before it is there, and whole."""
    whole = live(program, tmp_path / "whole")
    assert whole.status == 0, whole.error
    killed = live(program, tmp_path / "cut", "killed")
    assert killed.status == KILLED, killed.error
    resumed = live(program, tmp_path / "cut")
    assert resumed.status == 0, resumed.error
    assert resumed.restored
    assert resumed.restored[0] > 0
    assert resumed.inexact == []
    assert resumed.digest == whole.digest
    assert whole.notes.get("skipped", 2) == 2

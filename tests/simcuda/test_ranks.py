"""What a process that begins others tells of the GPUs."""

from __future__ import annotations

import gc

import pytest
import torch

from colabkeep.frameworks.torch.ranks import held
from tests.simcuda.device import Simulation

pytestmark = pytest.mark.simulated


def test_what_this_process_holds_of_each_gpu_is_measured_without_what_is_only_cached(simulation: Simulation) -> None:
    """A tensor that lives is held; one that is gone was given back."""
    gc.collect()
    before = held()[0]
    kept, gone = torch.ones(1 << 20, device="cuda"), torch.ones(1 << 21, device="cuda")
    del gone
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() >= before + (12 << 20)
    assert before + (4 << 20) <= held()[0] < before + (8 << 20)
    assert kept.sum().item() == 1 << 20

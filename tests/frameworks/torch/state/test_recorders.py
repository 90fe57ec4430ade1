"""What a capture is told of the tensors that it copies: nothing that changed is missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from colabkeep.frameworks.torch.state.host_memory import HostMemory
from colabkeep.frameworks.torch.state.recorders import Recorders
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import MemoryFull

pytestmark = pytest.mark.torch


def machine(root: Path, available: int) -> HostMemory:
    """A machine without a disk, of 100 MB of which so many are to be had."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/mounts").write_text("tmpfs / tmpfs rw 0 0\n")
    (root / "proc/meminfo").write_text(f"MemTotal: {100 * 1024} kB\nMemAvailable: {available * 1024} kB\n")
    return HostMemory(Environment(environ={}, root=root, folder=root))


def training(width: int) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(width))], momentum=0.9)


def step(optimizer: torch.optim.Optimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_what_was_found_while_memory_was_warmed_is_told_to_the_next_capture(tmp_path: Path) -> None:
    """An optimizer's first step makes its state; who looks first must not be the only one who hears of it."""
    recorders, optimizer = Recorders(machine(tmp_path, 90)), training(8)
    parts: dict[str, Any] = {"optimizer": optimizer}
    assert recorders.refresh(parts)
    step(optimizer)
    assert len(list(recorders.prepare(parts))) == 1
    assert recorders.refresh(parts)
    assert not recorders.refresh(parts)


def test_what_was_found_by_a_capture_without_room_is_told_to_the_next(tmp_path: Path) -> None:
    """Of two optimizers the first one's new state was planned for, when the second one's found no room."""
    small, large = training(8), training(2**20)
    parts: dict[str, Any] = {"small": small, "large": large}
    recorders = Recorders(machine(tmp_path, 2))
    recorders.refresh(parts)
    step(small)
    step(large)
    with pytest.raises(MemoryFull):
        recorders.refresh(parts)
    machine(tmp_path, 90)
    large.state.clear()
    assert recorders.refresh(parts)
    assert not recorders.refresh(parts)


def test_a_part_that_is_a_new_object_at_every_save_does_not_make_all_others_be_planned_anew(tmp_path: Path) -> None:
    """Where a training stands is told by a new object each time; no tensor of it belongs to an optimizer."""

    class Told:
        def state_dict(self) -> dict[str, int]:
            return {"step": 1}

    recorders, optimizer = Recorders(machine(tmp_path, 90)), training(8)
    assert recorders.refresh({"optimizer": optimizer, "run": Told()})
    assert not recorders.refresh({"optimizer": optimizer, "run": Told()})
    assert recorders.refresh({"optimizer": training(8), "run": Told()})

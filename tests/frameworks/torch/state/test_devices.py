"""A device whose state cannot be copied is refused before training, not at its first save."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from colabkeep.core.errors import NotStorable
from colabkeep.frameworks.torch.facts import refuse_devices

LAZY = """
import sys, torch, colabkeep
import torch._lazy.ts_backend
torch._lazy.ts_backend.init()
model = torch.nn.Linear(4, 2).to("lazy")
optimizer = torch.optim.AdamW(model.parameters())
steps = 0
try:
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=sys.argv[1], progress=False) as run:
        steps += 1
except colabkeep.ColabKeepError as error:
    print(type(error).__name__, steps)
    print(error)
"""


def test_a_lazy_device_is_refused_at_the_start_with_the_remedy(tmp_path: Path) -> None:
    """XLA is one of its kind; torch's own, which is in every build, is tried for real."""
    done = subprocess.run(
        [sys.executable, "-c", LAZY, str(tmp_path)], check=True, stdout=subprocess.PIPE, text=True, timeout=300
    )
    first, *text = done.stdout.splitlines()
    assert first == "NotStorable 0"
    assert "kind 'lazy'" in text[0]
    assert 'model.to("cuda")' in "\n".join(text)
    assert not list(tmp_path.glob("r/checkpoints/*"))


class Elsewhere(torch.Tensor):
    """A tensor that says it is on a device of another kind; its numbers are on the CPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("hpu")


def test_a_device_is_taken_if_its_numbers_come_back() -> None:
    """What a device is called does not matter: it is tried, and only its smallest tensor is moved."""
    tensors = [torch.ones(1000).as_subclass(Elsewhere), torch.tensor([1.5, -0.0]).as_subclass(Elsewhere)]
    moved: list[int] = []

    def capture(parts: object) -> torch.Tensor:
        (buffer,) = parts["trial"].buffers()  # type: ignore[index]
        moved.append(buffer.numel())
        return buffer.as_subclass(torch.Tensor).clone()

    refuse_devices(tensors, capture)
    assert moved == [2]


@pytest.mark.parametrize("fault", ["other numbers", "raises"])
def test_a_device_that_gives_other_numbers_is_refused(fault: str) -> None:
    """Or one whose driver raises whatever it likes."""

    def capture(_: object) -> torch.Tensor:
        if fault == "raises":
            raise ValueError("the driver says no")
        return torch.zeros(2)

    with pytest.raises(NotStorable, match="driver says no" if fault == "raises" else "other numbers"):
        refuse_devices([torch.ones(2).as_subclass(Elsewhere)], capture)


def test_the_devices_that_were_seen_to_work_are_not_tried() -> None:
    """They cost nothing at the start."""

    def capture(_: object) -> torch.Tensor:
        raise AssertionError

    refuse_devices([torch.ones(2), torch.empty(1, device="meta")], capture)

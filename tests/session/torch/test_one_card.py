"""What no simulated device shows: real kernels, NCCL and memory that really ends, on a machine with one NVIDIA card.
CI does not run these."""

from __future__ import annotations

import gc
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import colabkeep
from colabkeep.core.events import Event, Noted
from tests.simcuda.device import running
from tests.trainings.ranks import launched, session, there_and_back

pytestmark = [
    pytest.mark.card,
    pytest.mark.skipif(not torch.cuda.is_available() or running() is not None, reason="needs a real CUDA device"),
]

SHARED: dict[str, Any] = {"shared": True}  # by gloo, because NCCL refuses two processes on one card


@pytest.mark.parametrize(("fit", "killed"), [(True, 0), (False, 1)], ids=["resumable_fit", "Run"])
def test_two_processes_on_one_card_are_killed_and_come_to_the_same_bits(tmp_path: Path, fit: bool, killed: int) -> None:
    """Dropout and BatchNorm of real kernels in both; gradients that are summed over them."""
    words: dict[str, Any] = {**SHARED, "fit": fit, "draws": True, "accumulate": 2 if fit else 1}
    whole = session(tmp_path / "whole", 2, **words)
    assert whole.status == [0, 0], whole.errors
    broken = session(tmp_path / "run", 2, **words, at=[killed, 8], how="SIGKILL")
    assert broken.status[killed] == -signal.SIGKILL
    resumed = session(tmp_path / "run", 2, **words)
    assert resumed.status == [0, 0], resumed.errors
    assert resumed.resumed
    assert not resumed.reasons()
    assert resumed.end == whole.end


def test_from_two_processes_to_one_and_back_it_is_the_same_up_to_rounding(tmp_path: Path) -> None:
    """In float64 nothing but rounding is left."""
    there_and_back(tmp_path, **SHARED)


def test_one_process_that_was_begun_for_the_card_trains_with_nccl(tmp_path: Path) -> None:
    """The same bits as without a launcher."""
    plain = session(tmp_path / "plain", 1, draws=True)
    assert plain.status == [0], plain.errors
    begun = launched(tmp_path / "begun", 1, draws=True)
    assert begun.status == [0], begun.errors
    assert begun.end == plain.end


def fit(folder: Path, micro: Any, lengths: list[int], room: int, end: int | None = None) -> tuple[Any, str]:
    """A batch of 64 sequences for each length, with no more than `room` bytes of the card; the weights that it ends
    with, and what was told."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    width = 256
    layers = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width))]
    net = nn.Sequential(*layers, nn.LayerNorm(width)).cuda()
    generator = torch.Generator().manual_seed(1)
    data = [tuple(torch.randn(64, n, width, generator=generator) for _ in range(2)) for n in lengths]
    events: list[Event] = []
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + room) / whole)
    try:
        colabkeep.resumable_fit(
            net,
            data,
            optimizer=torch.optim.AdamW(net.parameters(), lr=1e-3),
            loss_fn=nn.functional.mse_loss,
            max_epochs=1,
            max_steps=end,
            run_name="r",
            storage=folder,
            precision="32-true",
            micro_batch=micro,
            progress=False,
            callbacks=[events.append],
            on_bad_gpu="ignore",
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    told = "\n".join(event.text for event in events if isinstance(event, Noted))
    return torch.cat([p.detach().flatten() for p in net.parameters()]).cpu(), told


def test_memory_that_ends_at_the_start_or_in_the_middle_makes_the_pieces_smaller(tmp_path: Path) -> None:
    """The card's own error. A run that met it, ended and went on comes to the bits of one that did not stop."""
    room, lengths = 400 << 20, [64, 64, 64, 512, 64, 64]  # a batch of 512 takes 570 MB before its backward
    whole, told = fit(tmp_path / "whole", "auto", lengths, room)
    assert "did not fit" in told
    first, told = fit(tmp_path / "first", "auto", [512] * 3, room)
    assert "of the 64 samples" in told
    micro = int(told.partition(" takes ")[2].partition(" of ")[0])
    assert torch.equal(first, fit(tmp_path / "fixed", micro, [512] * 3, 8 << 30)[0])
    for end in (2, 5, None):
        resumed, _ = fit(tmp_path / "cut", "auto", lengths, room, end=end)
    assert torch.equal(resumed, whole)


def test_the_check_names_the_card_as_its_driver_does() -> None:
    """Also where it is tried in another process."""
    assert torch.cuda.get_device_name(0) in str(colabkeep.check(probe=True))

"""A batch that does not fit into a device's memory: `micro_batch="auto"` finds what does, and disturbs nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import colabkeep
from colabkeep.core.events import Event, Noted, RestoredInexactly
from colabkeep.stores.local import DirectoryStore
from colabkeep.testing.faults import FaultyStore
from tests.simcuda.device import Simulation

pytestmark = pytest.mark.simulated

ROOM = 400_000  # bytes: for 512 rows of activations, not for 1024, and for what the first training here leaves behind


def fit(folder: Path, micro: Any, lengths: list[int], end: int | None = None) -> tuple[dict[str, Any], list[Event]]:
    """A batch of 32 sequences for each length, with BatchNorm and dropout; what the model ends with."""
    gc.collect()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.Tanh(), nn.BatchNorm1d(1), nn.Linear(32, 8))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows: torch.Tensor = self.inner(x.reshape(-1, 1, 8))
            return rows.reshape(x.shape)

    net = Net().cuda()
    generator = torch.Generator().manual_seed(1)
    data = [(torch.randn(32, n, 8, generator=generator), torch.randn(32, n, 8, generator=generator)) for n in lengths]
    events: list[Event] = []
    colabkeep.resumable_fit(
        net,
        data,
        optimizer=torch.optim.AdamW(net.parameters(), lr=1e-2),
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
    state = {name: value.cpu() for name, value in net.state_dict().items()}
    return {**state, "cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state()}, events


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_batch_that_does_not_fit_at_the_start_touches_nothing(simulation: Simulation, tmp_path: Path) -> None:
    """The training is, bit for bit, the one that had the micro-batch from the beginning, and the line says which."""
    with simulation.device_memory(ROOM):
        adapted, events = fit(tmp_path / "auto", "auto", [32] * 4)
    (said,) = [event.text for event in events if isinstance(event, Noted) and "of the 32 samples" in event.text]
    micro = int(said.partition(" takes ")[2].partition(" of ")[0])
    assert "Tesla T4" in said
    assert "BatchNorm" in said
    assert 1 <= micro < 32
    fixed, _ = fit(tmp_path / "fixed", micro, [32] * 4)
    assert equal(adapted, fixed)


def test_a_longer_sequence_in_the_middle_has_the_step_done_again_exactly(
    simulation: Simulation, tmp_path: Path
) -> None:
    """Its random numbers and BatchNorm's statistics are those of one attempt; killed runs come to the same bits."""
    lengths = [8, 8, 8, 32, 8, 8]
    with simulation.device_memory(ROOM):
        adapted, events = fit(tmp_path / "auto", "auto", lengths)
    (said,) = [event.text for event in events if isinstance(event, Noted) and "did not fit" in event.text]
    assert said.startswith("Step 4: 32 samples at a time did not fit")
    micro = int(said.partition("repeated with ")[2].partition(".")[0])
    fit(tmp_path / "by hand", None, lengths, end=3)
    assert equal(adapted, fit(tmp_path / "by hand", micro, lengths)[0])
    with simulation.device_memory(ROOM):
        for end in (2, 5, None):
            resumed, events = fit(tmp_path / "cut", "auto", lengths, end=end)
            assert not [event for event in events if isinstance(event, RestoredInexactly)]
    assert equal(adapted, resumed)


class Counts:
    """A part of the user's that changes whenever it likes, and not between steps only."""

    value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def fit_where(full: Callable[[torch.optim.Optimizer, int], bool], **words: Any) -> list[Event]:
    """Six batches of four samples, on a device that has no memory left where `full` says so of the number of samples.
    What was told, also where an error ended it."""

    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and full(optimizer, len(x)):
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
            return super().forward(x)

    net, events = Net(8, 8).cuda(), list[Event]()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    with suppress(torch.cuda.OutOfMemoryError):  # what is told of it is looked at
        colabkeep.resumable_fit(
            net,
            [(torch.ones(4, 8), torch.zeros(4, 8))] * 6,
            optimizer=optimizer,
            loss_fn=nn.functional.mse_loss,
            max_epochs=1,
            run_name="r",
            precision="32-true",
            micro_batch="auto",
            progress=False,
            callbacks=[events.append],
            on_bad_gpu="ignore",
            **words,
        )
    return events


def texts(events: list[Event]) -> str:
    return "\n".join(getattr(event, "text", "") or getattr(event, "reason", "") or "" for event in events)


def test_memory_that_a_save_takes_makes_no_smaller_pieces(simulation: Simulation, tmp_path: Path) -> None:
    """The step is begun again when the save is over, with as many samples."""
    saving, failed = threading.Event(), threading.Event()

    def upload(point: str) -> None:
        if point.startswith("before put r/blobs"):
            saving.set()
            assert failed.wait(30)

    def full(_: object, samples: int) -> bool:
        assert samples == 4
        if failed.is_set() or not saving.wait(0.2):
            return False
        failed.set()
        return True

    store = FaultyStore(DirectoryStore(tmp_path), at=upload)
    said = texts(fit_where(full, storage=store, save_every="1 step"))
    assert failed.is_set()
    assert "takes whole batches of 4 samples" in said
    assert "did not fit" not in said


def test_a_step_whose_optimizer_moved_on_is_not_begun_again(simulation: Simulation, tmp_path: Path) -> None:
    """Then the error stays what it is, and what is told says why."""

    def full(optimizer: torch.optim.Optimizer, _: int) -> bool:
        optimizer.step()
        return True

    assert "The step cannot be begun again" in texts(fit_where(full, storage=tmp_path))


def test_a_sample_that_does_not_fit_is_told_with_what_would_take_less(simulation: Simulation, tmp_path: Path) -> None:
    """Nothing is smaller than one sample."""
    tried: list[int] = []

    def full(_: object, samples: int) -> bool:
        tried.append(samples)
        return True

    assert "Not even one sample of a batch fits" in texts(fit_where(full, storage=tmp_path))
    assert tried == [4, 2, 1]


def test_a_part_that_may_have_changed_before_the_step_was_begun_again_takes_exact_back(
    simulation: Simulation, tmp_path: Path
) -> None:
    """Its `load_state_dict` may do anything, so it is not put back in the middle of a training."""
    said = texts(fit_where(lambda _, samples: samples > 2, storage=tmp_path, state={"counts": Counts()}))
    assert "a step was begun twice: counts may have been changed by the first attempt" in said

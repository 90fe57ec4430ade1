"""Losses on their way from a device: none is lost, none comes twice, and nothing waits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from colabkeep.frameworks.torch.adapter import TorchFramework, TorchLosses, _Ring
from colabkeep.testing.frameworks import Keeper, captured

CPU = torch.device("cpu")


@given(bursts=st.lists(st.integers(0, 700), max_size=6), settles=st.booleans())
@example(bursts=[1100], settles=True)  # two full rings before anybody asks
def test_each_loss_of_a_ring_is_told_once_and_in_order(bursts: list[int], settles: bool) -> None:
    """However many come before somebody asks; more than there is room for, too."""
    ring, told, step = _Ring(CPU), list[tuple[int, float]](), 0
    for burst in bursts:
        for _ in range(burst):
            step += 1
            ring.put(step, torch.tensor(float(step)))
        told += ring.settle() if settles else ring.arrived()
    told += ring.settle()
    assert told == [(each, float(each)) for each in range(1, step + 1)]
    assert len(ring) == 0


@given(before=st.integers(0, 900), waiting=st.integers(1, 500))
def test_what_has_not_arrived_is_in_the_checkpoint(before: int, waiting: int) -> None:
    """Wherever the ring stands."""
    losses = TorchLosses()
    ring = losses._rings[CPU] = _Ring(CPU)
    for step in range(1, before + 1):
        ring.put(step, torch.tensor(0.0))
    ring.settle()
    for step in range(before + 1, before + waiting + 1):
        ring.put(step, torch.tensor(step / 7, dtype=torch.float64))
    trees = captured(TorchFramework(), {"losses": Keeper(losses.state_dict())})
    expected = [(step, step / 7) for step in range(before + 1, before + waiting + 1)]
    assert TorchLosses().read(trees["losses"]["state"]["value"]) == expected
    assert losses.settle() == expected
    assert losses.state_dict() == {}


def test_a_loss_on_the_host_is_known_at_once() -> None:
    """Also one with a graph, of any type of number; what is not one number is left out."""
    losses = TorchLosses()
    leaf = torch.tensor(1.5, requires_grad=True)
    given_ = [2, 2.5, leaf * 2, torch.tensor([4]), torch.tensor(0.5, dtype=torch.float16), torch.ones(2), None, "x", 1j]
    assert [losses.take(1, loss) for loss in given_] == [2.0, 2.5, 3.0, 4.0, 0.5, None, None, None, None]
    assert losses.state_dict() == {}
    assert losses.settle() == []


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnAGpu:
    """Run where there is one, or a simulated one."""

    def test_no_step_and_no_capture_waits_for_the_device(self) -> None:
        """Torch itself raises where the host would wait. All losses arrive, in order."""
        losses, heard = TorchLosses(), list[tuple[int, float]]()
        device = torch.device("cuda")
        value = torch.zeros((), device=device)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(1, 201):
                value.add_(1.0)  # a captured graph writes each loss into the same memory
                assert losses.take(step, value) is None
                heard += losses.arrived()
                losses.state_dict()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        heard += losses.settle()
        assert heard == [(step, float(step)) for step in range(1, 201)]

    def test_what_a_checkpoint_holds_is_of_its_step(self) -> None:
        """Losses that come after the capture are not in it, those before it are, arrived or not."""
        framework, losses = TorchFramework(), TorchLosses()
        heard: list[tuple[int, float]] = []
        for step in range(1, 41):
            losses.take(step, torch.tensor(float(step), device="cuda"))
            heard += losses.arrived()
        capture = framework.capture({"losses": Keeper(losses.state_dict())})
        known = list(heard)
        for step in range(41, 81):
            losses.take(step, torch.tensor(-1.0, device="cuda"))
        snapshot = capture.finish()
        stored = losses.read(snapshot.parts["losses"]["state"]["value"])
        snapshot.release()
        assert [*known, *stored] == [(step, float(step)) for step in range(1, 41)]

"""The simulated device keeps CUDA's rules, and no more than those: what fails on it is wrong on a real one."""

from __future__ import annotations

import gc
import os

import pytest
import torch
from torch import nn

from tests.simcuda.device import Simulation

pytestmark = [pytest.mark.simulated, pytest.mark.orders]


def side_copy(source: torch.Tensor, side: torch.Stream) -> tuple[torch.Tensor, torch.Event]:
    """The tensor's copy to page-locked memory on that stream, and the event behind it."""
    target = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    with torch.cuda.stream(side):
        target.copy_(source, non_blocking=True)
        event = torch.cuda.Event()
        event.record(side)
    return target, event


def test_a_training_computes_what_the_cpu_does(simulation: Simulation) -> None:
    """Convolution, batch norm and both kinds of Adam, up to the order of sums: the CPU's own kernels compute them."""
    weights = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        net = [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 2)]
        model, x = nn.Sequential(*net), torch.randn(8, 3, 6, 6)
        model.to(device)
        for fused in (False, True):
            optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
            for _ in range(3):
                optimizer.zero_grad()
                model(x.to(device)).square().mean().backward()
                optimizer.step()
        weights.append([value.cpu() for value in model.state_dict().values()])
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(*weights, strict=True))


def test_a_copy_is_there_when_its_event_is(simulation: Simulation) -> None:
    """Before it, the target may hold anything; it is seen to that it does, unless the stream ran already."""
    source, side = torch.ones(64, device="cuda"), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    target, event = side_copy(source, side)
    early = target.clone()
    event.synchronize()
    assert target.eq(1).all()
    if simulation.schedule in ("worst_late", "side_late"):
        assert early.isnan().all()


def test_a_stream_that_does_not_wait_reads_too_early_or_too_late(simulation: Simulation) -> None:
    """Each of the two mistakes, no wait before the copy and none after it, is seen by one of the worst schedules."""
    value, side = torch.zeros(64, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    value.fill_(1)
    target, event = side_copy(value, side)  # a mistake: it may run before the line above
    value.fill_(2)  # another one: or after this line
    event.synchronize()
    torch.cuda.synchronize()
    seen = {"worst_early": 0.0, "side_late": 2.0, "eager": 1.0}
    assert target[0].item() == seen.get(simulation.schedule, target[0].item())


def test_streams_that_wait_for_each_other_are_in_order(simulation: Simulation) -> None:
    """No schedule breaks what events promise."""
    value, side = torch.zeros(64, device="cuda"), torch.cuda.Stream()
    for number in range(1, 20):
        value.fill_(number)
        side.wait_stream(torch.cuda.current_stream())
        target, event = side_copy(value, side)
        torch.cuda.current_stream().wait_event(event)
        value.fill_(-1)
        event.synchronize()
        assert target.eq(number).all()


@pytest.mark.parametrize("recorded", [True, False])
def test_freed_memory_is_used_again_unless_the_stream_that_reads_it_was_told(
    recorded: bool, simulation: Simulation
) -> None:
    """`record_stream` holds it back, for all that the other stream had queued by then; without, it is gone."""
    torch.cuda.empty_cache()
    side, late = torch.cuda.Stream(), simulation.schedule in ("worst_late", "side_late")
    value = torch.ones(5000, device="cuda")
    torch.cuda.synchronize()
    if recorded:
        value.record_stream(side)
    target, event = side_copy(value, side)
    where = value.data_ptr()
    del value
    gc.collect()
    other = torch.full((5000,), 7.0, device="cuda")
    if not recorded:
        assert other.data_ptr() == where
    elif late:
        assert other.data_ptr() != where
    event.synchronize()
    if recorded:
        assert target.eq(1).all()
    elif simulation.schedule == "side_late":
        assert not target.eq(1).any()


def test_device_memory_can_be_full(simulation: Simulation) -> None:
    """Torch's own error, and the numbers by which a program can know before."""
    kept = torch.ones(1000, device="cuda")
    with simulation.device_memory(1 << 20):
        assert torch.cuda.mem_get_info()[0] == 1 << 20
        torch.ones(1 << 17, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(1 << 20, device="cuda")
        torch.ones(1 << 18, device="cuda")  # as large as allowed, when what is cached was given back
    assert kept.sum().item() == 1000
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated() >= 4000


def test_page_locked_memory_can_run_out(simulation: Simulation) -> None:
    """As it does on a machine whose limit is low."""
    with simulation.page_locked_memory(1 << 16):
        kept = torch.empty(1 << 14, pin_memory=True)
        with pytest.raises(RuntimeError, match="out of memory"):
            torch.empty(1 << 14, pin_memory=True)
    assert kept.is_pinned()


def test_waits_of_the_training_thread_are_counted(simulation: Simulation) -> None:
    """And torch's own watch raises at what reads a number."""
    value = torch.ones(4, device="cuda")
    simulation.reset()
    torch.cuda.set_sync_debug_mode("error")
    try:
        value.add_(1)
        torch.empty(4, pin_memory=True).copy_(value, non_blocking=True)
        assert simulation.waits() == {}
        with pytest.raises(RuntimeError, match="synchronizing"):
            value.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().synchronize()
    torch.cuda.synchronize()
    assert simulation.waits() == {"aten::_local_scalar_dense": 1, "stream": 1, "device": 1}


def test_a_forked_child_may_not_use_the_device(simulation: Simulation) -> None:
    """As torch and the driver refuse it."""
    value = torch.ones(4, device="cuda")
    child = os.fork()
    if child == 0:
        try:
            value.add_(1)
        except RuntimeError as error:
            os._exit(7 if "forked subprocess" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_two_devices_are_two(simulation: Simulation) -> None:
    """Each with memory, streams and random numbers of its own."""
    torch.manual_seed(3)
    first, second = (torch.rand(8, device=f"cuda:{index}") for index in range(2))
    torch.cuda.manual_seed_all(3)
    assert torch.equal(first.cpu(), torch.rand(8, device="cuda:0").cpu())
    assert torch.equal(second.cpu(), torch.rand(8, device="cuda:1").cpu())
    assert torch.equal(first.to("cuda:1").cpu(), first.cpu())
    with pytest.raises(RuntimeError, match="same device"):
        first + second

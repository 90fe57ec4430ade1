"""State on a GPU. CI runs these on a simulated one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import Keeper, captured, same_bits, through_files
from tests.simcuda.device import running

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.orders,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


WIDTH = 160 if running() else 2048  # a real card needs work enough to be late; a simulated one is late by rule


def built(fused: bool = True) -> dict[str, Any]:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 2)).cuda()
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    return {"model": model, "optimizer": optimizer, "scaler": torch.amp.GradScaler("cuda", init_scale=512.0)}


def step(parts: dict[str, Any]) -> None:
    x = torch.randn(8, 3, 6, 6, device="cuda").to(memory_format=torch.channels_last)
    parts["optimizer"].zero_grad()
    parts["scaler"].scale(parts["model"](x).square().mean()).backward()
    parts["scaler"].step(parts["optimizer"])
    parts["scaler"].update()


@pytest.mark.parametrize("fused", [True, False])
def test_training_on_the_gpu_goes_on_with_the_same_bits(fused: bool, framework: TorchFramework) -> None:
    """Model, optimizer, scaler and the GPU's random stream, in new objects."""
    parts = {**built(fused), "rng": framework.rng()}
    for _ in range(3):
        step(parts)
    trees = captured(framework, parts)
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        for _ in range(3):
            step(parts)
        after = captured(framework, parts)
        later = TorchFramework()
        resumed = {**built(fused), "rng": later.rng()}
        assert list(later.check(resumed, trees)) == []
        later.restore(resumed, trees)
        for _ in range(3):
            step(resumed)
    assert same_bits(captured(later, resumed), after)


def test_a_capture_waits_for_the_kernels_before_it(framework: TorchFramework) -> None:
    """What was queued before the capture is in it; what is queued after it is not."""
    big = torch.zeros(2**16 if running() else 2**24, device="cuda")
    keeper = Keeper(big)
    framework.capture({"big": keeper}).finish().release()
    for value in range(1, 12):
        for _ in range(20):
            big.fill_(-1.0)
        big.fill_(float(value))
        snapshot = framework.capture({"big": keeper}).finish()
        big.fill_(-2.0)
        host = snapshot.parts["big"]["state"]["value"].value["data"]
        assert torch.frombuffer(host.data, dtype=torch.float32).eq(value).all()
        snapshot.release()


def test_what_comes_from_a_gpu_goes_through_page_locked_memory(framework: TorchFramework) -> None:
    """The copy runs at the bus's speed, through two pieces, again and again."""
    for _ in range(2):
        framework.capture(built()).finish().release()
    assert len(framework._kit._devices.pieces) == 2
    assert all(piece.is_pinned() for piece in framework._kit._devices.pieces)


def test_a_run_moves_from_the_gpu_to_the_cpu_and_back(framework: TorchFramework) -> None:
    """Another machine has no GPU: weights and moments follow the model, kernels are chosen anew."""
    parts = built()
    step(parts)
    trees = captured(framework, parts)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 2))
    here = {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "scaler": torch.amp.GradScaler("cpu")}
    framework.restore(here, trees)
    assert torch.equal(model[4].weight, parts["model"][4].weight.cpu())
    assert here["optimizer"].param_groups[0]["fused"] is None
    back = built()
    framework.restore(back, captured(TorchFramework(), here))
    state = back["optimizer"].state[back["model"][4].weight]
    assert state["exp_avg"].is_cuda
    step(back)


def test_the_streams_of_all_gpus_are_kept(framework: TorchFramework) -> None:
    """Dropout on the GPU goes on where it was; a step that broke is taken back."""
    torch.rand(1, device="cuda")
    trees = captured(framework, {"rng": framework.rng()})
    first = torch.rand(4, device="cuda")
    framework.rng().load_state_dict(framework.native(trees["rng"])["state"])
    assert torch.equal(torch.rand(4, device="cuda"), first)
    boundary = framework.boundary({})
    boundary.mark()
    second = torch.rand(4, device="cuda")
    boundary.rewind()
    assert torch.equal(torch.rand(4, device="cuda"), second)


def test_the_promise_names_the_switch(framework: TorchFramework) -> None:
    """Without deterministic kernels no exact bits are promised, and the user learns how to get them."""
    parts = built()
    assert any("use_deterministic_algorithms" in told for told in framework.exactness(parts).obstacles)
    assert framework.fingerprint(parts)["gpu"].startswith(torch.cuda.get_device_name())


def test_a_copy_on_the_gpu_is_that_of_a_full_stop(framework: TorchFramework) -> None:
    """Kernels of the step before come first, those of the next step after; nobody waits on the host."""
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(8)]).cuda()
    parts: dict[str, Any] = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), fused=True)}
    boundary = framework.boundary(parts)
    for _ in range(8):
        for _ in range(2):
            parts["optimizer"].zero_grad()
            model(torch.randn(64, WIDTH, device="cuda")).square().mean().backward()
            parts["optimizer"].step()
            boundary.mark()
        reference = captured(TorchFramework(), parts)
        capture = framework.capture(parts)
        parts["optimizer"].step()
        boundary.mark()
        snapshot = capture.finish()
        assert same_bits(through_files(snapshot.parts), reference)
        snapshot.release()


def test_weights_on_the_gpu_edited_behind_the_save_are_those_of_the_save(framework: TorchFramework) -> None:
    """In stream order, past every counter."""
    model = nn.Linear(2 * WIDTH, 2 * WIDTH).cuda()
    parts: dict[str, Any] = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    model(torch.randn(4, 2 * WIDTH, device="cuda")).sum().backward()
    parts["optimizer"].step()
    reference = captured(TorchFramework(), parts)
    capture = framework.capture(parts)
    model.weight.data[17] = 0
    assert same_bits(through_files(capture.finish().parts), reference)


def with_optimizer(model: nn.Module) -> dict[str, Any]:
    """A model with its optimizer."""
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}


def test_buffers_are_those_of_the_save_though_nobody_waited_for_them(framework: TorchFramework) -> None:
    """Batch norm changes them in the very next forward pass, which the device runs after their copy."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)).cuda()
    parts = with_optimizer(model)
    boundary = framework.boundary(parts)
    x = torch.randn(256, WIDTH, device="cuda")
    for _ in range(20):
        parts["optimizer"].zero_grad()
        model(x).square().mean().backward()
        parts["optimizer"].step()
        boundary.mark()
        reference = captured(TorchFramework(), parts)
        for _ in range(20):
            x = (x @ model[0].weight.detach()).tanh()  # kernels that are still queued when the copy is asked for
        capture = framework.capture(parts)
        model(x)
        parts["optimizer"].step()
        boundary.mark()
        snapshot = capture.finish()
        assert same_bits(through_files(snapshot.parts), reference)
        snapshot.release()


def test_a_training_on_a_stream_of_its_own_is_saved_as_it_was(framework: TorchFramework) -> None:
    """The copies wait for the stream that is in use at the save, and that stream for them."""
    with torch.cuda.stream(torch.cuda.Stream()):
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)]).cuda()
        parts = with_optimizer(model)
        boundary = framework.boundary(parts)
        for _ in range(10):
            parts["optimizer"].zero_grad()
            model(torch.randn(512, WIDTH, device="cuda")).square().mean().backward()
            parts["optimizer"].step()
            boundary.mark()
            capture = framework.capture(parts)
            reference = captured(TorchFramework(), parts)
            parts["optimizer"].step()
            boundary.mark()
            snapshot = capture.finish()
            assert same_bits(through_files(snapshot.parts), reference)
            snapshot.release()


def test_memory_that_training_lets_go_of_is_not_given_away_under_the_copy(framework: TorchFramework) -> None:
    """Weights replaced after a save are read to the end, whatever is allocated meanwhile."""
    model = nn.Linear(2 * WIDTH, 2 * WIDTH).cuda()
    parts = with_optimizer(model)
    boundary = framework.boundary(parts)
    for _ in range(10):
        parts["optimizer"].zero_grad()
        model(torch.randn(64, 2 * WIDTH, device="cuda")).square().mean().backward()
        parts["optimizer"].step()
        boundary.mark()
        reference = model.weight.detach().cpu()
        capture = framework.capture(parts)
        model.weight.data = torch.zeros_like(model.weight)
        torch.full((2 * WIDTH, 2 * WIDTH), -1.0, device="cuda")
        snapshot = capture.finish()
        kept = framework.native(snapshot.parts["model"]["weights"]["weight"])
        assert torch.equal(kept, reference)
        snapshot.release()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_model_over_two_gpus_is_saved_as_it_was(framework: TorchFramework) -> None:
    """Each device copies beside its own kernels."""
    first, second = nn.Linear(WIDTH, WIDTH).to("cuda:0"), nn.Linear(WIDTH, WIDTH).to("cuda:1")
    parts = with_optimizer(nn.ModuleList([first, second]))
    boundary = framework.boundary(parts)
    for _ in range(10):
        parts["optimizer"].zero_grad()
        second(first(torch.randn(512, WIDTH, device="cuda:0")).to("cuda:1")).square().mean().backward()
        parts["optimizer"].step()
        boundary.mark()
        reference = captured(TorchFramework(), parts)
        capture = framework.capture(parts)
        parts["optimizer"].step()
        boundary.mark()
        snapshot = capture.finish()
        assert same_bits(through_files(snapshot.parts), reference)
        snapshot.release()

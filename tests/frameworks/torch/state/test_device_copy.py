"""Copies on a GPU, drained behind training. These need one, or a simulated one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from colabkeep.core.state import Stale, Withheld
from colabkeep.frameworks.torch import copies
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.frameworks.torch.copies import Checksums
from colabkeep.testing.frameworks import Keeper

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

Parts = dict[str, Any]
WIDE = 200  # a weight of 160 kB


@pytest.fixture(params=[2**25, 5000])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page-locked pieces that hold everything, and such that no tensor fits into one."""
    monkeypatch.setattr(copies, "_PIECE", request.param)
    monkeypatch.setattr(copies, "_GATHERED", 2**17)


def layers() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, WIDE), nn.Linear(WIDE, WIDE)
    )
    return model.cuda().to(memory_format=torch.channels_last)


def built(**settings: Any) -> Parts:
    model = layers()
    frozen = nn.Linear(WIDE, WIDE).cuda().requires_grad_(False)
    odd = nn.Module()
    odd.register_buffer("bytes", torch.arange(7, dtype=torch.uint8, device="cuda")[1:])
    odd.register_buffer("conjugate", torch.randn(5, 3, dtype=torch.complex64, device="cuda").t().conj())
    odd.register_buffer("transposed", torch.randn(3, 2, device="cuda", dtype=torch.float64).t())
    odd.register_buffer("fp16", torch.randn(3, device="cuda").half())
    odd.register_buffer("flags", torch.tensor([True, False, True], device="cuda"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **settings)
    scaler = torch.amp.GradScaler("cuda", init_scale=512.0, growth_interval=2)
    ema = layers()  # followed by hand, past every counter
    return {"model": model, "frozen": frozen, "odd": odd, "optimizer": optimizer, "scaler": scaler, "ema": ema}


def step(parts: Parts) -> None:
    parts["optimizer"].zero_grad()
    x = torch.randn(4, 3, 6, 6, device="cuda").to(memory_format=torch.channels_last)
    loss = parts["model"](x).square().mean()
    parts["scaler"].scale(loss).backward()
    parts["scaler"].step(parts["optimizer"])
    parts["scaler"].update()
    for average, each in zip(parts["ema"].parameters(), parts["model"].parameters(), strict=True):
        average.data.lerp_(each.data, 0.1)


class Training:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.framework = TorchFramework()
        self.boundary = self.framework.boundary(parts)

    def step(self) -> None:
        step(self.parts)
        self.boundary.mark()

    def stored(self) -> None:
        """A save to its end, as the engine makes it."""
        snapshot = self.framework.capture(self.parts).finish()
        snapshot.stored()
        snapshot.release()

    @staticmethod
    def withheld(snapshot: Any) -> bool:
        return isinstance(snapshot.parts["frozen"]["weights"]["weight"].data, Withheld)


def truth_of(parts: Parts) -> dict[str, torch.Tensor]:
    """All tensors of the parts, read by torch alone, which waits."""
    found = {
        f"{part}.{name}": value
        for part in parts
        if isinstance(parts[part], nn.Module)
        for name, value in parts[part].state_dict().items()
    }
    names = {id(p): f"model.{name}" for name, p in parts["model"].named_parameters()}
    for parameter, entry in parts["optimizer"].state.items():
        found |= {f"optimizer.{names[id(parameter)]}.{key}": value for key, value in entry.items()}
    return {name: value.detach().cpu().clone() for name, value in found.items()}


def is_true(snapshot: Any, truth: dict[str, torch.Tensor]) -> bool:
    """Has a snapshot these very numbers?"""
    found = {}
    for part, tree in snapshot.parts.items():
        stored = TorchFramework().native(tree)
        found |= {f"{part}.{name}": value for name, value in stored.get("weights", {}).items()}
        if part == "optimizer":
            entries = stored["state"].items()
            found |= {f"optimizer.{name}.{key}": value for name, entry in entries for key, value in entry.items()}
    assert found.keys() == truth.keys()
    return all(torch.equal(found[name], truth[name]) for name in truth)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("settings", [{}, {"fused": True}, {"capturable": True}, {"foreach": False}], ids=str)
def test_a_copy_on_the_device_is_that_of_its_moment(settings: dict[str, Any]) -> None:
    """Kernels of the step before come first, those of the next step after; nobody waits on the host."""
    training = Training(built(**settings))
    for _ in range(3):
        training.step()
        truth = truth_of(training.parts)
        capture = training.framework.capture(training.parts)
        training.step()
        training.parts["odd"].bytes.fill_(3)
        snapshot = capture.finish()
        assert is_true(snapshot, truth)
        snapshot.release()


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_neither_a_step_nor_a_save_waits_for_the_device(no_waiting: None) -> None:
    """Under torch's own watch: nothing that training calls is held up, nor does the writer raise."""
    torch.cuda.set_sync_debug_mode("default")
    parts = built()
    del parts["scaler"]
    training = Training(parts)
    losses = training.framework.losses()
    for each in range(40):
        parts["optimizer"].zero_grad()
        loss = parts["model"](torch.randn(4, 3, 6, 6, device="cuda")).square().mean()
        loss.backward()
        parts["optimizer"].step()
        torch.cuda.set_sync_debug_mode("error")
        losses.take(each, loss)
        losses.arrived()
        training.boundary.mark()
        if each % 10 == 9:
            capture = training.framework.capture(
                {**parts, "losses": Keeper(losses.state_dict()), "rng": training.framework.rng()}
            )
            snapshot = capture.finish()
            snapshot.stored()
            snapshot.release()
        torch.cuda.set_sync_debug_mode("default")


def test_gradients_that_are_cleared_in_place_are_looked_at_all_at_once(no_waiting: None) -> None:
    """`zero_grad(set_to_none=False)` leaves zeros: they are told by name, and nothing is read one by one."""
    torch.cuda.set_sync_debug_mode("default")
    parts = built()
    training = Training(parts)
    for _ in range(3):
        parts["model"](torch.randn(4, 3, 6, 6, device="cuda")).square().mean().backward()
        parts["optimizer"].step()
        parts["optimizer"].zero_grad(set_to_none=False)
        training.boundary.mark()
    parts["model"][0].bias.grad.fill_(1)
    torch.cuda.set_sync_debug_mode("error")
    told = training.boundary.gradients.state_dict()
    assert set(told["values"]) == {"0.0.bias"}
    assert len(told["zero"]) == len(list(parts["model"].parameters())) - 1


def test_the_scale_is_told_without_waiting(no_waiting: None) -> None:
    """`GradScaler.state_dict()` would wait for the device twice; what is stored is what it tells."""
    torch.cuda.set_sync_debug_mode("default")
    training = Training(built())
    for _ in range(5):
        training.step()
    told = training.parts["scaler"].state_dict()
    torch.cuda.set_sync_debug_mode("error")
    snapshot = training.framework.capture(training.parts).finish()
    assert snapshot.parts["scaler"]["state"] == told
    assert list(snapshot.parts["scaler"]["state"]) == list(told)
    assert [type(value) for value in snapshot.parts["scaler"]["state"].values()] == [type(v) for v in told.values()]


def test_the_device_gets_its_memory_back() -> None:
    """When a save is drained, the device holds no copy any more."""
    training = Training(built())
    training.step()
    training.stored()  # with the numbers that checksums are made with
    before = torch.cuda.memory_allocated()
    capture = training.framework.capture(training.parts)
    assert torch.cuda.memory_allocated() > before
    snapshot = capture.finish()
    assert torch.cuda.memory_allocated() <= before + 2**20
    snapshot.release()


def full(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "no room":
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (2**10, 2**34))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: 0)
    else:

        def refused(*_: object) -> Any:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

        monkeypatch.setattr(copies, "_copied", refused)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("how", ["no room", "out of memory"])
def test_a_full_device_is_copied_straight_to_host_memory(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training waits, sees no error, and is told once why."""
    training = Training(built())
    training.step()
    truth = truth_of(training.parts)
    full(monkeypatch, how)
    capture = training.framework.capture(training.parts)
    training.step()
    assert "the GPU has no room for a copy" in capture.remark
    assert is_true(capture.finish(), truth)


def test_room_is_what_a_step_leaves_at_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies free between two steps is needed in the next one; a peak that the user has reset is remembered."""
    device, devices = torch.device("cuda", 0), copies.Devices()
    stats = {"reserved_bytes.all.current": 8 * 2**30, "allocated_bytes.all.peak": 10 * 2**30}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (6 * 2**30, 16 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats)
    assert devices.has_room(device, 3 * 2**30)
    assert not devices.has_room(device, 3 * 2**30 + 1)
    stats["allocated_bytes.all.peak"] = 2**30
    assert not devices.has_room(device, 3 * 2**30 + 1)


EDITS: dict[str, Callable[[torch.Tensor], object]] = {
    "one number": lambda weight: weight.data.view(-1)[7].add_(1),
    "a row": lambda weight: weight.data[17].zero_(),
    "signs": lambda weight: weight.data.view(-1)[:2].neg_(),
    "two swapped": lambda weight: weight.data.view(-1)[:2].copy_(weight.data.view(-1)[:2].flip(0).clone()),
    "the last": lambda weight: weight.data.view(-1)[-1:].add_(1),
    "all": lambda weight: weight.data.mul_(0.5),
}


@pytest.mark.parametrize("edit", EDITS)
def test_frozen_weights_on_the_device_are_let_go_of_and_watched(edit: str) -> None:
    """Their checksum is of the very moment: an edit behind the save changes nothing, one before it is stored."""
    training = Training(built())
    weight = training.parts["frozen"].weight
    training.step()
    training.stored()
    capture = training.framework.capture(training.parts)
    EDITS[edit](weight)  # behind the save: not of its moment
    snapshot = capture.finish()
    assert training.withheld(snapshot)
    snapshot.release()
    with pytest.raises(Stale):
        training.framework.capture(training.parts).finish()
    for _ in range(2):
        truth = truth_of(training.parts)
        capture = training.framework.capture(training.parts)
        EDITS[edit](weight)
        snapshot = capture.finish()
        assert is_true(snapshot, truth)
        snapshot.stored()
        snapshot.release()


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.float16, torch.float64])
def test_a_checksum_tells_of_every_byte(dtype: torch.dtype) -> None:
    """Of rows, what is left of one, and bytes that fill no word; the same bytes have the same one."""
    device = torch.device("cuda", 0)
    checksums = Checksums(device)
    whole = torch.zeros(9 * 2**20 + 11, dtype=torch.uint8, device=device)
    size = whole.numel() // dtype.itemsize
    data = whole[: size * dtype.itemsize].view(dtype)
    before = checksums.of(data).cpu()
    assert before.nbytes == Checksums.size(data.nbytes)
    for at in (0, 1, 2**20 - 1, 2**20, 8 * 2**20 + 5, data.nbytes - 1):
        whole[at] = 128
        assert not torch.equal(checksums.of(data).cpu(), before), at
        whole[at] = 0
    assert torch.equal(checksums.of(data).cpu(), before)


def test_a_save_while_a_graph_is_captured_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is allocated or waited for on the stream: the save is made at the next boundary."""
    training = Training(built())
    training.step()
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        patch.setattr(torch.cuda, "Event", None)
        capture = training.framework.capture(training.parts)
        with pytest.raises(Stale):
            capture.finish()
    truth = truth_of(training.parts)
    assert is_true(training.framework.capture(training.parts).finish(), truth)


def test_a_device_that_is_lost_fails_the_save_and_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes where the copy is waited for, on the writer's thread; the memory is free for the next try."""
    training = Training(built())
    training.step()
    capture = training.framework.capture(training.parts)

    def lost(self: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    with monkeypatch.context() as patch:
        patch.setattr(copies._Arrival, "__call__", lost)
        with pytest.raises(RuntimeError, match="launch failure"):
            capture.finish()
    truth = truth_of(training.parts)
    assert is_true(training.framework.capture(training.parts).finish(), truth)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_parts_on_two_devices_and_the_host_are_of_one_moment() -> None:
    """Each device copies beside its own kernels; the host copies while they do."""
    layers = nn.ModuleList([nn.Linear(WIDE, WIDE).to(place) for place in ("cuda:0", "cuda:1", "cpu")])
    parts = {"model": layers, "optimizer": torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)}
    framework = TorchFramework()
    for _ in range(3):
        for layer in layers:
            layer(torch.randn(4, WIDE, device=layer.weight.device)).square().mean().backward()
        parts["optimizer"].step()
        truth = truth_of(parts)
        capture = framework.capture(parts)
        parts["optimizer"].step()
        snapshot = capture.finish()
        assert is_true(snapshot, truth)
        snapshot.release()

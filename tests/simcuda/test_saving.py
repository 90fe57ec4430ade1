"""Saves that meet what a GPU has in store: its memory is full, page-locked memory too, the state changes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import colabkeep
from colabkeep.core.events import SaveCommitted
from colabkeep.core.state import Stale, Tagged, Withheld
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.frameworks.torch.copies import Devices
from tests.simcuda.device import Simulation
from tests.simcuda.pieces import SMALL
from tests.simcuda.programs import batches, loader, loss_of, net

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.orders,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices: python -m tests.simcuda"),
]

WIDTH = 48  # weights of nine kilobytes, so three pieces


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, size in SMALL:
        monkeypatch.setattr(module, name, size)


class Training:
    """A model with a frozen half, stepped by hand; nothing in it waits for the device."""

    def __init__(self, device: str = "cuda") -> None:
        torch.manual_seed(0)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
        self.model = nn.ModuleList([self.frozen, self.net]).to(device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.x = torch.randn(8, WIDTH).to(device)

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.net(self.frozen(self.x)).square().mean().backward()
        self.optimizer.step()

    def truth(self) -> dict[str, torch.Tensor]:
        """What the model holds now, on its devices and in their order."""
        return {name: one.detach().clone() for name, one in self.model.state_dict().items()}


def kept(framework: TorchFramework, snapshot: Any, before: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The snapshot's weights and buffers. What it withholds, since it is stored and was proven to be as then, is as in
    the snapshot `before`."""
    model, found = snapshot.parts["model"], {}
    for name, leaf in {**model["weights"], **model.get("buffers", {})}.items():
        host = leaf.value["data"] if isinstance(leaf, Tagged) else leaf
        found[name] = before[name] if isinstance(host.data, Withheld) else framework.native(leaf).clone()
    return found


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value.cpu(), other[name].cpu()) for name, value in one.items()
    )


def replaced(training: Training) -> None:
    training.net[0].weight.data = torch.full_like(training.net[0].weight, 7.0)


def another_parameter(training: Training) -> None:
    training.net[0].weight = nn.Parameter(torch.full_like(training.net[0].weight, 7.0))


def resized(training: Training) -> None:
    training.net[2] = nn.Linear(WIDTH, 2 * WIDTH).cuda()


def to_the_host(training: Training) -> None:
    training.net[0].cpu()


def to_the_other_device(training: Training) -> None:
    training.net[0].to("cuda:1")


def shared(training: Training) -> None:
    training.net[2].weight = training.net[0].weight


def in_another_order(training: Training) -> None:
    training.net[0].weight.data = training.net[0].weight.data.t().contiguous().t()


def in_half_precision(training: Training) -> None:
    training.net.half()


def frozen_edited(training: Training) -> None:
    training.frozen.weight.data[3:5, 7:9].mul_(2)


def frozen_edited_by_detach(training: Training) -> None:
    training.frozen.weight.detach().view(-1)[-1:].add_(1)


def stepped_again(training: Training) -> None:
    for _ in range(3):
        training.optimizer.step()


EDITS = (
    replaced,
    another_parameter,
    resized,
    to_the_host,
    to_the_other_device,
    shared,
    in_another_order,
    in_half_precision,
    frozen_edited,
    frozen_edited_by_detach,
    stepped_again,
)


def finished(framework: TorchFramework, parts: dict[str, Any]) -> Any:
    """A snapshot, as the engine makes one: again, where something that was held to be unchanged was not."""
    with suppress(Stale):
        return framework.capture(parts).finish()
    return framework.capture(parts).finish()


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_state_changed_between_two_saves_is_in_the_later_one_only(edit: Callable[[Training], None]) -> None:
    """Whatever is done to it, and though the copy of the earlier one still drains."""
    framework, training, found = TorchFramework(), Training(), dict[str, torch.Tensor]()
    for _ in range(3):  # from the second on, what is frozen is proven and not copied
        training.step()
        snapshot = finished(framework, training.parts)
        found = kept(framework, snapshot, found)
        snapshot.stored()
        snapshot.release()
    training.step()
    capture = framework.capture(training.parts)
    before = training.truth()
    edit(training)
    snapshot = capture.finish()
    found = kept(framework, snapshot, found)
    assert equal(found, before)
    snapshot.stored()
    snapshot.release()
    after = training.truth()
    snapshot = finished(framework, training.parts)
    assert equal(kept(framework, snapshot, found), after)
    snapshot.release()


def test_what_is_frozen_is_proven_on_whatever_stream_a_save_is_made() -> None:
    """Also where the save before, on a stream that nobody waited for, was given up."""
    framework, training, found = TorchFramework(), Training(), dict[str, torch.Tensor]()
    parts = {"model": training.frozen}
    torch.cuda.synchronize()
    for number in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            framework.capture(parts).release()
        with torch.cuda.stream(torch.cuda.Stream()):
            capture = framework.capture(parts)
        snapshot = capture.finish()  # raises Stale where a checksum is wrong
        found = kept(framework, snapshot, found)
        assert equal(found, training.frozen.state_dict())
        withheld = [isinstance(leaf.data, Withheld) for leaf in snapshot.parts["model"]["weights"].values()]
        assert any(withheld) is (number > 0)
        snapshot.stored()
        snapshot.release()
        torch.cuda.synchronize()


def test_the_scale_of_a_scaler_is_that_of_the_save() -> None:
    """It lives on the device, and the next update may come before anybody has read it."""
    framework, scaler = TorchFramework(), torch.amp.GradScaler("cuda", init_scale=512.0)
    scaler.scale(torch.ones(1, device="cuda"))
    for number in range(1, 5):
        scaler._scale.fill_(number + 0.25)
        capture = framework.capture({"scaler": scaler})
        scaler._scale.fill_(77.5)
        snapshot = capture.finish()
        assert str(number + 0.25) in str(snapshot.parts["scaler"])
        snapshot.release()


class Heard(list[Any]):
    """The saves that were committed."""

    def __call__(self, event: object) -> None:
        if isinstance(event, SaveCommitted):
            self.append(event)


def resumed(folder: Path, make: Callable[[], tuple[nn.Module, torch.optim.Optimizer]]) -> tuple[Any, Any]:
    """What a new session finds in the store."""
    model, optimizer = make()
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=folder, resume="must", progress=False):
        return model.state_dict(), optimizer.state_dict()


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net(WIDTH).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def trained(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **words: Any) -> Heard:
    """Two epochs, saved after every third step. The last save is the one of the end."""
    heard = Heard()
    words = {"save_every": "3 steps", **words}
    with colabkeep.Run(
        "r", model=model, optimizer=optimizer, storage=folder, progress=False, callbacks=[heard], **words
    ) as run:
        for x, y in batches(run, loader()):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
    return heard


def is_in(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Does the store hold what these hold now?"""
    weights, moments = resumed(folder, fresh)
    mine = optimizer.state_dict()["state"]
    return all(torch.equal(value.cpu(), model.state_dict()[name].cpu()) for name, value in weights.items()) and all(
        torch.equal(value.cpu(), mine[number][name].cpu())
        for number, each in moments["state"].items()
        for name, value in each.items()
    )


def needed(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the device that steps take beyond what the model and its optimizer have, without any run."""
    step_by_hand(model, optimizer)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    step_by_hand(model, optimizer)
    return torch.cuda.memory_reserved() - before


def step_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for x, y in loader():
        optimizer.zero_grad()
        loss_of(model, x.cuda(), y.cuda()).backward()
        optimizer.step()


@pytest.mark.parametrize("asked", [True, False])
def test_a_full_device_never_brings_a_step_out_of_memory(
    asked: bool, simulation: Simulation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where there is no room for a copy, and where there was when it was asked for, each save goes straight to host
    memory, and training gets all that the device has."""
    if not asked:
        monkeypatch.setattr(Devices, "has_room", lambda *_: True)
    model, optimizer = fresh()
    room = needed(model, optimizer)
    with simulation.device_memory(room + 2**14):  # the ring of losses; a copy takes 60 KB
        heard = trained(tmp_path, model, optimizer)
    assert not asked or "no room" in heard[-1].copy
    assert is_in(tmp_path, model, optimizer)


@pytest.mark.parametrize("room", [0, 2**11, 2**13, 2**14, 2**15])
def test_an_error_for_want_of_memory_in_the_copy_itself_stays_there(
    room: int, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room was there when it was asked for: another program was quicker, or it lies in too small pieces."""
    monkeypatch.setattr(Devices, "has_room", lambda *_: True)
    framework, training, found = TorchFramework(), Training(), dict[str, torch.Tensor]()
    training.step()
    training.model.register_buffer("sliced", torch.randn(40, 60, device="cuda")[3:33:3, 5:50])
    training.model.register_buffer("turned", torch.randn(20, 30, dtype=torch.complex64, device="cuda").conj().t())
    scaler = torch.amp.GradScaler("cuda", init_scale=512.0)
    scaler.scale(torch.ones(1, device="cuda"))
    truth = {name: one.cpu() for name, one in training.model.state_dict().items()}
    with simulation.device_memory(room):
        for _ in range(2):
            snapshot = finished(framework, {**training.parts, "scaler": scaler})
            found = kept(framework, snapshot, found)
            assert equal(found, truth)
            assert "512.0" in str(snapshot.parts["scaler"])
            snapshot.stored()
            snapshot.release()


def test_page_locked_memory_that_runs_out_stops_no_save(simulation: Simulation) -> None:
    """Copies go through ordinary memory then."""
    framework, training, found = TorchFramework(), Training(), dict[str, torch.Tensor]()
    training.step()
    with simulation.page_locked_memory(0):
        for _ in range(3):
            training.step()
            capture = framework.capture(training.parts)
            truth = training.truth()
            training.optimizer.step()
            snapshot = capture.finish()
            found = kept(framework, snapshot, found)
            assert equal(found, truth)
            snapshot.stored()
            snapshot.release()


def test_no_step_and_no_save_waits_for_the_device(simulation: Simulation, tmp_path: Path) -> None:
    """Nor does torch's own watch raise. A loss that lives on the device is passed at each step."""
    model, optimizer = fresh()
    waits = []
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=tmp_path, progress=False) as run:
        for number, (x, y) in enumerate(batches(run, loader())):  # colabkeep is asked for nothing by this number
            if number == 2:
                torch.cuda.set_sync_debug_mode("error")
            simulation.reset()
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
            if number % 3 == 2:
                run.save()
            if number > 2:
                waits += simulation.waits()
        torch.cuda.set_sync_debug_mode("default")
    assert waits == []
    assert is_in(tmp_path, model, optimizer)


def test_losses_that_nobody_read_come_in_one_copy(simulation: Simulation, tmp_path: Path) -> None:
    """However many there are when a save is due."""
    copies = []
    for steps in (1, 12):
        model, _ = fresh()
        with colabkeep.Run("r", model=model, storage=tmp_path / str(steps), save_every=None, progress=False) as run:
            for _ in run.steps(steps):
                loss = loss_of(model, torch.randn(4, 8, device="cuda"), torch.randn(4, 2, device="cuda"))
                run.step(loss=loss)
            simulation.reset()
        copies.append({kind: count for kind, count in simulation.counts().items() if kind.startswith("d2h")})
    assert copies[0].keys() == copies[1].keys()
    assert sum(copies[1].values()) - copies[1]["d2h_bytes"] <= sum(copies[0].values()) - copies[0]["d2h_bytes"] + 1


def test_saves_asked_for_while_the_one_before_drains_end_with_the_newest(tmp_path: Path) -> None:
    """At every step, faster than any disk."""
    model, optimizer = fresh()
    heard = trained(tmp_path, model, optimizer, save_every="1 steps")
    assert heard[-1].progress.step == 24
    assert is_in(tmp_path, model, optimizer)

"""What kind of memory a state is copied to, decided by what the machine has to give; and that it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from colabkeep.core.errors import MemoryFull
from colabkeep.core.system import Environment
from colabkeep.frameworks.shared.host_memory import HostMemory, address_of
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import captured, same_bits, through_files

MB = 2**20
LAYERS, WIDTH = 6, 512  # layers of 1 MB


class Machine:
    """A machine of 100 MB; `available` of them are to be had."""

    def __init__(self, root: Path, available: int) -> None:
        self.root = root
        (root / "proc").mkdir()
        (root / "tmp").mkdir()
        (root / "proc/mounts").write_text("/dev/sda1 / ext4 rw 0 0\n")
        self.has(available)
        self.memory = HostMemory(Environment(environ={}, root=root, folder=root))

    def has(self, available: int) -> None:
        """So many megabytes are to be had."""
        told = f"MemTotal: {100 * 1024} kB\nMemAvailable: {available * 1024} kB\nSwapFree: 0 kB\n"
        (self.root / "proc/meminfo").write_text(told)

    def gives(self, megabytes: int) -> list[memoryview]:
        """Blocks of one megabyte, planned together."""
        self.memory.expect([MB] * megabytes)
        return [self.memory.take(MB) for _ in range(megabytes)]


def training() -> dict[str, Any]:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)), nn.BatchNorm1d(WIDTH))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}


def step(parts: dict[str, Any]) -> None:
    parts["optimizer"].zero_grad()
    parts["model"](torch.randn(4, WIDTH)).square().mean().backward()
    parts["optimizer"].step()


@pytest.mark.parametrize(("available", "kind"), [(60, "memory"), (25, "file")])
def test_memory_that_is_short_is_not_taken(tmp_path: Path, available: int, kind: str) -> None:
    """A copy that would leave training less than a tenth of the memory goes to the disk instead."""
    assert kinds_of_memory(Machine(tmp_path, available).gives(20)) == {kind}


def test_ordinary_memory_is_there_when_it_is_given(tmp_path: Path) -> None:
    """The system counts it then, for the next plan and for every other run here; and no save waits for it."""
    before = resident()
    kept = Machine(tmp_path, 95).gives(20)
    assert resident() - before >= 18 * MB
    assert len(kept) == 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_that_nobody_holds_is_given_back(tmp_path: Path) -> None:
    """A model that is replaced makes room for the next."""
    machine, before = Machine(tmp_path, 95), resident()
    for _ in range(5):
        assert len(machine.gives(20)) == 20
    assert resident() - before < 30 * MB


def test_a_state_of_most_of_the_memory_is_saved_by_way_of_the_disk(tmp_path: Path) -> None:
    """Bit for bit, beside the next step as ever, with no named file; and it is said."""
    machine = Machine(tmp_path, 12)
    parts = training()
    framework = TorchFramework(machine.memory)
    boundary = framework.boundary(parts)
    boundary.mark()
    for _ in range(4):
        step(parts)
        boundary.mark()
        reference = captured(TorchFramework(), parts)
        capture = framework.capture(parts)
        step(parts)
        boundary.mark()
        snapshot = capture.finish()
        assert same_bits(through_files(snapshot.parts), reference)
        snapshot.release()
        assert "GB of it go to a file on this machine's disk first" in capture.remark
    hosts = [snapshot.parts["model"]["weights"][f"{n}.weight"] for n in range(LAYERS)]
    assert kinds_of_memory([host.data for host in hosts]) == {"file"}
    assert list((tmp_path / "tmp").iterdir()) == []
    boundary.close()


def kinds_of_memory(blocks: list[memoryview]) -> set[str]:
    """ "file" where the kernel says that it is that of a file without a name."""
    found = set()
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    for block in blocks:
        address = address_of(block)
        for bounds, _, _, _, _, *name in lines:
            start, _, end = bounds.partition("-")
            if int(start, 16) <= address < int(end, 16):
                found.add("file" if name and name[-1] == "(deleted)" else "memory")
    return found


class Average:
    """Weights that are kept by an object with a state of its own: nobody knows beforehand how many they are."""

    def __init__(self, megabytes: int) -> None:
        self.weights = [torch.full((MB // 4,), float(n)) for n in range(megabytes)]

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]


def files_below(root: Path) -> list[int]:
    """The sizes in megabytes of the files below `root` that this process holds, one for each descriptor."""
    held = [place for place in Path("/proc/self/fd").iterdir() if place.is_symlink()]
    return [place.stat().st_size // MB for place in held if str(place.readlink()).startswith(str(root))]


def lbfgs() -> tuple[dict[str, Any], Any]:
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=4)
    inputs, targets = torch.randn(64, WIDTH), torch.randn(64, WIDTH)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        return loss

    return {"model": model, "optimizer": optimizer}, lambda: optimizer.step(closure)


def test_tensors_that_come_one_by_one_share_a_file(tmp_path: Path) -> None:
    """Fifteen averaged weights take one file, and not a descriptor and 64 MB of the disk each."""
    parts = {"ema": Average(15)}
    snapshot = TorchFramework(Machine(tmp_path, 5).memory).capture(parts).finish()
    assert files_below(tmp_path) == [64]
    assert same_bits(through_files(snapshot.parts), captured(TorchFramework(), parts))
    snapshot.release()


def test_an_optimizer_that_remembers_many_steps_shares_a_file_too(tmp_path: Path) -> None:
    """The state of LBFGS is no set of tensors by parameter, and grows: still few files, and the right bits."""
    parts, go = lbfgs()
    framework = TorchFramework(Machine(tmp_path, 5).memory)
    for _ in range(6):
        go()
        snapshot = framework.capture(parts).finish()
        assert same_bits(through_files(snapshot.parts), captured(TorchFramework(), parts))
        snapshot.release()
    assert len(files_below(tmp_path)) <= 2


def test_a_state_that_grows_takes_a_file_for_what_is_new(tmp_path: Path) -> None:
    """A layer that is unfrozen late does not take the disk space of the whole optimizer once more."""
    large = [nn.Parameter(torch.zeros(MB)) for _ in range(20)]  # of 4 MB each
    optimizer = torch.optim.SGD(large, lr=0.1, momentum=0.9)
    framework = TorchFramework(Machine(tmp_path, 5).memory)

    def save() -> list[int]:
        for parameter in large:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        framework.capture({"optimizer": optimizer}).finish().release()
        return files_below(tmp_path)

    first = save()
    for _ in range(3):
        large.append(nn.Parameter(torch.zeros(MB)))
        optimizer.add_param_group({"params": large[-1:]})
        held = save()
    assert sum(held) - sum(first) <= 64


def test_a_state_that_outgrows_the_machine_is_saved_again_when_there_is_room(tmp_path: Path) -> None:
    """The captures until then say that there is none, and change nothing of the ones after."""
    machine, parts = Machine(tmp_path, 90), training()
    framework = TorchFramework(machine.memory)
    boundary = framework.boundary(parts)
    boundary.mark()
    framework.capture(parts).finish().release()
    (tmp_path / "proc/mounts").write_text("tmpfs / tmpfs rw 0 0\n")
    machine.has(3)
    for _ in range(3):
        step(parts)
        boundary.mark()
        with pytest.raises(MemoryFull):
            framework.capture(parts)
    machine.has(90)
    for _ in range(2):
        step(parts)
        boundary.mark()
        reference = captured(TorchFramework(), parts)
        capture = framework.capture(parts)
        step(parts)
        boundary.mark()
        snapshot = capture.finish()
        assert same_bits(through_files(snapshot.parts), reference)
        snapshot.release()
    boundary.close()


def test_a_machine_with_room_says_nothing_of_memory(tmp_path: Path) -> None:
    """A user hears of memory only where it matters."""
    framework = TorchFramework(Machine(tmp_path, 90).memory)
    capture = framework.capture(training())
    capture.finish().release()
    assert "memory" not in capture.remark
    assert "disk" not in capture.remark


def test_where_neither_memory_nor_disk_has_room_the_run_is_not_killed_but_told(tmp_path: Path) -> None:
    """The error comes at the start, before anything is copied, with figures and the next thing to do."""
    machine = Machine(tmp_path, 3)
    (tmp_path / "proc/mounts").write_text("tmpfs / tmpfs rw 0 0\n")
    framework = TorchFramework(machine.memory)
    with pytest.raises(MemoryFull, match=r"0\.00631 GB are needed, 0\.00315 GB"):
        framework.rehearse(training())
    machine.has(8)  # it fits, but only just
    capture = framework.capture(training())
    assert capture.remark.startswith("memory is short, and this machine's disk has no room to replace it")
    capture.finish().release()

"""Accelerators that are not there: device files as the kernel would show them, and machines with NVIDIA cards."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from colabkeep.core.system import Environment
from colabkeep.hardware.catalogue import cards as catalogue
from tests.fakes import nvidia_smi as program

__all__ = [
    "CardLike",
    "Does",
    "FakeCard",
    "fake_card",
    "fake_device_files",
    "fake_mac",
    "fake_nvidia_smi",
    "fake_pci_device",
    "fake_tpu",
    "machine",
]

_TPUS = {  # generation: PCI device and subsystem; see `colabkeep.hardware.others`
    "v2": ("0x0027", "0x004e"),
    "v3": ("0x0027", "0x004f"),
    "v4": ("0x005e", "0x0000"),
    "v5e": ("0x0063", "0x0000"),
    "v5p": ("0x0062", "0x0000"),
    "v6e": ("0x006f", "0x0000"),
    "v7": ("0x0076", "0x0000"),
}


def machine(root: Path, **environ: str) -> Environment:
    """An environment whose root folder is `root` and whose variables are `environ`, PATH being /usr/bin by default."""
    return Environment(environ={"PATH": "/usr/bin", **environ}, root=root, folder=root, modules=frozenset(sys.modules))


def fake_device_files(root: Path, *names: str) -> None:
    """Put empty files in place of the device files `names`, such as "nvidiactl", into `root`/dev."""
    for name in names:
        path = root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def fake_pci_device(root: Path, address: str, *, vendor: str, device: str, **files: str) -> Path:
    """Put a device onto the PCI bus of `root`, and return its folder. `files`: what more it tells, such as
    `subsystem_device="0x004e"`; `kind` is its "class"."""
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    told = {"vendor": vendor, "device": device, "class": files.pop("kind", "0x000000"), **files}
    for name, text in told.items():
        (folder / name).write_text(f"{text}\n", encoding="ascii")
    return folder


def fake_tpu(root: Path, generation: str, chips: int = 1) -> None:
    """Put TPU chips into a machine of Google's cloud, which has the network card and the disk that all of them have.

    `generation`: "v2", "v3", "v4", "v5e", "v5p", "v6e" or "v7".
    """
    device, subsystem = _TPUS[generation]
    fake_pci_device(root, "0000:00:03.0", vendor="0x1ae0", device="0x001f", kind="0x010802")
    fake_pci_device(root, "0000:00:04.0", vendor="0x1ae0", device="0x0042", kind="0x020000")
    for number in range(chips):
        fake_pci_device(root, f"0000:00:{5 + number:02x}.0", vendor="0x1ae0", device=device, subsystem_device=subsystem)
    fake_device_files(root, *(f"accel{number}" for number in range(chips)))


def fake_mac(root: Path, says: str = "echo 'Apple M2 Pro'; echo 17179869184") -> Environment:
    """Make a Mac below `root`, by default one with a processor of Apple's own and 16 GiB. `says`: what its `sysctl`
    does, as a shell script."""
    for name, text in (
        ("System/Library/CoreServices/SystemVersion.plist", ""),
        ("usr/sbin/sysctl", f"#!/bin/sh\n{says}\n"),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root / "usr/sbin/sysctl").chmod(0o755)
    return Environment(environ={"PATH": "/usr/bin:/bin"}, root=root, folder=root)


# ::
#
#     root = tmp_path / "machine"
#     fake_nvidia_smi(root / "usr/bin", ["Tesla T4", "Tesla T4"])
#     machine = Environment(environ={"PATH": "/usr/bin"}, root=root, folder=tmp_path)
#     assert [card.name for card in find_accelerators(machine)] == ["Tesla T4", "Tesla T4"]


Does: TypeAlias = Literal[
    "answers",
    "old",  # a driver that does not know the newer fields
    "localised",  # numbers as German writes them, unless it is asked in plain English (LC_ALL=C)
    "always localised",
    "no devices",
    "no driver",
    "no library",  # that of the driver is missing
    "mismatch",  # driver and library are of different versions
    "garbage",
    "empty",
    "truncated",
    "lost",  # one more card has fallen off the bus
    "fails",  # the right answer, and an exit code that takes it back
    "endless",
    "hangs",
    "ignores SIGTERM",
    "hangs with a child",
    "closes and hangs",  # answers, closes its output, and does not end
]
"""What the fake program does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCard:
    """A card as its driver tells it; None: "[N/A]". `memory_mib`: in all; `used_mib`: by whom ever. `slices`: the
    profiles it is partitioned into (MIG), such as "1g.5gb". `divisible`: in MIG mode also where it has no slices."""

    name: str
    memory_mib: int | None = 15360
    capability: tuple[int, int] = (7, 5)
    used_mib: int = 0
    slices: tuple[str, ...] = ()
    divisible: bool = False

    @property
    def mig(self) -> bool:
        """Is it in MIG mode?"""
        return self.divisible or bool(self.slices)


CardLike: TypeAlias = FakeCard | str | tuple[str, int, tuple[int, int]]
"""A fake card, the name of one of the catalogue, or (name, memory in MiB, capability)."""


def fake_card(card: CardLike) -> FakeCard:
    """The fake card that is meant.

    Raises:
        LookupError: the catalogue has no NVIDIA card of that name.
    """
    if isinstance(card, FakeCard):
        return card
    if isinstance(card, tuple):
        name, memory, capability = card
        return FakeCard(name=name, memory_mib=memory, capability=capability)
    for known in catalogue():
        if known.capability is not None and card in (known.name, *known.names):
            # A machine tells the title only where it is one of the names it tells.
            name = card if card in known.names else known.names[0]
            return FakeCard(name=name, memory_mib=known.total_mib[1], capability=known.capability)
    raise LookupError(f"the catalogue has no NVIDIA card called {card!r}")


def fake_nvidia_smi(
    folder: Path, cards: Sequence[CardLike] = (), *, does: Does = "answers", driver: str = "580.82.07"
) -> Path:
    """Put a program `nvidia-smi` into `folder`, which is made if need be, and return its path.

    It answers `--query-gpu=… --format=csv,noheader,nounits` and `-L`. `does` says how it misbehaves. One that hangs
    leaves the ids of its processes in `nvidia-smi.pids` beside it. Without cards it says that there are none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvidia-smi"
    records = [_record(number, fake_card(card), driver) for number, card in enumerate(cards)]
    told = {"does": does if records or does != "answers" else "no devices", "cards": records}
    path.with_name("nvidia-smi.json").write_text(json.dumps(told), encoding="utf-8")
    path.write_text(f"#!{sys.executable} -IS\n{inspect.getsource(program)}", encoding="utf-8")
    path.chmod(0o755)
    return path


def _record(number: int, card: FakeCard, driver: str) -> dict[str, Any]:
    fields = {
        "uuid": _uuid(number),
        "name": card.name,
        "memory.total": "[N/A]" if card.memory_mib is None else str(card.memory_mib),
        "memory.used": "[N/A]" if card.memory_mib is None else str(card.used_mib),
        "driver_version": driver,
        "compute_cap": "{}.{}".format(*card.capability),
        "mig.mode.current": "Enabled" if card.mig else "Disabled" if card.capability >= (8, 0) else "[N/A]",
    }
    slices = [(profile, _uuid(number, place)) for place, profile in enumerate(card.slices)]
    return {"fields": fields, "slices": slices}


def _uuid(card: int, place: int | None = None) -> str:
    tail = f"{card + 1:08x}-5b1c-4c9e-9f2a-{0 if place is None else place + 1:012x}"
    return f"GPU-{tail}" if place is None else f"MIG-{tail}"

"""Devices that are not there, as the kernel would show them below the root folder of a machine."""

from __future__ import annotations

from pathlib import Path

from colabkeep.vocabulary.environment import Environment

__all__ = ["fake_device_files", "fake_mac", "fake_pci_device", "fake_tpu"]

_TPUS = {  # generation: PCI device and subsystem; see `colabkeep.hardware.tpu`
    "v2": ("0x0027", "0x004e"),
    "v3": ("0x0027", "0x004f"),
    "v4": ("0x005e", "0x0000"),
    "v5e": ("0x0063", "0x0000"),
    "v5p": ("0x0062", "0x0000"),
    "v6e": ("0x006f", "0x0000"),
    "v7": ("0x0076", "0x0000"),
}


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

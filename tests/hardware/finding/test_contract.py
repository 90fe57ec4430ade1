"""Every way of finding accelerators keeps every promise of one."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from colabkeep.hardware.loaded import LoadedFinder, LoadedXpuFinder
from colabkeep.hardware.nvidia import NvidiaSmiFinder, NvmlFinder
from colabkeep.hardware.others import MpsFinder, NpuFinder, RocmFinder, TpuFinder, XpuFinder
from colabkeep.testing.hardware import FinderContract, machine
from tests.fakes.devices import (
    FakeCard,
    fake_device_files,
    fake_mac,
    fake_nvidia_smi,
    fake_nvml,
    fake_pci_device,
    fake_tpu,
)

MISBEHAVING = (
    "no driver",
    "no library",
    "mismatch",
    "garbage",
    "empty",
    "truncated",
    "always localised",
    "lost",
    "fails",
    "endless",
)


class TestNvidiaSmi(FinderContract):
    """The program that comes with the driver."""

    def make_finder(self):
        return NvidiaSmiFinder()

    def make_machine(self, root, patch):
        fake_nvidia_smi(root / "usr/bin", ["Tesla T4", FakeCard(name="Tesla T4", used_mib=300)])
        return machine(root)

    def make_stuck(self, root, patch):
        fake_nvidia_smi(root / "usr/bin", ["Tesla T4"], does="hangs with a child")
        return machine(root)

    def make_nonsense(self, root, patch):
        machines = {}
        for does in MISBEHAVING:
            fake_nvidia_smi(root / does / "usr/bin", ["Tesla T4"], does=does)
            machines[does] = machine(root / does)
        return machines


class TestNvml(FinderContract):
    """The driver's library."""

    def make_finder(self):
        return NvmlFinder()

    def make_machine(self, root, patch):
        fake_device_files(root, "nvidiactl")
        patch.setitem(sys.modules, "pynvml", fake_nvml(["Tesla T4", "NVIDIA L4"]))
        return machine(root)

    def make_stuck(self, root, patch):
        fake_device_files(root, "nvidiactl")
        patch.setitem(sys.modules, "pynvml", fake_nvml(["Tesla T4"], hangs="nvmlInit"))
        return machine(root)

    def make_nonsense(self, root, patch):
        fake_device_files(root, "nvidiactl")
        patch.setitem(sys.modules, "pynvml", SimpleNamespace())
        return {"another package of that name": machine(root)}


class TestLoaded(FinderContract):
    """A framework that is in use already."""

    def make_finder(self):
        return LoadedFinder()

    def make_machine(self, root, patch):
        card = SimpleNamespace(name="Tesla T4", total_memory=15828320256, major=7, minor=5)
        cuda = SimpleNamespace(
            is_initialized=lambda: True, device_count=lambda: 1, get_device_properties=lambda _: card
        )
        patch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None)))
        return machine(root)

    def make_nonsense(self, root, patch):
        patch.setitem(sys.modules, "torch", SimpleNamespace())
        return {"half imported": machine(root)}


class TestTpu(FinderContract):
    """Google's chips."""

    def make_finder(self):
        return TpuFinder()

    def make_machine(self, root, patch):
        fake_tpu(root, "v5e", chips=8)
        return machine(root)

    def make_nonsense(self, root, patch):
        fake_pci_device(root, "0000:00:04.0", vendor="0x1ae0", device="0x0042")
        fake_pci_device(root, "0000:00:05.0", vendor="0x1ae0", device="")
        fake_pci_device(root, "nonsense", vendor="", device="0x0063")
        return {"other devices of Google's": machine(root, TPU_ACCELERATOR_TYPE="v5litepod-1", PJRT_DEVICE="TPU")}


class TestXpu(FinderContract):
    """Kunlun and Intel."""

    def make_finder(self):
        return XpuFinder()

    def make_machine(self, root, patch):
        fake_device_files(root, "xpu0", "xpuctrl", "dri/renderD128")
        fake_pci_device(root, "0000:3a:00.0", vendor="0x8086", device="0x0bd5", kind="0x038000")
        return machine(root)

    def make_nonsense(self, root, patch):
        fake_device_files(root, "xpuctrl", "xpu", "xpu0p1", "xpu-1", "dri/renderD128")
        fake_pci_device(root, "0000:00:02.0", vendor="0x8086", device="0x3e92", kind="0x030000")
        fake_pci_device(root, "0000:00:1f.6", vendor="0x8086", device="0x15bc", kind="0x020000")
        return {"a laptop": machine(root)}


class TestLoadedXpu(FinderContract):
    """Intel's, of a torch in use."""

    def make_finder(self):
        return LoadedXpuFinder()

    def make_machine(self, root, patch):
        card = SimpleNamespace(name="Intel(R) Arc(TM) Graphics", total_memory=30 << 30)
        xpu = SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1, get_device_properties=lambda _: card)
        patch.setitem(sys.modules, "torch", SimpleNamespace(xpu=xpu))
        return machine(root)

    def make_nonsense(self, root, patch):
        patch.setitem(sys.modules, "torch", SimpleNamespace())
        return {"half imported": machine(root)}


class TestMps(FinderContract):
    """Apple's own processors."""

    def make_finder(self):
        return MpsFinder()

    def make_machine(self, root, patch):
        return fake_mac(root)

    def make_stuck(self, root, patch):
        return fake_mac(root, "exec sleep 1000")

    def make_nonsense(self, root, patch):
        said = {
            "an Intel Mac": "echo 'Intel(R) Core(TM) i7'; echo 17179869184",
            "a failure": "echo 'Apple M2'; exit 1",
            "nothing": "true",
            "garbage": "head -c 3000 /dev/urandom",
            "an escape": "printf 'Apple \\033[31m\\n1\\n'",
        }
        machines = {word: fake_mac(root / word, script) for word, script in said.items()}
        fake_mac(root / "linux")
        (root / "linux/System/Library/CoreServices/SystemVersion.plist").unlink()
        return machines | {"a sysctl of Linux": machine(root / "linux")}


class TestNpu(FinderContract):
    """Ascend."""

    def make_finder(self):
        return NpuFinder()

    def make_machine(self, root, patch):
        fake_device_files(root, "davinci0", "davinci1", "davinci_manager")
        return machine(root)

    def make_nonsense(self, root, patch):
        fake_device_files(root, "davinci_manager")
        fake_pci_device(root, "0000:01:00.0", vendor="0x19e5", device="0xd802")
        return {"a container that was handed none of the host's": machine(root)}


class TestRocm(FinderContract):
    """AMD."""

    def make_finder(self):
        return RocmFinder()

    def make_machine(self, root, patch):
        fake_device_files(root, "kfd")
        told = {"mem_info_vram_total": str(64 << 30), "mem_info_vram_used": str(1 << 30)}
        fake_pci_device(root, "0000:c1:00.0", vendor="0x1002", device="0x740c", **told)
        return machine(root)

    def make_nonsense(self, root, patch):
        fake_device_files(root, "kfd")
        fake_pci_device(root, "0000:c1:00.0", vendor="0x1002", device="0x740c", mem_info_vram_total="lots")
        fake_pci_device(root, "0000:c2:00.0", vendor="0x1002", device="0x740c")
        fake_pci_device(root, "0000:c3:00.0", vendor="0x1002", device="0x1638", mem_info_vram_total=str(512 << 20))
        return {"graphics of a processor": machine(root)}

"""TPUs, Kunlun, Ascend, Intel and AMD are found by what the kernel shows of them."""

from __future__ import annotations

import pytest

from colabkeep.hardware import find_accelerators
from colabkeep.hardware.base import Hidden, Trouble
from tests.fakes.devices import fake_device_files, fake_mac, fake_pci_device, fake_tpu, machine

GIB = 1 << 30


def found(environment):
    return [(one.kind, one.name, one.memory_bytes) for one in find_accelerators(environment)]


@pytest.mark.parametrize(
    ("generation", "name", "gib"),
    [
        ("v2", "TPU v2", 16),
        ("v3", "TPU v3", 32),
        ("v4", "TPU v4", 32),
        ("v5e", "TPU v5 lite", 16),
        ("v5p", "TPU v5p", 95),
        ("v6e", "TPU v6 lite", 32),
        ("v7", "TPU7x", 192),
    ],
)
def test_each_generation_of_tpu_has_its_name(tmp_path, generation, name, gib):
    """The name that jax gives it, and the memory of a chip."""
    fake_tpu(tmp_path, generation)
    assert found(machine(tmp_path)) == [("tpu", name, gib * GIB)]


def test_all_chips_of_a_tpu_machine_are_counted(tmp_path):
    """Kaggle's v5e-8 is eight of them; the network card and the disk of Google's machines are none."""
    fake_tpu(tmp_path, "v5e", chips=8)
    assert found(machine(tmp_path)) == [("tpu", "TPU v5 lite", 16 * GIB)] * 8


def test_a_machine_of_googles_cloud_is_no_tpu(tmp_path):
    """Every one has devices of Google's on its bus, and a user may have set every variable."""
    fake_tpu(tmp_path, "v5e", chips=0)
    variables = {"TPU_ACCELERATOR_TYPE": "v5litepod-1", "PJRT_DEVICE": "TPU", "ISTPUVM": "1"}
    assert found(machine(tmp_path, **variables)) == []


def test_an_old_chip_whose_subsystem_is_not_shown_is_a_tpu(tmp_path):
    """v2 and v3 share a device number, so nobody knows which."""
    fake_pci_device(tmp_path, "0000:00:05.0", vendor="0x1ae0", device="0x0027")
    assert found(machine(tmp_path)) == [("tpu", "TPU", None)]


def test_hints_count_only_with_a_device(tmp_path):
    """In a sandbox without a bus, variables are believed beside a device file, and never alone."""
    variables = {"TPU_ACCELERATOR_TYPE": "v6e-1"}
    assert found(machine(tmp_path, **variables)) == []
    fake_device_files(tmp_path, "vfio/0", "vfio/vfio")
    assert found(machine(tmp_path, **variables)) == [("tpu", "TPU", None)]
    assert found(machine(tmp_path)) == []
    fake_pci_device(tmp_path, "0000:00:00.0", vendor="0x8086", device="0x29c0")  # a bus that shows no TPU is believed
    assert found(machine(tmp_path, **variables)) == []


@pytest.mark.parametrize(("device", "name"), [("0x3688", "Kunlun P800"), ("0x9999", "Kunlun XPU")])
def test_kunlun_cards_are_counted_by_their_files(tmp_path, device, name):
    """A container sees all cards of its host on the bus, and may use those whose files it was handed."""
    for number in range(8):
        fake_pci_device(tmp_path, f"0000:{number:02x}:00.0", vendor="0x1d22", device=device)
    fake_device_files(tmp_path, "xpu0", "xpu3", "xpuctrl")
    assert found(machine(tmp_path)) == [("xpu", name, None)] * 2
    assert found(machine(tmp_path, XPU_VISIBLE_DEVICES="1")) == [("xpu", name, None)]
    hidden = Hidden(variable="XPU_VISIBLE_DEVICES", value="7", count=2)
    assert find_accelerators(machine(tmp_path, XPU_VISIBLE_DEVICES="7")) == hidden


def test_ascend_cards_are_counted_by_their_files(tmp_path):
    """And named where the bus shows one sort only."""
    fake_device_files(tmp_path, "davinci0", "davinci1", "davinci_manager")
    assert found(machine(tmp_path)) == [("npu", "Ascend NPU", None)] * 2
    fake_pci_device(tmp_path, "0000:01:00.0", vendor="0x19e5", device="0xd802")
    assert found(machine(tmp_path)) == [("npu", "Ascend 910B", None)] * 2
    hidden = Hidden(variable="ASCEND_RT_VISIBLE_DEVICES", value="", count=2)
    assert find_accelerators(machine(tmp_path, ASCEND_RT_VISIBLE_DEVICES="")) == hidden


def test_graphics_built_into_a_processor_is_no_accelerator(tmp_path):
    """A laptop is not said to have an accelerator because it has a screen; a card in a slot is one."""
    fake_device_files(tmp_path, "dri/renderD128")
    fake_pci_device(tmp_path, "0000:00:02.0", vendor="0x8086", device="0x46a6", kind="0x030000")
    assert found(machine(tmp_path)) == []
    fake_pci_device(tmp_path, "0000:03:00.0", vendor="0x8086", device="0x56a0", kind="0x030000")
    assert found(machine(tmp_path)) == [("xpu", "Intel GPU 0x56a0", None)]


def test_amd_cards_tell_their_memory(tmp_path):
    """Name, memory in all and used; without the computing device, or made invisible, they cannot be used."""
    told = {"mem_info_vram_total": str(64 * GIB), "mem_info_vram_used": str(3 * GIB), "product_name": "Instinct MI210"}
    fake_pci_device(tmp_path, "0000:c1:00.0", vendor="0x1002", device="0x740f", **told)
    assert found(machine(tmp_path)) == []
    fake_device_files(tmp_path, "kfd")
    (one,) = find_accelerators(machine(tmp_path))
    assert (one.kind, one.name) == ("rocm", "Instinct MI210")
    assert (one.memory_bytes, one.used_bytes) == (64 * GIB, 3 * GIB)
    hidden = Hidden(variable="HIP_VISIBLE_DEVICES", value="-1", count=1)
    assert find_accelerators(machine(tmp_path, HIP_VISIBLE_DEVICES="-1")) == hidden


@pytest.mark.parametrize(
    "told",
    [
        {"mem_info_vram_total": "lots"},
        {},
        {"mem_info_vram_total": str(512 << 20)},  # graphics of a processor
        {"mem_info_vram_total": "9" * 40},
    ],
    ids=str,
)
def test_an_amd_device_without_the_memory_of_a_card_is_none(tmp_path, told):
    """Graphics built into a processor computes nothing under ROCm; nonsense is no number."""
    fake_device_files(tmp_path, "kfd")
    fake_pci_device(tmp_path, "0000:c1:00.0", vendor="0x1002", device="0x740c", **told)
    assert found(machine(tmp_path)) == []


def test_names_of_files_that_only_look_like_devices_are_none(tmp_path):
    """A control file, a number that is none; other devices of a maker; a bus that shows what was not handed over."""
    fake_device_files(tmp_path, "xpuctrl", "xpu", "xpu0p1", "xpu-1", "davinci_manager", "dri/renderD128")
    fake_pci_device(tmp_path, "0000:01:00.0", vendor="0x19e5", device="0xd802")
    fake_pci_device(tmp_path, "0000:00:1f.6", vendor="0x8086", device="0x15bc", kind="0x020000")
    fake_pci_device(tmp_path, "0000:00:05.0", vendor="0x1ae0", device="")
    fake_pci_device(tmp_path, "nonsense", vendor="", device="0x0063")
    assert found(machine(tmp_path)) == []


@pytest.mark.parametrize(
    "script",
    ["echo 'Intel(R) Core(TM) i7'; echo 17179869184", "echo 'Apple M2'; exit 1", "true", "head -c 3000 /dev/urandom",
     "printf 'Apple \\033[31m\\n1\\n'"],
)  # fmt: skip
def test_a_mac_without_apples_processor_has_no_gpu(tmp_path, script):
    """torch runs on no other Macs; what makes no sense is not believed."""
    assert found(fake_mac(tmp_path, script)) == []


def test_apples_processor_has_one_gpu(tmp_path):
    """Which shares the memory; a `sysctl` of Linux is not asked, and one that hangs is given up."""
    mac = fake_mac(tmp_path / "mac")
    assert found(mac) == [("mps", "Apple M2 Pro GPU", 16 * GIB)]
    (mac.root / "System/Library/CoreServices/SystemVersion.plist").unlink()
    assert found(mac) == []
    assert isinstance(find_accelerators(fake_mac(tmp_path / "stuck", "exec sleep 1000"), timeout=0.5), Trouble)

"""TPUs, Kunlun, Ascend, Intel and AMD are found by what the kernel shows of them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from colabkeep.hardware import find_accelerators
from colabkeep.hardware.base import Hidden
from colabkeep.hardware.loaded import LoadedFinder
from colabkeep.testing.hardware import machine
from tests.fakes.devices import fake_device_files, fake_pci_device, fake_tpu

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


def test_the_type_tells_old_chips_apart(tmp_path):
    """v2 and v3 share a device number; where the subsystem is not shown, the variable says which."""
    fake_pci_device(tmp_path, "0000:00:05.0", vendor="0x1ae0", device="0x0027")
    assert found(machine(tmp_path, TPU_ACCELERATOR_TYPE="v3-8")) == [("tpu", "TPU v3", 32 * GIB)]
    assert found(machine(tmp_path)) == [("tpu", "TPU", None)]


def test_hints_count_only_with_a_device(tmp_path):
    """In a sandbox without a bus, variables are believed beside a device file, and never alone."""
    variables = {"TPU_ACCELERATOR_TYPE": "v6e-1"}
    assert found(machine(tmp_path, **variables)) == []
    fake_device_files(tmp_path, "vfio/0", "vfio/vfio")
    assert found(machine(tmp_path, **variables)) == [("tpu", "TPU v6 lite", 32 * GIB)]
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


def paddle(*, cuda):
    """Paddle as it answers on a CUDA build, or on a Kunlun one, which has the same calls and a placeholder."""
    card = SimpleNamespace(name="GPU", total_memory=98304 << 20, major=8, minor=6)
    return SimpleNamespace(
        device=SimpleNamespace(
            is_compiled_with_cuda=lambda: cuda,
            is_compiled_with_rocm=lambda: False,
            cuda=SimpleNamespace(device_count=lambda: 1, get_device_properties=lambda _: card),
        )
    )


def test_a_placeholder_of_paddle_is_not_believed(tmp_path, monkeypatch):
    """A build for Kunlun answers for a card of capability 8.6 that is not there; a CUDA build tells the truth."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "paddle", paddle(cuda=False))
    assert LoadedFinder().find(machine(tmp_path), timeout=1.0) == []
    monkeypatch.setitem(sys.modules, "paddle", paddle(cuda=True))
    (one,) = LoadedFinder().find(machine(tmp_path), timeout=1.0)
    assert (one.kind, one.capability, one.memory_bytes) == ("cuda", (8, 6), 96 * GIB)


def test_a_framework_counts_only_where_the_environment_has_it(tmp_path, monkeypatch):
    """A test's own machine is not mixed with the process that runs the test."""
    monkeypatch.setitem(sys.modules, "paddle", paddle(cuda=True))
    environment = machine(tmp_path)
    bare = type(environment)(environ={}, root=tmp_path, folder=tmp_path)
    assert LoadedFinder().find(bare, timeout=1.0) == []

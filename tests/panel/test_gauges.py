"""What the panel reads of the machine. NVML is a library of the driver's, which no test machine has: it is told here by
an object with its functions, as NVIDIA's "NVML API Reference" has them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from colabkeep.core.system import Environment
from colabkeep.ui.panel.gauges import Card, Gauges

from .test_displays import here

NOT_SUPPORTED = 3
NOT_FOUND = 6
MEMINFO = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    4000 kB\nSwapFree:           0 kB\n"


class Driver:
    """Two cards of 16 GB: the first computes for a quarter of the time, the second (a slice of one) is silent."""

    # ruff: noqa: N802  # the names are NVIDIA's

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers

    def nvmlInit_v2(self) -> int:
        return 0 if self.answers else 9

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 0 if index.value < 2 else NOT_FOUND

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        handle._obj.value = 2
        return 0 if uuid == b"GPU-b" else NOT_FOUND

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total, memory._obj.used = 16 * 10**9, (handle.value or 0) * 10**9
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: ctypes.c_void_p, rates: Any) -> int:
        rates._obj.gpu = 25
        return 0 if handle.value == 1 else NOT_SUPPORTED


def machine(folder: Path, **environ: str) -> Environment:
    (folder / "proc").mkdir(exist_ok=True)
    (folder / "proc" / "meminfo").write_text(MEMINFO)
    return here(folder, **environ)


FIRST = Card(busy=0.25, used=10**9, total=16 * 10**9)
SECOND = Card(busy=None, used=2 * 10**9, total=16 * 10**9)


@pytest.mark.parametrize(
    ("chosen", "cards"),
    [(None, (FIRST, SECOND)), ("1", (SECOND,)), ("GPU-b,0", (SECOND, FIRST)), ("0,7,1", (FIRST,)), ("", ())],
)
def test_the_cards_that_the_program_may_use_are_read(
    tmp_path: Path, chosen: str | None, cards: tuple[Card, ...]
) -> None:
    """By number or name, as CUDA does; what a card does not tell is not known."""
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    usage = Gauges(machine(tmp_path, **environ), lambda _: Driver()).read()
    assert usage.cards == cards
    assert usage.memory == (12_000 * 1024, 16_000 * 1024)


def test_a_machine_without_a_driver_has_no_cards(tmp_path: Path) -> None:
    """Without its library, with one that does not answer, and with one that is older; nothing is raised."""
    (tmp_path / "empty").mkdir()
    assert Gauges(machine(tmp_path), lambda _: Driver(answers=False)).read().cards == ()
    assert Gauges(machine(tmp_path), lambda _: object()).read().cards == ()

    def missing(name: str) -> Any:
        return ctypes.CDLL(f"{name}.that-is-not-here")

    nothing = Gauges(here(tmp_path / "empty"), missing).read()
    assert (nothing.cards, nothing.memory) == ((), None)

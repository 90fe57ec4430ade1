"""How busy the machine is while it trains: its GPUs, as NVIDIA's library tells, and its memory, as Linux does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from colabkeep.core.system import Environment
from colabkeep.frameworks.shared.host_memory import free_memory

_LIBRARY = "libnvidia-ml.so.1"  # NVML, which comes with the driver; its functions return 0 where all is well


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU: the share of the last moments in which it computed, from 0 to 1 (None: it does not tell), and its memory
    in bytes, with that of other programs."""

    busy: float | None
    used: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How much of the machine is used now. `memory`: bytes in use, and bytes that there are; None if nobody tells."""

    cards: tuple[Card, ...] = ()
    memory: tuple[int, int] | None = None


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Rates(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("gpu", "memory")]  # in per cent


class Gauges:
    """Reads them; takes a millisecond. `load` gives NVML, or raises OSError where there is none."""

    def __init__(self, environment: Environment, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._environment = environment
        try:
            self._nvml = load(_LIBRARY)
            self._cards = [] if self._nvml.nvmlInit_v2() else list(self._visible())
        except (OSError, AttributeError):  # no driver, or one that is older than these functions
            self._cards = []

    def read(self) -> Usage:
        """As it is now."""
        room = free_memory(self._environment)
        return Usage(
            cards=tuple(card for each in self._cards if (card := self._card(each)) is not None),
            memory=None if room is None else (room.total - room.available, room.total),
        )

    def _visible(self) -> Iterator[ctypes.c_void_p]:
        """The cards that this program may use: CUDA reads the same variable."""
        count = ctypes.c_uint()
        chosen = self._environment.environ.get("CUDA_VISIBLE_DEVICES")
        if chosen is None:
            failed = self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
            names = [] if failed else [str(number) for number in range(count.value)]
        else:
            names = [name.strip() for name in chosen.split(",")]
        for name in names:
            handle = ctypes.c_void_p()
            if name.isdecimal():
                failed = self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
            else:
                failed = self._nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
            if failed:  # as for CUDA, what stands behind a name that is none is not seen
                return
            yield handle

    def _card(self, handle: ctypes.c_void_p) -> Card | None:
        memory, rates = _Memory(), _Rates()
        if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
        silent = self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates))  # of a slice (MIG) nobody tells
        return Card(busy=None if silent else rates.gpu / 100, used=memory.used, total=memory.total)

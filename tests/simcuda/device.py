"""`start(schedule)` gives this process simulated NVIDIA GPUs: two T4s, of `torch.cuda`'s own device type, or those of
them that CUDA_VISIBLE_DEVICES names. Processes of one device each can train together: `nccl.hpp` takes NCCL's place.

To be called before anything uses `torch.cuda`. `SCHEDULES` says what each schedule does, README.md beside this
what a pass shows.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch.distributed import distributed_c10d

from tests.simcuda import batch_norm
from tests.simcuda.building import NAME, library

__all__ = ["SCHEDULES", "Simulation", "running", "start", "start_as_told"]

_DEVICES = 2
SCHEDULES = {  # does the main stream wait until its work is forced; do side streams; do both run on at random
    "worst_late": (True, True, False),  # side copies come after all that may precede them
    "worst_early": (True, False, False),  # side streams run at once: before the main one, unless they wait for it
    "side_late": (False, True, False),  # the main stream at once, side copies as late as allowed
    "chaos": (True, True, True),
    "eager": (False, False, False),
}
_SITE = str(Path(__file__).parent / "site")
_LAG_MS = 5  # of every wait for an event: other threads come first
_NAME, _CAPABILITY = "Tesla T4", (7, 5)
_STARTED: list[Simulation] = []


class Simulation:
    """The simulated devices of this process, and what only a simulation can do. `core` is the library."""

    def __init__(self, core: Any, schedule: str) -> None:
        word, _, seed = schedule.partition(":")
        self.core, self.schedule = core, schedule
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.devices = _DEVICES if visible is None else len([each for each in visible.split(",") if each.strip()])
        core.set_devices(self.devices)
        core.policy(*SCHEDULES[word], int(seed or 0), _LAG_MS, True)

    def counts(self) -> dict[str, int]:
        """Copies by their kind, work that was queued and forced, allocations, since `reset`."""
        return self.core.counts()

    def waits(self) -> dict[str, int]:
        """How often the main thread waited for a device since `reset`, by what it waited for."""
        return self.core.waits()

    def reset(self) -> None:
        self.core.reset()

    def pending(self) -> int:
        """Tasks that are queued on any stream and have not run."""
        return self.core.pending()

    @contextlib.contextmanager
    def page_locked_memory(self, room: int) -> Any:
        """No more page-locked memory than this many bytes beyond what is in use."""
        self.core.pin_limit(self.core.pinned_bytes() + room)
        try:
            yield
        finally:
            self.core.pin_limit(-1)

    @contextlib.contextmanager
    def device_memory(self, room: int, device: int = 0) -> Any:
        """No more device memory than this many bytes beyond what is in use; what is cached is given back first."""
        self.core.empty_cache()
        *_, reserved, _, limit = self.core.memory(device)
        self.core.memory_limit(device, reserved + room)
        try:
            yield
        finally:
            self.core.memory_limit(device, limit)

    def lose(self) -> None:
        """From now on every call of the device fails, as after an error of a kernel or a fallen-off card."""
        self.core.lose()


def running() -> Simulation | None:
    """This process's simulation, if it has one."""
    return _STARTED[0] if _STARTED else None


def start(schedule: str) -> Simulation:
    """Devices that run their work by that schedule: a word of `SCHEDULES`, for chaos with a seed: "chaos:17"."""
    if not _STARTED:
        spec = importlib.util.spec_from_file_location(NAME, library())
        core = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(core)
        _STARTED.append(Simulation(core, schedule))
        _take_the_place_of_cuda(core, _STARTED[0].devices)
        _take_the_place_of_nccl(core)
        batch_norm.register()
    return _STARTED[0]


def start_as_told() -> Simulation:
    """As the variable SIMCUDA says: a schedule, and "abort" after a blank where whoever sums with a process that is
    gone is ended, as by NCCL's watchdog; else it waits for ever. Processes that this one begins find the same."""
    schedule, *more = os.environ["SIMCUDA"].split()
    here = start(schedule)
    here.core.lost_process_aborts("abort" in more)
    if _SITE not in sys.path:
        sys.path.insert(0, _SITE)
    return here


def _index(device: Any = None) -> int:
    if isinstance(device, int):
        return device if device >= 0 else _STARTED[0].core.current_device()
    index = None if device is None else torch.device(device).index
    return _STARTED[0].core.current_device() if index is None else index


def _device(device: Any = None) -> torch.device:
    return torch.device("cuda", _index(device))


class _Kind(type):
    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, cls.real)


class Stream(metaclass=_Kind):
    """`torch.cuda.Stream`, which the CPU build lacks: torch's own for any device."""

    real = torch.Stream

    def __new__(cls, device: Any = None, priority: int = 0, **one: Any) -> Any:
        return torch.Stream(**one) if one else torch.Stream(device=_device(device), priority=priority)


class Event(metaclass=_Kind):
    """`torch.cuda.Event`, likewise."""

    real = torch.Event

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Any:
        return torch.Event(device=_device(), enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


class _Entered:
    """`torch.cuda.device` and `torch.cuda.stream`, which take None as well."""

    def __init__(self, one: Any) -> None:
        self._one, self._stack = one, contextlib.ExitStack()

    def __enter__(self) -> Any:
        if self._one is not None:
            self._stack.enter_context(self._one)
        return self._one

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class _OnDevice:
    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else _index(device)

    def __enter__(self) -> None:
        core = _STARTED[0].core
        self._before = core.current_device()
        if self.idx >= 0:
            core.set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        _STARTED[0].core.set_device(self._before)


class _Generator:
    """The default generator of a device: `torch.cuda.default_generators` wants Python objects."""

    def __init__(self, core: Any, index: int) -> None:
        self._core, self._index, self.device = core, index, torch.device("cuda", index)

    def get_state(self) -> torch.Tensor:
        return self._core.rng_get(self._index)

    def set_state(self, state: torch.Tensor) -> _Generator:
        self._core.rng_set(self._index, state)
        return self

    def manual_seed(self, seed: int) -> _Generator:
        self._core.rng_seed(self._index, seed % 2**64)
        return self

    def seed(self) -> int:
        seed = int.from_bytes(os.urandom(8), "little")
        self._core.rng_seed(self._index, seed)
        return seed

    def initial_seed(self) -> int:
        return self._core.rng_initial(self._index)


def _properties(device: Any = None) -> types.SimpleNamespace:
    if _index(device) >= _STARTED[0].devices:
        raise AssertionError("Invalid device id")
    major, minor = _CAPABILITY
    return types.SimpleNamespace(
        name=_NAME,
        major=major,
        minor=minor,
        total_memory=_STARTED[0].core.memory(_index(device))[4],
        multi_processor_count=40,
        uuid="GPU-simulated",
        gcnArchName="",
        warp_size=32,
        is_integrated=0,
    )


def _memory_stats(core: Any, device: Any = None) -> dict[str, int]:
    in_use, peak, reserved, peak_reserved, _ = core.memory(_index(device))
    return {
        "allocated_bytes.all.current": in_use,
        "allocated_bytes.all.peak": peak,
        "active_bytes.all.current": in_use,
        "active_bytes.all.peak": peak,
        "reserved_bytes.all.current": reserved,
        "reserved_bytes.all.peak": peak_reserved,
        "num_ooms": 0,
        "num_alloc_retries": core.counts().get("memory_full", 0),
    }


def _memory_info(core: Any, device: Any = None) -> tuple[int, int]:
    _, _, reserved, _, limit = core.memory(_index(device))
    return limit - reserved, limit


def _scatter(tensor: torch.Tensor, devices: Any, sizes: Any, dim: int, streams: Any) -> tuple[torch.Tensor, ...]:
    parts = tensor.split(list(sizes), dim) if sizes else tensor.chunk(len(devices), dim)
    return tuple(part.to(f"cuda:{device}") for part, device in zip(parts, devices, strict=False))


def _gather(tensors: Any, dim: int, device: int | None) -> torch.Tensor:
    return torch.cat([one.to(_device(device if device is None or device >= 0 else 0)) for one in tensors], dim)


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """As `copy.deepcopy` of a tensor wants it; the CPU build makes no storages of other devices by itself."""
    return _bytes(storage).clone().untyped_storage()


def _to(storage: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> torch.UntypedStorage:
    """As `torch.load` wants it, by which a tensor comes from another process."""
    return _bytes(storage).to(device, non_blocking=non_blocking).untyped_storage()


def _take_the_place_of_nccl(core: Any) -> None:
    """Under NCCL's own name: torch has a branch for that, and asks no registered backend."""
    core.ProcessGroupNCCL.Options = types.SimpleNamespace
    distributed_c10d.ProcessGroupNCCL = core.ProcessGroupNCCL
    distributed_c10d._NCCL_AVAILABLE = True


def _take_the_place_of_cuda(core: Any, devices: int) -> None:
    process = os.getpid()
    cuda, accelerator = torch.cuda, torch.accelerator
    facts = {
        "is_available": lambda: devices > 0,
        "device_count": lambda: devices,
        "_device_count_nvml": lambda: devices,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "_is_in_bad_fork": lambda: os.getpid() != process,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "_lazy_call": lambda call, **_: call(),
        "get_device_name": lambda device=None: _NAME,
        "get_device_capability": lambda device=None: _CAPABILITY,
        "get_device_properties": _properties,
        "get_arch_list": lambda: ["sm_75", "sm_80", "sm_90"],
        "is_bf16_supported": lambda including_emulation=True: including_emulation,
        "default_generators": tuple(_Generator(core, index) for index in range(devices)),
    }
    streams = {
        "current_device": core.current_device,
        "set_device": lambda device: core.set_device(_index(device)),
        "device": _OnDevice,
        "_device": _OnDevice,
        "device_of": lambda tensor: _OnDevice(tensor.get_device() if tensor.is_cuda else None),
        "Stream": Stream,
        "Event": Event,
        "stream": _Entered,
        "StreamContext": _Entered,
        "current_stream": lambda device=None: accelerator.current_stream(_device(device)),
        "default_stream": lambda device=None: torch.Stream(stream_id=0, device_index=_index(device), device_type=1),
        "set_stream": accelerator.set_stream,
        "synchronize": lambda device=None: accelerator.synchronize(_index(device)),
        "is_current_stream_capturing": lambda: False,
        "set_sync_debug_mode": lambda mode: core.sync_debug({"default": 0, "warn": 1, "error": 2}.get(mode, mode)),
        "_sleep": lambda cycles: None,
    }
    memory = {
        "mem_get_info": lambda device=None: _memory_info(core, device),
        "memory_stats": lambda device=None: _memory_stats(core, device),
        "memory_allocated": lambda device=None: core.memory(_index(device))[0],
        "max_memory_allocated": lambda device=None: core.memory(_index(device))[1],
        "memory_reserved": lambda device=None: core.memory(_index(device))[2],
        "max_memory_reserved": lambda device=None: core.memory(_index(device))[3],
        "reset_peak_memory_stats": lambda device=None: core.reset_peak(_index(device)),
        "empty_cache": core.empty_cache,
    }
    for name, value in {**facts, **streams, **memory}.items():
        setattr(cuda, name, value)
    for name in ("mem_get_info", *memory):
        setattr(cuda.memory, name, memory[name])
    cuda.random._lazy_call, cuda.random._lazy_init = cuda._lazy_call, cuda._lazy_init
    cuda.random.current_device = cuda.current_device
    cuda.streams.Stream, cuda.streams.Event = Stream, Event
    torch.UntypedStorage.clone, torch.UntypedStorage.to = _clone, _to
    torch.version.cuda = "12.8"
    torch.backends.cudnn.version = lambda: 91002
    torch.backends.cuda.is_built = lambda: True
    below = {
        "_cuda_getDeviceCount": lambda: devices,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_getCurrentRawStream": lambda device: 0,
        "_scatter": _scatter,  # these three are what nn.DataParallel calls
        "_gather": _gather,
        "_broadcast_coalesced": lambda tensors, devices, size: [[t.to(f"cuda:{d}") for t in tensors] for d in devices],
    }
    for name, value in below.items():
        setattr(torch._C, name, value)

"""The torch adapter. Losses in host memory are read at once, those on a device on their way to the next save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from colabkeep.core.state import Capture, Stale, Tree
from colabkeep.frameworks.base import (
    Boundary,
    Data,
    Exactness,
    Losses,
    MeanLike,
    PartsSettings,
    Ranks,
    Remembered,
    Training,
    TrainingOptions,
    Unseen,
)
from colabkeep.frameworks.shared.adapter import Adapter
from colabkeep.frameworks.shared.capture import ParameterNames
from colabkeep.frameworks.shared.host_memory import HostMemory
from colabkeep.frameworks.shared.training import at_hand, stored_steps
from colabkeep.frameworks.torch.boundary import TorchBoundary, TorchUnseen, remember
from colabkeep.frameworks.torch.capture import TorchKit, ordinary, parameters_of
from colabkeep.frameworks.torch.copies import Devices, outlives_forks
from colabkeep.frameworks.torch.facts import exactness, fingerprint, place
from colabkeep.frameworks.torch.restore import (
    module_differences,
    native,
    optimizer_differences,
    restore_helper,
    restore_module,
    restore_optimizer,
    schedule_differences,
)
from colabkeep.frameworks.torch.rng import streams
from colabkeep.frameworks.torch.settings import TorchSetup, describe

# On a device each loss is written into a small ring there; once in a while the ring is sent, in stream order, to
# page-locked memory, and read when it has come. No step and no save waits for that: what has not come is part of the
# state, as it lies on the device, and the capture takes it along.


cuda: Any = torch.cuda
_Tensor = torch.Tensor

_ROOM = 512  # losses that a ring holds: 4 KiB
_MANY = 16  # that wait until they are sent: a copy and an event are some 30 µs of the host's time


class TorchLosses:
    """Reads the losses of one run."""

    def __init__(self) -> None:
        self._rings: dict[torch.device, _Ring] = {}

    def take(self, step: int, loss: Any) -> float | None:
        if not isinstance(loss, _Tensor):
            return at_hand(loss)
        try:
            if loss.is_cpu:
                number = loss.item()
                return number if number.__class__ is float else at_hand(number)
            if loss.numel() == 1 and not loss.is_meta and not loss.is_complex():
                self._ring(loss.device).put(step, loss)
        except (RuntimeError, ValueError, TypeError):
            return None  # a tensor of many numbers, or one without any
        return None

    def arrived(self) -> Sequence[tuple[int, float]]:
        if len(self._rings) == 1:  # as always, but for who trains on two devices
            (ring,) = self._rings.values()
            return ring.arrived()
        return sorted(each for ring in self._rings.values() for each in ring.arrived())

    def settle(self) -> Sequence[tuple[int, float]]:
        return sorted(each for ring in self._rings.values() for each in ring.settle())

    def state_dict(self) -> Mapping[str, Any]:
        rings = [ring.state() for ring in self._rings.values() if len(ring)]
        return {"rings": rings} if rings else {}

    def read(self, tree: Tree) -> Sequence[tuple[int, float]]:
        rings = native(tree).get("rings", [])
        return sorted(each for ring in rings for each in _unread(ring))

    def _ring(self, device: torch.device) -> _Ring:
        ring = self._rings.get(device)
        if ring is None:
            with ordinary():
                ring = self._rings[device] = _Ring(device)
        return ring


class _Ring:
    """The last losses of one device: those of the steps `_steps[begin:end]`, counted without end, are not read yet."""

    def __init__(self, device: torch.device) -> None:
        dtype = torch.float32 if device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        self._values = torch.zeros(_ROOM, dtype=dtype, device=device)
        self._places = self._values.unbind()
        self._steps = [0] * _ROOM
        self._begin = self._end = 0
        self._cuda = device.type == "cuda"
        self._host = _page_locked(dtype) if self._cuda else None
        self._arrival: Any = cuda.Event() if self._cuda else None
        self._sent: int | None = None  # up to where, if that is not known to have come
        self._late: list[tuple[int, float]] = []  # had to be waited for, and are not told yet
        outlives_forks(self)

    def __len__(self) -> int:
        return self._end - self._begin

    def put(self, step: int, loss: torch.Tensor) -> None:
        """Keep the loss of a step."""
        if len(self) == _ROOM:  # nobody asked for them, or the device is hundreds of steps behind
            self._late = [*self.settle()]  # with those that were late before
        place = self._end % _ROOM
        self._places[place].copy_(loss.detach().reshape(()))
        self._steps[place] = step
        self._end += 1

    def arrived(self) -> Sequence[tuple[int, float]]:
        """Those that were sent and have come; sends more if many wait."""
        if self._sent is not None:
            if self._host is None or not self._arrival.query():
                return ()
            upto, self._sent = self._sent, None
            return self._told(self._host.tolist(), upto)
        if len(self) < _MANY:
            return ()
        if self._host is None:  # a device without events that we know: one wait for many losses
            return self.settle()
        self._host.copy_(self._values, non_blocking=True)
        self._arrival.record(cuda.current_stream(self._values.device))
        self._sent = self._end
        return ()

    def settle(self) -> Sequence[tuple[int, float]]:
        """All that are not read. Waits."""
        self._sent = None
        return self._told(self._values.tolist() if len(self) else (), self._end)

    def state(self) -> dict[str, Any]:
        """What is not read, where it is."""
        places = [count % _ROOM for count in range(self._begin, self._end)]
        return {
            "steps": stored_steps(self._steps[place] for place in places),
            "places": stored_steps(places),
            "values": self._values,
        }

    def _told(self, values: Sequence[float], upto: int) -> list[tuple[int, float]]:
        places = [count % _ROOM for count in range(self._begin, upto)]
        late, self._late, self._begin = self._late, [], upto
        return late + [(self._steps[place], float(values[place])) for place in places]


def _page_locked(dtype: torch.dtype) -> torch.Tensor:
    try:
        return torch.empty(_ROOM, dtype=dtype, device="cpu", pin_memory=True)
    except RuntimeError:  # the driver has none left: ordinary memory then, which a copy may wait for
        return torch.empty(_ROOM, dtype=dtype, device="cpu")


def _unread(ring: Mapping[str, Any]) -> list[tuple[int, float]]:
    values = ring["values"].tolist()
    return [
        (step, float(values[place]))
        for step, place in zip(ring["steps"].tolist(), ring["places"].tolist(), strict=True)
    ]


class TorchFramework(Adapter):
    """PyTorch, 2.4 or newer."""

    name = "torch"
    kinds = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler, torch.Tensor)
    describe = staticmethod(describe)

    def __init__(self, memory: HostMemory | None = None) -> None:
        super().__init__(TorchKit(), streams(), memory)

    def capture(self, parts: Mapping[str, object]) -> Capture:
        if not Devices.capturing():
            return super().capture(parts)
        with self._captures.begin() as begun:
            begun.rest = _wait_for_the_graph
        return begun

    def copying(self) -> AbstractContextManager[Any]:
        return ordinary()

    def differences(self, name: str, target: Any, tree: Tree, names: ParameterNames) -> Iterable[str]:
        if isinstance(target, torch.nn.Module):
            return module_differences(name, target, tree)
        if isinstance(target, torch.optim.Optimizer):
            return optimizer_differences(name, target, tree, names)
        if isinstance(target, LRScheduler):
            return schedule_differences(name, target, tree)
        return super().differences(name, target, tree, names)

    def is_on_cpu(self, parts: Mapping[str, object]) -> bool:
        models = self.of(parts, torch.nn.Module).values()
        return {each.device.type for model in models for each in model.parameters()} == {"cpu"}

    def trains(self, optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
        return parameters_of(optimizer)

    def is_trained(self, parameter: torch.Tensor) -> bool:
        return parameter.requires_grad

    def restore_part(self, name: str, target: Any, tree: Tree, names: ParameterNames) -> None:
        if isinstance(target, torch.nn.Module):
            restore_module(name, target, tree)
        elif isinstance(target, torch.optim.Optimizer) and tree["kind"] == "optimizer":
            restore_optimizer(target, tree, names)
        else:
            restore_helper(target, tree)

    def native(self, tree: Tree) -> Any:
        return native(tree)

    def boundary(self, parts: Mapping[str, object]) -> Boundary:
        self.prepare(parts)
        return TorchBoundary(self._streams.streams, parts, lambda: self.prepare(parts), self.opaque(parts))

    def settings(self, parts: Mapping[str, object]) -> PartsSettings:
        return TorchSetup(parts)

    def remember(self, parts: Mapping[str, object]) -> Remembered:
        return remember(parts)

    def data(self) -> Data:
        from colabkeep.frameworks.torch.data import TorchData

        return TorchData(*place())

    def training(self, options: TrainingOptions) -> Training:
        from colabkeep.frameworks.torch.training import TorchTraining

        return TorchTraining(options)

    def mean(self, value: object) -> MeanLike:
        from colabkeep.frameworks.torch.training import mean_on

        return mean_on(value.device if isinstance(value, torch.Tensor) else torch.device("cpu"))

    def fingerprint(self, parts: Mapping[str, object]) -> Mapping[str, str]:
        return fingerprint(_tensors(parts), self.of(parts, torch.nn.Module).values())

    def exactness(self, parts: Mapping[str, object]) -> Exactness:
        return exactness(_tensors(parts), self.of(parts, torch.nn.Module).values())

    def losses(self) -> Losses:
        return TorchLosses()

    def learning_rate(self, parts: Mapping[str, object]) -> float | None:
        optimizer = next((part for part in parts.values() if isinstance(part, torch.optim.Optimizer)), None)
        rate = None if optimizer is None or not optimizer.param_groups else optimizer.param_groups[0].get("lr")
        if isinstance(rate, torch.Tensor):
            return float(rate) if rate.device.type == "cpu" and rate.numel() == 1 else None
        return float(rate) if isinstance(rate, (int, float)) else None

    def unseen(self, parts: Mapping[str, object]) -> Unseen:
        return TorchUnseen(parts)

    def place(self) -> tuple[int, int]:
        return place()

    def ranks(self) -> Ranks | None:
        if place()[1] == 1:
            return None
        from colabkeep.frameworks.torch.ranks import TorchRanks

        return TorchRanks()

    def prepare(self, parts: Mapping[str, object]) -> None:
        if place()[0] == 0:  # the others save nothing
            super().prepare(parts)

    def sharded(self, parts: Mapping[str, object]) -> str | None:
        return next((f"{name} by {by}" for name, part in parts.items() if (by := _cut_by(part)) is not None), None)


def _wait_for_the_graph() -> None:
    """A CUDA graph is being captured, and neither memory nor waiting is to be had."""
    raise Stale


_CUTS = {
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "FSDPModule": "fully_shard",
    "ZeroRedundancyOptimizer": "ZeroRedundancyOptimizer",
    "DTensor": "parallelize_module or distribute_tensor",
}  # each is known by its name: to import it takes a second, and whoever uses it has done so


def _cut_by(part: object) -> str | None:
    members = [part]
    if isinstance(part, torch.nn.Module):
        members += [*part.modules(), *part.parameters(), *part.buffers()]
    bases = {base for kind in set(map(type, members)) for base in kind.__mro__}
    names = {base.__name__ for base in bases if base.__module__.startswith("torch.distributed")}
    return next((by for name, by in _CUTS.items() if name in names), None)


def _tensors(parts: Mapping[str, object]) -> Iterator[torch.Tensor]:
    for part in parts.values():
        if isinstance(part, torch.nn.Module):
            yield from chain(part.parameters(), part.buffers())
        elif isinstance(part, torch.optim.Optimizer):
            yield from parameters_of(part)

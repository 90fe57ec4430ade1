"""The torch adapter: finds out what each part is, and hands it to the page that knows. Losses in host memory are
read at once, those on a device on their way to the next save.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, TypeGuard

import torch

from colabkeep.core.errors import MemoryFull
from colabkeep.core.settings import Item
from colabkeep.core.state import Capture, SoloWorld, Stale, Stateful, Tree, World
from colabkeep.frameworks.base import (
    Boundary,
    Data,
    Exactness,
    Losses,
    MeanLike,
    PartsSettings,
    Remembered,
    Training,
    TrainingOptions,
    Unseen,
)
from colabkeep.frameworks.shared.describe import described
from colabkeep.frameworks.shared.host_memory import Captures, first_touch
from colabkeep.frameworks.shared.modules import ParameterNames, untrained
from colabkeep.frameworks.shared.rng import opaque_parts, updated_by_hand
from colabkeep.frameworks.shared.training import at_hand, stored_steps
from colabkeep.frameworks.shared.trees import missing_parts, object_differences, shortened
from colabkeep.frameworks.torch.boundary import TorchBoundary, TorchUnseen, remember
from colabkeep.frameworks.torch.copies import Copies, Devices
from colabkeep.frameworks.torch.facts import exactness, fingerprint, refuse_devices
from colabkeep.frameworks.torch.leaves import native, ordinary
from colabkeep.frameworks.torch.modules import Places
from colabkeep.frameworks.torch.optimizers import Recorders, restore_helper
from colabkeep.frameworks.torch.restore import (
    module_differences,
    optimizer_differences,
    restore_module,
    restore_optimizer,
    schedule_differences,
)
from colabkeep.frameworks.torch.rng import streams
from colabkeep.frameworks.torch.settings import describe, setup
from colabkeep.frameworks.torch.staging import ORDINARY, HostMemory, Slot

__all__ = [
    "TorchFramework",
    "TorchLosses",
]

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
        self._sent: tuple[int, Any] | None = None  # up to where, and the event of its arrival
        self._late: list[tuple[int, float]] = []  # had to be waited for, and are not told yet

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
            upto, sent = self._sent
            if self._host is None or not sent.query():
                return ()
            self._sent = None
            return self._told(self._host.tolist(), upto)
        if len(self) < _MANY:
            return ()
        if self._host is None:  # a device without events that we know: one wait for many losses
            return self.settle()
        self._host.copy_(self._values, non_blocking=True)
        event: Any = cuda.Event()
        event.record(cuda.current_stream(self._values.device))
        self._sent = self._end, event
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


_KINDS = (
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
    torch.Tensor,
)


class TorchFramework:
    """PyTorch, 2.4 or newer. `memory`: where copies of the state go; None: what this machine has."""

    name = "torch"

    def __init__(self, memory: HostMemory | None = None) -> None:
        self._captures = Captures()
        self._memory = memory or HostMemory()
        self._devices = Devices()
        self._recorders = Recorders(self._memory)
        self._rng = streams()

    def owns(self, obj: object) -> bool:
        return isinstance(obj, _KINDS)

    def capture(self, parts: Mapping[str, object]) -> Capture:
        with ordinary(), self._captures.begin() as begun:
            if Devices.capturing():
                begun.rest = _wait_for_the_graph
                return begun
            copies = Copies(self._devices)
            self._recorders.refresh(parts)
            begun.trees.update(self._recorders.record(parts, copies))
            copies.run()
            self._memory.recalled = False
            begun.rest, begun.keep, begun.remark = (
                copies.finish,
                copies.stored,
                self._devices.remark or self._memory.remark,
            )
        return begun

    def rehearse(self, parts: Mapping[str, object]) -> Capture:
        refuse_devices(_tensors(parts), _tried)
        with ordinary(), self._captures.begin() as begun:
            self._recorders.refresh(parts)
            begun.trees.update(self._recorders.record(parts, Copies(self._devices)))
        return begun

    def check(self, parts: Mapping[str, object], trees: Mapping[str, Tree]) -> Sequence[str]:
        lines = missing_parts(list(parts), list(trees))
        names = _names(parts)
        for name, target in parts.items():
            if name in trees:
                lines += _differences(name, target, trees[name], names)
        return shortened(lines)

    def untrained(self, parts: Mapping[str, object]) -> str:
        models = {name: list(part.named_parameters()) for name, part in parts.items() if _is_module(part)}
        groups = (group for part in parts.values() if _is_optimizer(part) for group in part.param_groups)
        held = [parameter for group in groups for parameter in group["params"]]
        return untrained(models, held, [name for name, each in models.get("model", ()) if each.requires_grad])

    def restore(self, parts: Mapping[str, object], trees: Mapping[str, Tree]) -> None:
        names = _names(parts)
        for name, tree in trees.items():
            target = parts[name]
            if isinstance(target, torch.nn.Module):
                restore_module(name, target, tree)
            elif isinstance(target, torch.optim.Optimizer) and tree["kind"] == "optimizer":
                restore_optimizer(target, tree, names)
            else:
                restore_helper(target, tree)

    def native(self, tree: Tree) -> Any:
        return native(tree)

    def rng(self) -> Stateful:
        return self._rng

    def boundary(self, parts: Mapping[str, object]) -> Boundary:
        optimizers = [part for part in parts.values() if isinstance(part, torch.optim.Optimizer)]
        schedulers = [part for part in parts.values() if isinstance(part, torch.optim.lr_scheduler.LRScheduler)]
        self._touch(parts)
        opaque = [
            *opaque_parts(parts, *_KINDS),
            *updated_by_hand(parts, torch.nn.Module, torch.optim.Optimizer, _trains),
        ]
        return TorchBoundary(
            self._rng.streams, _modules(parts), optimizers, schedulers, lambda: self._touch(parts), opaque
        )

    def _touch(self, parts: Mapping[str, object]) -> None:
        """Get the pages of the memory that saves will be copied to. No save waits for them then."""
        if self._captures.lent:  # the save that uses it has them
            return
        with ordinary(), suppress(MemoryFull):  # the save that cannot do without will say so
            fresh = [each for each in self._recorders.prepare(parts) if _is_cold(each)]
            first_touch((slot.memory.data_ptr(), slot.memory.nbytes) for slot in fresh)
            for slot in fresh:
                slot.touched = True

    def settings(self, parts: Mapping[str, object]) -> PartsSettings:
        return setup(parts)

    def described(self, value: object) -> Mapping[str, Item]:
        return described(value, describe)

    def remember(self, parts: Mapping[str, object]) -> Remembered:
        return remember(parts)

    def data(self) -> Data:
        from colabkeep.frameworks.torch.data import TorchData

        return TorchData()

    def training(self, options: TrainingOptions) -> Training:
        from colabkeep.frameworks.torch.training import TorchTraining

        return TorchTraining(options)

    def mean(self, value: object) -> MeanLike:
        from colabkeep.frameworks.torch.training import RunningMean

        return RunningMean(value.device if isinstance(value, torch.Tensor) else torch.device("cpu"))

    def fingerprint(self, parts: Mapping[str, object]) -> Mapping[str, str]:
        return fingerprint(_tensors(parts), _modules(parts))

    def exactness(self, parts: Mapping[str, object]) -> Exactness:
        return exactness(_tensors(parts), _modules(parts))

    def losses(self) -> Losses:
        return TorchLosses()

    def unseen(self, parts: Mapping[str, object]) -> Unseen:
        return TorchUnseen(parts)

    def world(self) -> World:
        return SoloWorld()

    def processes(self) -> int:
        group = torch.distributed
        return int(group.get_world_size()) if group.is_available() and group.is_initialized() else 1


def _wait_for_the_graph() -> None:
    """A CUDA graph is being captured, and neither memory nor waiting is to be had."""
    raise Stale


def _is_module(part: object) -> TypeGuard[torch.nn.Module]:
    return isinstance(part, torch.nn.Module)


def _is_optimizer(part: object) -> TypeGuard[torch.optim.Optimizer]:
    return isinstance(part, torch.optim.Optimizer)


def _is_cold(slot: Slot) -> bool:
    """Would a save wait for its pages? What comes from a device is written to behind training."""
    return not slot.touched and slot.kind == ORDINARY and slot.device.type == "cpu"


def _trains(parameter: torch.Tensor) -> bool:
    return parameter.requires_grad


def _modules(parts: Mapping[str, object]) -> list[torch.nn.Module]:
    return [part for part in parts.values() if isinstance(part, torch.nn.Module)]


def _tensors(parts: Mapping[str, object]) -> Iterable[torch.Tensor]:
    optimizers = (part for part in parts.values() if isinstance(part, torch.optim.Optimizer))
    held = (parameter for each in optimizers for group in each.param_groups for parameter in group["params"])
    return chain(*(chain(module.parameters(), module.buffers()) for module in _modules(parts)), held)


def _tried(parts: Mapping[str, object]) -> torch.Tensor:
    """What a capture, made for real, holds of the one buffer of a trial."""
    snapshot = TorchFramework().capture(parts).finish()
    stored: torch.Tensor = native(snapshot.parts["trial"]["weights"]["tensor"])
    snapshot.release()
    return stored


def _names(parts: Mapping[str, object]) -> ParameterNames:
    return ParameterNames(
        (name, Places(part).parameters()) for name, part in parts.items() if isinstance(part, torch.nn.Module)
    )


def _differences(name: str, target: object, tree: Tree, names: ParameterNames) -> Iterable[str]:
    if isinstance(target, torch.nn.Module):
        return module_differences(name, target, tree)
    if isinstance(target, torch.optim.Optimizer):
        return optimizer_differences(name, target, tree, names)
    if isinstance(target, torch.optim.lr_scheduler.LRScheduler):
        return schedule_differences(name, target, tree)
    return object_differences(name, target, tree)

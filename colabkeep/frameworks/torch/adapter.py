"""The torch adapter: finds out what each part is, and hands it to the page that knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, TypeGuard

import torch

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
from colabkeep.frameworks.common.captures import Captures
from colabkeep.frameworks.common.describing import described
from colabkeep.frameworks.common.holding import untrained
from colabkeep.frameworks.common.host_copy import first_touch
from colabkeep.frameworks.common.marks import opaque_parts, updated_by_hand
from colabkeep.frameworks.common.names import ParameterNames
from colabkeep.frameworks.common.objects import missing_parts, object_differences, shortened
from colabkeep.frameworks.torch.facts import exactness, fingerprint
from colabkeep.frameworks.torch.losses import TorchLosses
from colabkeep.frameworks.torch.state.boundary import TorchBoundary
from colabkeep.frameworks.torch.state.compare import module_differences, optimizer_differences, schedule_differences
from colabkeep.frameworks.torch.state.copies import Copies
from colabkeep.frameworks.torch.state.device_copy import Devices
from colabkeep.frameworks.torch.state.devices import refuse_devices
from colabkeep.frameworks.torch.state.host_memory import ORDINARY, HostMemory
from colabkeep.frameworks.torch.state.leaves import native
from colabkeep.frameworks.torch.state.loading import restore_module
from colabkeep.frameworks.torch.state.modes import ordinary
from colabkeep.frameworks.torch.state.places import Places
from colabkeep.frameworks.torch.state.recorders import Recorders
from colabkeep.frameworks.torch.state.remembering import remember
from colabkeep.frameworks.torch.state.rng import streams
from colabkeep.frameworks.torch.state.schedulers import restore_helper
from colabkeep.frameworks.torch.state.settings import describe, setup
from colabkeep.frameworks.torch.state.staging import Slot
from colabkeep.frameworks.torch.state.unseen import TorchUnseen
from colabkeep.frameworks.torch.state.updating import restore_optimizer
from colabkeep.vocabulary.errors import MemoryFull
from colabkeep.vocabulary.settings import Item
from colabkeep.vocabulary.state import Capture, Stale, Stateful, Tree
from colabkeep.vocabulary.world import SoloWorld, World

__all__ = ["TorchFramework"]

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
        from colabkeep.frameworks.torch.data.opening import TorchData

        return TorchData()

    def training(self, options: TrainingOptions) -> Training:
        from colabkeep.frameworks.torch.training.arithmetic import TorchTraining

        return TorchTraining(options)

    def mean(self, value: object) -> MeanLike:
        from colabkeep.frameworks.torch.training.means import RunningMean

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

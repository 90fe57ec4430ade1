"""One recorder for each part, kept from capture to capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from colabkeep.frameworks.common.names import ParameterNames
from colabkeep.frameworks.common.objects import encode_object, told_state
from colabkeep.frameworks.torch.state.copies import Copies
from colabkeep.frameworks.torch.state.host_memory import HostMemory
from colabkeep.frameworks.torch.state.leaves import TensorLeaves
from colabkeep.frameworks.torch.state.modules import ModuleRecorder
from colabkeep.frameworks.torch.state.optimizers import OptimizerRecorder
from colabkeep.frameworks.torch.state.scalers import on_device, scaler_state, tells_as_torch
from colabkeep.frameworks.torch.state.schedulers import without_functions
from colabkeep.frameworks.torch.state.staging import Slot
from colabkeep.vocabulary.state import Tree

__all__ = ["ObjectRecorder", "Recorders"]


class ObjectRecorder:
    """Captures whatever tells its own state: schedulers, scalers, random streams, the user's own."""

    def __init__(self, part: str, target: object, memory: HostMemory) -> None:
        self.part = part
        self.target = target
        self._leaves = TensorLeaves(memory, devices=True)

    def record(self, copies: Copies) -> Tree:
        """The object's tree; its tensors are filled when `copies` runs."""
        self._leaves.turn(copies)
        if isinstance(self.target, torch.amp.GradScaler) and tells_as_torch(self.target):
            tree = told_state(self.target, scaler_state(self.target), self.part, self._leaves)
            copies.fill(tree["state"], on_device(self.target))
        else:
            scheduler = isinstance(self.target, torch.optim.lr_scheduler.LRScheduler)
            tree = encode_object(self.part, self.target, self._leaves, without_functions if scheduler else None)
        self._leaves.sweep()
        return tree


class Recorders:
    """The recorders of all parts, and the names of the parameters that they share."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._modules: dict[str, ModuleRecorder] = {}
        self._others: dict[str, OptimizerRecorder | ObjectRecorder] = {}
        self._names = ParameterNames(())

    def record(self, parts: Mapping[str, object], copies: Copies) -> dict[str, Tree]:
        """The trees of all parts; their tensors are filled when `copies` runs. After `refresh`.

        Raises:
            NotStorable: a part cannot be kept.
        """
        trees = {}
        for name in parts:
            other = self._others.get(name)
            if isinstance(other, OptimizerRecorder):
                trees[name] = other.record(copies, self._names)
            else:
                trees[name] = (other or self._modules[name]).record(copies)
        return trees

    def prepare(self, parts: Mapping[str, object]) -> Iterator[Slot]:
        """Plan for these parts; the slots of modules and optimizers, some of which may be new.

        Raises:
            NotStorable: a part cannot be kept.
            MemoryFull: there is no room for a copy of it.
        """
        self.refresh(parts)
        for module in self._modules.values():
            yield from module.slots()
        for optimizer in self._optimizers():
            yield from optimizer.slots()

    def refresh(self, parts: Mapping[str, object]) -> None:
        """Plan for exactly these parts; the memory of those that are gone is let go.

        Raises:
            NotStorable: a part cannot be kept.
            MemoryFull: there is no room for a copy of it.
        """
        self._find(parts)
        for optimizer in self._optimizers():
            optimizer.refresh(self._names)

    def _optimizers(self) -> Iterator[OptimizerRecorder]:
        return (other for other in self._others.values() if isinstance(other, OptimizerRecorder))

    def _find(self, parts: Mapping[str, object]) -> None:
        modules: dict[str, ModuleRecorder] = {}
        others: dict[str, OptimizerRecorder | ObjectRecorder] = {}
        renamed = False
        for name, target in parts.items():
            if isinstance(target, torch.nn.Module):
                module = self._modules.get(name)
                if module is None or module.target is not target:
                    module, renamed = ModuleRecorder(name, target, self._memory), True
                elif module.refresh():
                    renamed = True
                modules[name] = module
            else:
                other = self._others.get(name)
                if other is None or other.target is not target:
                    if isinstance(target, torch.optim.Optimizer):
                        other = OptimizerRecorder(name, target, self._memory)
                    else:
                        other = ObjectRecorder(name, target, self._memory)
                others[name] = other
        renamed = renamed or list(modules) != list(self._modules)
        if renamed:
            self._names = ParameterNames((name, module.parameters()) for name, module in modules.items())
        self._modules, self._others = modules, others

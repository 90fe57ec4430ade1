"""Going back to the last step boundary: streams, mutable buffers, modes, options of the optimizers; and whether one has
begun a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from colabkeep.frameworks.common.marks import Modes, StreamMarks
from colabkeep.frameworks.common.randomness import Stream
from colabkeep.frameworks.common.watch import Watch
from colabkeep.frameworks.torch.state.gradients import Gradients
from colabkeep.frameworks.torch.state.groups import Options
from colabkeep.frameworks.torch.state.modes import ordinary
from colabkeep.frameworks.torch.state.places import Places
from colabkeep.frameworks.torch.state.replay import count_of
from colabkeep.frameworks.torch.state.unguarded import Unguarded
from colabkeep.frameworks.torch.state.watch import Bulk

__all__ = ["Buffers", "TorchBoundary"]


_Schedulers = Iterable[torch.optim.lr_scheduler.LRScheduler]


class TorchBoundary:
    """Marks streams and buffers; hears from optimizers when they begin to change parameters, and sees when a
    scheduler has moved on: a loop that is left between a scheduler's step and its own end would step it twice.

    `first` is called once, at the mark behind the first step that was heard.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        modules: Iterable[torch.nn.Module],
        optimizers: Iterable[torch.optim.Optimizer],
        schedulers: _Schedulers,
        first: Callable[[], None],
        opaque: Sequence[str] = (),
    ) -> None:
        self.opaque = opaque
        self._streams = StreamMarks(streams)
        self._modules = list(modules)
        self._buffers = Buffers(self._modules)
        self._modes = Modes(each for module in self._modules for _, each in Places(module).modules)
        self._optimizers = list(optimizers)
        self._options = Options(self._optimizers)
        self.gradients = Gradients(
            (f"{i}.{name}", p) for i, module in enumerate(self._modules) for name, p in Places(module).parameters()
        )
        self._unguarded = Unguarded(self._modules, self._optimizers)
        self._schedulers = list(schedulers)
        self._counts: list[int] = []
        self._torn = False
        self._first: Callable[[], None] | None = first
        self._heard = [_Heard(optimizer, self._begins) for optimizer in self._optimizers]

    def mark(self) -> None:
        self._streams.mark()
        if self._buffers.owners:
            self._buffers.mark()
        if self._schedulers:
            self._counts = self._counted()
        self._modes.mark()
        self._options.mark()
        if self._unguarded.parameters:
            self._unguarded.mark()
        self.gradients.mark()
        self._torn = False
        if self._first is not None and self.updates:
            first, self._first = self._first, None
            first()

    @property
    def updates(self) -> int:
        return max((heard.count for heard in self._heard), default=0)

    @property
    def torn(self) -> bool:
        return self._torn or self._counts != self._counted() or self._unguarded.changed or self.gradients.changed

    def rewind(self) -> None:
        self._streams.rewind()
        self._buffers.rewind()
        self._modes.rewind()
        self._options.put_back()
        self.gradients.rewind()

    def close(self) -> None:
        for heard in self._heard:
            heard.close()

    def _counted(self) -> list[int]:
        return [count_of(vars(scheduler)) for scheduler in self._schedulers]

    def _begins(self) -> None:
        self._torn = True
        self.gradients.begins()


class _Heard:
    """Hears when one optimizer begins a step. Torch calls no hooks where `step` was replaced after the optimizer was
    made, where it is compiled (they are, when it is traced), and where a CUDA graph replays it."""

    def __init__(self, optimizer: torch.optim.Optimizer, begins: Callable[[], None]) -> None:
        self.count = 0
        self._begins = begins
        self._handle: Any = None
        if "_optimizer_step_pre_hooks" in vars(optimizer):  # else super().__init__() was not called
            self._handle = optimizer.register_step_pre_hook(self)
            # Before the user's own: one that clips weights changes them.
            hooks: Any = optimizer._optimizer_step_pre_hooks
            hooks.move_to_end(self._handle.id, last=False)

    def __call__(self, *step: Any) -> None:
        self._begins()
        if not torch.compiler.is_compiling():
            self.count += 1

    def close(self) -> None:
        if self._handle is not None:
            self._handle.remove()


class Buffers:
    """Copies of all buffers, on their own devices: a forward pass in training mode changes them."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        owners = {id(each): each for module in modules for _, each in Places(module).modules if each._buffers}
        self.owners = [each._buffers for each in owners.values()]
        self._plan()

    def mark(self) -> None:
        if not self._watch.unchanged() or not self._bulk.unchanged():
            self._plan()
        else:
            for kept, sources in self._groups:
                torch._foreach_copy_(kept, sources)

    def rewind(self) -> None:
        kept = dict(zip(map(id, self._live), self._kept, strict=True))
        with torch.no_grad():
            for owner, key, was in self._places:
                if id(was) in kept:
                    _put_back(was, kept[id(was)])
                owner[key] = was

    def _plan(self) -> None:
        self._watch = Watch(self.owners)
        self._places = [(owner, key, value) for owner in self.owners for key, value in owner.items()]
        found = {id(t): t for _, _, t in self._places if t is not None and not torch.nn.parameter.is_lazy(t)}
        self._live = list(found.values())
        # The copies must not become part of a graph; a buffer that wants gradients is read around it.
        sources = [tensor.detach() if tensor.requires_grad else tensor for tensor in self._live]
        with ordinary():
            self._kept = [tensor.detach().clone() for tensor in self._live]
        groups: dict[object, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for kept, source in zip(self._kept, sources, strict=True):
            pair = groups.setdefault((source.dtype, source.device), ([], []))
            pair[0].append(kept)
            pair[1].append(source)
        self._groups = list(groups.values())  # a list of one dtype is one kernel on a GPU, a mixed one is many
        self._bulk = Bulk(self._live)


def _put_back(tensor: Any, kept: torch.Tensor) -> None:
    straight = tensor.layout is torch.strided and 0 not in tensor.stride()
    if straight and tensor.shape == kept.shape and tensor.dtype == kept.dtype and tensor.device == kept.device:
        tensor.copy_(kept)
    else:  # resized meanwhile, or several places of one number
        tensor.data = kept.clone()

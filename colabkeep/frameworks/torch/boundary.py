"""Going back to the last step boundary, undoing what the top of an epoch may do, and finding what moves the parts
and was not handed in.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from colabkeep.frameworks.shared.describe import NOT_PLAIN, plain
from colabkeep.frameworks.shared.modules import (
    Memory,
    ParameterNames,
    Watch,
    combined,
    remember_modules,
    remember_objects,
)
from colabkeep.frameworks.shared.rng import Modes, Stream, StreamMarks
from colabkeep.frameworks.shared.streams import reachable
from colabkeep.frameworks.torch.leaves import ordinary
from colabkeep.frameworks.torch.modules import Bulk, Gradients, Places
from colabkeep.frameworks.torch.restore import Options, Unguarded
from colabkeep.frameworks.torch.settings import attributes, count_of

__all__ = [
    "Buffers",
    "TorchBoundary",
    "TorchUnseen",
    "remember",
]

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


def remember(parts: Mapping[str, object]) -> Memory:
    """Take the small state of the parts. Until it is put back, a parameter group whose parameters an optimizer has
    already is not added to it again."""
    modules = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
    optimizers = [part for part in parts.values() if isinstance(part, torch.optim.Optimizer)]
    others = {n: part for n, part in parts.items() if not isinstance(part, (torch.nn.Module, torch.optim.Optimizer))}
    parameters = {f"{part}.{name}": p for part, each in modules.items() for name, p in Places(each).parameters()}
    buffers = Buffers(modules.values())
    return combined(
        [
            *(_remember_optimizer(optimizer) for optimizer in optimizers),
            remember_objects(others, _clone_other),
            Memory(buffers.rewind),
            _remember_gradients([*parameters.values(), *_held(optimizers)]),
            remember_modules({name: attributes(each) for name, each in modules.items()}, parameters, _version),
        ]
    )


def _remember_optimizer(optimizer: torch.optim.Optimizer) -> Memory:
    options = [
        {key: value if key == "params" else _copied(value) for key, value in group.items()}
        for group in optimizer.param_groups
    ]
    held, add = vars(optimizer), optimizer.add_param_group
    before = held.get("add_param_group")
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}

    def add_new(param_group: dict[str, Any]) -> None:
        given = param_group["params"]
        listed = [given] if isinstance(given, torch.Tensor) else list(given)
        if not listed or not all(id(each[1] if isinstance(each, tuple) else each) in known for each in listed):
            add({**param_group, "params": listed})

    held["add_param_group"] = add_new

    def release() -> None:
        if before is None:
            del held["add_param_group"]
        else:
            held["add_param_group"] = before

    def put_back() -> None:
        for group, kept in zip(optimizer.param_groups, options, strict=False):  # one that is new stays, behind them
            group.update({key: value for key, value in kept.items() if key != "params"})

    return Memory(put_back, release)


def _held(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[torch.Tensor]:
    return (parameter for each in optimizers for group in each.param_groups for parameter in group["params"])


def _remember_gradients(parameters: Iterable[torch.Tensor]) -> Memory:
    """Those that stand: in a resumed session, what the checkpoint had of them."""
    standing = ((each, each.grad) for each in parameters)
    found = {
        id(each): (each, grad, grad._version, grad.detach().clone()) for each, grad in standing if grad is not None
    }

    def put_back() -> None:
        for parameter, gradient, version, kept in found.values():
            parameter.grad = gradient if gradient._version == version else kept

    return Memory(put_back)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return deepcopy(value) if plain(value) is not NOT_PLAIN else value


def _version(parameter: torch.Tensor) -> int:
    return -1 if parameter.is_inference() else parameter._version


def _clone_other(value: Any) -> Any:
    if not isinstance(value, torch.Generator):
        return value
    twin = torch.Generator(value.device)
    twin.set_state(value.get_state())
    return twin


_SCHEDULER = (
    "A scheduler ({kind}) of this run's optimizer was not handed in. No checkpoint holds how far it is, so "
    'in a resumed session it begins anew. Write: scheduler=…; or, for one more, state={{"warm_up": …}}.'
)
_OPTIMIZER = (
    "{trained} is trained by an optimizer ({kind}) that was not handed in. No checkpoint holds its state, so in a "
    'resumed session it begins anew. Write: optimizer=…; or, for one more, state={{"optimizer_d": …}}.'
)


class TorchUnseen:
    """Listens from now on which optimizers step. Called when the first step of a session is done, it stops, looks for
    schedulers, and gives a sentence for each. The collector is asked who refers to the optimizers, which looks at all
    objects once, and once more where something was found: 35 ms each with torch, matplotlib and scikit-learn imported.
    """

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._parts = dict(parts)
        self._stepped: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._handle = register_optimizer_step_pre_hook(self._step)

    def __call__(self) -> Sequence[str]:
        self.close()
        known = self._optimizers()
        # One that is gone already was made for a step, as in meta-learning.
        stepped = [each for each in (held() for held in self._stepped.values()) if each is not None]
        strangers = [each for each in stepped if id(each) not in known]
        optimizers = [*known.values(), *strangers]
        return [*map(self._optimizer, strangers), *map(_scheduler, self._schedulers(optimizers))]

    def close(self) -> None:
        """Listen no more. Calling twice is harmless."""
        self._handle.remove()

    def _step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._stepped[id(optimizer)] = weakref.ref(optimizer)

    def _optimizers(self) -> dict[int, torch.optim.Optimizer]:
        """Those that were handed in, and those that they hold, by id."""
        handed_in = [part for part in self._parts.values() if isinstance(part, torch.optim.Optimizer)]
        inside = [each for part in handed_in for each in vars(part).values() if isinstance(each, torch.optim.Optimizer)]
        others = (part for part in self._others() if isinstance(part, torch.optim.Optimizer))
        return {id(each): each for each in (*handed_in, *inside, *others)}

    def _others(self) -> Iterator[object]:
        """What the other parts reach: a trainer with its optimizers, a scheduler with those that it runs."""
        kinds = (torch.nn.Module, torch.optim.Optimizer)
        return reachable(*(part for part in self._parts.values() if not isinstance(part, kinds)))

    def _schedulers(self, optimizers: Sequence[torch.optim.Optimizer]) -> list[LRScheduler]:
        known = [each for each in self._others() if isinstance(each, LRScheduler)]
        return _referring(optimizers, known) if optimizers else []

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> str:
        modules = ((name, part) for name, part in self._parts.items() if isinstance(part, torch.nn.Module))
        names = ParameterNames((name.removeprefix("state."), Places(part).parameters()) for name, part in modules)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        trained = names.get(parameters[0]) if parameters else None
        more = f" (and {len(parameters) - 1} more)" if len(parameters) > 1 else ""
        return _OPTIMIZER.format(
            kind=type(optimizer).__name__, trained=f"{trained}{more}" if trained else "What is no part of this run"
        )


def _scheduler(scheduler: LRScheduler) -> str:
    return _SCHEDULER.format(kind=type(scheduler).__name__)


def _referring(optimizers: Sequence[torch.optim.Optimizer], known: Sequence[LRScheduler]) -> list[LRScheduler]:
    """The schedulers of these optimizers that are not known yet, wherever they are kept."""
    passed = {*map(id, known), *(id(vars(each)) for each in known)}
    found = [each for each in gc.get_referrers(*optimizers) if id(each) not in passed]
    # The collector names an object or the dict of its attributes.
    dicts = [each for each in found if type(each) is dict and "optimizer" in each and "last_epoch" in each]
    owners = [*found, *(gc.get_referrers(*dicts) if dicts else [])]
    return [each for each in owners if LRScheduler in type(each).__mro__ and id(each) not in passed]

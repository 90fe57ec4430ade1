"""Torch's step boundary, what code that is run again may do to torch's objects, and what moves the parts and was not
handed in.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from colabkeep.frameworks.base import Remembered, Unseen
from colabkeep.frameworks.shared import boundary, capture
from colabkeep.frameworks.shared.boundary import (
    StepBoundary,
    combined,
    remember_modules,
    remember_objects,
)
from colabkeep.frameworks.shared.capture import ParameterNames
from colabkeep.frameworks.shared.describe import NOT_PLAIN, plain
from colabkeep.frameworks.shared.rng import Stream
from colabkeep.frameworks.shared.streams import reachable
from colabkeep.frameworks.torch.capture import TensorPlaces, TorchKit, counts_of, metrics, ordinary, parameters_of
from colabkeep.frameworks.torch.data import begin_anew, stay
from colabkeep.frameworks.torch.restore import is_torchs_own
from colabkeep.frameworks.torch.settings import attributes, count_of

_VERSION = attrgetter("_version")


class TorchBoundary(StepBoundary):
    """Also keeps gradients that stand between two steps, and sees parameters that change elsewhere than in a step."""

    def __init__(
        self,
        streams: Sequence[Stream],
        parts: Mapping[str, object],
        first: Callable[[], None],
        opaque: Sequence[str] = (),
    ) -> None:
        modules = [part for part in parts.values() if isinstance(part, torch.nn.Module)]
        optimizers = [part for part in parts.values() if isinstance(part, torch.optim.Optimizer)]
        schedulers = [part for part in parts.values() if isinstance(part, LRScheduler)]
        places = [TensorPlaces(module) for module in modules]
        inside = [each for found in places for _, each in found.modules]
        held = list(map(vars, schedulers))
        super().__init__(
            streams, inside, Buffers(inside), _Options(optimizers), lambda: list(map(count_of, held)), first
        )
        self.opaque = opaque
        self._metrics = _Metrics(places)
        self.gradients = Gradients(
            (f"{i}.{name}", p) for i, found in enumerate(places) for name, p in found.parameters()
        )
        self._unguarded = _Unguarded((p for found in places for _, p in found.parameters()), optimizers)
        self._heard = [_Heard(optimizer, self.begins) for optimizer in optimizers]

    def mark(self) -> None:
        if self._unguarded.parameters:
            self._unguarded.mark()
        self.gradients.mark()
        self._metrics.mark()
        super().mark()

    @property
    def updates(self) -> int:
        return max((heard.count for heard in self._heard), default=0)

    @property
    def torn(self) -> bool:
        return super().torn or self._unguarded.changed or self.gradients.changed

    def rewind(self) -> None:
        super().rewind()
        self.gradients.rewind()
        self._metrics.rewind()

    def close(self) -> None:
        """Remove the hooks."""
        for heard in self._heard:
            heard.close()

    def begins(self) -> None:
        super().begins()
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


class Buffers(boundary.Buffers):
    """Copies of all buffers."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        owners = {id(each._buffers): each._buffers for each in modules if each._buffers}
        super().__init__(TorchKit(), [(owner, lambda _: True) for owner in owners.values()])

    def has_data(self, tensor: Any) -> bool:
        return tensor is not None and not torch.nn.parameter.is_lazy(tensor)

    def keep(self) -> None:
        # The copies must not become part of a graph; a buffer that wants gradients is read around it.
        sources = [tensor.detach() if tensor.requires_grad else tensor for tensor in self.live]
        with ordinary():
            self.kept = [tensor.detach().clone() for tensor in self.live]
        groups: dict[object, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for kept, source in zip(self.kept, sources, strict=True):
            pair = groups.setdefault((source.dtype, source.device), ([], []))
            pair[0].append(kept)
            pair[1].append(source)
        self._groups = list(groups.values())  # a list of one dtype is one kernel on a GPU, a mixed one is many

    def copy(self) -> None:
        for kept, sources in self._groups:
            torch._foreach_copy_(kept, sources)

    def put_back(self, tensor: Any, kept: torch.Tensor) -> None:
        straight = tensor.layout is torch.strided and 0 not in tensor.stride()
        if straight and tensor.shape == kept.shape and tensor.dtype == kept.dtype and tensor.device == kept.device:
            with torch.no_grad():
                tensor.copy_(kept)
        else:  # resized meanwhile, or several places of one number
            tensor.data = kept.clone()


class _Metrics:
    """What metrics of torchmetrics had counted at the last mark."""

    def __init__(self, places: Sequence[capture.TensorPlaces]) -> None:
        self._metrics = [metric for found in places for _, metric in metrics(found)]
        self._kept: list[dict[str, Any]] = []

    def mark(self) -> None:
        """Remember it. Tensors of a list are added to it, and stay as they are."""
        self._kept = [
            {name: [*value] if isinstance(value, list) else value.detach().clone() for name, value in held.items()}
            for held in map(counts_of, self._metrics)
        ]

    def rewind(self) -> None:
        """As it was."""
        for metric, held in zip(self._metrics, self._kept, strict=True):
            for name, value in held.items():
                setattr(metric, name, value)


class _Unguarded:
    """Parameters that may change elsewhere than in a step, and whether they did since the last mark. 0.14 µs for each.

    What optimizers of torch's own train changes in a step that is heard, and is left out. Not seen is what writes
    through `.data` in place.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        heard = {id(p) for optimizer in optimizers for p in parameters_of(optimizer) if p.requires_grad}
        if not all(map(is_torchs_own, optimizers)):
            heard = set()
        held = {id(p): p for p in parameters}
        self.parameters = [p for key, p in held.items() if key not in heard and _tells(p)]
        self._marked: tuple[list[int], list[int]] = [], []

    def mark(self) -> None:
        """The training is between two steps."""
        self._marked = self._look()

    @property
    def changed(self) -> bool:
        """Was one of them changed since?"""
        return self._look() != self._marked

    def _look(self) -> tuple[list[int], list[int]]:
        return list(map(_VERSION, self.parameters)), list(map(torch.Tensor.data_ptr, self.parameters))


def _tells(parameter: torch.Tensor) -> bool:
    """Has it a version and an address?"""
    strided = parameter.layout is torch.strided and not torch.nn.parameter.is_lazy(parameter)
    return strided and not parameter.is_inference()


class _Options:
    """The parameter groups of optimizers and their options, at the last mark."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self.mark()

    def mark(self) -> None:
        """Remember them."""
        self._groups = [(here := optimizer.param_groups, [*here], [*map(dict, here)]) for optimizer in self._optimizers]

    def put_back(self) -> None:
        """As they were; a group that came since is gone."""
        for here, groups, options in self._groups:
            here[:] = groups
            for group, kept in zip(groups, options, strict=True):
                for key in [key for key in group if key not in kept]:
                    del group[key]
                group.update(kept)


_SURE = 8  # steps after which gradients that stood were cleared, and never added to
_Standing = dict[str, tuple["weakref.ref[torch.Tensor]", int]]


class Gradients:
    """Those of `parameters`, (name, parameter).

    Most loops clear them behind the optimizer's step, and none stand. Many do so before the next backward pass: they
    stand, are worth nothing, and are left out once that was seen often enough. What is added to, such as what an epoch
    left of an accumulation that it broke off, or a discriminator's from the generator's turn, decides about the next
    update and is kept.

    That is seen when an optimizer begins a step: a gradient that was cleared is another tensor by then; one that is the
    same and has another version was added to, or set to zero in place, which cannot be told apart and is kept, too.
    What stands now is held by weak references: no gradient lives longer for it. Sparse ones are not kept.

    A mark takes 0.05 µs for each parameter where none stand.
    """

    def __init__(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._parameters = dict(parameters)
        fewest = sorted(self._parameters, key=lambda name: _size(self._parameters[name]))[:2]
        self._sentinels = frozenset(fewest)  # these are looked at for ever: a loop may change its ways
        self._standing: _Standing = {}
        self._seen: set[str] = set()  # that they stood, while it was found out what the loop does
        self._clears = 0
        self._counted = self._added = False
        self._watch()

    def mark(self) -> None:
        """The training is between two steps."""
        self._counted = False
        standing: _Standing = {}
        for name, each in self._watched:
            grad = each.grad
            if grad is not None:
                standing[name] = weakref.ref(grad), grad._version
        if standing and not self._is_sure:
            self._seen.update(standing)
        self._standing = standing

    def begins(self) -> None:
        """An optimizer begins a step: what stood at the mark was cleared meanwhile, or added to, or is for another."""
        if not self._standing:
            return
        moved = {name: self._moved(name) for name in self._standing}
        if "added" in moved.values():
            self._added = True
            self._watch()
        elif "cleared" in moved.values() and not self._counted and not self._is_sure and not self._added:
            self._counted = True
            self._clears += 1
            self._watch()
        self._standing = {name: self._standing[name] for name, how in moved.items() if how is None}

    @property
    def changed(self) -> bool:
        """Was anything added since to gradients that stood at the last mark, and would be kept?"""
        return any(self._is_kept(name) and self._moved(name) == "added" for name in self._standing)

    def rewind(self) -> None:
        """Take away what came since the last mark."""
        for name, parameter in self._watched:
            if name not in self._standing or self._moved(name) == "cleared":
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """What stands now and is to be kept, live; those that are zero by name only. Empty if none ever stood."""
        values = {
            name: parameter.grad.detach()
            for name, parameter in self._parameters.items()
            if parameter.grad is not None and parameter.grad.layout is torch.strided and self._is_kept(name)
        }
        if not values and not self._seen:
            return {}
        zero = _zero(values) if self._added else []
        return {
            "values": {name: value for name, value in values.items() if name not in zero},
            "zero": zero,
            "clears": self._clears,
            "added": self._added,
            "seen": "".join("01"[name in self._seen] for name in self._parameters),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Gradients are as they were: those that were not kept are none."""
        values = state.get("values", {})
        for name, parameter in self._parameters.items():
            if name in values:
                parameter.grad = values[name].to(parameter.device)
            else:
                parameter.grad = torch.zeros_like(parameter) if name in state.get("zero", ()) else None
        self._clears, self._added = state.get("clears", 0), state.get("added", False)
        self._seen = {name for name, bit in zip(self._parameters, state.get("seen", ""), strict=False) if bit == "1"}
        self._watch()
        self.mark()

    def _watch(self) -> None:
        """Look at those from now on of which it is not known that they are cleared."""
        sure = self._seen - self._sentinels if self._is_sure else ()
        self._watched = [pair for pair in self._parameters.items() if pair[0] not in sure]

    def _moved(self, name: str) -> str | None:
        held, version = self._standing[name]
        now = self._parameters[name].grad
        if now is None or held() is not now:
            return "cleared"
        return None if now._version == version else "added"

    def _is_kept(self, name: str) -> bool:
        return not self._is_sure or name not in self._seen

    @property
    def _is_sure(self) -> bool:
        return self._clears >= _SURE and not self._added


def _zero(values: Mapping[str, torch.Tensor]) -> list[str]:
    """The names of those that are zero. One wait for each device that they are on."""
    places: dict[torch.device, list[str]] = {}
    for name, value in values.items():
        places.setdefault(value.device, []).append(name)
    found = []
    for device, names in places.items():
        counts = torch.stack([torch.count_nonzero(values[name]) for name in names])
        if device.type == "cuda":
            there, counts = counts, torch.empty(len(names), dtype=counts.dtype, device="cpu", pin_memory=True)
            counts.copy_(there, non_blocking=True)
            torch.cuda.current_stream(device).synchronize()
        found += [name for name, count in zip(names, counts.tolist(), strict=True) if not count]
    return found


def _size(parameter: torch.Tensor) -> int:
    return 0 if torch.nn.parameter.is_lazy(parameter) else parameter.numel()


def remember(parts: Mapping[str, object]) -> Remembered:
    """Take the small state of the parts. Until it is put back, a parameter group whose parameters an optimizer has
    already is not added to it again."""
    modules = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
    optimizers = [part for part in parts.values() if isinstance(part, torch.optim.Optimizer)]
    others = {n: part for n, part in parts.items() if not isinstance(part, (torch.nn.Module, torch.optim.Optimizer))}
    places = {name: TensorPlaces(each) for name, each in modules.items()}
    parameters = {f"{part}.{name}": p for part, found in places.items() for name, p in found.parameters()}
    buffers = Buffers(each for found in places.values() for _, each in found.modules)
    counted = _Metrics(list(places.values()))
    counted.mark()
    return combined(
        [
            *(_remember_optimizer(optimizer) for optimizer in optimizers),
            remember_objects(others, _clone_other),
            Remembered(buffers.rewind),
            Remembered(counted.rewind),
            _remember_gradients([*parameters.values(), *chain.from_iterable(map(parameters_of, optimizers))]),
            remember_modules({name: attributes(each) for name, each in modules.items()}, parameters, _version),
        ]
    )


def _remember_optimizer(optimizer: torch.optim.Optimizer) -> Remembered:
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

    return Remembered(put_back, release)


def _remember_gradients(parameters: Iterable[torch.Tensor]) -> Remembered:
    """Those that stand: in a resumed session, what the checkpoint had of them."""
    standing = ((each, each.grad) for each in parameters)
    found = {
        id(each): (each, grad, grad._version, grad.detach().clone()) for each, grad in standing if grad is not None
    }

    def put_back() -> None:
        for parameter, gradient, version, kept in found.values():
            parameter.grad = gradient if gradient._version == version else kept

    return Remembered(put_back)


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
    "A scheduler ({kind}) of this run's optimizer was not passed to colabkeep. No checkpoint holds how far it is, so "
    'in a resumed session it starts again. Write: scheduler=…; or, for one more, state={{"warm_up": …}}.'
)
_OPTIMIZER = (
    "{trained} is trained by an optimizer ({kind}) that was not passed to colabkeep. No checkpoint holds its state, so "
    'in a resumed session it starts again. Write: optimizer=…; or, for one more, state={{"optimizer_d": …}}.'
)
_COUNTED = (
    "{kind}.{name} changes when the optimizer steps. A checkpoint holds an optimizer's param_groups and state, and not "
    "its attributes, so in a resumed session it starts again. Keep it in param_groups or state."
)
_HELD = (
    "{kind}.{name} holds tensors that change while it trains, and is a plain attribute. A checkpoint holds a module's "
    "parameters and buffers, so in a resumed session it starts again. Make each tensor a buffer: "
    "self.register_buffer(…)."
)


class TorchUnseen(Unseen):
    """Listens from now on which optimizers step. Called when the first step of a session is done, it stops, looks for
    schedulers among all objects there are (some 35 ms), and gives a sentence for each; and for what an optimizer that
    tells nothing of it counts in attributes.

    From then on until it is closed, workers that persist begin anew for each pass over a loader that the run does not
    read. Only the first pass of a session would draw a number for them, and what is drawn after that would depend on
    where a session began."""

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._parts = dict(parts)
        self._stepped: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._handle = register_optimizer_step_pre_hook(self._step)
        self._before = [(each, _numbers(each)) for each in self._handed_in()]
        self._held = list(_plain_tensors(self._parts, set(map(id, self._told("remembers")))))
        self._anew: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()

    def __call__(self) -> Sequence[str]:
        self.close()
        objects = gc.get_objects()
        kinds = _derived(DataLoader)
        self._anew.update(begin_anew(each for each in objects if type(each) in kinds))
        moved = [_COUNTED.format(kind=type(each).__name__, name=name) for each, name in self._moved()]
        moved += [_HELD.format(kind=type(each.module).__name__, name=each.name) for each in self._held if each.changed]
        self._held = []
        known = self._optimizers()
        # One that is gone already was made for a step, as in meta-learning.
        stepped = [each for each in (held() for held in self._stepped.values()) if each is not None]
        strangers = [each for each in stepped if id(each) not in known]
        optimizers = [*known.values(), *strangers]
        return [
            *map(self._optimizer, strangers),
            *map(_scheduler, self._schedulers(objects, {*map(id, optimizers)})),
            *moved,
        ]

    def close(self) -> None:
        """Listen no more. Calling twice is harmless."""
        self._handle.remove()
        stay(self._anew)
        self._anew.clear()

    def _step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._stepped[id(optimizer)] = weakref.ref(optimizer)

    def _handed_in(self) -> list[torch.optim.Optimizer]:
        """The optimizers that were, and those that they hold."""
        handed_in = [part for part in self._parts.values() if isinstance(part, torch.optim.Optimizer)]
        inside = [each for part in handed_in for each in vars(part).values() if isinstance(each, torch.optim.Optimizer)]
        return [*handed_in, *inside]

    def _optimizers(self) -> dict[int, torch.optim.Optimizer]:
        """Those that were handed in, and those that the parts hold, by id."""
        others = (part for part in self._others() if isinstance(part, torch.optim.Optimizer))
        return {id(each): each for each in (*self._handed_in(), *others)}

    def _moved(self) -> Iterator[tuple[torch.optim.Optimizer, str]]:
        """What the first step changed of the attributes that an optimizer was made with."""
        for optimizer, before in self._before:
            now = _numbers(optimizer)
            yield from ((optimizer, name) for name in before.keys() & now.keys() if now[name] != before[name])

    def _others(self) -> Iterator[object]:
        """What the other parts reach: a trainer with its optimizers, a scheduler with those that it runs. Ours say what
        they keep of others."""
        kinds = (torch.nn.Module, torch.optim.Optimizer)
        parts = [part for part in self._parts.values() if not isinstance(part, kinds)]
        return reachable(*parts, *self._told("keeps"))

    def _told(self, what: str) -> list[object]:
        return [each for part in self._parts.values() for each in getattr(part, what, ())]

    def _schedulers(self, objects: Iterable[object], optimizers: set[int]) -> list[LRScheduler]:
        """Those of these optimizers that were not handed in, wherever they are kept."""
        if not optimizers:
            return []
        known = {id(each) for each in self._others() if isinstance(each, LRScheduler)}
        kinds = _derived(LRScheduler)
        # By the type and past any __getattr__: a lazy proxy of the user's must stay lazy.
        found: list[Any] = [each for each in objects if type(each) in kinds]
        return [each for each in found if id(each) not in known and id(vars(each).get("optimizer")) in optimizers]

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> str:
        modules = ((name, part) for name, part in self._parts.items() if isinstance(part, torch.nn.Module))
        names = ParameterNames((name.removeprefix("state."), TensorPlaces(part).parameters()) for name, part in modules)
        parameters = list(parameters_of(optimizer))
        trained = names.get(parameters[0]) if parameters else None
        more = f" (and {len(parameters) - 1} more)" if len(parameters) > 1 else ""
        return _OPTIMIZER.format(
            kind=type(optimizer).__name__, trained=f"{trained}{more}" if trained else "What is not part of this run"
        )


def _numbers(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """What it may count in attributes: no flags, and none where its class tells and loads a state by itself. Torch's
    begin with "_"."""
    if is_torchs_own(optimizer) or type(optimizer).state_dict is not torch.optim.Optimizer.state_dict:
        return {}
    return {key: value for key, value in vars(optimizer).items() if key[0] != "_" and type(value) in (int, float)}


_FEW = 64  # members of a list that are looked at


@dataclass(frozen=True, slots=True)
class _Held:
    """Tensors that a module has in a plain attribute, or in a list, tuple, deque or dict there, and their versions."""

    module: torch.nn.Module
    name: str
    tensors: Sequence[torch.Tensor]
    versions: Sequence[int]

    @property
    def changed(self) -> bool:
        """Are they other ones, of the same shapes? One number with a graph is a loss of the step, and no state."""
        now = _tensors_in(vars(self.module).get(self.name))
        if any(each.requires_grad and each.dim() == 0 for each in now):
            return False
        if len(now) != len(self.tensors):
            return bool(now)
        return any(map(_moved, now, self.tensors, self.versions))


def _moved(now: torch.Tensor, before: torch.Tensor, version: int) -> bool:
    if now is before:
        return _version(now) != version
    return now.shape == before.shape and now.device == before.device and not torch.equal(now, before)


def _tensors_in(value: object) -> list[torch.Tensor]:
    members: Iterable[object] = [value]
    if isinstance(value, (list, tuple, deque, dict)):
        members = value.values() if isinstance(value, dict) else value
    return [each for each in islice(members, _FEW) if isinstance(each, torch.Tensor)]


def _plain_tensors(parts: Mapping[str, object], kept: Container[int]) -> Iterator[_Held]:
    """Those of all modules. Torch's own layers make theirs anew, those of metrics are kept, and so are those of the
    modules in `kept`, by id, and what shows the memory of parameters and buffers."""
    for part in parts.values():
        if isinstance(part, torch.nn.Module):
            places = TensorPlaces(part)
            others = {id(each) for _, each in metrics(places)}
            known = {_memory(place.tensor) for place in places.places if place.tensor is not None} - {0}
            for _, each in places.modules:
                if id(each) not in others and id(each) not in kept and not type(each).__module__.startswith("torch."):
                    for name, value in vars(each).items():
                        found = _tensors_in(value)
                        own = not any(one.requires_grad or _memory(one) in known for one in found)
                        made = f"{name}_orig" in each._parameters  # by torch's older normalisations, or by pruning
                        if own and not made and name not in _PLACES and (found or isinstance(value, deque)):
                            yield _Held(each, name, found, list(map(_version, found)))


_PLACES = ("_parameters", "_buffers")


def _memory(tensor: torch.Tensor) -> int:
    """Where its numbers are; 0 where that cannot be said."""
    strided = tensor.layout is torch.strided and not torch.nn.parameter.is_lazy(tensor)
    return tensor.untyped_storage().data_ptr() if strided else 0


def _scheduler(scheduler: LRScheduler) -> str:
    return _SCHEDULER.format(kind=type(scheduler).__name__)


def _derived(kind: type[Any]) -> set[type[Any]]:
    """The class and all that are derived from it."""
    return {kind}.union(*map(_derived, kind.__subclasses__()))

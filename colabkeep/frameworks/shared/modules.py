"""Modules and optimizers in any framework: where their tensors lie, under which names, whether they belong
together, what differs from what was stored, and their small state remembered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from operator import is_, methodcaller
from typing import Any

from colabkeep.core.errors import UsageError
from colabkeep.core.state import Tree
from colabkeep.frameworks.shared.rng import stateful
from colabkeep.frameworks.shared.settings import Attributes
from colabkeep.frameworks.shared.trees import encode, not_storable, object_differences, restore_object

__all__ = [
    "Anatomy",
    "Memory",
    "NothingUnseen",
    "ParameterNames",
    "Place",
    "Places",
    "Watch",
    "class_differences",
    "combined",
    "group_differences",
    "remember_modules",
    "remember_objects",
    "scheduler_differences",
    "tie_differences",
    "untrained",
]

_VALUES = methodcaller("values")


class Watch:
    """The keys and values of some dicts, compared by identity: about 50 ns for each."""

    def __init__(self, dicts: Iterable[Mapping[Any, Any]]) -> None:
        self._all = list(dicts)
        self._filled = [each for each in self._all if each]  # of the many that are empty, the length says all
        self._keys = list(chain.from_iterable(self._filled))
        self._values = list(chain.from_iterable(map(_VALUES, self._filled)))

    def unchanged(self) -> bool:
        """Are the same objects under the same keys?"""
        return (
            sum(map(len, self._all)) == len(self._keys)
            and all(map(is_, chain.from_iterable(self._filled), self._keys))
            and all(map(is_, chain.from_iterable(map(_VALUES, self._filled)), self._values))
        )


class ParameterNames:
    """The names of parameters, found by identity. "model.layer.weight": the part, then the name in it."""

    def __init__(self, parts: Iterable[tuple[str, Iterable[tuple[str, object]]]]) -> None:
        self._names: dict[int, str] = {}
        self._parameters: dict[str, object] = {}  # held, so that no id is given twice
        for part, parameters in parts:
            for name, parameter in parameters:
                self._names.setdefault(id(parameter), f"{part}.{name}")
                self._parameters[f"{part}.{name}"] = parameter

    def get(self, parameter: object) -> str | None:
        """The name; None if no module of the run holds it."""
        return self._names.get(id(parameter))

    def parameter(self, name: str) -> object | None:
        """The parameter of that name; None if no module of the run has one."""
        return self._parameters.get(name)


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor's place. `kept` is false for non-persistent buffers."""

    name: str
    owner: dict[str, Any]
    key: str
    parameter: bool
    kept: bool

    @property
    def tensor(self) -> Any:
        """What is there now: a tensor or None."""
        return self.owner[self.key]


@dataclass(frozen=True)
class Anatomy:
    """How a framework builds its modules.

    `children` and `transient` are the attributes with the modules inside one and with the names of its non-persistent
    buffers. `wrappers` are (module, class, name of the child inside) of those that only wrap. `plain` tells whether a
    module's class has the framework's own `state_dict`; `told` asks one that has not, for the live tensors.
    """

    children: str
    transient: str
    wrappers: tuple[tuple[str, str, str], ...]
    plain: Callable[[Any], bool]
    told: Callable[[Any], Mapping[str, Any]]
    elsewhere: str
    """What to do with a tensor that is neither a parameter nor a buffer."""


class Places:
    """All places of a module and its children, in the order of `state_dict()`.

    Wrappers that only wrap (compiled, data-parallel, checkpointed) leave no trace in names. They are
    recognised by their type: a child of the user's own that is called "module" keeps its name.
    """

    def __init__(self, anatomy: Anatomy, module: Any) -> None:
        self._anatomy = anatomy
        self.modules: list[tuple[str, Any]] = []
        self._all: list[Any] = []
        self._walk("", module)
        self.places = [place for prefix, each in self.modules for place in self._places(prefix, each)]
        self._watch = Watch(d for m in self._all for d in (m._parameters, m._buffers, getattr(m, anatomy.children)))

    def unchanged(self) -> bool:
        """Has the module the same children, parameters and buffers as when this was made?"""
        return self._watch.unchanged()

    def parameters(self) -> Iterator[tuple[str, Any]]:
        """Each parameter, under each of its names."""
        return ((place.name, place.tensor) for place in self.places if place.parameter and place.tensor is not None)

    def refuse_hidden(self, part: str) -> None:
        """Raise if a module's own `state_dict` tells of tensors that are in no place.

        Raises:
            NotStorable: names the module.
        """
        known = {id(place.tensor) for place in self.places}
        for prefix, each in self.modules:
            if self._anatomy.plain(each):
                continue
            for key, value in self._anatomy.told(each).items():
                if id(value) not in known and not key.endswith("_extra_state"):
                    path = ".".join(filter(None, (part, prefix, key)))
                    raise not_storable(each, path, self._anatomy.elsewhere)

    def _walk(self, prefix: str, module: Any) -> None:
        self._all.append(module)
        wrapped = self._wrapped(module)
        if wrapped is not None:
            self._walk(prefix, wrapped)
            return
        self.modules.append((prefix, module))
        for name, each in getattr(module, self._anatomy.children).items():
            if each is not None:
                self._walk(f"{prefix}.{name}" if prefix else name, each)

    def _wrapped(self, module: Any) -> Any:
        """The module inside a mere wrapper. A wrapper's own module must be loaded, or nothing is of its type."""
        for place, kind, child in self._anatomy.wrappers:
            loaded = sys.modules.get(place)
            if loaded is not None and isinstance(module, getattr(loaded, kind)):
                return getattr(module, self._anatomy.children)[child]
        return None

    def _places(self, prefix: str, module: Any) -> Iterator[Place]:
        start = f"{prefix}." if prefix else ""
        for key, value in module._parameters.items():
            if value is not None:
                yield Place(start + key, module._parameters, key, parameter=True, kept=True)
        transient = getattr(module, self._anatomy.transient)
        for key in module._buffers:
            yield Place(start + key, module._buffers, key, parameter=False, kept=key not in transient)


_PARAMETERS_NAMED = 3  # of the parameters in question
_MODEL = "model"
_AVERAGE = "ema"  # is no optimizer's to train

Parameters = Mapping[str, Sequence[tuple[str, Any]]]


def untrained(models: Parameters, held: Iterable[Any], trainable: Iterable[str]) -> str:
    """A sentence about the model's trainable parameters that no optimizer holds; empty if there are none.

    `models`: part → (name, parameter); `held`: the parameters of all optimizers; `trainable`: the names of those of the
    part "model" that ask for gradients.

    Raises:
        UsageError: there are such, and the optimizers hold others that no part of the run has.
    """
    optimized = list(held)
    ids = {id(parameter) for parameter in optimized}
    known = {id(parameter) for part, named in models.items() if part != _AVERAGE for _, parameter in named}
    own, wanted = dict(models.get(_MODEL, ())), list(trainable)
    left = [name for name in wanted if id(own[name]) not in ids]
    if not optimized or not left:
        return ""
    strangers = [parameter for parameter in optimized if id(parameter) not in known]
    if strangers:
        shapes = [f"one of shape {tuple(parameter.shape)}" for parameter in strangers]
        raise UsageError(
            problem=f"The optimizer does not train the model as it is: no optimizer holds {_few(left)}, and it holds "
            f"{_few(shapes)}, which the model does not have. A layer was replaced after the optimizer was built.",
            remedy="Build the optimizer after the last change of the model: optimizer = …(model.parameters(), …). "
            "What shall stay as it is: requires_grad_(False), or stop_gradient = True in Paddle. Parameters of "
            'another module: hand that in too, state={"head": head}.',
        )
    return (
        f"No optimizer holds {len(left)} of the model's {len(wanted)} trainable parameters ({_few(left)}): they stay "
        "as they are. If they are meant to learn, hand them to the optimizer."
    )


def _few(names: list[str]) -> str:
    more = len(names) - _PARAMETERS_NAMED
    return ", ".join(names[:_PARAMETERS_NAMED]) + (f" and {more} more" if more > 0 else "")


def scheduler_differences(part: str, scheduler: object, tree: Tree) -> Iterator[str]:
    """Its class: another one would take the numbers and mean something else by them."""
    wrong = object_differences(part, scheduler, tree)
    yield from wrong or class_differences(part, scheduler, tree)


def class_differences(part: str, target: object, tree: Tree) -> Iterator[str]:
    """Is it of the class that was stored?"""
    kind = type(target).__name__
    if tree["class"] != kind:
        yield f"{part}: the checkpoint was made with {tree['class']}, this run uses {kind}."


def group_differences(part: str, then: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> Iterator[str]:
    """The names of the parameters in each group of an optimizer."""
    if len(now) != len(then):
        yield f"{part}: it had {len(then)} parameter groups, and has {len(now)} now."
        return
    for i, (here, stored) in enumerate(zip(now, then, strict=True)):
        for name in stored:
            if name not in here:
                yield f"{part}: group {i} trained {name}, and does not now."
        for name in here:
            if name not in stored:
                yield f"{part}: group {i} did not train {name}, and does now."


def tie_differences(part: str, names: list[str], then: dict[str, int], now: dict[str, object]) -> Iterator[str]:
    """`then` and `now` tell equal things of names that share one tensor."""
    first_then: dict[int, str] = {}
    first_now: dict[object, str] = {}
    for name in names:
        was, shares = first_then.setdefault(then[name], name), first_now.setdefault(now[name], name)
        if was != shares:
            tied = f"{was} was tied to {name}" if was != name else f"{name} was not tied to {shares}"
            verb = "is not" if was != name else "is"
            yield f"{part}: {tied} in the checkpoint, and {verb} now."


_NAMED = 3
_LARGE = 2**26  # bytes of one array or tensor


@dataclass(frozen=True, slots=True)
class Memory:
    """What was remembered: as `Framework.remember` returns it. `put_back` returns a sentence where it is not all that
    changed."""

    put_back: Callable[[], str | None]
    release: Callable[[], object] = lambda: None

    def __call__(self) -> str | None:
        self.release()
        return self.put_back()


def combined(memories: Iterable[Memory]) -> Memory:
    """All of them, in order; what they say, in one text."""
    listed = list(memories)

    def put_back() -> str | None:
        return " ".join(filter(None, (memory.put_back() for memory in listed))) or None

    def release() -> None:
        for memory in listed:
            memory.release()

    return Memory(put_back, release)


def remember_modules(
    modules: Mapping[str, Attributes], parameters: Mapping[str, Any], version: Callable[[Any], object]
) -> Memory:
    """Attributes, modes, and which parameters are trained. Parameters are not copied: one whose `version` has moved is
    named. `parameters` by their full names."""
    values = {part: (each.values(), each.modes(), each.frozen()) for part, each in modules.items()}
    versions = {name: version(parameter) for name, parameter in parameters.items()}

    def put_back() -> str | None:
        for part, each in modules.items():
            held, modes, frozen = values[part]
            each.put_values(held)
            each.put_modes(modes)
            each.put_frozen(frozen)
        changed = [name for name, was in versions.items() if version(parameters[name]) != was]
        if not changed:
            return None
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        return (
            f"your code above the loop or its first batch changed {', '.join(changed[:_NAMED])}{more}; it had run "
            "before the checkpoint was saved, and ran again now. Move it above the line that opens the run"
        )

    return Memory(put_back)


def remember_objects(objects: Mapping[str, Any], clone: Callable[[Any], Any] = lambda value: value) -> Memory:
    """Objects that tell their state. One that is as it was is left alone: taking a state may have effects of its own.
    What is large in it, such as a replay buffer, is not copied, and stays as it is.

    `clone`: a copy of a value of the framework's own that is no tensor; others it gives back as they are.
    """

    def copied(value: Any, _: str) -> Any:
        size = getattr(value, "nbytes", 0)
        if isinstance(size, int) and size > _LARGE:
            return value
        if hasattr(value, "detach") and hasattr(value, "clone"):
            return value.detach().clone()
        own = type(value).__module__.partition(".")[0] in ("numpy", "random")
        return deepcopy(value) if own else clone(value)

    def states() -> dict[str, Any]:
        return {name: encode(stateful(each).state_dict(), name, copied) for name, each in objects.items()}

    before = states()

    def put_back() -> None:
        for name, now in states().items():
            if not _alike(now, before[name]):
                restore_object(objects[name], {"state": before[name]}, lambda state: encode(state, "", copied))

    return Memory(put_back)


def _alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_alike(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if hasattr(one, "tolist"):
        return one.shape == other.shape and one.dtype == other.dtype and bool(one.tolist() == other.tolist())
    if hasattr(one, "get_state"):
        return _alike(one.get_state(), other.get_state())
    return bool(one == other)


class NothingUnseen:
    """Sees what was handed in."""

    def __call__(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        """Nothing was looked at."""

"""Where a module keeps its tensors, under the names its user gave them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from colabkeep.frameworks.common.trees import not_storable
from colabkeep.frameworks.common.watch import Watch

__all__ = ["Anatomy", "Place", "Places"]


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

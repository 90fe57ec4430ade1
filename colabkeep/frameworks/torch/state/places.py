"""Where a module keeps its tensors, under the names its user gave them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from colabkeep.frameworks.common.trees import not_storable
from colabkeep.frameworks.torch.state.watch import Watch

__all__ = ["Place", "Places"]


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor's place. `kept` is false for non-persistent buffers."""

    name: str
    owner: dict[str, torch.Tensor | None]
    key: str
    parameter: bool
    kept: bool

    @property
    def tensor(self) -> torch.Tensor | None:
        """What is there now."""
        return self.owner[self.key]


class Places:
    """All places of a module and its children, in the order of `state_dict()`.

    Wrappers that only wrap (compiled, data-parallel, checkpointed) leave no trace in names. They are
    recognised by their type: a child of the user's own that is called "module" keeps its name.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.modules: list[tuple[str, torch.nn.Module]] = []
        self._all: list[torch.nn.Module] = []
        self._walk("", module)
        self.places = [place for prefix, each in self.modules for place in _places(prefix, each)]
        self._watch = Watch(d for m in self._all for d in (m._parameters, m._buffers, m._modules))

    def unchanged(self) -> bool:
        """Has the module the same children, parameters and buffers as when this was made?"""
        return self._watch.unchanged()

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each parameter, under each of its names."""
        return ((place.name, place.tensor) for place in self.places if place.parameter and place.tensor is not None)

    def extras(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Modules with state beside tensors (`get_extra_state`), by name."""
        own = torch.nn.Module.get_extra_state
        return ((prefix, each) for prefix, each in self.modules if type(each).get_extra_state is not own)

    def refuse_hidden(self, part: str) -> None:
        """Raise if a module's own `state_dict` tells of tensors that are in no place.

        Raises:
            NotStorable: names the module.
        """
        base = torch.nn.Module
        known = {id(place.tensor) for place in self.places}
        for prefix, each in self.modules:
            kind = type(each)
            if kind.state_dict is base.state_dict and kind._save_to_state_dict is base._save_to_state_dict:
                continue
            for key, value in each.state_dict(keep_vars=True).items():
                if id(value) not in known and not key.endswith("_extra_state"):
                    raise not_storable(
                        each,
                        ".".join(filter(None, (part, prefix, key))),
                        "Its state_dict() holds more than parameters and buffers. Register them as buffers, or return "
                        "them from get_extra_state() and take them back in set_extra_state().",
                    )

    def _walk(self, prefix: str, module: torch.nn.Module) -> None:
        self._all.append(module)
        wrapped = _wrapped(module)
        if wrapped is not None:
            self._walk(prefix, wrapped)
            return
        self.modules.append((prefix, module))
        for name, each in module._modules.items():
            if each is not None:
                self._walk(f"{prefix}.{name}" if prefix else name, each)


def _places(prefix: str, module: torch.nn.Module) -> Iterator[Place]:
    start = f"{prefix}." if prefix else ""
    parameters: Any = module._parameters
    for key, value in parameters.items():
        if value is not None:
            yield Place(start + key, parameters, key, parameter=True, kept=True)
    for key in module._buffers:
        kept = key not in module._non_persistent_buffers_set
        yield Place(start + key, module._buffers, key, parameter=False, kept=kept)


_WRAPPERS = (
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.nn.parallel", "DataParallel", "module"),
    ("torch.nn.parallel", "DistributedDataParallel", "module"),
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "CheckpointWrapper", "_checkpoint_wrapped_module"),
)


def _wrapped(module: torch.nn.Module) -> torch.nn.Module | None:
    """The module inside a mere wrapper. A wrapper's own module must be loaded, or nothing is of its type."""
    for place, kind, child in _WRAPPERS:
        loaded = sys.modules.get(place)
        if loaded is not None and isinstance(module, getattr(loaded, kind)):
            inner: torch.nn.Module = module._modules[child]
            return inner
    return None

"""Gradients that stand between two steps: part of the state, unless the loop clears them before it adds to them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

__all__ = ["Gradients"]

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

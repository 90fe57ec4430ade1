"""A few bytes of each of many tensors, before and after: a cheap look for changes that no counter tells of."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

__all__ = ["Samples"]

# Four places, spread over the tensor, of the bytes that a processor fetches together: most of the price of a place is
# that it is in no cache (80 ns), hardly anything is how many of those bytes are looked at.
_PLACES, _WIDTH = 4, 64


class Samples:
    """Samples of some tensors, each with its number, to be compared with those of their copies in host memory once
    these are made. All are gapless. Only a device's memory is kept alive: that of the host must be where it was when
    `take` is called."""

    def __init__(self, pairs: Iterable[tuple[int, torch.Tensor, torch.Tensor]]) -> None:
        self._host = _HostSamples()
        self._devices: dict[torch.device, _DeviceSamples] = {}
        for number, tensor, copy in pairs:
            if tensor.is_cpu:
                self._host.add(number, tensor, copy)
            elif tensor.nbytes >= _PLACES * _WIDTH:
                self._devices.setdefault(tensor.device, _DeviceSamples()).add(number, tensor, copy)

    def take(self) -> None:
        """Look at the tensors."""
        self._host.take()
        for each in self._devices.values():
            each.take()

    def differing(self) -> list[int]:
        """The numbers of the tensors whose copies have other bytes there. Waits for a device."""
        return [*self._host.differing(), *chain.from_iterable(each.differing() for each in self._devices.values())]


class _HostSamples:
    """Samples of tensors in host memory: 0.1 to 0.4 µs for each tensor."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._live: list[Any] = []
        self._copies: list[list[Any]] = []
        self._before = b""

    def add(self, number: int, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        self._numbers.append(number)
        self._live += _places(tensor)
        self._copies.append(_places(copy))

    def take(self) -> None:
        self._before = b"".join(self._live)

    def differing(self) -> Iterator[int]:
        if b"".join(chain.from_iterable(self._copies)) == self._before:
            return
        start = 0
        for number, places in zip(self._numbers, self._copies, strict=True):
            now = b"".join(places)
            if now != self._before[start : start + len(now)]:
                yield number
            start += len(now)


class _DeviceSamples:
    """Samples of the tensors of one device: taken there, fetched when they are compared."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._live: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._before = torch.empty(0, device="cpu")

    def add(self, number: int, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        self._numbers.append(number)
        self._live.append(_view(tensor))
        self._copies.append(_view(copy))

    def take(self) -> None:
        self._before = _rows(self._live)

    def differing(self) -> list[int]:
        wrong = (_rows(self._copies) != self._before.cpu()).flatten(1).any(1)
        return [self._numbers[i] for i in wrong.nonzero().flatten().tolist()]


def _places(tensor: torch.Tensor) -> list[Any]:
    """The places as buffers; all of a tensor that has no more bytes than they."""
    address, size = tensor.data_ptr(), tensor.nbytes
    if size <= _PLACES * _WIDTH:
        return [(ctypes.c_ubyte * size).from_address(address)]
    place = ctypes.c_ubyte * _WIDTH
    start, spread = _spread(size)
    return [place.from_address(address + start + i * spread) for i in range(_PLACES)]


def _view(tensor: torch.Tensor) -> torch.Tensor:
    """The places as one tensor of bytes."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    start, spread = _spread(tensor.nbytes)
    return flat.as_strided((_PLACES, _WIDTH), (spread, 1), flat.storage_offset() + start)


def _spread(size: int) -> tuple[int, int]:
    """Bytes before the first place, and between two: multiples of their width, so that each is one line of a cache."""
    lines = size // _WIDTH // _PLACES
    return lines // 2 * _WIDTH, lines * _WIDTH


def _rows(views: list[torch.Tensor]) -> torch.Tensor:
    rows = torch.empty((len(views), _PLACES, _WIDTH), dtype=torch.uint8, device=views[0].device)
    with torch.no_grad():
        torch._foreach_copy_(list(rows.unbind(0)), views)
    return rows

"""Storages that keep their memory while it is being read.

A storage can be given other memory in place, and the old is freed under whoever reads it: by `resize_` (offloading,
FSDP), and by moving it to shared memory (`share_memory_()`, a queue of torch.multiprocessing). The methods that do so
(torch/storage.py, torch 2.4 to 2.13) are made to wait while something is read, and are put back afterwards.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Reading"]

_MOVERS = ("resize_", "_share_fd_cpu_", "_share_filename_cpu_")
_LOCK = threading.Lock()  # one at a time replaces a method of torch


class Reading:
    """From `begin` to `end`, whoever would give any storage other memory calls `wait` first, on any thread."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait

    def begin(self) -> None:
        """Storages stand still from here on."""
        with _LOCK:
            for name in _MOVERS:
                _Mover.of(name).readers += (weakref.ref(self),)

    def end(self) -> None:
        """They need not any more. Calling twice is harmless."""
        with _LOCK:
            for name in _MOVERS:
                mover = vars(torch.UntypedStorage).get(name)
                if isinstance(mover, _Mover):
                    mover.readers = tuple(ref for ref in mover.readers if ref() not in (None, self))
                    mover.go_if_idle()


class _Mover:
    """Stands in for a method of storages. `readers` is replaced and never changed: a process forked in between has it
    whole."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own = vars(torch.UntypedStorage).get(name)  # None: inherited
        self._method = getattr(torch.UntypedStorage, name)
        self.readers: tuple[weakref.ref[Reading], ...] = ()

    @staticmethod
    def of(name: str) -> _Mover:
        found = vars(torch.UntypedStorage).get(name)
        if isinstance(found, _Mover):
            return found
        mover = _Mover(name)
        setattr(torch.UntypedStorage, name, mover)
        return mover

    def go_if_idle(self) -> None:
        if self.readers:
            return
        if self._own is None:
            delattr(torch.UntypedStorage, self._name)
        else:
            setattr(torch.UntypedStorage, self._name, self._own)

    def __get__(self, storage: object, kind: type | None = None) -> Any:
        return self if storage is None else functools.partial(self._call, storage)

    def _call(self, storage: object, *args: Any, **kwargs: Any) -> Any:
        for ref in self.readers:
            if (reading := ref()) is not None:
                reading.wait()
        return self._method(storage, *args, **kwargs)

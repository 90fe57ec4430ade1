"""Things that go wrong on demand, at the n-th system call or at a named point of any store.

A fault is a function of no arguments that raises, or does not come back::

    files = FaultyFiles(at=7, fault=raising(OSError(errno.ENOSPC, "full")))
    store = DirectoryStore(folder, files=files.files)

    store = FaultyStore(MemoryStore(), at=on("before put run/checkpoints/000000000010-0a1b2c3d.json", kill))
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Any, BinaryIO, Literal, NoReturn, TypeAlias, TypeVar

from colabkeep.stores.base import Entry, Lock, Receipt, Source, Store, StoreProperties
from colabkeep.stores.shared.files import OS_FILES, Files

__all__ = [
    "Fault",
    "FaultyFiles",
    "FaultyStore",
    "kill",
    "on",
    "raising",
]

Fault: TypeAlias = Callable[[], None]
"""Raises, or does not come back."""

_T = TypeVar("_T")


def raising(error: BaseException) -> Fault:
    """A fault that raises `error`."""

    def fault() -> NoReturn:
        raise error

    return fault


def kill() -> None:
    """SIGKILL to this very process: no handler, no clean-up, no way back."""
    os.kill(os.getpid(), signal.SIGKILL)


def on(point: str, fault: Fault) -> Callable[[str], None]:
    """For `FaultyStore`: the fault happens at the named point, each time it is reached."""

    def at(reached: str) -> None:
        if reached == point:
            fault()

    return at


class FaultyFiles:
    """The directory store's system calls (`files`), counted in `calls`; the n-th of them goes wrong.

    `at` counts from 0; None lets all succeed. `when="before"`: the call is not made. `when="after"`: it is made,
    and its result is lost, as with a signal that arrives in this moment, or a network drive that did the
    work and could not say so. `close` is always made, for the system frees the descriptor also when it fails.
    With `lasting`, all calls from the n-th on go wrong.
    """

    def __init__(
        self,
        *,
        at: int | None = None,
        fault: Fault = kill,
        when: Literal["before", "after"] = "before",
        lasting: bool = False,
        inner: Files = OS_FILES,
    ) -> None:
        self._at = at
        self._fault = fault
        self._when = when
        self._lasting = lasting
        self.calls: list[str] = []
        self.files = Files(
            **{one.name: partial(self._call, one.name, getattr(inner, one.name)) for one in fields(inner)}
        )

    def _call(self, name: str, real: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        number = len(self.calls)
        self.calls.append(name)
        wrong = self._at is not None and (number >= self._at if self._lasting else number == self._at)
        if wrong and self._when == "before" and name != "close":
            self._fault()
        try:
            return real(*args, **options)
        finally:
            if wrong:
                self._fault()


class FaultyStore:
    """Any store, with a function called at named points, which may raise or kill.

    The points are "before put <name>", "after put <name>", and so with get, list, delete, confirm, lock, sweep
    and flush (whose last word is the prefix or the timeout). `points` lists those that were reached.
    """

    def __init__(self, inner: Store, *, at: Callable[[str], None] = lambda _: None) -> None:
        self._inner = inner
        self.at = at
        self.points: list[str] = []

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def properties(self) -> StoreProperties:
        return self._inner.properties

    @property
    def degraded(self) -> str | None:
        return self._inner.degraded

    def doubt(self, name: str) -> bool:
        return self._inner.doubt(name)

    def put(self, name: str, source: Source) -> Receipt:
        return self._between("put", name, lambda: self._inner.put(name, source))

    def get(self, name: str) -> BinaryIO:
        return self._between("get", name, lambda: self._inner.get(name))

    def list(self, prefix: str) -> Iterable[Entry]:
        return self._between("list", prefix, lambda: self._inner.list(prefix))

    def delete(self, name: str) -> None:
        return self._between("delete", name, lambda: self._inner.delete(name))

    def confirm(self, receipt: Receipt) -> Receipt:
        return self._between("confirm", receipt.name, lambda: self._inner.confirm(receipt))

    def lock(self, name: str, holder: str) -> Lock:
        return self._between("lock", name, lambda: self._inner.lock(name, holder))

    def sweep(self, prefix: str) -> int:
        return self._between("sweep", prefix, lambda: self._inner.sweep(prefix))

    def flush(self, timeout: float) -> bool:
        return self._between("flush", f"{timeout:g}", lambda: self._inner.flush(timeout))

    def close(self) -> None:
        self._inner.close()

    def _between(self, verb: str, subject: str, call: Callable[[], _T]) -> _T:
        self._reach(f"before {verb} {subject}")
        result = call()
        self._reach(f"after {verb} {subject}")
        return result

    def _reach(self, point: str) -> None:
        self.points.append(point)
        self.at(point)

"""What a piece of code does to the machine, as Python itself sees it: files it looks at, opens or changes, modules it
imports, processes and connections it starts."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

__all__ = ["Deeds", "watched"]

_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec")
_LOOKS = (
    (os, ("stat", "lstat", "access")),
    (os.path, ("exists", "lexists", "isdir", "isfile", "islink")),
    (Path, ("stat", "lstat", "exists", "is_dir", "is_file", "is_symlink", "open")),
)


@dataclass(slots=True)
class Deeds:
    """`looked`: paths; `changed`: paths opened for writing, or made, renamed, removed; `imported`: modules; `started`:
    processes and connections, in words."""

    looked: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    imported: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take down one audit event of Python."""
        if event == "open" and not isinstance(arguments[0], int):
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if arguments[2] else 0
            (self.changed if writes else self.looked).append(_text(arguments[0]))
        elif event in ("os.scandir", "os.listdir") and not isinstance(arguments[0], int):
            self.looked.append(_text(arguments[0]))
        elif event in _CHANGES:
            self.changed.append(_text(arguments[0]))
        elif event == "import":
            self.imported.append(str(arguments[0]))
        elif event in _STARTS or event.startswith("socket."):
            self.started.append(f"{event} {arguments!r:.100}")


class _Spy:
    """Python's audit hook, which can never be taken away again; it is deaf while nobody listens."""

    def __init__(self) -> None:
        self.deeds: Deeds | None = None
        self.thread = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.deeds is not None and threading.get_ident() == self.thread:
            self.deeds.note(event, arguments)


@cache
def _spy() -> _Spy:
    spy = _Spy()
    sys.addaudithook(spy)
    return spy


@contextmanager
def watched() -> Iterator[Deeds]:
    """What this thread does in the block. Looking at a file's facts is no audit event, so those calls are wrapped."""
    deeds, spy = Deeds(), _spy()
    with ExitStack() as stack:
        for owner, names in _LOOKS:
            for name in names:
                stack.enter_context(patch.object(owner, name, _noting(getattr(owner, name), deeds)))
        spy.deeds, spy.thread = deeds, threading.get_ident()
        try:
            yield deeds
        finally:
            spy.deeds = None


def _noting(real: Callable[..., Any], deeds: Deeds) -> Callable[..., Any]:
    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(path, int):
            deeds.looked.append(_text(path))
        return real(path, *arguments, **options)

    return call


def _text(path: Any) -> str:
    return os.fsdecode(path) if path is not None else os.curdir

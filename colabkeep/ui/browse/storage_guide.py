"""The way to a storage that outlives the machine, in steps: what is done already, and the next click or line to type.

Only whether there is a secret is looked at, never what it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from colabkeep.core.system import Clock, Environment
from colabkeep.core.timeouts import TimedCall, TimedCalls
from colabkeep.platforms import find_platform
from colabkeep.platforms.base import DefaultStorage, Platform
from colabkeep.stores.google.account import SECRET_NAME
from colabkeep.ui import auth
from colabkeep.ui.text import plain

__all__ = ["MARKS", "Step", "Walk", "find_walk"]

MARKS: Mapping[bool | None, str] = {True: " (done)", False: " (to do)", None: ""}
"""How it is said whether a step is done."""

_PATIENCE = 4.0  # seconds for all questions together: a mount that hangs must not hang the browser
_MOUNT = "colabkeep.mount()"
_BROWSE = 'colabkeep.browse("drive://colabkeep")'


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step. `done` is None where it is a choice, or cannot be told from here. `lines` are words to read, `code` is
    to be typed in a cell. `mounts`: the browser can do it itself, by `colabkeep.mount()`."""

    title: str
    lines: tuple[str, ...]
    done: bool | None
    code: str = ""
    mounts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Walk:
    """The steps on this platform, and what could not be told. Printed, it is a list to follow."""

    steps: tuple[Step, ...]
    untold: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(plain(line, limit=2000) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield "Signing in and mounting, step by step"
        for number, step in enumerate(self.steps, 1):
            yield f"{number}. {step.title}{MARKS[step.done]}"
            yield from (f"     {line}" for line in step.lines)
            yield from (f"     >>> {line}" for line in step.code.splitlines())
        yield from (f"Not known: {what}" for what in self.untold)


def find_walk(environment: Environment, clock: Clock) -> Walk:
    """The steps as things stand now, in a few seconds at most, whatever hangs. Mounts nothing, contacts nothing."""
    timed_calls = TimedCalls(clock, _PATIENCE)
    platform = timed_calls.collect(TimedCall("the platform", partial(find_platform, environment)), by=0.5)
    asked = None if platform is None else TimedCall("the storage", partial(platform.home, environment))
    home = timed_calls.collect(asked)
    steps = (*_place(platform, environment), *_home(home), *_own_account(environment), _open())
    return Walk(steps=steps, untold=tuple(timed_calls.untold))


def _place(platform: Platform | None, environment: Environment) -> Iterator[Step]:
    if platform is not None:
        kind = platform.kind(environment)
        where = f"{platform.title} ({kind})" if kind else platform.title
        yield Step(title="Where this is", lines=(f"{where}.",), done=True)


def _home(home: DefaultStorage | None) -> Iterator[Step]:
    if home is None:
        return
    lines = (f"Checkpoints go to {home.folder}.", home.reason, home.remedy)
    mounts = _MOUNT in home.remedy
    yield Step(
        title="A storage that outlives this machine",
        lines=tuple(line for line in lines if line),
        done=home.persists,
        code=f"import colabkeep\n{_MOUNT}" if mounts else "",
        mounts=mounts,
    )


def _own_account(environment: Environment) -> Iterator[Step]:
    there = SECRET_NAME in environment.environ
    yield Step(
        title="Your own Google Drive from everywhere (only if a run is to move between services)",
        lines=tuple(line.strip() for line in (*auth.SET_UP.splitlines(), *auth.STORE.splitlines())),
        done=True if there else None,
        code="!colabkeep auth --client client_secret.json",
    )
    yield Step(
        title="Sign in with it in this session",
        lines=(f"The platform's secret {SECRET_NAME} is read when the storage is opened, and shown nowhere.",),
        done=True if there else None,
        code=_BROWSE,
    )


def _open() -> Step:
    return Step(
        title="Look into it",
        lines=("What is listed there is what a training with the same storage=… goes on from.",),
        done=None,
        code='colabkeep.browse("auto")  # or another storage',
    )

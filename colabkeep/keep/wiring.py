"""From what the user wrote to a kept folder: finds the store, the name, and when the machine goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from colabkeep.core.arguments import duration_text, read_duration
from colabkeep.core.errors import UsageError
from colabkeep.core.system import Clock, Environment, SystemClock
from colabkeep.keep.session import STOP_PATIENCE, FolderSpec, KeptFolder
from colabkeep.keep.tree import Patterns
from colabkeep.platforms import find_platform
from colabkeep.session.machine import Deadline, ask_machine, find_deadline
from colabkeep.session.open import RunArguments, check_word, choose_name, find_store, refuse_reserved
from colabkeep.stores.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderArguments:
    """The words that a kept folder knows; `colabkeep.keep_folder` says what they mean."""

    folder: str | os.PathLike[str]
    run: RunArguments
    restore: str = "auto"
    include: str | Sequence[str] = ()
    exclude: str | Sequence[str] = ()
    every: Any = "1 min"
    settle: Any = "3 s"


def wire_folder(words: FolderArguments) -> KeptFolder:
    """Read the words, find the store.

    Raises:
        UsageError: a word is invalid.
        NotPersistent: the storage that was not named vanishes with this machine.
    """
    run = words.run.read()
    check_word("restore", words.restore, "auto", "never", "overwrite")
    patterns = Patterns(include=_patterns("include", words.include), exclude=_patterns("exclude", words.exclude))
    every, settle = read_duration("every", words.every), read_duration("settle", words.settle)
    here, clock = Environment.here(), SystemClock()
    machine = ask_machine(here)
    store = find_store(run.storage)
    try:
        name, note = choose_name(run.run_name, store, here)
        refuse_reserved(store, name)
        folder = os.path.realpath(os.path.expanduser(os.fspath(words.folder)))
    except BaseException:
        if store is not run.storage:
            store.close()
        raise
    deadline = find_deadline(here, clock, limit=run.session_limit, may_end=run.max_time is None)
    twice = _kept_anyway(folder, store, here)
    return KeptFolder(
        FolderSpec(
            folder=folder,
            name=name,
            run=run,
            store=store,
            environment=here,
            clock=clock,
            patterns=patterns,
            restore=words.restore,
            every=every,
            settle=settle,
            deadline=deadline,
            machine=machine,
            notes=tuple(filter(None, (note, twice, _until(deadline, clock)))),
        )
    )


def _until(deadline: Deadline | None, clock: Clock) -> str:
    """When the session ends, and what is done then; "" where nothing is known of it."""
    if deadline is None:
        return ""
    then = (
        f"The program is interrupted {duration_text(deadline.reserve + STOP_PATIENCE)} before that, so that what this "
        "session made is kept (max_time=… sets another time)."
        if deadline.ends
        else "A version is made shortly before that, if the files are at rest then."
    )
    return f"This session lasts {duration_text(deadline.at - clock.monotonic())} more at most. {deadline.source} {then}"


def _kept_anyway(folder: str, store: Store, here: Environment) -> str:
    """What is to be said of a folder inside the one that the platform itself keeps; "" elsewhere."""
    platform = find_platform(here)
    whole = platform.home(here).keeps
    if not whole or os.path.commonpath([folder, whole]) != whole:
        return ""
    place = store.properties.folder
    if place is None or os.path.commonpath([place, whole]) != whole:
        return ""
    return (
        f"{folder} is inside {whole}, where its versions are too: the files take room there once, and each version "
        "that is kept takes room again. If room is short, let the program write elsewhere on this machine; the folder "
        "is restored from its versions."
    )


def _patterns(name: str, patterns: str | Sequence[str]) -> tuple[str, ...]:
    found: tuple[object, ...] = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    if not all(isinstance(pattern, str) and pattern for pattern in found):
        raise UsageError(
            problem=f"{name}={patterns!r:.200} is not a pattern, or a list of them.",
            remedy=f'Write it as in a shell: {name}="*.pt", or {name}=["weights/*", "*.json"].',
        )
    return tuple(map(str, found))

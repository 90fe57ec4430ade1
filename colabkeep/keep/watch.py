"""When a folder is at rest: what a program is still writing, and what is kept while it never stops."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from colabkeep.keep.content import grows
from colabkeep.keep.formats import JOURNALS, incomplete
from colabkeep.keep.tree import Entry, Patterns, Scan, scan

SETTLE = 3.0
"""Seconds in which nothing has changed: programs write several files that belong together in turn."""

_STUCK = 60.0  # seconds; a file that has not changed for so long is at rest, whoever has it open
_BUSY = 300.0  # seconds without rest after which what is at rest is kept without what is not

_WRITTEN = "it is being written"
_UNREADABLE = "it cannot be read: "
_LEFT = "the session before may have been stopped while it was written"
_OPEN = "the process {} has it open for writing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at the folder found.

    `changed`: the paths that are not as in the last version. `version`: what can be kept now; None where nothing has
    changed, or where not all is at rest. `waits`: path → why no version can be made yet, a clause. `held`: path → why
    a version has it as the last version had it, or not at all. `left_out`: as in `Scan`.
    """

    changed: tuple[str, ...] = ()
    version: Scan | None = None
    waits: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def only_logs(self) -> bool:
        """Has nothing changed but files that programs append to?"""
        return all(map(grows, self.changed))


class Watch:
    """Looks at a folder now and then. `now`: the time in seconds, of a clock that never goes back: what the files say
    of their times is compared, and never believed. `settle`: as `SETTLE`.
    """

    def __init__(self, root: str, patterns: Patterns, now: Callable[[], float], settle: float = SETTLE) -> None:
        self._root, self._patterns, self._now, self._settle = root, patterns, now, settle
        self._kept: Mapping[str, Entry] = {}  # as the last version has it
        self._seen: Mapping[str, Entry] = {}  # as the last look saw it
        self._moved: dict[str, float] = {}  # path → when a look saw that it had changed
        self._restless: float | None = None  # since when there is something new that cannot be kept
        self._missed: dict[str, str] = {}  # path → why it could not be read for the version that was to be made
        self._left: dict[str, Entry | None] = {}  # path → as a session that was killed has left it
        self._began = now()

    def kept(self, version: Scan) -> None:
        """This is the last version now."""
        self._kept, self._restless, self._missed = version.entries, None, {}

    def left(self, found: Scan) -> None:
        """A session before left the folder so, and may have been killed in the middle of writing it: what is not as in
        the last version counts as being written until the program writes some of it anew."""
        changed = _different(found.entries, self._kept)
        self._left = {path: found.entries.get(path) for path in changed if not grows(path)}

    def trust(self) -> None:
        """What the session before left is whole."""
        self._left = {}

    def missed(self, path: str, why: str) -> None:
        """The version of what was seen last was not made, because of this file."""
        self._missed[path] = why
        self._restless = self._now() if self._restless is None else self._restless

    def since(self, version: Mapping[str, Entry]) -> list[str]:
        """The paths of what the last look saw otherwise than this version has it."""
        return list(_different(self._seen, version))

    def seen(self, path: str) -> Entry | None:
        """As the last look saw it; None for what was not there."""
        return self._seen.get(path)

    def look(self, *, last: bool = False) -> Look:
        """Look at everything once. `last`: the program has ended, and nothing is waited for.

        Raises:
            OSError: the folder cannot be listed.
        """
        return self._look(self._now(), last=last)

    def _look(self, began: float, *, last: bool) -> Look:
        found = scan(self._root, self._patterns, self._seen)
        for path in _different(found.entries, self._seen):
            self._moved[path] = began
        self._seen = found.entries
        changed = tuple(_different(found.entries, self._kept))
        self._moved = {path: self._moved.get(path, began) for path in changed}
        if not changed:
            self._restless = None
            return Look(left_out=found.left_out)
        if last or began - self._began >= _BUSY or any(_other(found.entries.get(p), e) for p, e in self._left.items()):
            self._left = {}
        waits = {} if last else self._waits(found, changed, began) | dict.fromkeys(self._left, _LEFT)
        busy = self._restless is not None and began - self._restless >= _BUSY
        if waits and not busy:
            self._restless = began if self._restless is None else self._restless
            return Look(changed=changed, waits=waits, left_out=found.left_out)
        missed = self._missed if busy or last else {}
        held = {**waits, **{path: why for path, why in missed.items() if path in changed}}
        torn = self._torn(found, [path for path in changed if path not in held])
        just_now = {path: why for path, why in torn.items() if not self._stuck(path, began)}
        if just_now and not busy and not last:  # the program has begun anew since this look began
            self._restless = began if self._restless is None else self._restless
            return Look(changed=changed, waits=just_now, left_out=found.left_out)
        for path, why in torn.items():
            if path in self._kept or not self._stuck(path, began) or why.startswith(_UNREADABLE):
                held[path] = why
        version = _without(found, held, self._kept)
        new = any(True for _ in _different(version.entries, self._kept))
        return Look(changed=changed, version=version if new else None, waits=waits, held=held, left_out=found.left_out)

    def _stuck(self, path: str, now: float) -> bool:
        return now - self._moved[path] >= _STUCK

    def _waits(self, found: Scan, changed: Iterable[str], now: float) -> dict[str, str]:
        """What is not at rest, and why. Of files to which is appended, what is there is whole at any time."""
        files = {path: found.entries.get(path) for path in changed if not grows(path)}
        waits = {path: _WRITTEN for path in files if now - self._moved[path] < self._settle}
        fresh = {
            (entry.stamp[0], entry.stamp[1]): path
            for path, entry in files.items()
            if entry is not None and entry.kind == "file" and not self._stuck(path, now)
        }
        if waits or not fresh:
            return waits
        waits = {fresh[place]: _OPEN.format(process) for place, process in open_for_writing(fresh.keys()).items()}
        return waits | self._torn(found, [path for path in fresh.values() if path not in waits])

    def _torn(self, found: Scan, paths: Iterable[str]) -> dict[str, str]:
        """What is not whole, or cannot be read, and why."""
        torn = {}
        for path in paths:
            entry = found.entries.get(path)
            if entry is not None and entry.kind == "file" and not entry.same_as:
                try:
                    why = incomplete(os.path.join(self._root, path), told=not grows(path))
                except (FileNotFoundError, NotADirectoryError):
                    why = _WRITTEN
                except OSError as error:
                    why = f"{_UNREADABLE}{error.strerror}"
                if why:
                    torn[path] = why
        return torn


def _different(now: Mapping[str, Entry], before: Mapping[str, Entry]) -> Iterable[str]:
    """The paths of what came, went or changed; of a folder only its coming and going: its time changes with a file."""
    for path in {**now, **before}:
        if _other(now.get(path), before.get(path)):
            yield path


def _other(here: Entry | None, then: Entry | None) -> bool:
    if here is then:
        return False
    if here is None or then is None or here.kind != then.kind:
        return True
    return here.kind != "folder" and (here.stamp != then.stamp if then.stamp else here != then)


def _without(found: Scan, held: Iterable[str], kept: Mapping[str, Entry]) -> Scan:
    """The same, with what is held as it was kept last, or not at all. Of a folder that is new, with a file in it that
    is held, nothing is kept; of a database that is held, its journals are held too."""
    held = {near for path in held for near in (path, *(f"{path}{ending}" for ending in JOURNALS))}
    new = {path.rpartition("/")[0] for path in held if path in found.entries} - kept.keys() - {""}
    entries = {path: entry for path, entry in found.entries.items() if not _is_below(path, new)}
    for path in held:
        before = kept.get(path)
        if before is None:
            entries.pop(path, None)
        else:
            entries[path] = before
    for path, entry in entries.items():
        first = entry.same_as
        if first and (first not in entries or (first in held) != (path in held)):  # of two states
            entries[path] = replace(entry, same_as="")
    folders = {path for path, entry in entries.items() if entry.kind == "folder"}
    return Scan(
        entries={
            path: entry
            for path, entry in sorted(entries.items(), key=lambda item: item[1].same_as != "")
            if "/" not in path or path.rpartition("/")[0] in folders
        },
        left_out=found.left_out,
    )


def _is_below(path: str, folders: Collection[str]) -> bool:
    """Is it one of these folders, or in one?"""
    while folders and path:
        if path in folders:
            return True
        path = path.rpartition("/")[0]
    return False


def open_for_writing(files: Collection[tuple[int, int]], proc: str = "/proc") -> dict[tuple[int, int], int]:
    """Those of `files` (device, inode) that some process can write to now, each with the process's number.

    Processes of other users cannot be looked into, and are not seen. Empty where the system has no /proc (macOS):
    nothing is known there.
    """
    found: dict[tuple[int, int], int] = {}
    for process in _numbers(proc):
        for descriptor in _numbers(f"{proc}/{process}/fd"):
            try:
                facts = os.stat(f"{proc}/{process}/fd/{descriptor}")
                place = facts.st_dev, facts.st_ino
                if place in files and _may_write(f"{proc}/{process}/fdinfo/{descriptor}"):
                    found.setdefault(place, process)
            except OSError:  # closed, or gone, meanwhile
                continue
    return found


def _numbers(folder: str) -> Iterator[int]:
    try:
        with os.scandir(folder) as entries:
            yield from sorted(int(entry.name) for entry in entries if entry.name.isdigit())
    except OSError:  # another user's process, one that has ended, or a system without /proc
        return


def _may_write(info: str) -> bool:
    with open(info, encoding="ascii") as lines:
        for line in lines:
            if line.startswith("flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False

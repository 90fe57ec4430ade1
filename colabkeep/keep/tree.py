"""A folder as a table of what is in it: read without changing anything, checked without trust, and made again."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

_KINDS = ("file", "folder", "link")
_OTHERS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}
_OUT = "it is a link that leads out of the folder, or goes up again on its way"
_LONGEST_NAME = 255  # bytes, as on all file systems of Linux
_PERMISSIONS = 0o777  # never set-user-id and the like: a folder is put back by another user, on another machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file, folder or symbolic link.

    `path` is relative to the kept folder, with "/" between names; bytes that are not UTF-8 are escaped as Python does
    (`os.fsdecode`). `mode`: permission bits. `mtime`: in nanoseconds since 1970. `size`: bytes of a file. `target`:
    where a link leads, relative to its own folder. `same_as`: the path of another hard link to the same file, which
    comes first in the table. `stamp` tells on this machine whether a file is still the one that was seen; it is not
    stored.
    """

    path: str
    kind: str
    mode: int
    mtime: int
    size: int = 0
    target: str = ""
    same_as: str = ""
    stamp: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """Which files of the folder are kept: those that `include` names (all by default), but for `exclude`.

    A pattern is a shell's (`*`, `?`, `[…]`) for the whole relative path or for the last name; `*` also covers "/".
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()

    def keep(self, path: str) -> bool:
        """Is this file or link kept?"""
        return (not self.include or _matches(path, self.include)) and not _matches(path, self.exclude)

    def enter(self, path: str) -> bool:
        """Is it worth looking into this folder?"""
        return not _matches(path, self.exclude)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    if not patterns:
        return False
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path, pattern) or fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a folder holds at one look. `left_out`: path → why it cannot be kept, a clause."""

    entries: Mapping[str, Entry]
    left_out: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes of all files, each hard link counted once."""
        return sum(entry.size for entry in self.entries.values() if not entry.same_as)


def scan(root: str, patterns: Patterns = Patterns(), before: Mapping[str, Entry] = MappingProxyType({})) -> Scan:
    """Look at everything below `root`, in the order of the paths. What vanishes meanwhile is not there. `before`: what
    another look saw; an entry that is still so is the same object.

    Raises:
        OSError: the folder itself cannot be listed.
    """
    entries: dict[str, Entry] = {}
    left_out: dict[str, str] = {}
    inodes: dict[tuple[int, int], str] = {}
    real = os.path.realpath(root)
    to_see = _names(root)

    def add(path: str) -> None:
        where = f"{root}/{path}"
        facts = os.lstat(where)
        stamp = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        old = before.get(path)
        if old is not None and old.stamp == stamp and old.kind == "file" and facts.st_nlink == 1 and not old.same_as:
            entries[path] = old
            return
        common: dict[str, Any] = {
            "path": path,
            "mode": stat.S_IMODE(facts.st_mode) & _PERMISSIONS,
            "mtime": facts.st_mtime_ns,
            "stamp": stamp,
        }
        if stat.S_ISDIR(facts.st_mode):
            if patterns.enter(path):
                to_see.extend(f"{path}/{name}" for name in _names(where))
                entries[path] = Entry(kind="folder", **common)
        elif not patterns.keep(path):
            return
        elif stat.S_ISLNK(facts.st_mode):
            target = _inside(root, real, path)
            if target is None:
                left_out[path] = _OUT
            else:
                entries[path] = Entry(kind="link", target=target, **common)
        elif stat.S_ISREG(facts.st_mode):
            first = inodes.setdefault((facts.st_dev, facts.st_ino), path) if facts.st_nlink > 1 else path
            entries[path] = Entry(kind="file", size=facts.st_size, same_as="" if first == path else first, **common)
        else:
            left_out[path] = f"it is {_OTHERS.get(stat.S_IFMT(facts.st_mode), 'no file')}"

    while to_see:
        path = to_see.pop()
        try:
            add(path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone meanwhile
        except PermissionError:
            left_out[path] = "this user may not read it"
    return Scan(entries=entries, left_out=left_out)


def _names(folder: str) -> list[str]:
    """The last one first, as a stack has them."""
    with os.scandir(folder) as found:
        return sorted((each.name for each in found), reverse=True)


def open_file(path: str) -> int:
    """A descriptor for reading a file. Nothing is waited for, should it be a pipe by now, and no link is followed.

    Raises:
        OSError: it cannot be opened.
    """
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)


def _inside(root: str, real: str, path: str) -> str | None:
    """Where the link `path` leads, relative to its own folder; None where that is not below the root."""
    try:
        target = os.readlink(os.path.join(root, path))
    except OSError:
        return None
    if os.path.isabs(target):  # another machine may have the folder elsewhere
        for start in (real, os.path.abspath(root)):
            if target.startswith(f"{start}/"):
                target = os.path.relpath(target[len(start) + 1 :], os.path.dirname(path))
                break
    return target if _leads_inside(path, target) else None


def _leads_inside(path: str, target: str) -> bool:
    """By its text: what it goes up by are real folders, and links on the way down lead inside themselves."""
    if not target or "\0" in target or os.path.isabs(target):
        return False
    names = [name for name in target.split("/") if name not in ("", ".")]
    up = next((at for at, name in enumerate(names) if name != ".."), len(names))
    # After a name, which may be a link itself, ".." is somewhere else than the text says.
    return ".." not in names[up:] and up <= path.count("/")


def checked_table(rows: object) -> dict[str, Entry]:
    """The entries of a stored table, by path, nothing of it being trusted.

    Raises:
        ValueError: it is not a table that `scan` could have made.
    """
    if not isinstance(rows, list):
        raise ValueError("the table of files is not a list")
    entries: dict[str, Entry] = {}
    for row in rows:
        entry = _entry(row)
        folder = os.path.dirname(entry.path)
        if folder and (folder not in entries or entries[folder].kind != "folder"):
            raise ValueError(f"the folder of {entry.path!r:.200} is not in the table")
        if entry.path in entries:
            raise ValueError(f"{entry.path!r:.200} is in the table twice")
        if entry.same_as and (entry.same_as not in entries or entries[entry.same_as].kind != "file"):
            raise ValueError(f"the other link to {entry.path!r:.200} is not in the table")
        entries[entry.path] = entry
    return entries


def _entry(row: object) -> Entry:
    if not isinstance(row, dict) or not {"path", "kind", "mode", "mtime"} <= row.keys():
        raise ValueError("a row of the table of files is incomplete")
    known = {name: row.get(name, "") for name in ("path", "kind", "target", "same_as")}
    numbers = {name: row.get(name, 0) for name in ("mode", "mtime", "size")}
    if not all(type(value) is str for value in known.values()) or not all(type(n) is int for n in numbers.values()):
        raise ValueError("a row of the table of files has a wrong type")
    if not _is_path(known["path"]) or not _is_text(known["target"]):
        raise ValueError(f"{known['path']!r:.200} is not a path inside the folder")
    if known["kind"] not in _KINDS or not 0 <= numbers["mode"] <= _PERMISSIONS or not 0 <= numbers["size"] < 2**60:
        raise ValueError(f"the kind, the mode or the size of {known['path']!r:.200} is impossible")
    if not -(2**62) < numbers["mtime"] < 2**62:
        raise ValueError(f"the time of {known['path']!r:.200} is impossible")
    if (known["kind"] == "link") != _leads_inside(known["path"], known["target"]):
        raise ValueError(f"the link {known['path']!r:.200} leads out of the folder")
    return Entry(**known, **numbers)


def _is_path(path: str) -> bool:
    return _is_text(path) and all(
        name not in ("", ".", "..") and len(os.fsencode(name)) <= _LONGEST_NAME for name in path.split("/")
    )


def _is_text(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # characters that no name has
        return False


def make_tree(root: str, entries: Mapping[str, Entry]) -> None:
    """Make a checked table's folders, and its files at their size without any bytes, in the empty folder `root`.

    Raises:
        OSError: the disk failed or is full.
    """
    for entry in entries.values():
        path = os.path.join(root, entry.path)
        if entry.kind == "folder":
            os.mkdir(path, 0o700)
        elif entry.kind == "file" and not entry.same_as:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, entry.size)
            finally:
                os.close(descriptor)


def finish_tree(root: str, entries: Mapping[str, Entry]) -> None:
    """The files have their bytes: make the links, and give everything its permissions and times.

    Raises:
        OSError: the disk failed or is full.
    """
    folders = []
    for entry in entries.values():
        path = os.path.join(root, entry.path)
        if entry.kind == "folder":
            folders.append(entry)
        elif entry.kind == "link":
            os.symlink(entry.target, path)
            os.utime(path, ns=(entry.mtime, entry.mtime), follow_symlinks=False)
        elif entry.same_as:
            os.link(os.path.join(root, entry.same_as), path)
        else:
            os.chmod(path, entry.mode)
            os.utime(path, ns=(entry.mtime, entry.mtime))
    for entry in reversed(folders):  # what is made in a folder changes its time
        path = os.path.join(root, entry.path)
        os.chmod(path, entry.mode)
        os.utime(path, ns=(entry.mtime, entry.mtime))

"""What the old sessions of a run left, folded into few files: read as if nothing had been folded.

A history is one file that holds others as they were, leases and segments of the diary, byte for byte: for each a line
that says which file and how many bytes, then these. Its name has the highest session number in it and the SHA-256 of
its bytes, so that whoever folds the same files writes the same history. A file that is still there beside its history,
or in two of them, is the same file: it is read once.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, cast

from colabkeep._engine.journal import SEGMENT_FILE, read_segment
from colabkeep._engine.lease import LEASE_FILE
from colabkeep._engine.reading import SMALL, read_up_to
from colabkeep._engine.repository import Repository
from colabkeep.stores.base import Entry, Store
from colabkeep.vocabulary.errors import ObjectNotFound, StoreError
from colabkeep.vocabulary.sealed import dumps, parse, unseal

__all__ = ["HISTORY_FILE", "MOST_FILES", "Unfolded", "check_old", "history_name", "pack", "unfolded", "unpack"]

HISTORY_FILE = re.compile(r"history-(\d{6,12})-([0-9a-f]{64})\.jsonl")

MOST_FILES = 2**16
"""In one history: what claims to have more was not written by colabkeep."""

_MOST_BYTES = 2**28  # of histories that a reader takes into memory, the newest first
_LOOKS = 3  # a session folds meanwhile: so often a reader who found a file gone looks where it is now
_LONGEST = 200  # bytes of the line before a file


def history_name(fence: int, text: bytes) -> str:
    """Its name inside `journal/`. `fence`: the highest session number in it."""
    return f"history-{fence:06d}-{hashlib.sha256(text).hexdigest()}.jsonl"


def pack(files: Mapping[str, bytes]) -> bytes:
    """The bytes of the history that holds these: name inside the run → bytes."""
    pieces: list[bytes] = []
    for name, text in sorted(files.items()):
        pieces += [dumps({"file": name, "bytes": len(text)}), b"\n", text, b"" if text.endswith(b"\n") else b"\n"]
    return b"".join(pieces)


def unpack(name: str, text: bytes) -> dict[str, bytes]:
    """The files that a history holds: name inside the run → bytes. `name`: its own, inside `journal/`.

    Raises:
        ValueError: not the bytes that were written, or none that colabkeep writes.
    """
    match = HISTORY_FILE.fullmatch(name)
    if match is None or len(text) > SMALL or hashlib.sha256(text).hexdigest() != match[2]:
        raise ValueError("it is not what was written (its digest differs)")
    files: dict[str, bytes] = {}
    at = 0
    while at < len(text):
        end = text.find(b"\n", at, at + _LONGEST)
        record = parse(text[at:end]) if end >= 0 else None
        file, size = (record.get("file"), record.get("bytes")) if isinstance(record, dict) else (None, None)
        if not (isinstance(file, str) and _is_ours(file) and type(size) is int and 0 <= size <= len(text) - end):
            raise ValueError("a line of it names no file of an old session")
        if file in files or len(files) == MOST_FILES:
            raise ValueError("it names a file twice, or too many")
        files[file] = text[end + 1 : end + 1 + size]
        at = end + 1 + size + (not files[file].endswith(b"\n"))
    return files


def check_old(name: str, text: bytes) -> None:
    """See that a lease or a segment, by its name inside the run, is what was written.

    Raises:
        ValueError: it is not.
    """
    folder, _, file = name.partition("/")
    if folder == "journal":
        read_segment(text)
        return
    match, record = LEASE_FILE.fullmatch(file), unseal(text)
    if match is None or (record.get("session"), record.get("fence")) != (match[2], int(match[1])):
        raise ValueError("it is of another session than its name says")


def unfolded(repository: Repository, parts: int | None = None) -> Repository:
    """The run as it was before anything was folded, to be read only. `parts`: histories are opened, the newest first,
    until so many segments of the diary are known; else all.
    """
    store: Any = repository.store
    if isinstance(store, Unfolded):
        return repository
    return Repository(cast("Store", Unfolded(store, repository.folder, parts)), repository.run)


class Unfolded:
    """A store, to be read only, that shows what histories of the run in `folder` hold among its objects.

    `troubles`: name of a history inside the run → why it could not be read.
    """

    def __init__(self, store: Store, folder: str, parts: int | None = None) -> None:
        self._store = store
        self._folder = folder
        self._parts = parts
        self._loose: set[str] = set()  # names that a listing has shown
        self._old: dict[str, bytes] = {}  # name → bytes, of what is in a history
        self._opened: set[str] = set()
        self._bytes = 0  # of the histories opened
        self.troubles: dict[str, str] = {}

    def list(self, prefix: str) -> Iterable[Entry]:
        """As the store itself, with what is in histories."""
        found = {entry.name: entry for entry in self._store.list(prefix)}
        self._loose |= found.keys()
        below = f"{prefix}/" if prefix else ""
        if any(f"{self._folder}/{folder}/".startswith(below) for folder in ("journal", "lease")):
            self._look()
            for name, text in self._old.items():
                if name.startswith(below):
                    found.setdefault(name, Entry(name=name, size=len(text)))
        return found.values()

    def get(self, name: str) -> BinaryIO:
        """As the store itself; what is gone since it was listed may be in a history by now."""
        if name not in self._old or name in self._loose:
            try:
                return self._store.get(name)
            except ObjectNotFound:
                self._loose.discard(name)
                if name.rpartition("/")[0] in (f"{self._folder}/journal", f"{self._folder}/lease"):
                    self._look()
                if name not in self._old:
                    raise
        return io.BytesIO(self._old[name])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _look(self) -> None:
        """Open what is new, the newest first; where one has gone meanwhile, what it held is in another one."""
        for _ in range(_LOOKS):
            start = len(self._folder) + 1
            listed = {entry.name[start:]: entry.size for entry in self._store.list(f"{self._folder}/journal")}
            names = [name for name in listed if HISTORY_FILE.fullmatch(name.removeprefix("journal/"))]
            known = sum(1 for name in listed if SEGMENT_FILE.fullmatch(name.removeprefix("journal/")))
            known += sum(1 for name in self._old if f"{self._folder}/journal/" in name)
            gone = False
            for name in sorted(names, key=_number, reverse=True):
                if self._parts is not None and known >= self._parts:
                    break
                if name not in self._opened:
                    found = self._open(name, listed[name])
                    gone |= found is None
                    known += sum(1 for each in found or () if each.startswith("journal/"))
            if not gone:
                return

    def _open(self, name: str, size: int) -> Iterable[str] | None:
        """The names in it; None where it is gone."""
        if self._bytes + size > _MOST_BYTES:
            self.troubles[name] = "It was not read: there are more old sessions than fit into memory."
            return ()
        try:
            with self._store.get(f"{self._folder}/{name}") as reader:
                files = unpack(name.removeprefix("journal/"), read_up_to(reader, SMALL + 1))
        except ObjectNotFound:
            return None
        except (StoreError, ValueError) as error:
            self.troubles[name] = error.problem if isinstance(error, StoreError) else f"Damaged: {error}."
            files = {}
        self._opened.add(name)
        self._bytes += size
        for file, text in files.items():
            self._old.setdefault(f"{self._folder}/{file}", text)
        return files


def _is_ours(file: str) -> bool:
    folder, _, name = file.partition("/")
    pattern = {"lease": LEASE_FILE, "journal": SEGMENT_FILE}.get(folder)
    return pattern is not None and pattern.fullmatch(name) is not None


def _number(name: str) -> tuple[int, str]:
    return int(name.split("-")[1]), name

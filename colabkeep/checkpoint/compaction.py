"""Old sessions' leases and journals compacted into few files, and read as if nothing had been compacted."""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO, cast

from colabkeep.checkpoint.codec import read_up_to
from colabkeep.checkpoint.journal import read_segment
from colabkeep.checkpoint.repository import Lease, Repository
from colabkeep.core.errors import NameTaken, ObjectNotFound, RunTakenOver, StoreError
from colabkeep.core.layout import HISTORY_FILE, LEASE_FILE, SEGMENT_FILE, SMALL, dumps, id_parts, parse, unseal
from colabkeep.stores.base import BytesSource, DurabilityLevel, Entry, Receipt, Store, sides

# A history is one file that holds others as they were, leases and parts of the journal, byte for byte: for each a line
# that says which file and how many bytes, then these. Its name has the highest session number in it and the SHA-256 of
# its bytes, so that whoever folds the same files writes the same history. A file that is still there beside its
# history, or in two of them, is the same file: it is read once.


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


def unfolded(repository: Repository) -> Repository:
    """The run as it was before anything was folded, to be read only."""
    store: Any = repository.store
    if isinstance(store, Unfolded):
        return repository
    return Repository(cast("Store", Unfolded(store, repository.folder)), repository.run)


class Unfolded:
    """A store, to be read only, that shows what histories of the run in `folder` hold among its objects.

    `troubles`: name of a history inside the run → why it could not be read.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder
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
        if f"{self._folder}/journal/".startswith(below):
            self._look(list(found.values()))
        elif f"{self._folder}/lease/".startswith(below):
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

    def _look(self, entries: Iterable[Entry] | None = None) -> None:
        """Open what is new, the newest first; where one has gone meanwhile, what it held is in another one. `entries`:
        a listing that shows all of the journal, as of now."""
        start, journal = len(self._folder) + 1, f"{self._folder}/journal"
        for _ in range(_LOOKS):
            shown, entries = self._store.list(journal) if entries is None else entries, None
            listed = {entry.name[start:]: entry.size for entry in shown if entry.name.startswith(f"{journal}/")}
            names = [name for name in listed if HISTORY_FILE.fullmatch(name.removeprefix("journal/"))]
            gone = False
            for name in sorted(names, key=_number, reverse=True):
                if name not in self._opened:
                    gone |= not self._open(name, listed[name])
            if not gone:
                return

    def _open(self, name: str, size: int) -> bool:
        """Take in what it holds; False where it is gone."""
        if self._bytes + size > _MOST_BYTES:
            self.troubles[name] = "It was not read: there are more old sessions than fit into memory."
            return True
        try:
            with self._store.get(f"{self._folder}/{name}") as reader:
                files = unpack(name.removeprefix("journal/"), read_up_to(reader, SMALL + 1))
        except ObjectNotFound:
            return False
        except (StoreError, ValueError) as error:
            self.troubles[name] = error.problem if isinstance(error, StoreError) else f"Damaged: {error}."
            files = {}
        self._opened.add(name)
        self._bytes += size
        for file, text in files.items():
            self._old.setdefault(f"{self._folder}/{file}", text)
        return True


def _is_ours(file: str) -> bool:
    folder, _, name = file.partition("/")
    pattern = {"lease": LEASE_FILE, "journal": SEGMENT_FILE}.get(folder)
    return pattern is not None and pattern.fullmatch(name) is not None


def _number(name: str) -> tuple[int, str]:
    """The highest session number in a history, by its name inside the run, and the name."""
    return int(name.split("-")[1]), name


# A run that is taken up every day for years would else leave thousands of files, and each session lists them all. A
# session folds what the oldest have left, sixteen of them at a time into the newest history, on the writer's thread,
# when it has saved once and nothing else is to do. What it folds goes only when the new history is where it lasts, was
# read back there and holds these very bytes, a second listing shows it, and this session is still the newest. Whoever
# dies in between leaves files that are also in a history.
#
# Never folded: the newest sessions, so that the next one finds the number to follow; leases of sessions that have a
# checkpoint, which older versions look for; what is damaged. Where nobody may delete, nothing is folded.


KEPT = 16
"""Sessions that are never folded: the newest."""

TOGETHER = 16
"""Sessions that are folded at a time."""

_FULL = 2**23  # bytes of what is folded at a time; what one session alone left may be four times as much
_REFUSALS = 3  # of the store: then this session folds no more


class Folding:
    """What this session folds. Lives on the writer thread."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._repository = lease.repository
        self._todo: deque[tuple[int, list[str]]] | None = None  # the highest session number, and names inside the run
        self._history: str | None = None  # the newest one that is not full: it is folded with the next
        self._read: dict[str, dict[str, bytes]] = {}  # of what is being folded: name → the files that it holds
        self._refusals = 0

    def work(self, wanted: Callable[[], bool]) -> bool:
        """Fold some sessions, until `wanted` says that there is something better to do, which is asked between any two
        requests. Returns whether there is more to do now. A failure of the store only means that things stay as they
        are: they cost time, and no checkpoint needs them.
        """
        if self._refusals >= _REFUSALS or wanted():
            return False
        try:
            if self._todo is None:
                self._todo = deque(self._batches())
            if self._todo and self._fold(*self._todo[0], wanted):
                self._todo.popleft()
                self._read = {}
                return bool(self._todo)
        except StoreError as error:
            self._refusals += 1 if error.retryable else _REFUSALS
        except RunTakenOver:  # which the next save tells
            self._refusals = _REFUSALS
        return False

    def _batches(self) -> list[tuple[int, list[str]]]:
        """The highest session number and the files of sixteen old sessions, the oldest first, and of the next sixteen;
        of fewer where these are large."""
        matches = [match for match in map(LEASE_FILE.fullmatch, self._repository.files("lease")) if match]
        leases = sorted((int(match[1]), match[2], f"lease/{match[0]}") for match in matches)
        own = self._lease.fence, self._lease.session
        old = [each for each in leases if each[:2] < own][: -KEPT + 1]
        if len(old) < TOGETHER:
            return []
        sizes = self._repository.files("journal")
        open_ones = [name for name, size in sizes.items() if size <= _FULL // 2 and HISTORY_FILE.fullmatch(name)]
        self._history = f"journal/{max(open_ones)}" if open_ones else None
        parts: dict[str, list[str]] = {}
        for name in sorted(filter(SEGMENT_FILE.fullmatch, sizes)):
            parts.setdefault(name.partition("-")[0], []).append(name)
        saved = {id_parts(id)[1] for id in self._repository.known_ids()}
        found, batch, count, total, last = list[tuple[int, list[str]]](), list[str](), 0, 0, 0
        for fence, session, lease in old:
            size = sum(sizes[name] for name in parts.get(session, ()))
            names = [f"journal/{name}" for name in parts.get(session, ())] + ([] if session in saved else [lease])
            if not names or size > 4 * _FULL or len(names) > MOST_FILES // TOGETHER:
                continue
            if batch and (count == TOGETHER or total + size > _FULL):
                found.append((last, batch))
                batch, count, total = [], 0, 0
            batch, count, total, last = batch + names, count + 1, total + size, fence
        return [*found, (last, batch)] if count == TOGETHER else found

    def _good(self, name: str) -> dict[str, bytes]:
        """What a lease, a segment or a history holds, as files; nothing where it is not what was written: it stays
        where it is, and `colabkeep verify` tells of it."""
        with self._repository.store.get(f"{self._repository.folder}/{name}") as reader:
            text = read_up_to(reader, SMALL + 1)
        try:
            file = name.removeprefix("journal/")
            if HISTORY_FILE.fullmatch(file):
                return unpack(file, text)
            check_old(name, text)
        except ValueError:
            return {}
        return {name: text}

    def _fold(self, fence: int, names: list[str], wanted: Callable[[], bool]) -> bool:
        """Write the history of these files, and of the one before it; then delete them. True when that is done."""
        if self._history is not None:
            fence, names = max(fence, _number(self._history)[0]), [self._history, *names]
        for name in names:
            if name not in self._read:
                self._read[name] = self._good(name)
                if wanted():
                    return False
        files: dict[str, bytes] = {}
        for found in self._read.values():
            files |= found
        doomed = [name for name, found in self._read.items() if found]
        if not files:
            return True
        text = pack(files)
        name = f"journal/{history_name(fence, text)}"
        receipt, store = self._put(name, BytesSource(text)), self._repository.store
        if store.confirm(receipt).level != store.properties.top_level or wanted():
            return False
        with sides(store)[-1].get(receipt.name) as reader:
            same = read_up_to(reader, len(text) + 1) == text
        shown = self._repository.files("journal").get(name.removeprefix("journal/"))
        self._lease.check()
        if not same or shown != len(text):
            self._refusals = _REFUSALS  # a damaged one has this very name: `colabkeep verify` tells of it
            return False
        for each in doomed:
            if each != name:
                store.delete(f"{self._repository.folder}/{each}")
                self._refusals = 0
                if wanted():
                    return False
        self._history = name if len(text) <= _FULL // 2 else None
        return True

    def _put(self, name: str, source: BytesSource) -> Receipt:
        store = self._repository.store
        whole = f"{self._repository.folder}/{name}"
        try:
            return store.put(whole, source)
        except NameTaken:  # by a session that died before it could delete, and folded the same
            properties = store.properties
            local = properties.behind is not None or properties.top_level == "local"
            level: DurabilityLevel = "local" if local else "sent"
            return Receipt(name=whole, size=source.size, sha256=source.sha256, level=level)

"""Old sessions' leases and journals compacted into few files, and read as if nothing had been compacted."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

from colabkeep.checkpoint.journal import SEGMENT_FILE, read_segment
from colabkeep.checkpoint.lease import LEASE_FILE, Lease
from colabkeep.checkpoint.packs import SMALL, read_up_to
from colabkeep.checkpoint.repository import Repository, id_parts
from colabkeep.core.errors import NameTaken, ObjectNotFound, RunTakenOver, StoreError
from colabkeep.core.sealed import dumps, parse, unseal
from colabkeep.core.system import Clock
from colabkeep.stores.base import BytesSource, DurabilityLevel, Entry, Receipt, Store, sides

__all__ = [
    "HISTORY_FILE",
    "KEPT",
    "MOST_FILES",
    "TOGETHER",
    "Folding",
    "Unfolded",
    "check_old",
    "history_name",
    "pack",
    "unfolded",
    "unpack",
]

# A history is one file that holds others as they were, leases and segments of the diary, byte for byte: for each a line
# that says which file and how many bytes, then these. Its name has the highest session number in it and the SHA-256 of
# its bytes, so that whoever folds the same files writes the same history. A file that is still there beside its
# history, or in two of them, is the same file: it is read once.


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


# A run that is taken up every day for years would else leave thousands of files, and each session lists them all. A
# session folds what the oldest have left, on the writer's thread, when it has saved once and nothing else is to do.
# What it folds goes only when the history is where it lasts, was read back there and holds these very bytes, a second
# listing shows it, and this session is still the newest. Whoever dies in between leaves files that are also in a
# history.
#
# Never folded: the newest sessions, so that the next one finds the number to follow; leases of sessions that have a
# checkpoint, which older versions look for; what is damaged. Where nobody may delete, nothing is folded.


KEPT = 16
"""Sessions that are never folded: the newest."""

TOGETHER = 16
"""Sessions, or histories, that are folded into one."""

_MOST_BYTES_AT_ONCE = 2**23  # of what is folded into one; what one session alone left may be four times as much
_REFUSALS = 3  # of the store: then this session folds no more
_SLICE = 1.0  # seconds at a time; how things stand is asked and told between two


class Folding:
    """What this session folds. Lives on the writer thread."""

    def __init__(self, lease: Lease, clock: Clock) -> None:
        self._lease = lease
        self._repository = lease.repository
        self._clock = clock
        self._steps: Iterator[bool] | None = None
        self._refusals = 0
        self._over = False

    def work(self, wanted: Callable[[], bool]) -> bool:
        """Fold for a moment, until `wanted` says that there is something better to do, which is asked between any two
        requests. Returns whether there is more to do now. A failure of the store only means that things stay as they
        are: they cost time, and no checkpoint needs them.
        """
        until, going = self._clock.monotonic() + _SLICE, True
        try:
            while going and not self._over and not wanted():
                if self._clock.monotonic() > until:
                    return True
                self._steps = self._steps or self._fold_all()
                going = next(self._steps)
        except StopIteration:
            self._over = True
        except StoreError as error:
            self._steps = None
            self._refusals += 1 if error.retryable else _REFUSALS
            self._over = self._refusals >= _REFUSALS
            return False
        except RunTakenOver:  # which the next save tells
            self._over = True
        return going and not self._over

    def _fold_all(self) -> Iterator[bool]:
        """Yields after each request: True to go on, False where nothing can be done now."""
        for fence, names in self._batches():
            yield True
            files: dict[str, bytes] = {}
            for name in names:
                files |= self._good(name)
                yield True
            shown = yield from self._fold(fence, files, [*files])
            while len(small := _small(shown)) == TOGETHER:
                good, files = [], {}
                for name in small:
                    found = self._good(name)
                    files |= found
                    good += [name] if found else []
                    yield True
                if len(good) < 2:
                    break
                shown = yield from self._fold(max(map(_fence_of, good)), files, good)

    def _batches(self) -> Iterator[tuple[int, list[str]]]:
        """The highest session number and the files of sixteen old sessions, the oldest first, and of the next sixteen;
        of fewer where these are large."""
        matches = [match for match in map(LEASE_FILE.fullmatch, self._repository.files("lease")) if match]
        leases = sorted((int(match[1]), match[2], f"lease/{match[0]}") for match in matches)
        own = self._lease.fence, self._lease.session
        old = [each for each in leases if each[:2] < own][: -KEPT + 1]
        if len(old) < TOGETHER:
            return
        sizes = self._repository.files("journal")
        parts: dict[str, list[str]] = {}
        for name in sorted(filter(SEGMENT_FILE.fullmatch, sizes)):
            parts.setdefault(name.partition("-")[0], []).append(name)
        saved = {id_parts(id)[1] for id in self._repository.known_ids()}
        batch, count, total, last = list[str](), 0, 0, 0
        for fence, session, lease in old:
            size = sum(sizes[name] for name in parts.get(session, ()))
            names = [f"journal/{name}" for name in parts.get(session, ())] + ([] if session in saved else [lease])
            if not names or size > 4 * _MOST_BYTES_AT_ONCE or len(names) > MOST_FILES // TOGETHER:
                continue
            if batch and (count == TOGETHER or total + size > _MOST_BYTES_AT_ONCE):
                yield last, batch
                batch, count, total = [], 0, 0
            batch, count, total, last = batch + names, count + 1, total + size, fence
        if count == TOGETHER:
            yield last, batch

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

    def _fold(
        self, fence: int, files: Mapping[str, bytes], doomed: Sequence[str]
    ) -> Generator[bool, None, Mapping[str, int]]:
        """Write the history of these files, and delete what is doomed. Returns what there is of the diary then."""
        if not files:
            return {}
        text = pack(files)
        name = history_name(fence, text)
        receipt = self._put(f"journal/{name}", BytesSource(text))
        yield True
        store = self._repository.store
        while (receipt := store.confirm(receipt)).rung != store.properties.top_rung:
            yield False
        with sides(store)[-1].get(receipt.name) as reader:
            same = read_up_to(reader, len(text) + 1) == text
        yield True
        shown = self._repository.files("journal")
        self._lease.check()
        if not same or shown.get(name) != len(text):
            self._over = True  # a damaged one has this very name: `colabkeep verify` tells of it
            return {}
        for each in doomed:
            if each != f"journal/{name}":
                store.delete(f"{self._repository.folder}/{each}")
                shown.pop(each.removeprefix("journal/"), None)
                self._refusals = 0
                yield True
        return shown

    def _put(self, name: str, source: BytesSource) -> Receipt:
        store = self._repository.store
        whole = f"{self._repository.folder}/{name}"
        try:
            return store.put(whole, source)
        except NameTaken:  # by a session that died before it could delete, and folded the same
            properties = store.properties
            local = properties.behind is not None or properties.top_rung == "local"
            rung: DurabilityLevel = "local" if local else "sent"
            return Receipt(name=whole, size=source.size, sha256=source.sha256, rung=rung)


def _small(sizes: Mapping[str, int]) -> list[str]:
    """The oldest histories, by their names inside the run, of those of which sixteen fit into one: sixteen at most."""
    found = (
        name for name, size in sizes.items() if size <= _MOST_BYTES_AT_ONCE // TOGETHER and HISTORY_FILE.fullmatch(name)
    )
    return [f"journal/{name}" for name in sorted(found)[:TOGETHER]]


def _fence_of(name: str) -> int:
    """The highest session number in a history, by its name inside the run."""
    return int(name.split("-")[1])

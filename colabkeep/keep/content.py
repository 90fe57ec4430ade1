"""The bytes of a folder's files as blobs: large files in pieces, small ones gathered, what is stored referred to.

A file is read twice, to find the name of its blob (a digest) and to write it; nothing is copied in between. If the two
readings differ, or a file is not the one that was seen, the version is not made (`Stale`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from colabkeep.checkpoint.codec import SLICE, Pack
from colabkeep.core.state import HostTensor, Stale
from colabkeep.keep.tree import Entry, Scan, checked_table, open_file

PIECE = 64 * 2**20
"""Bytes of a large file in one blob: what a cut upload sends again, at most."""

SMALL = 2**20
"""Bytes; smaller files are gathered, so that a hundred thousand of them are no hundred thousand uploads."""

BUNDLE = 16 * 2**20
"""Bytes of small files in one blob."""

_FEW = 8  # blobs of small files that are not nearly full; more are gathered again
_TABLE_LIMIT = 2**29  # bytes of a table's text: two million files
KEY = "content"
"""The name of the one tensor of each blob."""
_GROWING = (".log", ".txt", ".csv", ".tsv", ".jsonl", ".out", ".err", ".wandb")


def grows(path: str) -> bool:
    """Is this a file to which programs append, by its name? What it has so far is whole at any time."""
    name = path.rpartition("/")[2]
    return name.endswith(_GROWING) or "tfevents" in name


class FileChanged(Stale):
    """The file `path` is not the one that was seen any more, or cannot be read: `why`, a clause."""

    def __init__(self, path: str, why: str = "it changes while it is read") -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


class Span(NamedTuple):
    """Bytes of a file as it was seen; `start` and `size` in bytes."""

    entry: Entry
    start: int
    size: int


class _Bytes:
    """The bytes of spans, read when they are asked for. `opened`: descriptors of files that may go meanwhile."""

    def __init__(self, root: str, spans: Sequence[Span], opened: Mapping[str, int]) -> None:
        self.nbytes = sum(span.size for span in spans)
        self._root, self._spans, self._opened = root, spans, opened

    def chunks(self) -> Iterator[memoryview]:
        """All bytes, in few chunks.

        Raises:
            FileChanged: a file is not the one that was seen.
        """
        small, size = list[bytes](), 0
        for span in self._spans:
            for piece in self._read(span):
                if len(piece) >= SMALL:
                    yield memoryview(piece)
                    continue
                small.append(piece)
                size += len(piece)
                if size >= SMALL:
                    yield memoryview(b"".join(small))
                    small, size = [], 0
        if small:
            yield memoryview(b"".join(small))

    def _read(self, span: Span) -> Iterator[bytes]:
        path = span.entry.path
        with _opened(self._root, path, self._opened) as descriptor:
            at, end = span.start, span.start + span.size
            while at < end:
                piece = os.pread(descriptor, min(SLICE, end - at), at)
                if not piece:
                    raise FileChanged(path)
                at += len(piece)
                yield piece
            if not _is_the_same(span.entry, os.fstat(descriptor)):
                raise FileChanged(path)


@contextmanager
def _opened(root: str, path: str, opened: Mapping[str, int]) -> Iterator[int]:
    """A descriptor of the file: the one that is open already, or one for as long as this lasts.

    Raises:
        FileChanged: it cannot be opened or read.
    """
    mine = None
    try:
        if path not in opened:
            mine = open_file(os.path.join(root, path))
        yield opened[path] if mine is None else mine
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileChanged(path) from error
    except OSError as error:
        raise FileChanged(path, f"it cannot be read: {error.strerror}") from error
    finally:
        if mine is not None:
            os.close(mine)


def _is_the_same(entry: Entry, facts: os.stat_result) -> bool:
    if not entry.stamp:  # as a version of an earlier session has it: it was not seen by this one
        return False
    device, inode, size, changed = entry.stamp[:4]
    if (facts.st_dev, facts.st_ino) != (device, inode):
        return False
    if grows(entry.path):
        return facts.st_size >= size
    return (facts.st_size, facts.st_mtime_ns) == (size, changed)


class FilePack(Pack):
    """A blob's bytes: a safetensors file with one tensor of bytes, which stay in their files.

    Raises, from `chunks` and `sha256`:
        Stale: the files have changed.
    """

    def __init__(self, root: str, spans: Sequence[Span], opened: Mapping[str, int]) -> None:
        self.spans = spans
        self._bytes = _Bytes(root, spans, opened)
        data: Any = self._bytes
        super().__init__({KEY: HostTensor(dtype="U8", shape=(data.nbytes,), data=data)})

    def chunks(self) -> Iterator[memoryview]:
        """The bytes. Once the digest is known, the last chunk comes only if all are what was hashed."""
        before, last = hashlib.sha256(), self._head
        for chunk in self._bytes.chunks():
            before.update(last)
            yield last
            last = chunk
        before.update(last)
        if self.hashed and before.hexdigest() != self.sha256:
            raise FileChanged(self.spans[0].entry.path)
        yield last


class StoredPack:
    """A blob that an earlier version has: referred to, and not read."""

    hashed = True

    def __init__(self, sha256: str, size: int) -> None:
        self.sha256, self.size = sha256, size
        self.gone = False  # was it called for, because the store has lost it?

    def look(self) -> None:
        """Its bytes are in the store, or nowhere: `chunks` says so."""

    def chunks(self) -> Iterator[memoryview]:
        """They cannot be written again.

        Raises:
            Stale: always; the next version reads the files anew.
        """
        self.gone = True
        raise Stale


class Place(NamedTuple):
    """Where bytes of a file lie: `at` in the content of `pack`; `start` and `size` of the file, all in bytes."""

    pack: Any
    at: int
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One version: its table, and the blobs that the table refers to by number. `places`: path → stamp, and where the
    file's bytes are."""

    table: HostTensor
    packs: Sequence[Any]
    places: Mapping[str, tuple[tuple[int, ...], Sequence[Place]]]


class Content:
    """Plans one version of a folder after another, and remembers which blobs of the last one hold what."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._places: Mapping[str, tuple[tuple[int, ...], Sequence[Place]]] = {}  # as in `Planned`

    def adopt(self, table: Table, packs: Sequence[StoredPack], stamps: Mapping[str, tuple[int, ...]]) -> None:
        """A version of an earlier session is what this one begins with. `stamps`: of the files that were put back from
        it and are known to be as it says; the others are read again, and found stored if they are the same."""
        self._places = {
            path: (stamps.get(path, ()), [Place(packs[number], *rest) for number, *rest in places])
            for path, places in table.places.items()
        }

    def stored(self, planned: Planned) -> None:
        """This is the last version now: the next one refers to its blobs. Of a version that was not made, nothing is
        remembered: its blobs may be of files that have changed."""
        stored = {
            id(pack): pack if isinstance(pack, StoredPack) else StoredPack(pack.sha256, pack.size)
            for pack in planned.packs
        }
        self._places = {
            path: (stamp, [Place(stored[id(pack)], *rest) for pack, *rest in places])
            for path, (stamp, places) in planned.places.items()
        }

    def plan(self, scan: Scan, opened: Mapping[str, int]) -> Planned:
        """The blobs of a version; nothing is read yet but where the holes of files are. `opened`: path → open
        descriptor, for as long as that lasts.

        Raises:
            FileChanged: a file with holes is not the one that was seen.
        """
        files = [entry for entry in scan.entries.values() if entry.kind == "file" and not entry.same_as]
        places: dict[str, Sequence[Place]] = {}
        fresh = list[Entry]()
        for entry in files:
            stamp, before = self._places.get(entry.path, ((), ()))
            if stamp == entry.stamp and not any(getattr(place.pack, "gone", False) for place in before):
                places[entry.path] = before
            else:
                fresh.append(entry)
        for path in self._scattered(places):
            if self._is_there(scan.entries[path]):
                fresh.append(scan.entries[path])
                del places[path]
        small = [entry for entry in fresh if entry.size < SMALL]
        for bundle in self._bundles(small):
            pack = FilePack(self._root, [Span(entry, 0, entry.size) for entry in bundle], opened)
            at = 0
            for entry in bundle:
                places[entry.path] = [Place(pack, at, 0, entry.size)] if entry.size else []
                at += entry.size
        for entry in fresh:
            if entry.size >= SMALL:
                sizes = [place.size for place in self._places.get(entry.path, ((), ()))[1]]
                places[entry.path] = [
                    Place(FilePack(self._root, [Span(entry, start, size)], opened), 0, start, size)
                    for start, size in _cut(sizes, entry, opened, self._root)
                ]
        packs = list({id(place.pack): place.pack for some in places.values() for place in some}.values())
        numbers = {id(pack): number for number, pack in enumerate(packs, start=1)}  # the table's own is 0
        rows = [_row(entry, places.get(entry.path, ()), numbers) for entry in scan.entries.values()]
        text = zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 1)
        table = HostTensor(dtype="U8", shape=(len(text),), data=memoryview(text))
        linked = {entry.path: entry.same_as or entry.path for entry in scan.entries.values() if entry.kind == "file"}
        return Planned(
            table=table,
            packs=packs,
            places={path: (scan.entries[path].stamp, places[first]) for path, first in linked.items()},
        )

    def _is_there(self, entry: Entry) -> bool:
        """Is the file as this entry says? Of one that is held, the last version's bytes are in the store only."""
        try:
            return bool(entry.stamp) and _is_the_same(entry, os.lstat(os.path.join(self._root, entry.path)))
        except OSError:
            return False

    def _scattered(self, places: Mapping[str, Sequence[Place]]) -> list[str]:
        """Unchanged small files that are to be gathered again: those of blobs that hold mostly what is gone, and of
        those that are small themselves, where there are many."""
        used: Counter[Any] = Counter()
        members: dict[Any, list[str]] = defaultdict(list)
        for path, some in places.items():
            if len(some) == 1 and some[0].size < SMALL:
                used[some[0].pack] += some[0].size
                members[some[0].pack].append(path)
        wasteful = [pack for pack, size in used.items() if size < pack.size / 2]
        little = [pack for pack, size in used.items() if size < BUNDLE / 2 and pack not in wasteful]
        again = wasteful + (little if len(little) > _FEW else [])
        return [path for pack in again for path in members[pack]]

    def _bundles(self, small: Sequence[Entry]) -> Iterator[list[Entry]]:
        """Small files by blob: as they were gathered before where all are to be read at the size they had, for they may
        be stored so, as after a new session's begin; the others anew."""
        before: dict[Any, dict[int, Entry]] = defaultdict(dict)
        ends: dict[Any, int] = {}
        for _, places in self._places.values():
            for place in places:
                ends[place.pack] = max(ends.get(place.pack, 0), place.at + place.size)
        rest = list[Entry]()
        for entry in small:
            stamp, some = self._places.get(entry.path, ((), ()))
            if not stamp and len(some) == 1 and some[0].size == entry.size:
                before[some[0].pack][some[0].at] = entry
            else:
                rest.append(entry)
        for pack, members in before.items():
            ordered = [members[at] for at in sorted(members)]
            starts = [0]
            for entry in ordered:
                starts.append(starts[-1] + entry.size)
            if starts[:-1] == sorted(members) and starts[-1] == ends[pack]:
                yield ordered
            else:
                rest += ordered
        bundle, size = list[Entry](), 0
        for entry in sorted(rest, key=lambda entry: entry.path):
            bundle.append(entry)
            size += entry.size
            if size >= BUNDLE:
                yield bundle
                bundle, size = [], 0
        if bundle:
            yield bundle


def _cut(before: Sequence[int], entry: Entry, opened: Mapping[str, int], root: str) -> Iterator[tuple[int, int]]:
    """(start, size) of the pieces of a large file. Where it was cut before it is cut again, so that what it has at its
    beginning is found stored; what was appended is joined with the small pieces before it, so that they stay few."""
    extents = _extents(entry, opened, root)
    if extents != [(0, entry.size)]:
        for start, size in extents:
            for at in range(start, start + size, PIECE):
                yield at, min(PIECE, start + size - at)
        return
    sizes, rest = list[int](), entry.size
    for size in before:
        if size > rest:
            break
        sizes.append(size)
        rest -= size
    while rest:
        sizes.append(min(rest, PIECE))
        rest -= sizes[-1]
    while len(sizes) > 1 and sizes[-2] < 2 * sizes[-1] and sizes[-2] + sizes[-1] <= PIECE:
        sizes[-2:] = [sizes[-2] + sizes[-1]]
    start = 0
    for size in sizes:
        yield start, size
        start += size


def _extents(entry: Entry, opened: Mapping[str, int], root: str) -> list[tuple[int, int]]:
    """(start, size) of what is no hole; the whole file where that cannot be told.

    Raises:
        FileChanged: it is not the file that was seen: what is a hole now may have been none.
    """
    found, at = list[tuple[int, int]](), 0
    with _opened(root, entry.path, opened) as descriptor:
        try:
            while at < entry.size:
                start = os.lseek(descriptor, at, os.SEEK_DATA)
                end = min(os.lseek(descriptor, start, os.SEEK_HOLE), entry.size)
                if start < end:
                    found.append((start, end - start))
                at = end
        except OSError as error:
            if error.errno != errno.ENXIO:  # that one says: nothing but a hole is left
                return [(0, entry.size)]
        if not _is_the_same(entry, os.fstat(descriptor)):
            raise FileChanged(entry.path)
    return found


def _row(entry: Entry, places: Iterable[Place], numbers: Mapping[int, int]) -> dict[str, Any]:
    row = {name: value for name, value in asdict(entry).items() if name != "stamp" and value != ""}
    row["places"] = [[numbers[id(place.pack)], place.at, place.start, place.size] for place in places]
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A stored table: the entries by path, and where the bytes of each file are: (number of the blob, offset in its
    content, start and size in the file)."""

    entries: Mapping[str, Entry]
    places: Mapping[str, Sequence[tuple[int, int, int, int]]]


def read_table(data: memoryview, blobs: int) -> Table:
    """The table of a version with so many blobs, nothing of it being trusted.

    Raises:
        ValueError: it is not one that `Content.plan` makes.
    """
    try:
        unpacked = zlib.decompressobj()
        text = unpacked.decompress(data, _TABLE_LIMIT)
        if unpacked.unconsumed_tail or not unpacked.eof:
            raise ValueError("the table of files is cut short, or too long")
        rows = json.loads(text)
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"the table of files cannot be read ({error})") from error
    entries = checked_table(rows)
    places: dict[str, Sequence[tuple[int, int, int, int]]] = {}
    for row in rows:
        entry, some = entries[row["path"]], row.get("places", [])
        size = -1 if entry.kind != "file" or entry.same_as else entry.size
        if not isinstance(some, list) or not all(_is_place(place, blobs, size) for place in some):
            raise ValueError(f"where the bytes of {row['path']!r:.200} are is not said rightly")
        places[row["path"]] = [tuple(place) for place in some]
    return Table(entries=entries, places=places)


def _is_place(place: object, blobs: int, size: int) -> bool:
    match place:
        case [int(number), int(at), int(start), int(length)]:
            return 0 < number < blobs and min(at, start, length) >= 0 and start + length <= size
    return False

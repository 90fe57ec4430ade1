"""Whether a file is complete, for the formats that tell: an archive has its directory at the end, a file of tensors
says how long it is."""

from __future__ import annotations

import ast
import json
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from math import prod

from colabkeep.keep.tree import open_file

JOURNALS = ("-journal", "-wal", "-shm")
"""What SQLite appends to a database's name for the files that belong to it."""

_HEADER_LIMIT = 100 * 10**6  # bytes, as safetensors' own reader has it
_NEVER_EMPTY = (".pt", ".pth", ".ckpt", ".safetensors", ".h5", ".hdf5", ".keras", ".npz", ".npy", ".json", ".zip")
_LONGEST_WORD = len("-Infinity")
_JSON_LIMIT = 64 * 2**20  # bytes; a larger text is not parsed in training's time
_END_OF_ZIP = struct.Struct("<4s4H2LH")
_END_OF_ZIP64 = struct.Struct("<4sQ2H2L4Q")
_ZIP64_LOCATOR = struct.Struct("<4sLQL")


def incomplete(path: str, *, told: bool = True) -> str:
    """Why the file cannot be whole yet, a clause; "" where it is, or where its format does not tell.

    Known are archives (torch, .npz, .keras, .zip), safetensors, HDF5, .npy, JSON and SQLite. `told`: False where it is
    only tried whether it can be read.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = open_file(path)
    try:
        size = os.fstat(descriptor).st_size
        start = os.pread(descriptor, 64, 0)
        if not told:
            return ""
        if not size:
            return "nothing of it is written yet" if path.endswith(_NEVER_EMPTY) else ""
        for magic, look in _BY_MAGIC.items():
            if start.startswith(magic):
                return look(descriptor, size, path)
            if magic.startswith(start):
                return "its first bytes are not written yet"
        for ending, look in _BY_NAME.items():
            if path.endswith(ending):
                return look(descriptor, size, path)
        if path.endswith(_NEVER_EMPTY) and not start.strip(b"\0"):
            return "its first bytes are not written yet"
        return ""
    finally:
        os.close(descriptor)


def _zip(descriptor: int, size: int, _: str) -> str:
    tail = os.pread(descriptor, min(size, 2**16 + _END_OF_ZIP.size), max(0, size - 2**16 - _END_OF_ZIP.size))
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _END_OF_ZIP.size:
        return "the directory at its end is not written yet"
    length, offset, comment = _END_OF_ZIP.unpack_from(tail, at)[-3:]
    end = size - len(tail) + at
    if end + _END_OF_ZIP.size + comment > size:
        return "the directory at its end is cut short"
    locator = os.pread(descriptor, _ZIP64_LOCATOR.size, max(0, end - _ZIP64_LOCATOR.size))
    if len(locator) == _ZIP64_LOCATOR.size and locator.startswith(b"PK\6\7"):  # also where nothing is that large
        where = _ZIP64_LOCATOR.unpack(locator)[2]
        record = os.pread(descriptor, _END_OF_ZIP64.size, where) if where < size else b""
        if len(record) < _END_OF_ZIP64.size or not record.startswith(b"PK\6\6"):
            return "the directory at its end is cut short"
        length, offset = _END_OF_ZIP64.unpack(record)[-2:]
        end = where
    return "" if offset + length == end else "parts of it are not written yet"


def _safetensors(descriptor: int, size: int, _: str) -> str:
    start = os.pread(descriptor, 8, 0)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, _HEADER_LIMIT):
        return "its header is not written yet"
    try:
        header = json.loads(os.pread(descriptor, length, 8))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        needed = 8 + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return "its header is not written yet"
    return "" if size == needed else f"it has {size} of {needed} bytes"


def _hdf5(descriptor: int, size: int, _: str) -> str:
    """The superblock says where the file ends, which a program that is killed has not brought up to date: closing cuts
    the file there. Source: HDF5 File Format Specification 3.0, section II.A."""
    start = os.pread(descriptor, 64, 0)
    if len(start) < 64:
        return "its first block is not written yet"
    version, wide = start[8], start[13] if start[8] < 2 else start[9]
    end_at = {0: 40, 1: 44, 2: 28, 3: 28}.get(version)
    if end_at is None or wide != 8:
        return ""
    end = int.from_bytes(start[end_at : end_at + 8], "little")
    if version == 3 and start[11] & 1:
        return "a program has it open for writing"
    if end < size:
        return "it was not closed: there are bytes behind its end"
    return "" if end == size else f"it has {size} of {end} bytes"


def _npy(descriptor: int, size: int, _: str) -> str:
    start = os.pread(descriptor, 12, 0)
    if len(start) < 12:
        return "its header is not written yet"
    at, length = (10, int.from_bytes(start[8:10], "little"))
    if start[6] >= 2:
        at, length = (12, int.from_bytes(start[8:12], "little"))
    if length > min(size - at, _HEADER_LIMIT):
        return "its header is not written yet"
    try:
        header = ast.literal_eval(os.pread(descriptor, length, at).decode("latin-1").strip())
        width = int("".join(filter(str.isdigit, header["descr"]))) * (4 if "U" in header["descr"] else 1)
        needed = at + length + width * prod(header["shape"])
    except (ValueError, TypeError, KeyError, SyntaxError, AttributeError, MemoryError, RecursionError):
        return ""  # records, objects: how long it gets cannot be told
    return "" if size >= needed else f"it has {size} of {needed} bytes"


def _json(descriptor: int, size: int, _: str) -> str:
    """Only a text that ends too early is not written to its end; lines of JSON and other dialects are not JSON, and do
    not tell."""
    if size > _JSON_LIMIT:
        return ""
    try:
        text = os.pread(descriptor, size, 0).rstrip(b" \t\r\n\0").decode()
        json.loads(text)
    except UnicodeDecodeError as error:
        return "its last character is cut" if error.reason == "unexpected end of data" else ""
    except json.JSONDecodeError as error:
        rest = text[error.pos :]
        at_end = len(rest) <= _LONGEST_WORD and not {"}", "]"} & {*rest}
        cut = at_end or error.msg.startswith("Unterminated string")
        return f"it is not whole JSON ({error})" if cut else ""
    except RecursionError:
        return ""
    return ""


def _sqlite(descriptor: int, size: int, path: str) -> str:
    """Source: SQLite, "Database File Format", sections 1.3 and 3 (the rollback journal)."""
    header = os.pread(descriptor, 100, 0)
    if len(header) < 100:
        return "its header is not written yet"
    with suppress(FileNotFoundError):
        journal = open_file(f"{path}-journal")
        try:
            if os.pread(journal, 8, 0).strip(b"\0"):  # zeroed or empty: the transaction is over
                return "a transaction is under way"
        finally:
            os.close(journal)
    page = int.from_bytes(header[16:18], "big")
    page, pages = 2**16 if page == 1 else page, int.from_bytes(header[28:32], "big")
    known = header[24:28] == header[92:96]  # else the number of pages was written by an old version, and is not valid
    return f"it has {size} of {page * pages} bytes" if known and size < page * pages else ""


_BY_MAGIC: dict[bytes, Callable[[int, int, str], str]] = {
    b"PK\3\4": _zip,
    b"\x89HDF\r\n\x1a\n": _hdf5,
    b"\x93NUMPY": _npy,
    b"SQLite format 3\0": _sqlite,
}
_BY_NAME: dict[str, Callable[[int, int, str], str]] = {".safetensors": _safetensors, ".json": _json}

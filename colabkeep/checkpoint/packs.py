"""A pack: tensors in one safetensors file, written without copying, hashed one ahead, and read without trust in
bounded pieces.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import Any, NamedTuple

from colabkeep.core.sealed import costly
from colabkeep.core.state import HostTensor, Withheld
from colabkeep.core.system import FAR, give_way

__all__ = [
    "CHUNK",
    "DTYPE_BITS",
    "SLICE",
    "SMALL",
    "Extent",
    "Pack",
    "UnknownKind",
    "hashing_ahead",
    "read_exactly",
    "read_layout",
    "read_up_to",
    "sha256_of_stream",
    "unpack",
]

CHUNK = 2**20
"""Bytes handled at a time: hashing and writing let other threads run for as long as a chunk takes."""

SMALL = 64 * 2**20
"""Bytes; manifests, leases, marks and journal segments are never larger."""


class UnknownKind(ValueError):
    """A value of a kind that this version does not know, in bytes that are as they were written: a newer one may."""


def read_up_to(reader: Any, size: int) -> bytes:
    """The next `size` bytes, fewer only where the object ends."""
    found = bytearray()
    while len(found) < size:
        piece = reader.read(min(CHUNK, size - len(found)))
        if not piece:
            break
        found += piece
    return bytes(found)


def read_exactly(reader: Any, size: int) -> tuple[memoryview, str]:
    """The `size` bytes of an object, and their SHA-256 in hex: each chunk is hashed while the cache holds it.

    Raises:
        ValueError: it has fewer or more.
        MemoryError: this machine cannot hold them.
    """
    view, digest = _memory(size), hashlib.sha256()
    filled = 0
    while filled < size:
        n = reader.readinto(view[filled : filled + CHUNK])
        if not n:
            raise ValueError(f"it is cut short ({filled} of {size} bytes)")
        digest.update(view[filled : filled + n])
        filled += n
    if reader.read(1):
        raise ValueError(f"it is longer than it was written ({size} bytes)")
    return view, digest.hexdigest()


def _memory(size: int) -> memoryview:
    """Fresh memory that is first touched when it is filled: a bytearray is cleared by Python once more, for a tenth of
    the time that reading and hashing take."""
    if size < CHUNK:
        return memoryview(bytearray(size))
    try:
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError as error:
        raise MemoryError(f"{size} bytes") from error


def sha256_of_stream(reader: Any) -> tuple[int, str]:
    """Size and hex digest of what is left to read, holding one chunk at a time."""
    digest, size = hashlib.sha256(), 0
    for piece in _pieces(reader):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()


def _pieces(reader: Any) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(CHUNK))
    while count := reader.readinto(buffer):
        yield buffer[:count]


# The layout is that of safetensors: eight bytes with the length of a JSON header (little endian), the header (name →
# dtype, shape, offsets), then the bytes of all tensors, gapless. Source: https://github.com/huggingface/safetensors,
# section "Format".


DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""The dtypes of a pack, with the bits of one element."""

SLICE = 2**24
"""Bytes of a large tensor in one chunk. Between two chunks the writer needs the interpreter, for which it and training
wait for each other. Beside a training of tiny steps, 320 MB in chunks of 1 MiB took two to three times as long as in
chunks of 16 MiB, and held up five times as many steps."""

_SMALL = 2**17
"""Bytes; smaller tensors are gathered in one chunk, which, unlike hashing and writing, lets no other thread run.
Beside a save of 1,256 tensors of 211 kB, a training of tiny steps waited 50 to 120 ms for the interpreter where they
were gathered, and 15 to 35 ms where not; the save took as long (medians of 5, in turn)."""

_GATHERED = 2**20  # bytes of small tensors in one chunk: 0.1 to 0.3 ms

_ALIGNED = 64
"""Bytes. Where a file is read to such an address, so are its tensors, those first whose size does not push the next one
off it: as aligned as the memory that frameworks take for themselves, and to be kept where they are."""

_HEADER_LIMIT = 100 * 10**6  # bytes; the reference implementation refuses longer ones too
_DTYPE = re.compile(r"[A-Z]{1,4}[0-9]{1,3}(_[0-9A-Z]{1,8})?")  # as the names of all dtypes of the format are made
_MOST_ELEMENTS = 2**60  # also beside a dimension of 0: frameworks compute strides, in bytes, with 64 bits
_MOST_DIMENSIONS = 64  # as in NumPy and torch; the product of a million dimensions would take for ever


class Pack:
    """A source of the bytes of one safetensors file over tensors that stay where they are.

    `metadata` is for other readers; none of ours looks at it.
    """

    def __init__(self, tensors: Mapping[str, HostTensor], metadata: Mapping[str, str] | None = None) -> None:
        members = [f'"__metadata__":{_compact(dict(metadata))}'] if metadata else []
        offset = 0
        tensors = dict(sorted(tensors.items(), key=lambda item: item[1].data.nbytes % _ALIGNED != 0))
        for name, tensor in tensors.items():
            end = offset + tensor.data.nbytes
            # As text at once: containers for each tensor bring the garbage collector's great round nearer.
            shape = ",".join(map(str, tensor.shape))
            members.append(
                f'{_compact(name)}:{{"dtype":"{tensor.dtype}","shape":[{shape}],"data_offsets":[{offset},{end}]}}'
            )
            offset = end
        text = f"{{{','.join(members)}}}".encode()
        text += b" " * (-(8 + len(text)) % _ALIGNED)
        self._head = memoryview(len(text).to_bytes(8, "little") + text)
        self._tensors = list(tensors.values())
        self.size = 8 + len(text) + offset
        self.moved: Callable[[], None] = lambda: None  # called with each chunk
        self._digest: str | None = None
        self._hashing = threading.Lock()

    def chunks(self) -> Iterator[memoryview]:
        """The bytes, in few and large chunks: large tensors in slices, small ones gathered."""
        for chunk in self._chunks():
            self.moved()
            yield chunk

    def _chunks(self) -> Iterator[memoryview]:
        small, size = list[memoryview](), 0
        for piece in (self._head, *(tensor.data for tensor in self._tensors)):
            large = piece.nbytes >= _SMALL
            if not large:
                small.append(piece)
                size += piece.nbytes
            if small and (large or size >= _GATHERED):
                yield memoryview(b"".join(small))
                small, size = [], 0
            if large:
                yield from (piece[start : start + SLICE] for start in range(0, piece.nbytes, SLICE))
        if small:
            yield memoryview(b"".join(small))

    def look(self) -> None:
        """See that its bytes can be had.

        Raises:
            Stale: some were let go of, and are called for.
        """
        for tensor in self._tensors:
            data: Any = tensor.data
            if isinstance(data, Withheld):
                data.recall()

    @property
    def hashed(self) -> bool:
        """Is the digest known?"""
        return self._digest is not None

    @property
    def sha256(self) -> str:
        """The digest, which is the pack's name. Several threads may ask: one computes it, the others wait."""
        with self._hashing:
            if self._digest is None:
                digest = hashlib.sha256()
                for chunk in self.chunks():
                    digest.update(chunk)
                self._digest = digest.hexdigest()
            return self._digest


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


class Extent(NamedTuple):
    """Where a tensor lies in a pack; `start` and `end` in bytes after the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def unpack(data: bytearray | memoryview) -> dict[str, HostTensor]:
    """The tensors of a safetensors file, as views of `data`, which is theirs alone from now on.

    Raises:
        UnknownKind: a tensor of a dtype that a newer version may know.
        ValueError: not such a file, or one whose header promises what is not there.
    """
    view = memoryview(data)
    length = _header_length(view[:8], len(view))
    body = view[8 + length :]
    layout = _layout(bytes(view[8 : 8 + length]), body.nbytes)
    return {
        name: HostTensor(dtype=e.dtype, shape=e.shape, data=body[e.start : e.end], fresh=True)
        for name, e in layout.items()
    }


def read_layout(reader: Any, size: int) -> dict[str, Extent]:
    """Where the tensors of a safetensors file of `size` bytes lie; only its header is read.

    Raises:
        UnknownKind, ValueError: as `unpack`.
    """
    length = _header_length(memoryview(read_up_to(reader, 8)), size)
    return _layout(read_up_to(reader, length), size - 8 - length)


def _header_length(start: memoryview, size: int) -> int:
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(_HEADER_LIMIT, size - 8):
        raise ValueError("it is not a file of tensors: its header is longer than the file")
    return length


def _layout(text: bytes, body: int) -> dict[str, Extent]:
    try:
        if costly(text):
            raise ValueError("its header has too many entries")
        header = json.loads(text, object_pairs_hook=_once)
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
        header.pop("__metadata__", None)
        layout = {name: _extent(entry) for name, entry in header.items()}
        _check_gapless(layout, body)
    except UnknownKind:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not a file of tensors: {error}") from error
    return layout


def _check_gapless(layout: Mapping[str, Extent], body: int) -> None:
    at = 0
    for start, end in sorted((extent.start, extent.end) for extent in layout.values()):
        if start != at:
            raise ValueError("its tensors overlap or leave gaps")
        at = end
    if at != body:
        raise ValueError("its tensors are not what lies behind its header")


def _extent(entry: object) -> Extent:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("an entry of its header is not that of a tensor")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (isinstance(dtype, str) and isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2):
        raise ValueError("an entry of its header has a wrong type")
    if len(shape) > _MOST_DIMENSIONS or not all(type(n) is int and 0 <= n < 2**62 for n in (*shape, *offsets)):
        raise ValueError("a shape or offset is not a size")
    if prod(n or 1 for n in shape) >= _MOST_ELEMENTS:
        raise ValueError("a shape has more elements than can be counted")
    start, end = offsets
    if _DTYPE.fullmatch(dtype) and dtype not in DTYPE_BITS:
        raise UnknownKind(f"it is not a file of tensors that this version reads: the dtype {dtype} is unknown")
    if dtype not in DTYPE_BITS or end - start != prod(shape) * DTYPE_BITS[dtype] // 8:
        raise ValueError("a tensor's dtype, shape and place do not fit together")
    return Extent(dtype, tuple(shape), start, end)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in its header")
    return found


@contextmanager
def hashing_ahead(packs: Sequence[Pack]) -> Iterator[Sequence[Pack]]:
    """The same packs in the order in which to write them, those after the first being hashed meanwhile.

    A name is a digest, so nothing can be written before it is hashed: the smallest comes first. Whoever asks for a
    digest that is not being computed yet computes it; so nothing is lost where no thread is to be had.
    """
    order = sorted(packs, key=lambda pack: (not pack.hashed, pack.size))
    unknown = [pack for pack in order if not pack.hashed][1:]
    over = threading.Event()
    thread = threading.Thread(target=_hash, args=(unknown, over), name="colabkeep-hasher", daemon=True)
    started = False
    if unknown:
        with suppress(RuntimeError):  # no more threads, or the interpreter is about to end
            thread.start()
            started = True
    try:
        yield order
    finally:
        over.set()
        if started:
            thread.join()  # it reads memory that is reused after this


def _hash(packs: Sequence[Pack], over: threading.Event) -> None:
    give_way(FAR)
    for pack in packs:
        if over.is_set():
            return
        _ = pack.sha256  # the pack keeps it

"""State to bytes and back, exactly: trees become typed JSON and packs of tensors. A pack is one safetensors file,
hashed and written from where its tensors lie, and read without trust in bounded pieces.
"""

from __future__ import annotations

import base64
import hashlib
import json
import mmap
import re
import struct
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import chain
from math import prod
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, NamedTuple, TypeAlias, cast

from colabkeep.core.errors import NotStorable
from colabkeep.core.layout import costly
from colabkeep.core.state import HostTensor, Stale, Tagged, Tree, Withheld
from colabkeep.core.system import FAR, Breather, give_way

CHUNK = 2**20
"""Bytes handled at a time: hashing and writing let other threads run for as long as a chunk takes."""


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
        self._digest: str | None = None
        self._hashing = threading.Lock()

    def chunks(self) -> Iterator[memoryview]:
        """The bytes, in few and large chunks: large tensors in slices, small ones gathered."""
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


class Moving:
    """A pack as a source, which calls `moved` with each chunk that is taken."""

    def __init__(self, pack: Pack, moved: Callable[[], None]) -> None:
        self._pack = pack
        self._moved = moved
        self.size = pack.size

    @property
    def sha256(self) -> str:
        """As the pack's."""
        return self._pack.sha256

    def chunks(self) -> Iterator[memoryview]:
        """As the pack's."""
        for chunk in self._pack.chunks():
            self._moved()
            yield chunk


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
        with suppress(Stale):  # whoever writes it meets that too
            _ = pack.sha256  # the pack keeps it


# A JSON object with one member whose name starts with "$" is a typed node; every other object is a dict with string
# keys. Decoding builds plain values only: it imports nothing and calls nothing that the text could choose.


Put: TypeAlias = Callable[[HostTensor, str], Any]
"""Takes a tensor and its path; returns the node that stands for it."""

_FACTORIES: dict[str, Callable[[], Any] | None] = {
    "": None, "int": int, "float": float, "list": list, "dict": dict, "set": set, "str": str, "bool": bool,
}  # fmt: skip
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # two neighbours would come back from JSON as one character
_JSON_INTS = 2**63  # larger ones go as hexadecimal: other readers, and Python's own digit limit, stop at some point


def encode(value: Tree, path: str, put: Put) -> Any:
    """The JSON form of `value`.

    Raises:
        NotStorable: a value of a type that is not listed in `colabkeep.core.state.Tree`.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if _is_plain(value) else {"$text": value.encode("utf-8", "surrogatepass").hex()}
    if kind is int:
        return value if -_JSON_INTS <= value < _JSON_INTS else {"$int": hex(value)}
    if kind is float:
        return value if value - value == 0 else {"$float": struct.pack(">d", value).hex()}
    if kind is HostTensor:
        return put(value, path)
    if kind is list:
        return [encode(member, f"{path}[{i}]", put) for i, member in enumerate(value)]
    if kind is dict and all(type(key) is str and key[:1] != "$" and _is_plain(key) for key in value):
        return {key: encode(member, f"{path}.{key}", put) for key, member in value.items()}
    writer = _WRITERS.get(kind)
    if writer is None:
        raise NotStorable(
            problem=f"{path} is a {kind.__module__}.{kind.__qualname__}; it cannot be stored without pickle.",
            remedy="Keep it out of the state, or give its class state_dict() and load_state_dict() of plain values.",
            path=path,
        )
    return writer(value, path, put)


def tensor_node(reference: list[Any]) -> Any:
    """What stands for a tensor; `decode` hands the reference to whoever has the tensors."""
    return {"$tensor": reference}


def decode(node: Any, get: Callable[[Any], HostTensor]) -> Tree:
    """The value of a JSON form. `get` turns a tensor's reference into the tensor.

    Raises:
        UnknownKind: a kind of value that a newer version may know.
        ValueError, TypeError, KeyError: the node is not one that `encode` makes.
    """
    if isinstance(node, list):
        return [decode(member, get) for member in node]
    if not isinstance(node, dict):
        if type(node) is int and not -_JSON_INTS <= node < _JSON_INTS:
            raise ValueError("a number is out of range")
        return node
    if len(node) == 1:
        (name,) = node
        if name[:1] == "$":
            if name not in _READERS:
                raise UnknownKind(f"a value of the state is of the unknown kind {name:.40}")
            return _READERS[name](node[name], get)
    if any(name[:1] == "$" for name in node):
        raise ValueError("a typed node has more than one member")
    return {name: decode(member, get) for name, member in node.items()}


def _pairs(value: Any, path: str, put: Put) -> list[Any]:
    return [
        [encode(key, f"{path}.<key {i}>", put), encode(member, f"{path}[{key!r:.80}]", put)]
        for i, (key, member) in enumerate(value.items())
    ]


def _is_plain(text: str) -> bool:
    return text.isascii() or _SURROGATE.search(text) is None


def _members(value: Any, path: str, put: Put) -> list[Any]:
    return [encode(member, f"{path}[{i}]", put) for i, member in enumerate(value)]


def _write_defaultdict(value: Any, path: str, put: Put) -> Any:
    for name, factory in _FACTORIES.items():
        if factory is value.default_factory:
            return {"$defaultdict": [name, _pairs(value, path, put)]}
    raise NotStorable(
        problem=f"{path} is a defaultdict that makes its values with {value.default_factory!r}.",
        remedy="Use a plain dict, or int, float, str, bool, list, dict or set as the factory.",
        path=path,
    )


def _write_datetime(value: datetime, path: str, _: object) -> Any:
    text = value.isoformat()
    if repr(datetime.fromisoformat(text)) != repr(value):
        raise NotStorable(
            problem=f"{path} is a datetime with a time zone by name ({value!r:.120}), which cannot be stored exactly.",
            remedy="Store it in UTC: value.astimezone(datetime.timezone.utc).",
            path=path,
        )
    return {"$datetime": text}


_WRITERS: dict[type, Callable[[Any, str, Put], Any]] = {
    Tagged: lambda v, p, put: {"$tag": [v.kind, encode(v.value, p, put)]},
    tuple: lambda v, p, put: {"$tuple": _members(v, p, put)},
    dict: lambda v, p, put: {"$dict": _pairs(v, p, put)},
    OrderedDict: lambda v, p, put: {"$ordered": _pairs(v, p, put)},
    Counter: lambda v, p, put: {"$counter": _pairs(v, p, put)},
    defaultdict: _write_defaultdict,
    # The order of a set is not part of its value; sorting makes equal states equal bytes.
    set: lambda v, p, put: {"$set": sorted(_members(v, p, put), key=repr)},
    frozenset: lambda v, p, put: {"$frozenset": sorted(_members(v, p, put), key=repr)},
    deque: lambda v, p, put: {"$deque": [v.maxlen, _members(v, p, put)]},
    complex: lambda v, p, put: {"$complex": struct.pack(">dd", v.real, v.imag).hex()},
    bytes: lambda v, p, put: {"$bytes": base64.b64encode(v).decode()},
    bytearray: lambda v, p, put: {"$bytearray": base64.b64encode(v).decode()},
    range: lambda v, p, put: {"$range": [v.start, v.stop, v.step]},
    slice: lambda v, p, put: {"$slice": _members((v.start, v.stop, v.step), p, put)},
    PosixPath: lambda v, p, put: {"$path": str(v)},
    WindowsPath: lambda v, p, put: {"$path": str(v)},
    PurePosixPath: lambda v, p, put: {"$posixpath": str(v)},
    PureWindowsPath: lambda v, p, put: {"$windowspath": str(v)},
    datetime: _write_datetime,
    date: lambda v, p, put: {"$date": v.isoformat()},
    timedelta: lambda v, p, put: {"$timedelta": [v.days, v.seconds, v.microseconds]},
}


def _mapping(pairs: Any, get: Callable[[Any], HostTensor]) -> dict[Any, Tree]:
    return {decode(key, get): decode(member, get) for key, member in pairs}


_READERS: dict[str, Callable[[Any, Callable[[Any], HostTensor]], Any]] = {
    "$int": lambda n, get: int(n, 16),
    "$text": lambda n, get: bytes.fromhex(n).decode("utf-8", "surrogatepass"),
    "$float": lambda n, get: struct.unpack(">d", bytes.fromhex(n))[0],
    "$tensor": lambda n, get: get(n),
    "$referred": lambda n, get: get(_Referred(n)),
    "$tag": lambda n, get: Tagged(_text(n[0]), decode(n[1], get)),
    "$tuple": lambda n, get: tuple(decode(n, get)),
    "$dict": _mapping,
    "$ordered": lambda n, get: OrderedDict(_mapping(n, get)),
    "$counter": lambda n, get: Counter(_mapping(n, get)),
    "$defaultdict": lambda n, get: defaultdict(_FACTORIES[n[0]], _mapping(n[1], get)),
    "$set": lambda n, get: set(decode(n, get)),
    "$frozenset": lambda n, get: frozenset(decode(n, get)),
    "$deque": lambda n, get: deque(decode(n[1], get), n[0]),
    "$complex": lambda n, get: complex(*struct.unpack(">dd", bytes.fromhex(n))),
    "$bytes": lambda n, get: base64.b64decode(n, validate=True),
    "$bytearray": lambda n, get: bytearray(base64.b64decode(n, validate=True)),
    "$path": lambda n, get: Path(_text(n)),
    "$posixpath": lambda n, get: PurePosixPath(_text(n)),
    "$windowspath": lambda n, get: PureWindowsPath(_text(n)),
    "$range": lambda n, get: range(*n),
    "$slice": lambda n, get: slice(*decode(n, get)),
    "$datetime": lambda n, get: datetime.fromisoformat(n),
    "$date": lambda n, get: date.fromisoformat(n),
    "$timedelta": lambda n, get: timedelta(*n),
}


class _Referred(tuple[Any, ...]):
    """What names a tensor that no pack holds: its key, dtype, shape and checksum."""

    __slots__ = ()

    @property
    def tensor(self) -> HostTensor:
        """The tensor, without bytes."""
        key, dtype, shape, checksum = self
        if _text(dtype) not in DTYPE_BITS:
            raise UnknownKind(f"a weight that it names is of the unknown dtype {dtype:.40}")
        if not (type(shape) is list and all(type(size) is int and size >= 0 for size in shape)):
            raise ValueError("a shape is not one")
        if not _CHECKSUM.fullmatch(_text(checksum)) or not _text(key):
            raise ValueError("a checksum is not one")
        size = prod(shape) * DTYPE_BITS[dtype] // 8
        return HostTensor(
            dtype=dtype, shape=tuple(shape), data=cast("memoryview", Withheld(size)), frozen=True, referred=checksum
        )


_CHECKSUM = re.compile(r"[0-9a-f]{64}")


def _text(node: Any) -> str:
    if not isinstance(node, str):
        raise TypeError("a name is not text")
    return node


# A tensor is as it was when it is the very `HostTensor` object of the snapshot before, and said that it is `lasting`.
# All tensors of a part begin as one group, what is frozen apart. Where only some of a group have changed, it is
# divided, and stays so. What has changed is packed anew, for it is written in any case; what has not stays in the packs
# that it was in.


PACK_BYTES = 256 * 2**20
"""A pack is closed when it has this many bytes: few files for Drive and Kaggle, none too large to send again."""

SMALL_BYTES = 4 * 2**20
"""Groups below this share one pack, so that a small model is one file; nor is a group divided to spare fewer."""

_MOST = 8  # groups of one home that stayed, and as many that changed: more are joined, so that the files stay few

Home: TypeAlias = tuple[str, bool]
"""The part that tensors belong to, and whether they are frozen there."""

Members: TypeAlias = dict[str, HostTensor]
_Groups: TypeAlias = dict[Home, list[Members]]


class Grouping:
    """Remembers the last snapshot that it was shown, and which tensors have always changed together.

    What it remembers keeps the memory of those tensors alive until the next snapshot, by when it is reused. It is kept
    in few containers: each that is made anew for each tensor brings the garbage collector's great round nearer, which
    stops training for 0.2 s.
    """

    def __init__(self) -> None:
        self.pack_of: Mapping[str, int] = {}
        """Key → number of its pack; the very same mapping as long as it is the same."""
        self._before: Mapping[Home, Members] = {}
        self._groups: Mapping[str, int] = {}
        self._packs: dict[tuple[str, ...], tuple[Sequence[HostTensor], Pack]] = {}

    def packs(self, snapshot: Mapping[Home, Members]) -> list[Pack]:
        """The packs of a snapshot; no key is in two homes.

        One whose tensors are all as they were is the same `Pack` object as before, its digest known.
        """
        stayed, changed = self._divided(snapshot)
        bins = [one for some in stayed.values() for one in some]
        small: Members = {}
        for (_, frozen), some in changed.items():
            for one in some:
                if frozen or _size(one) >= SMALL_BYTES:
                    bins += _split(one)
                else:
                    small |= one
        packs = {tuple(one): self._pack(one) for one in [*bins, *_split(small)]}
        pack_of = {key: number for number, keys in enumerate(packs) for key in keys}
        every = chain.from_iterable((*stayed.values(), *changed.values()))
        groups = {key: group for group, one in enumerate(every) for key in one}
        # All at once: what was planned by halves, as where memory is short, must not be remembered.
        self._packs, self._groups, self._before = packs, groups, snapshot
        if pack_of != self.pack_of:
            self.pack_of = pack_of
        return [pack for _, pack in self._packs.values()]

    def _divided(self, snapshot: Mapping[Home, Members]) -> tuple[_Groups, _Groups]:
        """By home: what stayed as it was, in the packs that it was in; and what has changed, group by group."""
        stayed: _Groups = defaultdict(list)
        changed: _Groups = defaultdict(list)
        for home, members in snapshot.items():
            before = self._before.get(home, {})
            found: dict[int, tuple[Members, Members]] = defaultdict(lambda: ({}, {}))
            for key, tensor in members.items():
                was = before.get(key)
                group = -1 if was is None else self._groups[key]
                found[group][0 if was is not None and _as_it_was(was, tensor) else 1][key] = tensor
            for still, moved in found.values():
                if _size(still) < SMALL_BYTES and (moved or not home[1]):
                    together = still.keys() | moved.keys()
                    changed[home].append({key: members[key] for key in members if key in together})
                    continue
                stayed[home] += self._as_packed(still)
                if moved:
                    changed[home].append(moved)
        return _few(stayed), _few(changed)

    def _as_packed(self, still: Members) -> list[Members]:
        bins: dict[int, Members] = defaultdict(dict)
        for key, tensor in still.items():
            bins[self.pack_of[key]][key] = tensor
        return list(bins.values())

    def _pack(self, members: Members) -> tuple[Sequence[HostTensor], Pack]:
        tensors = list(members.values())
        before = self._packs.get(tuple(members))
        if before is not None and all(map(_as_it_was, before[0], tensors)):
            return before
        return tensors, Pack(members)


def _as_it_was(before: HostTensor, now: HostTensor) -> bool:
    return now is before and now.lasting


def _few(groups: _Groups) -> _Groups:
    """The same with small ones joined: whoever freezes a hundred layers one by one gets no hundred files.

    The smaller half at once, so that a tensor is joined, and written again for it, no more than a few times in all.
    """
    for some in groups.values():
        while len(some) > 1:
            sizes = sorted(map(_size, some))
            number = len(some) // 2 + 1 if len(some) > _MOST else 2 if sizes[1] < SMALL_BYTES else 0
            if not number or sum(sizes[:number]) > PACK_BYTES:
                break
            joined = dict(chain.from_iterable(one.items() for one in sorted(some, key=_size)[:number]))
            some[:] = [*(one for one in some if one.keys().isdisjoint(joined)), joined]
    return groups


def _split(members: Members) -> list[Members]:
    bins: list[Members] = []
    room = -1
    for key, tensor in members.items():
        if not bins or tensor.data.nbytes > room:
            bins.append({})
            room = PACK_BYTES
        bins[-1][key] = tensor
        room -= tensor.data.nbytes
    return bins


def _size(members: Members) -> int:
    return sum(tensor.data.nbytes for tensor in members.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The JSON form of each part, whose tensors are [number of the pack, key in it]."""

    parts: Mapping[str, Any]
    packs: Sequence[Pack]


class _Walk:
    """One walk through the parts of a snapshot: their JSON, and the tensors met, by home.

    `node` gives what stands for a tensor, by its key; the same object in one checkpoint after another, so that many
    that are kept take little memory. `referred` keeps what stands for those that are named by their checksums alone.
    """

    def __init__(self, node: Callable[[str], Any], referred: dict[str, Any]) -> None:
        self.tensors: dict[Home, Members] = {}
        self._node = node
        self._referred = referred
        self._part = ""
        self._keys: dict[int, str] = {}  # by the tensor's id
        self._taken = {"__metadata__"}  # means something else to readers of safetensors
        self._breather = Breather()

    def trees(self, parts: Mapping[str, Tree]) -> dict[str, Any]:
        """The JSON of each part.

        Raises:
            NotStorable: a value cannot be kept.
        """
        found = {}
        for name, tree in parts.items():
            self._part = name
            found[name] = encode(tree, name, self._put)
        return found

    def _put(self, tensor: HostTensor, path: str) -> Any:
        self._breather.breathe()
        key = self._keys.get(id(tensor))
        if key is None:
            key, n = path, 2
            while key in self._taken:  # {"a.b": …} and {"a": {"b": …}} have one path
                key, n = f"{path}#{n}", n + 1
            self._taken.add(key)
            self._keys[id(tensor)] = key
            if not tensor.referred:
                self.tensors.setdefault((self._part, tensor.frozen), {})[key] = tensor
        if tensor.referred:
            told = [key, tensor.dtype, list(tensor.shape), tensor.referred]
            if self._referred.get(key, {}).get("$referred") != told:
                self._referred[key] = {"$referred": told}
            return self._referred[key]
        return self._node(key)


class Encoder:
    """Encodes one snapshot after another. Packs in which nothing has changed since the one before are the same
    objects."""

    def __init__(self) -> None:
        self._grouping = Grouping()
        self._foretold = self._grouping.pack_of
        self._nodes: Mapping[str, Any] = {}
        self._referred: dict[str, Any] = {}

    def encode(self, parts: Mapping[str, Tree]) -> Encoded:
        """Plan the packs and the JSON of a snapshot; nothing is copied, hashed or written yet.

        Raises:
            NotStorable: a value cannot be kept; the error names its path.
        """
        walk = _Walk(self._nodes.get, self._referred)
        trees = walk.trees(parts)
        packs = self._grouping.packs(walk.tensors)
        pack_of = self._grouping.pack_of
        if pack_of is not self._foretold:
            # Which pack a tensor is in depends on how large its group becomes: only now is it known that it changed.
            self._nodes = {key: tensor_node([number, key]) for key, number in pack_of.items()}
            self._foretold = pack_of  # last: if that failed, the next snapshot makes them
            trees = _Walk(self._nodes.__getitem__, self._referred).trees(parts)
        return Encoded(parts=trees, packs=packs)


def encode_parts(parts: Mapping[str, Tree]) -> Encoded:
    """One snapshot alone.

    Raises:
        NotStorable: as `Encoder.encode`.
    """
    return Encoder().encode(parts)


def decode_part(node: Any, packs: Sequence[Mapping[str, HostTensor]]) -> Tree:
    """The tree of one part, its tensors taken from the unpacked `packs`. Equal references, one object.

    Raises:
        UnknownKind: a value of a kind that a newer version may know.
        ValueError: the node is not one that `encode_parts` makes.
    """

    named: dict[str, HostTensor] = {}

    def get(reference: Any) -> HostTensor:
        if isinstance(reference, _Referred):
            return named.setdefault(reference[0], reference.tensor)
        number, key = reference
        if number < 0:
            raise IndexError(number)
        tensor: HostTensor = packs[number][key]
        return tensor

    try:
        return decode(node, get)
    except UnknownKind:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(f"a value of the state is not one that colabkeep writes ({error!r:.200})") from error


def references(node: Any) -> Iterator[tuple[int, str]]:
    """The tensors that the JSON form of a part (or of all) names: number of the pack and key, as often as named."""
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo.extend(node)
        elif isinstance(node, dict):
            match node.get("$tensor"):
                case [int(number), str(key)]:
                    yield number, key
            todo.extend(node.values())

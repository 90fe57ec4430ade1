"""A pack: tensors in one safetensors file, written without copying and read without trust.

The layout is that of safetensors: eight bytes with the length of a JSON header (little endian),
the header (name → dtype, shape, offsets), then the bytes of all tensors, gapless.
Source: https://github.com/huggingface/safetensors, section "Format".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod

from colabkeep.vocabulary.state import HostTensor

__all__ = ["CHUNK", "DTYPE_BITS", "Pack", "unpack"]

CHUNK = 2**20
"""Bytes handled at a time: hashing and writing let other threads run for as long as a chunk takes."""

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""The dtypes of a pack, with the bits of one element."""

_HEADER_LIMIT = 100 * 10**6  # bytes; the reference implementation refuses longer ones too


class Pack:
    """A source of the bytes of one safetensors file over tensors that stay where they are."""

    def __init__(self, tensors: Mapping[str, HostTensor]) -> None:
        header: dict[str, object] = {}
        offset = 0
        for name, tensor in tensors.items():
            end = offset + tensor.data.nbytes
            header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # keeps the tensors aligned to eight bytes
        self._pieces = [memoryview(len(text).to_bytes(8, "little") + text)]
        self._pieces += [tensor.data for tensor in tensors.values()]
        self.size = 8 + len(text) + offset

    def chunks(self) -> Iterator[memoryview]:
        """The bytes, at most `CHUNK` at a time."""
        for piece in self._pieces:
            for start in range(0, piece.nbytes, CHUNK):
                yield piece[start : start + CHUNK]

    @cached_property
    def sha256(self) -> str:
        """The digest, which is the pack's name."""
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.hexdigest()


def unpack(data: bytearray) -> dict[str, HostTensor]:
    """The tensors of a safetensors file, as views of `data`.

    Raises:
        ValueError: not such a file, or one whose header promises what is not there.
    """
    view = memoryview(data)
    length = int.from_bytes(view[:8], "little")
    if len(view) < 8 or length > min(_HEADER_LIMIT, len(view) - 8):
        raise ValueError("its header is longer than the file")
    try:
        header = json.loads(bytes(view[8 : 8 + length]), object_pairs_hook=_once)
    except RecursionError as error:
        raise ValueError("its header is nested too deeply") from error
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    header.pop("__metadata__", None)
    body = view[8 + length :]
    tensors = {name: _tensor(entry, body) for name, entry in header.items()}
    if sum(tensor.data.nbytes for tensor in tensors.values()) != body.nbytes:
        raise ValueError("its tensors overlap or leave gaps")
    return tensors


def _tensor(entry: object, body: memoryview) -> HostTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("an entry of its header is not that of a tensor")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2):
        raise ValueError("an entry of its header has a wrong type")
    if not all(type(n) is int and 0 <= n < 2**62 for n in (*shape, *offsets)):
        raise ValueError("a shape or offset is not a size")
    start, end = offsets
    if dtype not in DTYPE_BITS or end - start != prod(shape) * DTYPE_BITS[dtype] // 8 or end > body.nbytes:
        raise ValueError("a tensor's dtype, shape and place do not fit together")
    return HostTensor(dtype=dtype, shape=tuple(shape), data=body[start:end])


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in its header")
    return found

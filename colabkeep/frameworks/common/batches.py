"""Arrays inside batches and loader states: how many samples, a cheap check, a storable form."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from colabkeep.frameworks.common.contents import Sight
from colabkeep.frameworks.common.trees import encode, not_storable, rebuild
from colabkeep.vocabulary.state import HostTensor, Tagged, Tree

__all__ = ["NUMPY", "Arrays", "crc", "leading", "own_state", "put_own_state"]

_LOOKED_AT = 4  # arrays of a batch that the check covers
_ELEMENTS = 64  # leading elements of each
_DEEPEST = 8


@dataclass(frozen=True)
class Arrays:
    """How a framework's arrays are read and rebuilt.

    `head(array, n)` gives bytes of its first n elements, None where that would cost (a device must be
    waited for). `pack` gives a storable tree for an array, None for what is none; `unpack` undoes it. `see` looks at
    one, wherever it is; None for what is none.
    """

    head: Callable[[Any, int], bytes | None]
    pack: Callable[[Any], Tagged | None]
    unpack: Callable[[HostTensor | Tagged], Any]
    see: Callable[[Any], Sight | None]


def arrays_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """What has a shape with a leading dimension, in nested tuples, lists and mappings, in order."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, (tuple, list)):  # a list: a tensor of Paddle before 3.3
        if shape:
            yield value
    elif depth < _DEEPEST and isinstance(value, (tuple, list, Mapping)):
        for member in value.values() if isinstance(value, Mapping) else value:
            yield from arrays_in(member, depth + 1)


def leading(value: Any) -> int | None:
    """Samples in a batch: the leading dimension of its first array, None if it holds none."""
    # Nearly every batch is a tuple that begins with an array: no need to search.
    shape = getattr(value[0], "shape", None) if type(value) in (tuple, list) and value else None
    if isinstance(shape, (tuple, list)) and shape:
        return int(shape[0])
    array = next(arrays_in(value), None)
    return None if array is None else int(array.shape[0])


def crc(value: Any, start: int, arrays: Arrays) -> int:
    """A running check over the batches: a few elements of a few arrays of each."""
    for _, array in zip(range(_LOOKED_AT), arrays_in(value), strict=False):
        start = zlib.crc32(repr(tuple(array.shape)).encode(), start)
        head = arrays.head(array, _ELEMENTS)
        if head is not None:
            start = zlib.crc32(head, start)
    return start


def own_state(value: Any, arrays: Arrays) -> Tree:
    """An object's own state as a storable tree.

    Raises:
        NotStorable: it holds something that has no plain form; the error names its path.
    """

    def leaf(value: Any, path: str) -> Tree:
        packed = arrays.pack(value)
        if packed is None:
            raise not_storable(value, path)
        return packed

    return encode(value, "loader", leaf)


def put_own_state(tree: Tree, arrays: Arrays) -> Any:
    """The state that `own_state` was made of."""

    return rebuild(tree, lambda node, _: arrays.unpack(node))


def _head(array: Any, count: int) -> bytes | None:
    flat = getattr(array, "flat", None)
    return None if flat is None else bytes(flat[:count].tobytes())


def _pack(value: Any) -> Tagged | None:
    if type(value).__module__ != "numpy" or not hasattr(value, "tobytes") or value.dtype.hasobject:
        return None
    kind = "numpy.ndarray" if hasattr(value, "flat") and type(value).__name__ == "ndarray" else "numpy.scalar"
    return Tagged(kind, (value.dtype.str, tuple(value.shape), value.tobytes()))


def _see(value: Any) -> Sight | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    dtype, shape, size = value.dtype, tuple(value.shape), int(value.nbytes)
    if dtype.hasobject or not size:
        return Sight(dtype.name, shape, size, None)
    flat = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
    return Sight(dtype.name, shape, size, lambda start, stop: bytes(flat[start:stop].tobytes()))


def _unpack(node: HostTensor | Tagged) -> Any:
    import numpy as np

    if isinstance(node, HostTensor):  # `own_state` makes none
        raise TypeError("a loader's own state holds no HostTensor")

    dtype, shape, data = node.value
    array = np.frombuffer(data, dtype=dtype).reshape(shape).copy()
    return array if node.kind == "numpy.ndarray" else array[()]


NUMPY = Arrays(_head, _pack, _unpack, _see)
"""NumPy's arrays and scalars."""

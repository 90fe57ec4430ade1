"""Leaves that are not any framework's: NumPy arrays, scalars, dtypes, and private random generators.

NumPy is recognised, never imported on the way out: a value cannot be an array if nobody imported it.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

from colabkeep.frameworks.common.randomness import pack_python, unpack_python
from colabkeep.frameworks.common.shelf import Shelf
from colabkeep.frameworks.common.trees import Rebuild, encode, not_storable, rebuild
from colabkeep.vocabulary.errors import CheckpointUnsupported, UsageError
from colabkeep.vocabulary.state import HostTensor, Tagged, Tree

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ArrayLeaves", "array_leaf", "describe_array", "native_leaf"]

_NAMES = {
    "|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<u2": "U16", "<i2": "I16", "<f2": "F16", "<u4": "U32", "<i4": "I32",
    "<f4": "F32", "<u8": "U64", "<i8": "I64", "<f8": "F64", "<c8": "C64",
}  # fmt: skip
_DTYPES = {name: code for code, name in _NAMES.items()}
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


class ArrayLeaves:
    """Turns arrays and generators into leaves, copying arrays into memory that is kept and reused.

    `plain` stores an ordinary row-major array as a bare `HostTensor`: for an adapter whose own
    tensors are arrays. Otherwise arrays are tagged, so that they come back as arrays.
    """

    def __init__(self, *, plain: bool = False) -> None:
        self._plain = plain
        self._shelf: Shelf[tuple[np.ndarray[Any, Any], Tree]] = Shelf()
        self._met: dict[int, tuple[object, Tree]] = {}  # holds the arrays, so that no id is given twice

    def turn(self) -> None:
        """A capture begins."""
        self._shelf.turn()
        self._met = {}

    def sweep(self) -> None:
        """A capture is complete."""
        self._shelf.sweep()
        self._met = {}

    def __call__(self, value: Any, path: str) -> Tree:
        """The leaf for `value`, of any type.

        Raises:
            NotStorable: it is none of those this page knows.
        """
        if type(value) is random.Random:
            return Tagged("python.random", pack_python(value.getstate()))
        np = sys.modules.get("numpy")
        if np is not None:
            if type(value) is np.ndarray:
                return self._array(value, path)
            if isinstance(value, np.generic):
                return _scalar(value, path)
            if isinstance(value, np.dtype):
                return Tagged("numpy.dtype", _dtype_code(value, path))
            if "numpy.random" in sys.modules and type(value) in (np.random.Generator, np.random.RandomState):
                return self._generator(value, path)
        raise not_storable(value, path)

    def _array(self, array: np.ndarray[Any, Any], path: str) -> Tree:
        import numpy as np

        if id(array) in self._met:
            return self._met[id(array)][1]
        columns = array.flags.f_contiguous and not array.flags.c_contiguous
        kept = self._shelf.take(path)
        if kept is None or (kept[0].shape, kept[0].dtype) != (array.shape, array.dtype) or columns is _is_rows(kept[0]):
            memory = np.empty_like(array, order="F" if columns else "C")
        else:
            memory = kept[0]
        np.copyto(memory, array)
        kept = memory, self._leaf(memory, path)  # another object each time: nobody knows whether the bytes have changed
        self._met[id(array)] = array, kept[1]
        return self._shelf.keep(path, kept)[1]

    def _leaf(self, memory: np.ndarray[Any, Any], path: str) -> Tree:
        code = _dtype_code(memory.dtype, path)
        rows = memory if _is_rows(memory) else memory.T
        name = _NAMES.get(code) if isinstance(code, str) else None
        shape = rows.shape if name else (*rows.shape, memory.dtype.itemsize)
        data = memoryview(rows.reshape(-1).view("u1").data) if memory.nbytes else memoryview(b"")
        host = HostTensor(dtype=name or "U8", shape=shape, data=data)
        if self._plain and name and rows is memory:
            return host
        return Tagged("numpy.ndarray", {"dtype": code, "order": "C" if rows is memory else "F", "data": host})

    def _generator(self, value: Any, path: str) -> Tree:
        legacy = not hasattr(value, "bit_generator")
        bits = value._bit_generator if legacy else value.bit_generator
        if type(bits).__name__ not in _BIT_GENERATORS or type(bits).__module__.partition(".")[0] != "numpy":
            raise not_storable(value, path, f"Use a generator made of one of {', '.join(_BIT_GENERATORS)}.")
        state = {
            "state": value.get_state(legacy=False) if legacy else bits.state,
            "sequence": None if legacy else _sequence_state(bits),
        }
        return Tagged("numpy.randomstate" if legacy else "numpy.generator", encode(state, path, self))


def array_leaf(node: HostTensor | Tagged, _: Rebuild) -> Any:
    """What a node becomes where tensors are arrays; always in fresh memory.

    Raises:
        UsageError: NumPy has no type for it (bfloat16 and the eight-bit floats).
    """
    if isinstance(node, Tagged):
        return native_leaf(node)
    import numpy as np

    if node.dtype not in _DTYPES:
        raise UsageError(
            problem=f"A tensor has dtype {node.dtype}, which NumPy does not have.",
            remedy="Import the framework that made it (import torch) before loading.",
        )
    return np.frombuffer(node.data, dtype=_DTYPES[node.dtype]).reshape(node.shape).copy()


def native_leaf(node: Tagged) -> Any:
    """The object of a tagged leaf made on this page.

    Raises:
        CheckpointUnsupported: the kind is another framework's, or a newer version's.
    """
    if node.kind == "python.random":
        generator = random.Random()  # noqa: S311  # the user's own kind of generator
        generator.setstate(unpack_python(node.value))
        return generator
    if node.kind == "numpy.ndarray":
        return _native_array(node.value)
    if node.kind == "numpy.scalar":
        import numpy as np

        code, data = node.value
        return np.frombuffer(data, dtype=code)[0]
    if node.kind == "numpy.dtype":
        return _native_dtype(node.value)
    if node.kind in ("numpy.generator", "numpy.randomstate"):
        return _native_generator(node)
    raise CheckpointUnsupported(
        problem=f"The checkpoint holds a {node.kind!r}, which cannot be built here.",
        remedy="Import the framework the checkpoint was made with before loading, or install the newest colabkeep.",
    )


def describe_array(value: Any) -> str | None:
    """Shape and dtype of a live or stored array, the same text for both; None for anything else."""
    np = sys.modules.get("numpy")
    if isinstance(value, HostTensor):
        return f"{value.shape} of {_DTYPES.get(value.dtype, value.dtype)}"
    if isinstance(value, Tagged) and value.kind == "numpy.ndarray":
        shape, code = value.value["data"].shape, value.value["dtype"]
        plain = value.value["data"].dtype == _NAMES.get(str(code))
        shape = shape if plain else shape[:-1]
        return f"{shape[::-1] if value.value['order'] == 'F' else shape} of {code}"
    if np is not None and type(value) is np.ndarray:
        return f"{value.shape} of {_dtype_code(value.dtype, '')}"
    return None


def _is_rows(array: np.ndarray[Any, Any]) -> bool:
    return bool(array.flags.c_contiguous)


def _scalar(value: np.generic, path: str) -> Tree:
    if value.dtype.hasobject or value.dtype.names:
        raise not_storable(value, path)
    return Tagged("numpy.scalar", (value.dtype.str, value.tobytes()))


def _dtype_code(dtype: np.dtype[Any], path: str) -> Tree:
    import numpy as np

    if dtype.hasobject:
        raise not_storable(dtype, path, "Python objects have no bytes to store: use a list, or a numeric dtype.")
    if np.dtype(dtype.str) == dtype:
        return dtype.str
    fields = [tuple(field) for field in dtype.descr]
    if np.dtype(fields) != dtype:
        raise not_storable(dtype, path, "Use a packed dtype: np.dtype([...]) without align=True or offsets.")
    return fields


def _native_dtype(code: Tree) -> np.dtype[Any]:
    import numpy as np

    return np.dtype(code)


def _native_array(value: Tree) -> np.ndarray[Any, Any]:
    import numpy as np

    dtype, host = _native_dtype(value["dtype"]), value["data"]
    shape = host.shape if host.dtype == _NAMES.get(dtype.str) else host.shape[:-1]
    # Copied as bytes first: the file's buffer need not be aligned to the dtype.
    rows = np.frombuffer(host.data, dtype="u1").copy().view(dtype).reshape(shape) if host.data.nbytes else None
    made = np.empty(shape, dtype) if rows is None else rows
    return made.T if value["order"] == "F" else made


def _sequence_state(bits: Any) -> Tree:
    """What `Generator.spawn` depends on, where the generator has it."""
    import numpy as np

    sequence = getattr(bits, "seed_seq", None) or getattr(bits, "_seed_seq", None)
    return dict(sequence.state) if type(sequence) is np.random.SeedSequence else None


def _native_generator(node: Tagged) -> Any:
    import numpy as np

    value = rebuild(node.value, array_leaf)
    name = value["state"]["bit_generator"]
    if name not in _BIT_GENERATORS:
        raise CheckpointUnsupported(
            problem=f"The checkpoint holds a random generator of the unknown kind {name!r}.",
            remedy="Install the newest colabkeep.",
        )
    kind = getattr(np.random, name)
    if node.kind == "numpy.randomstate":
        old = np.random.RandomState(kind(0))
        old.set_state(value["state"])
        return old
    sequence = value["sequence"]
    bits = kind(0 if sequence is None else np.random.SeedSequence(**sequence))
    bits.state = value["state"]
    return np.random.Generator(bits)

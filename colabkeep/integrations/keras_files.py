"""Files of Keras's own: a run begins from a `.keras` or a `.weights.h5` that `save`, `save_weights` or
`ModelCheckpoint` wrote. The configuration in a `.keras` may name code, so it is never read: the model is that of the
notebook, and the file gives its values."""

from __future__ import annotations

import math
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import keras
from keras.src.saving.saving_lib import H5IOStore

from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.integrations.keras_insides import inside

__all__ = ["load_file"]

_WEIGHTS = "model.weights.h5"  # in a .keras
_OPTIMIZER = "optimizer/"
Kind: TypeAlias = tuple[tuple[int, ...], str]
_UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, RuntimeError, TypeError, ValueError)
_ROOM = 64 << 20  # bytes of an H5 file beside its values: names and tables


def load_file(model: Any, file: str | os.PathLike[str]) -> list[str]:
    """Put the values of a file of Keras into `model`, as its `load_weights` does: weights, and those of the optimizer
    where the file has them. Returns what the user should know, in sentences.

    Raises:
        UsageError: there is no such file, it is damaged, or it holds more than plain arrays.
        Incompatible: its values are those of another model or optimizer. No weight was touched.
    """
    path = Path(file)
    values = [*model.variables, *getattr(model.optimizer, "variables", ())]
    # An optimizer that is not built yet has at most a few times the weights.
    stored = _read(path, _ROOM + 8 * 8 * sum(math.prod(each.shape) for each in values))
    optimizer = model.optimizer
    kept = any(name.startswith(_OPTIMIZER) for name in stored)
    if kept and optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    live = _Names(model).found
    if not kept:
        live = {name: each for name, each in live.items() if not name.startswith(_OPTIMIZER)}
    _refuse_others(path, live, stored)
    before = _rate(optimizer)
    with warnings.catch_warnings():
        # Of an optimizer that is not in the file, which is told in other words.
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        model.load_weights(str(path))
    told = [f"Begins from the weights in {path.name}. Epochs are counted from the first, and data is read anew"]
    told.append(f"{path.name} has no random streams: those of this session go on")
    if not kept:
        told.append(f"{path.name} was saved without its optimizer: it starts again")
    elif _rate(optimizer) != before:
        told.append(f"The learning rate is the one in {path.name}: {_rate(optimizer):.7g}")
    return told


class _Names(H5IOStore):  # type: ignore[misc]
    """What a model would write to a file: the name of each array → its shape and kind."""

    def __init__(self, model: Any) -> None:
        self.found: dict[str, Kind] = {}
        self._place = ""
        inside("_save_state")(model, self, None, "", set())

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: Any = None) -> _Names:  # as Keras calls it
        """What is set next belongs there."""
        self._place = f"{path}/vars/".lstrip("/")
        return self

    def __setitem__(self, key: str, value: Any) -> None:
        self.found[f"{self._place}{key}"] = (tuple(value.shape), _kind(keras.backend.standardize_dtype(value.dtype)))


def _kind(dtype: str) -> str:
    """Integers are those of the backend that wrote them: of 32 bits or of 64, with a sign or without."""
    return "int" if dtype.startswith(("int", "uint")) else dtype


def _rate(optimizer: Any) -> float | None:
    return None if optimizer is None else float(optimizer.learning_rate)


def _read(path: Path, most: int) -> dict[str, Kind]:
    """The arrays in the file, by name; none of them is read. `most`: bytes that a model's file may have."""
    if not path.is_file() or not path.name.endswith((".keras", ".weights.h5")):
        raise UsageError(
            problem=f"resume_from={str(path)!r} is not a .keras or .weights.h5 file.",
            remedy='Name one that ModelCheckpoint or model.save wrote: resume_from="model.keras".',
        )
    try:
        with ExitStack() as stack:
            content: Any = path
            if path.suffix == ".keras":
                archive = stack.enter_context(zipfile.ZipFile(path))
                size = archive.getinfo(_WEIGHTS).file_size
                if size > most:
                    raise _refused(path, f"{_WEIGHTS} would take {size:,} bytes; this model needs less than {most:,}")
                content = stack.enter_context(archive.open(_WEIGHTS))
                while content.read(1 << 20):  # to its checksum, which is looked at there
                    pass
                content.seek(0)
            return dict(_arrays(path, stack.enter_context(h5py.File(content, "r")), "", set()))
    except UsageError:
        raise
    except _UNREADABLE as error:
        raise UsageError(
            problem=f"{path} is damaged: it cannot be read ({str(error).splitlines()[0]:.200}).",
            remedy="Begin from an older file.",
        ) from error


def _arrays(path: Path, group: Any, place: str, seen: set[Any]) -> Iterator[tuple[str, Kind]]:
    """What is in a group, and in those in it. Raises UsageError at what `save_weights` never writes."""
    for name in group:
        inner = f"{place}{name}"
        if type(group.get(name, getlink=True)) is not h5py.HardLink:
            raise _refused(path, f"{inner} is a link to another place")
        each = group[name]
        where = h5py.h5o.get_info(each.id).addr
        if where in seen:
            raise _refused(path, f"{inner} is in it twice")
        seen.add(where)
        if isinstance(each, h5py.Group):
            yield from _arrays(path, each, f"{inner}/", seen)
            continue
        if not isinstance(each, h5py.Dataset):
            raise _refused(path, f"{inner} is no array of numbers")
        if each.external or each.is_virtual:
            raise _refused(path, f"the values of {inner} are in another file")
        if each.chunks is not None:  # one small array may be in a piece that fills the memory
            raise _refused(path, f"{inner} is stored in pieces or compressed")
        narrow = each.dtype.kind == "V" and each.dtype.itemsize == 2 and each.attrs.get("dtype") == "bfloat16"
        if each.shape is None or (each.dtype.kind not in "biufc" and not narrow):
            raise _refused(path, f"{inner} is no array of numbers")
        yield inner, (each.shape, "bfloat16" if narrow else _kind(str(each.dtype)))


def _refused(path: Path, why: str) -> UsageError:
    return UsageError(
        problem=f"{path} holds what Keras never writes, so it is not loaded: {why}.",
        remedy="Begin from a file that model.save or model.save_weights wrote, and that comes from where you trust.",
    )


def _refuse_others(path: Path, expected: Mapping[str, Kind], stored: Mapping[str, Kind]) -> None:
    missing, more = sorted(expected.keys() - stored.keys()), sorted(stored.keys() - expected.keys())
    other = [name for name in sorted(stored.keys() & expected.keys()) if stored[name] != expected[name]]
    if missing or more or other:
        name = (missing + more + other)[0]
        raise Incompatible(
            problem=f"{path} was saved from another model or optimizer: {len(missing)} arrays are not in it, "
            f"{len(more)} are only in it, {len(other)} have another shape or type. One is {name}.",
            remedy="Build and compile the model as it was for that file. To begin with its weights and another "
            "optimizer, save them alone: model.save_weights before compile.",
            differences=(name,),
        )

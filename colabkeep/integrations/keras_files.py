"""Files of Keras's own: a run begins from a `.keras` or a `.weights.h5` that `save`, `save_weights` or
`ModelCheckpoint` wrote, and keeps what such a file has beside the values, so that `colabkeep export --format keras` can
write one. The configuration in a `.keras` may name code, so it is never read: the model is that of the notebook, and
the file gives its values."""

from __future__ import annotations

import json
import math
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias

import h5py
import keras
from keras.src.saving.saving_lib import H5IOStore

from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.integrations.keras_insides import inside
from colabkeep.ui.keras_file import RUNS_CODE, find_foreign, packed

__all__ = ["ToldFile", "load_file"]

_WEIGHTS = "model.weights.h5"  # in a .keras
_OPTIMIZER = "optimizer/"
Kind: TypeAlias = tuple[tuple[int, ...], str]
_UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, RuntimeError, TypeError, ValueError)
_FUNCTIONS = ("activations", "losses", "metrics", "initializers", "regularizers", "constraints")
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
    told.append(f"{path.name} has no random streams: those of this session continue")
    if not kept:
        told.append(f"{path.name} was saved without its optimizer: it starts again")
    elif _rate(optimizer) != before:
        told.append(f"The learning rate is the one in {path.name}: {_rate(optimizer):.7g}")
    return told


class ToldFile:
    """What a file of this model has beside its values: for an export.

    `names`: the name in the run of each variable of the model, by the variable's `id`. `optimizers`: in the order of
    the run.
    """

    def __init__(self, model: Any, names: Mapping[int, str], optimizers: Sequence[Any]) -> None:
        self._model, self._names, self._optimizers = model, names, optimizers
        self._description = _describe(model)
        self._built: list[int] = []
        self._told = ""

    def told(self) -> str:
        """Packed: the version of Keras; the model's description as JSON, or what it `lacks`; what of `compile` is the
        user's own; for each array of the file its place there, and where its values are in the run: the number of an
        optimizer and one in it, or None and a name of the model; whether they are bfloat16. Instead of the arrays, one
        that the run does not have: a layer would compute it. And the groups, of which some are empty."""
        built = [len(each.variables) for each in self._optimizers]
        if not self._told or built != self._built:  # an optimizer is built at its first step
            places = self._find_places()
            told = {"keras": keras.__version__, **self._description, **places}
            self._built, self._told = built, packed(told)
        return self._told

    def _find_places(self) -> dict[str, Any]:
        held = list(_held_optimizers(self._model, ""))
        arrays: list[list[Any]] = []
        try:
            names = _Names(self._model, [each for _, each in held])
        except Exception as error:  # noqa: BLE001  # a layer of the user's own stores itself: told by the export
            return {"arrays": f"{type(error).__name__}: {error}", "groups": []}
        for place, value in names.values.items():
            if id(value) not in self._names:
                return {"arrays": place, "groups": []}
            arrays.append([place, None, self._names[id(value)], _is_narrow(value)])
        known = {id(v): (n, i) for n, each in enumerate(self._optimizers) for i, v in enumerate(each.variables)}
        for place, each in held:
            names.groups.append(f"{place}/vars")
            for key, variable in enumerate(each.variables):
                if id(variable) in known:
                    arrays.append([f"{place}/vars/{key}", *known[id(variable)], _is_narrow(variable)])
        return {"arrays": arrays, "groups": names.groups}


def _held_optimizers(holder: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Those in a model's attributes and those in them, with their places in a file."""
    for name, each in vars(holder).items():
        if isinstance(each, keras.optimizers.Optimizer):
            yield f"{place}{name}", each
            yield from _held_optimizers(each, f"{place}{name}/")


def _is_narrow(variable: Any) -> bool:
    return bool(keras.backend.standardize_dtype(variable.dtype) == "bfloat16")


def _describe(model: Any) -> dict[str, str | None]:
    """A layer or a function of the user's own is not asked for what it is: the file could not be read without it."""
    for layer in model._flatten_layers():
        parts: list[Any] = [type(layer)]
        if not isinstance(layer, keras.Model):  # whose functions are those of `compile`, which comes apart
            parts += [each for each in vars(layer).values() if isinstance(each, FunctionType)]
        for each in parts:
            if not str(each.__module__).startswith("keras.") or each.__name__ in RUNS_CODE:
                return {"config": None, "lacks": each.__name__, "uncompiled": None}
    with inside("ObjectSharingScope")():
        model.get_compile_config = lambda: None  # what it was compiled with comes apart: the model may go without it
        try:
            described, foreign = _checked(partial(keras.saving.serialize_keras_object, model))
        finally:
            vars(model).pop("get_compile_config")
    if foreign is not None:
        return {"config": None, "lacks": foreign, "uncompiled": None}
    compiled, own = _checked(model.get_compile_config)
    if own is None and compiled:
        described["compile_config"] = compiled
    return {"config": json.dumps(described), "lacks": None, "uncompiled": own}


def _checked(describe: Callable[[], Any]) -> tuple[Any, str | None]:
    """As it is in JSON, and what in it is not Keras's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", ".*`lambda`")  # its byte code would be stored
        try:
            plain = json.loads(json.dumps(describe()), object_hook=_by_its_place)
        except UserWarning:
            return None, "a lambda"
        except Exception as error:  # noqa: BLE001  # a user's own object raises what it likes: told by the export
            return None, f"{type(error).__name__}: {error}"
    return plain, find_foreign(plain)


def _by_its_place(each: dict[str, Any]) -> dict[str, Any]:
    """Functions of Keras by the module where they are found: Keras gives none, as for those of a user. And optimizers:
    with torch, Keras names them by where they are for torch, so that no other backend could load them."""
    name = str(each["config"] if each.get("class_name") == "function" else each.get("class_name"))
    if each.get("module") == "builtins" and each.get("class_name") == "function":
        place = next((known for known in _FUNCTIONS if hasattr(getattr(keras, known), name)), None)
    else:
        backends = str(each.get("module")).startswith("keras.src.backend.")
        place = "optimizers" if backends and hasattr(keras.optimizers, name) else None
    return each if place is None else {**each, "module": f"keras.{place}", "registered_name": None}


class _Names(H5IOStore):  # type: ignore[misc]
    """What a model would write to a file: the name of each array → its shape and kind."""

    def __init__(self, model: Any, without: Sequence[Any] = ()) -> None:
        self.found: dict[str, Kind] = {}
        self.values: dict[str, Any] = {}
        self.groups: list[str] = []
        self._place = ""
        inside("_save_state")(model, self, None, "", {id(each) for each in without})

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: Any = None) -> _Names:  # as Keras calls it
        """What is set next belongs there."""
        self._place = f"{path}/vars/".lstrip("/")
        self.groups.append(self._place.rstrip("/"))
        return self

    def __setitem__(self, key: str, value: Any) -> None:
        self.found[f"{self._place}{key}"] = (tuple(value.shape), _kind(keras.backend.standardize_dtype(value.dtype)))
        self.values[f"{self._place}{key}"] = value


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

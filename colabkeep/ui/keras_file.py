"""The files that Keras reads by itself, a `.keras` or a `.weights.h5`, written without Keras.

A `.keras` is an archive of the model's description (JSON), a note on who wrote it, and a `.weights.h5`. The description
can name code that `load_model` would then run, and a run's folder may come from anybody. So one is kept, and written,
only if everything in it is a class or a function of Keras that computes and does nothing else.
"""

from __future__ import annotations

import base64
import io
import json
import re
import time
import zipfile
import zlib
from collections.abc import Iterable
from typing import Any

from colabkeep.checkpoint.codec import DTYPE_BITS
from colabkeep.core.errors import MissingDependency, NotStorable
from colabkeep.core.state import HostTensor

__all__ = ["ARCHIVE", "RUNS_CODE", "WEIGHTS", "archive", "find_foreign", "packed", "unpacked", "weights_file"]

ARCHIVE, WEIGHTS = ".keras", ".weights.h5"  # how their names end: Keras knows them by that

RUNS_CODE = frozenset(
    {
        *("Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"),  # byte code, graphs, pickles
        *("StringLookup", "IntegerLookup", "TextVectorization", "FeatureSpace"),  # read files that they name
    }
)
"""Layers of Keras's own that do more than compute."""

# What each does to the tensors that it is given is all that it does. `keras.utils` downloads, `keras.saving` loads.
_COMPUTES = re.compile(
    r"keras\.(activations|constraints|dtype_policies|initializers|layers|losses|metrics|models|ops|optimizers"
    r"|optimizers\.schedules|quantizers|random|regularizers|src\.applications\.\w+|src\.models\.\w+|src\.ops\.\w+)"
)
_AT_TOP = frozenset({"DTypePolicy", "FloatDTypePolicy", "Functional", "Model", "QuantizedDTypePolicy", "Sequential"})
_VALUES = frozenset({"__bytes__", "__ellipsis__", "__keras_tensor__", "__numpy__", "__slice__", "__tensor__"})

_LONGEST = 1 << 26  # bytes of a description; those of models with a thousand layers have half a million


def packed(file: dict[str, Any]) -> str:
    """As each checkpoint has it: the JSON of a large model is 20 times as long."""
    return base64.b64encode(zlib.compress(json.dumps(file).encode(), 9)).decode()


def unpacked(text: str) -> dict[str, Any]:
    """What was packed. Raises ValueError where it is nothing of that kind, or longer than any."""
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(base64.b64decode(text, validate=True), _LONGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    file: dict[str, Any] = json.loads(content)
    return file


def find_foreign(description: object) -> str | None:
    """The name of something in a model's description (as `json` reads it) that is not Keras's own or may run code or
    read files; None if there is nothing."""
    left: list[object] = [description]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            left += each.values()
            if "class_name" in each and not _is_own(each):
                name = each.get("config") if each["class_name"] == "function" else each["class_name"]
                return name if isinstance(name, str) else "an object without a name"
    return None


def _is_own(each: dict[str, Any]) -> bool:
    name, module = each["class_name"], each.get("module")
    if name == "function":
        name = each.get("config")
    if not isinstance(name, str) or not isinstance(module, str):
        return isinstance(name, str) and name in _VALUES and module is None
    if not name.isidentifier() or each.get("registered_name") not in (None, name):
        return False
    if module == "keras":
        return name in _AT_TOP
    return _COMPUTES.fullmatch(module) is not None and name not in RUNS_CODE


def weights_file(arrays: Iterable[tuple[str, HostTensor, bool]], groups: Iterable[str] = ()) -> bytes:
    """A `.weights.h5` of (its place in the file, its values, whether these are bfloat16), in memory. `groups` are there
    even if nothing is in them: Keras up to 3.6 asks for those of layers without weights.

    Raises:
        MissingDependency: h5py is not installed here.
        NotStorable: values of a kind that Keras stores in no file.
        ValueError: two places are one.
    """
    try:
        import h5py
        import numpy as np
    except ImportError as error:
        raise MissingDependency(
            problem=f"A file of Keras is written with h5py, which is not installed here ({error}).",
            remedy="pip install h5py",
        ) from error
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for group in groups:
            file.require_group(group)
        for place, tensor, narrow in arrays:
            kind = "V2" if narrow and tensor.dtype in ("BF16", "U16") else _code(place, tensor.dtype)
            made = file.create_dataset(place, data=np.frombuffer(tensor.data, kind).reshape(tensor.shape))
            if kind == "V2":  # as Keras has bfloat16 in a file: bare bytes, and a mark
                made.attrs["dtype"] = "bfloat16"
    return content.getvalue()


def _code(place: str, dtype: str) -> str:
    """What NumPy calls a dtype."""
    if dtype == "BF16" or dtype.startswith("F8"):
        raise NotStorable(
            problem=f"{place} is of dtype {dtype}, which no file of Keras holds. Nothing was written.",
            remedy="Load it in Python instead: colabkeep.load_weights(run_name, …).",
            path=place,
        )
    return "?" if dtype == "BOOL" else f"<{dtype[0].lower()}{DTYPE_BITS[dtype] // 8}"


def archive(description: str, weights: bytes, keras: str, created: float) -> bytes:
    """A `.keras` of these, in memory. `keras`: the version that described the model. `created`: when the weights were
    saved, in seconds since 1970 (UTC)."""
    moment = time.gmtime(max(created, 315532800.0))  # an archive's time begins in 1980
    note = {"keras_version": keras, "date_saved": time.strftime("%Y-%m-%d@%H:%M:%S", moment)}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as whole:  # nothing is compressed: so Keras does it, and reads it in place
        pieces = {"metadata.json": json.dumps(note).encode(), "config.json": description.encode()}
        for name, piece in {**pieces, "model.weights.h5": weights}.items():
            whole.writestr(zipfile.ZipInfo(name, moment[:6]), piece)
    return content.getvalue()

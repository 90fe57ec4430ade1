"""What is used of Keras and is not public, in one table: each name is looked at before anything is trained."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import keras

from colabkeep.core.errors import UsageError

_KNOWN = "3.5 to 3.15"
_TRAINERS = "keras.src.trainers."
_ADAPTERS = "keras.src.trainers.data_adapters."
# Each private name in use: where it is, and its first parameters. From a version on, where it is not in all of them.
SIGNATURES = {
    "EpochIterator": (
        _TRAINERS + "epoch_iterator",
        ["x", "y", "sample_weight", "batch_size", "steps_per_epoch", "shuffle", "class_weight", "steps_per_execution"],
    ),
    "ArrayDataAdapter": (
        _ADAPTERS + "array_data_adapter",
        ["x", "y", "sample_weight", "batch_size", "steps", "shuffle", "class_weight"],
    ),
    "convert_to_sliceable": (_ADAPTERS + "array_slicing", ["arrays", "target_backend"]),
    "PyDatasetAdapter": (_ADAPTERS + "py_dataset_adapter", ["x", "class_weight", "shuffle"]),
    "TorchDataLoaderAdapter": (_ADAPTERS + "torch_data_loader_adapter", ["dataloader"]),
    "global_seed_generator": ("keras.src.random.seed_generator", []),
    "get_global_attribute": ("keras.src.backend.common.global_state", ["name"]),
}
_ATTRIBUTES = {  # of what fit made
    "EpochIterator": ("steps_per_epoch", "data_adapter"),
    "ArrayDataAdapter": ("_inputs", "_num_samples", "_batch_size", "_shuffle"),
    "PyDatasetAdapter": ("py_dataset", "shuffle", "_standardize_batch"),
    "TorchDataLoaderAdapter": ("_dataloader",),
}


def unknown(what: str) -> UsageError:
    """The error for a Keras that has something other than what is known."""
    return UsageError(
        problem=f"Keras {keras.__version__} works in another way than colabkeep knows ({what}), so Resumable cannot "
        "bring a training back to its batch. Nothing was trained.",
        remedy="Keep the folder that ModelCheckpoint or BackupAndRestore writes to instead: with "
        f"colabkeep.keep_folder(…), see docs/keep.md. Or install a version that is known: Keras {_KNOWN}.",
    )


class Insides:
    """What is used of Keras and is not public, by name. Each is looked at before anything is trained.

    Raises:
        UsageError: one is not there, or takes something else.
    """

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}
        for name, (place, known) in SIGNATURES.items():
            try:
                found = getattr(importlib.import_module(place), name)
                parameters = inspect.signature(found).parameters
            except (ImportError, AttributeError):
                raise unknown(name) from None
            more = list(parameters.values())[len(known) :]
            if list(parameters)[: len(known)] != known or any(each.default is each.empty for each in more):
                raise unknown(name)
            self._found[name] = found

    def __getattr__(self, name: str) -> Any:
        return self._found[name]

    def is_a(self, name: str, found: object) -> bool:
        """Is it of this class, with the attributes that are used?"""
        if not isinstance(found, self._found[name]):
            return False
        missing = [attribute for attribute in _ATTRIBUTES[name] if not hasattr(found, attribute)]
        if missing:
            raise unknown(f"{name}.{missing[0]}")
        return True

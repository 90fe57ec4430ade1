"""What is used of Keras and is not public, in one table."""

from __future__ import annotations

import importlib
from typing import Any

import keras

from colabkeep.core.errors import UsageError
from colabkeep.integrations import insides
from colabkeep.integrations.insides import Table, find_strange

__all__ = ["TABLE", "TENSORFLOW", "check", "inside", "unknown"]

_KNOWN = "3.5 to 3.15"
_TRAINERS = "keras.src.trainers."
_ADAPTERS = "keras.src.trainers.data_adapters."
TABLE: Table = {
    f"{_TRAINERS}epoch_iterator": {
        "EpochIterator": [
            *("x", "y", "sample_weight", "batch_size", "steps_per_epoch", "shuffle", "class_weight"),
            *("steps_per_execution", "*"),
        ],
    },
    f"{_TRAINERS}epoch_iterator:EpochIterator": {
        "steps_per_epoch": None,
        "data_adapter": None,
        "_enumerate_iterator|enumerate_epoch": [],
    },
    f"{_ADAPTERS}array_data_adapter": {
        "ArrayDataAdapter": ["x", "y", "sample_weight", "batch_size", "steps", "shuffle", "class_weight", "*"],
    },
    f"{_ADAPTERS}array_data_adapter:ArrayDataAdapter": dict.fromkeys(
        ("_inputs", "_num_samples", "_batch_size", "_shuffle")
    ),
    f"{_ADAPTERS}array_slicing": {"convert_to_sliceable": ["arrays", "target_backend"]},
    f"{_ADAPTERS}py_dataset_adapter": {"PyDatasetAdapter": ["x", "class_weight", "shuffle", "*"]},
    f"{_ADAPTERS}py_dataset_adapter:PyDatasetAdapter": {
        "py_dataset": None,
        "shuffle": None,
        "_standardize_batch": ["batch"],
    },
    f"{_ADAPTERS}tf_dataset_adapter": {"TFDatasetAdapter": ["dataset", "class_weight", "*"]},
    f"{_ADAPTERS}torch_data_loader_adapter": {"TorchDataLoaderAdapter": ["dataloader", "*"]},
    f"{_ADAPTERS}torch_data_loader_adapter:TorchDataLoaderAdapter": {"_dataloader": None},
    "keras.src.random.seed_generator": {"global_seed_generator": []},
    "keras.src.backend.common.global_state": {"get_global_attribute": ["name", "*"]},
    "keras.src.saving.serialization_lib": {"ObjectSharingScope": []},
    "keras.src.saving.saving_lib": {
        "H5IOStore": ["*"],
        "_save_state": ["saveable", "weights_store", "assets_store", "inner_path", "visited_saveables"],
    },
    "keras.src.saving.saving_lib:H5IOStore": {"make": ["path", "*"]},
    "keras:Model": {
        **dict.fromkeys(("_initial_epoch", "_eval_epoch_iterator", "metrics_variables", "train_function")),
        "_flatten_layers": ["include_self", "recursive"],
        "_symbolic_build": ["iterator", "data_batch"],
    },
    "keras.callbacks:Callback": {"_model": None},
    "keras.callbacks:CallbackList": {"_async_train|": None, "_flush_futures|": []},  # from 3.7 on
    "keras.callbacks:EarlyStopping": {"_set_monitor_op": []},
    "keras.utils:PyDataset": dict.fromkeys(("_workers", "_use_multiprocessing", "_max_queue_size")),
}

TENSORFLOW: Table = {
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer": {
        "_distribute_strategy": None,
        "_make_function": ["step_function"],  # from 3.7 on, and with it train_function takes batches
    },
    "keras.src.backend.tensorflow.trainer:TFEpochIterator": {"_distributed_dataset": None},
    "tensorflow.python.data.ops.iterator_ops:OwnedIterator": {"_iterator_resource": None},
    "tensorflow.python.data.ops.dataset_ops:DatasetV2": {"_variant_tensor": None},
}


def check() -> None:
    """Is all of it there?

    Raises:
        UsageError: something is not, or takes something else.
    """
    strange = find_strange(TABLE)
    if strange is None and keras.backend.backend() == "tensorflow":
        strange = find_strange(TENSORFLOW)
    if strange is not None:
        raise unknown(strange)


def inside(name: str) -> Any:
    """What is so called in the module that the table names."""
    place = next(place for place, names in TABLE.items() if name in names and ":" not in place)
    return getattr(importlib.import_module(place), name)


def unknown(what: str) -> UsageError:
    """The error for a Keras that has something other than what is known."""
    return insides.unknown(
        f"Keras {keras.__version__}",
        what,
        "Keep the folder that ModelCheckpoint or BackupAndRestore writes to instead: with colabkeep.keep_folder(…), "
        f"see docs/keep.md. Or install a version that is known: Keras {_KNOWN} (with TensorFlow: 3.7 or newer).",
    )

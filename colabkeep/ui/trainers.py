"""Checkpoints as the files of other trainers, which those load by themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from colabkeep.checkpoint.restore import Loaded
from colabkeep.core.errors import CheckpointDamaged, CheckpointNotFound, ColabKeepError, UsageError
from colabkeep.core.state import HostTensor
from colabkeep.session.weights import plain_tensor, plain_weights, weights_of
from colabkeep.stores.base import BytesSource
from colabkeep.ui import keras_file
from colabkeep.ui.export import Target, write_tensors
from colabkeep.ui.text import Record, plain


def to_transformers(loaded: Loaded, part: str, out: str, *, force: bool) -> Record:
    """A folder that `from_pretrained` of transformers or PEFT loads.

    Raises:
        CheckpointNotFound: the run was not trained by the Trainer, or not with a model of transformers.
        UsageError: a file exists and `force` is not given.
        NotStorable, StoreError: as `export_weights`.
    """
    files: Any = _told(loaded, "trainer").get("files")
    if not files or part != "model":
        raise CheckpointNotFound(
            problem=f"Checkpoint {loaded.manifest.id} does not hold what from_pretrained needs beside the weights "
            f"{'of ' + part if part != 'model' else '(config.json)'}: "
            "a run keeps it of the model that a Trainer trains with Resumable.",
            remedy="Leave out --format: the weights are written to one safetensors file, for load_state_dict.",
        )
    names = files["names"]
    if names is None:
        chosen = plain_weights(loaded, part)
    else:
        leaves = weights_of(loaded, part)
        chosen = {name: plain_tensor(own, leaves[own]) for name, own in names.items()}
    folder = Path(out).expanduser().absolute()
    if folder.is_file():
        raise UsageError(problem=f"{folder} is a file; it is untouched.", remedy="Name a folder.")
    texts = {**files["texts"]}
    targets = {name: Target(str(folder / name), force=force) for name in [*texts, files["weights"]]}
    record = write_tensors(loaded, chosen, targets[files["weights"]])
    for name, text in texts.items():
        targets[name].write(BytesSource(text.encode()))
    return {"folder": str(folder), **record}


def to_lightning(loaded: Loaded, part: str, out: str, *, force: bool) -> Record:  # noqa: ARG001  # as the others
    """Nothing: what Lightning loads by itself is a pickle, and colabkeep writes none.

    Raises:
        UsageError: says what to do instead.
    """
    raise UsageError(
        problem="A .ckpt of Lightning is a pickle, which can run code when it is opened, and colabkeep writes none.",
        remedy=f"Write the weights: colabkeep export {loaded.manifest.run} model.safetensors. They go into the module "
        'by module.load_state_dict(safetensors.torch.load_file("model.safetensors")).',
    )


def to_keras(loaded: Loaded, part: str, out: str, *, force: bool) -> Record:
    """A `.keras` that `keras.models.load_model` loads, or a `.weights.h5` that a model's `load_weights` loads: weights,
    and the optimizers as far as they had come. As `out` ends; a `.keras` where it has no ending.

    Raises:
        CheckpointNotFound: the run was not trained by `fit` of Keras with Resumable, or by one of an older colabkeep.
        CheckpointDamaged: what the run keeps of its model does not fit its values.
        UsageError: the model cannot be described without code, a file exists and `force` is not given, or `out` ends in
            another way.
        MissingDependency: h5py is not installed.
        NotStorable, StoreError: as `export_weights`.
    """
    manifest, told = loaded.manifest, _told(loaded, "keras")
    if part != "model" or not told:
        raise CheckpointNotFound(
            problem=f"Checkpoint {manifest.id} does not hold what a file of Keras needs beside the weights"
            f"{' of ' + part if part != 'model' else ''}: a run keeps it of the model that fit trains with Resumable.",
            remedy="Leave out --format: the weights are written to one safetensors file, under their names.",
        )
    if not isinstance(told.get("file"), str):
        raise CheckpointNotFound(
            problem=f"Checkpoint {manifest.id} was saved by an older colabkeep, which did not keep what a file of "
            "Keras needs beside the weights.",
            remedy=f"Run the notebook again with this version: {_RERUN} What is trained from then on can be exported.",
        )
    path = Path(out).expanduser()
    if not path.suffix and not path.is_dir():
        path = path.with_name(path.name + keras_file.ARCHIVE)
    if not path.is_dir() and not path.name.endswith(KERAS_NAMES):
        raise UsageError(
            problem=f"{path.name} is not a name by which Keras knows a file.",
            remedy="Let it end in .keras (the whole model) or in .weights.h5 (its weights and optimizer).",
        )
    target = Target(str(path), force=force, name=f"model{keras_file.ARCHIVE}")
    whole = target.path.name.endswith(keras_file.ARCHIVE)
    try:
        file = keras_file.unpacked(told["file"])
        description = _described(file, manifest.run) if whole else ""
        arrays = list(_arrays(loaded, file["arrays"]))
        content = keras_file.weights_file(arrays, file["groups"])
        if whole:
            content = keras_file.archive(description, content, str(file["keras"]), manifest.created)
    except ColabKeepError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointDamaged(
            problem=f"What checkpoint {manifest.id} keeps of its model does not fit its values. Nothing was written. "
            f"({plain(repr(error), 200)})",
            remedy="Export another checkpoint; this one was not written by colabkeep as it is.",
        ) from error
    source = BytesSource(content)
    target.write(source)
    return {
        "file": str(target.path),
        "checkpoint": manifest.id,
        "tensors": len(arrays),
        "bytes": source.size,
        "sha256": source.sha256,
        "uncompiled": file.get("uncompiled") if whole else None,
    }


_RERUN = 'fit puts the weights of the run into the model, and model.save("model.keras") writes it.'


def _described(file: Mapping[str, Any], run: str) -> str:
    """The model's description, of which everything was looked at."""
    lacks, description = file["lacks"], None
    if file["config"] is not None:
        description = json.loads(file["config"])
        lacks = keras_file.find_foreign(description)
    if lacks is not None or not isinstance(description, dict):
        raise UsageError(
            problem="A .keras file also holds the model's description. This model's description has parts that are "
            f"not Keras's own, or may run code: {plain(lacks, 200)}. So no file was written.",
            remedy=f"Write a weights file: colabkeep export {run} {run}.weights.h5. It goes into the model that your "
            f'notebook builds and compiles, by model.load_weights("{run}.weights.h5").',
        )
    return json.dumps(description)


def _arrays(loaded: Loaded, places: Any) -> Iterator[tuple[str, HostTensor, bool]]:
    """Place in the file, values, whether they are bfloat16."""
    if not isinstance(places, list):
        raise UsageError(
            problem="The checkpoint does not hold all that Keras would write to a file of this model: "
            f"{plain(places, 200)}.",
            remedy=f"Run the notebook again: {_RERUN}",
        )
    weights = _tree(loaded, "model")
    for place, number, name, narrow in places:
        leaf = weights[name] if number is None else _tree(loaded, "optimizer")[str(number)][name]
        yield place, plain_tensor(place, leaf), bool(narrow)


def _tree(loaded: Loaded, part: str) -> Any:
    """The values of a part, however its framework has them."""
    tree: Any = loaded.parts[part]
    return tree["weights"] if "weights" in tree else tree["state"]


KERAS_NAMES = (keras_file.ARCHIVE, keras_file.WEIGHTS)
"""How the names of files end of which the format needs not be named."""

FORMATS: dict[str, Callable[..., Record]] = {
    "keras": to_keras,
    "lightning": to_lightning,
    "transformers": to_transformers,
}
"""The name after --format → what writes it: (loaded, part, out, force=…) → what was written."""


def _told(loaded: Loaded, name: str) -> dict[str, Any]:
    """What a trainer's integration keeps as its state."""
    tree = loaded.parts.get(f"state.{name}")
    state = tree.get("state") if isinstance(tree, dict) else None
    return state if isinstance(state, dict) else {}

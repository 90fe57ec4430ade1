"""Checkpoints as the files of other trainers, which those load by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from colabkeep.checkpoint.restore import Loaded
from colabkeep.core.errors import CheckpointNotFound, UsageError
from colabkeep.session.weights import plain_weights
from colabkeep.stores.base import BytesSource
from colabkeep.ui.export import Target, write_tensors
from colabkeep.ui.text import Record


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
    weights, names = plain_weights(loaded, part), files["names"]
    chosen = weights if names is None else {name: weights[own] for name, own in names.items()}
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


FORMATS: dict[str, Callable[..., Record]] = {
    "lightning": to_lightning,
    "transformers": to_transformers,
}
"""The name after --format → what writes it: (loaded, part, out, force=…) → what was written."""


def _told(loaded: Loaded, name: str) -> dict[str, Any]:
    """What a trainer's integration keeps as its state."""
    tree = loaded.parts.get(f"state.{name}")
    state = tree.get("state") if isinstance(tree, dict) else None
    return state if isinstance(state, dict) else {}

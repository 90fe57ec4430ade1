"""The weights of a run, for inference elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from colabkeep._engine.repository import Repository
from colabkeep._engine.restore import Loaded, load_best, load_id, load_newest
from colabkeep.frameworks import open_framework
from colabkeep.session.catalogue import find_run
from colabkeep.session.wiring import find_store
from colabkeep.vocabulary.errors import CheckpointNotFound
from colabkeep.vocabulary.policies import KeepBest, Mode
from colabkeep.vocabulary.state import HostTensor, Tree

__all__ = ["choose", "load_weights", "weights_of"]


def load_weights(
    run_name: str,
    *,
    storage: Any = "auto",
    which: str = "latest",
    part: str = "model",
    monitor: str = "val_loss",
    mode: Mode = "min",
) -> dict[str, Any]:
    """The verified weights of a run: name → tensor, on the CPU, as `model.load_state_dict` takes them.

    Args:
        run_name: the run.
        storage: where it is kept, as in `resumable_fit`.
        which: "latest", "best" (by `monitor` and `mode`), or a checkpoint's id.
        part: "model", "ema", or "state.<name>" for a module that was handed in as state.
        monitor, mode: what "best" means.

    Raises:
        CheckpointNotFound: no such run, checkpoint or part.
        NoUsableCheckpoint, CheckpointDamaged: what there is cannot be used.
    """
    loaded = choose(find_run(find_store(storage), run_name), which, KeepBest(n=1, monitor=monitor, mode=mode))
    framework = open_framework(loaded.manifest.framework)
    native: dict[str, Any] = framework.native(weights_of(loaded, part))
    return native


def choose(
    repository: Repository, which: str, best: KeepBest, said: Callable[[str, str], None] = lambda *_: None
) -> Loaded:
    """Load "latest", "best" or a checkpoint by its id. Changes nothing.

    `said` is called with (id, why) for each one that is newer than the latest and cannot be used.

    Raises:
        CheckpointNotFound: there is none.
        NoUsableCheckpoint, CheckpointDamaged: what there is cannot be used.
    """
    if which == "best":
        return load_best(repository, best)
    if which != "latest":
        return load_id(repository, which)
    loaded = load_newest(repository, said, marking=False)
    if loaded is None:
        raise CheckpointNotFound(
            problem=f"The run {repository.run!r} has no checkpoint yet.", remedy="Wait for its first save."
        )
    return loaded


def weights_of(loaded: Loaded, part: str) -> Mapping[str, HostTensor | Tree]:
    """Name → tensor leaf of one part of a checkpoint: parameters and persistent buffers.

    Raises:
        CheckpointNotFound: the checkpoint has no such part, or the part is no model.
    """
    tree = loaded.parts.get(part)
    weights = tree.get("weights") if isinstance(tree, dict) else None
    if isinstance(weights, Mapping):
        return weights
    models = [name for name, tree in loaded.parts.items() if isinstance(tree, dict) and "weights" in tree]
    raise CheckpointNotFound(
        problem=f"Checkpoint {loaded.manifest.id} holds no weights in a part {part!r}.",
        remedy=f"Parts with weights: {', '.join(models)}." if models else "It was saved without a model.",
    )

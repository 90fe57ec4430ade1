"""The weights of a run, for inference elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from colabkeep._engine.repository import Repository
from colabkeep._engine.restore import Loaded, load_best, load_id, load_newest
from colabkeep.frameworks import open_framework
from colabkeep.frameworks.base import Framework
from colabkeep.session.catalogue import find_run
from colabkeep.session.plain import plain_weights, weights_of, widened
from colabkeep.session.wiring import find_store
from colabkeep.stores import Storage
from colabkeep.vocabulary.door import door
from colabkeep.vocabulary.errors import CheckpointNotFound, MissingDependency
from colabkeep.vocabulary.policies import KeepBest, Mode
from colabkeep.vocabulary.state import Tree

__all__ = ["choose", "load_weights"]


@door()
def load_weights(
    run_name: str,
    *,
    storage: Storage = "auto",
    which: str = "latest",
    part: str = "model",
    monitor: str = "val_loss",
    mode: Mode = "min",
    framework: str | None = None,
) -> dict[str, Any]:
    """The verified weights of a run: name → tensor, on the CPU, as the model's own `load_state_dict` takes them.

    Args:
        run_name: the run.
        storage: where it is kept, as in `resumable_fit`.
        which: "latest", "best" (by `monitor` and `mode`), or a checkpoint's id.
        part: "model", "ema", or "state.<name>" for a module that was handed in as state.
        monitor, mode: what "best" means.
        framework: "torch", "paddle" or "numpy": whose tensors they become; by default those of the framework that
            trained them, which must be installed then. Names, shapes and values are the same in each. NumPy has no
            bfloat16: there it becomes float32, which changes no value. Nothing is transposed for another framework:
            Paddle's `Linear` keeps its weight as [in, out], torch's as [out, in].

    Raises:
        CheckpointNotFound: no such run, checkpoint or part.
        NoUsableCheckpoint, CheckpointDamaged: what there is cannot be used.
        MissingDependency: the framework is not installed here.
        NotStorable: a weight is of a kind that only its own framework has (sparse, complex128).
        UsageError: there is no such framework, or it has no such dtype.
    """
    loaded = choose(find_run(find_store(storage), run_name), which, KeepBest(n=1, monitor=monitor, mode=mode))
    adapter = _open(framework, loaded.manifest.framework)
    weights: Tree = dict(weights_of(loaded, part))
    if adapter.name != loaded.manifest.framework:
        plain = plain_weights(loaded, part)
        weights = {name: widened(name, tensor) for name, tensor in plain.items()} if adapter.name == "numpy" else plain
    native: dict[str, Any] = adapter.native(weights)
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


def _open(wanted: str | None, trained: str) -> Framework:
    """The framework that was asked for; else the one of the run.

    Raises:
        MissingDependency: it is not installed here.
        UsageError: there is none of that name.
    """
    if wanted is not None:
        return open_framework(wanted)
    try:
        return open_framework(trained)
    except MissingDependency as error:
        raise MissingDependency(
            problem=error.problem,
            remedy=f'{error.remedy}\nOr take the weights as arrays: load_weights(…, framework="numpy").',
        ) from error

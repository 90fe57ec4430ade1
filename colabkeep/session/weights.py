"""The weights of a run or a checkpoint as plain tensors, for inference elsewhere, whatever framework kept them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from colabkeep.checkpoint.codec import DTYPE_BITS
from colabkeep.checkpoint.inspect import find_run
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import Loaded, load_best, load_id, load_newest
from colabkeep.checkpoint.retention import KeepBest
from colabkeep.core.arguments import public
from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    Incompatible,
    MissingDependency,
    NotStorable,
    UsageError,
)
from colabkeep.core.policies import Mode
from colabkeep.core.state import HostTensor, Tagged, Tree, referred
from colabkeep.frameworks import open_framework
from colabkeep.frameworks.base import Framework
from colabkeep.session.frozen_base import base_of, first_of, named_in, other_weights
from colabkeep.session.open import find_store
from colabkeep.session.state import is_own
from colabkeep.stores import Storage


def weights_of(loaded: Loaded, part: str) -> Mapping[str, HostTensor | Tree]:
    """Name → tensor leaf of one part of a checkpoint: parameters and persistent buffers; of a model that gives its
    state as arrays, these."""
    weights = _weights_in(loaded.parts.get(part))
    if weights is not None:
        return weights
    models = [name for name, tree in loaded.parts.items() if not is_own(name) and _weights_in(tree) is not None]
    raise CheckpointNotFound(
        problem=f"Checkpoint {loaded.manifest.id} holds no weights in a part {part!r}.",
        remedy=f"Parts with weights: {', '.join(models)}." if models else "It was saved without a model.",
    )


def _weights_in(tree: Tree) -> Mapping[str, HostTensor | Tree] | None:
    if not isinstance(tree, dict):
        return None
    weights, state = tree.get("weights"), tree.get("state")
    if isinstance(weights, dict):
        return weights
    whole = isinstance(state, dict) and state and all(isinstance(each, HostTensor | Tagged) for each in state.values())
    return state if whole else None


def plain_weights(loaded: Loaded, part: str) -> dict[str, HostTensor]:
    """Name → row-major tensor of one part of a checkpoint; weights that are tied appear under each of their names.

    Raises:
        UsageError: it names the weights of a base, and does not hold them.
    """
    refuse_named(loaded, part)
    return {name: plain_tensor(name, leaf) for name, leaf in weights_of(loaded, part).items()}


def refuse_named(loaded: Loaded, part: str) -> None:
    """Raise if a part names weights by their checksums.

    Raises:
        UsageError: it does.
    """
    tree, run = loaded.parts.get(part), loaded.manifest.run
    named = named_in(tree)
    if named:
        base = base_of(tree) or "a pretrained base"
        raise UsageError(
            problem=f"Checkpoint {loaded.manifest.id} holds what was trained, and not the frozen base: {len(named)} "
            f"weights of {base} are named by checksums only. So the whole model cannot be written.",
            remedy=f"Write the adapter, which PEFT loads onto that base: colabkeep export {run} my-adapter --format "
            f'transformers. Or load the base in Python first: colabkeep.load_weights("{run}", base=model) has all '
            "weights then.",
        )


def plain_tensor(name: str, leaf: Tree) -> HostTensor:
    """The row-major tensor of a weight as a checkpoint holds it."""
    if isinstance(leaf, HostTensor):
        return leaf
    kind, value = (leaf.kind, leaf.value) if isinstance(leaf, Tagged) else (type(leaf).__name__, None)
    if kind.endswith(".tensor") and isinstance(value, dict) and isinstance(value.get("data"), HostTensor):
        if "dtype" not in value:
            return _row_major(name, value["data"], value.get("stride"))
        kind = f"tensor of {value['dtype']}"
    raise NotStorable(
        problem=f"The weight {name!r} is a {kind}, for which safetensors files have no form. Nothing was written.",
        remedy="Load it in Python instead: colabkeep.load_weights(run_name, …).",
        path=name,
    )


def widened(name: str, tensor: HostTensor) -> HostTensor:
    """The tensor in a type that NumPy has: bfloat16 as float32, of which it is the upper half, so no value changes."""
    if tensor.dtype.startswith("F8"):
        raise UsageError(
            problem=f"The weight {name!r} is of dtype {tensor.dtype}, which NumPy does not have.",
            remedy='Take it in a framework that has it: load_weights(…, framework="torch") or framework="paddle".',
        )
    if tensor.dtype != "BF16":
        return tensor
    import numpy as np

    words = np.frombuffer(tensor.data, "<u2").astype("<u4") << np.uint32(16)
    return HostTensor(dtype="F32", shape=tensor.shape, data=memoryview(words.view("u1").data))


def _row_major(name: str, host: HostTensor, stride: Tree) -> HostTensor:
    """Undo another memory order: `host` has the dimensions from the slowest to the fastest, the tensor has `stride`."""
    if stride is None:
        return host
    try:
        import numpy as np
    except ImportError as error:
        raise MissingDependency(
            problem=f"The weight {name!r} is stored in another memory order, and NumPy is not there to change it.",
            remedy="pip install numpy",
        ) from error
    try:
        order = sorted(range(len(stride)), key=lambda d: -stride[d])
        rows = np.frombuffer(host.data, "u1").reshape(*host.shape, DTYPE_BITS[host.dtype] // 8)
        moved = np.ascontiguousarray(rows.transpose(*np.argsort(order), len(order)))
    except (TypeError, ValueError) as error:
        raise CheckpointDamaged(
            problem=f"The weight {name!r} of shape {host.shape} is stored with the strides {stride!r:.200}.",
            remedy="Export another checkpoint; this one was not written by colabkeep as it is.",
        ) from error
    return HostTensor(dtype=host.dtype, shape=moved.shape[:-1], data=memoryview(moved.reshape(-1).data))


@public()
def load_weights(  # noqa: PLR0913  # options by name
    run_name: str,
    *,
    storage: Storage = "auto",
    which: str = "latest",
    part: str = "model",
    monitor: str = "val_loss",
    mode: Mode = "min",
    framework: str | None = None,
    base: object | None = None,
) -> dict[str, Any]:
    """The verified weights of a run: name → tensor, on the CPU, as the model's own `load_state_dict` takes them.

    Args:
        run_name: the run.
        storage: where it is kept, as in `resumable_fit`.
        which: "latest", "best" (by `monitor` and `mode`), or a checkpoint's id.
        part: "model", "ema", or "state.<name>" for a module that was passed as state.
        monitor, mode: what "best" means.
        framework: "torch", "paddle" or "numpy": whose tensors they become; by default those of the framework that
            trained them, which must be installed then. Names, shapes and values are the same in each. NumPy has no
            bfloat16: there it becomes float32, which changes no value. Nothing is transposed for another framework:
            Paddle's `Linear` keeps its weight as [in, out], torch's as [out, in].
        base: the model as the script makes it, adapters and all, with its frozen base loaded. Needed where a checkpoint
            names the weights of the base and does not hold them: they are compared with the checksums, and those of
            `base` are returned, where they are. Where bitsandbytes has quantised it to 4 bits, its own
            `load_state_dict` does not take the scales: they are compared too, and are not returned.

    Raises:
        Incompatible: `base` is another one than the run was trained on.
        CheckpointNotFound: no such run, checkpoint or part.
        NoUsableCheckpoint, CheckpointDamaged: what there is cannot be used.
        MissingDependency: the framework is not installed here.
        NotStorable: a weight is of a kind that only its own framework has (sparse, complex128).
        UsageError: there is no such framework, or it has no such dtype; or the weights of a base are needed.
    """
    loaded = choose(find_run(find_store(storage), run_name), which, KeepBest(n=1, monitor=monitor, mode=mode))
    adapter = _open(framework, loaded.manifest.framework)
    weights: Tree = dict(weights_of(loaded, part))
    if base is not None and adapter.name == loaded.manifest.framework:
        return _onto(base, loaded, part, adapter)
    refuse_named(loaded, part)
    if adapter.name != loaded.manifest.framework:
        plain = plain_weights(loaded, part)
        weights = {name: widened(name, tensor) for name, tensor in plain.items()} if adapter.name == "numpy" else plain
    native: dict[str, Any] = adapter.native(weights)
    return native


def _onto(base: object, loaded: Loaded, part: str, adapter: Framework) -> dict[str, Any]:
    """All weights, those that the checkpoint only names from `base`; and no scales of quantised weights that
    `load_state_dict` does not take, which `base` has already."""
    weights, named = weights_of(loaded, part), named_in(loaded.parts[part])
    scales = {name for name in weights if name.rpartition(".")[0] in weights}
    known = {
        name: referred(leaf) or blake2b(leaf.data, digest_size=32).hexdigest()
        for name, leaf in weights.items()
        if isinstance(leaf, HostTensor) and (name in named or name in scales)
    }
    other = other_weights(adapter, part, base, known)
    if other:
        origin = base_of(loaded.parts[part])
        raise Incompatible(
            problem=f"base= differs from the base of checkpoint {loaded.manifest.id}: of {len(known)} weights and "
            f"scales that were compared, {len(other)} have other bytes here. It is another model or revision, was "
            "quantised in another way or on another kind of GPU, or was changed after it was loaded:",
            remedy=f"Load {origin or 'it'} as the script of the training does: with the same revision in "
            "from_pretrained, and the same dtype and quantisation.",
            differences=first_of(other),
        )
    held: Tree = {name: leaf for name, leaf in weights.items() if name not in known}
    return {**adapter.native(held), **adapter.tensors(base, named.keys() - scales)}


def choose(
    repository: Repository, which: str, best: KeepBest, said: Callable[[str, str], None] = lambda *_: None
) -> Loaded:
    """Load "latest", "best" or a checkpoint by its id. Changes nothing.

    `said` is called with (id, why) for each one that is newer than the latest and cannot be used."""
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
    """The framework that was asked for; else the one of the run."""
    if wanted is not None:
        return open_framework(wanted)
    try:
        return open_framework(trained)
    except MissingDependency as error:
        raise MissingDependency(
            problem=error.problem,
            remedy=f'{error.remedy}\nOr take the weights as arrays: load_weights(…, framework="numpy").',
        ) from error

"""The weights of a checkpoint as plain row-major tensors, whatever framework kept them."""

from __future__ import annotations

from collections.abc import Mapping

from colabkeep._engine.packs import DTYPE_BITS
from colabkeep._engine.restore import Loaded
from colabkeep.vocabulary.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    MissingDependency,
    NotStorable,
    UsageError,
)
from colabkeep.vocabulary.state import HostTensor, Tagged, Tree

__all__ = ["plain_tensor", "plain_weights", "weights_of", "widened"]


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


def plain_weights(loaded: Loaded, part: str) -> dict[str, HostTensor]:
    """Name → row-major tensor of one part of a checkpoint; weights that are tied appear under each of their names.

    Raises:
        CheckpointNotFound: the checkpoint has no such part, or the part is no model.
        NotStorable: safetensors has no form for one of them.
        CheckpointDamaged: one contradicts itself.
    """
    return {name: plain_tensor(name, leaf) for name, leaf in weights_of(loaded, part).items()}


def plain_tensor(name: str, leaf: Tree) -> HostTensor:
    """The row-major tensor of a weight as a checkpoint holds it.

    Raises:
        NotStorable: safetensors has no form for it.
        CheckpointDamaged: it contradicts itself.
    """
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
    """The tensor in a type that NumPy has: bfloat16 as float32, of which it is the upper half, so no value changes.

    Raises:
        UsageError: it is of a type that NumPy lacks and that has no such twin (floats of eight bits).
    """
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
    """Undo another memory order: `host` has the dimensions from the slowest to the fastest, the tensor has `stride`.

    Raises:
        CheckpointDamaged: the strides are not those of such a tensor.
        MissingDependency: NumPy, which moves the bytes, is not installed.
    """
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

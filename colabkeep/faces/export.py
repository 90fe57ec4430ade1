"""The weights of a checkpoint as one plain safetensors file, which any framework's own reader takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from colabkeep._engine.packs import DTYPE_BITS, Pack
from colabkeep._engine.restore import Loaded
from colabkeep.faces.tables import Record
from colabkeep.session.weights import weights_of
from colabkeep.stores import open_store
from colabkeep.stores.base import Source, Store, check_name
from colabkeep.vocabulary.errors import CheckpointDamaged, MissingDependency, NotStorable, ObjectNotFound, UsageError
from colabkeep.vocabulary.state import HostTensor, Tagged, Tree

__all__ = ["Target", "export_weights", "plain_tensor"]

_FILE = "model.safetensors"
_FORMATS = {"torch": "pt", "numpy": "np"}  # what readers of safetensors call them


class Target:
    """The file to write: `out`, or `name` inside it if it is a folder.

    Raises:
        UsageError: it exists and `force` is not given, or its name is none that we write.
    """

    def __init__(self, out: str, *, force: bool, name: str = _FILE) -> None:
        path = Path(out).expanduser().absolute()
        self.path = path / name if path.is_dir() else path
        self._name = check_name(self.path.name)
        self._folder: Store = open_store(self.path.parent)
        if self._exists() and not force:
            raise UsageError(
                problem=f"{self.path} exists already; it is untouched.",
                remedy="Choose another name, or replace it with --force.",
            )

    def write(self, content: Source) -> None:
        """Write the file whole or not at all. One that `force` replaces is gone if that fails."""
        self._folder.delete(self._name)
        self._folder.put(self._name, content)

    def _exists(self) -> bool:
        try:
            self._folder.get(self._name).close()
        except ObjectNotFound:
            return False
        return True


def export_weights(loaded: Loaded, part: str, target: Target) -> Record:
    """Write the weights of one part of a checkpoint to `target`.

    Raises:
        CheckpointNotFound: the checkpoint has no such part, or it is no model.
        NotStorable: a weight is of a kind that a safetensors file cannot hold.
        StoreError: the file could not be written.
    """
    tensors = {name: plain_tensor(name, leaf) for name, leaf in weights_of(loaded, part).items()}
    manifest = loaded.manifest
    pack = Pack(_aligned(tensors), {"format": _FORMATS.get(manifest.framework, manifest.framework), **_origin(loaded)})
    target.write(pack)
    return {
        "file": str(target.path),
        "checkpoint": manifest.id,
        "tensors": len(tensors),
        "bytes": pack.size,
        "sha256": pack.sha256,
    }


def plain_tensor(name: str, leaf: Tree) -> HostTensor:
    """The row-major tensor of a weight as a checkpoint holds it.

    Raises:
        NotStorable: safetensors has no form for it.
        CheckpointDamaged: it contradicts itself.
    """
    if isinstance(leaf, HostTensor):
        return leaf
    kind, value = (leaf.kind, leaf.value) if isinstance(leaf, Tagged) else (type(leaf).__name__, None)
    if kind == "torch.tensor" and isinstance(value, dict) and isinstance(value.get("data"), HostTensor):
        if "dtype" not in value:
            return _row_major(name, value["data"], value.get("stride"))
        kind = f"tensor of {value['dtype']}"
    raise NotStorable(
        problem=f"The weight {name!r} is a {kind}, for which safetensors files have no form. Nothing was written.",
        remedy="Load it in Python instead: colabkeep.load_weights(run_name, …).",
        path=name,
    )


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


def _aligned(tensors: Mapping[str, HostTensor]) -> dict[str, HostTensor]:
    """The widest dtypes first, so that each tensor lies at a multiple of its element: some readers map the file."""
    return dict(sorted(tensors.items(), key=lambda item: (-DTYPE_BITS[item[1].dtype], item[0])))


def _origin(loaded: Loaded) -> dict[str, str]:
    return {"colabkeep.run": loaded.manifest.run, "colabkeep.checkpoint": loaded.manifest.id}

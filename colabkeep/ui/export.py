"""The weights of a checkpoint as one plain safetensors file, which any framework's own reader takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from colabkeep.checkpoint.packs import DTYPE_BITS, Pack
from colabkeep.checkpoint.restore import Loaded
from colabkeep.core.errors import ObjectNotFound, UsageError
from colabkeep.core.state import HostTensor
from colabkeep.session.weights import plain_weights
from colabkeep.stores import open_store
from colabkeep.stores.base import Source, Store, check_name
from colabkeep.ui.text import Record

__all__ = ["Target", "export_weights"]

_FILE = "model.safetensors"
# What readers of safetensors call them. Of a Paddle file PaddleNLP takes "np" only, and refuses "pd"
# (PaddlePaddle/PaddleNLP, paddlenlp/transformers/model_utils.py, read in November 2026).
_FORMATS = {"torch": "pt"}


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
    tensors = plain_weights(loaded, part)
    manifest = loaded.manifest
    pack = Pack(_aligned(tensors), {"format": _FORMATS.get(manifest.framework, "np"), **_origin(loaded)})
    target.write(pack)
    return {
        "file": str(target.path),
        "checkpoint": manifest.id,
        "tensors": len(tensors),
        "bytes": pack.size,
        "sha256": pack.sha256,
    }


def _aligned(tensors: Mapping[str, HostTensor]) -> dict[str, HostTensor]:
    """The widest dtypes first, so that each tensor lies at a multiple of its element: some readers map the file."""
    return dict(sorted(tensors.items(), key=lambda item: (-DTYPE_BITS[item[1].dtype], item[0])))


def _origin(loaded: Loaded) -> dict[str, str]:
    return {"colabkeep.run": loaded.manifest.run, "colabkeep.checkpoint": loaded.manifest.id}

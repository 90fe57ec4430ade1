"""The weights of a checkpoint as one plain safetensors file, which any framework's own reader takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from colabkeep.checkpoint.codec import DTYPE_BITS, Pack
from colabkeep.checkpoint.inspect import tip
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import Loaded, load_newest
from colabkeep.core.errors import CheckpointNotFound, ObjectNotFound, UsageError
from colabkeep.core.manifest import FOLDER, Manifest
from colabkeep.core.state import HostTensor
from colabkeep.keep.version import put_into, table_of
from colabkeep.session.weights import plain_weights
from colabkeep.stores import open_store
from colabkeep.stores.base import Source, Store, check_name
from colabkeep.ui.text import Record

FILE = "model.safetensors"
"""What the weights are written to where nothing is named."""

# What readers of safetensors call them. Of a Paddle file PaddleNLP takes "np" only, and refuses "pd"
# (PaddlePaddle/PaddleNLP, paddlenlp/transformers/model_utils.py, read in November 2026).
_FORMATS = {"torch": "pt"}


class Target:
    """The file to write: `out`, or `name` inside it if it is a folder.

    Raises:
        UsageError: it exists and `force` is not given, or its name is none that we write.
    """

    def __init__(self, out: str, *, force: bool, name: str = FILE) -> None:
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
    return write_tensors(loaded, plain_weights(loaded, part), target)


def write_tensors(loaded: Loaded, tensors: Mapping[str, HostTensor], target: Target) -> Record:
    """Write tensors of a checkpoint to `target`. Raises StoreError where that fails."""
    manifest = loaded.manifest
    origin = {"colabkeep.run": manifest.run, "colabkeep.checkpoint": manifest.id}
    pack = Pack(_aligned(tensors), {"format": _FORMATS.get(manifest.framework, "np"), **origin})
    target.write(pack)
    return {
        "file": str(target.path),
        "checkpoint": manifest.id,
        "tensors": len(tensors),
        "bytes": pack.size,
        "sha256": pack.sha256,
    }


def is_folder(repository: Repository) -> bool:
    """Does the run keep the folder of another program?"""
    newest = tip(repository)
    return newest is not None and newest.framework == FOLDER


def export_folder(repository: Repository, which: str, out: str | None, said: Callable[[str, str], None]) -> Record:
    """Write the files of a version into the empty folder `out`, every byte checked. `which`: "latest", or an id.
    `said` is called with (id, why) for each one that is newer than the latest and cannot be used.

    Raises:
        UsageError: `out` is not given, or not empty, or `which` is "best".
        CheckpointNotFound, CheckpointDamaged, NoUsableCheckpoint, StoreError: no such version can be read.
    """
    if out is None or which == "best":
        raise UsageError(
            problem="A folder's versions have no best one." if which == "best" else "Where are the files to go?",
            remedy=f"Name an empty folder: colabkeep export {repository.run} my-folder (--which ID: an older version)",
        )
    folder = Path(out).expanduser().absolute()
    there = folder.exists() or folder.is_symlink()
    if there and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            problem=f"{folder} is not an empty folder; it is untouched.", remedy="Name an empty or new one."
        )
    found: list[Manifest] = []

    def load(manifest: Manifest) -> dict[str, Any]:
        put_into(repository, manifest, str(folder))
        found.append(manifest)
        return {}

    if which != "latest":
        if which not in repository.ids():
            raise CheckpointNotFound(
                problem=f"The run {repository.run!r} has no version {which!r}.",
                remedy=f"`colabkeep show {repository.run}` lists those it has.",
            )
        load(repository.manifest(which))
    elif load_newest(repository, said, marking=False, load=load) is None:
        problem = f"The run {repository.run!r} has no version yet."
        raise CheckpointNotFound(problem=problem, remedy="Wait for its first.")
    (manifest,) = found
    entries = table_of(repository, manifest).entries.values()
    return {
        "folder": str(folder),
        "checkpoint": manifest.id,
        "files": sum(entry.kind == "file" for entry in entries),
        "bytes": sum(entry.size for entry in entries if not entry.same_as),
    }


def _aligned(tensors: Mapping[str, HostTensor]) -> dict[str, HostTensor]:
    """The widest dtypes first, so that each tensor lies at a multiple of its element: some readers map the file."""
    return dict(sorted(tensors.items(), key=lambda item: (-DTYPE_BITS[item[1].dtype], item[0])))

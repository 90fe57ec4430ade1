"""One version of a folder: from a look at it to what the engine stores, and from what is stored back to files."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from colabkeep.checkpoint.codec import Encoded, Pack, decode_part, tensor_node
from colabkeep.checkpoint.repository import Repository, damaged
from colabkeep.core.errors import CheckpointUnsupported, UsageError
from colabkeep.core.manifest import FOLDER, Manifest
from colabkeep.core.state import Tree
from colabkeep.keep.content import KEY, SMALL, Content, Planned, StoredPack, Table, read_table
from colabkeep.keep.tree import Scan, finish_tree, make_tree, open_file

PART = "folder"
"""The one part of such a version: a `Scan`, to be captured."""

_OPEN = 256  # files at most that are held open, the largest first: what is deleted meanwhile can still be read


class FolderCapture:
    """A version under way, and the snapshot of it: its bytes are in the folder's files until they are stored."""

    remark = ""

    def __init__(self, root: str, content: Content, parts: Mapping[str, Any]) -> None:
        scan: Scan = parts[PART]
        self._opened: dict[str, int] = {}
        large = [each for each in scan.entries.values() if each.kind == "file" and each.size >= SMALL]
        for entry in sorted(large, key=lambda entry: -entry.size)[:_OPEN]:
            with suppress(OSError):  # then it is read by its name, and missed there if it has gone
                self._opened[entry.path] = open_file(os.path.join(root, entry.path))
        self._content = content
        try:
            self.planned: Planned = content.plan(scan, self._opened)
        except BaseException:
            self.release()
            raise

    @property
    def parts(self) -> Mapping[str, Tree]:
        """What `encode_folder` takes."""
        return {PART: self.planned}

    def finish(self) -> FolderCapture:
        """Nothing has to be waited for."""
        return self

    def stored(self) -> None:
        """The version is committed; its blobs are referred to by the next one."""
        self._content.stored(self.planned)

    def release(self) -> None:
        """Close the files that were held open. Calling twice is harmless."""
        while self._opened:
            os.close(self._opened.popitem()[1])


def encode_folder(parts: Mapping[str, Any]) -> Encoded:
    """In the place of the codec: the blobs of a planned version, and the JSON that names them. The table is one blob,
    and what it refers to are the others."""
    planned = parts[PART]
    nodes = [tensor_node([number, KEY]) for number in range(len(planned.packs) + 1)]
    return Encoded(
        parts={PART: {"table": nodes[0], "content": nodes[1:]}},
        packs=[Pack({KEY: planned.table}), *planned.packs],
    )


def table_of(repository: Repository, manifest: Manifest) -> Table:
    """The table of a stored version; the blobs of the files are not read.

    Raises:
        CheckpointUnsupported: it is a training's checkpoint, and no version of a folder.
        CheckpointDamaged, StoreError: it cannot be read.
    """
    node = manifest.parts.get(PART)
    if manifest.framework != FOLDER or not isinstance(node, dict) or not manifest.blobs:
        raise CheckpointUnsupported(
            problem=f"The checkpoint {manifest.id} of {manifest.run!r} is a training's own (of {manifest.framework}), "
            "and no version of a folder.",
            remedy="Choose another run_name for the folder.",
        )
    numbers = range(len(manifest.blobs))
    try:
        packs: list[Any] = [{KEY: number} for number in numbers]
        if decode_part(node, packs) != {"table": 0, "content": list(numbers)[1:]}:
            raise ValueError("its parts are not those of a folder")
        tensors = repository.blobs.read(manifest.blobs[0], manifest.id)
        return read_table(tensors[KEY].data, len(manifest.blobs))
    except (ValueError, KeyError) as error:
        raise damaged(manifest.id, f"its table of files: {error}") from error


def stored_packs(manifest: Manifest) -> list[StoredPack]:
    """The blobs of a version, to be referred to by the next one."""
    return [StoredPack(blob.sha256, blob.size) for blob in manifest.blobs]


def put_back(
    repository: Repository, manifest: Manifest, root: str, done: Callable[[int], None] = lambda _: None
) -> Table:
    """Make the files of a version in the empty folder `root`, every byte checked. `done` is told of the bytes written,
    blob by blob.

    Raises:
        CheckpointDamaged, CheckpointUnsupported, StoreError: it cannot be read.
        UsageError: this machine's disk has no room for it.
        OSError: the disk failed.
    """
    table = table_of(repository, manifest)
    places = [place for some in table.places.values() for place in some]
    needed, free = sum(size for *_, size in places), _free(root)
    if needed > free:
        raise UsageError(  # no error of the store's: an older version may fit, and is not what is wanted
            problem=f"The files of {manifest.run!r} need {needed / 1e9:.1f} GB, and the disk of "
            f"{os.path.dirname(root)} has {free / 1e9:.1f} GB free. Nothing was changed.",
            remedy="Free some space, or name a folder on a larger disk, and run it again.",
        )
    make_tree(root, table.entries)
    wanted: dict[int, list[tuple[str, int, int, int]]] = defaultdict(list)
    for path, some in table.places.items():
        for number, at, start, size in some:
            wanted[number].append((path, at, start, size))
    for number, pieces in wanted.items():
        content = repository.blobs.read(manifest.blobs[number], manifest.id).get(KEY)
        if content is None or any(at + size > content.data.nbytes for _, at, _, size in pieces):
            raise damaged(manifest.id, "its table of files names bytes that are not there")
        for path, at, start, size in pieces:
            _write(os.path.join(root, path), start, content.data[at : at + size])
        done(sum(size for *_, size in pieces))
    finish_tree(root, table.entries)
    return table


def put_into(repository: Repository, manifest: Manifest, folder: str) -> None:
    """Put the files of a version into `folder`, which is made if it is not there, and has to be empty: all of them, or
    none. Raises as `put_back`.
    """
    os.makedirs(folder, exist_ok=True)
    made = os.path.join(folder, f".colabkeep-{manifest.id}")
    os.mkdir(made)
    try:
        put_back(repository, manifest, made)
        for name in os.listdir(made):
            os.rename(os.path.join(made, name), os.path.join(folder, name))
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _free(folder: str) -> int:
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def _write(path: str, start: int, data: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while data:
            written = os.pwrite(descriptor, data, start)
            data, start = data[written:], start + written
    finally:
        os.close(descriptor)

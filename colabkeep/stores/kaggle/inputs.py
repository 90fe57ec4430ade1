"""The dataset, where it is attached to this notebook as an input: found by what its index says, never by its path.

Attached datasets appear as /kaggle/input/<name>, or deeper, as in /kaggle/input/datasets/<owner>/<name>; and whoever
downloads one by hand puts it where they like.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import islice
from pathlib import Path

from colabkeep.stores.kaggle.index import INDEX, Index

__all__ = ["INPUT", "attached", "read_index"]

INPUT = "/kaggle/input"

# Bounds for what else is attached: a million files must not hold up the start.
_DEEPEST = 6
_MOST_FOLDERS = 1000
_MOST_ENTRIES = 1000  # of one folder
_MOST_INDEX_BYTES = 64 * 2**20


def attached(handle: str, top: Path) -> tuple[Path, ...]:
    """The folders below `top` with a readable index of the dataset `handle`. Links are not followed."""
    found, queue = [], deque([(top, 0)])
    for _ in range(_MOST_FOLDERS):
        if not queue:
            break
        folder, depth = queue.popleft()
        folders, has_index = _entries(folder)
        if has_index and read_index(handle, folder / INDEX) is not None:
            found.append(folder)
        elif depth < _DEEPEST:
            queue.extend((below, depth + 1) for below in folders)
    return tuple(found)


def read_index(handle: str, path: Path) -> Index | None:
    """The index of the dataset in a file; None if it is not there, damaged, or another dataset's."""
    try:
        with path.open("rb") as file:
            return Index.from_bytes(file.read(_MOST_INDEX_BYTES), handle)
    except (OSError, ValueError):
        return None


def _entries(folder: Path) -> tuple[list[Path], bool]:
    """The folders in a folder, and whether an index lies in it."""
    try:
        with os.scandir(folder) as entries:
            seen = [entry for entry in islice(entries, _MOST_ENTRIES) if not entry.is_symlink()]
            folders = sorted(Path(entry.path) for entry in seen if entry.is_dir(follow_symlinks=False))
    except OSError:
        return [], False
    return folders, any(entry.name == INDEX for entry in seen)

"""Runs in what is attached to a Kaggle notebook: the output of its earlier versions, anywhere below the input folder.

Where an output appears depends on how it was attached (/kaggle/input/<slug>, or deeper, as in
/kaggle/input/notebooks/<owner>/<slug>), so it is searched for, and never assumed.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import islice
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from colabkeep.platforms.local import FOLDER
from colabkeep.vocabulary.environment import Environment

__all__ = ["earlier_runs"]

_INPUT = "/kaggle/input"

# Bounds for the datasets that are attached as well: with a million files they must not hold up the start.
_DEEPEST = 8  # folders below the input folder
_MOST_FOLDERS = 1000
_MOST_ENTRIES = 1000  # of one folder, in the order of the disk, which is none
_MOST_BRANCHES = 100  # folders of one folder that are searched


def earlier_runs(environment: Environment) -> tuple[str, ...]:
    """The folders below the input folder that contain runs, each a folder with a `run.json` and `checkpoints`.

    Links are not followed, and what cannot be read is passed over. The search is bounded, so of a folder with very many
    entries some are left out; but our own names are looked for by name, and in a folder of our own nothing is left out.
    """
    found, queue = set(), deque([(environment.path(_INPUT), 0)])
    for _ in range(_MOST_FOLDERS):
        if not queue:
            break
        folder, depth = queue.popleft()
        if depth > 0 and _is_run(folder):
            found.add(str(folder.parent))
            continue  # what a run holds is known
        if depth == _DEEPEST:
            continue
        if S_ISDIR(_mode(folder / FOLDER)):
            queue.appendleft((folder / FOLDER, depth + 1))
        names = _folders(folder, None if folder.name == FOLDER else _MOST_ENTRIES)
        if folder.name == FOLDER and any(_is_run(folder / name) for name in names):
            found.add(str(folder))
        queue.extend((folder / name, depth + 1) for name in names[:_MOST_BRANCHES] if name != FOLDER)
    return tuple(sorted(found))


def _is_run(folder: Path) -> bool:
    return S_ISREG(_mode(folder / "run.json")) and S_ISDIR(_mode(folder / "checkpoints"))


def _mode(place: Path) -> int:
    """Of the place itself, should it be a link; 0, which is of no kind, where it cannot be looked at."""
    try:
        return place.lstat().st_mode
    except OSError:
        return 0


def _folders(folder: Path, most: int | None) -> list[str]:
    """The names of the folders in a folder, links left out; of the first `most` entries, if that is not None."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, most) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []

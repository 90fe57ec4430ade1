"""Runs in what is attached to a Kaggle notebook: the output of its earlier versions, anywhere below the input folder.

Where an output appears depends on how it was attached (/kaggle/input/<slug>, or deeper, as in
/kaggle/input/notebooks/<owner>/<slug>), so it is searched for, and never assumed.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import islice
from pathlib import Path

from colabkeep.platforms.local import FOLDER
from colabkeep.vocabulary.environment import Environment

__all__ = ["earlier_runs"]

_INPUT = "/kaggle/input"

# Bounds for the datasets that are attached as well: with a million files they must not hold up the start.
_DEEPEST = 8  # folders below the input folder
_MOST_FOLDERS = 1000
_MOST_ENTRIES = 1000  # of one folder; ours have one for each run
_MOST_BRANCHES = 100  # folders of one folder that are searched


def earlier_runs(environment: Environment) -> tuple[str, ...]:
    """The folders below the input folder that contain runs, each a folder with a `run.json` and `checkpoints`.

    Links are not followed, and what cannot be read is passed over. The search is bounded: near the top, and in
    folders of our own name, nothing is missed.
    """
    top = environment.path(_INPUT)
    found, queue = set(), deque([(top, 0)])
    for _ in range(_MOST_FOLDERS):
        if not queue:
            break
        folder, depth = queue.popleft()
        names, files = _entries(folder)
        if "run.json" in files and "checkpoints" in names:
            if depth > 0:
                found.add(str(folder.parent))
            continue  # what a run holds is known
        if depth < _DEEPEST:
            ours = [(folder / name, depth + 1) for name in names if name == FOLDER]
            queue.extendleft(ours)
            queue.extend((folder / name, depth + 1) for name in names[:_MOST_BRANCHES] if name != FOLDER)
    return tuple(sorted(found))


def _entries(folder: Path) -> tuple[list[str], set[str]]:
    """The names of the folders and of the files in a folder, links left out; the first ones, if there are many."""
    names, files = [], set()
    try:
        with os.scandir(folder) as entries:
            for entry in islice(entries, _MOST_ENTRIES):
                if entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    files.add(entry.name)
    except OSError:
        return [], set()
    return sorted(names), files

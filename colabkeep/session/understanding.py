"""What a checkpoint holds, where it is whole and yet makes no sense: the work of somebody who knows the format, or of a
version with a defect."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import TypeVar

from colabkeep.vocabulary.errors import CheckpointDamaged, ColabKeepError
from colabkeep.vocabulary.manifest import Manifest

__all__ = ["understood"]

T = TypeVar("T")

_OURS = f"{Path(__file__).resolve().parents[1]}/"
_PYTHON = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_PACKAGES = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))  # may lie below the former
_NO_SENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def understood(checkpoint: Manifest | None, work: Callable[[], T]) -> T:
    """What `work` gives, which compares or takes over what this checkpoint holds; None: there is none.

    Raises:
        CheckpointDamaged: `work` met a value there that no session writes. What the user's code raises meanwhile (a
            data set, a callback) is raised as it is.
    """
    try:
        return work()
    except ColabKeepError:
        raise
    except _NO_SENSE as error:
        if checkpoint is None or not _is_ours(sys.exc_info()[2]):
            raise
        raise CheckpointDamaged(
            problem=f"Checkpoint {checkpoint.id} is whole, and its state is none that a session writes "
            f"({type(error).__name__}: {error!s:.200}).",
            remedy="Nothing was trained. Restart the kernel (the model may have been loaded already), and choose "
            "another checkpoint with resume=…, or another run_name. If it is from a training of your own, please "
            "report this text: it is a defect.",
        ) from error


def _is_ours(trace: TracebackType | None) -> bool:
    """Was it raised in colabkeep, or by what Python itself did for it, and in nobody else's code?"""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(trace)]
    others = [file for file in files if not _is_python(file)]
    return bool(others) and others[-1].startswith(_OURS)


def _is_python(file: str) -> bool:
    return file.startswith("<frozen") or (file.startswith(_PYTHON) and not file.startswith(_PACKAGES))

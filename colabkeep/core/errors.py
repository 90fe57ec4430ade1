"""Every error of colabkeep: one tree, each a problem and a remedy.

::

    ColabKeepError
    ├── UsageError (ValueError)                 an argument is invalid
    │   └── UnknownArgument (TypeError)         a word of another trainer; names ours
    ├── MissingDependency (ImportError)         a package is needed for this part
    ├── NotStorable (TypeError)                 a value cannot be kept without pickle; names its path
    ├── MemoryFull (MemoryError)                retryable: no room for the copy that a save is made from
    ├── CheckpointError
    │   ├── CheckpointDamaged (OSError)         bytes are not those that were written
    │   ├── CheckpointUnsupported               written by a newer colabkeep
    │   ├── CheckpointNotFound (LookupError)    no such run or checkpoint
    │   ├── NoUsableCheckpoint                  some exist, none can be loaded
    │   └── Incompatible (ValueError)           model, optimizer or data are not those of the run
    ├── StoreError (OSError)
    │   ├── ObjectNotFound (FileNotFoundError)
    │   ├── NameTaken (FileExistsError)         names are written once
    │   ├── StoreFull                           retryable: space may come back
    │   ├── StoreUnavailable                    retryable: the place does not answer
    │   └── StoreBusy (BlockingIOError)         a live process holds the lock
    ├── PlatformError
    │   ├── MountError (OSError)                the platform's storage could not be reached; names the next click
    │   ├── SecretError (LookupError)           a secret could not be read; never holds its value
    │   ├── NotPersistent                       checkpoints would vanish with this machine
    │   └── BadAccelerator                      the card that came is not worth starting on (on_bad_gpu="stop")
    ├── RunBusy (BlockingIOError)               a live process trains this run
    ├── RunTakenOver                            a newer session took this run over
    ├── ProcessFailed                           one of several processes of a training ended without a word, or hangs
    ├── TrainingDiverged (ArithmeticError)      the loss is no finite number (on_nan="stop")
    └── SaveFailed                              nothing of this training is safe

Each is built from keyword-only ``problem=`` and ``remedy=``; ``retryable`` says whether trying
the same thing again can help. The ordinary second parent lets plain ``except OSError`` work.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

__all__ = [
    "BadAccelerator",
    "CheckpointDamaged",
    "CheckpointError",
    "CheckpointNotFound",
    "CheckpointUnsupported",
    "ColabKeepError",
    "Incompatible",
    "MemoryFull",
    "MissingDependency",
    "MountError",
    "NameTaken",
    "NoUsableCheckpoint",
    "NotPersistent",
    "NotStorable",
    "ObjectNotFound",
    "PlatformError",
    "ProcessFailed",
    "RunBusy",
    "RunTakenOver",
    "SaveFailed",
    "SecretError",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "TrainingDiverged",
    "UnknownArgument",
    "UsageError",
]


class ColabKeepError(Exception):
    """What happened (`problem`) and what to do now (`remedy`), in English; as a text, in the reader's language."""

    retryable: ClassVar[bool] = False

    def __init__(self, *, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(problem, remedy)

    def __str__(self) -> str:
        return self._said()

    def _said(self, details: str = "") -> str:
        """The message in the reader's language; the problem and the remedy themselves are English."""
        from colabkeep.core.language import said

        return f"{said(self.problem)}{details}\n→ {said(self.remedy)}"

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of the traceback: the user's own lines that led here, and the message."""
        return in_short(self)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        # Keyword-only construction does not survive the default reduction, and
        # errors cross process borders (loader workers, multiprocessing).
        return partial(type(self), **self._fields()), ()

    def _fields(self) -> dict[str, Any]:
        return {"problem": self.problem, "remedy": self.remedy}


class UsageError(ColabKeepError, ValueError):
    """An argument, or a combination of calls, that is invalid."""


class UnknownArgument(UsageError, TypeError):
    """A word this function does not know, often one of another trainer."""


class MissingDependency(ColabKeepError, ImportError):
    """A package that this part needs is not installed."""


class NotStorable(ColabKeepError, TypeError):
    """A value that cannot be kept without pickle. `path` says where it sits."""

    def __init__(self, *, problem: str, remedy: str, path: str = "") -> None:
        self.path = path
        super().__init__(problem=problem, remedy=remedy)

    def _fields(self) -> dict[str, Any]:
        return {**super()._fields(), "path": self.path}


class MemoryFull(ColabKeepError, MemoryError):
    """Neither memory nor this machine's disk has room for the copy that a save is made from. Room may come back."""

    retryable = True


class CheckpointError(ColabKeepError):
    """Something is wrong with a checkpoint, or with all of them."""


class CheckpointDamaged(CheckpointError, OSError):
    """Bytes in storage are not those that were written: missing, cut, changed or hostile."""


class CheckpointUnsupported(CheckpointError):
    """The checkpoint was written in a newer format than this version reads."""


class CheckpointNotFound(CheckpointError, LookupError):
    """No run, or no checkpoint, of that name."""


class NoUsableCheckpoint(CheckpointError):
    """Checkpoints exist, and none of them can be loaded. Training does not start from zero."""


class Incompatible(CheckpointError, ValueError):
    """The objects that were passed are not those of the run. `differences` lists each, one line."""

    def __init__(self, *, problem: str, remedy: str, differences: Sequence[str] = ()) -> None:
        self.differences = tuple(differences)
        super().__init__(problem=problem, remedy=remedy)

    def __str__(self) -> str:
        from colabkeep.core.language import said

        return self._said("".join(f"\n  - {said(line)}" for line in self.differences))

    def _fields(self) -> dict[str, Any]:
        return {**super()._fields(), "differences": self.differences}


class StoreError(ColabKeepError, OSError):
    """A place for bytes did not do what was asked."""


class ObjectNotFound(StoreError, FileNotFoundError):
    """No object of that name in the store."""


class NameTaken(StoreError, FileExistsError):
    """The name exists already. Names are written once and never again."""


class StoreFull(StoreError):
    """No space left, or a quota reached. Space may come back."""

    retryable = True


class StoreUnavailable(StoreError):
    """The place does not answer, or failed in a way that may pass."""

    retryable = True


class StoreBusy(StoreError, BlockingIOError):
    """A live process holds the lock. `holder` is what it wrote about itself."""

    def __init__(self, *, problem: str, remedy: str, holder: str = "") -> None:
        self.holder = holder
        super().__init__(problem=problem, remedy=remedy)

    def _fields(self) -> dict[str, Any]:
        return {**super()._fields(), "holder": self.holder}


class PlatformError(ColabKeepError):
    """The notebook service, or the machine it gave, does not do what is needed."""


class MountError(PlatformError, OSError):
    """The platform's persistent storage could not be reached. The remedy is the next click."""


class SecretError(PlatformError, LookupError):
    """A secret could not be read. Its value is never part of the message."""


class NotPersistent(PlatformError):
    """Checkpoints would go to a place that vanishes with this machine, and the user did not ask for that."""


class BadAccelerator(PlatformError):
    """The accelerator that came is not worth starting on, and the user asked to stop then."""


class RunBusy(ColabKeepError, BlockingIOError):
    """Another live process trains this run."""


class RunTakenOver(ColabKeepError):
    """A newer session took the run over; this one is a left-over of an earlier life."""


class TrainingDiverged(ColabKeepError, ArithmeticError):
    """The loss is NaN or infinite, and the user asked to stop then; what came of it was not saved."""


class ProcessFailed(ColabKeepError):
    """One of the processes that train together ended and could not say why, let the others wait for ever, or could not
    meet them."""


class SaveFailed(ColabKeepError):
    """A save failed and nothing of this training is safe."""


_LIBRARIES = (f"{Path(__file__).resolve().parents[1]}/", f"{Path(os.__file__).parent}/")  # colabkeep, Python's own
_PACKAGES = ("site-packages", "dist-packages")


def in_short(error: BaseException) -> list[str]:
    """An error as a notebook shows it: without the frames of libraries, which say nothing to whoever reads it.
    `%tb Verbose` and every other mode of tracebacks than IPython's usual one (`%xmode`) show them all."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    shown: Any = getattr(shell, "InteractiveTB", None)
    if shown is not None and shown.mode != "Context":
        whole: list[str] = shown.structured_traceback(type(error), error, error.__traceback__, tb_offset=1)
        return whole
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not of_library(frame.filename)]
    name = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)
    lines = [f"{_place(frame, name(frame.filename))}\n    {frame.line}" for frame in own if frame.line]
    left_out = ["(The whole traceback: %tb Verbose)"] if shell is not None and len(own) < len(frames) else []
    return [*lines, "", f"{type(error).__name__}: {error}", *left_out]


def fold(error: BaseException) -> None:
    """Of an error in what the user wrote, called from here: IPython leaves colabkeep's frames out, and says how many.
    A script's traceback, and that of an error in a library or here, is whole."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [number for number, frame in enumerate(frames) if frame.f_code.co_filename.startswith(_LIBRARIES[0])]
    if ours and any(not of_library(frame.f_code.co_filename) for frame in frames[ours[-1] :]):
        for number in ours:
            frames[number].f_locals["__tracebackhide__"] = True


def of_library(file: str) -> bool:
    """Is a file of code colabkeep's, Python's own, or of an installed package?"""
    return file.startswith(_LIBRARIES) or any(part in _PACKAGES for part in Path(file).parts)


def _place(frame: traceback.FrameSummary, cell: tuple[str, str] | None) -> str:
    """ "Cell In[3], line 1": `cell` is what IPython calls the file, None for one that it did not make."""
    return f"{' '.join(cell) if cell else frame.filename}, line {frame.lineno}"

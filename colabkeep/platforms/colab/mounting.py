"""Mounting Drive, without ever harming a Drive that is mounted.

`google.colab.drive.mount` (googlecolab/colabtools `drive.py`, 2026-04) asks the browser before it looks whether Drive
is mounted, and where it finds nothing at its mount point it kills the program behind every mount, uploads included.
So the mount table is read first, a healthy mount is left alone wherever it is, one that shows no files yet is given a
moment, and a dead one is mounted again in its own place by a plain call, which clears it away; `force_remount` is never
needed.

The deadline. `timeout_ms` bounds the wait for the user's answer; a missing answer is no error there: it goes on and
starts Drive without credentials, for up to 30 seconds more than `timeout_ms` at each step. So the call gets part of
the time as its `timeout_ms`, the rest is for Drive to start, and an alarm ends the whole. What the call had begun by
then may still come up: the mount table is read again, and a mount that is there counts, whatever the call said.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

from colabkeep.platforms.colab.deadline import TooLate, deadline
from colabkeep.platforms.colab.drive import DRIVE_POINT, Drive, find_drive
from colabkeep.platforms.colab.frontend import colab_module, why_unreachable
from colabkeep.platforms.colab.refusals import mount_refusal
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import MountError

__all__ = ["mount_drive"]

_SHORTEST, _LONGEST = 2.0, 3600.0  # seconds; below 1000 ms Colab's own timeout becomes none at all
_TO_SHOW, _PAUSE = 5.0, 0.25  # seconds at most until a Drive that is mounted shows the user's files; between two looks
_TO_START = 30.0  # seconds at most of the whole, kept back for Drive to start once the user has answered


def mount_drive(environment: Environment, timeout: float) -> None:
    """See to it that Drive is mounted and answers, within `timeout` seconds (2 at least, an hour at most).

    Raises:
        MountError: it is not.
    """
    drive = _settled(environment, timeout)
    if _works(drive):
        return
    if drive is not None and not drive.gone:
        raise _does_not_answer(drive)
    if (why := why_unreachable(environment)) is not None:
        raise MountError(
            problem=f"Google Drive cannot be mounted from here: {why}. Nothing would outlive this machine.",
            remedy="Run  import colabkeep; colabkeep.mount()  in a cell of the notebook, and then this again.",
        )
    point = str(environment.path(DRIVE_POINT if drive is None else drive.point))
    try:
        _ask_colab(point, timeout)
    except (Exception, TooLate) as error:
        if not _works(find_drive(environment)):
            raise mount_refusal(error, point) from error
        return
    drive = find_drive(environment)
    if not _works(drive):
        raise MountError(
            problem=f"Colab says that Google Drive is mounted at {point}, but the files of Drive cannot be seen there.",
            remedy="Run this cell again. If it stays so: Runtime > Disconnect and delete runtime, then connect again.",
        )


def _settled(environment: Environment, timeout: float) -> Drive | None:
    """The mounted Drive; one that has just been mounted, and shows no files yet, is waited for."""
    drive = find_drive(environment)
    for _ in range(int(max(0.0, min(_TO_SHOW, timeout)) / _PAUSE)):  # in this order, nan becomes the longest
        if drive is None or not drive.empty:
            break
        time.sleep(_PAUSE)
        drive = find_drive(environment)
    return drive


def _works(drive: Drive | None) -> bool:
    return drive is not None and drive.folder is not None


def _does_not_answer(drive: Drive) -> MountError:
    trouble = "" if drive.trouble is None else f" ({drive.trouble.strerror})"
    return MountError(
        problem=f"Google Drive is mounted at {drive.point} but does not answer{trouble}. It is not mounted anew, "
        "because that would kill uploads which are still on their way.",
        remedy="Wait a minute and run this cell again. If it stays so, run  from google.colab import drive; "
        "drive.flush_and_unmount(timeout_ms=600000)  in a cell, and then  colabkeep.mount()  again.",
    )


def _ask_colab(point: str, timeout: float) -> None:
    seconds = min(max(_SHORTEST, timeout), _LONGEST)  # in this order, nan becomes the shortest
    patience = seconds - min(_TO_START, seconds / 4)
    with deadline(seconds):
        mount = colab_module("drive", seconds / 4).mount
        if _takes(mount, "timeout_ms"):
            mount(point, timeout_ms=int(1000 * patience))
        else:
            mount(point)


def _takes(function: Callable[..., object], keyword: str) -> bool:
    """Does a function take that keyword? Its signature has changed over the years."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # written in C
        return False
    return keyword in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())

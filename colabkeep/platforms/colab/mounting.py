"""Mounting Drive, without ever harming a Drive that is mounted.

`google.colab.drive.mount` (googlecolab/colabtools `drive.py`, 2026-04) asks the browser before it looks whether Drive
is mounted, and where it finds nothing at its mount point it kills the program behind every mount, uploads included.
So the mount table is read first, a healthy mount is left alone wherever it is, one that shows no files yet is given a
moment, and a dead one is mounted again in its own place by a plain call, which clears it away; `force_remount` is never
needed.

The deadline. `timeout_ms` bounds the wait for the user's answer, and is also what Drive's own program allows itself to
open a folder, for the whole session: so it never gets less than Colab's own 120 seconds, however short the user's
time is. That is kept by an alarm, which rings before `timeout_ms` is over; once the page has answered, Drive has
`_TO_START` more to come up. So what the call itself raises comes after the answer, and is no late permission. What the
call had begun may still come up afterwards: the mount table is read again, and a mount that is there counts, whatever
the call said.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

from colabkeep.platforms.colab.deadline import TooLate, deadline
from colabkeep.platforms.colab.drive import DRIVE_POINT, Drive, find_drive
from colabkeep.platforms.colab.frontend import colab_module, why_unreachable
from colabkeep.platforms.colab.refusals import mount_refusal
from colabkeep.platforms.colab.service import clicks
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import MountError

__all__ = ["mount_drive"]

_SHORTEST, _LONGEST = 2.0, 3600.0  # seconds; below 1000 ms Colab's own timeout becomes none at all
_TO_SHOW, _PAUSE = 5.0, 0.25  # seconds at most until a Drive that is mounted shows the user's files; between two looks
_TO_START = 60.0  # seconds more for Drive to start, once the user has answered
_COLABS_OWN = 120.0  # seconds; what `drive.mount` gives its program by default


def mount_drive(environment: Environment, timeout: float) -> None:
    """See to it that Drive is mounted and answers. `timeout`: seconds for the user to agree (2 at least, an hour at
    most); Drive's start comes on top, with a minute at most.

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
        if not _works(_settled(environment, _TO_SHOW)):
            raise mount_refusal(environment, error, point) from error
        return
    if not _works(_settled(environment, _TO_SHOW)):
        raise MountError(
            problem=f"Colab says that Google Drive is mounted at {point}, but the files of Drive cannot be seen there.",
            remedy=clicks(
                environment,
                "Run this cell again. If it stays so: Runtime > Disconnect and delete runtime, connect again.",
            ),
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
    with deadline(seconds, afterwards=_TO_START):
        mount = colab_module("drive", seconds / 4).mount
        if _takes(mount, "timeout_ms"):
            mount(point, timeout_ms=int(1000 * max(_COLABS_OWN, seconds + 1.0)))
        else:
            mount(point)


def _takes(function: Callable[..., object], keyword: str) -> bool:
    """Does a function take that keyword? Its signature has changed over the years."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # written in C
        return False
    return keyword in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())

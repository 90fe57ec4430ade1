"""Mounting Drive, without ever harming a Drive that is mounted; every way in which that fails, with the next click."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

from colabkeep.core.errors import MountError
from colabkeep.core.system import Environment
from colabkeep.platforms.colab.frontend import TooLate, colab_module, deadline, why_unreachable
from colabkeep.platforms.colab.service import DRIVE_POINT, Drive, clicks, find_drive

__all__ = [
    "mount_drive",
    "mount_refusal",
]

# The errors are those of googlecolab/colabtools: `drive.py`, `_message.py`, `_ipython.py` (2026-04). They are known by
# type and by words of their text, for most are a bare ValueError.


_NOT_MOUNTED = "Google Drive is not mounted, and nothing would outlive this machine"
_AGAIN = "then run this cell again."
_NO_ANSWER = (
    f"{_NOT_MOUNTED}: the permission was not given in time.",
    "Run this cell again, keep the notebook's page open, and answer its questions: Connect to Google Drive > your "
    "account > Continue. In VS Code update the Colab extension (it can do this since January 2026); in Colab's "
    "terminal client use its command drivemount. It needed longer?  colabkeep.mount(timeout=300)",
)

_NO_START = (
    f"{_NOT_MOUNTED}: the permission was given, and then Drive's own program did not start ({{text}}).",
    "Run this cell again: the second try often works. If not, take a new machine: Runtime > Disconnect and delete "
    "runtime, connect again, and run the notebook from the top.",
)

_TEXTS: tuple[tuple[str, str, str], ...] = (
    (
        "already contain files",
        f"{_NOT_MOUNTED}: {{point}} holds files of this machine, written there while Drive was not mounted. "
        "They are not in Drive.",
        f"Move them away:  !mv {{point}} {{point}}-not-in-drive  {_AGAIN} Afterwards copy what you need to Drive.",
    ),
    (
        "must not be a symlink",
        f"{_NOT_MOUNTED}: {{point}} is a symbolic link.",
        f"Remove the link:  !rm {{point}}  {_AGAIN}",
    ),
    (
        "directory or not exist",
        f"{_NOT_MOUNTED}: {{point}} is a file.",
        f"Move it away:  !mv {{point}} {{point}}-file  {_AGAIN}",
    ),
    (
        "directory that exists",
        f"{_NOT_MOUNTED}: the folder around {{point}} is missing.",
        f'Make it:  !mkdir -p "$(dirname {{point}})"  {_AGAIN}',
    ),
    (
        "must be a directory if present",
        f"{_NOT_MOUNTED}: Drive's own settings cannot be written: {{text}}.",
        f"Move the file away:  !mv ~/.config/Google ~/.config/Google-old  {_AGAIN}",
    ),
    (
        "not contain a space",
        f"{_NOT_MOUNTED}: it was mounted at {{point}}, and Colab mounts no more where a name has a blank.",
        "Clear it away:  !umount -f '{point}'  then run this cell again.",
    ),
    (
        "domain policy",
        f"{_NOT_MOUNTED}: the administrator of this account's organisation does not allow it.",
        "Open the notebook with another Google account (menu at the top right), or ask the administrator to allow "
        "Google Drive for desktop.",
    ),
    (
        "timeout during initial read of root folder",
        f"{_NOT_MOUNTED}: the top folder of your Drive holds so many files that reading it took too long.",
        "Run this cell again, the second try is often quicker:  colabkeep.mount(timeout=300)  If not, move files from "
        "the top of My Drive into folders at https://drive.google.com.",
    ),
    ("mount failed", *_NO_START),
)


def mount_refusal(environment: Environment, error: BaseException, point: str) -> MountError:
    """The error to raise for what came out of `google.colab.drive.mount(point)`."""
    problem, remedy = _words(error)
    text = str(error).rstrip(".") or "it took too long"
    return MountError(
        problem=problem.format(point=point, text=text, type=type(error).__name__),
        remedy=clicks(environment, remedy.format(point=point)),
    )


def _words(error: BaseException) -> tuple[str, str]:
    text = str(error)
    for words, problem, remedy in _TEXTS:
        if isinstance(error, ValueError) and words in text:
            return problem, remedy
    if isinstance(error, TooLate) and not error.answered:
        return _NO_ANSWER
    if isinstance(error, TooLate) or type(error).__module__.startswith("pexpect"):
        return _NO_START
    if type(error).__name__ == "MessageError":
        return (
            f"{_NOT_MOUNTED}: the permission was refused, or its window was closed ({{text}}).",
            "Run this cell again, and in the page choose: Connect to Google Drive > your account > Continue, "
            "with all boxes ticked.",
        )
    if isinstance(error, NotImplementedError):
        return (
            f"{_NOT_MOUNTED}: Colab cannot mount it on this kind of machine ({{text}}).",
            'Name a folder that lasts:  storage="/path/to/it"  or use a machine of Google\'s: '
            "Connect (top right) > Connect to a hosted runtime.",
        )
    return _broken(error)


def _broken(error: BaseException) -> tuple[str, str]:
    new_machine = "Runtime > Disconnect and delete runtime, connect again, and run the notebook from the top."
    if isinstance(error, ImportError):
        return (
            f"{_NOT_MOUNTED}: Colab's own package cannot be loaded ({{text}}).",
            "Runtime > Restart session, and run the notebook from the top. If it stays so, a package that the "
            "notebook installs has replaced one that Colab needs: take that !pip line out.",
        )
    if isinstance(error, KeyError):
        return (
            f"{_NOT_MOUNTED}: this machine lacks what signing in to Drive needs (the variable {{text}}).",
            new_machine,
        )
    if isinstance(error, AttributeError):
        return (
            f"{_NOT_MOUNTED}: no notebook page answers this program ({{text}}).",
            f"Run  import colabkeep; colabkeep.mount()  in a cell of the notebook, {_AGAIN}",
        )
    return f"{_NOT_MOUNTED}: {{type}}: {{text}}.", f"Run this cell again. If it stays so: {new_machine}"


# `google.colab.drive.mount` (googlecolab/colabtools `drive.py`, 2026-04) asks the browser before it looks whether Drive
# is mounted, and where it finds nothing at its mount point it kills the program behind every mount, uploads included.
# So the mount table is read first, a healthy mount is left alone wherever it is, one that shows no files yet is given a
# moment, and a dead one is mounted again in its own place by a plain call, which clears it away; `force_remount` is
# never needed.
#
# The deadline. `timeout_ms` bounds the wait for the user's answer, and is also what Drive's own program allows itself
# to open a folder, for the whole session: so it never gets less than Colab's own 120 seconds, however short the user's
# time is. That is kept by an alarm, which rings before `timeout_ms` is over; once the page has answered, Drive has
# `_TO_START` more to come up. So what the call itself raises comes after the answer, and is no late permission. What
# the call had begun may still come up afterwards: the mount table is read again, and a mount that is there counts,
# whatever the call said.


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

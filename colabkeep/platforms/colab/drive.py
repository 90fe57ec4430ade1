"""Google Drive on Colab: is it mounted, and does it answer? Mounting it, without ever harming one that is mounted."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass
from stat import S_ISDIR

from colabkeep.core.errors import MountError
from colabkeep.core.system import Environment
from colabkeep.core.timeouts import within
from colabkeep.platforms.base import MOUNTED_DRIVE, mounts
from colabkeep.platforms.colab.page import TooLate, bounded, clicks, colab_module, deadline, why_unreachable

DRIVE_POINT = "/content/drive"
"""Where everybody mounts it, and where it is mounted here if it is not yet."""

_SPELLINGS = ("MyDrive", "My Drive")  # both exist; the one without a blank is preferred
_PATIENCE = 2.0  # seconds; a look at a mount whose program hangs would never come back
_GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.ESHUTDOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """A mounted Drive. `folder`: the user's own files on it; None when `trouble` says why they cannot be seen.
    `listed`: the mount table says that it is a Drive (False: it only looks like one)."""

    point: str
    folder: str | None
    trouble: OSError | None
    listed: bool

    @property
    def gone(self) -> bool:
        """Has the program behind the mount ended ("transport endpoint is not connected")? Then mounting again
        cannot kill an upload: there is none."""
        return self.trouble is not None and self.trouble.errno in _GONE

    @property
    def said(self) -> str:
        """The trouble, in brackets."""
        return "" if self.trouble is None else f" ({self.trouble.strerror})"

    @property
    def empty(self) -> bool:
        """Does its program answer that the user's folder is not there, as it does until it has read that folder?"""
        return self.trouble is not None and self.trouble.errno == errno.ENOENT


def find_drive(environment: Environment) -> Drive | None:
    """The mounted Drive; None if there is none. Of several, a healthy one, else one whose program may still live."""
    table = mounts(environment)
    points = dict.fromkeys(point for point, kind in reversed(table) if kind == MOUNTED_DRIVE)
    if points:
        drives = [_visit(environment, point, listed=True) for point in points]
        # One that hangs before one that is gone: only the former can still hold uploads.
        return min(drives, key=lambda drive: (drive.folder is None, drive.gone))
    # A table that cannot be read, or that calls the type something else one day, must not hide a Drive that is there.
    if not table or any(point == DRIVE_POINT for point, _ in table):
        drive = _visit(environment, DRIVE_POINT, listed=False)
        return drive if drive.folder is not None else None
    return None


def is_only_a_folder(environment: Environment) -> bool:
    """Is there a folder called MyDrive on this machine's own disk, made by a program that wrote to a Drive which
    was not mounted? Asked where `find_drive` found none."""
    return environment.is_dir(f"{DRIVE_POINT}/{_SPELLINGS[0]}")


def _visit(environment: Environment, point: str, *, listed: bool) -> Drive:
    trouble: OSError | None = None
    for spelling in _SPELLINGS:
        folder = f"{point}/{spelling}"
        path = environment.path(folder)
        try:
            # Looking at one whose program hangs may never end.
            if S_ISDIR(within(_PATIENCE, path.stat).st_mode):
                return Drive(point=point, folder=folder, trouble=None, listed=listed)
            trouble = NotADirectoryError(errno.ENOTDIR, "not a folder", str(path))
        except TimeoutError:
            trouble = TimeoutError(errno.ETIMEDOUT, f"no answer within {_PATIENCE:g} seconds", str(path))
        except OSError as error:
            trouble = error
        if trouble.errno != errno.ENOENT:
            break
    return Drive(point=point, folder=None, trouble=trouble, listed=listed)


# `google.colab.drive.mount` (googlecolab/colabtools `drive.py`, 2026-04) asks the browser before it looks whether Drive
# is mounted, and where it finds nothing at its mount point it kills the program behind every mount, uploads included.
# So the mount table is read first, a healthy mount is left alone wherever it is, one that shows no files yet is given a
# moment, and a dead one is mounted again in its own place by a plain call, which clears it away; `force_remount` is
# never needed.
#
# The deadline. `timeout_ms` bounds the wait for the user's answer, and is also what Drive's own program allows itself
# to open a folder, for the whole session: so it never gets less than Colab's own 120 seconds. An alarm rings before it
# is over, so what the call itself raises is never a late permission. What the call had begun may still come up
# afterwards: the mount table is read again, and a mount that is there counts, whatever the call said.


_SHORTEST = 2.0  # seconds; below 1000 ms Colab's own timeout becomes none at all
_TO_SHOW, _PAUSE = 5.0, 0.25  # seconds at most until a Drive that is mounted shows the user's files; between two looks
_TO_START = 60.0  # seconds more for Drive to start
_COLABS_OWN = 120.0  # seconds; what `drive.mount` gives its program by default


def mount_drive(environment: Environment, timeout: float) -> None:
    """See to it that Drive is mounted and answers; `MountError` if not. `timeout`: seconds for the user to agree (2 at
    least, an hour at most); Drive's start comes on top, with a minute at most."""
    drive = _settled(environment, timeout)
    if _works(drive):
        return
    if drive is not None and not drive.gone:
        raise MountError(
            problem=f"Google Drive is mounted at {drive.point} but does not answer{drive.said}. It is not mounted "
            "again, because that would kill uploads which are still on their way.",
            remedy="Wait a minute and run this cell again. If it stays so, run  from google.colab import drive; "
            "drive.flush_and_unmount(timeout_ms=600000)  in a cell, and then  colabkeep.mount()  again.",
        )
    if (why := why_unreachable(environment)) is not None:
        raise MountError(
            problem=f"Google Drive cannot be mounted from here: {why}. Nothing would outlive this machine.",
            remedy="Run  import colabkeep; colabkeep.mount()  in a cell of the notebook, and then this again.",
        )
    point = str(environment.path(DRIVE_POINT if drive is None else drive.point))
    seconds = bounded(timeout, _SHORTEST)
    try:
        with deadline(seconds + _TO_START):
            mount = colab_module("drive", seconds / 4).mount
            mount(point, timeout_ms=int(1000 * max(_COLABS_OWN, seconds + _TO_START + 1.0)))
    except (Exception, TooLate) as error:
        if not _works(_settled(environment, _TO_SHOW)):
            raise _refusal(environment, error, point) from error
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


_NOT_MOUNTED = "Google Drive is not mounted, and nothing would outlive this machine"
_AGAIN = "then run this cell again."
_NEW_MACHINE = "Runtime > Disconnect and delete runtime, connect again, and run the notebook from the top."

# What came out of `google.colab.drive.mount`, known by type and by words of its text, for most are a bare ValueError
# (googlecolab/colabtools `drive.py`, `_message.py`, `_ipython.py`, 2026-04); what it means; and what to do.
_REFUSALS: tuple[tuple[str, str, str, str], ...] = (
    (
        "ValueError",
        "already contain files",
        "{point} holds files of this machine, written there while Drive was not mounted. They are not in Drive.",
        f"Move them away:  !mv {{point}} {{point}}-not-in-drive  {_AGAIN} Afterwards copy what you need to Drive.",
    ),
    (
        "ValueError",
        "must not be a symlink",
        "{point} is a symbolic link.",
        f"Remove the link:  !rm {{point}}  {_AGAIN}",
    ),
    (
        "ValueError",
        "directory or not exist",
        "{point} is a file.",
        f"Move it away:  !mv {{point}} {{point}}-file  {_AGAIN}",
    ),
    (
        "ValueError",
        "directory that exists",
        "the folder around {point} is missing.",
        f'Make it:  !mkdir -p "$(dirname {{point}})"  {_AGAIN}',
    ),
    (
        "ValueError",
        "must be a directory if present",
        "Drive's own settings cannot be written: {text}.",
        f"Move the file away:  !mv ~/.config/Google ~/.config/Google-old  {_AGAIN}",
    ),
    (
        "ValueError",
        "not contain a space",
        "it was mounted at {point}, and Colab mounts no more where a name has a blank.",
        f"Clear it away:  !umount -f '{{point}}'  {_AGAIN}",
    ),
    (
        "ValueError",
        "domain policy",
        "the administrator of this account's organisation does not allow it.",
        "Open the notebook with another Google account (menu at the top right), or ask the administrator to allow "
        "Google Drive for desktop.",
    ),
    (
        "ValueError",
        "timeout during initial read of root folder",
        "the top folder of your Drive holds so many files that reading it took too long.",
        "Run this cell again, the second try is often quicker:  colabkeep.mount(timeout=300)  If not, move files from "
        "the top of My Drive into folders at https://drive.google.com.",
    ),
    (
        "ValueError",
        "mount failed",
        "the permission was given, and then Drive's own program did not start ({text}).",
        f"Run this cell again: the second try often works. If not, take a new machine: {_NEW_MACHINE}",
    ),
    (
        "TooLate",
        "",
        "the permission was not given in time, or Drive's own program took too long to start.",
        "Run this cell again, keep the notebook's page open, and answer its questions: Connect to Google Drive > your "
        "account > Continue. In VS Code update the Colab extension (it can do this since January 2026); in Colab's "
        "terminal client use its command drivemount. It needed longer?  colabkeep.mount(timeout=300)  If you had "
        f"agreed, take a new machine: {_NEW_MACHINE}",
    ),
    (
        "MessageError",
        "",
        "the permission was refused, or its window was closed ({text}).",
        "Run this cell again, and in the page choose: Connect to Google Drive > your account > Continue, with all "
        "boxes ticked.",
    ),
    (
        "NotImplementedError",
        "",
        "Colab cannot mount it on this kind of machine ({text}).",
        'Name a folder that lasts:  storage="/path/to/it"  or use a machine of Google\'s: Connect (top right) > '
        "Connect to a hosted runtime.",
    ),
    (
        "ImportError",
        "",
        "Colab's own package cannot be loaded ({text}).",
        "Runtime > Restart session, and run the notebook from the top. If it stays so, a package that the notebook "
        "installs has replaced one that Colab needs: take that !pip line out.",
    ),
    (
        "KeyError",
        "",
        "this machine lacks what signing in to Drive needs (the variable {text}).",
        _NEW_MACHINE,
    ),
    (
        "AttributeError",
        "",
        "no notebook page answers this program ({text}).",
        f"Run  import colabkeep; colabkeep.mount()  in a cell of the notebook, {_AGAIN}",
    ),
    ("BaseException", "", "{type}: {text}.", f"Run this cell again. If it stays so: {_NEW_MACHINE}"),
)


def _refusal(environment: Environment, error: BaseException, point: str) -> MountError:
    kinds, text = {kind.__name__ for kind in type(error).__mro__}, str(error)
    if type(error).__module__.startswith("pexpect"):
        kinds, text = {"ValueError"}, "mount failed"
    problem, remedy = next(words for kind, sign, *words in _REFUSALS if kind in kinds and sign in text)
    said = {"point": point, "text": str(error).rstrip(".") or "it took too long", "type": type(error).__name__}
    return MountError(
        problem=f"{_NOT_MOUNTED}: {problem.format(**said)}", remedy=clicks(environment, remedy.format(**said))
    )

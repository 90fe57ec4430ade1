"""What Colab offers and how long it lets one have it; and whether Google Drive is mounted on this machine, and
answers.
"""

from __future__ import annotations

import errno
import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from stat import S_ISDIR

from colabkeep.core.system import Environment
from colabkeep.platforms.base import Menus, SessionLimits

__all__ = [
    "DRIVE_POINT",
    "Drive",
    "clicks",
    "find_drive",
    "is_only_a_folder",
    "limits_of",
    "menus_of",
]

_HOUR = 3600.0

_HOSTED_LIMITS = SessionLimits(
    max_seconds=12 * _HOUR,
    idle_seconds=90 * 60.0,
    idle_confidence="medium",
    source="Colab's FAQ: 12 hours at most, often less, up to 24 with Pro+; about 90 minutes idle is what the "
    "documentation of googlecolab/google-colab-cli says (2026-07)",
    confidence="high",
    usual_seconds=2.5 * _HOUR,
    usual_source="users report 1.5 to 3.5 hours on free machines and 1 to 5 on paid ones (googlecolab/colabtools "
    "issues 1759, 5566 and 5793, 2025-09 to 2026-09)",
)
_ENTERPRISE_LIMITS = SessionLimits(
    max_seconds=18 * _HOUR,
    idle_seconds=180 * 60.0,
    idle_confidence="medium",
    source="Google Cloud's documentation of Colab Enterprise: a default runtime is deleted 18 hours after it was made, "
    "and stops after 180 idle minutes; runtimes of other templates differ",
    confidence="medium",
)
_LOCAL_LIMITS = SessionLimits(max_seconds=None, source="a machine of your own sets no limit", confidence="high")

_HOSTED_MENUS = Menus(
    enable="Runtime > Change runtime type > Hardware accelerator: T4 GPU > Save, then run the notebook from the top.",
    reconnect="Runtime > Disconnect and delete runtime > Yes, then Connect (top right), and run the notebook "
    "from the top.",
    switch="Runtime > Change runtime type > another hardware accelerator > Save, then run the notebook from the top.",
    # googlecolab/colabtools #5566 (2025-09) for the free ones, the option lists of google-colab-cli (2026-07)
    # and colab-vscode (2026-08) for the others. The free GPUs of 2019-22 (K80, P4, P100) were drawn by chance.
    offered="free: T4 GPU and TPU v5e-1, when there are any; with compute units also L4, G4, A100 and H100 GPUs and "
    "TPU v6e-1 (as of 2026)",
    draws=True,
)
_ENTERPRISE_MENUS = Menus(
    enable="Google Cloud console > Colab Enterprise > Runtime templates > New template with an accelerator, "
    "then in the notebook: Connect > Connect to a runtime > that template.",
    reconnect="Google Cloud console > Colab Enterprise > Runtimes > Delete, then Connect in the notebook.",
    switch="Google Cloud console > Colab Enterprise > Runtime templates > New template with another accelerator.",
    offered="the GPUs of the project's region and quota; none is free",
)
_LOCAL_MENUS = Menus(
    enable="Stop the container and start it with the machine's GPUs: docker run --gpus=all …, "
    "then Connect > Connect to a local runtime.",
    offered="the GPUs of the machine that runs the container",
)


def limits_of(kind: str) -> SessionLimits:
    """How long a session of that kind lasts at most."""
    return {"enterprise": _ENTERPRISE_LIMITS, "local": _LOCAL_LIMITS}.get(kind, _HOSTED_LIMITS)


def menus_of(kind: str, environment: Environment) -> Menus:
    """What to click on a Colab of that kind, in the front end at hand."""
    menus = {"enterprise": _ENTERPRISE_MENUS, "local": _LOCAL_MENUS}.get(kind, _HOSTED_MENUS)
    return replace(
        menus,
        enable=clicks(environment, menus.enable or ""),
        reconnect=clicks(environment, menus.reconnect or "") or None,
        switch=clicks(environment, menus.switch or "") or None,
    )


def clicks(environment: Environment, text: str) -> str:
    """The same text with the clicks of VS Code, where that shows the notebook: it has no menu called Runtime."""
    for page, vscode in _VSCODE if environment.vscode else ():
        text = text.replace(page, vscode)
    return text


# googlecolab/colab-vscode: README and the user guide of its wiki (2026-04). The longer ones come first.
_REMOVE = "the Colab button above the notebook > Remove Server"
_NEW = "Select Kernel (top right) > Colab > New Colab Server"
_VSCODE = (
    ("Runtime > Change runtime type > Hardware accelerator: T4 GPU > Save", f"{_NEW} > GPU > T4"),
    ("Runtime > Change runtime type > another hardware accelerator > Save", f"{_NEW} > another machine type"),
    ("Runtime > Disconnect and delete runtime > Yes, then Connect (top right)", f"{_REMOVE}, then {_NEW}"),
    ("Runtime > Disconnect and delete runtime, connect again", f"{_REMOVE}, then {_NEW}"),
    ("Runtime > Disconnect and delete runtime", _REMOVE),
    ("Runtime > Restart session", "Restart, above the notebook"),
)


DRIVE_POINT = "/content/drive"
"""Where everybody mounts it, and where it is mounted here if it is not yet."""

_TYPE = "fuse.drive"  # in the mount table; drive.py of googlecolab/colabtools looks for it as well (2026-04)
_SPELLINGS = ("MyDrive", "My Drive")  # both exist; the one without a blank is preferred
_PATIENCE = 2.0  # seconds; a look at a mount whose program hangs would never come back
_GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.ESHUTDOWN)
_OCTAL = re.compile(r"\\([0-7]{3})")  # how the mount table writes blanks


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
    def empty(self) -> bool:
        """Does its program answer that the user's folder is not there, as it does until it has read that folder?"""
        return self.trouble is not None and self.trouble.errno == errno.ENOENT


def find_drive(environment: Environment) -> Drive | None:
    """The mounted Drive; None if there is none. Of several, a healthy one, else one whose program may still live."""
    table = _mount_table(environment)
    points = dict.fromkeys(point for point, kind in reversed(table) if kind == _TYPE)
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


def _mount_table(environment: Environment) -> list[tuple[str, str]]:
    """Mount points and types, in the order of mounting."""
    lines = (line.split() for line in environment.text("/proc/mounts").splitlines())
    return [(_OCTAL.sub(lambda code: chr(int(code[1], 8)), words[1]), words[2]) for words in lines if len(words) > 2]


def _visit(environment: Environment, point: str, *, listed: bool) -> Drive:
    trouble: OSError | None = None
    for spelling in _SPELLINGS:
        folder = f"{point}/{spelling}"
        trouble = _look(environment.path(folder))
        if trouble is None:
            return Drive(point=point, folder=folder, trouble=None, listed=listed)
        if trouble.errno != errno.ENOENT:
            break
    return Drive(point=point, folder=None, trouble=trouble, listed=listed)


def _look(folder: Path) -> OSError | None:
    """What is wrong with a folder, found out on a thread that may hang for ever."""
    seen: SimpleQueue[OSError | None] = SimpleQueue()
    threading.Thread(target=lambda: seen.put(_stat(folder)), daemon=True, name="colabkeep-look").start()
    try:
        return seen.get(timeout=_PATIENCE)
    except Empty:
        return TimeoutError(errno.ETIMEDOUT, f"no answer within {_PATIENCE:g} seconds", str(folder))


def _stat(folder: Path) -> OSError | None:
    try:
        is_folder = S_ISDIR(folder.stat().st_mode)
    except OSError as error:
        return error
    return None if is_folder else NotADirectoryError(errno.ENOTDIR, "not a folder", str(folder))

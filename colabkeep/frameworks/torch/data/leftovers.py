"""The folders that torch's loader workers leave behind in the temporary folder when they are killed.

A worker that hands over tensors listens on a socket, `pymp-<8 letters>/listener-<8 letters>` (multiprocessing.util,
multiprocessing.connection), and removes both when it ends by itself. One that is killed leaves them.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["remove_dead_listeners"]

_FOLDER = re.compile(r"pymp-[a-z0-9_]{8}")
_SOCKET = re.compile(r"listener-[a-z0-9_]{8}")
_BOUND = Path("/proc/net/unix")  # Linux; elsewhere nothing is removed
_YOUNG = 60.0  # seconds: a folder so new may be about to be used


def remove_dead_listeners(folder: Path | None = None, now: Callable[[], float] = time.time) -> int:
    """Remove the folders of this user in which nobody listens any more. Gives how many there were.

    A living process is never robbed: a folder stays if anything else is in it, if the kernel lists one of its
    sockets, or if one answers (it may be a neighbour's that the kernel does not list here).
    """
    if not _BOUND.is_file():
        return 0
    found = [
        (path, sockets)
        for path in Path(folder or tempfile.gettempdir()).glob("pymp-*")
        if (sockets := _sockets(path, now() - _YOUNG))
    ]
    bound = _BOUND.read_text(errors="replace") if found else ""
    return sum(_remove(path, sockets) for path, sockets in found if not any(map(bound.__contains__, map(str, sockets))))


def _sockets(path: Path, latest: float) -> list[Path]:
    """The sockets in a folder that holds nothing else and was made before `latest`; none of any other."""
    try:
        about = path.lstat()
        if not _FOLDER.fullmatch(path.name) or not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            return []
        members = list(path.iterdir())
        fit = all(_SOCKET.fullmatch(each.name) and stat.S_ISSOCK(each.lstat().st_mode) for each in members)
    except (FileNotFoundError, PermissionError):  # its owner tidied up meanwhile; or it is somebody else's
        return []
    return members if fit and about.st_mtime < latest else []


def _remove(path: Path, sockets: list[Path]) -> bool:
    if any(map(_answers, sockets)):
        return False
    try:
        for each in sockets:
            each.unlink()
        path.rmdir()
    except OSError:  # another session sweeps, too
        return False
    return True


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True

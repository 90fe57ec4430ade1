"""A Colab machine that fits into a folder: its files, its variables, its Drive, and the page in the browser.

::

    with fake_colab(tmp_path, front_end="refuses") as colab:
        ColabPlatform().mount(colab.environment, timeout=30)     # MountError: the permission was refused
    assert colab.calls[0].startswith("drive.mount")

While the block runs, `import google.colab` and its modules `drive`, `userdata`, `auth`, `errors` and `_message` are
fakes with the signatures, the behaviour and the exceptions of the real ones (`google_colab.py`). They act on the
machine's own folder and variables; an installed `google` package (google-auth) stays usable.
Paths of the machine ("/content/drive") and paths below its root are both understood.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn, TypeAlias

from colabkeep.core.system import Environment
from colabkeep.testing.faults import Fault
from tests.fakes.platforms.google_colab import DriveFS, DriveState, MessageError, google_colab
from tests.fakes.platforms.services import host_name, new_root, write

__all__ = ["DriveFS", "DriveState", "FakeColab", "FrontEnd", "Kind", "fake_colab"]

Kind: TypeAlias = Literal["hosted", "process", "enterprise", "local"]
"""The notebook's kernel on Google's machine; a process beside it, as `!python …`; Enterprise; the docker runtime."""

FrontEnd: TypeAlias = Literal["answers", "refuses", "late", "absent", "vscode"]
"""What the page does when it is asked: says yes at once; says no; says yes after `LATE` seconds; keeps silent; answers
sign-ins but not questions for secrets or JavaScript, as the VS Code extension."""

LATE = 0.5  # seconds
_POLL = 0.025  # seconds, as `google.colab._message`
_ANSWERS: Mapping[FrontEnd, tuple[str, ...]] = {
    "absent": (),
    "vscode": ("request_auth",),
}
_IMAGE = {
    "COLAB_RELEASE_TAG": "release-colab-external-images_20260819-060052_RC00",
    "COLAB_BACKEND_VERSION": "next",
    "COLAB_GPU": "1",
    "CLOUDSDK_CONFIG": "/content/.config",
    "HOME": "/root",
}
_SERVICES = {
    "COLAB_JUPYTER_IP": "172.28.0.12",
    "COLAB_JUPYTER_TOKEN": "",
    "COLAB_JUPYTER_TRANSPORT": "ipc",
    "TBE_CREDS_ADDR": "172.28.0.1:8008",
    "TBE_EPHEM_CREDS_ADDR": "172.28.0.1:8009",
    "TBE_RUNTIME_ADDR": "172.28.0.1:8011",
    "USE_AUTH_EPHEM": "1",
}
_SHELL = "<google.colab._shell.Shell object at 0x7a1b2c3d4e5f>"
_SPELLINGS = ("MyDrive", "My Drive")
_MOUNTS = "overlay / overlay rw,relatime 0 0\nproc /proc proc rw,nosuid 0 0\ntmpfs /dev tmpfs rw 0 0\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Environment(Environment):
    """Looks at the machine as it is at that moment, a dead mount included."""

    machine: FakeColab

    def path(self, absolute: str) -> Path:
        return self.machine.path(absolute)


class FakeColab:
    """One machine, from the connection to the disconnection. Made by `fake_colab`.

    `root`: its disk. `account`: the files of the user's Drive, which outlive it. `environ`: its variables, which a test
    may change. `calls`: what was asked of Colab, in words, in order. `pace`: real seconds per second of waiting for the
    page; lower it where a test would wait. `drivefs` and `front_end` may be changed at any time.
    """

    def __init__(
        self,
        root: Path,
        account: Path,
        kind: Kind,
        front_end: FrontEnd,
        drivefs: DriveFS,
        secrets: Mapping[str, str | None],
    ) -> None:
        self.root = root
        self.account = account
        self.kind = kind
        self.front_end = front_end
        self.drivefs = drivefs
        self.secrets = secrets
        self.environ = {**_IMAGE, **({} if kind == "local" else _SERVICES)}
        self.calls: list[str] = []
        self.pace = 1.0
        self._mounts: dict[str, DriveState] = {}
        self._gone = threading.Event()

    @property
    def environment(self) -> _Environment:
        """What detection is handed."""
        kernel = self.in_kernel
        return _Environment(
            environ=dict(self.environ),
            root=self.root,
            folder=self.root / "content",
            modules=frozenset({"IPython", "ipykernel", "google.colab"} if kernel else ()),
            hostname=host_name(self.root),
            prefix="/usr",
            shell=_SHELL if kernel else "",
            machine=self,
        )

    @property
    def in_kernel(self) -> bool:
        """Does the code under test run in the notebook's kernel?"""
        return self.kind != "process"

    @property
    def mounts(self) -> Mapping[str, DriveState]:
        """Drive's mount points, each with how it fares."""
        return dict(self._mounts)

    def inside(self, path: str) -> str:
        """The machine's own name of a path that may lie below `root`."""
        given, root = os.fspath(path), str(self.root)
        return given.removeprefix(root) or "/" if f"{given}/".startswith(f"{root}/") else given

    def path(self, absolute: str) -> Path:
        """Where a path of the machine lies. Below a broken mount, whatever is done with it fails, or hangs."""
        place = self.root / absolute.lstrip("/")
        for point, state in self._mounts.items():
            if state in ("dead", "silent") and f"{absolute}/".startswith(f"{point}/"):
                return _broken_path(place, partial(self._answer, state, place))
        return place

    def write(self, absolute: str, text: str) -> None:
        """Put a file on the machine's disk."""
        write(self.root, absolute, text)

    def set_drive(self, point: str, state: DriveState) -> None:
        """Let Drive be so at that mount point. A broken one shows its files to nobody: also plain paths find none."""
        place = self.root / point.lstrip("/")
        for link in (place / spelling for spelling in _SPELLINGS):
            if link.is_symlink():
                link.unlink()
        self._mounts.pop(point, None)
        if state != "unmounted":
            self._mounts[point] = state
        if state == "mounted":
            place.mkdir(parents=True, exist_ok=True)
            for spelling in _SPELLINGS:
                (place / spelling).symlink_to(self.account)
        self.write("/proc/mounts", _MOUNTS + "".join(map(_mount_line, self._mounts)))

    def answers(self, question: str, timeout_sec: float | None) -> bool:
        """Wait for the page's answer: True for a yes, False if none came in time. A falsy timeout waits for ever."""
        known = question in _ANSWERS.get(self.front_end, (question,))
        needed = (LATE if self.front_end == "late" else 0.0) if known else float("inf")
        patience = timeout_sec or float("inf")
        self.wait(min(needed, patience))
        if known and self.front_end == "refuses":
            raise MessageError("Error: credential propagation was unsuccessful")
        return needed <= patience

    def wait(self, seconds: float) -> None:
        """Wait as Colab does: in short sleeps, between which an interrupt gets through."""
        waited = 0.0
        while waited < seconds:
            time.sleep(_POLL)
            waited += _POLL / self.pace

    def end(self) -> None:
        """The machine is taken away: who waits for its Drive is let go."""
        self._gone.set()

    def _answer(self, state: DriveState, place: Path) -> NoReturn:
        if state == "silent":
            self._gone.wait()
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), str(place))


def _mount_line(point: str) -> str:
    escaped = point.replace(" ", "\\040")
    return f"drive {escaped} fuse.drive rw,nosuid,nodev,relatime,user_id=0,group_id=0,allow_other 0 0\n"


def _broken_path(place: Path, answer: Callable[[], NoReturn]) -> Path:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        answer()

    touching = ("stat", "lstat", "exists", "is_dir", "is_file", "iterdir", "open", "mkdir", "touch", "unlink", "rename")
    kind = type("BrokenPath", (type(place),), dict.fromkeys(touching, refuse))
    broken: Path = kind(place)
    return broken


class _Gate(MetaPathFinder):
    """Stands before every import of google.colab."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if f"{fullname}.".startswith("google.colab."):
            self._fault()


@contextmanager
def _installed(modules: Mapping[str, ModuleType], on_import: Fault | None) -> Iterator[None]:
    try:
        google = import_module("google")
    except ImportError:
        google = ModuleType("google")
        google.__path__ = []
    before = {name: module for name, module in sys.modules.items() if f"{name}.".startswith("google.colab.")}
    had_google, had_colab = "google" in sys.modules, getattr(google, "colab", None)
    for name in before:
        del sys.modules[name]
    gate = None if on_import is None else _Gate(on_import)
    if gate is not None:
        sys.meta_path.insert(0, gate)
        google.__dict__.pop("colab", None)
    else:
        sys.modules.update(modules)
        google.__dict__["colab"] = modules["google.colab"]
    sys.modules["google"] = google
    try:
        yield
    finally:
        if gate is not None:
            sys.meta_path.remove(gate)
        for name in [name for name in sys.modules if f"{name}.".startswith("google.colab.")]:
            del sys.modules[name]
        sys.modules.update(before)
        google.__dict__.pop("colab", None)
        if had_colab is not None:
            google.__dict__["colab"] = had_colab
        if not had_google:
            del sys.modules["google"]


@contextmanager
def fake_colab(
    folder: Path,
    *,
    kind: Kind = "hosted",
    front_end: FrontEnd = "answers",
    drive: DriveState = "unmounted",
    drivefs: DriveFS = "starts",
    secrets: Mapping[str, str | None] | None = None,
    on_import: Fault | None = None,
) -> Iterator[FakeColab]:
    """A new machine with an empty disk. `folder`: the user's world; the next machine made in it sees the same Drive.

    `drive`: how Drive fares at /content/drive to begin with. `secrets`: those of the notebook's page; None for one that
    exists and that this notebook may not read. `on_import`: called instead of importing google.colab; raises, or does
    not come back (`colabkeep.testing.faults.raising`).
    """
    account = folder / "drive"
    account.mkdir(parents=True, exist_ok=True)
    colab = FakeColab(new_root(folder), account.resolve(), kind, front_end, drivefs, secrets or {})
    colab.write("/content/sample_data/README.md", "Sample data of Colab.\n")
    colab.write("/proc/uptime", "600.00 1100.00\n")
    if kind in ("hosted", "process"):
        colab.write("/var/colab/hostname", f"{host_name(colab.root)}\n")
    if kind == "enterprise":
        colab.environ["VERTEX_PRODUCT"] = "COLAB_ENTERPRISE"
    colab.set_drive("/content/drive", drive)
    try:
        with _installed(google_colab(colab), on_import):
            yield colab
    finally:
        colab.end()

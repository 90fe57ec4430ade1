"""The package `google.colab` as `fake_colab` installs it.

Names, parameters, defaults, exception classes and the order of events are those of googlecolab/colabtools (`drive.py`,
`userdata.py`, `auth.py`, `errors.py`, `_message.py`; read 2026-04). What the real ones print, and what they ask of the
page, is written to `FakeColab.calls`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, TypeAlias

__all__ = ["DriveFS", "DriveState", "Machine", "MessageError", "google_colab"]

DriveState: TypeAlias = Literal["unmounted", "mounted", "empty", "dead", "silent"]
"""Empty: mounted, and the user's files are not to be seen yet. Dead: every look fails with errno 107. Silent: no look
comes back until the machine is gone."""

DriveFS: TypeAlias = Literal["starts", "stops", "reads too long", "is forbidden", "times out", "starts late", "hangs"]
"""What Drive's own program does once it was allowed to start. "starts late": comes up, after the call has given up."""


class Machine(Protocol):
    """What the package does to the machine that it is installed on; `FakeColab` says what each of these is."""

    root: Path
    drivefs: DriveFS
    secrets: Mapping[str, str | None]
    environ: dict[str, str]
    calls: list[str]

    @property
    def in_kernel(self) -> bool:
        """Does the code under test run in the notebook's kernel?"""

    @property
    def mounts(self) -> Mapping[str, DriveState]:
        """Drive's mount points, each with how it fares."""

    def inside(self, path: str) -> str:
        """The machine's own name of a path."""

    def set_drive(self, point: str, state: DriveState) -> None:
        """Let Drive be so at that mount point."""

    def answers(self, question: str, timeout_sec: float | None) -> bool:
        """Wait for the page's answer."""

    def wait(self, seconds: float) -> None:
        """Wait as Colab does."""


class Error(Exception):
    """`google.colab.errors.Error`."""

    __module__ = "google.colab.errors"


class MessageError(Error):
    """`google.colab._message.MessageError`: the page answered with an error."""

    __module__ = "google.colab._message"


class SecretNotFoundError(Error):
    """`google.colab.userdata.SecretNotFoundError`."""

    __module__ = "google.colab.userdata"

    def __init__(self, key: str) -> None:
        super().__init__(f"Secret {key} does not exist.")


class NotebookAccessError(Exception):
    """`google.colab.userdata.NotebookAccessError`: no child of `Error`."""

    __module__ = "google.colab.userdata"

    def __init__(self, key: str) -> None:
        super().__init__(f"Notebook does not have access to secret {key}")


class TimeoutException(Error):
    """`google.colab.userdata.TimeoutException`."""

    __module__ = "google.colab.userdata"

    def __init__(self, key: str) -> None:
        super().__init__(f"Requesting secret {key} timed out. Secrets can only be fetched from the Colab UI.")


class ExceptionPexpect(Exception):
    """`pexpect.exceptions.ExceptionPexpect`."""

    __module__ = "pexpect.exceptions"


class TIMEOUT(ExceptionPexpect):
    """`pexpect.exceptions.TIMEOUT`: Drive's own program did not say what was expected of it."""

    __module__ = "pexpect.exceptions"


def google_colab(machine: Machine) -> dict[str, ModuleType]:
    """The modules by their full names, for `sys.modules`."""
    contents = {
        "errors": _named("google.colab.errors", Error),
        "_message": _message(machine),
        "drive": _drive(machine),
        "userdata": _userdata(machine),
        "auth": _auth(machine),
    }
    package = ModuleType("google.colab", "Colab Python APIs: the fake of colabkeep's tests.")
    package.__path__ = []
    modules = {"google.colab": package}
    for name, content in contents.items():
        module = ModuleType(f"google.colab.{name}")
        module.__dict__.update(content)
        package.__dict__[name] = modules[f"google.colab.{name}"] = module
    return modules


def _message(machine: Machine) -> dict[str, Any]:
    def blocking_request(
        request_type: str, request: Any = "", timeout_sec: float | None = 5, parent: Any = None
    ) -> Any:
        if not machine.in_kernel:
            raise AttributeError("'NoneType' object has no attribute 'kernel'")
        machine.calls.append(f"sent {request_type} {request}" + (f" to {parent}" if parent else ""))
        if not machine.answers(request_type, timeout_sec):
            return None
        if request_type != "GetSecret":
            return {}
        name = request["key"]
        if name not in machine.secrets:
            return {"exists": False}
        value = machine.secrets[name]
        return {"exists": True, "access": value is not None, "payload": value or ""}

    return _named("google.colab._message", MessageError, blocking_request)


def _drive(machine: Machine) -> dict[str, Any]:
    ask_page: Callable[..., Any] = _message(machine)["blocking_request"]

    def mount(mountpoint: str, force_remount: bool = False, timeout_ms: float = 120000, readonly: bool = False) -> None:
        point = machine.inside(mountpoint)
        options = f"force_remount={force_remount}, timeout_ms={timeout_ms}, readonly={readonly}"
        machine.calls.append(f"drive.mount({point}, {options})")
        if not (machine.root / "var/colab/hostname").exists():
            raise NotImplementedError("Mounting drive is unsupported in this environment. Use PyDrive2 instead.")
        if " " in point:
            raise ValueError("Mountpoint must not contain a space.")
        if machine.environ.get("VERTEX_PRODUCT") == "COLAB_ENTERPRISE":
            raise NotImplementedError("google.colab.drive.mount is not supported in Colab Enterprise.")
        address = machine.environ["TBE_EPHEM_CREDS_ADDR"]
        # The page is asked before it is looked whether Drive is there; and no answer is no error.
        allowed = ask_page("request_auth", {"authType": "dfs_ephemeral"}, int(timeout_ms / 1000)) is not None
        if not force_remount and (machine.root / point.lstrip("/") / "My Drive").is_dir():
            machine.calls.append(f"printed: Drive already mounted at {point}")
            return
        _kill_everything(machine, point)
        _check_mount_point(machine, point)
        machine.calls.append(f"started Drive with the credentials of {address}")
        _start(machine, point, timeout_ms, allowed=allowed)

    return _named("google.colab.drive", mount)


def _kill_everything(machine: Machine, point: str) -> None:
    """Unmounts that place, and SIGKILLs the program behind every other mount, with what it had not uploaded yet."""
    machine.set_drive(point, "unmounted")
    for other in machine.mounts:
        machine.calls.append(f"killed the Drive mounted at {other}")
        machine.set_drive(other, "dead")


def _check_mount_point(machine: Machine, point: str) -> None:
    place = machine.root / point.lstrip("/")
    if place.is_symlink():
        raise ValueError("Mountpoint must not be a symlink")
    if place.is_dir() and any(place.iterdir()):
        raise ValueError("Mountpoint must not already contain files")
    if place.exists() and not place.is_dir():
        raise ValueError("Mountpoint must either be a directory or not exist")
    if not place.parent.exists():
        raise ValueError("Mountpoint must be in a directory that exists")


def _start(machine: Machine, point: str, timeout_ms: float, *, allowed: bool) -> None:
    outcome = machine.drivefs
    if outcome == "hangs":
        machine.wait(float("inf"))
    if outcome == "is forbidden":
        policy = "The domain policy has disabled Drive File Stream"
        raise ValueError(f"{policy}: https://support.google.com/a/answer/7496409")
    if outcome == "reads too long":
        raise ValueError("mount failed: timeout during initial read of root folder; for more info: the FAQ")
    if outcome == "stops" or not allowed:
        raise ValueError("mount failed")
    if outcome in ("times out", "starts late"):
        machine.wait(timeout_ms / 1000 + 30)
        if outcome == "starts late":
            machine.set_drive(point, "mounted")
        raise TIMEOUT("Timeout exceeded.")
    machine.set_drive(point, "mounted")
    machine.calls.append(f"printed: Mounted at {point}")


def _userdata(machine: Machine) -> dict[str, Any]:
    ask_page: Callable[..., Any] = _message(machine)["blocking_request"]

    def get(key: str) -> Any:
        machine.calls.append(f"userdata.get({key!r})")
        if not key or not isinstance(key, str):
            raise ValueError("Please enter a valid secret name")
        if re.search(r"\s", key):
            raise ValueError("Secret name cannot contain spaces or whitespace")
        reply = ask_page("GetSecret", {"key": key}, 10)
        if not reply:
            raise TimeoutException(key)
        if not reply.get("exists", False):
            raise SecretNotFoundError(key)
        if not reply.get("access", False):
            raise NotebookAccessError(key)
        return reply.get("payload", "")

    return _named("google.colab.userdata", SecretNotFoundError, NotebookAccessError, TimeoutException, get)


def _auth(machine: Machine) -> dict[str, Any]:
    ask_page: Callable[..., Any] = _message(machine)["blocking_request"]
    signed_in: list[str] = []

    def authenticate_user(clear_output: bool = True, project_id: str | None = None) -> None:
        machine.calls.append(f"auth.authenticate_user(clear_output={clear_output}, project_id={project_id})")
        if machine.environ.get("VERTEX_PRODUCT") == "COLAB_ENTERPRISE":
            machine.calls.append("printed: WARNING: authenticate_user() is not supported in Colab Enterprise.")
            return
        _refuse_where_managed(machine)
        if signed_in:
            return
        if ask_page("request_auth", {"authType": "auth_user_ephemeral"}, None) is not None:
            signed_in.append("user")

    return _named("google.colab.auth", authenticate_user)


def _refuse_where_managed(machine: Machine) -> None:
    if (machine.root / "var/colab/mp").exists():
        raise NotImplementedError("This is unsupported in this environment.")


def _named(module: str, *things: Any) -> dict[str, Any]:
    for thing in things:
        thing.__module__ = module
    return {thing.__name__: thing for thing in things}

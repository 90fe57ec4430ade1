"""What a platform must tell, and what several of them use: the front end, and machines that are thrown away.

A new platform is one file, one line in `colabkeep.platforms`, and one subclass of the contract suite.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

from colabkeep.core.errors import SecretError
from colabkeep.core.system import Environment

FOLDER = "colabkeep-runs"
"""The folder that runs are kept in, on every platform."""


def front_end(environment: Environment) -> Literal["notebook", "terminal", "process"]:
    """notebook: a kernel, which a notebook talks to; terminal: IPython in a terminal; process: plain Python, also
    one that a notebook started with `!python`."""
    if not environment.shell:
        return "process"
    return "terminal" if "TerminalInteractiveShell" in environment.shell else "notebook"


_FILES = ("/.dockerenv", "/run/.containerenv")  # Docker's, and Podman's
_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
    "CLOUD_ML_JOB_ID": "a Vertex AI job",
    "AIP_MODEL_DIR": "a Vertex AI job",
    "SM_TRAINING_ENV": "a SageMaker job",
    "AZUREML_RUN_ID": "an Azure ML job",
    "AWS_BATCH_JOB_ID": "an AWS Batch job",
    "ECS_CONTAINER_METADATA_URI_V4": "a container of Amazon ECS",
    "K_SERVICE": "Cloud Run",
    "CLOUD_RUN_JOB": "a Cloud Run job",
    "DATABRICKS_RUNTIME_VERSION": "Databricks",  # the driver's own disk goes with the cluster
    "SPACE_ID": "a Space of the Hugging Face Hub",
    "GITHUB_ACTIONS": "a CI job",
    "CI": "a CI job",
    "container": "a container",  # systemd's container interface: podman, systemd-nspawn, lxc
}
_LAYERS = frozenset({"overlay", "fuse.fuse-overlayfs", "aufs", "tmpfs", "ramfs"})
"""File systems of a container's own layer, or of memory alone."""

MOUNTED_DRIVE = "fuse.drive"
"""The kind of a Google Drive that Colab has mounted, in the table of mounts; drive.py of googlecolab/colabtools looks
for it as well (2026-04)."""

_OCTAL = re.compile(r"\\([0-7]{3})")  # how the table of mounts writes blanks


def is_set(environment: Environment, name: str) -> bool:
    """Has the variable a value, other than one that means no?"""
    return environment.environ.get(name, "").strip().lower() not in ("", "0", "false")


def may_vanish(environment: Environment) -> str:
    """Why what lies on this machine's disk may be gone with it, as words that follow "this is"; "" where nothing says
    so. A folder on a disk of its own counts as lasting only where nothing else marks a container: what is mounted
    there may be the host's, or be made anew each time."""
    for file in _FILES:
        if environment.is_file(file):
            return f"a container ({file} is there)"
    for name, what in _VARIABLES.items():
        if is_set(environment, name):
            return f"{what} ({name} is set)"
    kind = file_system(environment)
    return f"a folder on {kind}, as containers and live systems have it" if kind in _LAYERS else ""


def is_container(environment: Environment) -> bool:
    """Is this one that sees only the devices that it was handed?"""
    variables = ("container", "KUBERNETES_SERVICE_HOST")
    return any(map(environment.is_file, _FILES)) or any(is_set(environment, name) for name in variables)


def mounts(environment: Environment) -> list[tuple[str, str]]:
    """Mount points and types, in the order of mounting."""
    lines = (line.split() for line in environment.text("/proc/mounts").splitlines())
    return [(_OCTAL.sub(lambda code: chr(int(code[1], 8)), words[1]), words[2]) for words in lines if len(words) > 2]


def file_system(environment: Environment) -> str:
    """The kind of file system that the current folder lies on; "" where that is not told (as outside Linux)."""
    folder = PurePosixPath(environment.folder)
    if folder.is_relative_to(environment.root):
        folder = "/" / folder.relative_to(environment.root)
    holding, kind = PurePosixPath(), ""
    for point, its_kind in mounts(environment):
        # Of two mounts at one point the later one hides the earlier.
        place = PurePosixPath(point)
        if place.is_absolute() and folder.is_relative_to(place) and len(place.parts) >= len(holding.parts):
            holding, kind = place, its_kind
    return kind


Confidence: TypeAlias = Literal["high", "medium", "low"]
"""How sure a fact is: read in the service's own source or documentation; several users; one user, old, or inferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """How long a session may last at most: `max_seconds` from its start, `idle_seconds` without a user; None where
    unknown or unlimited. `ends_cleanly`: training must end by itself before the limit, or its output is not kept.
    `source`: where the figure comes from, in a few words; `confidence` is that of `max_seconds`. `usual_seconds`: how
    long sessions really live until they vanish, by what users report, and `usual_source` says where."""

    max_seconds: float | None
    idle_seconds: float | None = None
    idle_confidence: Confidence = "low"
    ends_cleanly: bool = False
    source: str
    confidence: Confidence
    usual_seconds: float | None = None
    usual_source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A `folder` that is copied as a whole at each start. From `many_bytes` on that is worth a warning, which ends with
    `why`."""

    folder: str
    many_bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultStorage:
    """Where checkpoints go. `storage`: what `colabkeep.stores.open_store` takes. `folder`: the folder shown to the
    user. `persists`: does it outlive the machine (None: could not be proven)? `reason`: one sentence saying so and why.
    `remedy`: what to do now where it does not persist or that is not sure, else "". `earlier`: folders, read-only,
    that hold runs of earlier sessions (each contains folders of runs). `copied`: what is copied at each start.
    `packages`: the only folder whose installed packages outlive the machine, "" where each start brings them anew.
    `keeps`: the folder that the service itself keeps with all that is in it, "" where it keeps none."""

    storage: str
    folder: str
    persists: bool | None
    reason: str
    remedy: str = ""
    earlier: tuple[str, ...] = ()
    copied: Copied | None = None
    packages: str = ""
    keeps: str = ""


def in_folder(folder: Path, persists: bool | None, reason: str, remedy: str = "", **more: Any) -> DefaultStorage:
    """Checkpoints go to a plain folder of this machine."""
    place = str(folder)
    return DefaultStorage(storage=place, folder=place, persists=persists, reason=reason, remedy=remedy, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Menus:
    """The clicks of this service, each a menu path in one sentence; None where it has no such thing.

    `enable`: get a GPU where none is attached. `reconnect`: give this machine back and get another one.
    `switch`: choose another kind of accelerator. `offered`: the accelerators that can be had now, in words.
    `draws`: is the card drawn by chance on each connection, so that reconnecting may help? `hand_over`: how a container
    is given the GPUs of its host. `framework`: the package that the service's environments are made for.
    """

    enable: str | None = None
    reconnect: str | None = None
    switch: str | None = None
    offered: str = ""
    draws: bool = False
    hand_over: str | None = None
    framework: str = "torch"


class Platform:
    """One kind of machine: a notebook service, or a plain machine. It is recognised and described from an `Environment`
    alone, and its name is the registry's: "colab", "kaggle", "aistudio", …, "jupyter", "script".

    A platform overrides `matches` and `home`, and of the rest what is otherwise there. Every method but `mount`,
    `secret`, and what `google_user` returns:

    * MUST be quick (a few file look-ups), and MUST NOT raise for anything found in the environment, import a package
      of the service, start a process, ask the user, touch a network, or write a file.
    * MUST look up every path below `Environment.root`.

    `mount` and `secret` may ask the user and talk to the service's front end; they MUST return or raise in bounded
    time. A secret's value MUST NOT appear in an error, a log or a `repr`. A user's own token in a variable is never a
    marker.
    """

    name = ""
    title = ""
    """What people call it: "Google Colab"."""

    def matches(self, environment: Environment) -> bool:
        """Is this the platform of that environment? Platforms are asked in the registry's order."""
        raise NotImplementedError

    def kind(self, environment: Environment) -> str:
        """Which variety of it: "hosted", "enterprise", "batch", …; the words are in the platform's file."""
        return front_end(environment)

    def home(self, environment: Environment) -> DefaultStorage:
        """Where checkpoints go as things stand now; nothing is mounted for it."""
        raise NotImplementedError

    def mount(self, environment: Environment, *, timeout: float) -> DefaultStorage:
        """Make the persistent place ready, asking the user if need be, who has `timeout` seconds for the answer; the
        service may take a minute more to start it. Healthy already: returns at once.

        Raises:
            MountError: it could not be reached, and why; the remedy is the right next click.
        """
        return self.home(environment)

    @property
    def mounts(self) -> bool:
        """Does `mount` do more than say where the place is? Such a place may die under a training."""
        return type(self).mount is not Platform.mount

    def limits(self, environment: Environment) -> SessionLimits:
        """How long a session of this kind lasts at most."""
        return SessionLimits(max_seconds=None, source="nobody has published a limit", confidence="low")

    def menus(self, environment: Environment) -> Menus:
        """What to click."""
        return Menus()

    def secret(self, environment: Environment, name: str, *, timeout: float) -> str:
        """The value of the user's secret `name`: here, of the environment variable of that name.

        Raises:
            SecretError: there is none, access is not granted, or the service does not answer; they are told apart.
        """
        value = environment.environ.get(name, "")
        if value:
            return value
        raise SecretError(
            problem=f"There is no secret {name!r}: no environment variable of that name is set, or it is empty.",
            remedy=f"Set it where this program is started (export {name}=…), or in a cell that nobody else sees: "
            f'import os, getpass; os.environ["{name}"] = getpass.getpass()',
        )

    def google_user(self, environment: Environment) -> Callable[[], None] | None:
        """What makes the user of the notebook's page known to Google's libraries; None where no page can do that.

        Calling it may show a dialog. It raises `PlatformError` where nobody agrees. On the main thread only.
        """
        return None

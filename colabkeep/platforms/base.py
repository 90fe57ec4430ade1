"""What a platform must tell. A new platform is one file, one line in `colabkeep.platforms`, and one subclass of
`colabkeep.testing.platforms.PlatformContract`; one without a file of its own is a row of the table in `others.py`.

A platform is a notebook service, or a plain machine. It is recognised and described from an `Environment` alone.
Every method but `mount` and `secret`:

* MUST be quick (a few file look-ups), and MUST NOT raise for anything found in the environment, import a package
  of the service, start a process, ask the user, touch a network, or write a file.
* MUST look up every path below `Environment.root`.

`mount` and `secret` may ask the user and talk to the service's front end; they MUST return or raise in bounded time.
A secret's value MUST NOT appear in an error, a log or a `repr`. A user's own token in a variable is never a marker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from colabkeep.vocabulary.environment import Environment

__all__ = ["Confidence", "Copied", "Home", "Menus", "Platform", "SessionLimits"]

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
class Home:
    """Where checkpoints go. `storage`: what `colabkeep.stores.open_store` takes. `folder`: the folder shown to the
    user. `persists`: does it outlive the machine (None: could not be proven)? `reason`: one sentence saying so and why.
    `remedy`: what to do now where it does not persist or that is not sure, else "". `earlier`: folders, read-only,
    that hold runs of earlier sessions (each contains folders of runs). `copied`: what is copied at each start.
    `packages`: the only folder whose installed packages outlive the machine, "" where each start brings them anew."""

    storage: str
    folder: str
    persists: bool | None
    reason: str
    remedy: str = ""
    earlier: tuple[str, ...] = ()
    copied: Copied | None = None
    packages: str = ""


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


class Platform(Protocol):
    """One kind of machine. The obligations are on top of this page."""

    name: str
    """The registry's name: "colab", "kaggle", "aistudio", …, "jupyter", "script"."""

    title: str
    """What people call it: "Google Colab"."""

    def matches(self, environment: Environment) -> bool:
        """Is this the platform of that environment? Platforms are asked in the registry's order."""
        ...

    def kind(self, environment: Environment) -> str:
        """Which variety of it: "hosted", "enterprise", "batch", …; the words are in the platform's file."""
        ...

    def home(self, environment: Environment) -> Home:
        """Where checkpoints go as things stand now; nothing is mounted for it."""
        ...

    def mount(self, environment: Environment, *, timeout: float) -> Home:
        """Make the persistent place ready, asking the user if need be, who has `timeout` seconds for the answer; the
        service may take a minute more to start it. Healthy already: returns at once.

        Raises:
            MountError: it could not be reached, and why; the remedy is the right next click.
        """
        ...

    def limits(self, environment: Environment) -> SessionLimits:
        """How long a session of this kind lasts at most."""
        ...

    def menus(self, environment: Environment) -> Menus:
        """What to click."""
        ...

    def secret(self, environment: Environment, name: str, *, timeout: float) -> str:
        """The value of the user's secret `name`.

        Raises:
            SecretError: there is none, access is not granted, or the service does not answer; they are told apart.
        """
        ...

    def google_user(self, environment: Environment) -> Callable[[], None] | None:
        """What makes the user of the notebook's page known to Google's libraries; None where no page can do that.

        Calling it may show a dialog. It raises `PlatformError` where nobody agrees. On the main thread only.
        """
        ...

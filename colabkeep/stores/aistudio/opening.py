"""From a URL to a store: aistudio://owner/repo, aistudio://owner/repo/folder."""

from __future__ import annotations

import re
from importlib.util import find_spec

from colabkeep.stores._patience import Patience
from colabkeep.stores._shown import shown
from colabkeep.stores.aistudio.hub import Hub
from colabkeep.stores.aistudio.sdk import INSTALL, Sdk
from colabkeep.stores.aistudio.store import AIStudioStore
from colabkeep.stores.doors import Doors
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import MissingDependency, UsageError

__all__ = ["open_url"]

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_PLACE = re.compile(rf"aistudio://(?P<repo>{_PART}/{_PART})(?:/(?P<folder>{_PART}(?:/{_PART})*))?/?")
_HOST = "https://git.aistudio.baidu.com"  # aistudio_sdk/config.py 0.3.9
_TOKEN = "AISTUDIO_ACCESS_TOKEN"  # noqa: S105 - its name


def open_url(
    url: str,
    doors: Doors = Doors(),
    *,
    token: str | None = None,
    endpoint: str | None = None,
    patience: Patience | None = None,
) -> AIStudioStore:
    """The store at an aistudio:// URL. Nothing is contacted yet.

    `token` is looked for, where none is given, as aistudio-sdk does (the variable AISTUDIO_ACCESS_TOKEN, before the
    file that its login leaves), and among the platform's secrets. It is kept in memory, nowhere else. `endpoint` is
    another server than AI Studio's, for its git and its models; by default what STUDIO_GIT_HOST says.

    Raises:
        UsageError: it names no repository.
        MissingDependency: aistudio-sdk is not installed.
    """
    match = _PLACE.fullmatch(url.strip())
    if match is None:
        raise UsageError(
            problem=f"storage={shown(url)} names no repository of models on AI Studio.",
            remedy="Write aistudio://owner/repo, or aistudio://owner/repo/folder, the owner being your user number.",
        )
    if find_spec("aistudio_sdk") is None:
        raise MissingDependency(problem="The store for aistudio:// cannot be loaded: no aistudio-sdk.", remedy=INSTALL)
    here = Environment.here()
    token = token or here.environ.get(_TOKEN, "") or doors.find_secret(_TOKEN) or _cached(here)
    host = endpoint or here.environ.get("STUDIO_GIT_HOST", "") or _HOST
    hub = Hub(match["repo"], match["folder"] or "", token=token, endpoint=host, patience=patience)
    own = {} if endpoint is None else {"STUDIO_GIT_HOST": endpoint, "STUDIO_MODEL_API_URL_PREFIX": endpoint}
    sdk = Sdk(match["repo"], token, environ=own) if token else None
    return AIStudioStore(hub, sdk, url.strip().rstrip("/"))


def _cached(here: Environment) -> str:
    """The token that `aistudio config --token` keeps in the user's cache; "" if there is none."""
    home = here.environ.get("AISTUDIO_CACHE_HOME") or here.environ.get("HOME", "")
    return here.text(f"{home}/.cache/aistudio/.auth/token", limit=4096).strip() if home else ""

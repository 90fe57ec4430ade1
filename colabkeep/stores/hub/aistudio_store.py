"""The store in a repository on AI Studio's hub, and how a URL becomes one."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import BinaryIO

from colabkeep.core.errors import MissingDependency, NameTaken, ObjectNotFound, StoreError, StoreUnavailable, UsageError
from colabkeep.core.system import Environment
from colabkeep.stores.base import Entry, Receipt, Source, StoreContext, StoreProperties, check_name, shown
from colabkeep.stores.hub.aistudio import INSTALL, WORDS, Fact, Hub, Sdk
from colabkeep.stores.hub.lfs import Spooled, spooled
from colabkeep.stores.shared.listings import Confirmed, Listings
from colabkeep.stores.shared.locks import NoLock
from colabkeep.stores.shared.retry import Patience

__all__ = [
    "AIStudioStore",
    "open_url",
]


class AIStudioStore:
    """Objects as files of a repository, which is made, private, when the first one is put. One that others can read is
    refused.

    **Confirmed** means, for a small file: git states its own digest of these bytes. For a large one: git states the
    pointer with their SHA-256 and size, and the object storage states as many bytes and their MD5; where it states
    none, they are read back once. aistudio-sdk itself reports success for files it skipped, so nothing it says counts.
    Of a large file that another session put, the pointer and the number of bytes are taken.

    **Written once**, by looking: aistudio-sdk looks whether a name is there, and replaces it. Two sessions that put the
    same name within the same second can both succeed; colabkeep's names hold the digest or the session, so that they do
    not.

    **Commits.** Each object is a commit of its own, each deletion another one. **Space:** the history keeps what was
    deleted, and no way to take it out is known, so a run that is pruned still grows.
    """

    def __init__(self, hub: Hub, sdk: Sdk | None, url: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._hub = hub
        self._sdk = sdk
        self._url = url
        self._turn = threading.Lock()  # held while the repository is looked at for the first time
        self._is_private = False
        self._listings = Listings(self._find, monotonic)
        self._confirmed = Confirmed()

    @property
    def url(self) -> str:
        return self._url

    @property
    def properties(self) -> StoreProperties:
        # aistudio_sdk/config.py 0.3.9: LFS_FILE_SIZE_LIMIT
        return StoreProperties(top_rung="confirmed", persists=True, max_object_bytes=50 * 2**30)

    @property
    def degraded(self) -> str | None:
        return None

    def put(self, name: str, source: Source) -> Receipt:
        check_name(name)
        with spooled(name, source) as file:
            sdk = self._see_repository()
            if self._hub.fact(name) is not None:
                raise self._taken(name)
            try:
                fact = self._hub.patience(lambda: self._sent(sdk, name, file))
            except BaseException:
                self._listings.forget(name)
                raise
        self._confirmed.learn(name, file.sha256)
        self._listings.wrote(name, fact)
        return Receipt(name=name, size=file.size, sha256=file.sha256, rung="confirmed")

    def get(self, name: str) -> BinaryIO:
        fact = self._hub.fact(check_name(name))
        if fact is None:
            self._see_sign_in()
            raise ObjectNotFound(
                problem=f"There is no object {name!r} in {self._url}.",
                remedy="See `colabkeep show`: it may have been pruned.",
            )
        return self._hub.reader(fact)

    def doubt(self, name: str) -> bool:
        return False  # there is one copy only

    def list(self, prefix: str) -> Sequence[Entry]:
        if prefix:
            check_name(prefix)
        return [Entry(name=name, size=fact.size) for name, fact in self._listings.below(prefix).items()]

    def delete(self, name: str) -> None:
        check_name(name)
        self._confirmed.forget(name)
        fact = self._hub.fact(name)
        if fact is not None:
            with suppress(ObjectNotFound):  # somebody else was faster, or our own first attempt
                self._hub.delete(fact)
        self._listings.deleted(name)

    def confirm(self, receipt: Receipt) -> Receipt:
        return self._confirmed.answer(receipt, self._states)

    def lock(self, name: str, holder: str) -> NoLock:
        check_name(name)
        return NoLock()

    def sweep(self, prefix: str) -> int:
        if prefix:
            check_name(prefix)
        return 0  # large files that no commit names are not seen by anybody

    def flush(self, timeout: float) -> bool:
        return True

    def close(self) -> None:
        """Stop aistudio-sdk. Objects stay."""
        if self._sdk is not None:
            self._sdk.close()

    def _sent(self, sdk: Sdk, name: str, file: Spooled) -> Fact:
        """One attempt to bring the file there, and what the hub states about it then."""
        fact = self._hub.fact(name)  # a former attempt may have come through after all
        if fact is None:
            said = sdk.upload(file.path, self._hub.path(name), file.size)
            fact = self._hub.fact(name)
            if fact is None:
                raise sdk.refused(name, said)
        if not self._holds(fact, file):
            with suppress(StoreError):
                self._hub.delete(fact)
            raise StoreUnavailable(
                problem=f"{name!r} did not arrive in {self._url} as it was sent; it was deleted there.",
                remedy="It is sent again by itself. If that goes on, AI Studio keeps the damaged bytes: name another "
                "repository.",
            )
        return fact

    def _holds(self, fact: Fact, file: Spooled) -> bool:
        if fact.is_small(file.git):
            return True
        if not fact.points_to(file.sha256, file.size):
            return False
        size, etag = self._hub.stored(fact)
        return size == file.size and (etag == file.md5 or self._hub.reads_as(fact) == file.sha256)

    def _find(self, prefix: str) -> dict[str, Fact]:
        """All objects below the prefix; what another session deleted is not called confirmed any more."""
        found: dict[str, Fact] = {}
        try:
            found = {fact.name: fact for fact in self._hub.tree(prefix) if _is_legal(fact.name)}
        except ObjectNotFound:
            self._see_sign_in()  # to a stranger, a private repository looks like none
        self._confirmed.listed(prefix, found)
        return found

    def _states(self, receipt: Receipt) -> bool | None:
        fact = self._listings.known(receipt.name) or self._hub.glance(receipt.name)
        return None if fact is None else self._hub.states(fact, receipt.sha256, receipt.size)

    def _see_sign_in(self) -> Sdk:
        if self._sdk is None:
            raise StoreError(
                problem=f"{self._url} cannot be used without a token: nobody is signed in to AI Studio.",
                remedy=WORDS.sign_in,
            )
        return self._sdk

    def _see_repository(self) -> Sdk:
        """That there is one, of the user's own, which nobody else can read; it is made if there is none."""
        sdk = self._see_sign_in()
        with self._turn:
            if self._is_private:
                return sdk
            if not self._hub.exists():
                self._hub.patience(sdk.create)
                if not self._hub.exists():
                    raise StoreError(
                        problem=f"{self._url} was made, and is not there: the token seems to be another user's.",
                        remedy=WORDS.missing,
                    )
            if self._hub.is_public():
                raise StoreError(
                    problem=f"{self._url} is public: anybody could read your checkpoints. Nothing was uploaded.",
                    remedy="Make it private on its page, or name another repository: colabkeep makes it, private.",
                )
            self._is_private = True
        return sdk

    def _taken(self, name: str) -> NameTaken:
        return NameTaken(
            problem=f"{name!r} exists already in {self._url}; its bytes are untouched.",
            remedy="Names are written once: choose another name, or delete the old object first.",
        )


def _is_legal(name: str) -> bool:
    with suppress(UsageError):
        return bool(check_name(name))
    return False


_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_PLACE = re.compile(rf"aistudio://(?P<repo>{_PART}/{_PART})(?:/(?P<folder>{_PART}(?:/{_PART})*))?/?")
_HOST = "https://git.aistudio.baidu.com"  # aistudio_sdk/config.py 0.3.9
_TOKEN = "AISTUDIO_ACCESS_TOKEN"  # noqa: S105 - its name


def open_url(
    url: str,
    context: StoreContext = StoreContext(),
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
    token = token or here.environ.get(_TOKEN, "") or context.find_secret(_TOKEN) or _cached(here)
    host = endpoint or here.environ.get("STUDIO_GIT_HOST", "") or _HOST
    hub = Hub(match["repo"], match["folder"] or "", token=token, endpoint=host, patience=patience)
    own = {} if endpoint is None else {"STUDIO_GIT_HOST": endpoint, "STUDIO_MODEL_API_URL_PREFIX": endpoint}
    sdk = Sdk(match["repo"], token, environ=own) if token else None
    return AIStudioStore(hub, sdk, url.strip().rstrip("/"))


def _cached(here: Environment) -> str:
    """The token that `aistudio config --token` keeps in the user's cache; "" if there is none."""
    home = here.environ.get("AISTUDIO_CACHE_HOME") or here.environ.get("HOME", "")
    return here.text(f"{home}/.cache/aistudio/.auth/token", limit=4096).strip() if home else ""

"""The questions that can be asked of Kaggle about one dataset, through a child process, each bounded, tried again
while that is sensible, and explained when refused.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colabkeep.core.errors import ColabKeepError, MissingDependency, ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.core.rate_limits import KAGGLE_VERSION_SECONDS
from colabkeep.stores.shared.process import Process
from colabkeep.stores.shared.retry import Patience, Throttled

__all__ = [
    "CHILD",
    "INSTALL",
    "Hub",
    "Pace",
    "Service",
    "explained",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The defaults are chosen, except where a source is named: Kaggle publishes no figures.

    * `first`: from the first object to the first version, which proves early that the way works.
    * `every`: from one version to the next, for each is uploaded whole.
    * `retry`: the first pause after a failure; it doubles, up to `every`.
    * `call`: for an answer. `slowest`, in bytes per second, is what makes that longer for a transfer.
    * `look`: when a dataset is opened, for a version that is still being processed.
    * `ready`: for a new version to be processed, which Kaggle does in its own time and without which no other can
      follow the first one (Kaggle/kagglehub #181, November 2024).
    * `appear`: for a new version to be seen at all; one beyond the quota never is (Kaggle/kaggle-cli #284).
    * `poll`: between two questions about that.
    """

    first: float = 60.0
    every: float = KAGGLE_VERSION_SECONDS
    retry: float = 15.0
    call: float = 120.0
    slowest: float = 256 * 2**10
    look: float = 120.0
    ready: float = 1800.0
    appear: float = 300.0
    poll: float = 10.0

    def transfer(self, size: int) -> float:
        """The time that so many bytes may take."""
        return self.call + size / self.slowest


INSTALL = 'Install Kaggle\'s client: pip install "colabkeep[kaggle]" (Kaggle and Colab have it already).'

_SIGN_IN = (
    "Inside a Kaggle notebook nothing is needed. Elsewhere: kaggle.com → Settings → API → Generate New Token, and put "
    "it into the environment variable KAGGLE_API_TOKEN before training (on Colab: keep it as a secret, then "
    'os.environ["KAGGLE_API_TOKEN"] = userdata.get("KAGGLE_API_TOKEN")). The older ~/.kaggle/kaggle.json works too.'
)
_NETWORK = frozenset({"ConnectionError", "Timeout", "ChunkedEncodingError", "DataCorruptionError", "BackendError"})
_WAIT_SECONDS = 60.0  # after 429 without Retry-After: Kaggle publishes no figure (Kaggle/kaggle-cli #931)


def explained(told: Mapping[str, Any], doing: str, handle: str) -> ColabKeepError:
    """The error for what `child` reported. `doing` completes "could not …".

    `told`: "kinds", the names of the exception's classes; "code", the HTTP status, if any; "wait", the seconds that
    Kaggle asks for; "said", the service's own words, from which addresses and credentials were taken out.
    """
    kinds, code = set(told.get("kinds", ())), told.get("code")
    said = f" ({told['said']})" if told.get("said") else ""
    what = f"Could not {doing} the Kaggle dataset {handle}"
    kept = "Checkpoints on this machine are untouched."
    if "ImportError" in kinds:
        return MissingDependency(problem=f"{what}: kagglehub cannot be loaded{said}.", remedy=INSTALL)
    if "FileNotFoundError" in kinds:
        return StoreUnavailable(
            problem=f"{what}: an object was deleted in this very moment.",
            remedy="Nothing needs to be done: it is tried again without it.",
        )
    if code == 401 or kinds & {"UnauthenticatedError", "CredentialError"}:
        return StoreError(problem=f"{what}: Kaggle does not know who asks{said}. {kept}", remedy=_SIGN_IN)
    if code == 403:
        owner = handle.partition("/")[0]
        return StoreError(
            problem=f"{what}: Kaggle does not allow it{said}. {kept}",
            remedy=f"Is {owner!r} your user name, as in kaggle.com/{owner}? Then the token belongs to another account. "
            f"{_SIGN_IN}",
        )
    if code == 404:
        return ObjectNotFound(
            problem=f"{what}: Kaggle has no such thing{said}.",
            remedy=f"Look at kaggle.com/datasets/{handle}, and whether storage= names the right dataset.",
        )
    if code == 429:
        return Throttled(
            problem=f"{what}: Kaggle asks for a pause{said}. {kept}",
            remedy="Nothing needs to be done: it is tried again after the pause.",
            seconds=float(told.get("wait") or _WAIT_SECONDS),
        )
    if kinds & _NETWORK or (isinstance(code, int) and (code == 408 or code >= 500)):
        answer = f"it answered with code {code}" if code else "the connection failed"
        return StoreUnavailable(
            problem=f"{what}: {answer}{said}. {kept}",
            remedy="It is tried again. On Kaggle: is Settings → Internet on? (It needs a verified phone number.)",
        )
    name = next(iter(told.get("kinds", ())), "unknown")
    return StoreError(
        problem=f"{what}: {name}{said}, code {code}. {kept}" if code else f"{what}: {name}{said}. {kept}",
        remedy="If it stays so, choose another storage=, and report it with these words.",
    )


CHILD = (sys.executable, "-m", "colabkeep.stores.kaggle.child")
"""The program of the child."""


class Hub:
    """The dataset `handle`, "owner/name"; `folder` is where downloads and the links for an upload go.

    The environment is this process's, so that Kaggle's client finds the user's credentials by itself; `environ`
    replaces it.
    """

    def __init__(
        self,
        handle: str,
        folder: str,
        *,
        command: Sequence[str] = CHILD,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.handle = handle
        self.folder = folder
        own = {
            "KAGGLEHUB_CACHE": os.path.join(folder, "downloads"),  # noqa: PTH118
            "DISABLE_KAGGLE_CACHE": "true",  # else nothing is downloaded, but attached, and waited for without a bound
            "DISABLE_COLAB_CACHE": "true",
        }
        self.process = Process(
            command,
            place=f"the Kaggle dataset {handle}",
            service="Kaggle",
            silent="It is tried again. On Kaggle, see that Settings → Internet is on.",
            environ={**(environ or {}), **own},
            inherits=environ is None,
        )

    def ask(self, doing: str, operation: str, timeout: float, **what: Any) -> dict[str, Any]:
        """The child's answer to `operation` for this dataset. `doing` completes "could not …".

        Raises:
            StoreError, MissingDependency: as `explained`.
            StoreUnavailable: there was no answer within `timeout` seconds (the child was killed), or it died.
        """
        owner, _, name = self.handle.partition("/")
        request = {"operation": operation, "owner": owner, "name": name, **what}
        answer = self.process.ask(doing, request, timeout)
        if "failed" in answer:
            raise explained(answer["failed"], doing, self.handle)
        done: dict[str, Any] = answer["done"]
        return done

    def close(self) -> None:
        """Kill the child, in the middle of whatever it does."""
        self.process.close()


class Service:
    """One dataset at Kaggle. All methods raise `StoreError`s, as `explained`; versions count from 1."""

    def __init__(self, hub: Hub, pace: Pace) -> None:
        self._hub = hub
        self._closed = threading.Event()
        self._patience = Patience(first=min(1.0, pace.poll), sleep=self.sleep)
        self.handle = hub.handle
        self.pace = pace

    def sleep(self, seconds: float) -> None:
        """Wait that long, but not beyond `close`."""
        self._closed.wait(seconds)

    def head(self) -> tuple[int, str]:
        """The newest version, 0 if there is none; and the state it is in, "" if there is no such dataset."""
        answer = self._patience(lambda: self._hub.ask("look at", "head", self.pace.call))
        return int(answer["version"]), str(answer["status"])

    def listing(self, version: int) -> dict[str, int]:
        """The files of a version and their sizes in bytes."""
        answer = self._patience(lambda: self._hub.ask("list", "listing", self.pace.call, version=version))
        return {str(file): int(size) for file, size in answer["files"].items()}

    def digests(self, version: int, files: Mapping[str, int]) -> dict[str, str]:
        """The MD5 that is stated for each of the files, of which the sizes are given."""
        timeout = self.pace.transfer(sum(files.values()))
        answer = self._patience(
            lambda: self._hub.ask("check", "digests", timeout, version=version, files=sorted(files))
        )
        return {str(file): str(md5) for file, md5 in answer["md5"].items()}

    @contextmanager
    def downloaded(self, version: int, file: str, size: int) -> Iterator[Path]:
        """A file, on this machine's disk for as long as it is needed."""
        timeout = self.pace.transfer(size)
        answer = self._patience(lambda: self._hub.ask("read", "download", timeout, version=version, file=file))
        path = Path(str(answer["path"]))
        try:
            yield path
        finally:
            self._hub.ask("tidy up after", "drop", self.pace.call, path=str(path))

    def upload(self, paths: Mapping[str, str], sizes: Sequence[int], notes: str) -> None:
        """Send these files (`paths`: file → where it lies) as a new version. Tried once: it may be gigabytes."""
        links = str(Path(self._hub.folder) / "links")
        timeout = self.pace.transfer(sum(sizes))
        self._hub.ask("publish a version of", "upload", timeout, folder=links, files=dict(paths), notes=notes)

    def close(self) -> None:
        """Give up whatever is being asked."""
        self._closed.set()
        self._hub.close()

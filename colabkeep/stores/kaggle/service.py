"""The questions that can be asked of Kaggle about one dataset, through a child process, each bounded, tried again
while that is sensible, and explained when refused.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colabkeep.core.errors import ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.core.rate_limits import KAGGLE_VERSION_SECONDS
from colabkeep.stores.shared.process import Process
from colabkeep.stores.shared.retry import Asking, Patience, Words


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
        return self.call + size / self.slowest


INSTALL = 'Install Kaggle\'s client: pip install "colabkeep[kaggle]" (Kaggle and Colab have it already).'

_SIGN_IN = (
    "Inside a Kaggle notebook nothing is needed. Elsewhere: kaggle.com → Settings → API → Generate New Token, and put "
    "it into the environment variable KAGGLE_API_TOKEN before training (on Colab: keep it as a secret, then "
    'os.environ["KAGGLE_API_TOKEN"] = userdata.get("KAGGLE_API_TOKEN")). The older ~/.kaggle/kaggle.json works too. '
    "The token must be of the account {owner!r}, as in kaggle.com/{owner}."
)
_WAIT_SECONDS = 60.0  # after 429 without Retry-After: Kaggle publishes no figure (Kaggle/kaggle-cli #931)

CHILD = (sys.executable, "-m", "colabkeep.stores.kaggle.child")
"""The program of the child."""


class Service:
    """The dataset `handle`, "owner/name", at Kaggle. All methods raise `StoreError`s; versions count from 1. `folder`
    is where downloads and the links for an upload go.

    The child's environment is this process's, so that Kaggle's client finds the user's credentials by itself; `environ`
    replaces it.
    """

    def __init__(
        self,
        handle: str,
        folder: Path,
        pace: Pace = Pace(),
        *,
        command: Sequence[str] = CHILD,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._closed = threading.Event()
        self.handle = handle
        self.pace = pace
        place, owner = f"kaggle://{handle}", handle.partition("/")[0]
        own = {
            "KAGGLEHUB_CACHE": str(folder / "downloads"),
            "DISABLE_KAGGLE_CACHE": "true",  # else nothing is downloaded, but attached, and waited for without a bound
            "DISABLE_COLAB_CACHE": "true",
        }
        self.process = Process(
            command,
            place=place,
            service="Kaggle",
            silent="It is tried again. On Kaggle, see that Settings → Internet is on.",
            environ={**(environ or {}), **own},
            inherits=environ is None,
        )
        words = Words(
            sign_in=_SIGN_IN.format(owner=owner),
            missing=f"Look at kaggle.com/datasets/{handle}, and whether storage= names the right dataset.",
            install=INSTALL,
            wait=_WAIT_SECONDS,
        )
        self._asking = Asking(place, words, Patience(first=min(1.0, pace.poll), sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        """Wait that long, but not beyond `close`."""
        self._closed.wait(seconds)

    def head(self) -> tuple[int, str]:
        """The newest version, 0 if there is none; and the state it is in, "" if there is no such dataset."""
        answer = self._ask("be looked at", "head", self.pace.call)
        return int(answer["version"]), str(answer["status"])

    def listing(self, version: int) -> dict[str, int]:
        """The files of a version and their sizes in bytes.

        Raises:
            ObjectNotFound: there is no such version, or it has no files.
        """
        answer = self._ask("be listed", "listing", self.pace.call, missing=ObjectNotFound, version=version)
        return {str(file): int(size) for file, size in answer["files"].items()}

    def digests(self, version: int, files: Mapping[str, int]) -> dict[str, str]:
        """The MD5 that is stated for each of the files, of which the sizes are given."""
        timeout = self.pace.transfer(sum(files.values()))
        answer = self._ask("be checked", "digests", timeout, version=version, files=sorted(files))
        return {str(file): str(md5) for file, md5 in answer["md5"].items()}

    @contextmanager
    def downloaded(self, version: int, file: str, size: int) -> Iterator[Path]:
        """A file, on this machine's disk for as long as it is needed."""
        timeout = self.pace.transfer(size)
        answer = self._ask(f"read {file!r}", "download", timeout, missing=ObjectNotFound, version=version, file=file)
        path = Path(str(answer["path"]))
        try:
            yield path
        finally:
            self._ask("drop a download", "drop", self.pace.call, path=str(path))

    def upload(self, paths: Mapping[str, str], sizes: Sequence[int], notes: str) -> None:
        """Send these files (`paths`: file → where it lies) as a new version. Tried once: it may be gigabytes.

        Raises:
            StoreUnavailable: an object was deleted in this very moment, or whatever else may pass.
        """
        links = str(self._folder / "links")
        timeout, what = self.pace.transfer(sum(sizes)), {"folder": links, "files": dict(paths), "notes": notes}
        self._ask("take a new version", "upload", timeout, again=False, missing=StoreUnavailable, **what)

    def close(self) -> None:
        self._closed.set()
        self.process.close()

    def _ask(
        self,
        doing: str,
        operation: str,
        timeout: float,
        *,
        again: bool = True,
        missing: type[StoreError] = StoreError,
        **what: Any,
    ) -> Any:
        owner, _, name = self.handle.partition("/")
        request = {"operation": operation, "owner": owner, "name": name, **what}
        return self._asking(doing, lambda: self.process.ask(doing, request, timeout), again=again, missing=missing)

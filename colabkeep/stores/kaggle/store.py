"""The store of a Kaggle dataset, for the user's account: `kaggle://owner/name`; and the thread that publishes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from colabkeep.core.errors import ColabKeepError, MissingDependency, UsageError
from colabkeep.core.rate_limits import KAGGLE
from colabkeep.core.system import Environment
from colabkeep.stores.base import Entry, Lock, Receipt, Source, Store, StoreContext, StoreProperties, shown
from colabkeep.stores.kaggle.contents import Contents
from colabkeep.stores.kaggle.dataset import Dataset
from colabkeep.stores.kaggle.service import INSTALL, Pace, Service
from colabkeep.stores.shared.retry import Throttled

_STOP_SECONDS = 10.0
_MOST_DOUBLINGS = 30


class Publisher:
    """Calls `publish` in a daemon thread, which is started by the first change.

    A failure is tried again after a pause that grows, or that Kaggle names; `trouble` says what it was until it is
    over. All that changes is guarded by `_state`.
    """

    def __init__(
        self, publish: Callable[[], None], pace: Pace, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._publish = publish
        self._pace = pace
        self._monotonic = monotonic
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None
        self._changes = 0  # counted from the beginning
        self._urgent = 0  # the last one that a version is made for
        self._done = 0  # the last one that is published
        self._due: float | None = None  # when the next version is to be made, as `monotonic`
        self._not_before = 0.0  # what holds for those who wait, too
        self._failures = 0  # in a row
        self._waiting = 0
        self._hurry = False  # the next attempt is wanted now
        self._closed = False
        self.trouble: str | None = None

    def changed(self, *, urgent: bool = True) -> None:
        """There is something to publish. What is not `urgent` goes along with the next version, or when one waits."""
        with self._state:
            self._changes += 1
            if urgent:
                self._urgent = self._changes
                self._due = self._due or self._monotonic() + self._pace.first
                self._start()
            self._state.notify_all()

    def wait(self, timeout: float) -> bool:
        """Publish now, not when it is due; True once everything is published, False after `timeout` seconds."""
        with self._state:
            self._waiting, self._hurry = self._waiting + 1, True
            try:
                if self._changes > self._done:
                    self._start()
                self._state.notify_all()
                self._state.wait_for(lambda: self._closed or self._changes == self._done, timeout)
                return self._changes == self._done
            finally:
                self._waiting -= 1

    def close(self, stop: Callable[[], None]) -> None:
        """End the thread. `stop` makes what it is doing fail."""
        with self._state:
            self._closed = True
            self._state.notify_all()
            thread = self._thread
        stop()
        if thread is not None:
            thread.join(_STOP_SECONDS)

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._work, name="colabkeep-kaggle", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        upto = self._next()
        while upto is not None:
            try:
                self._publish()
            except Exception as error:  # noqa: BLE001  # told by `trouble`, and tried again
                self._failed(error)
            else:
                self._succeeded(upto)
            upto = self._next()

    def _next(self) -> int | None:
        """Wait until a version is to be made; returns the changes it will have, None at the end."""
        with self._state:
            while not self._closed:
                asked = self._waiting > 0 or self._hurry
                wanted = self._changes > self._done and (asked or self._urgent > self._done)
                due = self._not_before if asked else max(self._due or 0.0, self._not_before)
                pause = due - self._monotonic()
                if wanted and pause <= 0:
                    self._hurry = False
                    return self._changes
                self._state.wait(pause if wanted else None)
            return None

    def _succeeded(self, upto: int) -> None:
        with self._state:
            self._done, self._failures, self.trouble = upto, 0, None
            self._due = self._monotonic() + self._pace.every
            self._state.notify_all()

    def _failed(self, error: Exception) -> None:
        with self._state:
            grown = min(self._pace.retry * 2.0**self._failures, self._pace.every)
            named = error.seconds if isinstance(error, Throttled) else 0.0
            self._failures = min(self._failures + 1, _MOST_DOUBLINGS)
            self._due = self._monotonic() + max(grown, named)
            self._not_before = self._monotonic() + max(min(grown, self._pace.retry), named)
            if isinstance(error, ColabKeepError):
                self.trouble = f"{error.problem} {error.remedy}"
            else:
                self.trouble = f"{type(error).__name__}: {error}"


_URL = re.compile(r"kaggle://([A-Za-z0-9_-]+)/([a-z0-9-]{6,50})/?", re.IGNORECASE)
_FOLDER = "~/.cache/colabkeep"


class KaggleStore(Store):
    """Objects in a private dataset of the user's. `put` is done when the object is on this machine's disk, in
    `folder`, which is this store's own; versions with all objects follow in the background.

    "local" is what is on this disk only, "sent" what was uploaded, "confirmed" what is in a version that is ready,
    listed rightly, and whose digests the storage behind Kaggle stated. After a SIGKILL, what was not published is still
    in the folder, and is published by the next session on this machine. A deletion that no version has seen when the
    process ends is forgotten.

    Every version is sent whole, so the folder holds all objects, also those of earlier sessions elsewhere. Older
    versions stay in the dataset's history, where they may count against the user's quota: Kaggle's client cannot delete
    them.

    `lock` is for the processes of this machine. Where two machines publish at the same time, nothing that either
    published is lost (see `Dataset`); which of the two may go on is the engine's to say.
    """

    def __init__(self, service: Service, folder: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._dataset = Dataset(service)
        self._contents = Contents(folder, self._dataset)
        self._publisher = Publisher(self._publish, service.pace, monotonic=monotonic)
        self._looking = threading.RLock()

    @property
    def url(self) -> str:
        return f"kaggle://{self._dataset.handle}"

    @property
    def properties(self) -> StoreProperties:
        here = self._contents.staged.properties
        return StoreProperties(
            top_level="confirmed",
            persists=True,
            locks=here.locks,
            free_bytes=here.free_bytes,
            versions=True,
            budget=KAGGLE,
        )

    @property
    def degraded(self) -> str | None:
        trouble = self._publisher.trouble
        if trouble is not None:
            return (
                f"The Kaggle dataset {self._dataset.handle} does not get the newest checkpoints, which are on this "
                f"machine only and would be lost with it; it is tried again by itself. {trouble}"
            )
        return None

    def put(self, name: str, source: Source) -> Receipt:
        self._know()
        receipt = self._contents.put(name, source)
        self._publisher.changed()
        return receipt

    def get(self, name: str) -> BinaryIO:
        self._know()
        return self._contents.get(name)

    def list(self, prefix: str) -> Sequence[Entry]:
        self._know()
        return self._contents.list(prefix)

    def delete(self, name: str) -> None:
        self._know()
        self._contents.delete(name)
        self._publisher.changed(urgent=False)

    def confirm(self, receipt: Receipt) -> Receipt:
        name = receipt.name
        if self._contents.is_gone(name):
            return replace(receipt, level="local")
        if self._holds(self._dataset.confirmed, receipt):
            return replace(receipt, level="confirmed")
        return replace(receipt, level="sent" if self._holds(self._dataset.sent, receipt) else "local")

    def lock(self, name: str, holder: str) -> Lock:
        return self._contents.staged.lock(name, holder)

    def sweep(self, prefix: str) -> int:
        return self._contents.staged.sweep(prefix)

    def flush(self, timeout: float) -> bool:
        if not self._dataset.known and self._contents.unpublished():
            self._publisher.changed()  # what a session left that was killed
        return self._publisher.wait(timeout)

    def close(self) -> None:
        """Stop publishing, in the middle of an upload if need be; the next session here goes on."""
        self._publisher.close(self._dataset.close)

    def _know(self) -> None:
        if self._dataset.known:
            return
        with self._looking:
            if not self._dataset.known:
                self._dataset.look()
                if self._contents.unpublished():
                    self._publisher.changed()

    def _publish(self) -> None:
        with self._looking, self._contents.alone():
            self._dataset.look()
            if self._contents.same_as_published():
                self._dataset.prove()
                return
            package, deletions = self._contents.package()
            self._dataset.publish(package)
            self._contents.published(deletions)

    def _holds(self, named: frozenset[tuple[str, str]], receipt: Receipt) -> bool:
        if receipt.sha256:
            return (receipt.name, receipt.sha256) in named
        return any(name == receipt.name for name, _ in named)


def open_url(url: str, context: StoreContext = StoreContext()) -> KaggleStore:
    """The store of a kaggle://owner/name URL. Nothing is contacted, and nothing written, yet; but the platform is asked
    for the secret KAGGLE_API_TOKEN where there is neither such a variable nor an older key.

    Raises:
        UsageError: it does not name a dataset, or Kaggle would not take the name.
        MissingDependency: Kaggle's client is not installed.
    """
    parts = _URL.fullmatch(url)
    if parts is None:
        raise UsageError(
            problem=f"{shown(url)} does not name a Kaggle dataset.",
            remedy="Write kaggle://your-user-name/a-name, the name with 6 to 50 small letters, digits and hyphens. The "
            "dataset is made, private, when the first checkpoint is published.",
        )
    if find_spec("kagglehub") is None:
        raise MissingDependency(
            problem=f"The store for {url} cannot be loaded: there is no package kagglehub.", remedy=INSTALL
        )
    handle = f"{parts[1]}/{parts[2]}".lower()
    here = Environment.here()
    folder = (context.disk or Path(_FOLDER).expanduser()) / "kaggle" / handle
    return KaggleStore(Service(handle, folder, environ=_with_token(here, context)), folder)


def _with_token(here: Environment, context: StoreContext) -> Mapping[str, str] | None:
    """The environment of Kaggle's client, if it needs more than this process has. The client runs in a process of its
    own, where Colab answers no questions."""
    home = Path(here.environ.get("KAGGLE_CONFIG_DIR") or "~/.kaggle").expanduser()
    signed_in = any(name in here.environ for name in ("KAGGLE_API_TOKEN", "KAGGLE_KEY")) or any(
        (home / file).is_file() for file in ("kaggle.json", "access_token", "credentials.json")
    )
    token = None if signed_in else context.find_secret("KAGGLE_API_TOKEN")
    return None if token is None else {**here.environ, "KAGGLE_API_TOKEN": token}

"""The questions that can be asked of Kaggle about one dataset, each tried again while that is sensible."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from colabkeep.stores._patience import Patience
from colabkeep.stores.kaggle.hub import Hub
from colabkeep.stores.kaggle.pace import Pace

__all__ = ["Service"]


class Service:
    """One dataset at Kaggle. All methods raise `StoreError`s, as `refusals.explained`; versions count from 1."""

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

"""The dataset as far as this session knows it, and the versions it makes and proves: kagglehub's own word is not
enough.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from colabkeep.core.errors import ObjectNotFound, StoreError, StoreFull, StoreUnavailable
from colabkeep.stores.kaggle.index import INDEX, Content, Held, Index, read_index
from colabkeep.stores.kaggle.service import Service

# It reports success for a blob that was cut off (seen with 1.0.2: an answer 500 to its question how much had arrived
# counts as "all"), and for a version beyond the quota, which never appears (Kaggle/kaggle-cli #284). So a version
# counts only when Kaggle calls it ready, lists every file with its size, and the storage behind it states each file's
# MD5.


SETTLED = ("READY", "FAILED", "DELETED", "")
"""States in which nothing is being processed; "" is no dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A version to be made: what its index says, all its files with the index's own, and where each lies."""

    index: Index
    files: Mapping[str, Content]
    paths: Mapping[str, str]


def send(service: Service, package: Package) -> int:
    """Upload, once no other version is in the way; returns the number of the one before. Until the first version is
    ready, a second one is refused with 403 (Kaggle/kagglehub #181).

    Raises:
        StoreError: Kaggle refuses, is away, or is still busy with the version before.
    """
    before = _await(service, service.pace.ready, lambda _, status: status in SETTLED)
    sizes = [content.size for content in package.files.values()]
    service.upload(package.paths, sizes, f"colabkeep: {len(package.index.objects)} objects")
    return before


def appeared(service: Service, before: int) -> int:
    """The number of the version that came after `before`, once it is ready.

    Raises:
        StoreFull: none came of the upload: the quota is used up.
        StoreUnavailable: it could not be processed, or not in time.
    """
    seen_by = time.monotonic() + service.pace.appear

    def arrived(version: int, status: str) -> bool:
        if status in ("FAILED", "DELETED"):
            raise StoreUnavailable(
                problem=f"Kaggle could not process the new version of {service.handle} (it says {status}). "
                "What was published before is untouched, and so is everything on this machine.",
                remedy=f"It is made again. If it stays so, see kaggle.com/datasets/{service.handle}.",
            )
        if status in ("READY", "") and version <= before and time.monotonic() >= seen_by:
            raise StoreFull(
                problem=f"Kaggle took the upload to {service.handle}, and no version came of it. That is how a full "
                "quota looks. What was published before is untouched; what is new is on this machine only.",
                remedy="Delete datasets, or old versions of this one, that you do not need (kaggle.com → Your Work → "
                "Datasets), or keep fewer checkpoints (keep_last=1). It is tried again by itself.",
            )
        return status == "READY" and version > before

    return _await(service, service.pace.ready, arrived)


class NotWhatWasSent(StoreUnavailable):
    """A version that is ready, and is not what was sent."""


def prove(service: Service, version: int, files: Mapping[str, Content]) -> None:
    """See that a version has these files, whole.

    Raises:
        NotWhatWasSent: it has not.
        StoreError: Kaggle cannot be asked.
    """
    listed = service.listing(version)
    whole = {file: content.size for file, content in files.items() if listed.get(file) == content.size}
    stated = service.digests(version, whole)
    for file, content in files.items():
        if file not in whole:
            wrong = f"has {listed.get(file, 'no')} bytes there; {content.size} were sent"
        elif stated.get(file) != content.md5:
            wrong = "has another MD5 there than what was sent"
        else:
            continue
        raise NotWhatWasSent(
            problem=f"Version {version} of the Kaggle dataset {service.handle} is not what was sent: {file} {wrong}. "
            "It does not count as safe; the version before it is untouched, and so is everything on this machine.",
            remedy="Nothing needs to be done: it is sent again, as a new version.",
        )


def _await(service: Service, seconds: float, arrived: Callable[[int, str], bool]) -> int:
    end = time.monotonic() + seconds
    while True:
        version, status = service.head()
        if arrived(version, status):
            return version
        if time.monotonic() >= end:
            raise StoreUnavailable(
                problem=f"Kaggle is still processing a version of {service.handle} (it says {status}). Nothing is "
                "lost; what is newer is on this machine only.",
                remedy=f"It is tried again. kaggle.com/datasets/{service.handle} shows how far it is.",
            )
        service.sleep(service.pace.poll)


# A version is *good* when its index can be read and every file that the index names is listed with its size. A dataset
# holds what its newest good version holds; and what was published since the version that this one was based on, by a
# session that this one did not know of: it is never lost because two published at the same time.


_BACK = 5  # versions that are looked at, from the newest one on, for a good one

Named = frozenset[tuple[str, str]]
"""Names of objects, each with the SHA-256 of its bytes."""


class Dataset:
    """`look`, `publish` and `prove` are called by one thread at a time; the rest by any."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._versions: dict[str, int] = {}  # file → a version that has it
        self._fetching = threading.Lock()
        self.handle = service.handle
        self.version = 0
        """The newest one that was taken into account, 0 if there is none."""
        self._whole = 0  # the one that `index` is of
        self.known = False
        """Has it been found out what it holds?"""
        self.index: Index | None = None
        """Of the one version that holds it all; None if there is none such."""
        self.objects: Mapping[str, Held] = {}
        """All that it holds."""
        self.sent: Named = frozenset()
        """What was uploaded."""
        self.confirmed: Named = frozenset()
        """What a good version holds, with all digests stated rightly."""

    def look(self) -> None:
        """Find out what it holds, or what others published since.

        Raises:
            StoreError: Kaggle cannot be asked; or the dataset is not one of ours.
        """
        newest = self._newest()
        if self.known:
            for version in range(max(self.version, newest - _BACK) + 1, newest + 1):
                self._follow(version)
        elif newest > 0:
            self._look_at_first(newest)
        self.version, self.known = newest, True

    def _newest(self) -> int:
        """The newest version. One that is being processed is waited for, for a while: it may be the last words of a
        machine that is gone."""
        version, status = self._service.head()
        pace = self._service.pace
        for _ in range(int(pace.look / pace.poll)):
            if status in SETTLED:
                break
            self._service.sleep(pace.poll)
            version, status = self._service.head()
        if version == 0 and status not in SETTLED:
            raise StoreUnavailable(
                problem=f"The first version of the Kaggle dataset {self.handle} is still being processed, so what it "
                "holds cannot be seen yet.",
                remedy=f"Run again in a few minutes; kaggle.com/datasets/{self.handle} shows how far it is.",
            )
        return version

    def _look_at_first(self, newest: int) -> None:
        oldest = max(1, newest - _BACK + 1)
        for version in range(newest, oldest - 1, -1):
            index = self._good(version)
            if index is not None:
                self._take(index, version)
                for between in range(version - 1, max(index.base, oldest - 1), -1):
                    self._add(between)
                return
        raise StoreError(
            problem=f"Of the Kaggle dataset {self.handle}, no version from {oldest} to {newest} is a whole set of "
            "files that colabkeep wrote. Nothing was changed there.",
            remedy="Run this again in some minutes: a version may still be on its way from a machine that is gone. If "
            "it stays so, and nothing had been called safe yet, or the dataset holds something else, choose a new "
            "name: storage=kaggle://your-name/another-name. An older version may be good: see "
            f"kaggle.com/datasets/{self.handle}.",
        )

    def _good(self, version: int) -> Index | None:
        """The index of a version, if the version is good."""
        try:
            listed = self._service.listing(version)
            if INDEX not in listed:
                return None
            with self._fetching, self._service.downloaded(version, INDEX, listed[INDEX]) as path:
                index = read_index(self.handle, path)
        except ObjectNotFound:  # a version that failed has no files
            return None
        if index is None or any(listed.get(file) != content.size for file, content in index.files.items()):
            return None
        return index

    def _take(self, index: Index, version: int) -> None:
        self.index, self.objects, self._whole = index, dict(index.objects), version
        self._versions = dict.fromkeys(index.files, version)

    def _follow(self, version: int) -> None:
        """A version that was made since the last look: by another session, or by this one, which was not told so."""
        index = self._good(version)
        if index is not None and index.base >= self.version:
            self._take(index, version)
        elif index is not None:
            self._join(index, version)
        self.version = version

    def _add(self, version: int) -> None:
        index = self._good(version)
        if index is not None:
            self._join(index, version)

    def _join(self, index: Index, version: int) -> None:
        self.index = None
        self.objects = {**index.objects, **self.objects}
        self._versions = {**dict.fromkeys(index.files, version), **self._versions}

    @contextmanager
    def downloaded_file(self, file: str) -> Iterator[BinaryIO]:
        """A file, downloaded and open for reading. Kaggle's client has checked its MD5."""
        size = sum(held.size for held in self.objects.values() if held.file == file)
        version = self._versions.get(file, 0) or self.version
        with self._fetching, self._service.downloaded(version, file, size) as path, path.open("rb") as reader:
            yield reader

    def publish(self, package: Package) -> None:
        """Make a version of the package, wait until it is ready, and prove it.

        Raises:
            StoreError: as `send`, `appeared` and `prove`. What was published before is as it was.
        """
        before = send(self._service, package)
        named = _named(package.index)
        self.sent = named
        version = appeared(self._service, before)
        prove(self._service, version, package.files)  # else it may be another's: the next look tells
        others = range(max(self.version, version - _BACK) + 1, version)
        self._take(package.index, version)
        self.confirmed = named
        for other in others:
            self._add(other)
        self.version = version

    def prove(self) -> None:
        """Confirm what is there, without uploading anything.

        Raises:
            StoreError: it is not what its index says, or Kaggle cannot be asked.
        """
        if self.index is not None and self._whole and not _named(self.index) <= self.confirmed:
            try:
                prove(self._service, self._whole, self.index.files)
            except NotWhatWasSent:
                self.index = None  # so that the next one is made, and this one not proven again
                raise
            self.sent = self.confirmed = _named(self.index)

    def close(self) -> None:
        self._service.close()


def _named(index: Index) -> Named:
    return frozenset((name, held.sha256) for name, held in index.objects.items())

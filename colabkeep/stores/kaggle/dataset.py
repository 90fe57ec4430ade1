"""What the dataset holds, as far as this session knows.

A version is *good* when its index can be read and every file that the index names is listed with its size. A dataset
holds what its newest good version holds; and what was published since the version that this one was based on, by a
session that this one did not know of: it is never lost because two published at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from colabkeep.stores.kaggle.index import INDEX, Held, Index
from colabkeep.stores.kaggle.inputs import read_index
from colabkeep.stores.kaggle.publication import SETTLED, NotWhatWasSent, Package, appeared, prove, send
from colabkeep.stores.kaggle.service import Service
from colabkeep.vocabulary.errors import ObjectNotFound, StoreError, StoreUnavailable

__all__ = ["Dataset"]

_BACK = 5  # versions that are looked at, from the newest one on, for a good one

Named = frozenset[tuple[str, str]]
"""Names of objects, each with the SHA-256 of its bytes."""


class Dataset:
    """`look`, `publish` and `prove` are called by one thread at a time; the rest by any.

    `attached` are folders with a copy of some version, of which nothing needs to be downloaded.
    """

    def __init__(self, service: Service, *, attached: Sequence[Path] = ()) -> None:
        self._service = service
        self._attached = tuple(attached)
        self._versions: dict[str, int] = {}  # file → a version that has it
        self._fetching = threading.Lock()
        self._version = 0  # the newest one that was taken into account
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
        self.offline: str | None = None
        """Why only the attached copy is known; None when Kaggle was asked."""

    @property
    def handle(self) -> str:
        """ "owner/name"."""
        return self._service.handle

    @property
    def version(self) -> int:
        """The newest version that was taken into account, 0 if there is none."""
        return self._version

    def look(self) -> None:
        """Find out what it holds, or what others published since.

        Raises:
            StoreError: Kaggle cannot be asked, and nothing is attached; or the dataset is not one of ours.
        """
        try:
            newest = self._newest()
        except StoreError as error:
            if self.known or not self._look_at_attached():
                raise
            self.offline = error.problem
            return
        if self.known and self.offline is None:
            for version in range(max(self._version, newest - _BACK) + 1, newest + 1):
                self._follow(version)
        elif newest > 0:
            self._look_at_first(newest)
        else:
            self._look_at_attached()
        self._version, self.known, self.offline = newest, True, None

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

    def _look_at_attached(self) -> bool:
        indexes = [read_index(self.handle, folder / INDEX) for folder in self._attached]
        found = sorted((index for index in indexes if index is not None), key=lambda index: index.base)
        if found:
            self._take(found[-1], 0)
            self.known = True
        return bool(found)

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
        if index is not None and index.base >= self._version:
            self._take(index, version)
        elif index is not None:
            self._join(index, version)
        self._version = version

    def _add(self, version: int) -> None:
        index = self._good(version)
        if index is not None:
            self._join(index, version)

    def _join(self, index: Index, version: int) -> None:
        self.index = None
        self.objects = {**index.objects, **self.objects}
        self._versions = {**dict.fromkeys(index.files, version), **self._versions}

    @contextmanager
    def attached_file(self, file: str) -> Iterator[BinaryIO | None]:
        """An attached copy of a file, open for reading; None where there is none. Nobody has checked it."""
        for folder in self._attached:
            try:
                reader = (folder / file).open("rb")
            except OSError:
                continue
            with reader:
                yield reader
            return
        yield None

    @contextmanager
    def downloaded_file(self, file: str) -> Iterator[BinaryIO]:
        """A file, downloaded and open for reading. Kaggle's client has checked its MD5.

        Raises:
            StoreError: it cannot be downloaded.
        """
        size = sum(held.size for held in self.objects.values() if held.file == file)
        version = self._versions.get(file, 0) or self._version
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
        others = range(max(self._version, version - _BACK) + 1, version)
        self._take(package.index, version)
        self.confirmed = named
        for other in others:
            self._add(other)
        self._version = version

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
        """Give up what is under way."""
        self._service.close()


def _named(index: Index) -> Named:
    return frozenset((name, held.sha256) for name, held in index.objects.items())

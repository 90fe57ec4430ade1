"""Making a version and proving it: kagglehub's own word is not enough.

It reports success for a blob that was cut off (seen with 1.0.2: an answer 500 to its question how much had arrived
counts as "all"), and for a version beyond the quota, which never appears (Kaggle/kaggle-cli #284). So a version counts
only when Kaggle calls it ready, lists every file with its size, and the storage behind it states each file's MD5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from colabkeep.stores.kaggle.index import Content, Index
from colabkeep.stores.kaggle.service import Service
from colabkeep.vocabulary.errors import StoreFull, StoreUnavailable

__all__ = ["SETTLED", "NotWhatWasSent", "Package", "appeared", "prove", "send"]

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

"""What Kaggle knows: blobs, datasets and their versions. No network here."""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
from dataclasses import dataclass, field
from typing import Any

__all__ = ["OWNER", "TOKEN", "Blob", "Kaggle", "Refused", "Version", "md5"]

OWNER = "ada"
TOKEN = "KGAT_5ecret5ecret5ecret"

_STEPS = ("NOT_YET_PERSISTED", "BLOBS_RECEIVED", "BLOBS_DECOMPRESSED", "BLOBS_COPIED_TO_SDS")
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".7z")


class Refused(Exception):
    """An answer with an error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass
class Blob:
    """An upload. `length` is what was announced, `data` what came."""

    name: str
    length: int
    data: bytearray = field(default_factory=bytearray)

    @property
    def complete(self) -> bool:
        return len(self.data) == self.length


@dataclass
class Version:
    """A set of files: name → bytes. `steps` are the states still to go through."""

    files: dict[str, bytes]
    steps: list[str]
    notes: str = ""
    last: str = "READY"

    @property
    def status(self) -> str:
        return self.steps[0] if self.steps else self.last


class Kaggle:
    """The service for one user, `OWNER`, with one `TOKEN`. `guard` is held by whoever changes anything."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.blobs: dict[str, Blob] = {}
        self.datasets: dict[str, list[Version]] = {}  # "owner/name" → versions, from 1 on
        self.quota: int | None = None
        """Bytes of all versions. What goes beyond is answered as a success, and never appears (kaggle-cli #284)."""
        self.processing = 2
        """How often the status must be asked for until a version is ready."""
        self.fails_processing = 0
        """So many of the next versions end as FAILED."""
        self.spoils = 0
        """In so many of the next versions one byte of one file is not what was sent."""
        self.refusals: list[str] = []
        """What was refused."""
        self.missing = 403
        """How a dataset that is not there, or private to another, is answered."""
        self.page = 20
        """The most files in one page of a listing."""

    # -- the services, by their names --------------------------------------------------------------

    def StartBlobUpload(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        token = secrets.token_hex(8)
        self.blobs[token] = Blob(asked["name"], int(asked.get("contentLength", 0)))
        return {"token": token, "createUrl": f"{{address}}/upload/{token}?signature=s1gned"}

    def CreateDataset(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        handle = f"{asked['ownerSlug']}/{asked['slug']}"
        if asked["ownerSlug"] != OWNER:
            raise Refused(403, "Permission 'datasets.create' was denied")
        if not 6 <= len(asked["title"]) <= 50:
            return {"error": "The title must be between 6 and 50 characters"}
        if handle in self.datasets:
            return {"error": f"The requested title {asked['title']!r} is already in use by a dataset"}
        if not asked.get("isPrivate"):
            raise Refused(400, "a checkpoint was about to be made public")
        return self._create(handle, asked, "")

    def CreateDatasetVersion(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        handle, body = f"{asked['ownerSlug']}/{asked['datasetSlug']}", asked["body"]
        versions = self._versions(handle)
        if len(versions) == 1 and versions[0].steps:  # kagglehub #181
            raise Refused(403, "Permission 'datasets.update' was denied")
        return self._create(handle, body, body.get("versionNotes", ""))

    def GetDatasetStatus(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        newest = self._versions(f"{asked['ownerSlug']}/{asked['datasetSlug']}")[-1]
        status = newest.status
        if newest.steps:
            newest.steps.pop(0)
        return {"status": status}

    def GetDataset(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        handle = f"{asked['ownerSlug']}/{asked['datasetSlug']}"
        ready = [number for number, one in enumerate(self._versions(handle), 1) if not one.steps]
        if not ready:
            raise Refused(404, "Not found")
        return {"ref": handle, "currentVersionNumber": ready[-1], "isPrivate": True}

    def ListDatasets(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        if asked.get("group") != "DATASET_SELECTION_GROUP_MY":
            raise Refused(400, "only one's own are listed here")
        refs = [handle for handle in self.datasets if handle.startswith(f"{OWNER}/") and asked["search"] in handle]
        return {"datasets": [{"ref": ref} for ref in refs]}

    def ListDatasetFiles(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        files = sorted(self.files(asked).items())
        start = int(asked.get("pageToken", "0"))
        page = files[start : start + min(self.page, asked.get("pageSize", self.page))]
        rest = start + len(page)
        return {
            "datasetFiles": [{"name": name, "totalBytes": len(data)} for name, data in page],
            "nextPageToken": str(rest) if rest < len(files) else "",
        }

    # -- their inside ------------------------------------------------------------------------------

    def files(self, asked: dict[str, Any]) -> dict[str, bytes]:
        """The files of the version that is asked for."""
        versions = self._versions(f"{asked['ownerSlug']}/{asked['datasetSlug']}")
        number = int(asked.get("datasetVersionNumber", len(versions)))
        if not 1 <= number <= len(versions) or versions[number - 1].status != "READY":
            raise Refused(404, "Not found")
        return versions[number - 1].files

    def _versions(self, handle: str) -> list[Version]:
        if handle not in self.datasets or not handle.startswith(f"{OWNER}/"):
            raise Refused(self.missing, "Permission 'datasets.get' was denied" if self.missing == 403 else "Not found")
        return self.datasets[handle]

    def _create(self, handle: str, body: dict[str, Any], notes: str) -> dict[str, Any]:
        blobs = [self.blobs[file["token"]] for file in body.get("files", ())]
        files = {blob.name: bytes(blob.data) for blob in blobs}  # also of an upload that was never finished
        if len(files) > 50 or any(name.lower().endswith(_ARCHIVES) for name in files):
            raise Refused(400, f"these would be packed or unpacked: {sorted(files)}")
        if self.spoils:
            self.spoils -= 1
            name = max(files)
            files[name] = bytes([files[name][0] ^ 1]) + files[name][1:]
        stored = sum(len(data) for all in self.datasets.values() for one in all for data in one.files.values())
        if self.quota is None or stored + sum(map(len, files.values())) <= self.quota:
            steps = [*_STEPS, *["INDIVIDUAL_BLOBS_COMPRESSED"] * self.processing][: self.processing]
            last = "FAILED" if self.fails_processing else "READY"
            self.fails_processing = max(0, self.fails_processing - 1)
            self.datasets.setdefault(handle, []).append(Version(files, steps, notes, last))
        return {"ref": handle, "url": f"/datasets/{handle}", "status": "ok"}


def md5(data: bytes) -> str:
    """As Google's storage states it."""
    return base64.b64encode(hashlib.md5(data).digest()).decode()

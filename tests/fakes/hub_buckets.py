"""The fake Hub's buckets: files that are overwritten, without history. Their bytes come from a stand-in for Xet.

Xet, the service that takes a bucket's bytes, is a protocol of its own that nobody ships a server of. So `Xet` stands in
for the client's side of it (hf_xet, as huggingface_hub 2.4.0 calls it); all the rest is the real client over HTTP.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.fakes.hub import FakeHub, Refused

__all__ = ["Buckets", "Xet"]


class Buckets:
    """All buckets of a Hub: name → path → the digest of its bytes, which are in `bytes`."""

    def __init__(self, hub: FakeHub) -> None:
        self.hub = hub
        self.buckets: dict[str, dict[str, str]] = {}
        self.private: set[str] = set()
        self.bytes: dict[str, bytes] = {}

    def create(self, user: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        if name.split("/", maxsplit=1)[0] != user:
            raise Refused(403, "You don't have the rights to create a bucket under this namespace")
        if name in self.buckets:
            raise Refused(409, "You already created this bucket")
        self.buckets[name] = {}
        if body.get("visibility") == "private":
            self.private.add(name)
        return {"url": f"{self.hub.url}/buckets/{name}"}

    def files(self, user: str | None, name: str) -> dict[str, str]:
        if name not in self.buckets or (name in self.private and name.split("/", maxsplit=1)[0] != user):
            raise Refused(401 if user is None else 404, "Repository not found", "RepoNotFound")
        return self.buckets[name]

    def info(self, user: str | None, name: str) -> dict[str, Any]:
        files = self.files(user, name)
        size = sum(len(self.bytes[digest]) for digest in files.values())
        date = "2026-11-20T00:00:00.000Z"
        return {"id": name, "private": True, "createdAt": date, "size": size, "totalFiles": len(files)}

    def entry(self, path: str, digest: str) -> dict[str, Any]:
        return {"type": "file", "path": path, "size": len(self.bytes[digest]), "xetHash": digest}

    def tree(self, files: dict[str, str], prefix: str, recursive: bool) -> list[dict[str, Any]]:
        start = f"{prefix}/" if prefix else ""
        below = {path: digest for path, digest in sorted(files.items()) if path == prefix or path.startswith(start)}
        if recursive:
            return [self.entry(path, digest) for path, digest in below.items()]
        here = {path: digest for path, digest in below.items() if "/" not in path[len(start) :]}
        folders = {start + path[len(start) :].split("/")[0] for path in below.keys() - here.keys()}
        entries = [{"type": "directory", "path": folder, "uploadedAt": None} for folder in sorted(folders)]
        return entries + [self.entry(path, digest) for path, digest in here.items()]

    def batch(self, files: dict[str, str], lines: list[dict[str, Any]]) -> dict[str, Any]:
        for line in lines:
            if line["type"] == "deleteFile":
                files.pop(line["path"], None)
            elif line["xetHash"] not in self.bytes:
                raise Refused(400, "The bytes of this file are not there")
            else:
                files[line["path"]] = line["xetHash"]
        return {"success": True, "processed": len(lines), "succeeded": len(lines), "failed": []}


class Xet:
    """A session of hf_xet, as far as an upload needs it. `fail` is raised by the next upload."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self.fail: BaseException | None = None

    def new_upload_commit(self, **options: Any) -> Xet:
        return self

    def __enter__(self) -> Xet:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def start_upload_file(self, path: str, sha256: object) -> Any:
        return self.start_upload_bytes(Path(path).read_bytes(), sha256)

    def start_upload_bytes(self, data: bytes, sha256: object) -> Any:
        fail, self.fail = self.fail, None
        if fail is not None:
            raise fail
        digest = hashlib.sha256(b"xet" + data).hexdigest()
        self._buckets.bytes[digest] = data
        done = SimpleNamespace(xet_info=SimpleNamespace(hash=digest, file_size=len(data)))
        return SimpleNamespace(result=lambda: done)


def lines(body: bytes) -> list[dict[str, Any]]:
    """The objects of an NDJSON body."""
    return [json.loads(line) for line in body.splitlines() if line]

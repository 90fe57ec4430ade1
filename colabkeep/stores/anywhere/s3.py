"""Work at S3, request by request, through s3fs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from colabkeep.stores.anywhere.digests import notes, notes_of
from colabkeep.stores.anywhere.filesystem import FlatHands
from colabkeep.stores.base import Source, run_of
from colabkeep.vocabulary.errors import ObjectNotFound, StoreError

__all__ = ["S3Hands"]


class S3Hands(FlatHands):
    """Each call is one request: s3fs's own methods list where they do not find.

    The parts of a large object are sent by ourselves, not by s3fs's file object: one that fails is sent again alone,
    their sizes are known, so that the service's digest can be compared, and what is given up is really given up.
    """

    def find(self, prefix: str) -> Iterator[tuple[str, int]]:
        bucket, _, key = self._path(prefix).partition("/")
        below, token = {"Bucket": bucket, "Prefix": f"{key}/" if key else ""}, dict[str, str]()
        while True:
            page = self._ask(f"list {prefix!r}", partial(self._fs.call_s3, "list_objects_v2", **below, **token))
            for found in page.get("Contents") or ():
                if not found["Key"].endswith("/"):  # other tools' marks of folders
                    yield self._name(f"{bucket}/{found['Key']}"), int(found["Size"])
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def stat(self, name: str, *, again: bool = True) -> Mapping[str, Any]:
        doing = f"say how large {name!r} is"
        info = self._call("head_object", doing, name, again=again, missing=ObjectNotFound)
        return {"size": info["ContentLength"], "ETag": info.get("ETag"), "notes": info.get("Metadata")}

    def remove(self, name: str) -> None:
        self._call("delete_object", f"delete {name!r}", name)  # S3 has no error for what is not there

    def _send_whole(self, name: str, source: Source, data: bytes) -> None:
        beside = notes_of(source, data)
        self._call("put_object", f"write {name!r}", name, Body=data, Metadata=beside, IfNoneMatch="*")

    def _send_parts(self, name: str, source: Source, blocks: Iterator[memoryview]) -> None:
        doing = f"write {name!r}"
        upload = self._call("create_multipart_upload", doing, name, Metadata=notes(source.sha256))["UploadId"]
        try:
            parts: list[dict[str, Any]] = []
            for number, piece in enumerate(blocks, 1):
                md5 = base64.b64encode(hashlib.md5(piece, usedforsecurity=False).digest()).decode()  # S3 compares it
                part = {"UploadId": upload, "PartNumber": number, "ContentMD5": md5}
                answer = self._call("upload_part", doing, name, **part, Body=bytes(piece))
                parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            self._call(
                "complete_multipart_upload",
                doing,
                name,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                IfNoneMatch="*",
            )
        except BaseException:
            with suppress(StoreError):  # the first failure is the one to tell; what stays is removed by `sweep`
                self._give_up(name, upload)
            raise

    def sweep(self, prefix: str) -> int:
        bucket, _, key = self._path(prefix).partition("/")
        found = self._ask(
            "list unfinished uploads",
            lambda: self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/" if key else ""),
        )
        uploads = [
            (self._name(f"{bucket}/{upload['Key']}"), upload["UploadId"]) for upload in found.get("Uploads") or []
        ]
        left = [(name, upload) for name, upload in uploads if prefix in ("", run_of(name))]
        for name, upload in left:
            self._give_up(name, upload)
        return len(left)

    def _give_up(self, name: str, upload: str) -> None:
        self._call("abort_multipart_upload", f"give up {name!r}", name, UploadId=upload)

    def _call(
        self, method: str, doing: str, name: str, *, again: bool = True, missing: Any = StoreError, **arguments: Any
    ) -> Any:
        bucket, _, key = self._path(name).partition("/")
        call = partial(self._fs.call_s3, method, Bucket=bucket, Key=key, **arguments)
        return self._ask(doing, call, again=again, missing=missing)

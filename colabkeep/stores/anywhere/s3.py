"""Large uploads to S3, part by part, through s3fs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from colabkeep.stores.anywhere.filesystem import FlatHands
from colabkeep.vocabulary.errors import StoreError

__all__ = ["S3Hands"]


class S3Hands(FlatHands):
    """The parts are sent by ourselves, not by s3fs's file object: one that fails is sent again alone, their sizes are
    known, so that the service's digest can be compared, and what is given up is really given up."""

    def _send_parts(self, name: str, block: int, blocks: Iterator[memoryview]) -> None:
        doing = f"write {name!r}"
        upload = self._call("create_multipart_upload", doing, name)["UploadId"]
        try:
            parts: list[dict[str, Any]] = []
            for number, piece in enumerate(blocks, 1):
                answer = self._call("upload_part", doing, name, UploadId=upload, PartNumber=number, Body=bytes(piece))
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
        uploads = found.get("Uploads") or []
        for upload in uploads:
            self._give_up(self._name(f"{bucket}/{upload['Key']}"), upload["UploadId"])
        return len(uploads)

    def _give_up(self, name: str, upload: str) -> None:
        self._call("abort_multipart_upload", f"give up {name!r}", name, UploadId=upload)

    def _call(self, method: str, doing: str, name: str, **arguments: Any) -> Any:
        bucket, _, key = self._path(name).partition("/")
        return self._ask(doing, lambda: self._fs.call_s3(method, Bucket=bucket, Key=key, **arguments))

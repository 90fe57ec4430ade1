"""Work through a file system of fsspec: any, Google Cloud Storage through gcsfs, S3 through s3fs, buckets of the
Hugging Face Hub.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from colabkeep.core.errors import MissingDependency, ObjectNotFound, StoreError
from colabkeep.stores.base import Source, run_of
from colabkeep.stores.fsspec.backend import block_size, notes, notes_of
from colabkeep.stores.shared.retry import Asking

__all__ = [
    "BucketBackend",
    "FlatBackend",
    "FolderBackend",
    "GoogleBackend",
    "S3Backend",
]

_CREATE, _WRITE = "xb", "wb"  # the first is refused where the name is taken
_TEMPORARY = re.compile(r"\.[A-Za-z0-9_-][A-Za-z0-9._-]*\.[0-9a-f]{16}\.tmp")


class _FileSystem:
    """What does not depend on how objects come to be there. `root` is the place, as the file system names it."""

    def __init__(self, fs: Any, root: str, ask: Asking) -> None:
        self._fs = fs
        self._root = root.rstrip("/")
        self._ask = ask

    def stat(self, name: str, *, again: bool = True) -> Mapping[str, Any]:
        doing = f"say how large {name!r} is"
        info = self._ask(doing, lambda: self._info(name), again=again, missing=ObjectNotFound)
        if not _is_object(info):
            raise ObjectNotFound(
                problem=f"There is no object {name!r}: that is a folder.", remedy="See `colabkeep list`."
            )
        return info

    def read(self, name: str, start: int, end: int) -> bytes:
        def fetch() -> bytes:
            data: bytes = self._fs.cat_file(self._path(name), start=start, end=end)
            if len(data) != end - start:
                raise ConnectionError(f"{len(data)} bytes came instead of {end - start}")
            return data

        return self._ask(f"read {name!r}", fetch, missing=ObjectNotFound)

    def _info(self, name: str) -> Mapping[str, Any]:
        self._fs.invalidate_cache()  # what it remembers may have been changed by another session
        info: Mapping[str, Any] = self._fs.info(self._path(name))
        return info

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _name(self, path: str) -> str:
        """The store's name of what the file system calls `path`, with or without the first slash."""
        return path.lstrip("/").removeprefix(self._root.lstrip("/")).lstrip("/")


class FlatBackend(_FileSystem):
    """An object store: one request lists everything, and an object appears when its upload is completed.

    An upload of one block is one request, refused if the name is taken. `_send_parts` is for larger ones.
    """

    def find(self, prefix: str) -> Iterator[tuple[str, int]]:
        found = self._ask(f"list {prefix!r}", lambda: self._fs.find(self._path(prefix), detail=True))
        for path, info in found.items():
            if _is_object(info):
                yield self._name(path), int(info["size"])

    def taken(self, name: str) -> bool:
        try:
            self.stat(name)
        except ObjectNotFound:
            return False
        return True

    def send(self, name: str, source: Source, blocks: Iterator[memoryview]) -> None:
        if source.size > block_size(source.size):
            self._send_parts(name, source, blocks)
        else:
            self._send_whole(name, source, b"".join(map(bytes, blocks)))

    def remove(self, name: str) -> None:
        with suppress(ObjectNotFound):
            self._ask(f"delete {name!r}", lambda: self._fs.rm_file(self._path(name)), missing=ObjectNotFound)

    def sweep(self, prefix: str) -> int:
        return 0

    def _send_whole(self, name: str, source: Source, data: bytes) -> None:
        self._ask(f"write {name!r}", lambda: self._fs.pipe_file(self._path(name), data, mode="create"))

    def _send_parts(self, name: str, source: Source, blocks: Iterator[memoryview]) -> None:
        """By fsspec's own writer, whose upload is invisible until it is committed (gcsfs: a resumable upload)."""
        doing = f"write {name!r}"
        file = self._ask(doing, partial(self._opened, name, source))
        try:
            for piece in blocks:
                self._ask(doing, partial(file.write, piece), again=False)
            self._ask(doing, file.commit, again=False)
        except BaseException:
            with suppress(StoreError):  # the first failure is the one to tell; the service forgets the upload itself
                self._ask(f"give up {name!r}", file.discard, again=False)
            raise
        finally:
            file.closed = True  # else its destructor would complete an upload that was given up

    def _opened(self, name: str, source: Source, **more: Any) -> Any:
        block = block_size(source.size)
        return self._fs.open(self._path(name), _CREATE, block_size=block, autocommit=False, **more)


class FolderBackend(_FileSystem):
    """A file system: an object is written under a temporary name in its own folder, then moved to its own.

    A move may replace what has the name, so it is preceded by a look whether the name is free. Between the two another
    writer could get in. That is harmless for what colabkeep keeps: a blob's name is the digest of its bytes, so
    both write the same, and the names of all the rest contain the session that writes them.
    """

    def find(self, prefix: str) -> Iterator[tuple[str, int]]:
        # Not fsspec's own `find`: it takes a folder that cannot be listed for an empty one.
        for path, info in self._walk(prefix):
            if _is_object(info):
                yield self._name(path), int(info["size"])

    def taken(self, name: str) -> bool:
        try:
            self._ask(f"look for {name!r}", lambda: self._info(name), missing=ObjectNotFound)
        except ObjectNotFound:
            return False
        return True

    def send(self, name: str, source: Source, blocks: Iterator[memoryview]) -> None:
        folder, _, last = self._path(name).rpartition("/")
        draft, block = f"{folder}/.{last}.{secrets.token_hex(8)}.tmp", block_size(source.size)
        doing, file = f"write {name!r}", None
        try:
            self._ask(doing, lambda: self._fs.mkdirs(folder, exist_ok=True))
            file = self._ask(doing, lambda: self._fs.open(draft, _WRITE, block_size=block), again=False)
            for piece in blocks:
                self._ask(doing, partial(file.write, piece), again=False)
            self._ask(doing, file.close, again=False)
            self._ask(doing, lambda: self._fs.mv(draft, self._path(name)), again=False)
        except BaseException:
            with suppress(StoreError):  # the first failure is the one to tell; what stays is removed by `sweep`
                if file is not None:
                    self._ask(doing, file.close, again=False)
            with suppress(StoreError):
                self._ask(doing, lambda: self._fs.rm_file(draft), again=False)
            raise

    def remove(self, name: str) -> None:
        with suppress(ObjectNotFound):
            self.stat(name)  # never a folder
            self._ask(f"delete {name!r}", lambda: self._fs.rm_file(self._path(name)), missing=ObjectNotFound)

    def sweep(self, prefix: str) -> int:
        count = 0
        for name, _ in list(self.find(prefix)):
            if prefix in ("", run_of(name)) and _TEMPORARY.fullmatch(name.rpartition("/")[2]):
                self.remove(name)
                count += 1
        return count

    def _walk(self, folder: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        todo = [self._path(folder)]
        while todo:
            path = todo.pop()
            for info in self._listed(path):
                if info["type"] == "directory":
                    todo.append(info["name"])
                else:
                    yield info["name"], info

    def _listed(self, path: str) -> list[Mapping[str, Any]]:
        def listed() -> list[Mapping[str, Any]]:
            self._fs.invalidate_cache()
            found: list[Mapping[str, Any]] = self._fs.ls(path, detail=True)
            return found

        try:
            return self._ask(f"list {path!r}", listed, missing=ObjectNotFound)
        except ObjectNotFound:
            return []  # nothing was put there yet, or it is gone since its parent was read


def _is_object(info: Mapping[str, Any]) -> bool:
    return info.get("type") == "file" and not info.get("islink")


class GoogleBackend(FlatBackend):
    """Notes are the object's custom metadata. What came in parts gets its MD5 afterwards: it is not known before."""

    def stat(self, name: str, *, again: bool = True) -> Mapping[str, Any]:
        info = super().stat(name, again=again)
        return {**info, "notes": info.get("metadata")}

    def _send_whole(self, name: str, source: Source, data: bytes) -> None:
        path, beside = self._path(name), notes_of(source, data)
        self._ask(f"write {name!r}", lambda: self._fs.pipe_file(path, data, metadata=beside, mode="create"))

    def _send_parts(self, name: str, source: Source, blocks: Iterator[memoryview]) -> None:
        md5 = hashlib.md5(usedforsecurity=False)

        def hashed() -> Iterator[memoryview]:
            for piece in blocks:
                md5.update(piece)
                yield piece

        super()._send_parts(name, source, hashed())
        beside = notes(source.sha256, md5.hexdigest())
        with suppress(StoreError):  # without it, another session cannot call this object confirmed
            self._ask(f"describe {name!r}", lambda: self._fs.setxattrs(self._path(name), **beside))


class S3Backend(FlatBackend):
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


# Its bytes travel by Xet only, a service that cannot be had on one's own machine, so what is here was tried against the
# client's own code (huggingface_hub 2.4.0) with a stand-in for Xet. tests/stores/huggingface/test_buckets.py says how
# to try it against the real Hub.


_WRITE_ANEW = "wb"


class BucketBackend(FolderBackend):
    """`make` makes the bucket, private, before the first upload; it is no error that it is there.

    A file appears whole when huggingface_hub has uploaded it, from a file of its own in the machine's temporary folder.
    Whether a name is taken is looked at just before.
    """

    def __init__(self, fs: Any, root: str, ask: Asking, make: Any) -> None:
        super().__init__(fs, root, ask)
        self._make = make
        self._made = False

    @classmethod
    def at(cls, bucket: str, folder: str, *, token: str | None, endpoint: str | None, ask: Asking) -> BucketBackend:
        """The hands at a folder of a bucket. Nothing is contacted yet.

        Raises:
            MissingDependency: huggingface_hub is too old for buckets.
        """
        from huggingface_hub import HfApi, HfFileSystem

        api = HfApi(endpoint=endpoint, token=token or False)
        if not hasattr(api, "batch_bucket_files"):
            raise MissingDependency(
                problem="The huggingface_hub that is installed has no buckets.",
                remedy='Run: pip install -U "huggingface_hub>=1.5", or use a repository: hf://owner/name',
            )
        fs = HfFileSystem(endpoint=endpoint, token=token or False, skip_instance_cache=True, use_listings_cache=False)
        root = "/".join(part for part in ("buckets", bucket, folder) if part)
        return cls(fs, root, ask, partial(api.create_bucket, bucket, private=True, exist_ok=True))

    def send(self, name: str, source: Source, blocks: Iterator[memoryview]) -> None:
        doing = f"write {name!r}"
        if not self._made:
            self._ask("be created", self._make)
            self._fs.invalidate_cache()  # it may remember that there was none
            self._made = True
        file = self._ask(
            doing, lambda: self._fs.open(self._path(name), _WRITE_ANEW, block_size=block_size(source.size))
        )
        try:
            for piece in blocks:
                self._ask(doing, partial(file.write, piece), again=False)
            self._ask(doing, file.close, again=False)
        except BaseException:
            file.closed = True  # else its destructor would upload what was given up
            self._drop(getattr(file, "temp_file", None))
            raise

    def _drop(self, temporary: Any) -> None:
        """huggingface_hub leaves its temporary file where an upload fails."""
        from fsspec import filesystem

        if temporary is not None:
            temporary.close()
            with suppress(ObjectNotFound):
                self._ask("tidy up", partial(filesystem("file").rm_file, temporary.name), missing=ObjectNotFound)

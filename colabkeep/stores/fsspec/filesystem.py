"""Work through a file system of fsspec: any, Google Cloud Storage through gcsfs, buckets of the Hugging Face Hub."""

from __future__ import annotations

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


class GoogleBackend(_FileSystem):
    """Google Cloud Storage: one request lists everything, and an object appears when its upload is completed.

    Notes are the object's custom metadata. What came in parts gets its MD5 afterwards: it is not known before.
    """

    def find(self, prefix: str) -> Iterator[tuple[str, int]]:
        found = self._ask(f"list {prefix!r}", lambda: self._fs.find(self._path(prefix), detail=True))
        for path, info in found.items():
            if _is_object(info):
                yield self._name(path), int(info["size"])

    def stat(self, name: str, *, again: bool = True) -> Mapping[str, Any]:
        info = super().stat(name, again=again)
        return {**info, "notes": info.get("metadata")}

    def send(self, name: str, source: Source, blocks: Iterator[memoryview]) -> None:
        path, doing = self._path(name), f"write {name!r}"
        if source.size <= block_size(source.size):
            data = b"".join(map(bytes, blocks))
            beside = notes_of(source, data)
            self._ask(doing, lambda: self._fs.pipe_file(path, data, metadata=beside, mode="create"))
            return
        md5 = hashlib.md5(usedforsecurity=False)
        # fsspec's own writer, whose upload is invisible until it is committed (gcsfs: a resumable upload)
        block = block_size(source.size)
        file = self._ask(doing, lambda: self._fs.open(path, _CREATE, block_size=block, autocommit=False))
        try:
            for piece in blocks:
                md5.update(piece)
                self._ask(doing, partial(file.write, piece), again=False)
            self._ask(doing, file.commit, again=False)
        except BaseException:
            with suppress(StoreError):  # the first failure is the one to tell; the service forgets the upload itself
                self._ask(f"give up {name!r}", file.discard, again=False)
            raise
        finally:
            file.closed = True  # else its destructor would complete an upload that was given up
        beside = notes(source.sha256, md5.hexdigest())
        with suppress(StoreError):  # without it, another session cannot call this object confirmed
            self._ask(f"describe {name!r}", lambda: self._fs.setxattrs(path, **beside))

    def remove(self, name: str) -> None:
        with suppress(ObjectNotFound):
            self._ask(f"delete {name!r}", lambda: self._fs.rm_file(self._path(name)), missing=ObjectNotFound)

    def sweep(self, prefix: str) -> int:
        return 0


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


# Its bytes travel by Xet only, a service that cannot be had on one's own machine, so what is here was tried against the
# client's own code (huggingface_hub 2.4.0) with a stand-in for Xet. tests/stores/huggingface/test_buckets.py says how
# to try it against the real Hub.


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
        file = self._ask(doing, lambda: self._fs.open(self._path(name), _WRITE, block_size=block_size(source.size)))
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

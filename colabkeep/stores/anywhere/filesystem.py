"""Work through a file system of fsspec."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from colabkeep.stores._asking import Asking
from colabkeep.stores.anywhere.hands import block_size
from colabkeep.stores.base import Source, run_of
from colabkeep.vocabulary.errors import ObjectNotFound, StoreError

__all__ = ["FlatHands", "FolderHands"]

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


class FlatHands(_FileSystem):
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


class FolderHands(_FileSystem):
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

"""Work at Google Cloud Storage through gcsfs: what is left beside an object, so that others know its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from colabkeep.stores.anywhere.digests import notes, notes_of
from colabkeep.stores.anywhere.filesystem import FlatHands
from colabkeep.stores.base import Source
from colabkeep.vocabulary.errors import StoreError

__all__ = ["GoogleHands"]


class GoogleHands(FlatHands):
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

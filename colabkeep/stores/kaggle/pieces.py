"""Sources that read what is on this disk already, a part of a file or objects in a row, and hash it on the way."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from colabkeep.stores.base import Source, Store
from colabkeep.stores.kaggle.index import PACK_HEADER, Content, Held
from colabkeep.vocabulary.errors import CheckpointDamaged

__all__ = ["Hashed", "Part", "Row", "content_of", "damaged"]

_CHUNK = 2**20


class Hashed:
    """A source whose MD5 is known, as `md5` (base64), once its chunks were read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.md5 = ""

    @property
    def size(self) -> int:
        return self._source.size

    @property
    def sha256(self) -> str:
        return self._source.sha256

    def chunks(self) -> Iterator[memoryview]:
        digest = hashlib.md5(usedforsecurity=False)
        for chunk in self._source.chunks():
            digest.update(chunk)
            yield chunk
        self.md5 = b64encode(digest.digest()).decode()


class Part:
    """An object that lies in a file of the dataset. If it is not what was put, its chunks end with `CheckpointDamaged`.

    `reader` is of the file.
    """

    def __init__(self, reader: BinaryIO, name: str, held: Held) -> None:
        self._reader = reader
        self._name = name
        self._held = held
        self.size = held.size
        self.sha256 = held.sha256

    def chunks(self) -> Iterator[memoryview]:
        digest = hashlib.sha256()
        self._reader.seek(self._held.offset)
        left = self.size
        while left and (data := self._reader.read(min(left, _CHUNK))):
            left -= len(data)
            digest.update(data)
            yield memoryview(data)
        if digest.hexdigest() != self.sha256:
            raise damaged(self._name, self._held)


class Row:
    """The header of a pack, and the objects of these names in a row, `size` bytes in all. `sha256` is known once the
    chunks were read."""

    def __init__(self, store: Store, names: Sequence[str], size: int) -> None:
        self._store = store
        self._names = tuple(names)
        self.size = size
        self.sha256 = ""

    def chunks(self) -> Iterator[memoryview]:
        digest = hashlib.sha256(PACK_HEADER)
        yield memoryview(PACK_HEADER)
        for name in self._names:
            with self._store.get(name) as reader:
                while data := reader.read(_CHUNK):
                    digest.update(data)
                    yield memoryview(data)
        self.sha256 = digest.hexdigest()


def damaged(name: str, held: Held) -> CheckpointDamaged:
    """The error for an object that is not what was put."""
    return CheckpointDamaged(
        problem=f"{name!r} is not what was put, in {held.file} of the Kaggle dataset.",
        remedy="An older checkpoint is used if there is one. Nothing was deleted.",
    )


def content_of(reader: BinaryIO) -> Content:
    """Size and digests of all that can be read."""
    size, sha256, md5 = 0, hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    while data := reader.read(_CHUNK):
        size += len(data)
        sha256.update(data)
        md5.update(data)
    return Content(size=size, sha256=sha256.hexdigest(), md5=b64encode(md5.digest()).decode())

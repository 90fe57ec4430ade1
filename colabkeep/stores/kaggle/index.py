"""What one version of the dataset holds: a sealed record of which object lies where; and parts of files as sources."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from colabkeep.core.errors import CheckpointDamaged, UsageError
from colabkeep.core.layout import seal, unseal
from colabkeep.stores.base import Store, check_name

INDEX = "colabkeep.json"
"""The file with the index, in every version that colabkeep makes."""

PACK_HEADER = b"colabkeep pack 1\n"
"""The start of a pack: with it no file is ever empty, which uploads have not always borne."""

MOST_SINGLE = 40  # files with one object each; with the pack and the index that stays below kagglehub's 50, at which
# it would zip them all into one file (kagglehub 1.0.2, gcs_upload.py)

_FORMAT = 1
_SINGLE_FROM = 4 * 2**20  # bytes: what is smaller goes into the pack
_FILE = re.compile(r"(object|pack)-[0-9a-f]{64}\.bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Some bytes, by their size, their SHA-256 (hex) and their MD5 (base64, as Google's storage states it)."""

    size: int
    sha256: str
    md5: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Where an object lies: `size` bytes from `offset` on, in a file of the dataset."""

    file: str
    offset: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The record in one version.

    `dataset` is "owner/name". `base` is the version whose objects had been taken over when this one was made: what was
    published in between came from another session that did not know of this one.
    """

    dataset: str
    base: int
    files: Mapping[str, Content]
    objects: Mapping[str, Held]

    def to_bytes(self) -> bytes:
        return seal(
            {
                "format": _FORMAT,
                "dataset": self.dataset,
                "base": self.base,
                "files": {file: asdict(content) for file, content in sorted(self.files.items())},
                "objects": {name: asdict(held) for name, held in sorted(self.objects.items())},
            }
        )

    @classmethod
    def from_bytes(cls, text: bytes, dataset: str) -> Index:
        """Read a record again.

        Raises:
            ValueError: it is damaged, of another dataset, of a newer format, or leads somewhere it should not.
        """
        record = unseal(text)
        if record.get("format") != _FORMAT:
            raise ValueError(f"it is in format {record.get('format')!r}; this colabkeep knows {_FORMAT}")
        if record.get("dataset") != dataset:
            raise ValueError(f"it belongs to the dataset {record.get('dataset')!r}")
        try:
            index = cls(
                dataset=dataset,
                base=int(record["base"]),
                files={file: Content(**content) for file, content in record["files"].items()},
                objects={name: Held(**held) for name, held in record["objects"].items()},
            )
            index._check()
        except (KeyError, TypeError, AttributeError, UsageError) as error:
            raise ValueError(f"it is not a record of a dataset: {error}") from error
        return index

    def _check(self) -> None:
        for file in self.files:
            if not _FILE.fullmatch(file):
                raise ValueError(f"{file!r} is not one of our files")
        for name, held in self.objects.items():
            check_name(name)
            if not 0 <= held.offset <= held.offset + held.size <= self.files[held.file].size:
                raise ValueError(f"{name!r} reaches beyond the file it is said to lie in")


def arrange(objects: Mapping[str, Content]) -> tuple[dict[str, str], list[str]]:
    """Which objects get a file of their own (name → file), and the names of those that go into the pack, in order.

    The largest ones stay single, as many as may be; equal ones share a file. No name ends as an archive's does: Kaggle
    unpacks archives.
    """
    large = sorted((name for name in objects if objects[name].size >= _SINGLE_FROM), key=lambda n: -objects[n].size)
    singles: dict[str, str] = {}
    for name in large:
        file = f"object-{objects[name].sha256}.bin"
        if file in singles.values() or len(set(singles.values())) < MOST_SINGLE:
            singles[name] = file
    return singles, sorted(objects.keys() - singles.keys())


_MOST_INDEX_BYTES = 64 * 2**20


def read_index(handle: str, path: Path) -> Index | None:
    """The index of the dataset in a file; None if it is not there, damaged, or another dataset's."""
    try:
        with path.open("rb") as file:
            return Index.from_bytes(file.read(_MOST_INDEX_BYTES), handle)
    except (OSError, ValueError):
        return None


_CHUNK = 2**20


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

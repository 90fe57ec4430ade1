"""Records that survive a SIGKILL: one JSON file each, replaced as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Shelf(Generic[T]):
    """Dataclass records by name, in a folder and in memory. A name is a legal file name.

    Not synchronised: the server changes it under `State.guard`. There is no fsync, for it is a process that dies
    here, never the machine.
    """

    def __init__(self, folder: Path, kind: type[T]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._records = {path.stem: kind(**json.loads(path.read_text())) for path in folder.glob("*.json")}

    def save(self, name: str, record: T) -> None:
        """Keep the record, in place of an earlier one of that name."""
        whole: Any = record
        temporary = self._folder / f"{name}.tmp"
        temporary.write_text(json.dumps(asdict(whole)))
        temporary.replace(self._folder / f"{name}.json")
        self._records[name] = record

    def get(self, name: str) -> T | None:
        """The record, or None."""
        return self._records.get(name)

    def remove(self, name: str) -> None:
        """Forget it."""
        self._records.pop(name, None)
        (self._folder / f"{name}.json").unlink(missing_ok=True)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._records.values()))

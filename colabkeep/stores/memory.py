"""A store in this process's memory: the reference that the others are compared with, and a place for tests."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Sequence
from typing import BinaryIO

from colabkeep.core.errors import StoreBusy, UsageError
from colabkeep.stores.base import (
    Entry,
    Lock,
    Receipt,
    Source,
    Store,
    StoreProperties,
    changed,
    check_name,
    check_prefix,
    is_below,
    missing,
    shown,
    taken,
)


class MemoryStore(Store):
    """Objects in a dictionary. Its level "local" means: as long as this process lives (`persists` is False)."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._holders: dict[str, str] = {}
        self._guard = threading.Lock()

    @property
    def url(self) -> str:
        return "memory://"

    @property
    def properties(self) -> StoreProperties:
        return StoreProperties(top_level="local", persists=False, locks=True)

    def put(self, name: str, source: Source) -> Receipt:
        check_name(name)
        self._refuse_taken(name)
        data = b"".join(bytes(chunk) for chunk in source.chunks())
        if len(data) != source.size:
            raise changed(name, source.size, len(data))
        with self._guard:
            self._refuse_taken(name)
            self._objects[name] = data
        return Receipt(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest(), level="local")

    def get(self, name: str) -> BinaryIO:
        data = self._objects.get(check_name(name))
        if data is None:
            raise missing(name, "this memory store")
        return io.BytesIO(data)

    def list(self, prefix: str) -> Sequence[Entry]:
        check_prefix(prefix)
        with self._guard:
            found = [(name, len(data)) for name, data in self._objects.items() if is_below(name, prefix)]
        return [Entry(name=name, size=size) for name, size in found]

    def delete(self, name: str) -> None:
        with self._guard:
            self._objects.pop(check_name(name), None)

    def lock(self, name: str, holder: str) -> MemoryLock:
        check_name(name)
        with self._guard:
            if name in self._holders:
                raise StoreBusy(
                    problem=f"{name!r} is held by this very process: {self._holders[name]}",
                    remedy="Let that one finish, or release its lock.",
                    holder=self._holders[name],
                )
            self._holders[name] = holder
        return MemoryLock(self._holders, name)

    def _refuse_taken(self, name: str) -> None:
        if name in self._objects:
            raise taken(name, "this memory store")


class MemoryLock(Lock):
    """A name held in a memory store."""

    def __init__(self, holders: dict[str, str], name: str) -> None:
        self._holders = holders
        self._name = name
        self._held = True

    def release(self) -> None:
        """Let go; the second time it does nothing, so that it cannot let go of the next one's lock."""
        if self._held:
            self._held = False
            del self._holders[self._name]


def open_url(url: str) -> MemoryStore:
    """A new, empty memory store.

    Raises:
        UsageError: something follows the scheme: memory has no places.
    """
    if url.rstrip("/") != "memory:":
        raise UsageError(
            problem=f"{shown(url)} names a place in memory, and there is none: each memory store is new and empty.",
            remedy="Write memory:// alone; or the path of a folder, to find checkpoints again.",
        )
    return MemoryStore()

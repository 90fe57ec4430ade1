"""What a run has in its store, folder by folder. A listing is a request where the store is far away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from colabkeep.stores.base import Store

__all__ = ["Listing"]


class Listing:
    """The objects of one run."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._seen: dict[str, int] | None = None  # name inside the run → size in bytes, while one look is to do

    def files(self, folder: str) -> dict[str, int]:
        """Everything in a folder of the run: name inside the folder → size in bytes.

        Raises:
            StoreError: the store failed.
        """
        found = self._below(folder) if self._seen is None else self._seen
        return {name[len(folder) + 1 :]: size for name, size in found.items() if name.startswith(f"{folder}/")}

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Until this ends, `files` answers from one listing of all folders, made now.

        Raises:
            StoreError: the store failed.
        """
        self._seen = self._below("")
        try:
            yield
        finally:
            self._seen = None

    def forget(self) -> None:
        """What that look showed is not relied on any more: the store is asked each time."""
        self._seen = None

    def _below(self, folder: str) -> dict[str, int]:
        prefix = f"{self._run}/{folder}".rstrip("/")
        return {entry.name[len(self._run) + 1 :]: entry.size for entry in self._store.list(prefix)}

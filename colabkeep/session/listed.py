"""A store as one listing showed it, for readers that would list it again and again: over a network each is a wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, BinaryIO, cast

from colabkeep.stores.base import Entry, Store
from colabkeep.vocabulary.errors import ObjectNotFound

__all__ = ["listed_once"]


def listed_once(store: Store, prefix: str) -> Store:
    """The store, to be read only, with every listing inside `prefix` answered from one that is made now, until an
    object turns out to be gone: then it is asked each time.

    Raises:
        StoreError: it cannot be listed.
    """
    return cast("Store", _ListedOnce(store, prefix))


class _ListedOnce:
    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._entries: tuple[Entry, ...] | None = tuple(store.list(prefix))

    def list(self, prefix: str) -> Iterable[Entry]:
        if self._entries is None:
            return self._store.list(prefix)
        return (entry for entry in self._entries if entry.name.startswith(f"{prefix}/"))

    def get(self, name: str) -> BinaryIO:
        try:
            return self._store.get(name)
        except ObjectNotFound:
            self._entries = None
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

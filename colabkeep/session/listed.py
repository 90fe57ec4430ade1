"""A store as one listing showed it, for readers that would list it again and again: over a network each is a wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from colabkeep.stores.base import Entry, Store

__all__ = ["listed_once"]


def listed_once(store: Store, prefix: str) -> Store:
    """The store, to be read only, with every listing inside `prefix` answered from one that is made now.

    Raises:
        StoreError: it cannot be listed.
    """
    return cast("Store", _ListedOnce(store, prefix))


class _ListedOnce:
    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._entries = tuple(store.list(prefix))

    def list(self, prefix: str) -> Iterator[Entry]:
        return (entry for entry in self._entries if entry.name.startswith(f"{prefix}/"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

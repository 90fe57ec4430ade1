"""What is told of the store's own condition: that it is out of order, and that it works again."""

from __future__ import annotations

from collections.abc import Callable

from colabkeep._engine.ledger import Ledger
from colabkeep.stores.base import Store
from colabkeep.vocabulary.events import Event, StoreDegraded

__all__ = ["Condition"]


class Condition:
    """Lives on the writer thread. `say` hands an event to the training thread."""

    def __init__(self, store: Store, ledger: Ledger, say: Callable[[Event], None]) -> None:
        self._store = store
        self._ledger = ledger
        self._say = say
        self._told: str | None = None

    @property
    def told(self) -> bool:
        """Was it told that the store is out of order, and not yet that it works again?"""
        return self._told is not None

    def tell(self) -> None:
        """Tell what has changed of `Store.degraded`, with what would be lost now."""
        before, self._told = self._told, self._store.degraded
        if before == self._told:
            return
        healed = self._told is None
        lost = None if healed else self._ledger.durability()
        detail = self._told or "works again"
        self._say(StoreDegraded(url=self._store.url, detail=detail, healed=healed, durability=lost))

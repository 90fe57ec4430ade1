"""What is told of the store's own condition: that it is out of order, that it works again, that it was made anew."""

from __future__ import annotations

from collections.abc import Callable

from colabkeep._engine.ledger import Ledger
from colabkeep.stores.base import Store, remade
from colabkeep.vocabulary.events import Event, Noted, StoreDegraded

__all__ = ["Condition"]

_REMADE = (
    "{front} was deleted while it was in use, and has been made again. What had arrived in {behind} is there "
    "as before; what was on its way there is lost, and is written again if training needs it to go on."
)


class Condition:
    """Lives on the writer thread. `say` hands an event to the training thread."""

    def __init__(self, store: Store, ledger: Ledger, say: Callable[[Event], None]) -> None:
        self._store = store
        self._ledger = ledger
        self._say = say
        self._told: str | None = None
        self._remade = remade(store)

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

    def tell_remade(self) -> None:
        """Tell, once, that a folder of it was deleted and made again."""
        before, self._remade = self._remade, remade(self._store)
        if self._remade > before:
            place = self._store.properties
            behind = "" if place.behind is None else place.behind.url
            self._say(Noted(text=_REMADE.format(front=place.folder, behind=behind)))

"""What earlier sessions of a run were given, for the verdict on what came now."""

from __future__ import annotations

from typing import Any

from colabkeep._engine.repository import Repository
from colabkeep.session.machine import earlier_cards, machine_id
from colabkeep.session.naming import choose_name
from colabkeep.session.wiring import find_store
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import ColabKeepError

__all__ = ["cards_before"]


def cards_before(storage: Any, run_name: str | None) -> tuple[str, ...]:
    """The cards of the last machines of the run before this one, the latest last; none where the storage cannot be
    read."""
    try:
        store = find_store(storage)
        try:
            here = Environment.here()
            name, _ = choose_name(run_name, store, here)
            return earlier_cards(Repository(store, name), machine_id(here))
        finally:
            if store is not storage:
                store.close()
    except ColabKeepError:
        return ()  # the training opens the same storage next, and says what is wrong with it

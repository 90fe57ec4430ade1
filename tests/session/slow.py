"""A store that takes its time, on a clock that is not real."""

from __future__ import annotations

from typing import Any

from colabkeep.stores.base import Receipt, Source, Store
from colabkeep.testing.clock import FakeClock


class Slow:
    """A store in which a checkpoint's manifest takes `seconds` of a fake clock."""

    def __init__(self, store: Store, clock: FakeClock, seconds: float) -> None:
        self._store, self._clock, self._seconds = store, clock, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, name: str, source: Source) -> Receipt:
        if "/checkpoints/" in name:
            self._clock.advance(self._seconds)
        return self._store.put(name, source)

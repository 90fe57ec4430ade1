"""Batches loaded each under a seed of its own, at no more cost than what they draw asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from colabkeep.frameworks.common.looks import Look
from colabkeep.frameworks.common.streams import Streams

__all__ = ["Seeding"]


class Seeding:
    """Loads in this process. Random streams are the batch's own meanwhile; those of the training do not move.

    To seed all of them takes a fifth of a small step, and most data draws nothing. The first batch shows it: where no
    stream has moved by its end, only those are seeded from then on whose seed can be asked for without a draw. As soon
    as another one has moved after a batch, that batch is loaded again, seeded, and all that follow are seeded, too. So
    every batch is what it is when all are seeded. Generators that the data holds count like those of Python and NumPy.
    """

    def __init__(self, streams: Streams) -> None:
        self._seed = streams.seed
        self._draws: bool | None = None  # None: not known yet
        self._looks = [stream.look() for stream in streams.all]
        pairs = list(zip(streams.all, self._looks, strict=True))
        self._told: Sequence[Look] = [look for stream, look in pairs if stream.told]
        self._untold: Sequence[Look] = [look for stream, look in pairs if not stream.told]
        self._tellers = streams.tellers

    def load(self, seed: int, read: Callable[[Any], Any], index: Any) -> Any:
        """What `read(index)` gives under this seed. It is called twice if this is the first to draw of many."""
        back: Sequence[Look] = self._looks
        for look in back:
            look.keep()
        try:
            if self._draws is False:
                for salt, start in self._tellers:
                    start(seed ^ salt)
                try:
                    value = read(index)
                except Exception:
                    if not self._moved():
                        raise
                else:
                    if not self._moved():
                        back = self._told
                        return value
            self._seed(seed)
            if self._draws:
                return read(index)
            before = [look.glance() for look in self._untold]
            value = read(index)
            self._draws = before != [look.glance() for look in self._untold]
            return value
        finally:
            for look in back:
                look.put_back()

    def _moved(self) -> bool:
        for look in self._untold:  # noqa: SIM110 - any() would be a generator more, for each batch
            if look.moved():
                return True
        return False

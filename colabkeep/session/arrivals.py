"""How long it takes until a checkpoint is safe where it ends up, as measured in this session."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.durability import RungName, has_arrived
from colabkeep.vocabulary.events import Event, Pruned, RungReached, SaveCommitted, UploadMeasured

__all__ = ["Arrivals"]

_REMEMBERED = 5  # checkpoints; links and services change within a session


class Arrivals:
    """Watches checkpoints rise to `top`, the highest rung of the store. An observer of a run's events."""

    steps_from = math.inf  # wants to hear of no step

    def __init__(self, top: RungName, clock: Clock) -> None:
        self._top = top
        self._clock = clock
        self._waiting: dict[str, tuple[float, int]] = {}  # checkpoint → when it was committed, and its new bytes
        self._arrived: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)  # seconds that it took, and its new bytes
        self._largest = 0  # new bytes of a save so far: the last one may be such a save
        self._speed: float | None = None  # bytes per second

    def __call__(self, event: Event) -> None:
        """Take what tells of a checkpoint on its way."""
        if isinstance(event, SaveCommitted):
            self._largest = max(self._largest, event.written)
            if not has_arrived(event.rung, self._top):
                self._waiting[event.checkpoint] = self._moment(event), event.written
        elif isinstance(event, RungReached) and has_arrived(event.rung, self._top):
            self._take(event.checkpoint, self._moment(event))
        elif isinstance(event, Pruned):
            for checkpoint in event.checkpoints:
                self._waiting.pop(checkpoint, None)
        elif isinstance(event, UploadMeasured) and event.bytes_per_second > 0:
            self._speed = event.bytes_per_second

    def seconds(self, now: float) -> float:
        """From the commit of a save until it is safe: so long the next one is expected to take. `now` in seconds of
        the run's clock. It is the time of its bytes and that of the confirmation; and what has not arrived yet takes
        at least as long as it has taken."""
        bytes_take = 0.0 if self._speed is None else self._largest / self._speed
        beside = max((took - self._sending(size) for took, size in self._arrived), default=0.0)
        return max(bytes_take + max(0.0, beside), self._pending(now))

    def usual(self, now: float) -> float:
        """From the commit of a save until it is safe, as it mostly was; what has not arrived yet takes at least as
        long as it has taken. `now` as in `seconds`."""
        return max(median(took for took, _ in self._arrived) if self._arrived else 0.0, self._pending(now))

    def _pending(self, now: float) -> float:
        return now - min((at for at, _ in self._waiting.values()), default=now)

    def _sending(self, size: int) -> float:
        """Seconds of so many bytes; where the speed is not known, all is taken to be beside them."""
        return 0.0 if self._speed is None else size / self._speed

    def _moment(self, event: SaveCommitted | RungReached) -> float:
        """When it happened: it is heard of between two steps, which a validation may part by half an hour."""
        return self._clock.monotonic() if event.monotonic is None else event.monotonic

    def _take(self, checkpoint: str, arrived: float) -> None:
        if checkpoint in self._waiting:
            at, size = self._waiting[checkpoint]
            self._arrived.append((arrived - at, size))
            # Those before it were overtaken: the newest one is sent first, and it is the one that counts.
            self._waiting = {id: sent for id, sent in self._waiting.items() if sent[0] > at}

"""Events handed to observers and to the journal, on the training thread; and the observers that a session brings:
upload latency, mounting again, unseen parts, timings of the start.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from typing import TypeVar

from colabkeep.checkpoint.journal import Journal
from colabkeep.core.durability import RungName, has_arrived
from colabkeep.core.errors import ColabKeepError
from colabkeep.core.events import (
    Event,
    FirstStepDone,
    Noted,
    Pruned,
    RestoredInexactly,
    RungReached,
    SaveCommitted,
    StoreDegraded,
    UploadMeasured,
    journal_line,
)
from colabkeep.core.manifest import Manifest
from colabkeep.core.system import Clock
from colabkeep.frameworks.base import Unseen

__all__ = [
    "EventBus",
    "Remounting",
    "Starting",
    "UnseenParts",
    "UploadLatency",
]


class EventBus:
    """Delivers events in order. An observer that fails is told of once and not called again:
    a broken display must never end a training.

    `steps_from` is the earliest time at which one of them wants to hear of a step.
    """

    def __init__(self, observers: tuple[Callable[[Event], None], ...], clock: Clock) -> None:
        self.queue: deque[Event] = deque()  # filled by the writer thread too
        self.observers = list(observers)
        self.steps_from = self._earliest()
        self._clock = clock
        self._journal: Journal | None = None
        self._said: set[str] = set()

    def write_to(self, journal: Journal) -> None:
        """Note all further events in the journal, except steps and what would be lost."""
        self._journal = journal

    def begin(self, *events: Event) -> None:
        """Deliver events before all that wait, then those."""
        self.queue.extendleft(reversed(events))
        self.drain()

    def tell(self, event: Event) -> None:
        """Queue an event and deliver all that wait."""
        self.queue.append(event)
        self.drain()

    def once(self, event: Noted) -> None:
        """The same, for a sentence that a session tells once."""
        if event.text not in self._said:
            self._said.add(event.text)
            self.tell(event)

    def drain(self) -> None:
        """Deliver what waits."""
        while self.queue:
            event = self.queue.popleft()
            line = None if self._journal is None else journal_line(event, self._clock.time())
            if self._journal is not None and line is not None:
                self._journal.add(line)
            self.deliver(event)

    def deliver(self, event: Event) -> None:
        """Hand one event to the observers now."""
        self._hand_out(event)
        self.steps_from = self._earliest()

    def _earliest(self) -> float:
        return min((getattr(each, "steps_from", -math.inf) for each in self.observers), default=math.inf)

    def _hand_out(self, event: Event) -> None:
        for observer in tuple(self.observers):
            try:
                observer(event)
            except Exception as error:  # noqa: BLE001  # see the class: told, and training goes on
                self.observers.remove(observer)
                why = f"{type(error).__name__}: {error}".splitlines()[0]
                self.queue.append(
                    Noted(text=f"An observer failed and is not called any more ({why}); training goes on.")
                )


_REMEMBERED = 5  # checkpoints; links and services change within a session


class UploadLatency:
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


# A mount that died is met by the thread that copies. It can only leave word here. Between two steps, when the training
# hears its next event (that the store is out of order is one), it mounts, which holds it up for a bounded time, and
# once in an outage.


class Remounting:
    """Hand `ask` to the store, and the whole to the run as an observer. `mount` does nothing where all is well."""

    steps_from = math.inf  # of steps it need not hear

    def __init__(self, mount: Callable[[], object]) -> None:
        self._mount = mount
        self._wanted = False
        self._failure: ColabKeepError | None = None

    def ask(self) -> bool:
        """Mount now, on the main thread (True). On another one it is left to the training (False), and what that came
        to is told when somebody asks again.

        Raises:
            ColabKeepError: it was in vain.
        """
        if threading.current_thread() is threading.main_thread():
            self._mount()
            return True
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._wanted = True
        return False

    def __call__(self, event: Event) -> None:
        """Mount, if that was asked for."""
        if isinstance(event, StoreDegraded) and event.healed:
            self._wanted, self._failure = False, None
        if not self._wanted:
            return
        self._wanted = False
        try:
            self._mount()
        except ColabKeepError as error:
            self._failure = error


class UnseenParts:
    """An observer of one session. `resumed_from`: the checkpoint that it went on from; behind a first step it is too
    late, and "exact" is taken back. `tell` appends to what waits to be told."""

    steps_from = math.inf

    def __init__(self, unseen: Unseen, resumed_from: Manifest | None, tell: Callable[[Event], object]) -> None:
        self._unseen = unseen
        self._resumed = None if resumed_from is None or not resumed_from.progress.step else resumed_from.id
        self._tell = tell

    def __call__(self, event: Event) -> None:
        if not isinstance(event, FirstStepDone):
            return
        for text in self._unseen():
            if self._resumed is None:
                self._tell(Noted(text=text))
            else:
                self._tell(RestoredInexactly(checkpoint=self._resumed, reason=text))

    def close(self) -> None:
        """The session ends."""
        self._unseen.close()


_Opened = TypeVar("_Opened")


class Starting:
    """Notes how long each part took, from the end of the one before. `laps`: those that are over already."""

    def __init__(self, clock: Clock, laps: Mapping[str, float]) -> None:
        self.laps = dict(laps)
        self.over = False
        self._clock = clock
        self._since = clock.monotonic()

    def lap(self, name: str) -> None:
        """A part ends here. One that comes in several pieces is added up."""
        now = self._clock.monotonic()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._since
        self._since = now

    def opens(self, opening: Callable[[object], _Opened], loader: object) -> _Opened:
        """Open the loader: what comes from here until the first batch is its."""
        if not self.over:
            self.lap("ready")
        return opening(loader)

    def first_step(self) -> FirstStepDone:
        """The first step is done; nothing is timed any more."""
        self.lap("step")
        self.over = True
        return FirstStepDone(laps=self.laps)

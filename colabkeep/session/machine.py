"""The machine under a session: which one it is, when it goes, and how it or its user asks to stop."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any, TypeVar

from colabkeep.checkpoint.inspect import sessions
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.arguments import duration_text
from colabkeep.core.events import MachineGiven
from colabkeep.core.system import Clock, Environment
from colabkeep.core.timeouts import TimedCall
from colabkeep.hardware import find_accelerators
from colabkeep.hardware.base import Accelerator
from colabkeep.hardware.catalogue import find_card
from colabkeep.platforms import find_platform
from colabkeep.platforms.base import SessionLimits
from colabkeep.platforms.lifetime import session_time

_TOOL_PATIENCE = 1.0  # seconds for the tool that lists accelerators, at the start of every run
_PATIENCE = 2.0  # seconds for all that is asked about them
_LOOKED_AT = 5  # machines; what is asked is whether the last ones had the same card

_BOOT = "/proc/sys/kernel/random/boot_id"  # new at each boot (random(4)); in a container, the host's


def ask_machine(environment: Environment) -> Callable[[], MachineGiven]:
    """Ask, on a thread, for the platform and the accelerators of this session; what is returned waits for the answer,
    for a bounded time. No accelerators where they cannot be told, for training needs no name."""
    platform = find_platform(environment)
    asked = TimedCall("the accelerators", lambda: find_accelerators(environment, timeout=_TOOL_PATIENCE))

    def answer() -> MachineGiven:
        answers, _ = asked.answer(_PATIENCE)
        return MachineGiven(
            platform=platform.name,
            kind=platform.kind(environment),
            accelerators=tuple(each.name for found in answers if isinstance(found, tuple) for each in found),
            id=machine_id(environment),
        )

    return answer


def unused_card(machine: MachineGiven) -> str:
    """What to say where a training on the CPU leaves a card of this machine alone; empty where it has none."""
    cards = (name for name in machine.accelerators if find_card(Accelerator(kind="cuda", name=name)))
    if (name := next(cards, None)) is None:
        return ""
    return (
        f"The model is on the CPU, and this machine has a GPU: {name}. To train on it, write "
        'model.to("cuda") before the optimizer is made.'
    )


def machine_id(environment: Environment) -> str:
    """What tells this machine from the next: its name, which a container has for itself, and its boot."""
    return " ".join(filter(None, (environment.hostname, environment.text(_BOOT, 100).strip())))


def earlier_cards(repository: Repository, here: str = "") -> tuple[str, ...]:
    """The first accelerator of each of the last machines of a run that had one, the latest last.

    `here`: the id of this very machine, which is left out: running a cell again on it draws no card.
    """
    return tuple(islice(_cards(sessions(repository), here), _LOOKED_AT))[::-1]


def _cards(leases: Iterable[dict[str, Any]], here: str) -> Iterator[str]:
    seen = {here} if here else set()
    for lease in leases:
        # From a file that anybody may have written: what is not of this form tells nothing.
        machine = lease.get("machine")
        if not isinstance(machine, dict):
            continue
        names, id = machine.get("accelerators"), machine.get("id")
        if isinstance(id, str) and id:
            if id in seen:
                continue
            seen.add(id)
        if isinstance(names, list) and names and isinstance(names[0], str):
            yield names[0]


_MARGIN = 120.0  # seconds that the last save is early: the session's age is known to a minute or so
_SHARE = 1 / 12  # of a session that must end by itself: of twelve, an hour for the notebook's other cells and output
_SLOWER = 2.0  # the last save may take so many times as long: links are slow at times, and one may be on its way


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """`at`: when the machine goes at the latest, in seconds of the run's clock. `reserve`: seconds before that in which
    nothing is to be written any more. `ends`: training ends then by itself, because what a session made is kept only if
    it ends in time; else it is saved and goes on, since the figure may be wrong. `text` tells the user; `source` says
    where the figure is from."""

    at: float
    reserve: float
    ends: bool
    text: str
    source: str = ""

    def last_call(self, seconds: float) -> float:
        """When the last save must begin to be safe in time, if that takes `seconds`: from the copy until the place
        where it ends up had it and said so."""
        return self.at - self.reserve - _SLOWER * seconds


def find_deadline(
    environment: Environment, clock: Clock, *, limit: float | None = None, may_end: bool = True
) -> Deadline | None:
    """The end of this session; None where nothing is known of it.

    `limit`: the user's own figure for the whole session, in seconds. `may_end`: False where the user said himself when
    training ends.
    """
    platform = find_platform(environment)
    time = session_time(platform, environment, clock.time(), limit=limit)
    if time.left_seconds is None or time.limit_seconds is None:
        return None
    ends = may_end and platform.limits(environment).ends_cleanly
    reserve = time.limit_seconds * _SHARE if ends else _MARGIN
    then = (
        f"Training ends by itself {duration_text(reserve)} before that, so that this version's output is kept "
        "(max_time=… sets another time)."
        if ends
        else f"The last save is {duration_text(reserve)} before that."
    )
    return Deadline(
        at=clock.monotonic() + time.left_seconds,
        reserve=reserve,
        ends=ends,
        text=f"This session lasts {duration_text(time.left_seconds)} more at most. {time.source} {then}",
        source=time.source,
    )


ALL_SAVED = "Everything is saved; the program stops in a moment."


def still_saving(number: signal.Signals, seconds: float | None, steps: int) -> str:
    """The last save is written. `seconds`: it takes so much longer, None: there was none to go by. `steps`: those that
    no other checkpoint has."""
    takes = "how long it takes is not known: it is the first one of this session"
    if seconds is not None:
        takes = f"about {duration_text(max(1.0, seconds))} more"
    price = f"; then the last {steps} step(s) are repeated next time" if steps else ", without that save"
    return _answer(number, f"the last save is still being written ({takes}), and the program stops after it.", price)


def still_copying(number: signal.Signals, url: str, seconds: float) -> str:
    """All is saved here, and slower storage is waited for, so long at most; infinite: that has not begun."""
    left = "" if math.isinf(seconds) else f", for {duration_text(seconds)} more at most"
    doing = f"everything is saved on this machine. The program waits for {url}{left}, and stops after it."
    return _answer(number, doing, "; then the rest is copied when you run this cell again while the machine lives")


def _answer(number: signal.Signals, doing: str, price: str) -> str:
    by_hand = number == signal.SIGINT
    again = f" A second request stops at once{price}." if by_hand else ""
    return f"{'Stop requested' if by_hand else number.name}: {doing}{again}"


_Value = TypeVar("_Value")
_END = object()
_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequests:
    """Watches SIGINT, SIGTERM and SIGHUP between `install` and `remove`, if called on the main thread.

    Three things can be under way when a signal comes. In a step it becomes a request, which waits for the step's end.
    In the wait for a batch (`at_once`), which may never end, nothing has to be finished first: it is honoured then.
    In the last save (`leave`) it waits for the end of that, and `abandoned` tells that somebody would not wait.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self.abandoned = False
        self._handlers: list[_Handler] = []
        self._waits = False  # for a batch
        self._leaving: Callable[[signal.Signals], None] | None = None

    def install(self) -> None:
        """Begin to watch. Elsewhere than on the main thread Python allows no handlers: nothing is watched."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _WATCHED:
            before: Any = _living(signal.getsignal(number))
            # Ignored signals (nohup) stay ignored; handlers that are not Python's cannot be restored.
            if before not in (signal.SIG_IGN, None):
                handler = _Handler(number, self._on_signal, before)
                self._handlers.append(handler)
                signal.signal(number, handler)

    def obey(self) -> None:
        """What runs from now on is not ours, and has no boundary to wait for: whoever asks to stop is obeyed at once,
        until `leave`."""
        self._waits = True

    def remove(self) -> None:
        """Watch no more; the handlers that were there are in force again. Calling twice is harmless.

        A handler that somebody else has put on top of ours stays where it is, and ours passes on what it hands down.
        """
        while self._handlers:
            self._handlers.pop().end()

    def honour(self) -> None:
        """Leave now: raise what the request means to the rest of the program; SystemExit has the status that a shell
        reports, 143 for SIGTERM and 129 for SIGHUP."""
        request, self.requested = self.requested or signal.SIGTERM, None
        if request == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + request)

    def between(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same batches. While the next one is waited for, whoever asks to stop is obeyed at once: the last step
        is finished, and a worker that hangs would never let the loop come to a boundary."""
        fetch = partial(next, iter(batches), _END)
        while (batch := self.at_once(fetch)) is not _END:
            yield batch

    def at_once(self, wait: Callable[[], _Value]) -> _Value:
        """What `wait` returns; while that is waited for, whoever asks to stop is obeyed at once."""
        self._waits = True  # first: what comes after the look below is honoured by the handler
        try:
            if self.requested is not None:
                self.honour()
            return wait()
        finally:
            self._waits = False

    def leave(self, said: Callable[[signal.Signals], None]) -> None:
        """The last save begins, and is not broken off for a first request. `said` is called for that one, perhaps in
        the middle of anything else on this thread: it may note something and nothing more."""
        self._leaving = said
        if self.requested is not None:
            said(self.requested)

    def _on_signal(self, number: int) -> None:
        again, self.requested = self.requested is not None or self.abandoned, signal.Signals(number)
        if self._leaving is None:
            if again or self._waits:
                self.honour()
        elif not again:
            self._leaving(self.requested)
        elif number == signal.SIGINT:  # whoever sends SIGTERM twice sends SIGKILL next, and means no hurry by it
            self.abandoned = True
            self.honour()


class _Handler:
    """What is installed for one signal, on top of the handler `before`."""

    def __init__(self, number: signal.Signals, receive: Callable[[int], None], before: Any) -> None:
        self._number = number
        self._receive: Callable[[int], None] | None = receive
        self._process = os.getpid()
        self._spared = False  # a child, the first Ctrl-C
        self.before = before

    @property
    def dead(self) -> bool:
        return self._receive is None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._receive is None:
            self._pass_on(number, frame)
        elif os.getpid() == self._process:
            self._receive(number)
        elif number != signal.SIGINT or self._spared:
            # A forked child has this handler too, and no training: `Pool.terminate` must end it.
            self._pass_on(number, frame)
        else:
            # Terminals and notebooks send Ctrl-C to all: the trainer decides what the step under way still needs.
            self._spared = True

    def end(self) -> None:
        """Let go of the run. Its place is given up if nobody is on top, and if this thread may do that."""
        self._receive = None
        top: Any = signal.getsignal(self._number)
        if top is self and threading.current_thread() is threading.main_thread():
            signal.signal(self._number, _living(self.before))

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        before = _living(self.before)
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, before)
            os.kill(os.getpid(), number)


def _living(handler: Any) -> Any:
    """The handler itself, or what was there before those whose run is over."""
    while isinstance(handler, _Handler) and handler.dead:
        handler = handler.before
    return handler


_GUESS_LEFT = 4 * 3600.0  # seconds; a machine that stops some time after its page was left


_GUESS_OWN = 24 * 3600.0  # seconds; of a machine that nothing is known to end: updates, power, whoever else uses it


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualLifetime:
    """How many `seconds` a session lives on such a machine, until this run's own past tells more; `source` says from
    what. `vanishes`: machines of this kind are taken away."""

    seconds: float
    source: str
    vanishes: bool


UNKNOWN = UsualLifetime(seconds=_GUESS_OWN, source="a guess: nothing is known that ends this machine", vanishes=False)
"""Of a machine of which nothing is known."""


def usual_lifetime(limits: SessionLimits) -> UsualLifetime:
    """What is usual under these limits. Where users report nothing, sessions are taken to end anywhere before their
    limit, so in the middle of it on average."""
    if limits.usual_seconds is not None:
        return UsualLifetime(seconds=limits.usual_seconds, source=limits.usual_source, vanishes=True)
    if limits.max_seconds is not None:
        source = f"half of the limit: {limits.source}"
        return UsualLifetime(seconds=limits.max_seconds / 2, source=source, vanishes=True)
    if limits.idle_seconds is not None:
        return UsualLifetime(seconds=_GUESS_LEFT, source=f"a guess: {limits.source}", vanishes=True)
    return UNKNOWN

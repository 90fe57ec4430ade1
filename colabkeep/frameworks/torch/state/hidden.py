"""The copy that hides: what only an optimizer's step changes is copied while the next forward and backward run.

    capture      what others change is copied at once; versions and samples of the rest are noted    training thread
    then         a thread copies the rest (a GPU's copies go on beside its kernels)
    next step    its beginning waits for what is left, doing a share of it, and seals the copy        training thread
    finish       the samples and the comparisons decide whether the copy holds                       writer thread

A snapshot that does not hold is torn: it is thrown away, and the next capture copies at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from colabkeep.frameworks.common.captures import Complete
from colabkeep.frameworks.common.choosing import HIDDEN, STOPPED, Choice
from colabkeep.frameworks.common.moves import Move, Moves
from colabkeep.frameworks.torch.state.owners import Owners
from colabkeep.frameworks.torch.state.side_stream import SideCopies
from colabkeep.frameworks.torch.state.staging import Copies
from colabkeep.frameworks.torch.state.steps import Steps
from colabkeep.frameworks.torch.state.storages import Reading
from colabkeep.frameworks.torch.state.tracking import Tracked
from colabkeep.vocabulary.state import Torn

__all__ = ["Hiding", "Round"]


class Round(Copies):
    """The copies of one capture: some made at once, some later."""

    def __init__(self, owners: Mapping[int, int], *, hidden: bool) -> None:
        super().__init__()
        self.hidden = hidden
        self.cold = False
        self.began = time.perf_counter()
        self.returned = self.began
        self._process = os.getpid()
        self._owners = owners
        self._tracked: list[Tracked] = []
        self._moves = Moves(())
        self._side = SideCopies(())
        self._reading = Reading(self._let_go)
        self._launched: list[Any] = []  # events: what a GPU copies at once, before all that is launched after it
        self._sealing = threading.Lock()  # one at a time waits for the copies and seals them
        self._sealed = False
        self._torn: str | None = None

    def track(self, tracked: Tracked) -> None:
        tracked.sort(self._owners, self, hidden=self.hidden)
        self.cold = tracked.first_use() or self.cold
        self._tracked.append(tracked)

    def run(self) -> None:
        if self.hidden:
            self._launched = self.launch()
        else:
            super().run()
        urgent: list[Move] = []
        free: list[Move] = []
        for tracked in self._tracked:
            urgent += tracked.late.copies
            urgent += tracked.still(watched=True)
            free += tracked.still(watched=False)
        if self.hidden:
            self._moves = Moves(urgent, free)
            self._side = SideCopies(pair for tracked in self._tracked for pair in tracked.late.on_devices)
            self._reading.begin()
            self._side.start()
            self._moves.start(self._seal_if_free)
        else:
            self._moves = Moves([*urgent, *free])
            self._moves.run()
            more = Copies()
            for tracked in self._tracked:
                tracked.amend(self._moves.different, more)
            more.run()

    def hold_step(self, *, also_free: bool = False) -> None:
        """A step is about to begin: return when it may. `also_free`: it changes what no optimizer had at the save."""
        if os.getpid() != self._process:  # a forked child has other memory, and not the thread
            return
        if also_free:
            self._let_go()
        with self._sealing:
            if not self._sealed:
                self._moves.hurry()
                self._side.hold_kernels()
                self._seal()

    def finish(self) -> None:
        """Wait for the copies, and see whether they hold.

        Raises:
            Torn: something was changed under them.
        """
        self._moves.wait()
        self._side.wait()
        for event in self._launched:
            event.synchronize()
        with self._sealing:
            if not self._sealed:
                self._seal()
        self._release()
        if self.hidden:
            if not self._moves.complete:
                raise Torn("The copy of the state was interrupted.")
            changed = self._torn or next(filter(None, (t.verdict(self._moves.different) for t in self._tracked)), None)
            if changed is not None:
                raise Torn(f"{changed} was changed between the save and the next optimizer step, while it was copied.")
        for tracked in self._tracked:
            tracked.renew()

    def stop(self) -> None:
        """Return when nothing is copied any more: the capture was interrupted, and its memory is lent again."""
        self._moves.stop()
        self._side.wait()
        self._release()

    @property
    def work(self) -> float:
        """Seconds that the copy made later kept a core busy."""
        return self._moves.busy

    def _seal_if_free(self) -> None:
        if self._sealing.acquire(blocking=False):
            try:
                if not self._sealed and self._moves.urgent_complete and not self._side:
                    self._seal()
            finally:
                self._sealing.release()

    def _let_go(self) -> None:
        """Return when nothing is read any more: a storage is about to get other memory. Any thread may call it."""
        if os.getpid() == self._process:
            self._moves.hurry()
            self._moves.wait()
            self._side.wait()
            self._seal_if_free()  # what comes now is no change under the copy

    def _release(self) -> None:
        self._reading.end()
        for tracked in self._tracked:
            tracked.release()

    def _seal(self) -> None:
        self._sealed = True
        if self.hidden:
            self._torn = next(filter(None, (tracked.seal() for tracked in self._tracked)), None)


class Hiding:
    """Decides how each capture is copied, and holds a step that would come too early."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._choice = Choice()
        self._owners = Owners(steps)
        self._round: Round | None = None
        self._capture: Complete | None = None
        self._why = ""
        self._groups: list[tuple[torch.optim.Optimizer, int]] = []  # how many each had at the last capture
        steps.before = self._step_begins

    def begin(self, parts: Mapping[str, object], *, moved: bool, at_once: str) -> Round:
        """A capture begins, of tensors that may not be those of the one before if some `moved`. After `settle`.
        `at_once`: why nothing may be hidden, if so."""
        optimizers = [part for part in parts.values() if isinstance(part, torch.optim.Optimizer)]
        self._groups = [(optimizer, len(optimizer.param_groups)) for optimizer in optimizers]
        doubts = [doubt for optimizer in optimizers if (doubt := self._steps.doubt(optimizer)) is not None]
        doubts = [at_once, *doubts] if at_once else doubts
        hidden = bool(optimizers) and not doubts and self._choice.hides()
        self._why = HIDDEN if hidden else f"{STOPPED}: {(doubts or [self._reason(optimizers)])[0]}"
        return Round(self._owners.find(optimizers, moved=moved), hidden=hidden)

    def go(self, round: Round, capture: Complete) -> None:
        """Everything is sorted: copy. Returns as soon as training may go on."""
        capture.stop = round.stop
        round.run()
        capture.mode, capture.rest = self._why, lambda: self._finish(round)
        self._steps.disturbed()
        round.returned = time.perf_counter()
        self._round, self._capture = round, capture

    def settle(self) -> None:
        """Something is about to be changed that no step changes: let a copy under way come to an end."""
        if self._round is not None:
            self._round.hold_step()
            self._round = self._capture = None

    def _step_begins(self) -> None:
        round, capture = self._round, self._capture
        if round is None or capture is None:
            return
        begins = time.perf_counter()
        round.hold_step(also_free=any(len(each.param_groups) != count for each, count in self._groups))
        now = time.perf_counter()
        self._round = self._capture = None  # not before: an interrupt leaves the copy under way
        if round.hidden:
            capture.waited = now - begins
        usual = self._steps.usual
        if usual is None or round.cold:
            return
        slower = max(0.0, begins - round.returned - usual)
        if slower <= max(usual, 2 * round.work):  # else the time went elsewhere: an evaluation, a plot
            self._choice.note(round.hidden, round.returned - round.began + now - begins + slower, round.work)

    def _finish(self, round: Round) -> None:
        try:
            round.finish()
        except Torn:
            self._choice.tore()
            raise

    def _reason(self, optimizers: Sequence[object]) -> str:
        return self._choice.why_stopped if optimizers else "no optimizer is among what is kept"

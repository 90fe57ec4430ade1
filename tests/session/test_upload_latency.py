"""The last save of a session is begun early enough to be safe where it ends up, not only on this machine's disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colabkeep.core.events import DeadlineNear, DurabilityReached, Event, Pruned, SaveCommitted
from colabkeep.core.manifest import Progress
from colabkeep.session.machine import Deadline
from colabkeep.session.open import RunArguments, wire_run
from colabkeep.session.run import Run
from colabkeep.session.scheduler import UploadLatency
from colabkeep.stores import open_store
from colabkeep.stores.base import Receipt, Source, Store, StoreProperties
from colabkeep.testing.clock import FakeClock
from colabkeep.ui.messages import sentence

HOUR = 3600.0


class Watched:
    """Arrivals on a fake clock, to which a test plays saves."""

    def __init__(self, top: str = "confirmed") -> None:
        self.clock = FakeClock()
        self.arrivals = UploadLatency(top, self.clock)

    def commit(self, id: str, size: int = 10**6, level: str = "local") -> None:
        facts: dict[str, Any] = {"progress": Progress(), "reason": "", "bytes": size, "seconds": 1.0, "level": level}
        self.arrivals(SaveCommitted(checkpoint=id, written=size, **facts))

    def reach(self, id: str, level: str = "confirmed") -> None:
        self.arrivals(DurabilityReached(checkpoint=id, level=level))

    @property
    def seconds(self) -> float:
        return self.arrivals.seconds(self.clock.monotonic())


def test_a_place_that_has_a_save_at_once_takes_no_time() -> None:
    """A folder on this machine: nothing is begun early for it."""
    watched = Watched("local")
    watched.commit("a", level="local")
    watched.clock.advance(1000.0)
    assert watched.seconds == 0.0


def test_what_was_measured_counts_for_the_next_one() -> None:
    """The slowest of the last ones, from the commit to the top level; lower levels on the way end nothing."""
    watched = Watched()
    for id, seconds in (("a", 30.0), ("b", 50.0), ("c", 20.0)):
        watched.commit(id)
        watched.clock.advance(seconds / 2)
        watched.reach(id, "sent")
        watched.clock.advance(seconds / 2)
        watched.reach(id)
    assert watched.seconds == 50.0


def test_a_validation_in_between_is_no_time_of_the_link() -> None:
    """Committed at 100 s and safe at 105 s, of which training hears half an hour later: it took 5 s."""
    watched = Watched()
    facts: dict[str, Any] = {"progress": Progress(), "reason": "", "bytes": 1, "written": 1, "seconds": 1.0}
    watched.clock.advance(1900.0)
    watched.arrivals(SaveCommitted(checkpoint="a", level="local", monotonic=100.0, **facts))
    assert watched.seconds == watched.clock.monotonic() - 100.0, "as far as is known so far"
    watched.arrivals(DurabilityReached(checkpoint="a", level="confirmed", monotonic=105.0))
    assert watched.seconds == 5.0


def test_what_the_writer_tells_of_a_save_has_the_moment_of_it(tmp_path: Path) -> None:
    """A long validation after a save that is safe ten seconds later: so long the next one is expected to take."""
    clock, events = FakeClock(), list[Event]()
    store = Remote(open_store(tmp_path), clock, seconds=10.0)
    spec = wire_run(
        RunArguments(
            run_name="r",
            objects={"model": Number()},
            storage=store,
            save_every="2 steps",
            observers=(events.append,),
            flush_timeout=0,
        )
    )
    with Run(replace(spec, clock=clock)) as run:
        for _ in run.epochs(1):
            for _batch in run.batches([0] * 3):
                if run.progress.step == 2:  # saved when the loop asked for this batch
                    run._saver.wait()
                    clock.advance(10.0)
                    run._saver._committer.after_commit()  # what the writer's thread does each second, on this clock
                    clock.advance(1500.0)
                run.step()
        assert run._save_scheduler._arrivals.seconds(clock.monotonic()) == pytest.approx(10.0)
    (reached, *_) = [event for event in events if isinstance(event, DurabilityReached) and event.level == "confirmed"]
    assert reached.monotonic is not None


def test_what_has_not_arrived_takes_at_least_as_long_as_it_has_taken() -> None:
    """A link that died after quick saves is not believed to be quick."""
    watched = Watched()
    watched.commit("a")
    watched.clock.advance(2.0)
    watched.reach("a")
    watched.commit("b")
    watched.clock.advance(500.0)
    assert watched.seconds == 500.0


def test_what_was_overtaken_or_deleted_is_not_waited_for() -> None:
    """The newest one is sent first; those before it may never arrive, and that means nothing."""
    watched = Watched()
    for id in "abc":
        watched.commit(id)
        watched.clock.advance(10.0)
    watched.reach("b")
    watched.arrivals(Pruned(checkpoints=("c",)))
    watched.clock.advance(1000.0)
    assert watched.seconds == 20.0


def test_a_place_that_never_says_more_is_not_waited_for() -> None:
    """A mounted Drive that is silent: a save counts as there once it is as it was put, and the next one is not begun
    an hour early for a word that never comes."""
    watched = Watched()
    watched.commit("a")
    watched.clock.advance(5.0)
    watched.reach("a", "unknown")
    watched.commit("b", level="unknown")
    watched.clock.advance(5000.0)
    assert watched.seconds == 5.0


class Number:
    """The smallest model: one number."""

    def state_dict(self) -> dict[str, int]:
        return {"value": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


class Remote:
    """A store that confirms what it has `seconds` of a fake clock after it was put."""

    def __init__(self, store: Store, clock: FakeClock, seconds: float) -> None:
        self._store, self._clock, self._seconds = store, clock, seconds
        self._put: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def properties(self) -> StoreProperties:
        return replace(self._store.properties, top_level="confirmed", persists=True)

    def put(self, name: str, source: Source) -> Receipt:
        self._put[name] = self._clock.monotonic()
        return replace(self._store.put(name, source), level="sent")

    def confirm(self, receipt: Receipt) -> Receipt:
        there = self._clock.monotonic() - self._put.get(receipt.name, -1e9) >= self._seconds
        return replace(receipt, level="confirmed" if there else "sent")

    def flush(self, timeout: float) -> bool:
        return True


def test_the_last_save_is_confirmed_before_the_machine_goes(tmp_path: Path) -> None:
    """Saves take no time here and a quarter of an hour to be confirmed, which is seen a minute later: the last one
    begins twice that before, and the place has said that it has it when a quarter of an hour is left. The user reads
    why it is so early."""
    clock, events, heard = FakeClock(), list[Event](), dict[str, float]()

    def hear(event: Event) -> None:
        events.append(event)
        if isinstance(event, DurabilityReached) and event.level == "confirmed":
            heard[event.checkpoint] = clock.monotonic()

    store = Remote(open_store(tmp_path), clock, seconds=900.0)
    spec = wire_run(
        RunArguments(
            run_name="r",
            objects={"model": Number()},
            storage=store,
            save_every="30 steps",
            observers=(hear,),
            flush_timeout=0,
        )
    )
    deadline = Deadline(at=4 * HOUR, reserve=120.0, ends=False, text="It ends.")
    run = Run(replace(spec, clock=clock, deadline=deadline))
    with run:
        for _ in run.epochs(1):
            for _batch in run.batches([0] * 240):
                clock.advance(60.0)
                run._saver.wait()
                run._saver._committer.after_commit()  # what the writer's thread does each second, on this clock
                run.step()
    (near,) = [event for event in events if isinstance(event, DeadlineNear)]
    assert 2 * 900 + 120 - 60 <= near.seconds <= 2 * (900 + 120) + 120
    (last,) = [event.checkpoint for event in events if isinstance(event, SaveCommitted) and event.reason == "deadline"]
    assert heard[last] <= deadline.at - 900
    told = sentence(near)
    assert told is not None
    assert "it is saved now (safe in about 16 min)" in told

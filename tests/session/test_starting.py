"""The way to the first step, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from colabkeep.core.events import Event, FirstStepDone
from colabkeep.session.open import RunArguments, wire_run
from colabkeep.session.run import Run
from colabkeep.testing.clock import FakeClock


class Slow:
    """A model that takes `seconds` of a fake clock to be restored."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def state_dict(self) -> dict[str, int]:
        return {"value": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.clock.advance(self.seconds)


class Batches:
    """Batches, the first of which takes 3 s of a fake clock to come."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[int]:
        self.clock.advance(3.0)
        yield from range(5)


def session(folder: Path, restoring: float) -> FirstStepDone:
    """Two steps of 7 s; what was told of the way to the first."""
    clock, events = FakeClock(), list[Event]()
    words: dict[str, Any] = {"storage": folder, "save_every": None, "observers": (events.append,)}
    spec = wire_run(RunArguments(run_name="r", objects={"model": Slow(clock, restoring)}, **words))
    with Run(replace(spec, clock=clock, laps=dict.fromkeys(spec.laps, 0.0))) as run:
        clock.advance(2.0)
        for _ in run.epochs(1):
            for n, _batch in run.enumerate(Batches(clock)):
                clock.advance(7.0)
                run.step()
                if n:
                    run.stop()
    (told,) = [event for event in events if isinstance(event, FirstStepDone)]
    return told


def test_each_part_of_the_way_is_timed(tmp_path: Path) -> None:
    """Restoring, the user's own lines, the wait for the first batch, the first step: each with its seconds, once."""
    fresh, resumed = session(tmp_path, 0.0), session(tmp_path, 11.0)
    assert (fresh.laps["ready"], fresh.laps["loader"], fresh.laps["step"]) == (2.0, 3.0, 7.0)
    assert "restore" not in fresh.laps
    assert resumed.laps["restore"] == 11.0
    assert list(resumed.laps) == ["ready", "storage", "import", "find", "read", "restore", "loader", "step"]

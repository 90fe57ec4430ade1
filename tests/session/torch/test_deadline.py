"""The end of a session: what is saved before it, and where training stops by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import colabkeep
from colabkeep.core.errors import UsageError
from colabkeep.core.events import DeadlineNear, Event, Noted, SaveStarted
from colabkeep.core.system import Environment
from colabkeep.session.machine import Deadline, find_deadline
from colabkeep.session.open import RunArguments, wire_run
from colabkeep.session.run import Run
from colabkeep.stores import open_store
from colabkeep.testing.clock import FakeClock
from tests.fakes.platforms import fake_kaggle
from tests.fakes.platforms.services import write
from tests.session.slow import Slow
from tests.trainings.torch import hard_training

HOUR = 3600.0


class Number:
    """The smallest model: one number."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


class Life:
    """A session on a fake clock, in steps of ten minutes."""

    def __init__(self, folder: Path, deadline: Deadline | None, *, save_seconds: float = 0.0) -> None:
        self.clock = FakeClock()
        self.events: list[Event] = []
        spec = wire_run(
            RunArguments(
                run_name="r",
                objects={"model": Number()},
                storage=Slow(open_store(folder), self.clock, save_seconds),
                save_every=None,
                observers=(self.events.append,),
            )
        )
        self.run = Run(replace(spec, clock=self.clock, deadline=deadline))

    def train(self, hours: float, *, saved_at_start: bool = True) -> None:
        """Steps until so much of the clock has passed."""
        with self.run as run:
            for _ in run.epochs(1):
                for n, _batch in run.enumerate([0] * 1000):
                    self.clock.advance(600.0)
                    run.step()
                    if n == 0 and saved_at_start:
                        run.save(wait=True)
                    if self.clock.monotonic() > hours * HOUR:
                        run.stop()

    def saves(self) -> list[tuple[str, float]]:
        """Reason and number of the step of each save."""
        return [(event.reason, event.progress.step) for event in self.events if isinstance(event, SaveStarted)]


def deadline(hours: float, *, ends: bool = False, reserve: float = 120.0) -> Deadline:
    return Deadline(at=hours * HOUR, reserve=reserve, ends=ends, text="It ends.")


def test_the_last_save_begins_early_enough_to_be_done_before_the_end(tmp_path: Path) -> None:
    """Twice the time that the longest save took, and two minutes more, before the machine goes at the latest."""
    life = Life(tmp_path, deadline(3), save_seconds=1500.0)
    life.train(hours=4)
    assert [reason for reason, _ in life.saves()] == ["asked", "deadline", "asked"]
    near = [event for event in life.events if isinstance(event, DeadlineNear)]
    assert len(near) == 1
    assert 2 * 1500 + 120 - 600 <= near[0].seconds <= 2 * 1500 + 120, "at the first step after the last call"
    assert not near[0].ends


def test_a_quick_save_is_left_until_two_minutes_before_the_end(tmp_path: Path) -> None:
    """The less a save takes, the less is lost: nothing is saved early for its own sake."""
    life = Life(tmp_path, deadline(2.05))
    life.train(hours=3)
    ((reason, step),) = [save for save in life.saves() if save[0] == "deadline"]
    assert (reason, step) == ("deadline", 13), "the step after 2 h 01 min"


def test_training_goes_on_after_the_last_save_because_the_figure_may_be_wrong(tmp_path: Path) -> None:
    """A machine that lives longer than expected is used to its end."""
    life = Life(tmp_path, deadline(1))
    life.train(hours=5)
    assert life.run.stopped == "asked"
    assert life.run.progress.step > 25
    assert [reason for reason, _ in life.saves()].count("deadline") == 1


def test_a_session_whose_output_is_kept_only_if_it_ends_in_time_ends_by_itself(tmp_path: Path) -> None:
    """Saved at its last step, an hour before the limit, without an error: the cells below it run."""
    life = Life(tmp_path, deadline(12, ends=True, reserve=HOUR))
    life.train(hours=100)
    assert life.run.stopped == "session_end"
    assert 11 * HOUR <= life.clock.monotonic() <= 11 * HOUR + 600
    again = Life(tmp_path, None)
    with again.run as run:
        assert run.progress.step == life.run.progress.step


def test_the_user_reads_at_the_start_how_long_the_session_can_last(tmp_path: Path) -> None:
    """Where the figure is from stands in the same sentence, and once."""
    life = Life(tmp_path, deadline(3))
    life.train(hours=1)
    assert [event.text for event in life.events if isinstance(event, Noted)] == ["It ends."]


def batch(folder: Path, **variables: str) -> Environment:
    """A Kaggle batch run in which nothing tells how old the machine is."""
    folder.mkdir(exist_ok=True)
    with fake_kaggle(folder, run_type="Batch") as machine:
        here: Environment = machine.environment
        return replace(here, environ={**here.environ, **variables})


def test_a_kaggle_batch_run_ends_an_hour_before_its_twelve(tmp_path: Path) -> None:
    """What a batch run keeps that is cut off is not known, so it is not tried."""
    found = find_deadline(batch(tmp_path), FakeClock())
    assert found is not None
    assert found.ends
    assert found.reserve == pytest.approx(HOUR)
    assert found.at <= 12 * HOUR
    assert "max_time" in found.text


def test_a_batch_run_on_a_host_that_is_up_for_long_still_ends_cleanly(tmp_path: Path) -> None:
    """The container's uptime is its host's, 13 hours: this process is ten minutes old, and that is what counts."""
    here = batch(tmp_path)
    started = int((13 * HOUR - 600) * 100)
    write(here.root, "/proc/uptime", "46800.00 1.00\n")
    write(here.root, "/proc/self/stat", f"5 (python) S {'0 ' * 18}{started} 0\n")
    found = find_deadline(here, FakeClock())
    assert found is not None
    assert found.ends
    assert found.at == pytest.approx(12 * HOUR - 600)


def test_who_says_when_training_ends_is_not_overruled(tmp_path: Path) -> None:
    """With max_time=… a batch run goes on to there."""
    found = find_deadline(batch(tmp_path), FakeClock(), may_end=False)
    assert found is not None
    assert not found.ends


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_user_who_knows_better_says_how_long_a_session_lasts(tmp_path: Path, how: str) -> None:
    """A paid plan, a machine of one's own with a time limit: session_limit or COLABKEEP_SESSION_LIMIT."""
    here = batch(tmp_path, **({"COLABKEEP_SESSION_LIMIT": "6 h"} if how == "variable" else {}))
    found = find_deadline(here, FakeClock(), limit=6 * HOUR if how == "argument" else None)
    assert found is not None
    assert 5 * HOUR < found.at <= 6 * HOUR
    assert found.reserve == pytest.approx(HOUR / 2)


def test_a_machine_of_ones_own_has_no_end(tmp_path: Path) -> None:
    """Nothing is said and nothing is saved for an end that nobody knows of."""
    assert find_deadline(Environment(environ={}, root=tmp_path, folder=tmp_path), FakeClock()) is None


@pytest.mark.parametrize("door", ["Run", "resumable_fit"])
def test_a_session_limit_that_is_none_is_refused(tmp_path: Path, door: str) -> None:
    """Before anything is begun, with the form it should have."""
    calls: dict[str, Callable[[], Any]] = {
        "Run": lambda: colabkeep.Run("r", model=Number(), storage=tmp_path, session_limit="soon"),
        "resumable_fit": lambda: colabkeep.resumable_fit(
            **hard_training(epochs=1), storage=tmp_path, session_limit="soon", on_bad_gpu="ignore"
        ),
    }
    with pytest.raises(UsageError, match="session_limit"):
        calls[door]()

"""When a training is saved changes nothing of the training, however that is chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

import colabkeep
from colabkeep.core.errors import UsageError
from colabkeep.core.events import Event, SaveStarted
from colabkeep.session import open as opening
from colabkeep.testing.clock import FakeClock
from tests.trainings.torch import hard_training


class Uneven(FakeClock):
    """A machine whose steps take as long as they will: some of these seconds pass whenever it is looked at."""

    def __init__(self, *seconds: float) -> None:
        super().__init__()
        self._draw, self._seconds = Random(1), seconds

    def monotonic(self) -> float:
        self.advance(self._draw.choice(self._seconds))
        return super().monotonic()


@pytest.mark.parametrize("every", ["auto", ["auto", "7 steps"], "3 steps"], ids=str)
def test_when_it_is_saved_changes_no_bit(
    tmp_path: Path, kit: SimpleNamespace, whole: Callable[..., dict[str, str]], every: Any
) -> None:
    """Saves look and do not touch, however often they come and whoever chose that."""
    kit.fit(tmp_path, save_every=every)
    assert kit.state(tmp_path, "r") == whole()


def test_two_machines_that_save_at_different_moments_train_the_same_bits(
    tmp_path: Path,
    kit: SimpleNamespace,
    whole: Callable[..., dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cadence depends on time, so no two trainings are saved alike; their weights, optimizers and random streams
    are those of the one that is saved every third step, in windows of two batches too."""
    moments: list[list[int]] = []
    for accumulate in (1, 2):
        for seconds in ((0.0, 0.0, 0.5), (20.0, 400.0)):
            steps: list[int] = []

            def heard(event: Event, steps: list[int] = steps) -> None:
                if isinstance(event, SaveStarted):
                    steps.append(event.progress.step)

            monkeypatch.setattr(opening, "SystemClock", lambda seconds=seconds: Uneven(*seconds))
            folder = tmp_path / f"{accumulate}-{seconds[-1]}"
            words = hard_training(epochs=kit.EPOCHS, accumulate=accumulate)
            kit.fit(folder, **{**words, "save_every": "auto", "callbacks": (*words["callbacks"], heard)})
            assert kit.state(folder, "r") == whole(accumulate)
            moments.append(steps)
    # When the writer looks at the clock is its own matter; a slow machine saves more often than at each epoch's end.
    assert [len(steps) >= kit.EPOCHS for steps in moments] == [True] * 4
    assert moments[0] != moments[1]
    assert moments[2] != moments[3]


def test_a_training_that_changes_its_cadence_between_sessions_trains_the_same_bits(
    tmp_path: Path, kit: SimpleNamespace, whole: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third step, then "auto" on another machine, then with another overhead: each goes on where it was."""
    kit.fit(tmp_path, save_every="3 steps", max_epochs=1)
    monkeypatch.setattr(opening, "SystemClock", lambda: Uneven(0.0, 0.0, 0.5, 20.0, 400.0))
    second = kit.fit(tmp_path, save_every="auto", max_epochs=2)
    third = kit.fit(tmp_path, save_every="auto", overhead=0.3, max_epochs=kit.EPOCHS)
    assert (second.resumed_from or 0) > 0
    assert (third.resumed_from or 0) > (second.resumed_from or 0)
    assert kit.state(tmp_path, "r") == whole()


@pytest.mark.parametrize("door", ["Run", "resumable_fit"])
@pytest.mark.parametrize("overhead", [0, 1, -0.01, float("nan"), "0.01"], ids=str)
def test_an_overhead_that_is_none_is_refused(tmp_path: Path, kit: SimpleNamespace, door: str, overhead: Any) -> None:
    """Before anything is begun, with the form it should have."""
    calls: dict[str, Callable[[], Any]] = {
        "Run": lambda: colabkeep.Run("r", state={"n": [1]}, storage=tmp_path / "s", overhead=overhead),
        "resumable_fit": lambda: kit.fit(tmp_path / "s", overhead=overhead, on_bad_gpu="ignore"),
    }
    with pytest.raises(UsageError, match="overhead=") as caught:
        calls[door]()
    assert "0.01 for 1 %" in caught.value.remedy
    assert not (tmp_path / "s").exists()

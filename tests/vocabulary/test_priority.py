"""Work behind a training that lets the training have the interpreter."""

from __future__ import annotations

import pytest

from colabkeep.vocabulary import priority
from colabkeep.vocabulary.priority import Breather


def test_long_work_rests_every_so_often_and_short_work_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten milliseconds of Python are not one wait for the training, but many short ones; a rest is no work."""
    now, rests = [0.0], []

    def sleep(seconds: float) -> None:
        rests.append(seconds)
        now[0] += 1.0

    monkeypatch.setattr(priority.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(priority.time, "sleep", sleep)
    breather = Breather()
    for _ in range(1000):
        now[0] += 10e-6
        breather.breathe()
    assert 30 <= len(rests) <= 50
    assert all(0 < rest < 1e-3 for rest in rests)
    rests.clear()
    Breather().breathe()
    assert not rests

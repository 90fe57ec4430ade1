"""The way to the first step, in words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import colabkeep
from colabkeep.testing.clock import FakeClock


def test_what_is_too_short_to_be_named_is_the_rest(tmp_path: Path, clock: FakeClock, kit: SimpleNamespace) -> None:
    """The parts add up to the whole: many short ones, or one that this colabkeep does not know, are not lost."""
    kit.session(tmp_path, clock, to=2)
    laps = {"read": 2.0, "restore": 0.5, "warp": 0.25, **{f"short{n}": 0.004 for n in range(20)}}
    kit.noted(tmp_path, "00000abc", {"at": 1.0, "event": "FirstStepDone", "laps": laps})
    lines = list(colabkeep.report("r", storage=tmp_path).lines())
    (line,) = [line for line in lines if "00000abc" in line and "to the first step" in line]
    assert line.endswith(
        "2.83 s to the first step (reading and hashing the checkpoint 2.00 s, restoring 0.50 s, warp 0.25 s, "
        "remaining 0.08 s)"
    )

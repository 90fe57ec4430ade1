"""No synchronisation of the product can be taken away without a schedule that notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simcuda.device import SCHEDULES, Simulation
from tests.simcuda.mutants import MUTANTS, PACKAGE, Mutant, verdict

pytestmark = pytest.mark.simulated


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_schedule_notices(mutant: Mutant, simulation: Simulation, tmp_path: Path) -> None:
    """Tests that pass with the line pass no more without it, under one of the schedules at least."""
    source = (PACKAGE / mutant.file).read_text()
    assert source.count(mutant.old) == 1, f"{mutant.file} has {mutant.old!r} {source.count(mutant.old)} times"
    (tmp_path / "mutated.py").write_text(source.replace(mutant.old, mutant.new))
    others = [f"{word}:7" if word == "chaos" else word for word in SCHEDULES if word != mutant.seen_by]
    for schedule in (mutant.seen_by, *others):
        if verdict(schedule, mutant, tmp_path) is pytest.ExitCode.TESTS_FAILED:
            return
    raise AssertionError(f"nobody noticed: {mutant.name}\n{(tmp_path / 'said').read_text()}")


def test_without_a_mutant_the_checks_pass(simulation: Simulation, tmp_path: Path) -> None:
    """Else each would be noticed, whatever it was."""
    assert verdict("worst_late", None, tmp_path) is pytest.ExitCode.OK, (tmp_path / "said").read_text()

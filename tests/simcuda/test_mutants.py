"""No synchronisation of the product can be taken away without a schedule that notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simcuda.device import SCHEDULES, Simulation
from tests.simcuda.mutants import CHECKS, MUTANTS, PACKAGE, Mutant, verdict

pytestmark = pytest.mark.simulated


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_schedule_notices(mutant: Mutant, simulation: Simulation, tmp_path: Path) -> None:
    """Tests that pass with the line pass no more without it, under one of the schedules at least."""
    source = (PACKAGE / mutant.file).read_text()
    assert source.count(mutant.old) == 1, f"{mutant.file} has {mutant.old!r} {source.count(mutant.old)} times"
    (tmp_path / "mutated.py").write_text(source.replace(mutant.old, mutant.new))
    schedules = sorted(SCHEDULES, key=lambda word: word != mutant.seen_by)
    for schedule, checks in [(mutant.seen_by, mutant.checks), *((word, CHECKS) for word in schedules)]:
        seed = ":7" if schedule == "chaos" else ""
        if verdict(schedule + seed, mutant, tmp_path, checks) is pytest.ExitCode.TESTS_FAILED:
            return
    raise AssertionError(f"nobody noticed: {mutant.name}\n{(tmp_path / 'said').read_text()}")


def test_without_a_mutant_the_checks_pass(simulation: Simulation, tmp_path: Path) -> None:
    """Else each would be noticed, whatever it was."""
    checks = tuple({check: None for mutant in MUTANTS for check in mutant.checks})
    assert verdict("worst_late", None, tmp_path, checks) is pytest.ExitCode.OK, (tmp_path / "said").read_text()

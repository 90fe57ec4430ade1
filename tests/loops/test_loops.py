"""Loops as people write them: a small share of `python -m tests.long.loops`, through the very same program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.long.running import told_by
from tests.loops.harness import Port, names

KILLS = 1
TOGETHER = 2  # processes, as many as a small machine has cores


@pytest.fixture(scope="module")
def records() -> dict[str, dict[str, Any]]:
    """What came of each port. A process of its own: it forks, which wants one thread and one thread only."""
    found, _ = told_by("loops", "--kills", str(KILLS), "--seed", "3", "--jobs", str(TOGETHER))
    return {record["name"]: record for record in found}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names())
def test_a_loop_that_is_killed_ends_as_if_nothing_had_been(name: str, records: dict[str, dict[str, Any]]) -> None:
    """Bit for bit as left alone, and as its original without colabkeep; or its user is told why not."""
    port = Port(name)
    if port.missing:
        pytest.skip(f"{port.needs} is not installed")
    record = records[name]
    assert record["faults"] == []
    assert record["kills"] == KILLS or port.refused
    assert record["original"] == (port.no_original or "equal")


def test_the_ports_are_many_and_named_with_their_source() -> None:
    """Each says in its first lines what it is, and stands beside its original or says why it cannot."""
    assert len(names()) >= 50
    for name in names():
        file = Path(__file__).parent / "ports" / f"{name}.py"
        said = file.read_text().split('"""')[1]
        assert len(said) > 80, name
    compared = [name for name in names() if Port(name).original is not None]
    assert len(compared) >= 40

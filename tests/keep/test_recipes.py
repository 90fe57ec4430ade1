"""Other people's trainers in a kept folder: killed in the middle with the machine, and brought back on a fresh one.

Those whose packages the tests have anyway; all of them: python -m tests.keep.recipes
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keep.recipes.cases import CASES, try_case

TORCH = ("trainer", "gan", "lora")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=[pytest.mark.torch, pytest.mark.long]) for name in TORCH),
        pytest.param("paddle", marks=pytest.mark.paddle),
    ],
)
def test_a_program_of_others_goes_on_on_a_fresh_machine(tmp_path: Path, name: str) -> None:
    """After its newest checkpoint and not at its beginning; and to the same bits where its page says so."""
    outcome = try_case(CASES[name], tmp_path)
    assert (outcome.after, outcome.exact) == (CASES[name].back, CASES[name].exact)
    assert outcome.before == CASES[name].hold

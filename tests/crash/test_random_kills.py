"""A small share of `python -m tests.long.crashes`, through the very same program."""

from __future__ import annotations

import pytest

from tests.long.running import told_by


@pytest.mark.slow
def test_a_training_killed_anywhere_ends_with_the_bits_of_one_left_alone(framework_name: str) -> None:
    """Workers change, saves are torn, validations cut short: weights, samples and all other state are the same."""
    told, status = told_by("crashes", "--framework", framework_name, "--kills", "12", "--seed", "7")
    assert told["differing"] == {}
    assert told["left behind"] == []
    assert (status, told["kills"]) == (0, 12)
    assert told["resumes"] > 0

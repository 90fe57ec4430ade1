"""A small share of `python -m tests.long.losses` and `python -m tests.long.quota`, through the very same programs."""

from __future__ import annotations

import pytest

from tests.long.running import told_by


@pytest.mark.slow
def test_what_was_called_safe_is_there_after_every_loss() -> None:
    """A drive of which 30 % of the operations fail, kills anywhere, machines that are given away: what was called
    confirmed is there and whole, and nobody would have lost more than the ledger said."""
    told, status = told_by("losses", "--saves", "120", "--seed", "4")
    assert told["wrong"] == []
    assert status == 0
    assert told["saves"] >= 120
    assert told["lost_machines"] > 1
    assert told["confirmed"] > 0  # how many, is a matter of the machine's speed
    assert told["checked"] > 0


@pytest.mark.slow
def test_hundreds_of_saves_into_fifteen_gigabytes_are_never_full() -> None:
    """Trash that counts, other people's files, more to be kept than fits: no save was ever refused. A gigabyte is
    smaller here, so that it takes seconds; the decisions are the same, as long as the journal of so many saves is small
    beside a gigabyte."""
    told, status = told_by("quota", "--saves", "300", "--gigabyte", "500000")
    assert told["wrong"] == []
    assert (status, told["saves"], told["refused"]) == (0, 300, 0)
    assert told["least_free"] > 0
    assert told["kept_at_the_end"] >= 1

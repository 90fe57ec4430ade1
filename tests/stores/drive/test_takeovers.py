"""A small share of `python -m tests.long.takeovers`: two machines on one run, whose listings lag and are not whole."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.long.takeovers import LAG, Late, explore, machine_on


def test_in_any_order_of_two_machines_requests_one_writes_and_nothing_safe_is_deleted(drive):
    """Starts, saves, prunes, takeovers and deaths: no other session deletes what a checkpoint needs, none begins anew
    what has a past, and whoever may not write is told."""
    counts = Counter()
    explore(drive, 8, counts, steps=15)
    assert counts["histories"] >= 8
    assert counts["saved"] > 0


@pytest.mark.parametrize("alike", [True, False], ids=["the same bytes", "other bytes"])
def test_what_a_newer_session_prunes_is_not_what_an_unseen_checkpoint_needs(drive, alike):
    """The newest checkpoint of the machine before is not listed yet. The new one goes on from the one before, saves
    four more and prunes. Where both computed the same bytes, it once deleted them with its own checkpoint."""
    drive.set(token_seconds=10**9)
    history = machine_on(drive, Counter())()
    late = Late(by=("parents",), within=("checkpoints",), chance=1.0, partial=False)
    history.begin(keep=2, past=[LAG + 1, 0.0], alike=alike, late=late)
    try:
        history.start("B", "f", at_once=True)
        for _ in range(4):
            history.save("B", at_once=True)
            history.nothing_is_wrong()
    finally:
        history.teardown()

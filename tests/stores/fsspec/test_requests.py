"""A run is opened with few requests."""

from __future__ import annotations

from colabkeep.checkpoint.retention import KeepLast
from tests.fakes.runs import filled, resumed


def test_opening_a_run_takes_at_most_three_listings(place, opened, door, tmp_path):
    """However many checkpoints it has: nobody waits for a request per checkpoint. What lies in pages is one listing;
    the library's own small questions, of one key each, are none."""
    filled(opened(place(tmp_path)), 12)
    door.log.clear()
    resumed(opened(place(tmp_path)), KeepLast(None))
    listings = [line for line in door.requests("list-type=2") if "max-keys=1&" not in line]
    assert 1 <= len(listings) <= 3

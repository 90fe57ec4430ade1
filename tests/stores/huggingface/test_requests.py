"""A run is opened with few requests."""

from __future__ import annotations

import pytest

from colabkeep.checkpoint.retention import KeepLast
from tests.fakes.runs import filled, resumed

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def test_opening_a_run_takes_at_most_three_listings(hub, opened):
    """However many checkpoints it has: nobody waits for a request per checkpoint."""
    store = opened()
    filled(store, 12)
    assert store.flush(10.0)
    hub.log.clear()
    resumed(opened(), KeepLast(None))
    assert 1 <= len(hub.requests("/tree/")) <= 3

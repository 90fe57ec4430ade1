"""A run is opened with few requests."""

from __future__ import annotations

from colabkeep.checkpoint.retention import KeepLast
from tests.fakes.runs import filled, resumed


def test_opening_a_run_takes_one_listing(machine, fake):
    """Of the dataset's files: which object lies in which of them, is told by one that is read."""
    store = machine("a")
    filled(store, 12)
    assert store.flush(30.0)
    store.close()
    before = len(fake.calls)
    resumed(machine("b"), KeepLast(None))
    assert fake.calls[before:].count("ListDatasetFiles") == 1

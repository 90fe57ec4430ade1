"""A run of many sessions on the Hub: what is folded rides in the commits of the saves."""

from __future__ import annotations

import pytest

from colabkeep.checkpoint.compaction import Folding
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.checkpoint.verify import audit
from colabkeep.stores.base import BytesSource
from tests.fakes.runs import RUN, old_sessions, told

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def test_folding_makes_no_commit_of_its_own(hub, opened):
    """The history with one save, what it holds goes with the next one; and nothing before the Hub has the history."""
    store = opened()
    old_sessions(store, 40, lines=1)
    assert store.flush(10.0)
    before, whole = told(opened()), len(list(store.list(RUN)))
    lease = take_lease(Repository(store, RUN), "ffffffff", {})
    work = Folding(lease)
    hub.log.clear()
    sizes = []
    for save in range(3):
        while work.work(lambda: False):
            pass
        assert len(hub.requests("/commit/")) == save
        store.put(f"{RUN}/checkpoints/save{save}", BytesSource(b"a save"))
        sizes.append(len(list(opened().list(RUN))))
    assert sizes == [whole + 3, whole + 4 - 32, whole + 5 - 32]
    for save in range(3):
        store.delete(f"{RUN}/checkpoints/save{save}")
    assert store.flush(10.0)
    assert told(opened()) == before
    assert {finding.state for finding in audit(Repository(opened(), RUN))} == {"ok"}

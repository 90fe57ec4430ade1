"""A run of hundreds of sessions on Drive: few files, few requests at the beginning of a session, nothing lost."""

from __future__ import annotations

from colabkeep.checkpoint.compaction import KEPT, TOGETHER
from colabkeep.checkpoint.durability import vanished
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.verify import audit
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.tiered import TieredStore
from tests.fakes.drive import lose_answer, refuse, reset_request
from tests.fakes.runs import RUN, folding, old_sessions, told

from .conftest import store_on

COUNT = 60
PATIENCE = 120.0  # seconds until a hanging test gives up


def test_what_old_sessions_left_on_drive_is_folded(drive, open_drive, watch):
    """Over a bad connection, too; the next session asks less to read its past, and all of it is there."""
    old_sessions(open_drive(), COUNT, lines=1)
    before = told(open_drive())
    traffic = watch()
    assert vanished(Repository(open_drive(), RUN)) == []
    unfolded = len(traffic.all())
    troubles = [refuse(503), lose_answer(), reset_request(500)]
    drive.faults(*[one.on(path="/drive/v3/", count=None, chance=0.02, seed=n) for n, one in enumerate(troubles)])
    for _ in range(3):
        work = folding(open_drive())
        while work.work(lambda: False):
            pass
    drive.faults()
    store = open_drive()
    assert len(list(store.list(RUN))) < 1 + 2 * (KEPT + TOGETHER) + 8
    assert told(store) == before
    assert {finding.state for finding in audit(Repository(open_drive(), RUN))} == {"ok"}
    traffic = watch()
    assert vanished(Repository(open_drive(), RUN)) == []
    assert len(traffic.all()) < unfolded * 2 // 3


def test_behind_a_front_folder_nothing_goes_before_drive_has_the_history(drive, tmp_path):
    """A machine's disk in front: the history is on Drive, and read there, before a file goes on either side."""

    def machine(folder):
        behind = store_on(drive, "colabkeep", clock=None)
        return TieredStore(DirectoryStore(tmp_path / folder), behind, pauses=(0.05, 0.1)), behind

    first, behind = machine("one")
    old_sessions(first, COUNT, lines=1)
    assert first.flush(PATIENCE)
    whole = {entry.name for entry in behind.list(RUN)}
    work = folding(first)
    more = True
    while more or not first.flush(0.2):
        more = work.work(lambda: False)
        there = {entry.name for entry in behind.list(RUN)}
        assert whole <= there or any("/history-" in name for name in there)
    while work.work(lambda: False):  # what waited for Drive
        pass
    assert first.flush(PATIENCE)
    first.close()
    second, behind = machine("two")
    second.sweep(RUN)
    assert len(list(behind.list(RUN))) < COUNT * 2
    assert told(second) == {f"{n:08x}": [f"{n}.0"] for n in range(1, COUNT + 1)}
    assert {finding.state for finding in audit(Repository(second, RUN))} == {"ok"}
    second.close()

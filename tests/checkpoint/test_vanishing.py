"""What is not in the store any more is noticed; what a listing merely does not show is not taken for gone."""

from __future__ import annotations

import pytest

from colabkeep.checkpoint.retention import KeepLast
from colabkeep.core.errors import RunTakenOver
from colabkeep.core.events import Noted
from colabkeep.stores.memory import MemoryStore


class Partial(MemoryStore):
    """Its listings leave out what lies in the folders `hidden`."""

    hidden = ()

    def list(self, prefix):
        return [entry for entry in super().list(prefix) if not any(f"/{name}/" in entry.name for name in self.hidden)]


def told(session):
    return [event.text for event in session.events if isinstance(event, Noted) and "vanished" in event.text]


@pytest.mark.parametrize("hidden", [("lease",), ("lease", "checkpoints")])
def test_a_listing_that_shows_too_little_is_not_believed(kit, hidden):
    """What it lacks is asked for by its name, and is there: nothing is told, and nothing is begun anew."""
    store = Partial()
    session = kit.Session(store)
    session.save(1)
    store.hidden = hidden
    session.save(2)
    store.hidden = ()
    assert told(session) == []
    assert [manifest.progress.step for manifest in session.repository.manifests(session.repository.ids())] == [1, 2]


def test_nothing_that_vanished_counts_as_safe(kit, disk):
    """Of checkpoints that are gone nobody is told that training could go back to them."""
    session = kit.Session(disk.store)
    session.save(1)
    assert session.committer.ledger.durability(1.0).standings != ()
    disk.files.clear()
    session.committer.look()
    assert session.committer.newest is None
    assert session.committer.ledger.durability(1.0).standings == ()
    assert len(told(session)) == 1
    assert sorted(disk.files) == ["run/lease/000001-aaaaaaaa.json", "run/run.json"]


def test_the_checkpoints_of_a_run_that_was_taken_over_have_not_vanished(kit, disk):
    """The newer session pruned them: the older one stops, and writes nothing again."""
    old = kit.Session(disk.store, "aaaaaaaa")
    old.save(1)
    new = kit.Session(disk.store, "bbbbbbbb", keep=KeepLast(1), resume=kit.newest(disk.store)[0])
    new.save(2)
    assert "000000000001-aaaaaaaa" not in new.repository.ids()
    before = dict(disk.files)
    with pytest.raises(RunTakenOver):
        old.save(3)
    assert told(old) == []
    assert disk.files == before


def test_a_session_that_has_saved_nothing_misses_no_checkpoint(kit, disk):
    """What it came from may be pruned or deleted by hand; its own record is what it looks for."""
    kit.Session(disk.store, "aaaaaaaa").save(1)
    session = kit.Session(disk.store, "bbbbbbbb", resume=kit.newest(disk.store)[0])
    for name in disk.names("checkpoints"):
        del disk.files[name]
    session.save(2)
    assert told(session) == []

"""A folder is renamed or moved in Drive while it is written: what a fresh machine would not find is not called safe."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from google.auth.transport.requests import AuthorizedSession

import colabkeep
from colabkeep.core.events import Noted, StoreDegraded
from colabkeep.stores.base import BytesSource
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from tests.fakes.drive import refuse, stale_listing

PATIENCE = 30.0  # seconds until a hanging test gives up


class Hand:
    """The user, in the browser."""

    def __init__(self, drive, session):
        self._drive, self._session = drive, session

    def id(self, name):
        return next(file.id for file in self._drive.files() if file.name == name and file.size is None)

    def change(self, id, query="", **body):
        answer = self._session.patch(f"{self._drive.url}/drive/v3/files/{id}{query}", json=body)
        assert answer.status_code == 200, answer.text

    def rename(self, name, to):
        self.change(self.id(name), name=to)

    def move(self, name, old, new):
        self.change(self.id(name), f"?addParents={new}&removeParents={old}")

    def trash(self, name):
        self.change(self.id(name), trashed=True)


@pytest.fixture
def hand(drive):
    with AuthorizedSession(drive.credentials(scopes=["drive"])) as session:
        yield Hand(drive, session)


def names(store):
    return sorted(entry.name for entry in store.list("run"))


AWAY = {
    "the run, renamed": (lambda hand: hand.rename("run", "old"), "is called 'old' now", "colabkeep/run"),
    "the run, moved": (lambda hand: hand.move("run", hand.id("colabkeep"), "root"), "moved elsewhere", "colabkeep/run"),
    "the run, in the trash": (lambda hand: hand.trash("run"), "trash", "colabkeep/run"),
    "one folder of it": (lambda hand: hand.rename("blobs", "x"), "rename 'x' back to 'blobs'", "colabkeep/run/blobs"),
    "the storage itself": (lambda hand: hand.rename("colabkeep", "mine"), "rename 'mine' back", "'colabkeep'"),
}


@pytest.mark.parametrize(("away", "words", "folder"), AWAY.values(), ids=AWAY)
def test_what_a_fresh_machine_would_not_find_is_not_confirmed(open_drive, hand, away, words, folder):
    """Within a minute it is seen and told, with what to do; what is put from then on is found by everybody."""
    clock = FakeClock()
    store = open_drive(clock=clock)
    receipt = store.put("run/blobs/a", BytesSource(b"1"))
    assert receipt.level == "confirmed"
    away(hand)
    clock.advance(61)
    assert names(store) == names(open_drive())
    assert "run/blobs/a" not in names(store)
    assert store.confirm(replace(receipt, level="sent")).level == "sent"
    assert words in store.degraded
    assert folder in store.degraded
    store.put("run/blobs/b", BytesSource(b"2"))
    assert "run/blobs/b" in names(open_drive())


@pytest.mark.parametrize("url", ["colabkeep", "above/colabkeep"])
def test_the_storage_itself_may_be_moved(drive, open_drive, hand, url):
    """It bears the mark of its address, by which a fresh machine finds it wherever it is: so what is in it stays
    confirmed, what is put from then on goes there too, and no second folder is made where it was."""
    clock = FakeClock()
    store = open_drive(url, clock=clock)
    first = store.put("run/blobs/a", BytesSource(b"1"))
    open_drive("attic").put("x/y", BytesSource(b"2"))
    parent = next(file.parent for file in drive.files() if file.id == hand.id("colabkeep"))
    hand.move("colabkeep", parent, hand.id("attic"))
    clock.advance(61)
    second = store.put("run/blobs/b", BytesSource(b"2"))
    clock.advance(61)
    assert names(store) == names(open_drive(url)) == ["run/blobs/a", "run/blobs/b"]
    for receipt in (first, second):
        assert store.confirm(replace(receipt, level="sent")).level == "confirmed"
    assert store.degraded is None
    assert len([file for file in drive.files() if file.name == "colabkeep"]) == 1


def test_what_is_brought_back_counts_again(open_drive, hand):
    """Nothing is told any more, and both folders of the name are one."""
    clock = FakeClock()
    store = open_drive(clock=clock)
    store.put("run/blobs/a", BytesSource(b"1"))
    hand.rename("run", "old")
    clock.advance(61)
    store.put("run/blobs/b", BytesSource(b"2"))
    hand.rename("old", "run")
    clock.advance(61)
    assert names(store) == names(open_drive()) == ["run/blobs/a", "run/blobs/b"]
    assert store.degraded is None


def test_a_search_that_lags_moves_nothing(drive, open_drive):
    """A folder that the search does not show is looked at by its id, and is where it was."""
    clock = FakeClock()
    store = open_drive(clock=clock)
    store.put("run/blobs/a", BytesSource(b"1"))
    clock.advance(61)
    drive.faults(stale_listing(everywhere=True).on("GET", "/drive/v3/files$", count=2))  # by its mark, and by its name
    assert names(store) == ["run/blobs/a"]
    assert store.degraded is None
    assert len([file for file in drive.files() if file.name == "run"]) == 1


def test_a_training_whose_folder_is_renamed_is_found_by_the_next_machine(drive, open_drive, hand):
    """It is told, what was safe is not called so any more, and the next save is a whole one under the old name."""

    def train(storage, epochs, at, events):
        model = torch.nn.Linear(4, 4)
        words = {
            "save_every": None,
            "keep_last": 2,
            "progress": False,
            "storage": storage,
            "callbacks": [events.append],
        }
        with colabkeep.Run("run", model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), **words) as run:
            began = run.progress.step
            for epoch in run.epochs(epochs):
                for batch in run.batches([torch.randn(2, 4)]):
                    model(batch).square().mean().backward()
                    run.step()
                run.save(wait=True)
                at(epoch, run)
        return began

    clock, events = FakeClock(), []

    def at(epoch, run):
        if epoch == 2:
            hand.rename("run", "old")
            clock.advance(61)

    assert train(open_drive(clock=clock), 6, at, events) == 0
    assert [event for event in events if isinstance(event, Noted) and "vanished" in event.text]
    (told,) = [event.detail for event in events if isinstance(event, StoreDegraded) and not event.healed]
    assert "rename 'old' back to 'run'" in told
    assert train(open_drive(), 6, lambda *_: None, []) == 6


def test_with_a_disk_in_front_what_was_renamed_is_sent_again(drive, open_drive, hand, tmp_path):
    """The level falls to this machine, and rises when all is there that a fresh machine needs."""
    clock = FakeClock()
    behind = open_drive(clock=clock)
    store = TieredStore(DirectoryStore(tmp_path), behind, pauses=(0.01, 0.02), monotonic=clock.monotonic)
    receipt = store.put("run/blobs/a", BytesSource(b"1"))
    assert store.flush(PATIENCE)
    assert store.confirm(receipt).level == "confirmed"
    list(store.list("run"))
    hand.rename("run", "old")
    drive.faults(refuse(503).on("POST", "/upload/", count=None))
    clock.advance(300)
    end = time.monotonic() + PATIENCE
    while behind.degraded is None or "rename 'old' back" not in behind.degraded:
        list(store.list("run"))
        assert time.monotonic() < end
        time.sleep(0.05)
    while store.confirm(receipt).level != "local":
        assert time.monotonic() < end
        time.sleep(0.05)
    drive.faults()
    assert store.flush(PATIENCE)
    assert store.confirm(receipt).level == "confirmed"
    assert names(open_drive()) == ["run/blobs/a"]
    store.close()

"""A run with many checkpoints is opened with few questions."""

from __future__ import annotations

import pytest

from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import load_newest
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.manifest import Proof
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.faults import FaultyStore
from tests.fakes.runs import RUN, filled, resumed


@pytest.fixture(scope="module")
def thousand():
    """A thousand checkpoints, all kept."""
    store = MemoryStore()
    filled(store, 1000)
    return store


def asked(store, what):
    """Names or prefixes that the store was asked for."""
    return [point.split()[2] for point in store.points if point.startswith(f"before {what} ")]


def test_a_thousand_checkpoints_are_opened_with_three_listings(thousand):
    """A session asks what there is; who wrote it last, when it has loaded; and whether anybody was faster."""
    store = FaultyStore(thousand)
    resumed(store, KeepLast(None))
    assert asked(store, "list") == [RUN, f"{RUN}/lease", f"{RUN}/lease"]
    assert len(asked(store, "get")) == 3, "run.json, the newest manifest and its blob"


def test_a_session_that_keeps_all_does_not_read_what_others_have_kept(thousand):
    """Nothing of it will be deleted: the newest few are read, once, to know how durable they are."""
    store = FaultyStore(thousand)
    save = resumed(store, KeepLast(None))
    store.points.clear()
    save(2000)
    assert len(asked(store, "get")) <= 8
    store.points.clear()
    save(2001)
    assert asked(store, "get") == []


def test_after_a_failure_it_is_asked_anew_what_there_is():
    """A mount that failed may have shown too little before: the next attempt does not rely on it."""

    class HalfThere(MemoryStore):
        """Its first listing lacks the blobs, and the first manifest cannot be read."""

        away = True

        def list(self, prefix):
            return [entry for entry in super().list(prefix) if not (self.away and "/blobs/" in entry.name)]

        def get(self, name):
            if self.away and "/checkpoints/" in name:
                self.away = False
                raise StoreUnavailable(problem="The mount is gone.", remedy="It is tried again.")
            return super().get(name)

    store = HalfThere()
    filled(store, 2)
    passed = {}
    loaded = load_newest(Repository(store, RUN), passed.__setitem__)
    assert loaded.manifest.progress.step == 2
    assert passed == {}


@pytest.mark.parametrize("keep", [3, 1])
def test_a_save_lists_a_folder_again_only_behind_what_it_did(kit, keep):
    """A mount may take a tenth of a second for a listing. That no newer session has come is asked right before the
    commit and before anything goes; that nothing has vanished, after the commit and before anything goes.

    With one that is held until a newer one is proven good, there is one to let go before the save, and none behind it.
    """
    proof = Proof()
    session = kit.Session(store := FaultyStore(MemoryStore()), keep=KeepLast(keep), proof=proof)
    for step in range(1, 7):
        store.points.clear()
        proof.finite = step
        session.save(step)
    commit, tidy = ["lease", "checkpoints", "blobs", "lease", "blobs"], ["checkpoints", "aside"]
    prune = [*tidy, "lease", "blobs", "aside", "checkpoints"]
    expected = [*commit, *prune] if keep > 1 else [*prune, *commit, *tidy]
    assert asked(store, "list") == [f"{RUN}/{folder}" for folder in expected]

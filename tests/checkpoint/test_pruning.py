"""What is read in order to decide what goes."""

from __future__ import annotations

import threading

import pytest

from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.retention import line_of, remove
from colabkeep.core.errors import StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.faults import FaultyStore
from tests.fakes.runs import RUN, filled


def steps(manifests):
    return [manifest.progress.step for manifest in manifests]


def test_what_is_not_on_the_line_is_not_read(kit, disk):
    """Its name says that it is an abandoned one's: a request for it would be wasted."""
    first = kit.Session(disk.store)
    saved = [first.save(step) for step in (1, 2)]
    newest = kit.newest(disk.store)[0]
    first.save(3)  # a zombie: the next session went on from step 2
    second = kit.Session(disk.store, "bbbbbbbb", resume=newest)
    last = second.save(4)
    store = FaultyStore(disk.store)
    assert line_of(Repository(store, kit.run), last) == [*saved, last]
    read = {point.split()[2] for point in store.points if point.startswith("before get ")}
    assert read == {disk.manifest(manifest.id) for manifest in (*saved, last)}


def test_of_earlier_sessions_only_as_many_are_read_as_are_asked_for(kit, disk):
    """The newest of them, and all of the last session."""
    for number, name in enumerate(("aaaaaaaa", "cccccccc", "bbbbbbbb")):
        newest = kit.newest(disk.store)[0]
        session = kit.Session(disk.store, name, resume=newest)
        last = [session.save(10 * number + step) for step in (1, 2, 3)][-1]
    repository = Repository(disk.store, kit.run)
    assert steps(line_of(repository, last)) == [1, 2, 3, 11, 12, 13, 21, 22, 23]
    assert steps(line_of(repository, last, earlier=4)) == [3, 11, 12, 13, 21, 22, 23]
    assert steps(line_of(repository, last, earlier=0)) == [21, 22, 23]


class Waiting(MemoryStore):
    """Each reader of a manifest waits until another one reads too."""

    def __init__(self):
        super().__init__()
        self.pair = threading.Barrier(2, timeout=30.0)

    def get(self, name):
        if "/checkpoints/" in name:
            self.pair.wait()
        return super().get(name)


def test_many_manifests_are_read_several_at_a_time():
    """On a store far away each is a request that is mostly waited for."""
    store = Waiting()
    filled(store, 20)
    repository = Repository(store, RUN)
    assert steps(repository.manifests(repository.ids())) == list(range(1, 21))


@pytest.mark.parametrize("count", [3, 20])
def test_a_store_that_fails_while_manifests_are_read_is_told(count):
    """Not as a run of fewer checkpoints, of which blobs would seem to be left over."""
    inner = MemoryStore()
    filled(inner, count)

    def away(point):
        if point.startswith("before get run/checkpoints/000000000002"):
            raise StoreUnavailable(problem="The store is away.", remedy="It is tried again.")

    repository = Repository(FaultyStore(inner, at=away), RUN)
    with pytest.raises(StoreUnavailable):
        repository.manifests(repository.ids())


def test_one_that_is_damaged_among_many_is_left_out():
    """It is found and reported where it matters."""
    store = MemoryStore()
    filled(store, 20)
    store.delete(f"{RUN}/checkpoints/000000000007-aaaaaaaa.json")
    repository = Repository(store, RUN)
    assert len(repository.manifests([*repository.ids(), "000000000007-aaaaaaaa"])) == 19


def test_what_somebody_else_has_put_into_the_run_is_left_alone(kit, disk):
    """Whatever lies among our files under a name that is none of ours is neither counted nor deleted."""
    session = kit.Session(disk.store)
    saved = [session.save(step) for step in (1, 2)]
    foreign = [f"{kit.run}/blobs/{name}" for name in ("notes.txt", "model.safetensors", "0123.safetensors")]
    for name in foreign:
        disk.store.put(name, BytesSource(b"mine"))
    later = kit.Session(disk.store, "bbbbbbbb", resume=kit.newest(disk.store)[0])
    later.save(3)
    later.repository.blobs.present()
    remove(later.repository, saved)
    assert [name for name in foreign if name in disk.files] == foreign
    assert disk.only_blob(saved[0]) not in disk.files

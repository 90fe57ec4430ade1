"""Whatever is done to it, in whatever order, a store on a mounted Drive shows what one in memory shows."""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.stores.colab_drive import MountedStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.faults import FaultyFiles, raising
from colabkeep.testing.stores import ChunkedSource
from tests.fakes.mounts import FakeMount

from .conftest import Tide

NAMES = st.sampled_from(["run/blobs/a", "run/blobs/b", "run/checkpoints/a.json", "run/c", "other/blobs/a"])
PREFIXES = st.sampled_from(["", "run", "run/blobs", "run/checkpoints", "other", "ru", "run/blobs/a"])
CHUNKS = st.lists(st.binary(max_size=40), max_size=4)


def outcome(call):
    """What a call returned, or the kind of error it raised."""
    try:
        return call()
    except (NameTaken, ObjectNotFound) as error:
        return type(error)


def read(store, name):
    with store.get(name) as reader:
        return reader.read()


def listing(store, prefix):
    return sorted((entry.name, entry.size) for entry in store.list(prefix))


class MountedMachine(RuleBasedStateMachine):
    """The same calls on both, with everything in between that the mount is known to do."""

    @initialize(lags=st.booleans(), seed=st.integers(0, 1000))
    def start(self, lags, seed):
        self.folder = Path(tempfile.mkdtemp())
        self.mount = FakeMount(self.folder / "drive", seed=seed)
        self.mount.lags = self.lags = lags
        self.model = MemoryStore()
        self.store = self.open()

    def open(self):
        root, clock = self.mount.root / "colabkeep", Tide(self.mount)
        return MountedStore(root, files=self.mount.files, clock=clock, pauses=(1.0,), per_folder=2)

    def teardown(self):
        if hasattr(self, "mount"):
            assert self.mount.misuse == []
            shutil.rmtree(self.folder)

    @rule(name=NAMES, chunks=CHUNKS)
    def put(self, name, chunks):
        def seen(store):
            receipt = store.put(name, ChunkedSource(*chunks))
            return (receipt.name, receipt.size, receipt.sha256)

        assert outcome(lambda: seen(self.store)) == outcome(lambda: seen(self.model))

    @rule(name=NAMES)
    def get(self, name):
        assert outcome(lambda: read(self.store, name)) == outcome(lambda: read(self.model, name))

    @rule(name=NAMES)
    def delete(self, name):
        self.store.delete(name)
        self.model.delete(name)

    @rule(prefix=PREFIXES)
    def list(self, prefix):
        assert listing(self.store, prefix) == listing(self.model, prefix)

    @rule(prefix=PREFIXES)
    def sweep(self, prefix):
        self.store.sweep(prefix)

    @rule(name=NAMES, at=st.integers(0, 40), when=st.sampled_from(["before", "after"]), lasting=st.booleans())
    def a_process_that_puts_fails_in_the_middle(self, name, at, when, lasting):
        self.mount.settle()
        fault = raising(OSError(errno.ENOTCONN, "away"))
        files = FaultyFiles(at=at, fault=fault, when=when, lasting=lasting, inner=self.mount.files).files
        other = MountedStore(self.mount.root / "colabkeep", files=files, pauses=(), per_folder=2)
        try:
            other.put(name, BytesSource(b"failing"))
        except NameTaken:
            assert outcome(lambda: read(self.model, name)) is not ObjectNotFound
        except StoreUnavailable:
            # Only where it could not tidy up may the object be there; and then as a whole.
            if lasting and name not in dict(listing(self.model, "")) and name in dict(listing(self.store, "")):
                self.model.put(name, BytesSource(b"failing"))
        else:
            self.model.put(name, BytesSource(b"failing"))
        self.mount.lags = self.lags

    @rule()
    def drivefs_works(self):
        self.mount.notice()
        self.mount.sync(most=1)

    @rule()
    def the_mount_dies_and_comes_back(self):
        self.mount.die()
        self.mount.come_back()

    @rule()
    def the_mount_is_away_for_one_call(self):
        self.mount.die()
        self.store._clock.sleep = lambda seconds: self.mount.come_back()
        self.store.list("")
        self.mount.come_back()

    @rule()
    def listings_settle(self):
        self.mount.settle()
        self.mount.lags = self.lags

    @rule()
    def open_again(self):
        self.mount.settle()
        self.store.close()
        self.store = self.open()
        self.store.list("")
        self.mount.lags = self.lags

    @rule()
    def the_machine_is_lost_after_a_flush(self):
        """All was confirmed, so a new machine shows the same."""
        self.store._clock = Tide(self.mount)
        self.mount.settle()
        self.store.sweep("")
        assert self.store.flush(10_000.0)
        self.mount.sync()
        self.mount.reclaim()
        self.open_again()

    @invariant()
    def shows_the_same(self):
        if hasattr(self, "store"):
            assert listing(self.store, "") == listing(self.model, "")


TestMountedMachine = MountedMachine.TestCase
TestMountedMachine.settings = settings(
    deadline=None, stateful_step_count=25, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)

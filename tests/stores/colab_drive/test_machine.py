"""Whatever is done to it, in whatever order, a store on a mounted Drive shows what one in memory shows."""

from __future__ import annotations

import errno

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize, rule

from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.stores.colab_drive import MountedStore
from colabkeep.testing.faults import FaultyFiles, raising
from tests.fakes.model import COMMON, NAMES, StoreMachine, listing, outcome, read
from tests.fakes.mounts import FakeMount

from .conftest import Tide


def names(store):
    return {entry.name for entry in listing(store, "")}


class MountedMachine(StoreMachine):
    """The same calls on both, with everything in between that the mount is known to do."""

    @initialize(lags=st.booleans(), seed=st.integers(0, 1000))
    def start(self, lags, seed):
        self.seed, self.lags, self.mount = seed, lags, None
        super().start()

    def open(self):
        if self.mount is None:
            self.mount = FakeMount(self.folder / "drive", seed=self.seed)
            self.mount.lags = self.lags
        root, clock = self.mount.root / "colabkeep", Tide(self.mount)
        return MountedStore(root, files=self.mount.files, clock=clock, pauses=(1.0,), per_folder=2)

    def teardown(self):
        if hasattr(self, "mount"):
            assert self.mount.misuse == []
        super().teardown()

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
            if lasting and name not in names(self.model) and name in names(self.store):
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
        super().open_again()
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


TestMountedMachine = MountedMachine.TestCase
TestMountedMachine.settings = settings(COMMON, stateful_step_count=25, max_examples=60)

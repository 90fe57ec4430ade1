"""Whatever is done to them, in whatever order, all stores show what the simplest one shows."""

from __future__ import annotations

import contextlib
import errno
import shutil
import time

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import rule

from colabkeep.core.errors import ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.faults import FaultyFiles, FaultyStore, raising
from tests.fakes.model import COMMON, NAMES, PREFIXES, StoreMachine, outcome, read

PATIENCE = 30.0


class DirectoryMachine(StoreMachine):
    """A folder, with puts that fail at some system call in between."""

    def open(self):
        return DirectoryStore(self.folder)

    @rule(name=NAMES, at=st.integers(0, 25), when=st.sampled_from(["before", "after"]))
    def put_that_fails(self, name, at, when):
        files = FaultyFiles(at=at, fault=raising(OSError(errno.EIO, "away")), when=when)
        try:
            DirectoryStore(self.folder, files=files.files).put(name, BytesSource(b"failing"))
        except StoreError:
            return
        self.model.put(name, BytesSource(b"failing"))


class TieredMachine(StoreMachine):
    """A folder behind a folder that answers only when it likes to: nobody in front notices."""

    def open(self):
        self.away = False
        behind = FaultyStore(DirectoryStore(self.folder / "behind"), at=self.answer)
        return TieredStore(DirectoryStore(self.folder / "front"), behind, pauses=(0.001, 0.002))

    def answer(self, point):
        if self.away:
            raise StoreUnavailable(problem="The drive is away.", remedy="Wait.")

    @rule()
    def goes_away(self):
        with contextlib.suppress(ObjectNotFound):
            self.store.list("")  # from now on it is remembered what was there
        self.away = True

    @rule()
    def comes_back(self):
        self.away = False

    @rule(name=NAMES)
    def get(self, name):
        try:
            super().get(name)
        except StoreUnavailable:
            assert outcome(lambda: read(self.store.front, name)) is ObjectNotFound
            if not self.away:  # it is back, and the thread that found it away will see that at its next try
                end = time.monotonic() + PATIENCE
                while self.store.degraded is not None:
                    assert time.monotonic() < end, self.store.degraded
                    time.sleep(0.001)
                super().get(name)

    @rule(prefix=PREFIXES)
    def sweep(self, prefix):
        self.away = False
        self.store.sweep(prefix)

    @rule()
    def open_again(self):
        self.away = False
        assert self.store.flush(PATIENCE)  # what is deleted and not yet deleted behind would be found again
        self.store.close()
        self.store = self.open()
        self.store.list("")

    @rule()
    def machine_is_lost(self):
        """After a flush, everything is behind: a new machine with an empty disk shows the same."""
        self.open_again()
        self.store.close()
        shutil.rmtree(self.folder / "front", ignore_errors=True)
        self.store = self.open()
        self.store.list("")


TestDirectoryMachine = DirectoryMachine.TestCase
TestDirectoryMachine.settings = settings(COMMON, max_examples=40)
TestTieredMachine = TieredMachine.TestCase
TestTieredMachine.settings = settings(COMMON, max_examples=40)

"""Whatever is done to them, in whatever order, all stores show what the simplest one shows."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
import time
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.stores.base import BytesSource, Entry
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.faults import FaultyFiles, FaultyStore, raising
from colabkeep.testing.stores import ChunkedSource

NAMES = st.sampled_from(["run/blobs/a", "run/blobs/b", "run/checkpoints/a", "run/checkpoints/b", "other/blobs/a"])
PREFIXES = st.sampled_from(["", "run", "run/blobs", "run/checkpoints", "other", "ru", "run/blobs/a"])
CHUNKS = st.lists(st.binary(max_size=40), max_size=4)
PATIENCE = 30.0


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
    return sorted(store.list(prefix), key=lambda entry: entry.name)


class StoreMachine(RuleBasedStateMachine):
    """Runs the same calls on a store and on a `MemoryStore`, and compares what can be seen."""

    def open(self):
        raise NotImplementedError

    @initialize()
    def start(self):
        self.folder = Path(tempfile.mkdtemp())
        self.model = MemoryStore()
        self.store = self.open()

    def teardown(self):
        self.store.close()
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

    @rule()
    def open_again(self):
        self.store.close()
        self.store = self.open()

    @invariant()
    def shows_the_same(self):
        if hasattr(self, "store"):
            assert listing(self.store, "") == listing(self.model, "")


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


class ReferenceMachine(StoreMachine):
    """The reference against the plainest model there is: a dictionary."""

    def open(self):
        return MemoryStore()

    @initialize()
    def start(self):
        super().start()
        self.model = DictionaryModel()

    @rule()
    def open_again(self):
        """Memory is not opened again."""


class DictionaryModel:
    """Just enough of a store, on a dictionary, written independently of `MemoryStore`."""

    def __init__(self):
        self.objects = {}

    def put(self, name, source):
        if name in self.objects:
            raise NameTaken(problem="taken", remedy="none")
        self.objects[name] = b"".join(bytes(chunk) for chunk in source.chunks())
        return type("Receipt", (), {"name": name, "size": source.size, "sha256": source.sha256})

    def get(self, name):
        if name not in self.objects:
            raise ObjectNotFound(problem="missing", remedy="none")
        return contextlib.closing(type("Reader", (), {"read": lambda _: self.objects[name], "close": lambda _: None})())

    def list(self, prefix):
        folder = prefix.split("/") if prefix else []
        return [
            Entry(name=name, size=len(data))
            for name, data in self.objects.items()
            if name.split("/")[: len(folder)] == folder and len(name.split("/")) > len(folder)
        ]

    def delete(self, name):
        self.objects.pop(name, None)


COMMON = settings(deadline=None, stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow])
TestDirectoryMachine = DirectoryMachine.TestCase
TestDirectoryMachine.settings = settings(COMMON, max_examples=40)
TestTieredMachine = TieredMachine.TestCase
TestTieredMachine.settings = settings(COMMON, max_examples=40)
TestReferenceMachine = ReferenceMachine.TestCase
TestReferenceMachine.settings = settings(COMMON, max_examples=20)

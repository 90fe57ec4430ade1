"""A Hypothesis machine that does the same to a store and to the one in memory, and compares what can be seen."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreUnavailable
from colabkeep.stores.base import Store
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.stores import ChunkedSource

__all__ = ["COMMON", "NAMES", "PREFIXES", "StoreMachine", "listing", "names", "outcome", "read", "run_beside_memory"]

NAMES = st.sampled_from(
    ["run/blobs/a.safetensors", "run/blobs/b.safetensors", "run/checkpoints/a.json", "run.json", "other/blobs/a.bin"]
)
PREFIXES = st.sampled_from(["", "run", "run/blobs", "run/checkpoints", "other", "ru", "run/run.json"])
CHUNKS = st.lists(st.binary(max_size=40), max_size=4)
COMMON = settings(
    deadline=None,
    stateful_step_count=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def outcome(call):
    """What a call returned, or the kind of error it raised."""
    try:
        return call()
    except (NameTaken, ObjectNotFound) as error:
        return type(error)


def read(store, name):
    with store.get(name) as reader:
        return reader.read()


def names(store, prefix=""):
    return sorted(entry.name for entry in store.list(prefix))


def listing(store, prefix):
    return sorted(store.list(prefix), key=lambda entry: entry.name)


class StoreMachine(RuleBasedStateMachine):
    """Runs the same calls on a store, which `open` opens, and on a `MemoryStore`. `folder` is its own."""

    def open(self):
        raise NotImplementedError

    @initialize()
    def start(self):
        self.folder = Path(tempfile.mkdtemp())
        self.model = MemoryStore()
        self.store = self.open()

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    def persist(self, call):
        """What a call to the store comes to."""
        return outcome(call)

    @rule(name=NAMES, chunks=CHUNKS)
    def put(self, name, chunks):
        def seen(store):
            receipt = store.put(name, ChunkedSource(*chunks))
            return (receipt.name, receipt.size, receipt.sha256)

        assert self.persist(lambda: seen(self.store)) == outcome(lambda: seen(self.model))

    @rule(name=NAMES)
    def get(self, name):
        assert self.persist(lambda: read(self.store, name)) == outcome(lambda: read(self.model, name))

    @rule(name=NAMES)
    def delete(self, name):
        self.persist(lambda: self.store.delete(name))
        self.model.delete(name)

    @rule(prefix=PREFIXES)
    def list(self, prefix):
        assert self.persist(lambda: listing(self.store, prefix)) == listing(self.model, prefix)

    @rule(prefix=PREFIXES)
    def sweep(self, prefix):
        self.persist(lambda: self.store.sweep(prefix))

    @rule()
    def open_again(self):
        self.store.close()
        self.store = self.open()

    @invariant()
    def shows_the_same(self):
        if hasattr(self, "store"):
            assert self.persist(lambda: listing(self.store, "")) == listing(self.model, "")


def run_beside_memory(
    open_new: Callable[[int], Callable[[], Store]],
    *,
    examples: int,
    trouble: Callable[[int], None] = lambda seed: None,
    quiet: Callable[[], None] = lambda: None,
    between: Callable[[], None] = lambda: None,
) -> None:
    """Random histories. `open_new` gives, for the place of a number, what opens it; `trouble` lets requests go wrong,
    as a seed says, `quiet` ends that; `between` is called after each step. A put that fails in passing is tried again,
    and may then find its own object: so faults must leave a put either not done or answered."""

    numbers = itertools.count()

    class PlaceMachine(StoreMachine):
        @initialize()
        def start(self):
            quiet()
            self.open = open_new(next(numbers))
            super().start()

        def teardown(self):
            quiet()
            super().teardown()

        def persist(self, call):
            """Call until it comes through: who has a store that fails for long asks again later."""
            for _ in range(20):
                with contextlib.suppress(StoreUnavailable):
                    return outcome(call)
            raise AssertionError("it never came through")

        @rule(seed=st.integers(0, 10**6))
        def something_goes_wrong(self, seed):
            trouble(seed)

        @rule()
        def all_goes_well_again(self):
            quiet()

        @rule()
        def open_again(self):
            assert self.persist(lambda: self.store.flush(30.0))
            super().open_again()

        @rule(name=NAMES, at=st.integers(0, 2))
        def put_that_is_interrupted(self, name, at):
            def interrupt(number):
                if number == at:
                    raise KeyboardInterrupt

            with contextlib.suppress(KeyboardInterrupt, NameTaken, StoreUnavailable):
                self.store.put(name, ChunkedSource(b"inter", b"rupted", before=interrupt))

        @invariant()
        def shows_the_same(self):
            between()
            super().shows_the_same()

    run_state_machine_as_test(PlaceMachine, settings=settings(COMMON, max_examples=examples))

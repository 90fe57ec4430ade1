"""A Hypothesis machine that does the same to a store and to the one in memory, and compares what can be seen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreUnavailable
from colabkeep.stores.base import Store
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.stores import ChunkedSource

__all__ = ["run_beside_memory"]

NAMES = st.sampled_from(
    ["run/blobs/a.safetensors", "run/blobs/b.safetensors", "run/checkpoints/a.json", "run.json", "other/blobs/a.bin"]
)
PREFIXES = st.sampled_from(["", "run", "run/blobs", "run/checkpoints", "other", "ru", "run/run.json"])
CHUNKS = st.lists(st.binary(max_size=40), max_size=4)


def _outcome(call):
    """What a call returned, or the kind of error it raised."""
    try:
        return call()
    except (NameTaken, ObjectNotFound) as error:
        return type(error)


def _read(store, name):
    with store.get(name) as reader:
        return reader.read()


def _listing(store, prefix):
    return sorted(store.list(prefix), key=lambda entry: entry.name)


def _machine(open_new: Callable[[], Callable[[], Store]], trouble: Callable[[int], None], quiet: Callable[[], None]):
    class Machine(RuleBasedStateMachine):
        @initialize()
        def start(self):
            quiet()
            self.open = open_new()
            self.store, self.model = self.open(), MemoryStore()

        def teardown(self):
            quiet()
            if hasattr(self, "store"):
                self.store.close()

        def persist(self, call):
            """Call until it comes through: who has a store that fails for long asks again later."""
            for _ in range(20):
                with contextlib.suppress(StoreUnavailable):
                    return _outcome(call)
            raise AssertionError("it never came through")

        @rule(seed=st.integers(0, 10**6))
        def something_goes_wrong(self, seed):
            trouble(seed)

        @rule(name=NAMES, chunks=CHUNKS)
        def put(self, name, chunks):
            def put(store):
                receipt = store.put(name, ChunkedSource(*chunks))
                return (receipt.name, receipt.size, receipt.sha256)

            assert self.persist(lambda: put(self.store)) == _outcome(lambda: put(self.model))

        @rule(name=NAMES)
        def get(self, name):
            assert self.persist(lambda: _read(self.store, name)) == _outcome(lambda: _read(self.model, name))

        @rule(name=NAMES)
        def delete(self, name):
            self.persist(lambda: self.store.delete(name))
            self.model.delete(name)

        @rule(prefix=PREFIXES)
        def list(self, prefix):
            assert self.persist(lambda: _listing(self.store, prefix)) == _listing(self.model, prefix)

        @rule(prefix=PREFIXES)
        def sweep(self, prefix):
            self.persist(lambda: self.store.sweep(prefix))

        @rule()
        def open_again(self):
            assert self.persist(lambda: self.store.flush(30.0))
            self.store.close()
            self.store = self.open()

        @rule(name=NAMES, at=st.integers(0, 2))
        def put_that_is_interrupted(self, name, at):
            def interrupt(number):
                if number == at:
                    raise KeyboardInterrupt

            with contextlib.suppress(KeyboardInterrupt, NameTaken, StoreUnavailable):
                self.store.put(name, ChunkedSource(b"inter", b"rupted", before=interrupt))

        @invariant()
        def shows_the_same(self):
            if hasattr(self, "store"):
                assert self.persist(lambda: _listing(self.store, "")) == _listing(self.model, "")

    return Machine


def run_beside_memory(
    open_new: Callable[[], Callable[[], Store]],
    *,
    examples: int,
    trouble: Callable[[int], None] = lambda seed: None,
    quiet: Callable[[], None] = lambda: None,
) -> None:
    """Random histories. `open_new` gives, for a new place, what opens it; `trouble` lets requests go wrong, as a seed
    says, `quiet` ends that. A put that fails in passing is tried again, and may then find its own object: so faults
    must leave a put either not done or answered."""
    few = settings(
        deadline=None,
        stateful_step_count=20,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    run_state_machine_as_test(_machine(open_new, trouble, quiet), settings=few)

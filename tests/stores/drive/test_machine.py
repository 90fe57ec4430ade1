"""Whatever is done to it, in whatever order, on good days and bad: Drive shows what the simplest store shows."""

from __future__ import annotations

import contextlib
import itertools

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.files import read_place
from colabkeep.stores.google.account import Account, SignedIn
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.stores import ChunkedSource
from tests.fakes.drive import (
    act_twice,
    expire_tokens,
    html,
    lose_answer,
    refuse,
    reset_answer,
    reset_request,
    stale_listing,
)

NAMES = st.sampled_from(["run/blobs/a", "run/blobs/b", "run/checkpoints/a", "run.json", "other/blobs/a"])
PREFIXES = st.sampled_from(["", "run", "run/blobs", "run/checkpoints", "other", "ru", "run/blobs/a"])
CHUNKS = st.lists(st.binary(max_size=40), max_size=4)
TROUBLES = [
    refuse(503),
    refuse(403, "userRateLimitExceeded"),
    refuse(429, "rateLimitExceeded", retry_after=7),
    html(502),
    lose_answer(),
    reset_request(3),
    reset_answer(3),
    expire_tokens(),
    stale_listing(),
    act_twice(),
]


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


def machine_on(drive):
    """The machine's class for one server. Each of its runs has a folder of its own."""
    places = itertools.count()

    class DriveMachine(RuleBasedStateMachine):
        @initialize()
        def start(self):
            drive.faults()
            self.place = read_place(f"drive://machine/{next(places)}?service={drive.url}")
            self.credentials = drive.credentials()
            self.journal = MemoryStore()
            self.clock = FakeClock()
            self.model = MemoryStore()
            self.store = self.open()

        def open(self):
            account = Account(lambda: SignedIn(credentials=self.credentials))
            return DriveStore(self.place, account, journal=self.journal, clock=self.clock)

        def teardown(self):
            drive.faults()
            if hasattr(self, "store"):
                self.store.close()

        def persist(self, call):
            """Call until it comes through: who has a store that fails for long asks again later."""
            for _ in range(20):
                with contextlib.suppress(StoreUnavailable):
                    return outcome(call)
            raise AssertionError("it never came through")

        @rule(
            troubles=st.lists(st.sampled_from(TROUBLES), min_size=1, max_size=3, unique_by=repr),
            seed=st.integers(0, 10**6),
        )
        def trouble(self, troubles, seed):
            chance = 0.3 / len(troubles)
            # google-auth renews a token twice for one request: one that is dead for the third time is no sign-in.
            most = {"ExpireTokens": 2}
            drive.faults(
                *[one.on(path="/drive/v3/", count=most.get(one.do), chance=chance, seed=seed) for one in troubles]
            )

        @rule()
        def quiet(self):
            drive.faults()

        @rule(name=NAMES, chunks=CHUNKS)
        def put(self, name, chunks):
            def seen(store):
                receipt = store.put(name, ChunkedSource(*chunks))
                return (receipt.name, receipt.size, receipt.sha256)

            expected = outcome(lambda: seen(self.model))
            assert self.persist(lambda: seen(self.store)) == expected

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
            self.store.sweep(prefix)

        @rule()
        def open_again(self):
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
                self.clock.advance(3)  # every other listing is a new one
                assert self.persist(lambda: listing(self.store, "")) == listing(self.model, "")

    return DriveMachine


def test_every_history_looks_as_it_does_in_memory(drive):
    """Random calls, faults at up to a third of the requests, interrupts and new sessions, beside a dictionary."""
    few = settings(
        deadline=None,
        stateful_step_count=20,
        max_examples=20,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    run_state_machine_as_test(machine_on(drive), settings=few)


def test_an_object_put_after_an_unfinished_one_is_its_own(open_drive):
    """What an earlier, interrupted put of other bytes had sent plays no part."""

    def interrupt(number):
        if number == 1:
            raise KeyboardInterrupt

    store = open_drive()
    with contextlib.suppress(KeyboardInterrupt):
        store.put("run/a", ChunkedSource(b"first", b"half", before=interrupt))
    store.put("run/a", BytesSource(b"other"))
    assert read(store, "run/a") == b"other"

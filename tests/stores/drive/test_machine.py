"""Whatever is done to it, in whatever order, on good days and bad: Drive shows what the simplest store shows."""

from __future__ import annotations

import contextlib
import random
from functools import partial

from colabkeep.stores.base import BytesSource
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
from tests.fakes.model import read, run_beside_memory

from .conftest import store_on

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


def test_every_history_looks_as_it_does_in_memory(drive):
    """Random calls, faults at up to a third of the requests, interrupts and new sessions, beside a dictionary."""
    clock = FakeClock()

    def open_new(number):
        words = {"credentials": drive.credentials(), "journal": MemoryStore(), "clock": clock}
        return partial(store_on, drive, f"machine/{number}", **words)

    def trouble(seed):
        chosen = random.Random(seed)
        troubles = chosen.sample(TROUBLES, chosen.randint(1, 3))
        chance = 0.3 / len(troubles)
        # google-auth renews a token twice for one request: one that is dead for the third time is no sign-in.
        most = {"ExpireTokens": 2}
        drive.faults(*[one.on(path="/drive/v3/", count=most.get(one.do), chance=chance, seed=seed) for one in troubles])

    def between():
        clock.advance(3)  # every other listing is a new one

    run_beside_memory(open_new, examples=20, trouble=trouble, quiet=drive.faults, between=between)


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

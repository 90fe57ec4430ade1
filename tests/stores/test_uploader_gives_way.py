"""What is sent behind a training gives way to it."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from colabkeep.stores.base import BytesSource
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.faults import FaultyStore


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities per thread")
def test_the_thread_that_uploads_has_a_lower_priority_than_the_training():
    """Also where the training's own thread is the one that begins it, as with the first object of a run."""
    seen = []

    def look(point):
        if point.startswith("before put"):
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    store = TieredStore(MemoryStore(), FaultyStore(MemoryStore(), at=look))
    store.put("run/run.json", BytesSource(b"{}"))
    assert store.flush(30.0)
    store.close()
    assert seen
    assert min(seen) > own
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own

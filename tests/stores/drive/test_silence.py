"""A Drive that says nothing any more: it is told after twenty seconds, not after the minutes that every retry takes."""

from __future__ import annotations

import socket
import threading

import pytest

from colabkeep.core.errors import StoreError, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.stores.drive.api import Api
from colabkeep.stores.drive.transfer import Body
from colabkeep.stores.google.account import Account, SignedIn
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.shared.files import Silence
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from tests.fakes.drive import refuse

PATIENCE = 30.0  # seconds until a hanging test gives up


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def api(drive, clock):
    """The door to a machine that takes every connection and never says a word; `api.met` waits for the first one."""
    listener = socket.create_server(("127.0.0.1", 0))
    account = Account(lambda: SignedIn(credentials=drive.credentials()))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    made = Api(account, service=url, sleep=clock.sleep, monotonic=clock.monotonic, timeouts=(PATIENCE, PATIENCE))
    listener.settimeout(PATIENCE)
    made.met = lambda: listener.accept()[0]
    made.hang_up = listener.close
    yield made
    listener.close()
    account.close()


def asking(api, caught):
    def ask():
        try:
            api.ask("GET", "/drive/v3/about", doing="look")
        except StoreUnavailable as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_a_drive_that_does_not_answer_is_told_while_it_is_still_waited_for(api, clock):
    """Within the first attempt of eight, and still when all of them were in vain."""
    caught = []
    thread = asking(api, caught)
    connection = api.met()
    clock.advance(19)
    assert not api.silence.lasts
    clock.advance(2)
    assert api.silence.lasts
    api.hang_up()
    connection.close()
    thread.join(PATIENCE)
    assert len(caught) == 1
    assert api.silence.lasts


def test_a_slow_link_is_no_silence(clock):
    """Each piece of a chunk that leaves is a sign of life, however long the answer takes."""
    silence, lasted = Silence(clock.monotonic), []
    with silence.asking():
        for _ in Body(memoryview(bytes(3 * 256 * 1024)), silence.heard):
            clock.advance(19)
            lasted.append(silence.lasts)
        assert lasted == [False] * 3
        clock.advance(21)
        assert silence.lasts


def test_an_answer_to_one_thread_is_a_sign_of_life_for_all(clock):
    """A single hanging connection is no Drive that is away; and a question that failed at once is no silence later."""
    silence = Silence(clock.monotonic)
    with silence.asking():
        clock.advance(19)
        other = threading.Thread(target=silence.heard)
        other.start()
        other.join()
        clock.advance(19)
        assert not silence.lasts
    clock.advance(1000)
    assert not silence.lasts


def test_a_refusal_is_an_answer_and_a_service_in_trouble_is_none(drive, open_drive, clock):
    """A 403 is told as what it is; minutes of 503 are a Drive that takes nothing."""
    store = open_drive(clock=clock)
    store.put("run/blobs/a", BytesSource(b"1"))
    clock.advance(61)
    drive.faults(refuse(503).on(count=None))
    with pytest.raises(StoreUnavailable):
        store.list("run")
    told = store.degraded
    for words in ("more than 20 seconds", "only on this machine", "Training continues", "Keep this machine running"):
        assert words in told
    clock.advance(1000)
    assert store.degraded == told, "it is told once, not each second"
    drive.faults(refuse(403, "insufficientFilePermissions"))
    with pytest.raises(StoreError):
        store.list("run")
    assert store.degraded is None


def test_nothing_is_called_confirmed_meanwhile_and_all_arrives_in_the_end(drive, open_drive, clock, tmp_path):
    """With a disk in front: what is put goes there, is "local", and is confirmed when Drive is back."""
    behind = open_drive(clock=clock)
    store = TieredStore(DirectoryStore(tmp_path), behind, pauses=(0.01, 0.02), monotonic=clock.monotonic)
    store.sweep("run")
    drive.faults(refuse(503).on(count=None))
    receipt = store.put("run/blobs/a", BytesSource(b"1"))
    assert not store.flush(0.2)
    assert "for more than 20 seconds" in behind.degraded
    assert "would be lost with it" in store.degraded
    assert store.confirm(receipt).level == "local"
    drive.faults()
    assert store.flush(PATIENCE)
    assert store.confirm(receipt).level == "confirmed"
    assert behind.degraded is None
    store.close()

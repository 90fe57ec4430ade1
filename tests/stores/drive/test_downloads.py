"""An object comes back as it was put, also over a bad connection."""

from __future__ import annotations

import random

import pytest

from colabkeep.core.errors import ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.testing.clock import FakeClock
from tests.fakes.drive import expire_tokens, html, lose_answer, refuse, reset_answer, silence, slow, wrong_byte

NAME = "run/blobs/weights"
DATA = random.Random(7).randbytes(3_000_000)
MEDIA = r"/drive/v3/files/[^/]+$"


@pytest.fixture
def store(open_drive):
    store = open_drive()
    store.put(NAME, BytesSource(DATA))
    return store


def read(store, name=NAME):
    with store.get(name) as reader:
        return reader.read()


def downloads(traffic):
    return [seen for seen in traffic.all("GET") if seen.query.get("alt") == "media"]


TROUBLES = {
    "cut in the middle": [reset_answer(1_000_000)],
    "cut three times": [reset_answer(400_000).on(count=3)],
    "refused at first": [refuse(503)],
    "too many requests": [refuse(429, "rateLimitExceeded").on(count=2)],
    "a gateway's page": [html(502)],
    "no answer": [lose_answer()],
    "token expired": [expire_tokens()],
}


@pytest.mark.parametrize("faults", TROUBLES.values(), ids=TROUBLES)
def test_a_disturbed_download_goes_on_where_it_stopped(drive, store, traffic, faults):
    """What has come is not asked for again."""
    drive.faults(*[fault.on("GET", MEDIA, count=fault.count) for fault in faults])
    assert read(store) == DATA
    assert [seen.fault for seen in traffic.all() if seen.fault], "nothing went wrong"
    starts = [int(seen.headers["Range"][6:-1]) for seen in downloads(traffic)]
    assert starts == sorted(starts)
    assert starts[0] == 0
    if "reset" in str(faults[0].do).lower():
        assert min(starts[1:]) > 0


def test_a_silent_download_is_not_waited_for_for_ever(drive, open_drive, store):
    """The deadline of the connection ends it, and it goes on."""
    impatient = open_drive(timeouts=(1.0, 1.0))
    drive.faults(silence(3.0).on("GET", MEDIA))
    assert read(impatient) == DATA


def test_a_slow_download_is_not_taken_for_a_silent_one(drive, open_drive, traffic):
    """Bytes that come slowly come."""
    store = open_drive(timeouts=(1.0, 1.0))
    store.put("run/small", BytesSource(DATA[:200_000]))
    drive.faults(slow(2**16).on("GET", MEDIA))
    assert read(store, "run/small") == DATA[:200_000]
    assert [seen.fault for seen in downloads(traffic) if seen.fault != "Silence"] == ["Slow"]


def test_a_download_that_never_works_ends(drive, open_drive, store):
    """After a bounded number of attempts, with growing pauses, it is an error that says it may be tried again."""
    clock = FakeClock()
    other = open_drive(clock=clock)
    drive.faults(reset_answer(0).on("GET", MEDIA, count=None))
    with pytest.raises(StoreUnavailable):
        read(other)
    assert clock.slept == [1, 2, 4, 8, 16, 32, 64]


def test_a_wrong_byte_is_for_the_reader_to_find_and_a_second_reading_is_offered(drive, store):
    """The digest is checked by whoever knows it; who doubts an object may read it once more, then no more."""
    drive.faults(wrong_byte(5).on("GET", MEDIA))
    assert read(store) != DATA
    assert store.doubt(NAME)
    assert read(store) == DATA
    assert not store.doubt(NAME)


def test_an_object_that_vanished_is_not_found(drive, open_drive, store):
    """Deleted by another session: a `FileNotFoundError`, at once and at the end of a listing's short life too."""
    clock = FakeClock()
    other = open_drive(clock=clock)
    assert read(other) == DATA
    store.delete(NAME)
    with pytest.raises(ObjectNotFound) as caught:
        other.get(NAME)
    assert isinstance(caught.value, FileNotFoundError)
    clock.advance(60)
    with pytest.raises(ObjectNotFound):
        other.get(NAME)


def test_an_object_that_was_put_anew_by_another_session_is_read(open_drive, store):
    """The file of the id that was known is gone, and the name has another: that one is read."""
    clock = FakeClock()
    other = open_drive(clock=clock)
    assert read(other) == DATA
    store.delete(NAME)
    store.put(NAME, BytesSource(b"anew"))
    clock.advance(60)
    assert read(other) == b"anew"


def test_a_reader_can_be_left_in_the_middle(store, traffic):
    """Only what was read travels (and what was on its way): a header costs no gigabyte."""
    with store.get(NAME) as reader:
        assert reader.read(10) == DATA[:10]
    assert reader.closed
    with pytest.raises(ValueError, match="closed"):
        reader.read(1)
    assert len(downloads(traffic)) == 1


def test_a_download_refused_for_good_says_why(drive, store):
    """No attempts are wasted on a file that Drive does not give out."""
    drive.faults(refuse(403, "domainPolicy").on("GET", MEDIA, count=None))
    with pytest.raises(StoreError, match="organisation") as caught:
        read(store)
    assert not caught.value.retryable

"""An object reaches Drive whole, whatever happens on the way, and little is sent twice."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from colabkeep.core.errors import NameTaken, StoreError, StoreFull, StoreUnavailable
from colabkeep.stores import with_notes
from colabkeep.stores.base import BytesSource, StoreContext
from colabkeep.stores.drive.transfer import CHUNK_BYTES
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.clock import FakeClock
from colabkeep.testing.faults import FaultyStore, raising
from colabkeep.testing.stores import ChunkedSource
from tests.fakes.drive import (
    act_twice,
    cancel_upload,
    drop_session,
    expire_tokens,
    fill_quota,
    html,
    lose_answer,
    refuse,
    reset_answer,
    reset_request,
    restart,
    silence,
    slow,
    wrong_byte,
)
from tests.fakes.memory import growth

CHUNK = 2**18
CHUNKS = 5
DATA = random.Random(5).randbytes(CHUNK * (CHUNKS - 1) + 12_345)
NAME = "run/blobs/weights"
BYTES = r"bytes \d"  # PUTs that carry bytes, no questions


@pytest.fixture
def source():
    return ChunkedSource(*(DATA[start : start + 100_000] for start in range(0, len(DATA), 100_000)))


@pytest.fixture
def store(open_drive):
    return open_drive(chunk_bytes=CHUNK)


def read(store, name=NAME):
    with store.get(name) as reader:
        return reader.read()


def test_an_object_is_sent_once_and_confirmed_by_the_service(drive, store, source, traffic):
    """On a good day every byte travels once, and the receipt says that Drive itself stated the digest."""
    receipt = store.put(NAME, source)
    assert (receipt.level, receipt.size, receipt.sha256) == ("confirmed", len(DATA), hashlib.sha256(DATA).hexdigest())
    (file,) = traffic.files()
    assert (receipt.id, drive.content(file)) == (file.id, DATA)
    assert (traffic.carried, len(traffic.chunks), source.reads) == (len(DATA), CHUNKS, 1)


LIGHT = {
    "503 once": [refuse(503)],
    "503 four times": [refuse(503).on(count=4)],
    "500 without sense": [refuse(500, "internalError")],
    "reset in the middle of a chunk": [reset_request(100_000)],
    "reset in the middle of the last chunk": [reset_request(5_000).on(skip=CHUNKS - 1)],
    "lost answer": [lose_answer()],
    "lost last answer": [lose_answer().on(skip=CHUNKS - 1)],
    "last answer cut": [reset_answer(10).on(skip=CHUNKS - 1)],
    "429": [refuse(429, "rateLimitExceeded")],
    "403 for the rate": [refuse(403, "userRateLimitExceeded")],
    "a gateway's page": [html(502)],
    "a gateway's 403": [html(403)],
    "token expired": [expire_tokens()],
    "several": [refuse(503), reset_request(9).on(skip=1), lose_answer().on(skip=2), html().on(skip=2)],
}


def met(fault, skip=2):
    """The fault for PUTs that carry bytes, by default for the third."""
    return fault.on("PUT", "/upload/", content_range=BYTES, skip=fault.skip or skip, count=fault.count)


@pytest.mark.parametrize("faults", LIGHT.values(), ids=LIGHT)
def test_a_disturbed_upload_goes_on_where_it_stopped(drive, store, source, traffic, faults):
    """After any passing trouble the object is whole, and at most one chunk was sent again for each."""
    drive.faults(*map(met, faults))
    assert store.put(NAME, source).level == "confirmed"
    assert [seen.fault for seen in traffic.all() if seen.fault], "nothing went wrong"
    (file,) = traffic.files()
    assert drive.content(file) == DATA
    disturbed = sum(fault.count or 0 for fault in faults)
    assert len(traffic.chunks) <= CHUNKS + disturbed
    assert traffic.carried <= len(DATA) + disturbed * CHUNK
    assert read(store) == DATA


DEATHS = {
    "between two chunks": restart(),
    "in the middle of a chunk": restart(after=70_000),
    "after the last chunk": restart(acted=True).on(skip=CHUNKS - 1),
}


@pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS)
def test_a_service_that_was_away_is_waited_for(drive, open_drive, source, traffic, death):
    """The server is killed and comes back: the upload goes on where it was."""
    store = open_drive(chunk_bytes=CHUNK, clock=None)  # the real time, which the server needs
    drive.faults(met(death))
    assert store.put(NAME, source).level == "confirmed"
    (file,) = traffic.files()
    assert drive.content(file) == DATA
    assert traffic.carried <= len(DATA) + CHUNK


@pytest.mark.parametrize("where", ["POST", "PUT"])
def test_a_silent_service_is_not_waited_for_for_ever(drive, open_drive, source, where):
    """Where nothing comes back, the deadline of the connection ends it, and the next attempt succeeds."""
    store = open_drive(chunk_bytes=CHUNK, timeouts=(1.0, 1.0))
    drive.faults(silence(60.0).on(where, "/upload/", skip=0 if where == "POST" else 1))
    started = time.monotonic()
    assert store.put(NAME, source).level == "confirmed"
    assert time.monotonic() - started < 30
    assert read(store) == DATA


def test_a_chunk_may_take_longer_than_any_deadline(drive, open_drive, traffic):
    """On a slow link each piece of a chunk has the whole deadline to itself: slowness is not taken for silence."""
    store = open_drive(chunk_bytes=2**24, timeouts=(1.0, 30.0))
    drive.faults(slow(3 * 2**20).on("PUT", "/upload/"))
    assert store.put(NAME, BytesSource(bytes(6 * 2**20))).level == "confirmed"
    assert [seen.fault for seen in traffic.chunks] == ["Slow"]


def test_a_forgotten_upload_is_begun_anew(drive, store, source, traffic):
    """When Drive has lost the upload, all is sent again, under the same id, and one file comes of it."""
    drive.faults(drop_session().on("PUT", "/upload/", content_range=BYTES, skip=3))
    assert store.put(NAME, source).level == "confirmed"
    (file,) = traffic.files()
    assert drive.content(file) == DATA
    assert len(traffic.chunks) == 4 + CHUNKS


@pytest.mark.parametrize("asked", [BYTES, r"bytes \*"])
def test_a_cancelled_upload_is_begun_anew(drive, store, source, traffic, asked):
    """It once ended as "please report this", for each save of the same bytes again."""
    drive.faults(
        reset_request(3).on("PUT", "/upload/", content_range=BYTES, skip=2),
        cancel_upload().on("PUT", "/upload/", content_range=asked, skip=3 if asked == BYTES else 0),
    )
    assert store.put(NAME, source).level == "confirmed"
    (file,) = traffic.files()
    assert drive.content(file) == DATA


def test_an_upload_whose_end_and_session_were_lost_is_found_by_its_id(drive, store, source, traffic):
    """The last answer is lost, then the session: the file is there, and not one byte is sent again."""
    drive.faults(
        lose_answer().on("PUT", "/upload/", content_range=BYTES, skip=CHUNKS - 1),
        drop_session().on("PUT", "/upload/", content_range=r"bytes \*"),
    )
    assert store.put(NAME, source).level == "confirmed"
    assert len(traffic.files()) == 1
    assert traffic.carried == len(DATA)


def test_a_begin_whose_answer_was_lost_makes_one_file(drive, store, source, traffic):
    """The request that begins an upload may be repeated: the id makes one file of it."""
    drive.faults(lose_answer().on("POST", "/upload/", count=2))
    assert store.put(NAME, source).level == "confirmed"
    assert len(traffic.files()) == 1


def test_bytes_that_were_changed_on_the_way_are_deleted_and_sent_again(drive, store, source, traffic):
    """Drive's own digest shows one wrong bit; that file is removed for good, and only the good one stays."""
    drive.faults(wrong_byte(1000, of="request").on("PUT", "/upload/", content_range=BYTES, skip=2))
    assert store.put(NAME, source).level == "confirmed"
    (file,) = traffic.files()
    assert drive.content(file) == DATA
    assert [seen.status for seen in traffic.all("DELETE")] == [204]


def test_bytes_that_always_arrive_changed_are_not_kept(drive, store, source, traffic):
    """After three times the put fails, may be tried again later, and nothing of it is left."""
    drive.faults(wrong_byte(7, of="request").on("PUT", "/upload/", content_range=BYTES, count=None))
    with pytest.raises(StoreUnavailable, match="3 times"):
        store.put(NAME, source)
    assert traffic.files() == []


def test_a_source_that_changes_under_the_upload_is_told_as_such(store, traffic):
    """When it was the data that changed, and not the wire, sending it again is not tried."""

    class Moving(ChunkedSource):
        def chunks(self):
            yield memoryview(b"other bytes")

    source = Moving(b"these bytes")
    with pytest.raises(StoreError, match="not what it was") as caught:
        store.put(NAME, source)
    assert not caught.value.retryable
    assert traffic.files() == []


@pytest.mark.parametrize("size", [0, CHUNK, 2 * CHUNK + 5])
def test_a_source_that_fails_at_its_very_end_leaves_nothing(drive, open_drive, traffic, size):
    """A copier finds only after the last byte that its own disk was damaged; the last chunk has not left by then."""

    def fail(number):
        if number == 1:
            raise RuntimeError("damaged")

    with pytest.raises(RuntimeError, match="damaged"):
        open_drive(chunk_bytes=CHUNK).put(NAME, ChunkedSource(bytes(size), before=fail))
    assert traffic.files() == []
    assert traffic.carried <= 2 * CHUNK


@pytest.mark.parametrize("announced", [0, len(DATA) - 1, len(DATA) + 1])
def test_a_source_of_another_size_is_refused_without_waiting(open_drive, traffic, announced):
    """It is the data that changed: no pause and no second attempt helps."""
    clock = FakeClock()
    with pytest.raises(StoreError, match=f"should have {announced} bytes") as caught:
        open_drive(chunk_bytes=CHUNK, clock=clock).put(NAME, ChunkedSource(DATA, announced=announced))
    assert not caught.value.retryable
    assert clock.slept == []
    assert traffic.files() == []


def test_a_full_account_is_told_at_once(drive, store, source, traffic):
    """No retry: freeing space is for the user, and the error says where. It also counts what lies in the trash."""
    drive.faults(refuse(403, "storageQuotaExceeded").on("POST", "/upload/"))
    with pytest.raises(StoreFull) as caught:
        store.put(NAME, source)
    assert "trash" in caught.value.problem
    assert "drive.google.com/drive/quota" in caught.value.remedy
    assert len(traffic.all("POST", "/upload/")) == 1
    assert traffic.files() == []


def test_an_account_that_is_full_at_the_last_byte_keeps_nothing(drive, store, source, traffic):
    """The upload is refused at its very end: no file is there, and when there is room again the put succeeds."""
    drive.set(quota_bytes=sum(file.size or 0 for file in drive.files()) + 10**7)
    try:
        drive.faults(fill_quota().on("PUT", "/upload/", content_range=BYTES, skip=CHUNKS - 1))
        with pytest.raises(StoreFull):
            store.put(NAME, source)
        assert traffic.files() == []
        drive.set(others_bytes=0)
        assert store.put(NAME, source).level == "confirmed"
    finally:
        drive.set(quota_bytes=None, others_bytes=0)
    assert read(store) == DATA


def test_giving_up_is_bounded_and_can_be_continued(drive, open_drive, source, watch, traffic):
    """A service that is out of order for long fails the put after a bounded number of attempts, with growing pauses and
    no more; the next put of the same sends only what is missing."""
    clock = FakeClock()
    store = open_drive(chunk_bytes=CHUNK, clock=clock)
    drive.faults(refuse(503).on("PUT", "/upload/", skip=2, count=None))
    later = watch()
    with pytest.raises(StoreUnavailable):
        store.put(NAME, source)
    assert clock.slept == [1, 2, 4, 8, 16, 32, 64]
    assert [seen.status for seen in later.chunks] == [308, 308, 503], "what was refused is not sent again unasked"
    drive.faults()
    later = watch()
    assert store.put(NAME, source).level == "confirmed"
    assert later.carried == len(DATA) - 2 * CHUNK
    assert len(traffic.files()) == 1


def test_the_next_kernel_continues_an_upload(drive, open_drive, source, tmp_path, watch, traffic):
    """What the killed one had sent is not sent again: the journal on this machine's disk knows the upload."""
    journal = DirectoryStore(tmp_path / "journal")

    def stop(number):
        if number == 8:  # 800,000 bytes: three chunks are on their way by then
            raise KeyboardInterrupt

    interrupted = ChunkedSource(*(DATA[start : start + 100_000] for start in range(0, len(DATA), 100_000)), before=stop)
    with pytest.raises(KeyboardInterrupt):
        open_drive(chunk_bytes=CHUNK, journal=journal).put(NAME, interrupted)
    later = watch()
    assert open_drive(chunk_bytes=CHUNK, journal=journal).put(NAME, source).level == "confirmed"
    assert later.carried == len(DATA) - 3 * CHUNK
    assert len(traffic.files()) == 1
    assert list(journal.list("")) == [], "the record is not needed any more"


CHILD = """
import hashlib, os, sys
from pathlib import Path
from google.oauth2.credentials import Credentials
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.files import read_place
from colabkeep.stores.google.account import Account, SignedIn
from colabkeep.stores.google.account import read_secret

url, secret, journal, data, pause = sys.argv[1:]

class Source:
    data = Path(data).read_bytes()
    size = len(data)
    sha256 = hashlib.sha256(data).hexdigest()

    def chunks(self):
        for start in range(0, self.size, 2**18):
            if start == int(pause) * 2**18:
                print("sent", flush=True)
                sys.stdin.readline()
            yield memoryview(self.data)[start : start + 2**18]

account = Account(lambda: SignedIn(credentials=read_secret(secret).credentials()))
store = DriveStore(read_place(url), account, journal=DirectoryStore(journal), chunk_bytes=2**18)
print(store.put("run/blobs/weights", Source()).level, flush=True)
store.close()
"""


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_a_killed_kernel_loses_at_most_one_chunk(drive, tmp_path, chunk, watch, traffic):
    """SIGKILL in the middle of an upload, and the next process goes on at the service's own offset."""
    (tmp_path / "data").write_bytes(DATA)
    url = f"drive://killed{chunk}?service={drive.url}"
    secret = json.dumps(drive.authorized_user())

    def child(pause):
        words = [sys.executable, "-c", CHILD, url, secret, tmp_path / "journal", tmp_path / "data", str(pause)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with child(chunk) as first:
        assert first.stdout.readline() == "sent\n"
        first.send_signal(signal.SIGKILL)
    later = watch()
    with child(-1) as second:
        assert second.stdout.readline() == "confirmed\n"
    sent_before = (chunk - 1) * CHUNK  # a chunk leaves when the next bytes are there, so that the last is known
    assert later.carried <= len(DATA) - sent_before
    (file,) = traffic.files()
    assert drive.content(file) == DATA


def test_an_upload_that_ended_unnoticed_is_recognised_by_the_next_kernel(open_drive, source, tmp_path, watch, traffic):
    """Killed between Drive's last answer and the end of the put: the same put is a success, not a taken name."""
    journal = DirectoryStore(tmp_path / "journal")
    keeper = FaultyStore(journal)
    first = open_drive(chunk_bytes=CHUNK, journal=keeper)
    keeper.at = lambda point: raising(KeyboardInterrupt())() if point.startswith("before delete") else None
    with pytest.raises(KeyboardInterrupt):
        first.put(NAME, source)
    later = watch()
    receipt = open_drive(chunk_bytes=CHUNK, journal=journal).put(NAME, source)
    assert (receipt.level, later.carried, len(traffic.files())) == ("confirmed", 0, 1)


def test_a_journalled_upload_of_a_file_that_is_gone_is_begun_anew(open_drive, source, tmp_path):
    """Drive still remembers that upload as done, but the file was deleted: nothing is called confirmed that is not."""
    journal = DirectoryStore(tmp_path / "journal")
    keeper = FaultyStore(journal, at=lambda point: raising(KeyboardInterrupt())() if "before delete" in point else None)
    with pytest.raises(KeyboardInterrupt):
        open_drive(chunk_bytes=CHUNK, journal=keeper).put(NAME, source)
    open_drive().delete(NAME)
    store = open_drive(chunk_bytes=CHUNK, journal=journal)
    assert store.put(NAME, source).level == "confirmed"
    assert read(open_drive()) == DATA


def test_what_the_service_remembers_of_a_deleted_file_is_not_believed(open_drive, source, tmp_path, monkeypatch):
    """A finished upload may go on saying that it made its file: whether that is there is asked by its id."""
    journal = DirectoryStore(tmp_path / "journal")
    keeper = FaultyStore(journal, at=lambda point: raising(KeyboardInterrupt())() if "before delete" in point else None)
    real, last = requests.Session.request, []

    def remembering(self, method, url, **options):
        if last and options.get("headers", {}).get("Content-Range", "").startswith("bytes */"):
            return last.pop()
        response = real(self, method, url, **options)
        if method == "PUT" and response.status_code == 200:
            last.append(response)
        return response

    monkeypatch.setattr(requests.Session, "request", remembering)
    with pytest.raises(KeyboardInterrupt):
        open_drive(chunk_bytes=CHUNK, journal=keeper).put(NAME, source)
    open_drive().delete(NAME)
    assert open_drive(chunk_bytes=CHUNK, journal=journal).put(NAME, source).level == "confirmed"
    assert read(open_drive()) == DATA


def test_a_damaged_record_is_not_followed_and_an_old_one_removed(drive, open_drive, source, tmp_path):
    """What is not what was written is as good as no record; one that is older than an upload can be is swept away."""
    journal = DirectoryStore(tmp_path / "journal")
    clock = FakeClock()
    drive.faults(refuse(503).on("PUT", "/upload/", count=None))
    with pytest.raises(StoreUnavailable):
        open_drive(chunk_bytes=CHUNK, journal=journal, clock=clock).put(NAME, source)
    (record,) = (tmp_path / "journal").rglob("*.json")
    record.write_bytes(record.read_bytes().replace(b"upload_id=", b"upload_id=x"))
    store = open_drive(chunk_bytes=CHUNK, journal=journal, clock=clock)
    store.sweep("run")
    assert record.exists(), "it is young"
    with pytest.raises(StoreUnavailable):
        store.put(NAME, source)
    assert not record.exists()
    clock.advance(6.5 * 24 * 3600)
    store.sweep("run")
    assert list((tmp_path / "journal").rglob("*.json")) == []
    drive.faults()
    assert store.put(NAME, source).level == "confirmed"


def test_a_record_that_leads_elsewhere_is_not_followed(drive, open_drive, source, tmp_path):
    """The token goes to Drive only, whatever somebody wrote into the journal."""
    from colabkeep.core.layout import seal, unseal

    journal = DirectoryStore(tmp_path / "journal")
    drive.faults(refuse(503).on("PUT", "/upload/", count=None))
    with pytest.raises(StoreUnavailable):
        open_drive(chunk_bytes=CHUNK, journal=journal).put(NAME, source)
    (path,) = (tmp_path / "journal").rglob("*.json")
    record = unseal(path.read_bytes())
    path.write_bytes(seal({**record, "address": "http://127.0.0.1:9/upload?upload_id=1"}))
    drive.faults()
    assert open_drive(chunk_bytes=CHUNK, journal=journal).put(NAME, source).level == "confirmed"


def test_a_journal_that_fails_costs_no_checkpoint(open_drive, source):
    """The disk with the journal is full: the object is sent all the same, and `degraded` says what that means."""
    full = StoreFull(problem="The disk is full.", remedy="Free space.")
    journal = FaultyStore(MemoryStore(), at=lambda point: raising(full)() if "put" in point else None)
    store = open_drive(chunk_bytes=CHUNK, journal=journal)
    assert store.put(NAME, source).level == "confirmed"
    assert "The disk is full." in store.degraded
    journal.at = lambda _: None
    store.put("run/blobs/other", BytesSource(b"other"))
    assert store.degraded is None


def test_an_interrupt_at_the_last_byte_leaves_nothing(store, source, monkeypatch, traffic):
    """Whoever interrupts a save believes that it is not there; so it is not."""
    real = requests.Session.request

    def interrupted(self, method, url, **options):
        response = real(self, method, url, **options)
        if method == "PUT" and response.status_code == 200:
            raise KeyboardInterrupt
        return response

    monkeypatch.setattr(requests.Session, "request", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.put(NAME, source)
    assert traffic.files() == []
    monkeypatch.undo()
    assert store.put(NAME, source).level == "confirmed"


def test_a_file_that_the_service_made_twice_is_one_object(drive, store, open_drive, source, traffic):
    """A front end inside Drive repeated the request: both files are the object, and deleting it removes both."""
    drive.faults(act_twice().on("PUT", "/upload/", content_range=BYTES, skip=CHUNKS - 1))
    store.put(NAME, source)
    assert len(traffic.files()) == 2
    other = open_drive()
    assert [entry.name for entry in other.list("run")] == [NAME]
    assert read(other) == DATA
    with pytest.raises(NameTaken):
        other.put(NAME, source)
    other.delete(NAME)
    assert traffic.files() == []


def test_waiting_draws_nothing_from_the_generators_of_the_training(drive, open_drive, source):
    """Not even google-auth's own, when the server for tokens is out of order: the training stays exact, bit for bit."""
    random.seed(11)
    before = random.getstate()
    store = open_drive(chunk_bytes=CHUNK)
    drive.faults(
        refuse(503).on("POST", "/token", count=3),
        refuse(503).on("PUT", "/upload/", skip=1, count=3),
        refuse(429, "rateLimitExceeded").on("GET", "generateIds", count=2),
    )
    started = time.monotonic()
    store.put(NAME, source)
    assert random.getstate() == before
    assert time.monotonic() - started < 60, "the pauses are the injected clock's"


def test_no_other_file_is_written(open_drive, source, tmp_path, monkeypatch):
    """Without a journal nothing is written on this machine at all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    open_drive(chunk_bytes=CHUNK).put(NAME, source)
    assert list(Path(tmp_path).iterdir()) == []


def test_the_folder_of_the_notes_is_made_again_when_it_was_deleted(drive, open_drive, tmp_path):
    """Somebody empties this machine's disk: the next uploads are remembered again, and nothing is out of order."""
    store = open_drive(journal=with_notes(StoreContext(disk=tmp_path / "disk")).notes())
    store.put("run/blobs/a", BytesSource(b"1"))
    shutil.rmtree(tmp_path / "disk")
    assert store.put("run/blobs/b", BytesSource(b"2")).level == "confirmed"
    assert (store.degraded, (tmp_path / "disk").is_dir()) == (None, True)


_OPENING = """
from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.files import read_place
from colabkeep.stores.google.account import Account, SignedIn, read_secret
signed = SignedIn(credentials=read_secret(sys.argv[2]).credentials())
store = DriveStore(read_place(sys.argv[1]), Account(lambda: signed))
"""


def test_memory_stays_flat(drive):
    """Sending and reading 96 MiB needs a chunk and little more, not the object."""
    secret = json.dumps(drive.authorized_user())
    assert growth(_OPENING, f"drive://large?service={drive.url}", secret) < CHUNK_BYTES / 2**20 + 48

"""Checkpoints in a bucket: what is called confirmed is there, whatever happens to requests on the way."""

from __future__ import annotations

import hashlib
import random
import threading
from dataclasses import replace

import pytest

from colabkeep.checkpoint.retention import KeepLast
from colabkeep.core.errors import NameTaken, StoreError, StoreFull, StoreUnavailable
from colabkeep.stores.base import BytesSource, Receipt
from colabkeep.stores.fsspec import backend
from colabkeep.stores.fsspec import store as store_module
from colabkeep.testing.stores import ChunkedSource
from tests.fakes.memory import growth
from tests.fakes.model import read
from tests.fakes.runs import filled, resumed
from tests.fakes.s3 import Wrong

BUCKET = "checkpoints"
MIB = 2**20
LARGE = [bytes([number]) * MIB for number in range(11)]  # three parts, the last one short
NAME = "run/blobs/large.safetensors"


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Parts as small as S3 allows."""
    monkeypatch.setattr(backend, "BLOCK", 5 * MIB)


@pytest.fixture
def store(place, opened, tmp_path):
    """An empty store."""
    return opened(place(tmp_path))


def key(store, name):
    return f"{store.url.removeprefix(f's3://{BUCKET}/')}/{name}"


def stored(s3, store, name):
    return s3.get_object(Bucket=BUCKET, Key=key(store, name))["Body"].read()


def in_parts(s3, name, data):
    """What another client stores under the name, in as many requests as colabkeep would need."""
    if len(data) <= 5 * MIB:
        s3.put_object(Bucket=BUCKET, Key=name, Body=data)
        return
    upload = {"Bucket": BUCKET, "Key": name}
    upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
    parts = []
    for number, start in enumerate(range(0, len(data), 5 * MIB), 1):
        answer = s3.upload_part(**upload, PartNumber=number, Body=data[start : start + 5 * MIB])
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})


def unfinished(s3):
    return s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])


@pytest.mark.parametrize("chunks", [[b""], [b"small"], LARGE], ids=["empty", "one request", "parts"])
def test_what_is_confirmed_is_there(store, s3, chunks):
    """The service's own digest was compared: that of one piece, and that of several."""
    receipt = store.put(NAME, ChunkedSource(*chunks))
    assert (receipt.level, store.properties.top_level) == ("confirmed", "confirmed")
    assert stored(s3, store, NAME) == b"".join(chunks)
    assert read(store, NAME) == b"".join(chunks)


def test_an_upload_in_parts_that_is_interrupted_leaves_nothing(store, s3):
    """Neither an object nor parts, which nobody sees and which cost money."""

    def interrupt(number):
        if number == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put(NAME, ChunkedSource(*LARGE, before=interrupt))
    assert unfinished(s3) == []
    assert list(store.list("")) == []


def test_a_part_that_fails_is_sent_again_alone(place, opened, s3, door, tmp_path):
    """Not the parts before it."""
    store = opened(place(tmp_path))
    door.wrong = [Wrong("PUT", "partNumber=2", count=2, code="InternalError", status=500)]
    assert store.put(NAME, ChunkedSource(*LARGE)).level == "confirmed"
    assert [len(door.requests(f"PUT .*partNumber={n}")) for n in (1, 2, 3)] == [1, 3, 1]


@pytest.mark.parametrize(
    ("chunks", "method", "path"), [([b"small"], "PUT", "json"), (LARGE, "POST", "uploadId")], ids=["small", "parts"]
)
def test_an_answer_that_got_lost_does_no_harm(place, opened, s3, door, tmp_path, chunks, method, path):
    """The object is there and the service could not say so: it is recognised as one's own."""
    store = opened(place(tmp_path))
    door.wrong = [Wrong(method, path, "lost", 500, "InternalError")]
    name = "run/a.json"
    assert store.put(name, ChunkedSource(*chunks)).level == "confirmed"
    assert stored(s3, store, name) == b"".join(chunks)
    with pytest.raises(NameTaken):
        store.put(name, ChunkedSource(*chunks))


def test_somebody_else_s_object_is_not_taken_for_one_s_own(place, opened, s3, door, tmp_path):
    """Also after failed attempts, other bytes under the name are other bytes."""
    store = opened(place(tmp_path))
    fast = {"Bucket": BUCKET, "Key": key(store, "run/a.json"), "Body": b"faster"}
    door.wrong = [Wrong("PUT", "json"), Wrong("PUT", "json", "else", call=lambda: s3.put_object(**fast))]
    with pytest.raises(NameTaken):
        store.put("run/a.json", BytesSource(b"slower"))
    assert stored(s3, store, "run/a.json") == b"faster"


def test_the_service_itself_refuses_to_overwrite(place, opened, s3, door, tmp_path):
    """Who comes in after the last look, when the upload is being completed, keeps the name."""
    store = opened(place(tmp_path))
    fast = {"Bucket": BUCKET, "Key": key(store, "run/a"), "Body": b"faster"}
    door.wrong = [Wrong("PUT", "run/a", "else", call=lambda: s3.put_object(**fast))]
    with pytest.raises(NameTaken):
        store.put("run/a", BytesSource(b"small"))
    assert stored(s3, store, "run/a") == b"faster"


def test_a_service_that_is_away_is_asked_a_few_times(store, door):
    """Then the save fails in a way that may pass; nothing is left, and nothing hangs."""
    door.wrong = [Wrong("HEAD", "", count=10**6), Wrong("PUT", "", count=10**6), Wrong("GET", "", count=10**6)]
    for call in (lambda: store.put("run/a", BytesSource(b"x")), lambda: list(store.list("run"))):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert caught.value.retryable
        assert caught.value.__cause__ is not None
    door.wrong = []
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (403, "AccessDenied", StoreError, "AWS_ACCESS_KEY_ID"),
        (403, "QuotaExceeded", StoreFull, "room"),
        (507, "InsufficientStorage", StoreFull, "room"),
    ],
)
def test_a_refusal_says_what_to_do(place, opened, door, tmp_path, status, code, kind, words):
    """Missing rights name the variables to set; a full account is told as such; neither is tried again."""
    store = opened(place(tmp_path))
    door.wrong = [Wrong("PUT", "", status=status, code=code, count=10**6)]
    with pytest.raises(StoreError) as caught:
        store.put("run/a", BytesSource(b"x"))
    assert type(caught.value) is kind
    assert words in caught.value.remedy
    assert len(door.requests("^PUT")) == (1 if status < 500 else 4)  # obstore itself asks again after a 5xx


def test_a_bucket_that_is_not_there_is_told(opened, s3):
    """By each method that would need it, and never shown as an empty one: a training would start from zero."""
    store = opened("s3://there-is-no-such-bucket/x")
    for call in (lambda: list(store.list("run")), lambda: store.put("run/a", BytesSource(b"x"))):
        with pytest.raises(StoreError) as caught:
            call()
        assert "there-is-no-such-bucket" in caught.value.problem
        assert "Create the bucket" in caught.value.remedy


def test_no_credentials_are_told_with_the_variables_to_set(place, opened, tmp_path, monkeypatch):
    """Nothing was configured: the error says which two secrets are missing."""
    store = opened(place(tmp_path))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreError, match="AWS_SECRET_ACCESS_KEY"):
        store.put("run/a", BytesSource(b"x"))


def test_secrets_are_in_no_message(place, opened, door, tmp_path):
    """Neither in an error, its causes, the url nor the store's repr."""
    store = opened(place(tmp_path))
    door.wrong = [Wrong("PUT", "", status=403, code="AccessDenied", count=10**6)]
    with pytest.raises(StoreError) as caught:
        store.put("run/a", BytesSource(b"x"))
    said, error = [store.url, repr(store)], caught.value
    while error is not None:
        said.append(f"{error!s} {error!r}")
        error = error.__cause__
    assert "a-secret" not in " ".join(said)


def test_a_place_whose_digests_are_not_of_the_bytes_is_not_believed(place, opened, s3, door, tmp_path, monkeypatch):
    """Objects under keys of one's own have such ETags: the first is read back, all after it are called sent."""
    store = opened(place(tmp_path))
    backend = store._at_work()
    real = backend.stat
    monkeypatch.setattr(backend, "stat", lambda name: {**real(name), "ETag": f'"{"01" * 16}"'})
    assert store.put("run/a", BytesSource(b"one")).level == "confirmed"
    assert len(door.requests("^GET .*run/a")) == 1
    assert store.put("run/b", BytesSource(b"two")).level == "sent"
    assert store.properties.top_level == "sent"
    assert door.requests("^GET .*run/b") == []


@pytest.mark.parametrize("chunks", [[b"small"], LARGE], ids=["one request", "parts"])
def test_what_arrived_changed_is_not_called_confirmed(place, opened, s3, door, tmp_path, chunks):
    """It is removed, and the next attempt sends it anew."""
    store = opened(place(tmp_path))
    damaged = b"?" * sum(map(len, chunks))
    # The first look finds nothing, the last look nothing; the third one is for the digest.
    damage = Wrong("HEAD", "run/a", "else", skip=2, call=lambda: in_parts(s3, key(store, "run/a"), damaged))
    door.wrong = [damage]
    with pytest.raises(StoreUnavailable, match="did not arrive"):
        store.put("run/a", ChunkedSource(*chunks))
    assert list(store.list("")) == []
    assert store.put("run/a", ChunkedSource(*chunks)).level == "confirmed"


def test_what_could_not_be_asked_about_is_asked_at_the_end(place, opened, s3, door, tmp_path):
    """A service that takes an object and then does not answer: sent, and confirmed by the flush."""
    store = opened(place(tmp_path))
    door.wrong = [Wrong("HEAD", "run/a", skip=2, count=10**6)]
    receipt = store.put("run/a", BytesSource(b"x"))
    assert (receipt.level, store.confirm(receipt).level) == ("sent", "sent")
    assert not store.flush(0.0)
    assert not store.flush(30.0)
    door.wrong = []
    assert store.flush(30.0)
    assert store.confirm(receipt).level == "confirmed"


def test_reading_goes_on_after_failures(store, s3, door):
    """A range that fails, or comes cut, is asked for again; the bytes are right."""
    store.put(NAME, ChunkedSource(*LARGE))
    door.wrong = [
        Wrong("GET", "large", skip=1, status=500, code="InternalError"),
        Wrong("GET", "large", "cut", skip=2),
    ]
    assert read(store, NAME) == b"".join(LARGE)


def test_looking_at_a_header_does_not_download_the_object(store, s3, door):
    """Who reads a few bytes, or jumps, gets a range."""
    store.put(NAME, ChunkedSource(*LARGE))
    with store.get(NAME) as reader:
        assert reader.read(10) == b"\0" * 10
        reader.seek(-5, 2)
        assert reader.read() == bytes([10]) * 5
        reader.seek(3 * MIB - 1)
        assert reader.read(2) == b"\2\3"


def test_a_long_list_comes_in_pages(place, opened, s3, door, tmp_path):
    """A thousand objects a request, none missing, none twice."""
    store = opened(place(tmp_path))
    for number in range(1001):
        s3.put_object(Bucket=BUCKET, Key=key(store, f"run/{number}"), Body=b"")
    door.log.clear()
    names = [entry.name for entry in store.list("run")]
    assert sorted(names) == sorted(f"run/{number}" for number in range(1001))
    assert len(door.requests("^GET .*list-type=2")) == 2


def test_foreign_files_are_not_listed(store, s3):
    """Those with names that no store takes, folder markers, and what lies beside the place."""
    for name in ("run/.hidden", "run/a b", "run/", "run/ok"):
        s3.put_object(Bucket=BUCKET, Key=key(store, name), Body=b"")
    s3.put_object(Bucket=BUCKET, Key=key(store, "run/ok").replace("/run/", "-other/run/"), Body=b"")
    assert [entry.name for entry in store.list("")] == ["run/ok"]


def test_trying_again_draws_no_random_numbers(place, opened, door, tmp_path):
    """The generator that belongs to the training stays where it was, whatever fails."""
    store = opened(place(tmp_path))
    door.wrong = [
        Wrong("PUT", "", count=2, code="SlowDown"),
        Wrong("HEAD", "", count=2, status=500, code="InternalError"),
    ]
    before = random.getstate()
    assert store.put("run/a", BytesSource(b"x")).level == "confirmed"
    assert random.getstate() == before


def test_memory_stays_flat(place, s3, tmp_path):
    """Sending and reading 96 MiB needs a few blocks of 8 MiB, not the object."""
    opening = "from colabkeep.stores.fsspec.store import open_url; store = open_url(sys.argv[1])"
    assert growth(opening, place(tmp_path)) < 64


@pytest.fixture
def unhurried(monkeypatch):
    """A busy machine is no reason not to be answered."""
    monkeypatch.setattr(store_module, "_MOMENT", 60.0)


def asked(receipt, **changes):
    """What a session asks with about an object that another one put."""
    return replace(receipt, level="sent", id=None, **changes)


@pytest.mark.parametrize("chunks", [[b""], [b"small"], [b"m" * 3 * MIB], LARGE], ids=["empty", "small", "one", "parts"])
def test_what_another_session_put_is_confirmed(place, opened, unhurried, door, tmp_path, chunks):
    """By one question, which brings no bytes: the service states the digest that belongs to the checkpoint's."""
    receipt = opened(place(tmp_path)).put(NAME, ChunkedSource(*chunks))
    store = opened(place(tmp_path))
    door.log.clear()
    for _ in range(3):
        assert store.confirm(asked(receipt)).level == "confirmed"
    assert [line.split()[0] for line in door.log] == ["HEAD"]


def test_what_is_not_the_same_is_not_confirmed(place, opened, unhurried, s3, tmp_path):
    """Other bytes of the same size, another size, a damaged object that kept its notes, or none at all."""
    written = opened(place(tmp_path))
    receipt = written.put(NAME, BytesSource(b"right"))
    store = opened(place(tmp_path))
    assert store.confirm(asked(receipt, sha256="0" * 64)).level == "sent"
    assert store.confirm(asked(receipt, size=6)).level == "sent"
    assert store.confirm(asked(receipt, name="run/none")).level == "sent"
    assert store.confirm(asked(receipt, sha256="")).level == "sent"
    beside = s3.head_object(Bucket=BUCKET, Key=key(store, NAME))["Metadata"]
    s3.put_object(Bucket=BUCKET, Key=key(store, NAME), Body=b"wrong", Metadata=beside)
    assert opened(place(tmp_path)).confirm(asked(receipt)).level == "sent"
    written.delete(NAME)
    assert written.confirm(asked(receipt)).level == "sent"


def test_what_somebody_copied_there_is_read_when_it_is_small(place, opened, unhurried, s3, door, tmp_path):
    """Without notes: a manifest is read once, and of a large object nothing is claimed."""
    store = opened(place(tmp_path))
    for name, data in {"run/small": b"x" * 1000, "run/large": b"x" * 2 * MIB}.items():
        s3.put_object(Bucket=BUCKET, Key=key(store, name), Body=data)
        receipt = Receipt(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest(), level="sent")
        levels = {store.confirm(receipt).level for _ in range(3)}
        assert levels == {"confirmed" if name == "run/small" else "sent"}
    assert (len(door.requests("^GET .*small")), len(door.requests("large"))) == (1, 2)


def test_a_service_that_does_not_answer_is_asked_again_later(place, opened, unhurried, door, tmp_path):
    """A question about durability is one attempt, and raises nothing."""
    receipt = opened(place(tmp_path)).put(NAME, BytesSource(b"x"))
    store = opened(place(tmp_path))
    door.wrong = [Wrong("HEAD", "large", status=403, code="AccessDenied", count=10**6)]
    assert [store.confirm(asked(receipt)).level for _ in range(2)] == ["sent", "sent"]
    door.wrong = []
    assert store.confirm(asked(receipt)).level == "confirmed"


def test_a_service_that_is_silent_holds_nobody_up(place, opened, door, tmp_path, monkeypatch):
    """It is asked again later; whoever asks does other things meanwhile."""
    monkeypatch.setattr(store_module, "_MOMENT", 0.2)
    receipt = opened(place(tmp_path)).put(NAME, BytesSource(b"x"))
    store, speaks = opened(place(tmp_path)), threading.Event()
    door.wrong = [Wrong("HEAD", "large", "else", call=lambda: speaks.wait(60.0))]
    try:
        assert store.confirm(asked(receipt)).level == "sent"
    finally:
        speaks.set()
    monkeypatch.setattr(store_module, "_MOMENT", 60.0)
    assert store.confirm(asked(receipt)).level == "confirmed"


def test_an_upload_whose_answer_got_lost_is_listed(place, opened, door, tmp_path):
    """A put that failed may have been done: nothing that was remembered hides it."""
    store = opened(place(tmp_path))
    assert list(store.list("run")) == []
    door.wrong = [
        Wrong("PUT", "json", "lost", 500, "InternalError"),
        Wrong("PUT", "json", code="SlowDown", count=10**6),
    ]
    with pytest.raises(StoreUnavailable):
        store.put("run/a.json", BytesSource(b"x"))
    door.wrong = []
    assert [entry.name for entry in store.list("run")] == ["run/a.json"]


def test_opening_a_run_takes_at_most_three_listings(place, opened, door, tmp_path):
    """However many checkpoints it has: nobody waits for a request per checkpoint. What lies in pages is one listing;
    the library's own small questions, of one key each, are none."""
    filled(opened(place(tmp_path)), 12)
    door.log.clear()
    resumed(opened(place(tmp_path)), KeepLast(None))
    listings = [line for line in door.requests("list-type=2") if "max-keys=1&" not in line]
    assert 1 <= len(listings) <= 3

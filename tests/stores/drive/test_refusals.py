"""Every refusal of Drive becomes a sentence with a next step, and is tried again exactly where that can help."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from google.oauth2.credentials import Credentials

from colabkeep.core.errors import StoreError, StoreFull, StoreUnavailable
from colabkeep.stores.base import BytesSource
from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.api import no_answer, refused
from colabkeep.stores.drive.files import read_place
from colabkeep.stores.google.account import Account, SignedIn
from colabkeep.testing.clock import FakeClock
from tests.fakes.drive import html, refuse, revoke
from tests.fakes.drive.clock import SharedClock

LISTING = r"/drive/v3/files$"

FINAL = {
    "storageQuotaExceeded": (403, StoreFull, "trash", "drive.google.com/drive/quota"),
    "quotaExceeded": (403, StoreFull, "full", "keep_last=1"),
    "dailyLimitExceeded": (403, StoreError, "today", "tomorrow"),
    "insufficientPermissions": (403, StoreError, "does not allow", "box for Google Drive"),
    "appNotAuthorizedToFile": (403, StoreError, "another OAuth client", "same OAuth client"),
    "insufficientFilePermissions": (403, StoreError, "not change it", "drive://<another name>"),
    "accessNotConfigured": (403, StoreError, "not switched on", "drive.googleapis.com"),
    "domainPolicy": (403, StoreError, "administrator", "personal account"),
    "numChildrenInNonRootLimitExceeded": (403, StoreError, "as many files", "another folder"),
    "badRequest": (400, StoreError, "badRequest", "report"),
    "authError": (401, StoreError, "sign-in", "colabkeep auth"),
    "neverHeardOf": (403, StoreError, "neverHeardOf", "report"),
}
PASSING = {
    "userRateLimitExceeded": (403, "pause", "750 GB"),
    "rateLimitExceeded": (429, "pause", "750 GB"),
    "backendError": (500, "HTTP 500", "tried again"),
    "internalError": (503, "HTTP 503", "tried again"),
    "timeout": (408, "HTTP 408", "tried again"),
}


@pytest.mark.parametrize("reason", FINAL)
def test_what_is_final_is_told_at_once(drive, open_drive, traffic, reason):
    """Asking again cannot help, so nobody waits; the error says what happened and what to do."""
    status, kind, problem, remedy = FINAL[reason]
    clock = FakeClock()
    drive.faults(refuse(status, reason).on("GET", LISTING, count=None))
    with pytest.raises(StoreError) as caught:
        open_drive(clock=clock).list("run")
    assert type(caught.value) is kind
    assert problem in caught.value.problem
    assert "list 'run'" in caught.value.problem or "look for" in caught.value.problem
    assert remedy in caught.value.remedy
    assert clock.slept == []
    assert traffic.listings == (3 if status == 401 else 1), "google-auth asks again with a new token, twice"


@pytest.mark.parametrize("reason", PASSING)
def test_what_may_pass_is_tried_again_with_growing_pauses(drive, open_drive, traffic, reason):
    """Eight times within two minutes; then it is an error that says that it may be tried again later."""
    status, problem, remedy = PASSING[reason]
    clock = FakeClock()
    drive.faults(refuse(status, reason).on("GET", LISTING, count=None))
    with pytest.raises(StoreUnavailable) as caught:
        open_drive(clock=clock).list("run")
    assert caught.value.retryable
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy
    assert clock.slept == [1, 2, 4, 8, 16, 32, 64]
    assert traffic.listings == 8


def test_a_pause_that_drive_asks_for_is_made(drive, open_drive):
    """Retry-After counts, as long as it is longer than our own pause; a minute at a time is the most here."""
    clock = FakeClock()
    drive.faults(
        refuse(429, "rateLimitExceeded", retry_after=20).on("GET", LISTING),
        refuse(403, "rateLimitExceeded", retry_after=1).on("GET", LISTING),
        refuse(429, "rateLimitExceeded", retry_after=200).on("GET", LISTING),
    )
    assert list(open_drive(clock=clock).list("run")) == []
    assert clock.slept == [20, 2, 64]


def test_a_drive_that_wants_to_be_left_alone_for_long_is(drive, open_drive):
    """To ask again within minutes would not help, and may count against the account."""
    clock = FakeClock()
    drive.faults(refuse(429, "rateLimitExceeded", retry_after=4000).on("GET", LISTING))
    with pytest.raises(StoreUnavailable, match="asks for a pause"):
        open_drive(clock=clock).list("run")
    assert clock.slept == []


def test_a_folder_that_may_only_be_read_is_told_with_whom_to_ask_and_can_be_resumed_from(drive, open_drive):
    """A fellow student shared a run for reading: it reads; nothing is written, deleted or begun beside it."""
    open_drive("theirs").put("run/a", BytesSource(b"1"))
    (shared,) = (file for file in drive.files() if file.name == "theirs")
    drive.read_only(shared.id)
    before = [(file.id, file.parent, file.trashed) for file in drive.files()]
    clock = FakeClock()
    store = open_drive("theirs", clock=clock)
    with store.get("run/a") as reader:
        assert reader.read() == b"1"
    for write in (
        lambda: store.put("run/b", BytesSource(b"2")),
        lambda: store.put("other/b", BytesSource(b"2")),
        lambda: store.delete("run/a"),
    ):
        with pytest.raises(StoreError, match="belongs to somebody else") as caught:
            write()
        assert "as Editor" in caught.value.remedy
        assert not caught.value.retryable
    assert clock.slept == []
    assert [(file.id, file.parent, file.trashed) for file in drive.files()] == before
    drive.read_only(shared.id, read_only=False)


@pytest.fixture
def stingy(drive):
    """Drive with budgets, as it really is; by default it has none."""
    drive.set(token_seconds=10**9)
    yield drive
    drive.set(requests_a_minute=None, upload_bytes_a_day=None)


def test_a_minute_whose_requests_are_used_up_is_waited_for(stingy, open_drive):
    """All is stored, late and once; nothing of it is an error."""
    clock = SharedClock(stingy)
    store = open_drive(clock=clock)
    stingy.set(requests_a_minute=12)
    for number in range(12):
        store.put(f"run/blobs/{number}", BytesSource(b"x" * number))
    assert clock.slept
    assert len(store.list("run/blobs")) == 12
    assert len([file for file in stingy.files() if file.size is not None]) == 12


def test_a_day_whose_uploads_are_used_up_is_told_and_what_is_there_can_be_read(stingy, open_drive):
    """It is no error of the link, and nothing of the run is lost: the next day the same is stored."""
    clock = SharedClock(stingy)
    store = open_drive(clock=clock)
    stingy.set(upload_bytes_a_day=1000)
    store.put("run/a", BytesSource(bytes(1000)))
    with pytest.raises(StoreUnavailable, match="asks for a pause") as caught:
        store.put("run/b", BytesSource(b"b"))
    assert "750 GB" in caught.value.remedy
    assert [entry.name for entry in open_drive().list("run")] == ["run/a"]
    clock.advance(24 * 3600)
    assert store.put("run/b", BytesSource(b"b")).level == "confirmed"


@pytest.mark.parametrize("status", [403, 502, 503])
def test_a_gateways_page_is_no_answer_of_drive(drive, open_drive, status):
    """HTML is never shown to the user; it is tried again."""
    drive.faults(html(status).on("GET", LISTING, count=None))
    with pytest.raises(StoreUnavailable) as caught:
        open_drive().list("run")
    assert "<" not in str(caught.value)
    drive.faults(html(status).on("GET", LISTING))
    assert list(open_drive().list("run")) == []


def test_a_page_with_status_200_is_no_answer_of_drive_either(drive, open_drive):
    """As the login page of a hotel's network is."""
    drive.faults(html(200).on("GET", LISTING))
    assert list(open_drive().list("run")) == []
    drive.faults(html(200).on("GET", LISTING, count=None))
    with pytest.raises(StoreUnavailable, match="something else"):
        open_drive().list("run")


def test_a_consent_that_ended_is_told_with_the_way_out(drive, open_drive, traffic):
    """Revoked, or the seven days of a client in Testing are over: no retry helps, and the remedy is exact."""
    clock = FakeClock()
    store = open_drive(clock=clock)
    store.put("run/a", BytesSource(b"1"))
    drive.faults(revoke().on("POST", "/upload/"))
    with pytest.raises(StoreError, match="consent") as caught:
        store.put("run/b", BytesSource(b"2"))
    assert not caught.value.retryable
    assert clock.slept == []
    for words in ("Publish app", "colabkeep auth", "COLABKEEP_DRIVE"):
        assert words in caught.value.remedy
    assert "Testing" in caught.value.problem
    assert len(traffic.all("POST", "/token")) == 2, "the one that worked and the one that did not"


def test_an_oauth_client_that_is_gone_is_told(drive, open_drive):
    """Its secret was reset, or it was deleted in the console."""
    credentials = drive.credentials()
    credentials._client_secret = "wrong"
    with pytest.raises(StoreError, match="OAuth client") as caught:
        open_drive(credentials=credentials).list("run")
    assert "console.cloud.google.com/auth/clients" in caught.value.remedy


def test_a_server_for_tokens_that_is_out_of_order_is_waited_for(drive, open_drive):
    """It is tried again like any other, by our clock."""
    clock = FakeClock()
    drive.faults(refuse(503).on("POST", "/token", count=2))
    assert list(open_drive(clock=clock).list("run")) == []
    assert clock.slept == [1, 2]
    drive.faults(html(200).on("POST", "/token"))
    assert list(open_drive(clock=clock).list("run")) == []
    assert clock.slept == [1, 2, 1]


def test_an_access_token_that_cannot_be_renewed_is_told(drive, open_drive):
    """Signed in with a token alone: when it ends, the remedy is a lasting sign-in."""
    store = open_drive(credentials=Credentials(token="short-lived"))
    with pytest.raises(StoreError, match="cannot be renewed") as caught:
        store.list("run")
    assert "colabkeep auth" in caught.value.remedy
    assert "short-lived" not in str(caught.value)


def test_nobody_listening_is_an_error_that_may_pass(open_drive, drive):
    """No network, or the service is away."""
    credentials = drive.credentials()
    place = read_place("drive://runs?service=http://127.0.0.1:9")
    store = DriveStore(place, Account(lambda: SignedIn(credentials=credentials)), clock=FakeClock())
    with pytest.raises(StoreUnavailable, match="could not be reached") as caught:
        store.list("run")
    store.close()
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_a_redirection_is_not_followed():
    """The service sends nobody elsewhere; whoever does is in between, and would get the token."""
    from http.server import BaseHTTPRequestHandler, HTTPServer

    asked = []

    class Between(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path.partition("?")[0])
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words):
            pass

    with HTTPServer(("127.0.0.1", 0), Between) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        signed = SignedIn(credentials=Credentials(token="token"))
        place = read_place(f"drive://runs?service=http://127.0.0.1:{server.server_port}")
        store = DriveStore(place, Account(lambda: signed), clock=FakeClock())
        with pytest.raises(StoreError, match="HTTP 302"):
            store.list("run")
        store.close()
        server.shutdown()
        thread.join()
    assert asked == ["/drive/v3/files"]


class Answer:
    """A `requests.Response`, as far as it is looked at."""

    def __init__(self, status, content=b"", **headers):
        self.status_code = status
        self.content = content
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"[]", b"null", b"{}", b'{"error": null}', b'{"error": "text"}', b'{"error": {"errors": [1]}}',
     b'{"error": {"errors": [{"reason": null}], "details": [{}], "message": null}}', b"<html>"],
)  # fmt: skip
@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 409, 412, 416, 429, 500, 599])
def test_any_answer_becomes_an_error_with_a_remedy(status, body):
    """However strange the body."""
    error = refused(Answer(status, body), "list 'run'")
    assert isinstance(error, StoreError)
    assert error.problem
    assert error.remedy


def test_a_pause_until_a_date_is_counted_by_the_service_s_own_clock():
    """Retry-After may be a date; this machine's clock may be wrong."""
    now = datetime(2030, 1, 1, tzinfo=timezone.utc)
    until = format_datetime(now + timedelta(seconds=30), usegmt=True)
    error = refused(Answer(429, Retry_After=until, Date=format_datetime(now, usegmt=True)), "list")
    assert error.seconds == 30
    assert refused(Answer(429, Retry_After="soon"), "list").seconds == 0


def test_an_address_is_shown_without_what_it_carries():
    """The address of an upload is a right to write: not in a message, and not in a traceback."""
    error = no_answer(ConnectionError("url: /upload/drive/v3/files?upload_id=SECRET (Caused by x)"), "write 'a'")
    assert "SECRET" not in f"{error} {error.__cause__}"
    assert "/upload/drive/v3/files" in str(error.__cause__)

"""Everything that can go wrong with the stand-in for Drive, each once, and told apart by what the client sees."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import urllib.request

import pytest
import requests

from tests.fakes.asking import GRAIN, Asking, reason
from tests.fakes.drive import (
    Fault,
    act_twice,
    drop_session,
    expire_tokens,
    html,
    lose_answer,
    refuse,
    reset_answer,
    reset_request,
    restart,
    revoke,
    running_drive,
    silence,
    slow,
    wrong_byte,
)
from tests.fakes.drive.checking import checked_drive
from tests.fakes.drive.faults import dump
from tests.fakes.drive.running import ROOT

DATA = bytes(range(251)) * 3000
DIGEST = hashlib.sha256(DATA).hexdigest()
BROKEN = (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)


@pytest.fixture
def drive(tmp_path):
    with checked_drive(tmp_path) as drive:
        yield drive


@pytest.fixture
def ask(drive):
    ask = Asking(drive)
    ask.get("/drive/v3/about", fields="user")  # signed in
    return ask


def test_a_fault_meets_the_request_it_names(ask, drive):
    """By method, path and number; others pass, and the log says which was met."""
    drive.faults(refuse(503).on("GET", "/about", skip=1, count=2))
    answers = [ask("GET", "/drive/v3/about?fields=user").status_code for _ in range(4)]
    assert answers == [200, 503, 503, 200]
    assert ask("GET", "/drive/v3/files").status_code == 200
    assert [seen.fault for seen in drive.requests("GET", "/about")][1:] == [None, "Refuse", "Refuse", None]


def test_a_fault_can_mean_chunks_and_not_questions(ask, drive):
    """`content_range` tells a PUT with bytes from one without."""
    drive.faults(refuse(500).on("PUT", content_range=r"bytes \d", skip=1))
    address = ask.begin(len(DATA))
    assert ask.received(address) == 0
    assert ask.chunk(address, DATA[:GRAIN], 0, len(DATA)).status_code == 308
    assert ask.received(address) == GRAIN
    assert ask.chunk(address, DATA[GRAIN:], GRAIN, len(DATA)).status_code == 500


def test_faults_by_chance_are_the_same_every_time(ask, drive):
    """A seed makes a bad day repeatable."""
    days = []
    for _ in range(2):
        drive.faults(refuse(503).on("GET", "/about", chance=0.3, seed=5, count=None))
        days.append([ask("GET", "/drive/v3/about?fields=user").status_code for _ in range(40)])
    assert days[0] == days[1]
    assert 4 <= days[0].count(503) <= 20


@pytest.mark.parametrize(
    ("status", "why"),
    [(403, "userRateLimitExceeded"), (429, "rateLimitExceeded"), (403, "dailyLimitExceeded"), (500, "internalError")],
)
def test_a_refusal_has_status_reason_and_patience(ask, drive, status, why):
    """Retry-After is a header in seconds."""
    drive.faults(refuse(status, why, retry_after=7).on("GET"))
    answer = ask("GET", "/drive/v3/files")
    assert reason(answer) == (status, why)
    assert answer.headers["Retry-After"] == "7"


def test_a_refused_chunk_is_not_stored(ask, drive):
    """The whole body is read, and nothing is kept of it."""
    address = ask.begin(len(DATA))
    drive.faults(refuse(503).on("PUT"))
    assert ask.chunk(address, DATA, 0, len(DATA)).status_code == 503
    assert drive.requests("PUT")[-1].received == len(DATA)
    assert ask.received(address) == 0


def test_a_proxy_answers_a_page(ask, drive):
    """502 and HTML, where a client expects JSON."""
    drive.faults(html(502).on("GET"))
    answer = ask("GET", "/drive/v3/files")
    assert (answer.status_code, answer.text[:15]) == (502, "<!DOCTYPE html>")


def test_a_connection_reset_in_mid_chunk_keeps_whole_grains(ask, drive):
    """The client sees a broken connection; the session holds what is a multiple of 256 KiB."""
    address = ask.begin(len(DATA))
    drive.faults(reset_request(after=GRAIN + 1000).on("PUT"))
    with pytest.raises(BROKEN):
        ask.chunk(address, DATA, 0, len(DATA))
    assert drive.requests("PUT")[-1].status is None
    assert ask.received(address) == GRAIN


def test_a_download_is_cut(ask, drive):
    """Some bytes come, then the connection is reset."""
    file = ask.create("f", DATA)
    drive.faults(reset_answer(after=300_000).on("GET", "/files/"))
    got = bytearray()
    answer = ask("GET", f"/drive/v3/files/{file['id']}?alt=media", stream=True)
    with pytest.raises(BROKEN):
        read_all(answer, got)
    assert len(got) <= 300_000
    assert DATA.startswith(bytes(got))


def test_an_answer_is_lost_after_the_bytes_were_stored(ask, drive):
    """The client sees a broken connection, and the question shows that the upload had finished."""
    address = ask.begin(len(DATA))
    drive.faults(lose_answer().on("PUT"))
    with pytest.raises(BROKEN):
        ask.chunk(address, DATA, 0, len(DATA))
    answer = ask("PUT", address, headers={"Content-Range": "bytes */*"})
    assert (answer.status_code, answer.json()["sha256Checksum"]) == (200, DIGEST)
    assert len(drive.files()) == 1


def test_a_create_tried_again_after_a_lost_answer_is_a_duplicate(ask, drive):
    """Unless the id was taken beforehand: then it is a 409."""
    (file_id,) = ask.get("/drive/v3/files/generateIds", count=1)["ids"]
    for said in ({"name": "careless"}, {"name": "careful", "id": file_id}):
        drive.faults(lose_answer().on("POST", "/files$"))
        with pytest.raises(BROKEN):
            ask("POST", "/drive/v3/files", json=said)
        again = ask("POST", "/drive/v3/files", json=said)
        assert again.status_code == (409 if "id" in said else 200)
    assert [file.name for file in drive.files()] == ["careless", "careless", "careful"]


def test_the_service_itself_may_make_a_duplicate(ask, drive):
    """One create, two files: the second has an id that nobody was told."""
    drive.faults(act_twice().on("POST", "/upload/"))
    made = ask.create("once", b"data")
    first, second = drive.files()
    assert made["id"] == first.id != second.id
    assert (first.name, drive.content(first)) == (second.name, drive.content(second)) == ("once", b"data")


@pytest.mark.parametrize("stored", [False, True])
def test_a_silent_server_is_left_by_a_client_with_patience(ask, drive, stored):
    """Nothing is said for longer than the client waits; whether it was done is not to be seen from outside."""
    drive.faults((lose_answer(seconds=3) if stored else silence(3)).on("POST", "/files$"))
    with pytest.raises(requests.Timeout):
        requests.post(f"{drive.url}/drive/v3/files", json={}, headers=bearer(ask), timeout=0.5)
    assert len(drive.files()) == (1 if stored else 0)


def test_a_link_can_be_slow(ask, drive):
    """Bytes trickle both ways, and all arrive."""
    drive.faults(slow(2_000_000).on(path="/files", count=None))
    file = ask.create("f", DATA[:300_000])
    assert ask("GET", f"/drive/v3/files/{file['id']}?alt=media").content == DATA[:300_000]
    assert {seen.fault for seen in drive.requests(path="/files")} == {"Slow"}


def test_a_byte_goes_wrong_on_the_way_down(ask, drive):
    """Everything looks fine, but the digest of what arrived is another; the next time it is right."""
    file = ask.create("f", DATA)
    drive.faults(wrong_byte(at=500_000).on("GET", "/files/"))
    got = [ask("GET", f"/drive/v3/files/{file['id']}?alt=media").content for _ in range(2)]
    assert [n for n in range(len(DATA)) if got[0][n] != DATA[n]] == [500_000]
    assert got[1] == DATA


def test_a_byte_goes_wrong_on_the_way_up(ask, drive):
    """The server states the digest of what it got, and that is not the one of what was sent."""
    drive.faults(wrong_byte(at=10, of="request").on("PUT"))
    answer = ask.chunk(ask.begin(len(DATA)), DATA, 0, len(DATA))
    assert answer.status_code == 200
    assert answer.json()["sha256Checksum"] != DIGEST
    assert answer.json()["sha256Checksum"] == hashlib.sha256(drive.content(drive.files()[0])).hexdigest()


def test_tokens_expire_in_mid_upload(ask, drive):
    """401 for the chunk; a refresh helps, and the client went on by itself."""
    address = ask.begin(len(DATA))
    drive.faults(expire_tokens().on("PUT"))
    assert ask.chunk(address, DATA, 0, len(DATA)).json()["sha256Checksum"] == DIGEST
    assert [seen.status for seen in drive.requests()][-3:] == [401, 200, 200]


def test_consent_is_withdrawn_in_mid_upload(ask, drive):
    """The refresh is refused with invalid_grant: final."""
    from google.auth.exceptions import RefreshError

    address = ask.begin(len(DATA))
    drive.faults(revoke().on("PUT"))
    with pytest.raises(RefreshError, match="invalid_grant"):
        ask.chunk(address, DATA, 0, len(DATA))


def test_a_session_is_forgotten(ask, drive):
    """404 in the middle: the upload starts anew."""
    address = ask.begin(len(DATA))
    ask.chunk(address, DATA[:GRAIN], 0, len(DATA))
    drive.faults(drop_session().on("PUT"))
    assert reason(ask.chunk(address, DATA[GRAIN:], GRAIN, len(DATA))) == (404, "notFound")
    assert ask.chunk(ask.begin(len(DATA)), DATA, 0, len(DATA)).json()["sha256Checksum"] == DIGEST


@pytest.mark.parametrize(("how", "held"), [({"after": GRAIN + 1000}, 0), ({"acted": True}, len(DATA)), ({}, 0)])
def test_the_server_dies_and_comes_back(ask, drive, how, held):
    """In mid chunk, after the work, or before it: the connection breaks, and the session is as it was on disk."""
    address = ask.begin(len(DATA))
    drive.faults(restart(**how).on("PUT"))
    with pytest.raises(BROKEN):
        ask.chunk(address, DATA, 0, len(DATA))
    answer = patiently(lambda: ask("PUT", address, headers={"Content-Range": f"bytes */{len(DATA)}"}))
    assert (answer.status_code, int("0" + answer.headers.get("Range", "")[8:])) == (200 if held else 308, 0)
    assert [len(drive.content(file)) for file in drive.files()] == ([held] if held else [])
    assert ask.chunk(address, DATA, 0, len(DATA)).json()["sha256Checksum"] == DIGEST
    assert len(drive.files()) == 1
    assert drive.requests("PUT")[0].fault == "Restart"


def test_the_servers_clock_may_be_wrong(ask, drive):
    """Dates are ahead, and tokens that it gave out an hour ago by its clock are dead."""
    drive.set(skew_seconds=2 * 3600)
    answer = requests.get(f"{drive.url}/drive/v3/files", headers=bearer(ask), timeout=30)
    assert answer.status_code == 401
    made = ask.create("later")
    drive.set(skew_seconds=0)
    assert made["createdTime"] > ask.create("now")["createdTime"]


def test_requests_have_a_budget_for_each_minute(ask, drive):
    """("Usage limits")"""
    drive.set(requests_a_minute=3, skew_seconds=61)  # what was asked so far is a minute ago
    asked = [ask("GET", "/drive/v3/files") for _ in range(4)]
    assert [answer.status_code for answer in asked] == [200, 200, 200, 403]
    assert reason(asked[3]) == (403, "userRateLimitExceeded")
    drive.set(skew_seconds=122)
    assert ask("GET", "/drive/v3/files").status_code == 200


def test_uploads_have_a_budget_for_each_day(ask, drive):
    """750 GB: what has begun may end, the next does not begin; all else goes on. ("Usage limits")"""
    drive.set(upload_bytes_a_day=len(DATA))
    ask.create("small", DATA[:-1])
    address = ask.begin(len(DATA), name="begun")
    ask.create("last", DATA[:1])
    refused = ask("POST", "/upload/drive/v3/files?uploadType=resumable", json={"name": "too much"})
    assert reason(refused) == (403, "userRateLimitExceeded")
    assert reason(ask("POST", "/upload/drive/v3/files?uploadType=media", data=b"x")) == (403, "userRateLimitExceeded")
    assert ask.chunk(address, DATA, 0, len(DATA)).status_code == 200
    assert ask.folder("not a byte")
    drive.set(skew_seconds=24 * 3600 + 1)
    assert ask.create("the next day")


def test_faults_are_counted_over_a_restart(ask, drive):
    """A fault that has been used up stays used up."""
    drive.faults(refuse(503).on("GET", "/files", count=1), refuse(500).on("GET", "/about", skip=1))
    assert ask("GET", "/drive/v3/files").status_code == 503
    assert ask("GET", "/drive/v3/about?fields=user").status_code == 200
    drive.restart()
    assert ask("GET", "/drive/v3/files").status_code == 200
    assert ask("GET", "/drive/v3/about?fields=user").status_code == 500


def test_the_log_survives_a_kill_in_the_middle_of_a_line(ask, drive):
    """Half a line is dropped, and the log goes on."""
    drive.kill()
    with (drive.state / "requests.jsonl").open("a") as log:
        log.write('{"number": 2, "meth')
    known = len(drive.requests())
    drive.restart()
    ask.get("/drive/v3/files")
    assert [seen.number for seen in drive.requests()] == list(range(known + 1))


def test_faults_can_be_there_from_the_start(tmp_path):
    """Even the first request for a token fails."""
    with running_drive(tmp_path, faults=[refuse(500).on("POST", "/token")]) as drive:
        ask = Asking(drive)
        ask.get("/drive/v3/about", fields="user")
        assert [seen.status for seen in drive.requests()] == [500, 200, 200]


def test_the_server_runs_from_the_command_line(tmp_path):
    """`python -m tests.fakes.drive --port P --state FOLDER --faults FILE`, for any client in any language."""
    faults = tmp_path / "faults.json"
    faults.write_text(dump([Fault("Html", {"status": 502}).on("GET")]))
    command = [sys.executable, "-m", "tests.fakes.drive", "--port=0", f"--state={tmp_path / 's'}", f"--faults={faults}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert requests.get(f"{url}/drive/v3/files", timeout=30).status_code == 502
        with urllib.request.urlopen(f"{url}/$discovery/rest?version=v2", timeout=30) as answer:
            assert json.load(answer)["rootUrl"] == f"{url}/"
        assert reason(requests.get(f"{url}/drive/v3/files", timeout=30)) == (403, "forbidden")
        process.kill()


def test_no_server_stays_behind(tmp_path):
    """When the test run is gone, killed or not, its server ends too."""
    command = [sys.executable, "-m", "tests.fakes.drive", "--port=0", f"--state={tmp_path / 's'}", "--guarded"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"http://127.0.0.1:")
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def bearer(ask):
    return {"Authorization": f"Bearer {ask.token}"}


def read_all(answer, into):
    for piece in answer.iter_content(10_000):
        into += piece


def patiently(call):
    """What the call answers once the server is back."""
    for _ in range(200):
        try:
            return call()
        except requests.ConnectionError:
            time.sleep(0.05)
    raise AssertionError("the server did not come back")

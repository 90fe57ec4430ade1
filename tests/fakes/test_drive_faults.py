"""Everything that can go wrong with the stand-in for Drive, each once, and told apart by what the client sees."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time

import pytest
import requests

from tests.fakes.asking import GRAIN, Asking, reason
from tests.fakes.drive import (
    Fault,
    lose_answer,
    refuse,
    restart,
    silence,
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


@pytest.mark.parametrize("stored", [False, True])
def test_a_silent_server_is_left_by_a_client_with_patience(ask, drive, stored):
    """Nothing is said for longer than the client waits; whether it was done is not to be seen from outside."""
    drive.faults((lose_answer(seconds=3) if stored else silence(3)).on("POST", "/files$"))
    with pytest.raises(requests.Timeout):
        requests.post(f"{drive.url}/drive/v3/files", json={}, headers=bearer(ask), timeout=0.5)
    assert len(drive.files()) == (1 if stored else 0)


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


def test_the_server_runs_from_the_command_line(tmp_path):
    """`python -m tests.fakes.drive --port P --state FOLDER --faults FILE`, for any client in any language."""
    faults = tmp_path / "faults.json"
    faults.write_text(dump([Fault("Html", {"status": 502}).on("GET")]))
    command = [sys.executable, "-m", "tests.fakes.drive", "--port=0", f"--state={tmp_path / 's'}", f"--faults={faults}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert requests.get(f"{url}/drive/v3/files", timeout=30).status_code == 502
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


def patiently(call):
    """What the call answers once the server is back."""
    for _ in range(200):
        try:
            return call()
        except requests.ConnectionError:
            time.sleep(0.05)
    raise AssertionError("the server did not come back")

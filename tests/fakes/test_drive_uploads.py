"""Resumable uploads to the stand-in for Drive: chunks, questions, broken connections, kills, quota."""

from __future__ import annotations

import hashlib
import socket
from urllib.parse import urlsplit

import pytest
import requests

from tests.fakes.asking import GRAIN, Asking, reason
from tests.fakes.drive import Settings
from tests.fakes.drive.checking import checked_drive

DATA = bytes(range(251)) * 3000  # 753,000 bytes: two whole grains and a rest


@pytest.fixture
def drive(tmp_path):
    with checked_drive(tmp_path, settings=Settings(quota_bytes=2_000_000)) as drive:
        yield drive


@pytest.fixture
def ask(drive):
    return Asking(drive)


def finish(ask, address, start=0):
    answer = ask.chunk(address, DATA[start:], start, len(DATA))
    assert answer.status_code == 200, answer.text
    assert answer.json()["sha256Checksum"] == hashlib.sha256(DATA).hexdigest()
    return answer.json()


def test_a_session_says_what_it_holds(ask):
    """Nothing: 308 without Range. Some: 308 with it. All: the file again, as often as asked."""
    address = ask.begin(len(DATA))
    assert ask.received(address) == 0
    ask.chunk(address, DATA[:GRAIN], 0, len(DATA))
    assert ask.received(address) == ask.received(address, len(DATA)) == GRAIN
    made = finish(ask, address, GRAIN)
    again = ask("PUT", address, headers={"Content-Range": f"bytes */{len(DATA)}"})
    assert (again.status_code, again.json()["id"]) == (200, made["id"])


def test_the_length_may_be_said_with_the_last_chunk(ask):
    """Streams of unknown length: the total is a star until the end."""
    address = ask("POST", "/upload/drive/v3/files?uploadType=resumable", json={"name": "s"}).headers["Location"]
    assert ask.chunk(address, DATA[:GRAIN], 0, "*").status_code == 308
    assert ask.chunk(address, DATA[GRAIN:], GRAIN, len(DATA)).status_code == 200


def test_a_body_without_a_range_is_the_whole_file(ask):
    """One PUT for all, sized or in HTTP chunks."""
    whole = ask("PUT", ask.begin(len(DATA)), data=DATA)
    streamed = ask(
        "PUT", ask.begin(len(DATA)), data=iter([DATA]), headers={"Content-Range": f"bytes 0-{len(DATA) - 1}/*"}
    )
    assert whole.json()["sha256Checksum"] == hashlib.sha256(DATA).hexdigest()
    assert streamed.json()["md5Checksum"] == whole.json()["md5Checksum"]


def test_chunks_are_whole_grains(ask):
    """Anything but a multiple of 256 KiB is refused, the last chunk excepted."""
    address = ask.begin(len(DATA))
    assert reason(ask.chunk(address, DATA[:100_000], 0, len(DATA))) == (400, "badRequest")
    assert ask.received(address) == 0


def test_a_gap_is_refused(ask):
    """A chunk that starts beyond what is held would leave a hole."""
    address = ask.begin(len(DATA))
    answer = ask.chunk(address, DATA[GRAIN : 2 * GRAIN], GRAIN, len(DATA))
    assert reason(answer) == (400, "badRequest")
    assert "exceeds already uploaded size of 0 byte(s)" in answer.text


def test_bytes_sent_again_change_nothing(ask, drive):
    """rclone sends a broken chunk from its start; what was acknowledged stays as it was."""
    address = ask.begin(len(DATA))
    ask.chunk(address, DATA[:GRAIN], 0, len(DATA))
    again = ask.chunk(address, b"\0" * GRAIN + DATA[GRAIN : 2 * GRAIN], 0, len(DATA))
    assert again.headers["Range"] == f"bytes=0-{2 * GRAIN - 1}"
    finish(ask, address, 2 * GRAIN)
    assert drive.content(drive.files()[0]) == DATA


@pytest.mark.parametrize(
    "said",
    [
        "bytes 0-99/100",
        f"bytes 0-{len(DATA) - 2}/{len(DATA)}",
        "bytes 0-99",
        f"bytes 262144-{262143 + len(DATA)}/{len(DATA)}",
    ],
)
def test_a_range_that_does_not_fit_is_refused(ask, said):
    """Another total, another size, no total, beyond the end."""
    answer = ask("PUT", ask.begin(len(DATA)), data=DATA, headers={"Content-Range": said})
    assert reason(answer) == (400, "badRequest")


def test_an_announced_length_is_kept_to(ask):
    """A chunk or a question that speaks of another total is refused."""
    address = ask.begin(len(DATA))
    assert reason(ask("PUT", address, headers={"Content-Range": "bytes */1000000"})) == (400, "badRequest")
    assert reason(ask.chunk(address, DATA[:GRAIN], 0, 1_000_000)) == (400, "badRequest")
    assert ask.received(address) == 0


def test_chunks_may_come_by_post_and_by_the_other_path(ask):
    """rclone 1.60 posts its chunks; the discovery document also names /resumable/upload."""
    path = "/resumable/upload/drive/v3/files?uploadType=resumable"
    address = ask("POST", path, json={"name": "r"}, headers={"X-Upload-Content-Length": str(len(DATA))}).headers[
        "Location"
    ]
    headers = {"Content-Range": f"bytes 0-{GRAIN - 1}/{len(DATA)}"}
    assert ask("POST", address, data=DATA[:GRAIN], headers=headers).status_code == 308
    answer = ask.chunk(address, DATA[GRAIN:], GRAIN, len(DATA))
    assert (answer.status_code, answer.json()["name"]) == (200, "r")


def test_the_address_names_the_host_that_the_client_spoke_to(ask, drive):
    """Clients use it verbatim, also behind a proxy."""
    answer = ask("POST", "/upload/drive/v3/files?uploadType=resumable", headers={"Host": "www.googleapis.com"})
    assert answer.headers["Location"].startswith("http://www.googleapis.com/upload/drive/v3/files?")


def test_the_address_is_enough(ask):
    """A session needs no token; a wrong one is still refused."""
    address = ask.begin(len(DATA))
    assert requests.put(address, headers={"Content-Range": "bytes */*"}, timeout=30).status_code == 308
    headers = {"Content-Range": "bytes */*", "Authorization": "Bearer wrong"}
    assert requests.put(address, headers=headers, timeout=30).status_code == 401


def test_a_new_version_replaces_the_content_and_keeps_the_id(ask, drive):
    """Update by resumable upload."""
    file = ask.create("v", b"one")
    for data in (b"second", b"the third"):
        path = f"/upload/drive/v3/files/{file['id']}?uploadType=resumable&fields=id,md5Checksum,headRevisionId"
        answer = ask("PATCH", path, json={}, headers={"X-Upload-Content-Length": str(len(data))})
        made = ask("PUT", answer.headers["Location"], data=data).json()
        assert made["id"] == file["id"]
        assert made["md5Checksum"] == hashlib.md5(data).hexdigest()
        assert made["headRevisionId"] != file["headRevisionId"]
    (held,) = drive.files()
    assert drive.content(held) == b"the third"
    assert len(list((drive.state / "contents").iterdir())) == 1, "old content is not kept"


def test_a_file_that_does_not_fit_is_refused_before_a_byte_is_sent(ask, drive):
    """The quota is asked when the session begins, and the trash counts."""
    file = ask.create("old", b"x" * 1_500_000)
    ask("PATCH", f"/drive/v3/files/{file['id']}", json={"trashed": True})
    path = "/upload/drive/v3/files?uploadType=resumable"
    refused = ask("POST", path, json={}, headers={"X-Upload-Content-Length": str(len(DATA))})
    assert reason(refused) == (403, "storageQuotaExceeded")
    assert ask("DELETE", f"/drive/v3/files/{file['id']}").status_code == 204
    finish(ask, ask.begin(len(DATA)))


def test_a_broken_chunk_is_kept_in_whole_grains(ask, drive):
    """The client dies in the middle of a chunk: what came is acknowledged down to a multiple of 256 KiB."""
    address = ask.begin(len(DATA))
    url = urlsplit(address)
    head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {len(DATA)}\r\n\r\n"
    with socket.create_connection((url.hostname, url.port)) as dying:
        dying.sendall(head.encode() + DATA[: GRAIN + 5000])
        dying.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            dying.recv(100)
    assert ask.received(address) == GRAIN
    finish(ask, address, GRAIN)


def test_a_session_ends_after_a_week(ask, drive):
    """Then it is a 404, and the upload starts anew."""
    address = ask.begin(len(DATA))
    drive.set(skew_seconds=7 * 24 * 3600 - 60)
    drive.expire_tokens()
    assert ask.received(address) == 0
    drive.set(skew_seconds=7 * 24 * 3600 + 60)
    drive.expire_tokens()
    assert reason(ask("PUT", address, headers={"Content-Range": "bytes */*"})) == (404, "notFound")
    assert list((drive.state / "uploads").iterdir()) == []


def test_a_service_account_has_no_room_of_its_own(drive):
    """It may hold folders, but every content is refused outside shared drives."""
    from google.auth.transport.requests import AuthorizedSession
    from google.oauth2 import service_account

    make = service_account.Credentials.from_service_account_info
    robot = AuthorizedSession(make(drive.service_account, scopes=["https://www.googleapis.com/auth/drive"]))
    drive.at_end.callback(robot.close)
    answer = robot.post(f"{drive.url}/upload/drive/v3/files?uploadType=media", data=b"x", timeout=30)
    assert reason(answer) == (403, "storageQuotaExceeded")
    assert "Service Accounts do not have storage quota" in answer.text
    about = robot.get(f"{drive.url}/drive/v3/about?fields=storageQuota/limit,user/emailAddress", timeout=30)
    assert about.json() == {
        "storageQuota": {"limit": "0"},
        "user": {"emailAddress": drive.service_account["client_email"]},
    }

"""rclone, a client by other people in another language, against the stand-in for Drive.

Its endpoints are fixed, so it goes through a CONNECT proxy on loopback and trusts a certificate made for one test.
Debian: `apt-get install rclone`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess

import pytest

from tests.fakes.asking import Asking
from tests.fakes.drive import Settings, refuse, reset_request
from tests.fakes.drive.checking import checked_drive
from tests.fakes.proxy import certificates, connect_proxy

RCLONE = shutil.which("rclone")
DATA = bytes(range(251)) * 3000
MODIFIED_NS = 1_559_390_400_123_000_000  # Drive keeps milliseconds
CHUNKED = ("--drive-chunk-size=256k", "--drive-upload-cutoff=256k")

pytestmark = pytest.mark.skipif(RCLONE is None, reason="rclone is not installed (Debian: apt-get install rclone)")


class Rclone:
    """The command, with one remote "fake:" and nothing of the user's settings."""

    def __init__(self, drive, folder, authority, proxy):
        self._config = folder / "rclone.conf"
        user = drive.authorized_user(scopes=("drive",))
        token = {"access_token": "old", "token_type": "Bearer", "expiry": "2020-01-01T00:00:00Z"}
        token["refresh_token"] = user["refresh_token"]
        said = {
            "type": "drive",
            "client_id": user["client_id"],
            "client_secret": user["client_secret"],
            "scope": "drive",
        }
        said["token"] = json.dumps(token)
        self._config.write_text("[fake]\n" + "".join(f"{name} = {value}\n" for name, value in said.items()))
        self._environ = {"HTTPS_PROXY": proxy.url, "HOME": str(folder), "PATH": os.environ["PATH"]}
        self._general = (f"--ca-cert={authority}", "--drive-pacer-min-sleep=1ms", "--retries=1", "--checkers=2")

    def __call__(self, *arguments, status=0):
        """What it prints. Ends with that status."""
        command = [RCLONE, f"--config={self._config}", *self._general, *arguments]
        done = subprocess.run(command, env=self._environ, capture_output=True, timeout=120, check=False)
        assert done.returncode == status, done.stderr.decode()
        return done.stdout if status == 0 else done.stderr


@pytest.fixture
def drive(tmp_path):
    made = certificates(tmp_path)
    with checked_drive(tmp_path, tls=made.server, settings=Settings(quota_bytes=5_000_000)) as drive:
        yield drive


@pytest.fixture
def rclone(drive, tmp_path):
    with connect_proxy(drive.port) as proxy:
        yield Rclone(drive, tmp_path, tmp_path / "authority.pem", proxy)
    assert proxy.led, "rclone went another way"
    assert proxy.refused == []


@pytest.fixture
def source(tmp_path):
    """A folder with a file of several chunks, a small, an empty and a nested one."""
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "big.bin").write_bytes(DATA)
    (folder / "it's small.txt").write_bytes(b"small")
    (folder / "empty").write_bytes(b"")
    (folder / "deep" / "file").write_bytes(b"deep")
    os.utime(folder / "big.bin", ns=(MODIFIED_NS, MODIFIED_NS))
    return folder


def test_rclone_sees_the_quota(rclone, drive):
    """`rclone about`: total, used, free, trash."""
    ask = Asking(drive)
    ask.create("used", b"x" * 1000)
    thrown = ask.create("thrown", b"x" * 500)
    ask("PATCH", f"/drive/v3/files/{thrown['id']}", json={"trashed": True})
    about = json.loads(rclone("about", "--json", "fake:"))
    assert (about["total"], about["used"], about["trashed"], about["free"]) == (5_000_000, 1500, 500, 4_998_500)


def test_rclone_copies_there_checks_and_copies_back(rclone, drive, source, tmp_path):
    """Bytes, names, folders and times survive; `rclone check` compares the digests that the server states."""
    rclone("copy", *CHUNKED, str(source), "fake:run")
    rclone("check", str(source), "fake:run")
    target = tmp_path / "target"
    rclone("copy", "fake:run", str(target))
    rclone("check", "--download", str(source), str(target))
    assert (target / "big.bin").read_bytes() == DATA
    assert (target / "big.bin").stat().st_mtime_ns == MODIFIED_NS
    chunks = [seen for seen in drive.requests() if "Content-Range" in seen.headers]
    assert [seen.status for seen in chunks] == [308, 308, 200]
    assert rclone("cat", "--offset=700000", "--count=100", "fake:run/big.bin") == DATA[700_000:700_100]


def test_rclone_changes_moves_deletes_and_cleans_up(rclone, drive, source):
    """What it deletes goes to the trash and counts until the cleanup."""
    rclone("copy", str(source), "fake:run")
    (source / "big.bin").write_bytes(DATA[::-1])
    rclone("copy", str(source), "fake:run")
    rclone("check", str(source), "fake:run")
    rclone("moveto", "fake:run/deep/file", "fake:run/shallow")
    rclone("deletefile", "fake:run/empty")
    rclone("purge", "fake:run/deep")
    assert sorted(rclone("lsf", "fake:run").decode().splitlines()) == ["big.bin", "it's small.txt", "shallow"]
    assert {file.name for file in drive.files() if file.trashed} == {"empty", "deep"}
    rclone("cleanup", "fake:")
    assert {file.name for file in drive.files()} == {"run", "big.bin", "it's small.txt", "shallow"}


def test_rclone_finds_duplicates(rclone, drive):
    """Two files of one name: `dedupe` keeps the newer."""
    ask = Asking(drive)
    folder = ask.folder("run")
    for data in (b"older", b"newer"):
        ask.create("same", data, parents=[folder])
    rclone("dedupe", "--dedupe-mode=newest", "fake:run")
    assert rclone("cat", "fake:run/same") == b"newer"


def test_rclone_lives_with_what_goes_wrong(rclone, drive, source):
    """A rate limit, a 503 and a reset in mid chunk are tried again, and the file is right."""
    limit = refuse(403, "userRateLimitExceeded").on("GET", "/drive/v3/files")
    broken = reset_request(after=100_000).on("POST", content_range=r"bytes 262144-")
    drive.faults(limit, broken, refuse(503).on("POST", content_range=r"bytes 5"))
    rclone("copy", *CHUNKED, str(source / "big.bin"), "fake:run")
    assert {seen.fault for seen in drive.requests()} == {None, "Refuse", "ResetRequest"}
    (file,) = [file for file in drive.files() if file.name == "big.bin"]
    assert file.sha256 == hashlib.sha256(DATA).hexdigest()


def test_rclone_hears_that_the_drive_is_full(rclone, drive, source):
    """The refusal arrives as the sentence that Google writes."""
    drive.set(others_bytes=5_000_000)
    said = rclone("copy", "--low-level-retries=1", str(source / "big.bin"), "fake:run", status=1)
    assert b"storageQuotaExceeded" in said
    assert [file.name for file in drive.files()] == ["run"]


def test_nothing_goes_past_the_proxy(drive, tmp_path):
    """A host that is not Drive's is refused: no connection is made."""
    with connect_proxy(drive.port) as proxy:
        environ = {"HTTPS_PROXY": proxy.url, "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        command = [
            RCLONE,
            "--config=",
            "--retries=1",
            "--low-level-retries=1",
            "lsf",
            ":http,url='https://example.com/':",
        ]
        done = subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False)
    assert done.returncode != 0
    assert set(proxy.refused) == {"example.com:443"}
    assert proxy.led == []

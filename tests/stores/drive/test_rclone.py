"""What colabkeep keeps on Drive is ordinary files: rclone, by other people, works on them; and the other way round.

Its endpoints are fixed, so it goes through a CONNECT proxy on loopback and trusts a certificate made for one test.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
from contextlib import contextmanager

import pytest

from colabkeep.stores.base import BytesSource, Receipt
from tests.fakes.drive import Settings
from tests.fakes.drive.checking import checked_drive
from tests.fakes.proxy import certificates, connect_proxy

from .conftest import store_on

RCLONE = shutil.which("rclone")
pytestmark = pytest.mark.skipif(RCLONE is None, reason="rclone is not installed (Debian: apt-get install rclone)")

OBJECTS = {
    "run/run.json": b'{"run":"run"}',
    "run/blobs/weights.safetensors": random.Random(3).randbytes(700_000),
    "run/blobs/empty": b"",
    "run/checkpoints/000000000010-0a1b2c3d.json": b"{}",
}


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


class Machine:
    """One Drive, asked by colabkeep or by rclone, one after the other: rclone insists on TLS and on Google's names."""

    def __init__(self, folder):
        self._folder = folder
        self._made = certificates(folder)
        self._settings = Settings()

    @contextmanager
    def colabkeep(self):
        """A store in the folder "colabkeep"."""
        with checked_drive(self._folder, settings=self._settings) as drive:
            store = store_on(drive, "colabkeep", chunk_bytes=2**18)
            yield store
            store.close()

    @contextmanager
    def rclone(self):
        """The command."""
        with (
            checked_drive(self._folder, tls=self._made.server, settings=self._settings) as drive,
            connect_proxy(drive.port) as proxy,
        ):
            yield Rclone(drive, self._folder, self._folder / "authority.pem", proxy)
            assert proxy.led, "rclone went another way"
            assert proxy.refused == []


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def folder(tmp_path):
    """The same objects as files on this machine."""
    for name, data in OBJECTS.items():
        path = tmp_path / "local" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "local"


def test_rclone_lists_checks_reads_and_deletes_what_colabkeep_wrote(machine, folder, tmp_path):
    """Names, folders, bytes and digests are as on any disk; and what rclone deletes is gone for colabkeep."""
    with machine.colabkeep() as store:
        for name, data in OBJECTS.items():
            store.put(name, BytesSource(data))
    with machine.rclone() as rclone:
        listed = rclone("lsf", "--recursive", "--files-only", "fake:colabkeep").decode().splitlines()
        assert sorted(listed) == sorted(OBJECTS)
        rclone("check", str(folder), "fake:colabkeep")
        rclone("copy", "fake:colabkeep", str(tmp_path / "back"))
        rclone("check", "--download", str(folder), str(tmp_path / "back"))
        assert rclone("cat", "fake:colabkeep/run/run.json") == OBJECTS["run/run.json"]
        rclone("deletefile", "fake:colabkeep/run/blobs/empty")
    with machine.colabkeep() as store:
        assert {entry.name for entry in store.list("run")} == OBJECTS.keys() - {"run/blobs/empty"}


def test_colabkeep_lists_reads_confirms_and_deletes_what_rclone_wrote(machine, folder):
    """A run that was copied there by hand is a run; colabkeep adds to it and removes from it, and rclone agrees."""
    with machine.rclone() as rclone:
        rclone("copy", str(folder), "fake:colabkeep")
    with machine.colabkeep() as store:
        assert {entry.name: entry.size for entry in store.list("")} == {n: len(d) for n, d in OBJECTS.items()}
        for name, data in OBJECTS.items():
            with store.get(name) as reader:
                assert reader.read() == data
            digest = hashlib.sha256(data).hexdigest()
            sent = Receipt(name=name, size=len(data), sha256=digest, level="sent")
            assert store.confirm(sent).level == "confirmed"
        store.delete("run/run.json")
        store.put("run/blobs/more", BytesSource(b"more"))
    with machine.rclone() as rclone:
        listed = rclone("lsf", "--recursive", "--files-only", "fake:colabkeep").decode().splitlines()
        assert set(listed) == OBJECTS.keys() - {"run/run.json"} | {"run/blobs/more"}

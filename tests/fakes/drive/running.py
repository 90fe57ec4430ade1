"""The server for tests: started as a process of its own, asked and disturbed from the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.fakes.drive import traffic
from tests.fakes.drive.discovery import SCOPE
from tests.fakes.drive.faults import Fault, dump
from tests.fakes.drive.files import File
from tests.fakes.drive.settings import Settings
from tests.fakes.drive.shelf import Shelf
from tests.fakes.drive.traffic import Seen

ROOT = Path(__file__).resolve().parents[3]
ROBOT = "robot@project.iam.gserviceaccount.com"


class Drive:
    """A running server. `url` has no slash at its end; `state` is its folder.

    What `at_end` holds is closed when the server ends: clients like to leave connections open.
    """

    def __init__(self, state: Path, tls: Path | None) -> None:
        self.state = state
        self.url = ""
        self.at_end = ExitStack()
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port on 127.0.0.1; the same after a restart."""
        return int(self.url.rpartition(":")[2])

    @property
    def token_uri(self) -> str:
        """The token endpoint."""
        return f"{self.url}/token"

    def start(self, *arguments: str) -> None:
        """Start it, with what the folder holds; returns when it answers."""
        command = [sys.executable, "-m", "tests.fakes.drive", f"--state={self.state}", "--guarded", *arguments]
        command += [f"--port={self.port if self.url else 0}"]
        command += [f"--tls={self._tls}"] if self._tls is not None else []
        with (self.state / "server.err").open("ab") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        assert self.url, (self.state / "server.err").read_text()

    def kill(self) -> None:
        """SIGKILL, now. What was acknowledged is on disk."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def restart(self) -> None:
        """Kill it, if it lives, and start it again on the same port with what is on disk."""
        self.kill()
        self.start()

    def faults(self, *faults: Fault) -> None:
        """From now on these go wrong, instead of those before; none: nothing does."""
        self._order("faults", faults=[asdict(fault) for fault in faults])

    def set(self, **settings: Any) -> None:
        """Change some of `settings.Settings`: quota_bytes, others_bytes, skew_seconds, token_seconds, …"""
        self._order("settings", **settings)

    def expire_tokens(self) -> None:
        """Every access token is dead; a refresh gives a new one."""
        self._order("expire")

    def revoke(self) -> None:
        """The user takes back every consent: `invalid_grant` from now on."""
        self._order("revoke")

    def client(self, name: str = "colabkeep") -> tuple[str, str]:
        """Id and secret of an OAuth client."""
        client_id = f"{name}.apps.googleusercontent.com"
        return client_id, self._order("client", client=client_id)["secret"]

    def authorized_user(self, scopes: Sequence[str] = ("drive.file",), client: str = "colabkeep") -> dict[str, Any]:
        """What `colabkeep auth` would print: the user's consent for these scopes to that client, with `token_uri`."""
        client_id, secret = self.client(client)
        whole = [scope if "/" in scope else SCOPE + scope for scope in scopes]
        grant = self._order("grant", client=client_id, scopes=whole)
        return {
            "type": "authorized_user",
            "client_id": client_id,
            "client_secret": secret,
            "refresh_token": grant["token"],
            "token_uri": self.token_uri,
            "scopes": whole,
        }

    def credentials(self, scopes: Sequence[str] = ("drive.file",), client: str = "colabkeep") -> Any:
        """A `google.oauth2.credentials.Credentials` for these scopes, built directly.

        Not by `from_authorized_user_info`: that ignores the given token_uri and calls Google's (google-auth 2.62,
        google/oauth2/credentials.py).
        """
        from google.oauth2 import credentials

        user = self.authorized_user(scopes, client)
        make: Any = credentials.Credentials  # google-auth's constructors are not typed
        return make(
            token=None,
            refresh_token=user["refresh_token"],
            token_uri=user["token_uri"],
            client_id=user["client_id"],
            client_secret=user["client_secret"],
            scopes=user["scopes"],
        )

    @cached_property
    def service_account(self) -> dict[str, Any]:
        """A service account's key file, as `service_account.Credentials.from_service_account_info` takes it."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {
            "type": "service_account",
            "project_id": "project",
            "private_key_id": "1",
            "private_key": pem.decode(),
            "client_email": ROBOT,
            "token_uri": self.token_uri,
        }

    def read_only(self, file_id: str, *, read_only: bool = True) -> None:
        """This file, or the folder with all below it, belongs to somebody who lets this user read it only."""
        self._order("read_only", id=file_id, read_only=read_only)

    def requests(self, method: str | None = None, path: str = "") -> list[Seen]:
        """What was asked so far: all, or those with this method and this text in their path. Also of a dead server."""
        seen = traffic.read(self.state / "requests.jsonl")
        return [one for one in seen if method in (None, one.method) and path in one.path]

    def files(self) -> list[File]:
        """The truth: all files and folders of all accounts and clients, trashed ones too, in the order they were made.
        My Drive itself is not among them. Also of a dead server."""
        found = [file for file in Shelf(self.state / "files", File) if file.parent is not None]
        return sorted(found, key=lambda file: file.number)

    def content(self, file: File) -> bytes:
        """The bytes the server holds."""
        return b"" if file.revision is None else (self.state / "contents" / file.revision).read_bytes()

    def _order(self, order: str, **said: Any) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}/_fake/{order}", json.dumps(said).encode(), method="POST")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            value: dict[str, Any] = json.load(answer)
            return value


@contextmanager
def running_drive(
    folder: Path,
    *,
    quota_bytes: int | None = Settings.quota_bytes,
    faults: Iterable[Fault] = (),
    tls: Path | None = None,
    settings: Settings | None = None,
) -> Iterator[Drive]:
    """A server with an empty Drive, on a free port of 127.0.0.1, for the time of the `with`; its state in `folder`.

    `settings` for more than the quota; `tls` a PEM file with key and certificate.
    """
    state = folder / "drive"
    chosen = replace(settings or Settings(), quota_bytes=quota_bytes)
    Shelf(state / "settings", Settings).save("settings", chosen)
    first = state / "first-faults.json"
    first.write_text(dump(faults))
    drive = Drive(state, tls)
    drive.start(f"--faults={first}")
    try:
        with drive.at_end:
            yield drive
    finally:
        drive.kill()
    mistakes = (state / "server.err").read_text()
    assert not mistakes, f"the server itself is wrong:\n{mistakes}"

"""A plain client of Drive v3 for tests: one request per call, nothing tried again, nothing interpreted."""

from __future__ import annotations

import json
from typing import Any

import requests
from google.auth.transport.requests import AuthorizedSession

from tests.fakes.drive import Drive

FOLDER = "application/vnd.google-apps.folder"
GRAIN = 256 * 1024


class Asking:
    """Calls one server in the name of one OAuth client; scopes as in "drive.file"."""

    def __init__(self, drive: Drive, *, scopes: tuple[str, ...] = ("drive.file",), client: str = "colabkeep") -> None:
        self._drive = drive
        session: Any = AuthorizedSession  # google-auth's constructors are not typed
        self._session = session(drive.credentials(scopes, client))
        drive.at_end.callback(self._session.close)

    def __call__(self, method: str, path: str, **options: Any) -> requests.Response:
        """The answer to one request; `path` may be a whole address. The options are those of requests."""
        url = path if path.startswith("http") else self._drive.url + path
        answer: requests.Response = self._session.request(method, url, timeout=30, **options)
        return answer

    @property
    def token(self) -> str:
        """The access token of the moment."""
        token: str = self._session.credentials.token
        return token

    def get(self, path: str, **params: Any) -> Any:
        """The JSON of a GET that succeeds."""
        answer = self("GET", path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def create(self, name: str, data: bytes = b"", **said: Any) -> dict[str, Any]:
        """A file with all its fields, uploaded in one request."""
        metadata = json.dumps({"name": name, **said}).encode()
        head = b"--b\r\nContent-Type: application/json\r\n\r\n" + metadata
        body = head + b"\r\n--b\r\nContent-Type: application/octet-stream\r\n\r\n" + data + b"\r\n--b--"
        kind = {"Content-Type": "multipart/related; boundary=b"}
        answer = self("POST", "/upload/drive/v3/files?uploadType=multipart&fields=*", data=body, headers=kind)
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def folder(self, name: str, **said: Any) -> str:
        """A new folder's id."""
        answer = self("POST", "/drive/v3/files", json={"name": name, "mimeType": FOLDER, **said})
        assert answer.status_code == 200, answer.text
        folder_id: str = answer.json()["id"]
        return folder_id

    def begin(self, size: int, **said: Any) -> str:
        """A new upload session's address."""
        path = "/upload/drive/v3/files?uploadType=resumable&fields=*"
        answer = self("POST", path, json=said, headers={"X-Upload-Content-Length": str(size)})
        assert answer.status_code == 200, answer.text
        return answer.headers["Location"]

    def chunk(self, address: str, data: bytes, start: int, total: int | str) -> requests.Response:
        """Send one chunk."""
        headers = {"Content-Range": f"bytes {start}-{start + len(data) - 1}/{total}"}
        return self("PUT", address, data=data, headers=headers)

    def received(self, address: str, total: int | str = "*") -> int:
        """How many bytes the session holds."""
        answer = self("PUT", address, headers={"Content-Range": f"bytes */{total}"})
        assert answer.status_code == 308, answer.text
        return int(answer.headers["Range"].partition("-")[2]) + 1 if "Range" in answer.headers else 0


def reason(answer: requests.Response) -> tuple[int, str]:
    """Status and reason of a refusal."""
    return answer.status_code, answer.json()["error"]["errors"][0]["reason"]

"""The loopback server: HTTP in front of `state`, with faults on request."""

from __future__ import annotations

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.fakes.kaggle.faults import Action, Answer, Cut, Damaged, Door, Fault, LostReply, Silence
from tests.fakes.kaggle.state import TOKEN, Kaggle, Refused, md5

__all__ = ["FakeKaggle"]

_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")
_CHUNK = 2**16


class FakeKaggle:
    """A server for one test, as a context manager. `state` is what it knows; `calls` are the kinds of all requests so
    far; `faults` may be added to at any time."""

    def __init__(self) -> None:
        self.state = Kaggle()
        self.calls: list[str] = []
        self.faults: list[Fault] = []
        self.released = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def environ(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """The environment of a process that uses this server, with a home folder of its own."""
        credentials = {"KAGGLE_API_TOKEN": token} if token else {}
        return {"HOME": str(home), "PATH": "/usr/bin:/bin", **credentials}

    @property
    def command(self) -> tuple[str, ...]:
        """The child of the Kaggle store, pointed at this server."""
        return sys.executable, str(Path(__file__).with_name("child.py")), self.address

    def fault(self, on: str, action: Action, *, skip: int = 0, times: int = 1) -> None:
        """Let something go wrong."""
        self.faults.append(Fault(on, action, skip, times))

    def action(self, kind: str) -> Action | None:
        """What goes wrong with this request; each fault counts its own."""
        with self.state.guard:
            self.calls.append(kind)
            for fault in self.faults:
                if fault.on == kind and fault.times:
                    if fault.skip:
                        fault.skip -= 1
                    else:
                        fault.times -= 1
                        return fault.action
        return None

    def __enter__(self) -> FakeKaggle:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no mistake of the server."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _handler(fake: FakeKaggle) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.fake = fake
    return Handler


class _Handler(BaseHTTPRequestHandler):
    fake: FakeKaggle
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = self.path.rsplit("/", 1)[-1]
        action = self.fake.action(method)
        if self._goes_wrong(action):
            return
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json(401, {"code": 401, "message": "Unauthenticated"})
            return
        try:
            with self.fake.state.guard:
                if method == "DownloadDataset":
                    self._redirect(asked)
                    return
                answer = getattr(self.fake.state, method)(asked)
        except Refused as refused:
            self.fake.state.refusals.append(f"{method}: {refused.code} {refused.message}")
            self._json(refused.code, {"code": refused.code, "message": refused.message})
            return
        if not isinstance(action, LostReply):
            self._json(200, json.loads(json.dumps(answer).replace("{address}", self.fake.address)))
        else:
            self.close_connection = True

    def do_PUT(self) -> None:
        blob = self.fake.state.blobs[self.path.split("?")[0].rsplit("/", 1)[-1]]
        length = int(self.headers["Content-Length"] or 0)
        span = _RANGE.fullmatch(self.headers.get("Content-Range", ""))
        asks = span is not None and span[1] is None
        action = self.fake.action("STATUS" if asks else "PUT")
        if self._goes_wrong(action):
            return
        if not asks:
            start = int(span[1]) if span else 0
            most = action.after if isinstance(action, Cut) else length
            self._receive(blob.data, start, min(length, most))
            if isinstance(action, Cut | LostReply):
                self.close_connection = True
                return
        if blob.complete:
            self._reply(200, b"{}")
        else:
            have = len(blob.data)
            self._reply(308, b"", {"Range": f"bytes=0-{have - 1}"} if have else {})

    def do_GET(self) -> None:
        *_, owner, name, version, file = self.path.split("?")[0].split("/")
        action = self.fake.action("GET")
        if self._goes_wrong(action):
            return
        asked = {"ownerSlug": owner, "datasetSlug": name, "datasetVersionNumber": version}
        data = self.fake.state.files(asked)[file]
        headers = {"Accept-Ranges": "bytes", "X-Goog-Hash": f"crc32c=AAAAAA==,md5={md5(data)}"}
        start = int((self.headers.get("Range") or "bytes=0-")[len("bytes=") : -1])
        part = data[start:]
        if isinstance(action, Damaged):
            part = bytes([part[0] ^ 1]) + part[1:]
        self.send_response(206 if start else 200)
        for key, value in {**headers, "Content-Length": str(len(part))}.items():
            self.send_header(key, value)
        self.end_headers()
        try:
            self.wfile.write(part[: action.after] if isinstance(action, Cut) else part)
        except OSError:
            self.close_connection = True  # only the headers were wanted
        if isinstance(action, Cut):
            self.close_connection = True

    def _receive(self, data: bytearray, start: int, length: int) -> None:
        """Take what is new; a client may send again what is there already."""
        at = start
        while length and (chunk := self.rfile.read(min(_CHUNK, length))):
            length -= len(chunk)
            if at <= len(data):
                data[at : at + len(chunk)] = chunk
            at += len(chunk)

    def _redirect(self, asked: dict[str, Any]) -> None:
        files = self.fake.state.files(asked)
        if asked["fileName"] not in files:
            raise Refused(404, "Not found")
        owner, name, version = asked["ownerSlug"], asked["datasetSlug"], asked["datasetVersionNumber"]
        location = f"{self.fake.address}/files/{owner}/{name}/{version}/{asked['fileName']}?signature=s1gned"
        self._reply(302, b"", {"Location": location})

    def _goes_wrong(self, action: Action | None) -> bool:
        if isinstance(action, Silence):
            self.fake.released.wait()
            self.close_connection = True
        elif isinstance(action, Answer):
            self.close_connection = True  # a body that was not read would be taken for the next request
            self._reply(action.code, action.body, {"Content-Type": "text/html", **action.headers})
        elif isinstance(action, Door):
            action.reached.set()
            action.opened.wait()
        return isinstance(action, Silence | Answer)

    def _json(self, code: int, answer: dict[str, Any]) -> None:
        self._reply(code, json.dumps(answer).encode(), {"Content-Type": "application/json; charset=utf-8"})

    def _reply(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

"""The fake Hub's side of HTTP: paths to methods, tokens, pages, ranges, and what goes wrong on the way."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.fakes.hub import FakeHub, Fault, Refused, Repo
from tests.fakes.hub_buckets import lines

__all__ = ["Handler", "Server", "server_of"]

REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"


class _Broken(Exception):
    """The connection is to break."""


class Handler(BaseHTTPRequestHandler):
    """A request: its faults, its answer. `routes` says what the paths mean."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each small answer waits 40 ms for an acknowledgement
    wbufsize = -1
    hub: Any
    routes: tuple[tuple[str, str, Callable[..., Any]], ...] = ()

    def log_message(self, format: str, *args: Any) -> None:
        """The log is `hub.log`."""

    def do_GET(self) -> None:
        self._serve("GET")

    def do_HEAD(self) -> None:
        self._serve("HEAD")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def _serve(self, method: str) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        with self.hub.guard:
            self.hub.log.append(f"{method} {path}")
            fault = next((one for one in self.hub.faults if one.takes(method, path)), None)
        try:
            self.body = self._read(fault)
            self._before(fault)
            status, headers, data = self._answer(method, path)
            if fault is not None and fault.kind == "lost":
                raise _Broken
            self._send(status, headers, data, fault)
        except Refused as refused:
            data = json.dumps({"error": refused.message}).encode()
            self._send(refused.status, {**refused.headers, "Content-Type": "application/json"}, data, None)
        except _Broken:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _read(self, fault: Fault | None) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            raise Refused(501, "The storage wants a Content-Length")
        length = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(length)
        if len(data) < length:
            raise _Broken
        if fault is not None and fault.kind == "flip upload":
            data = data[:-1] + bytes([data[-1] ^ 1])
        return data

    def _before(self, fault: Fault | None) -> None:
        if fault is None:
            return
        if fault.kind == "status":
            raise Refused(fault.status, fault.message, headers=fault.headers)
        if fault.kind == "reset":
            raise _Broken
        if fault.kind == "silence":
            end = time.monotonic() + fault.seconds
            while time.monotonic() < end and not self.hub.closing:
                time.sleep(0.02)
            raise _Broken

    def _send(self, status: int, headers: dict[str, str], data: bytes, fault: Fault | None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fault is not None and fault.kind == "short":
            self.wfile.write(data[: len(data) // 2])
            raise _Broken
        if fault is not None and fault.kind == "flip":
            data = data[:-1] + bytes([data[-1] ^ 1])
        if self.command != "HEAD":
            self.wfile.write(data)

    # -- from a path to what it means -----------------------------------------------------------------

    def _answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        for verb, pattern, action in self.routes:
            match = re.fullmatch(pattern, path)
            if match and verb == method.replace("HEAD", "GET"):
                with self.hub.guard:
                    if path.startswith("/api/"):
                        self.hub.see_requests()
                    result = action(self, **match.groupdict())
                if isinstance(result, tuple):
                    return result
                return 200, {"Content-Type": "application/json"}, json.dumps(result).encode()
        raise Refused(404, f"no such path: {method} {path}")

    def user(self) -> str | None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if given and given not in self.hub.tokens:
            raise Refused(401, "Invalid credentials in Authorization header")
        return self.hub.tokens.get(given)

    def writer(self) -> str:
        user = self.user()
        if user is None:
            raise Refused(401, "Invalid username or password.")
        return user

    def repository(self, name: str) -> Repo:
        """Private ones are there for their owner only; for others they do not exist."""
        user = self.user()
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and name.split("/", maxsplit=1)[0] != user):
            raise Refused(401 if user is None else 404, "Repository not found", "RepoNotFound")
        return repo

    def files(self, name: str, revision: str) -> dict[str, Any]:
        files = self.repository(name).at(revision)
        if files is None:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return files

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def listed(self, repo: str, revision: str, path: str | None = None) -> tuple[int, dict[str, str], bytes]:
        """One page, with a link to the next one."""
        entries = self.hub.tree(self.files(repo, revision), (path or "").strip("/"))
        start = int(self.query.get("cursor", 0))
        headers = {"Content-Type": "application/json"}
        if len(entries) > start + self.hub.page:
            address = f"{self.hub.url}{urlsplit(self.path).path}?recursive=true&cursor={start + self.hub.page}"
            headers["Link"] = f'<{address}>; rel="next"'
        return 200, headers, json.dumps(entries[start : start + self.hub.page]).encode()

    def facts(self, repo: str, revision: str) -> list[dict[str, Any]]:
        files = self.files(repo, revision)
        wanted = parse_qs(self.body.decode()).get("paths", [])
        return [self.hub.entry(path, files[path]) for path in wanted if path in files]

    def resolved(self, repo: str, revision: str, path: str) -> tuple[int, dict[str, str], bytes]:
        file = self.files(repo, revision).get(path)
        if file is None:
            raise Refused(404, "Entry not found", "EntryNotFound")
        known = {"X-Repo-Commit": self.hub.repos[repo].commits[-1][0], "ETag": f'"{file.sha256 or file.oid}"'}
        if file.sha256 is not None:
            linked = {"X-Linked-Size": str(file.size), "X-Linked-Etag": f'"{file.sha256}"'}
            return (
                302,
                {**known, **linked, "Location": f"{self.hub.storage}/storage/{repo}/{file.sha256}?signature=s"},
                b"",
            )
        return self.ranged(file.data, known)

    def stored(self, repo: str, oid: str) -> tuple[int, dict[str, str], bytes]:
        self.see_signed()
        return self.ranged(self.hub.repos[repo].large[oid], {})

    def see_signed(self) -> None:
        """The storage is another host, where the token is nobody's business: S3 takes one kind of sign-in only."""
        if self.query.get("signature") is None or "Authorization" in self.headers:
            raise Refused(400, "Only one auth mechanism allowed")

    def ranged(self, data: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if match is None:
            return 200, headers, data
        start, end = int(match[1]), int(match[2] or len(data) - 1) + 1
        if start >= len(data):
            raise Refused(416, "Range not satisfiable")
        return 206, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}, data[start:end]

    def store(self, repo: str, oid: str, part: str | None = None) -> tuple[int, dict[str, str], bytes]:
        self.see_signed()
        if part is None:
            self.hub.repos[repo].large[oid] = self.body
        else:
            self.hub.parts[oid, int(part)] = self.body
        return 200, {"ETag": f'"{len(self.body)}"'}, b""

    def bucket(self, repo: str) -> dict[str, str]:
        return self.hub.buckets.files(self.user(), repo)

    def bucket_facts(self, repo: str) -> list[dict[str, Any]]:
        files = self.bucket(repo)
        return [self.hub.buckets.entry(path, files[path]) for path in self.json["paths"] if path in files]

    def bucket_tree(self, repo: str, path: str | None = None) -> list[dict[str, Any]]:
        recursive = self.query.get("recursive", "false") == "true"
        return self.hub.buckets.tree(self.bucket(repo), (path or "").strip("/"), recursive)

    def bucket_file(self, repo: str, path: str) -> tuple[int, dict[str, str], bytes]:
        digest = self.bucket(repo).get(path)
        if digest is None:
            raise Refused(404, "Entry not found", "EntryNotFound")
        return self.ranged(self.hub.buckets.bytes[digest], {})

    def references(self, repo: str) -> dict[str, Any]:
        known = self.repository(repo)
        head = {"name": "main", "ref": "refs/heads/main", "targetCommit": known.commits[-1][0]}
        tags = [{"name": n, "ref": f"refs/tags/{n}", "targetCommit": c} for n, c in known.tags.items()]
        return {"branches": [head], "tags": tags, "converts": []}

    def large(self, repo: str) -> list[dict[str, Any]]:
        date = "2026-11-20T00:00:00.000Z"
        return [
            {"fileOid": f"file-{sha}", "oid": sha, "filename": "?", "pushedAt": date, "size": len(data), "ref": "main"}
            for sha, data in self.repository(repo).large.items()
        ]


def _write(action: Callable[..., Any]) -> Callable[..., Any]:
    """Only for who may write."""

    def checked(handler: Handler, repo: str, **rest: str) -> Any:
        if handler.writer() != repo.split("/", maxsplit=1)[0]:
            raise Refused(403, "You don't have the rights to write to this repository")
        return action(handler, handler.repository(repo), repo, **rest)

    return checked


_API = rf"/api/models/{REPO}"
_ROUTES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("POST", "/api/repos/create", lambda h: h.hub.create(h.writer(), h.json)),
    ("GET", rf"{_API}/refs", Handler.references),
    ("POST", rf"{_API}/preupload/main", _write(lambda h, repo, name: h.hub.preupload(repo, h.json))),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", _write(lambda h, repo, name: h.hub.batch(name, repo, h.json))),
    ("PUT", rf"/storage/{REPO}/(?P<oid>[0-9a-f]+)(?:/(?P<part>\d+))?", Handler.store),
    ("GET", rf"/storage/{REPO}/(?P<oid>[0-9a-f]+)", Handler.stored),
    (
        "POST",
        rf"/storage/{REPO}/(?P<oid>[0-9a-f]+)/complete",
        lambda h, repo, oid: h.hub.complete(h.hub.repos[repo], oid, h.json),
    ),
    ("POST", rf"/verify/{REPO}", _write(lambda h, repo, name: h.hub.verify(repo, h.json))),
    (
        "POST",
        rf"{_API}/commit/main",
        _write(lambda h, repo, name: h.hub.commit_request(name, repo, [json.loads(x) for x in h.body.splitlines()])),
    ),
    ("GET", rf"{_API}/tree/(?P<revision>\w+)(?P<path>/.*)?", Handler.listed),
    ("POST", rf"{_API}/paths-info/(?P<revision>\w+)", Handler.facts),
    ("GET", rf"/{REPO}/resolve/(?P<revision>\w+)/(?P<path>.+)", Handler.resolved),
    ("GET", rf"{_API}/lfs-files", Handler.large),
    ("POST", rf"/api/buckets/{REPO}", lambda h, repo: h.hub.buckets.create(h.writer(), repo, h.json)),
    ("GET", rf"/api/buckets/{REPO}", lambda h, repo: h.hub.buckets.info(h.user(), repo)),
    ("GET", rf"/api/buckets/{REPO}/tree(?P<path>/.*)?", Handler.bucket_tree),
    ("POST", rf"/api/buckets/{REPO}/paths-info", Handler.bucket_facts),
    ("POST", rf"/api/buckets/{REPO}/batch", lambda h, repo: h.hub.buckets.batch(h.bucket(repo), lines(h.body))),
    ("GET", rf"/buckets/{REPO}/resolve/(?P<path>.+)", Handler.bucket_file),
    ("POST", rf"{_API}/lfs-files/batch", _write(lambda h, repo, name: h.hub.forget(repo, h.json))),
)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that went away is what some tests are about
            super().handle_error(request, client_address)


def server_of(hub: FakeHub) -> Server:
    """The server, bound to a free port of the loopback interface."""
    return Server(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": hub, "routes": _ROUTES}))

"""The fake's side of HTTP: paths to methods, tokens, and what goes wrong on the way."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

from tests.fakes.aistudio.service import _POINTER, FakeAIStudioHub, Repo
from tests.fakes.hub import Fault, Refused
from tests.fakes.hub_http import Handler, Server

__all__ = ["server_of"]

REPO = r"(?P<repo>[\w-]+/[\w.-]+)"
_API = rf"/api/v1/repos/{REPO}"


class _Handler(Handler):
    def _read(self, fault: Fault | None) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":  # how requests sends an empty file
            if self.rfile.readline().strip() != b"0":
                raise Refused(411, "MissingContentLength")
            self.rfile.readline()
            return b""
        return super()._read(fault)

    def user(self) -> str | None:
        given = self.headers.get("Authorization", "").removeprefix("token").strip()
        if given and given not in self.hub.tokens:
            raise Refused(401, "token is invalid")
        return self.hub.tokens.get(given)

    def repository(self, name: str) -> Repo:
        """Private ones are there for their owner only; for others they do not exist."""
        user = self.user()
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and name.partition("/")[0] != user):
            raise Refused(404, "Not Found")
        return repo

    def writable(self, name: str) -> Repo:
        repo = self.repository(name)
        if name.partition("/")[0] != self.user():
            raise Refused(403, "user should have a permission to write to this repo")
        return repo

    def preupload(self, repo: str) -> dict[str, Any]:
        self.writable(repo)
        return {"files": [{"path": f["path"], "lfs": self.hub.large(f["path"])} for f in self.json["files"]]}

    def media(self, repo: str, path: str) -> tuple[int, dict[str, str], bytes]:
        data = self.repository(repo).files.get(path)
        if data is None:
            raise Refused(404, "object does not exist")
        pointer = _POINTER.match(data)
        if pointer is None:
            return self.ranged(data, {})
        return 302, {"Location": f"{self.hub.storage}/storage/{repo}/{pointer[1].decode()}?signature=s"}, b""

    def stored(self, repo: str, oid: str) -> tuple[int, dict[str, str], bytes]:
        self.see_signed()
        data = self.hub.repos[repo].large.get(oid)
        if data is None:
            raise Refused(404, "NoSuchKey")
        etag = {"md5": hashlib.md5(data).hexdigest(), "none": "", "other": "-" + "0" * 32}[self.hub.etag]
        return self.ranged(data, {"ETag": f'"{etag}"'} if etag else {})

    def store(self, repo: str, oid: str) -> tuple[int, dict[str, str], bytes]:
        if self.query.get("signature") is None:
            raise Refused(403, "AccessDenied")
        self.hub.repos[repo].large[oid] = self.body
        return 200, {"Content-Md5": base64.b64encode(hashlib.md5(self.body).digest()).decode()}, b""

    def made(self) -> dict[str, Any]:
        try:
            user = self.user()
        except Refused:
            user = None
        return self.hub.create(user, self.json)


_ROUTES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("POST", "/modelcenter/v2/models/sdk/add", _Handler.made),
    (
        "GET",
        "/modelcenter/v2/models/getSuffixBlackList",
        lambda h: {"errorCode": 0, "result": list(h.hub.forbidden)},
    ),
    ("GET", rf"{_API}/git/trees/master", lambda h, repo: h.hub.tree(h.repository(repo), int(h.query.get("page", 1)))),
    ("GET", rf"{_API}/contents/(?P<path>.+)", lambda h, repo, path: h.hub.contents(h.repository(repo), path)),
    ("POST", rf"{_API}/contents", lambda h, repo: h.hub.commit(h.writable(repo), h.json)),
    ("POST", rf"{_API}/preupload/master", _Handler.preupload),
    ("GET", rf"{_API}/media/(?P<path>.+)", _Handler.media),
    (
        "POST",
        rf"/{REPO}\.git/info/lfs/objects/batch",
        lambda h, repo: h.hub.batch(repo, h.writable(repo), h.json),
    ),
    ("POST", rf"/verify/{REPO}", lambda h, repo: h.hub.verify(h.writable(repo), h.json)),
    ("PUT", rf"/storage/{REPO}/(?P<oid>[0-9a-f]+)", _Handler.store),
    ("GET", rf"/storage/{REPO}/(?P<oid>[0-9a-f]+)", _Handler.stored),
)


def server_of(hub: FakeAIStudioHub) -> Server:
    """The server, bound to a free port of the loopback interface."""
    return Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub, "routes": _ROUTES}))

"""AI Studio's hub on this machine: repositories of a Gitea, large files in an object storage, a list of models.

What it does is what the client aistudio-sdk 0.3.9 (November 2026) sends and expects: its files `requests/hub.py`,
`hub.py`, `snapshot_download.py` and `file_download.py` name the paths and the fields; what they leave open is as in
Gitea's own API (`modules/structs/repo_file.go`, `git_tree`).

What is not known of the real one can be chosen: `sizes`: whether a large file is told with the size of its pointer, as
by Gitea, or with its own; `etag`: what the storage says of its bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.fakes.hub import Fault, Refused

__all__ = ["TOKEN", "TROUBLES", "USER", "FakeAIStudioHub", "Fault", "Repo", "running_aistudio"]

TROUBLES: tuple[tuple[str, str, str], ...] = (
    ("POST", "/contents$", "lost"),
    ("POST", "/contents$", "status"),
    ("POST", "preupload", "status"),
    ("GET", "/git/trees/", "short"),
    ("GET", "/contents/", "reset"),
    ("GET", "/media/", "status"),
    ("PUT", "/storage/", "lost"),
    ("POST", "objects/batch", "status"),
)
"""What a repository has to withstand: the first words of a `Fault` each."""

TOKEN = "a" * 40
USER = "1234567"
REGULAR_LIMIT = 5 * 2**20
_POINTER = re.compile(rb"version https://git-lfs.github.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize (\d+)")


def git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    """A repository: the files of its newest commit (large ones as pointers), and its large files by digest."""

    private: bool
    files: dict[str, bytes] = field(default_factory=lambda: {"README.md": b"# A model\n"})
    large: dict[str, bytes] = field(default_factory=dict)
    commits: int = 1


@dataclass
class FakeAIStudioHub:
    """The service. `log` has "METHOD path" of each request, `faults` what is to go wrong."""

    sizes: Literal["pointer", "real"] = "pointer"
    etag: Literal["md5", "none", "other"] = "md5"
    makes_public: bool = False
    page: int = 1000
    large_patterns: tuple[str, ...] = (".safetensors", ".bin", ".pdparams")
    forbidden: tuple[str, ...] = (".exe",)
    repos: dict[str, Repo] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=lambda: {TOKEN: USER})
    guard: threading.RLock = field(default_factory=threading.RLock)
    url: str = ""
    storage: str = ""  # the same server by another name: large files are kept at another host
    closing: bool = False

    def see_requests(self) -> None:
        """AI Studio publishes no limit of requests."""

    def made(self, name: str, *, private: bool = True) -> Repo:
        """A new repository, as somebody made it on the web page."""
        self.repos[name] = Repo(private=private)
        return self.repos[name]

    def content(self, name: str, path: str) -> bytes:
        """The bytes of a file of the newest commit."""
        data = self.repos[name].files[path]
        pointer = _POINTER.match(data)
        return self.repos[name].large[pointer[1].decode()] if pointer else data

    def requests(self, pattern: str) -> list[str]:
        return [line for line in self.log if re.search(pattern, line)]

    # -- what can be asked ---------------------------------------------------------------------------

    def create(self, user: str | None, body: dict[str, Any]) -> dict[str, Any]:
        if user is None:
            return {"errorCode": 401, "errorMsg": "token is invalid", "logId": "1"}
        name = f"{user}/{body['repoName']}"  # whatever owner was asked for
        if name in self.repos:
            return {"errorCode": 500, "errorMsg": "repo重复 (repo already created)", "logId": "1"}
        public = body["repoType"] == 1 or self.makes_public
        self.made(name, private=not public)
        result = {key: body[key] for key in ("modelName", "repoName", "desc", "license")}
        return {"errorCode": 0, "errorMsg": "", "logId": "1", "result": {**result, "repoType": int(public)}}

    def large(self, path: str) -> bool:
        return path.endswith(self.large_patterns)

    def entry(self, repo: Repo, path: str) -> dict[str, Any]:
        data = repo.files[path]
        pointer = _POINTER.match(data)
        size = int(pointer[2]) if pointer and self.sizes == "real" else len(data)
        return {"path": path, "sha": git_digest(data), "size": size}

    def tree(self, repo: Repo, page: int) -> dict[str, Any]:
        folders = {"/".join(path.split("/")[:n]) for path in repo.files for n in range(1, path.count("/") + 1)}
        entries = [{"path": path, "sha": "0" * 40, "size": 0, "type": "tree"} for path in sorted(folders)]
        entries += [{**self.entry(repo, path), "type": "blob"} for path in sorted(repo.files)]
        shown = entries[(page - 1) * self.page : page * self.page]
        return {"tree": shown, "total_count": len(entries), "truncated": page * self.page < len(entries)}

    def contents(self, repo: Repo, path: str) -> Any:
        if path in repo.files:
            data = repo.files[path]
            text = base64.b64encode(data).decode()
            content = {"content": text, "encoding": "base64"}
            if self.sizes == "real" and _POINTER.match(data):
                content = {"content": None, "encoding": None}  # nobody sends gigabytes as text
            return {**self.entry(repo, path), "name": path.rpartition("/")[2], "type": "file", **content}
        below = [other for other in repo.files if other.startswith(f"{path}/")]
        if not below:
            raise Refused(404, "object does not exist")
        return [{**self.entry(repo, other), "type": "file"} for other in below]

    def commit(self, repo: Repo, body: dict[str, Any]) -> dict[str, Any]:
        files = dict(repo.files)
        for change in body["files"]:
            path, there = change["path"], files.get(change["path"])
            if change["operation"] == "create" and there is not None:
                raise Refused(422, "repository file already exists")
            if change["operation"] != "create" and (there is None or change.get("sha") != git_digest(there)):
                raise Refused(404 if there is None else 422, "sha does not match")
            if change["operation"] == "delete":
                del files[path]
                continue
            data = base64.b64decode(change["content"])
            if len(data) > REGULAR_LIMIT:
                raise Refused(413, "file is too large")
            files[path] = data
        repo.files, repo.commits = files, repo.commits + 1
        return {"commit": {"sha": f"{repo.commits:040x}"}}

    def batch(self, name: str, repo: Repo, body: dict[str, Any]) -> dict[str, Any]:
        (wanted,) = body["objects"]
        answer = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in repo.large:
            href = f"{self.storage}/storage/{name}/{wanted['oid']}?signature=only-the-storage-knows"
            answer["actions"] = {"upload": {"href": href}, "verify": {"href": f"{self.url}/verify/{name}"}}
        return {"transfer": "basic", "objects": [answer]}

    def verify(self, repo: Repo, body: dict[str, Any]) -> dict[str, Any]:
        """By the size alone: the server never saw the bytes."""
        if len(repo.large.get(body["oid"], b"")) != body["size"]:
            repo.large.pop(body["oid"], None)
            raise Refused(422, "the uploaded object is not the announced one")
        return {}


@contextmanager
def running_aistudio(**options: Any) -> Iterator[FakeAIStudioHub]:
    """The service, on a free port of this machine, until the end of the `with`."""
    from tests.fakes.aistudio.http import server_of

    hub = FakeAIStudioHub(**options)
    server = server_of(hub)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    hub.storage = f"http://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.closing = True
        server.shutdown()
        server.server_close()
        thread.join()

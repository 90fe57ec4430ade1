"""A Hugging Face Hub on this machine, for the real huggingface_hub: repositories, large files, commits. Never shipped.

What it does is what the client of huggingface/huggingface_hub (2.4.0, November 2026) sends and expects: its files
hf_api.py, _commit_api.py and lfs.py name the paths, the fields and the error codes. Sizes and rules of the service
come from its documentation ("Storage limits", "Repository limitations") where a comment says so.

Large files are kept by digest and, as on the Hub, need not be in any commit; a commit that names one which is not
there is refused. There is no Xet service: it must be switched off in the client.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlencode

__all__ = ["TOKEN", "TROUBLES", "FakeHub", "Fault", "Refused", "Repo", "running_hub"]

TROUBLES: tuple[tuple[str, str, str], ...] = (
    ("POST", "/commit/main", "lost"),
    ("POST", "/commit/main", "status"),
    ("POST", "paths-info", "reset"),
    ("POST", "preupload", "status"),
    ("GET", "/tree/", "short"),
    ("GET", "resolve", "status"),
    ("PUT", "storage", "lost"),
    ("POST", "lfs-files", "status"),
)
"""What a repository has to withstand: the first words of a `Fault` each."""

TOKEN = "hf_" + "t" * 34
REGULAR_LIMIT = 10 * 2**20  # larger files must be LFS: "Getting started with repositories"
LFS_PATTERNS = ("*.bin", "*.safetensors", "*.pt", "*.ckpt", "*.h5", "*.npz", "*.zip")  # a new repo's .gitattributes


@dataclass
class Fault:
    """What goes wrong with requests of this method whose path matches: after `skip` of them, `count` times.

    "status": answered so, nothing done. "lost": done, then the connection breaks. "reset": it breaks, nothing done.
    "silence": done nothing, and no answer for `seconds`. "short": the answer's body is cut. "flip": one byte of it
    is wrong. "flip upload": one byte of what was sent is stored wrong.
    """

    method: str
    path: str
    kind: Literal["status", "lost", "reset", "silence", "short", "flip", "flip upload"]
    status: int = 503
    skip: int = 0
    count: int = 1
    seconds: float = 3600.0
    message: str = "as the test wants it"
    headers: dict[str, str] = field(default_factory=dict)

    def takes(self, method: str, path: str) -> bool:
        if method != self.method or not re.search(self.path, path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.count -= 1
        return self.count >= 0


@dataclass(frozen=True)
class File:
    """A file in a commit: its bytes (regular), or the digest of a large one."""

    size: int
    data: bytes = b""
    sha256: str | None = None

    @property
    def oid(self) -> str:
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n"
        data = self.data if self.sha256 is None else pointer.encode()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    """A repository: its commits, each with all its files, and its large files by digest."""

    private: bool
    commits: list[tuple[str, dict[str, File]]] = field(default_factory=list)
    large: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, File]:
        return self.commits[-1][1]

    def add(self, files: dict[str, File]) -> str:
        text = f"{len(self.commits)}{sorted((path, file.oid) for path, file in files.items())}{time.time_ns()}"
        self.commits.append((hashlib.sha1(text.encode()).hexdigest(), files))
        return self.commits[-1][0]

    def at(self, revision: str) -> dict[str, File] | None:
        if revision == "main":
            return self.files
        return next((files for commit, files in self.commits if commit == revision), None)

    @property
    def used(self) -> int:
        """Bytes of large files that some commit still names, or that were just uploaded."""
        return sum(map(len, self.large.values()))


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, message: str, code: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(headers or {})}


class FakeHub:
    """The service. `log` has "METHOD path" of each request, `faults` what is to go wrong.

    Limits of a free account, all off unless a test sets them. `commits_per_hour`: the Hub says "You have exceeded the
    rate limit for repository commits (128 per hour). You can retry this action in 43 minutes" (logs of its users, in
    public repositories, August and September 2026; others have seen 256 and 320; huggingface/datasets #6257 for the
    first form of it).
    `requests_per_window`: 1,000 in fixed windows of five minutes (huggingface.co/docs/hub/rate-limits, September 2026).
    `refused` counts what was turned away for one of the two. `now` gives the seconds in which all that is counted.
    """

    def __init__(
        self,
        *,
        part_size: int | None = None,
        page: int = 1000,
        commits_per_hour: int | None = None,
        requests_per_window: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.repos: dict[str, Repo] = {}
        self.buckets: Any = None  # a `Buckets` of hub_buckets.py
        self.log: list[str] = []
        self.faults: list[Fault] = []
        self.part_size = part_size  # with one, uploads larger than it go in parts
        self.page = page
        self.commits_per_hour = commits_per_hour
        self.requests_per_window = requests_per_window
        self.now = now
        self.refused = 0
        self.commit_times: list[float] = []
        self.windows: Counter[int] = Counter()  # requests in each window of five minutes
        self.tokens = {TOKEN: "ada"}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.guard = threading.RLock()
        self.url = ""
        self.storage = ""  # the same server by another name: large files are kept at another host than the Hub's
        self.closing = False

    def made(self, repo: str) -> Repo:
        """A new repository, as somebody made it on the web page."""
        self.repos[repo] = Repo(private=True)
        self.repos[repo].add({".gitattributes": File(2, b"*\n")})
        return self.repos[repo]

    def content(self, repo: str, path: str) -> bytes:
        """The bytes of a file of the newest commit."""
        file = self.repos[repo].files[path]
        return file.data if file.sha256 is None else self.repos[repo].large[file.sha256]

    def commit(self, repo: str, files: dict[str, bytes]) -> None:
        """Somebody else's commit."""
        with self.guard:
            new = {path: File(len(data), data) for path, data in files.items()}
            self.repos[repo].add({**self.repos[repo].files, **new})

    def see_commits(self) -> None:
        """That this account has not made too many commits in the last hour."""
        lately = [at for at in self.commit_times if at > self.now() - 3600.0]
        if self.commits_per_hour is not None and len(lately) >= self.commits_per_hour:
            self.refused += 1
            minutes = max(1, math.ceil((lately[0] + 3600.0 - self.now()) / 60))
            raise Refused(
                429,
                f"You have exceeded the rate limit for repository commits ({self.commits_per_hour} per hour). "
                f"You can retry this action in {minutes} minutes.",
            )

    def see_requests(self) -> None:
        """That this account has not sent too many requests in this window."""
        window = int(self.now() // 300)
        self.windows[window] += 1
        if self.requests_per_window is not None and self.windows[window] > self.requests_per_window:
            self.refused += 1
            left = math.ceil((window + 1) * 300 - self.now())
            raise Refused(429, "We had to rate limit you", headers={"RateLimit": f'"api";r=0;t={left}'})

    def requests(self, pattern: str) -> list[str]:
        return [line for line in self.log if re.search(pattern, line)]

    # -- the API, one method per path ---------------------------------------------------------------

    def create(self, user: str, body: dict[str, Any]) -> dict[str, Any]:
        owner = body.get("organization") or user
        if owner != user:
            raise Refused(403, "You don't have the rights to create a model under this namespace")
        name = f"{owner}/{body['name']}"
        if name in self.repos:
            raise Refused(409, "You already created this model repo")
        self.made(name).private = body.get("private", body.get("visibility") == "private")
        return {"url": f"{self.url}/{name}", "name": name}

    def preupload(self, repo: Repo, body: dict[str, Any]) -> dict[str, Any]:
        def mode(file: dict[str, Any]) -> str:
            large = file["size"] > REGULAR_LIMIT or any(fnmatch.fnmatch(file["path"], p) for p in LFS_PATTERNS)
            return "lfs" if large else "regular"

        def oid(path: str) -> str | None:
            there = repo.files.get(path)
            return there and (there.sha256 or there.oid)

        return {
            "files": [
                {"path": f["path"], "uploadMode": mode(f), "shouldIgnore": False, "oid": oid(f["path"])}
                for f in body["files"]
            ]
        }

    def batch(self, name: str, repo: Repo, body: dict[str, Any]) -> dict[str, Any]:
        objects = []
        for wanted in body["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in repo.large:
                signed = urlencode({"signature": "only-the-storage-knows"})
                place = f"storage/{name}/{wanted['oid']}"
                upload: dict[str, Any] = {"href": f"{self.storage}/{place}?{signed}"}
                if self.part_size is not None and wanted["size"] > self.part_size:
                    count = -(-wanted["size"] // self.part_size)
                    header = {str(n + 1): f"{self.storage}/{place}/{n + 1}?{signed}" for n in range(count)}
                    header["chunk_size"] = str(self.part_size)
                    upload = {"href": f"{self.url}/{place}/complete", "header": header}
                answer["actions"] = {"upload": upload, "verify": {"href": f"{self.url}/verify/{name}"}}
            objects.append(answer)
        return {"transfer": "basic", "objects": objects}

    def complete(self, repo: Repo, oid: str, body: dict[str, Any]) -> dict[str, Any]:
        data = b"".join(self.parts.pop((oid, part["partNumber"])) for part in body["parts"])
        repo.large[oid] = data
        return {}

    def verify(self, repo: Repo, body: dict[str, Any]) -> dict[str, Any]:
        data = repo.large.get(body["oid"])
        if data is None or len(data) != body["size"] or hashlib.sha256(data).hexdigest() != body["oid"]:
            repo.large.pop(body["oid"], None)
            raise Refused(422, "The uploaded object is not the announced one")
        return {}

    def commit_request(self, name: str, repo: Repo, lines: list[dict[str, Any]]) -> dict[str, Any]:
        self.see_commits()
        header, *operations = lines
        if header["value"].get("parentCommit", repo.commits[-1][0]) != repo.commits[-1][0]:
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repo.files)
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "deletedFile":
                if value["path"] not in files:
                    raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
                del files[value["path"]]
            elif operation["key"] == "lfsFile":
                if value["oid"] not in repo.large:
                    raise Refused(400, "Your push was rejected because an LFS pointer pointed to no file")
                files[value["path"]] = File(len(repo.large[value["oid"]]), sha256=value["oid"])
            else:
                data = base64.b64decode(value["content"])
                if len(data) > REGULAR_LIMIT:
                    raise Refused(400, "Your push was rejected because it contains files larger than 10 MiB")
                files[value["path"]] = File(len(data), data)
        oid = repo.add(files)
        self.commit_times.append(self.now())
        return {"success": True, "commitUrl": f"{self.url}/{name}/commit/{oid}", "commitOid": oid}

    def entry(self, path: str, file: File) -> dict[str, Any]:
        lfs = {} if file.sha256 is None else {"lfs": {"oid": file.sha256, "size": file.size, "pointerSize": 134}}
        return {"type": "file", "path": path, "size": file.size, "oid": file.oid, **lfs}

    def tree(self, files: dict[str, File], folder: str) -> list[dict[str, Any]]:
        start = f"{folder}/" if folder else ""
        below = {path: file for path, file in files.items() if path.startswith(start)}
        if not below:
            raise Refused(404, f"{folder} does not exist", "EntryNotFound")
        parents = {"/".join(path.split("/")[:n]) for path in below for n in range(1, path.count("/") + 1)}
        folders = [parent for parent in parents if parent.startswith(start)]
        entries = [{"type": "directory", "path": p, "oid": "0" * 40, "size": 0} for p in sorted(folders)]
        return entries + [self.entry(path, file) for path, file in sorted(below.items())]

    def forget(self, repo: Repo, body: dict[str, Any]) -> dict[str, Any]:
        gone = {sha.removeprefix("file-") for sha in body["deletions"]["sha"]}
        if body["deletions"]["rewriteHistory"]:
            kept = [
                {path: file for path, file in files.items() if file.sha256 not in gone} for _, files in repo.commits
            ]
            repo.commits.clear()
            for files in kept:
                repo.add(files)
        for sha in gone:
            repo.large.pop(sha, None)
        return {}


@contextmanager
def running_hub(**options: Any) -> Iterator[FakeHub]:
    """The service, on a free port of this machine, until the end of the `with`."""
    from tests.fakes.hub_buckets import Buckets
    from tests.fakes.hub_http import server_of

    hub = FakeHub(**options)
    hub.buckets = Buckets(hub)
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

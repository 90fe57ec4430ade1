"""AI Studio's hub as one repository's folder: what aistudio-sdk is asked to do, and the questions that it has no
answer to.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from colabkeep.core.errors import MissingDependency, ObjectNotFound, StoreError, StoreFull, StoreUnavailable
from colabkeep.core.timeouts import within
from colabkeep.stores.hub.lfs import POINTER_BYTES, is_pointer_to, read_pointer
from colabkeep.stores.shared.process import Process
from colabkeep.stores.shared.retry import Asking, Patience, Words
from colabkeep.stores.shared.streaming import streamed

__all__ = [
    "CHILD",
    "INSTALL",
    "WORDS",
    "Fact",
    "Hub",
    "Sdk",
]

CHILD = (sys.executable, "-m", "colabkeep.stores.hub.aistudio_child")
"""The program of the child."""

INSTALL = 'Run: pip install "aistudio-sdk>=0.3.6"'
"""The first one with `upload_file`; 0.3.9 is the one that was read and tried."""

WORDS = Words(
    sign_in="Copy your access token from aistudio.baidu.com (your picture → 访问令牌) and type, in a cell that nobody "
    'else sees: import os, getpass; os.environ["AISTUDIO_ACCESS_TOKEN"] = getpass.getpass()',
    missing="Correct the name in storage=…: aistudio://owner/repo, the owner being your user number there or your "
    "organisation. The repository is made by colabkeep, private.",
)

_EXISTS = 10003  # aistudio_sdk.constant.err_code
_NO_TOKEN = 10002
_TELL = 60.0  # seconds: the SDK gives a question 30
_SLOWEST = 200_000  # bytes a second; a slower upload is given up
_REFUSED = re.compile(r"\b40[13]\b|unauthori[sz]ed|token (?:is )?(?:invalid|expired)|没有.{0,8}权限", re.IGNORECASE)
_FULL = re.compile(r"quota|storage (?:limit|full)|空间不足|超出.{0,6}限", re.IGNORECASE)


class Sdk:
    """For the repository `repo`, "owner/name", with this token. `environ` goes over this process's variables."""

    def __init__(
        self, repo: str, token: str, *, environ: Mapping[str, str] | None = None, command: Sequence[str] = CHILD
    ) -> None:
        self._repo = repo
        self._token = token
        self._place = f"aistudio://{repo}"
        self._process = Process(
            command,
            place=self._place,
            service="AI Studio",
            silent="It is tried again. If that goes on, see whether git.aistudio.baidu.com can be reached from here.",
            environ={**(environ or {}), "AISTUDIO_LOG": "info"},
        )

    def create(self) -> None:
        """Make the repository, private. That there is one already is no error.

        Raises:
            StoreError: it was refused, or made public all the same; `StoreUnavailable` where that may pass.
        """
        doing = "be created"
        answer = self._ask(doing, _TELL, operation="create")["answer"]
        code, said = answer.get("error_code"), f"{answer.get('error_msg')} ({answer.get('error_code')})"
        if code == _EXISTS:
            return
        if code == _NO_TOKEN or (code and _REFUSED.search(f"{said} {answer.get('biz_code')}")):
            raise StoreError(problem=self._could_not(doing, said), remedy=WORDS.sign_in)
        if code:
            raise StoreError(problem=self._could_not(doing, said), remedy=WORDS.missing)
        if answer.get("private") is not True:
            raise StoreError(
                problem=f"{self._place} was asked to be private, and AI Studio made it public. Nothing was uploaded.",
                remedy="Make it private on its page, or delete it there; then run again.",
            )

    def upload(self, path: str, name: str, size: int) -> str:
        """Have the SDK upload the file at `path` under `name`; what it said. It may have skipped the file."""
        seconds = 2 * _TELL + size / _SLOWEST
        said: str = self._ask(f"take {name!r} into", seconds, operation="upload", path=path, name=name)["said"]
        return said

    def refused(self, name: str, said: str) -> StoreError:
        """The error for a file that is not there after an upload, by what the SDK said meanwhile."""
        problem = f"{name!r} is not in {self._place} after its upload: aistudio-sdk skipped it ({said or 'no reason'})."
        if "forbidden" in said:
            return StoreError(
                problem=problem,
                remedy="AI Studio does not take files of this kind into this repository: choose another place.",
            )
        if "larger than 5MB" in said:
            return StoreError(
                problem=problem,
                remedy="Its file .gitattributes has to name it as a large one: add the line "
                "*.safetensors filter=lfs diff=lfs merge=lfs -text on the repository's page, and save again.",
            )
        if _FULL.search(said):
            return StoreFull(problem=problem, remedy="Make room there: saving goes on by itself.")
        if _REFUSED.search(said):
            return StoreError(problem=problem, remedy=WORDS.sign_in)
        return StoreUnavailable(problem=problem, remedy="It is tried again by itself. What is saved so far is safe.")

    def close(self) -> None:
        """Stop the SDK, in the middle of whatever it does."""
        self._process.close()

    def _ask(self, doing: str, timeout: float, **what: Any) -> dict[str, Any]:
        answer = self._process.ask(doing, {"token": self._token, "repo": self._repo, **what}, timeout)
        failed, said = answer.get("failed"), answer["said"]
        if failed in ("ModuleNotFoundError", "ImportError", "AttributeError"):
            raise MissingDependency(problem=f"aistudio-sdk cannot be used: {said}.", remedy=INSTALL)
        if failed is not None and what["operation"] == "create":
            raise StoreUnavailable(problem=self._could_not(doing, said), remedy="It is tried again by itself.")
        return answer

    def _could_not(self, doing: str, why: str) -> str:
        return f"{self._place} could not {doing}: {why}."


# It is a Gitea with large files in Baidu's object storage. The paths are those that aistudio-sdk 0.3.9 itself asks
# (`requests/hub.py`, `snapshot_download.py`, `file_download.py`, November 2026); the SDK's own functions for them
# print, have no timeout, and take every failure for "not there". Deleting is Gitea's own (`POST …/contents`, operation
# "delete", the request by which the SDK commits): no function of the SDK does it.


_READ = (10, 60)  # seconds: to connect, and between two pieces of an answer
_MOMENT = 1.0  # seconds that a question about durability may take
_BRANCH = "master"
_PAGE = 1000
_README = "README.md"  # AI Studio puts one into each repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What the hub states about a file: its size in bytes, git's name for it (for a large file, for its pointer), and
    the SHA-256 that its pointer names, or that the bytes have which it sent along; None where it told neither."""

    name: str
    size: int
    git: str
    sha256: str | None
    large: bool | None

    def is_small(self, git: str | None) -> bool:
        """Are these the bytes that git calls so, kept in git itself?"""
        return git is not None and self.git == git

    def points_to(self, sha256: str, size: int) -> bool:
        """Is it the pointer to a large file of this SHA-256 and size?"""
        return is_pointer_to(self.git, sha256, size) or (self.large is True and self.sha256 == sha256)


class Hub:
    """The folder `folder` of the model repository `repo`. `token` is "" where the hub is asked as anybody."""

    def __init__(
        self, repo: str, folder: str = "", *, token: str, endpoint: str, patience: Patience | None = None
    ) -> None:
        self.repo = repo
        self._folder = folder.strip("/")
        self._headers = {"Authorization": f"token {token}"} if token else {}
        self._api = f"{endpoint.rstrip('/')}/api/v1/repos/{repo}"
        self.patience = patience or Patience()
        self._ask = Asking(f"aistudio://{repo}", WORDS, self.patience)
        self._sizes: dict[str, tuple[int, str | None, bool | None]] = {}  # by git's name: it never changes

    def path(self, name: str) -> str:
        """The path in the repository."""
        return "/".join(part for part in (self._folder, name) if part)

    def exists(self) -> bool:
        """Is there such a repository, which this token may read?"""
        try:
            self._ask("be asked", lambda: self._get("/git/trees/master?per_page=1"), missing=ObjectNotFound)
        except ObjectNotFound:
            return False
        return True

    def is_public(self) -> bool:
        """Can it be read by others? Asked of the repository's own entry, and as somebody who is not signed in."""
        told: dict[str, Any] = {}
        with suppress(ObjectNotFound):  # it exists; a server that does not tell of repositories is asked otherwise
            told = self._ask("be asked", lambda: self._get("").json(), missing=ObjectNotFound)
        if told.get("private") is False:
            return True
        return self._ask("be asked", self._answers_anybody)

    def fact(self, name: str, *, again: bool = True) -> Fact | None:
        """What is stated about one file; None if it is not there."""
        try:
            return self._ask(f"tell of {name!r}", lambda: self._look(name), missing=ObjectNotFound, again=again)
        except ObjectNotFound:
            return None

    def glance(self, name: str) -> Fact | None:
        """The same in one attempt of a second; None also where it cannot be told."""
        try:
            return within(_MOMENT, lambda: self.fact(name, again=False))
        except (StoreError, TimeoutError):
            return None

    def tree(self, prefix: str) -> Iterator[Fact]:
        """All files below the prefix. What may be a pointer is looked at once, for the size of what it stands for."""
        start = f"{self.path(prefix)}/" if self.path(prefix) else ""
        cut = len(f"{self._folder}/") if self._folder else 0
        for entry in self._entries():
            path = str(entry["path"])
            if entry.get("type") != "blob" or not path.startswith(start) or path == _README:
                continue
            name, git, size = path[cut:], str(entry["sha"]), int(entry.get("size", 0))
            if git not in self._sizes and size <= POINTER_BYTES:
                self.fact(name)
            real, sha256, large = self._sizes.get(git, (size, None, None))
            yield Fact(name=name, size=real, git=git, sha256=sha256, large=large)

    def reader(self, fact: Fact) -> BinaryIO:
        """A file, opened for reading."""
        return streamed(fact.size, lambda start: self._media(fact.name, start), self._ask, fact.name)

    def stored(self, fact: Fact, *, again: bool = True) -> tuple[int, str]:
        """What the object storage states about a large file: how many bytes it has, and its ETag, "" if none.

        Of a file that was put there in one piece that is the MD5 of its bytes (Baidu's BOS, as S3's).
        """

        def ask() -> tuple[int, str]:
            with self._media(fact.name, 0, last=0) as answer:
                if answer.status_code == 416:  # there is no first byte
                    return 0, ""
                answer.raise_for_status()
                total = str(answer.headers.get("Content-Range", "")).rpartition("/")[2]
                told = total if total.isdigit() else answer.headers.get("Content-Length", "0")
                return int(told), str(answer.headers.get("ETag", "")).strip('"-').lower()

        return self._ask(f"tell of {fact.name!r}", ask, missing=ObjectNotFound, again=again)

    def states(self, fact: Fact, sha256: str, size: int) -> bool | None:
        """Does the hub name these bytes, and hold as many? None where it cannot be told within a second."""
        if fact.size != size or (fact.sha256 is not None and fact.sha256 != sha256):
            return False
        if fact.large is False:
            return True
        try:
            if fact.sha256 is None and not fact.points_to(sha256, size):
                seen = self.glance(fact.name)
                return None if seen is None or seen.sha256 is None else seen.sha256 == sha256
            return within(_MOMENT, lambda: self.stored(fact, again=False))[0] == size
        except (StoreError, TimeoutError):
            return None

    def reads_as(self, fact: Fact) -> str:
        """The SHA-256 of its bytes, read back."""
        digest = hashlib.sha256()
        with self.reader(fact) as reader:
            while piece := reader.read(2**20):
                digest.update(piece)
        return digest.hexdigest()

    def delete(self, fact: Fact) -> None:
        """Take the file out of the newest commit; the history keeps it."""
        body = {
            "branch": _BRANCH,
            "message": "colabkeep",
            "files": [{"operation": "delete", "path": self.path(fact.name), "sha": fact.git}],
        }
        self._ask(f"delete {fact.name!r}", lambda: self._send("POST", "/contents", json=body), missing=ObjectNotFound)

    def _look(self, name: str) -> Fact:
        told = self._get(f"/contents/{self.path(name)}?ref={_BRANCH}").json()
        if not isinstance(told, dict) or told.get("type", "file") != "file":
            raise ObjectNotFound(problem=f"{name!r} is a folder in aistudio://{self.repo}.", remedy="Name a file.")
        size, git = int(told["size"]), str(told["sha"])
        data = base64.b64decode(told.get("content") or "") if told.get("encoding", "base64") == "base64" else b""
        pointer = read_pointer(data)
        if pointer is not None:
            self._sizes[git] = (pointer[1], pointer[0], True)
        elif len(data) == size:
            self._sizes[git] = (size, hashlib.sha256(data).hexdigest(), False)
        else:
            self._sizes[git] = (size, None, None)
        real, sha256, large = self._sizes[git]
        return Fact(name=name, size=real, git=git, sha256=sha256, large=large)

    def _entries(self) -> Iterator[dict[str, Any]]:
        page, more = 1, True
        while more:
            told = self._ask("be listed", partial(self._page, page), missing=ObjectNotFound)
            yield from told.get("tree") or ()
            page, more = page + 1, bool(told.get("truncated"))

    def _page(self, number: int) -> dict[str, Any]:
        path = f"/git/trees/{_BRANCH}?recursive=true&page={number}&per_page={_PAGE}"
        told: dict[str, Any] = self._get(path).json()
        return told

    def _answers_anybody(self) -> bool:
        import requests

        answer = requests.get(f"{self._api}/git/trees/{_BRANCH}?per_page=1", timeout=_READ)
        if answer.status_code in (401, 403, 404):
            return False
        answer.raise_for_status()
        return True

    def _media(self, name: str, start: int, last: int | None = None) -> Any:
        """The bytes from `start` on. Large ones come from another host, to which requests does not send the token."""
        import requests

        headers = {
            **self._headers,
            "Accept-Encoding": "identity",
            "Range": f"bytes={start}-{'' if last is None else last}",
        }
        url = f"{self._api}/media/{self.path(name)}?ref={_BRANCH}"
        answer = requests.get(url, headers=headers, timeout=_READ, stream=True)
        if start and answer.status_code == 200:  # it sends all, whatever was asked for
            _skip(answer.raw, start)
        return answer

    def _get(self, path: str) -> Any:
        return self._send("GET", path)

    def _send(self, method: str, path: str, **words: Any) -> Any:
        import requests

        answer = requests.request(method, f"{self._api}{path}", headers=self._headers, timeout=_READ, **words)
        answer.raise_for_status()
        return answer


def _skip(raw: Any, count: int) -> None:
    while count:
        piece = raw.read(min(count, 2**20))
        if not piece:
            raise ConnectionError(f"it broke off {count} bytes before what was asked for")
        count -= len(piece)

"""AI Studio's hub: what aistudio-sdk is asked to do, and the questions that it has no answer to; and how an aistudio://
URL becomes a store.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from colabkeep.core.errors import (
    MissingDependency,
    ObjectNotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UsageError,
)
from colabkeep.core.rate_limits import Budget, Limit
from colabkeep.core.system import Environment
from colabkeep.core.timeouts import within
from colabkeep.stores.base import Receipt, Source, StoreContext, changed, shown
from colabkeep.stores.hub.store import (
    MOMENT,
    POINTER_BYTES,
    TIMEOUTS,
    Addition,
    Fact,
    HubStore,
    git_digest,
    is_pointer_to,
    place,
    read_pointer,
)
from colabkeep.stores.shared.process import Process
from colabkeep.stores.shared.retry import Asking, Patience, Words, checked
from colabkeep.stores.shared.streaming import digest_of, download

CHILD = (sys.executable, "-m", "colabkeep.stores.hub.aistudio_child")
"""The program of the child."""

_INSTALL = 'Run: pip install "aistudio-sdk>=0.3.6"'  # the first one with `upload_file`; 0.3.9 was read and tried
_WORDS = Words(
    sign_in="Copy your access token from aistudio.baidu.com (your picture → 访问令牌) and type, in a cell that nobody "
    'else sees: import os, getpass; os.environ["AISTUDIO_ACCESS_TOKEN"] = getpass.getpass()',
    missing="Correct the name in storage=…: aistudio://owner/repo, the owner being your user number there or your "
    "organisation. The repository is made by colabkeep, private.",
    install=_INSTALL,
)
_EXISTS = 10003  # aistudio_sdk.constant.err_code
_NO_TOKEN = 10002
_TELL = 60.0  # seconds: the SDK gives a question 30
_SLOWEST = 200_000  # bytes a second; a slower upload is given up
_REFUSED = re.compile(r"\b40[13]\b|unauthori[sz]ed|token (?:is )?(?:invalid|expired)|没有.{0,8}权限", re.IGNORECASE)
_FULL = re.compile(r"quota|storage (?:limit|full)|空间不足|超出.{0,6}限", re.IGNORECASE)


# It is a Gitea with large files in Baidu's object storage. The paths are those that aistudio-sdk 0.3.9 itself asks
# (`requests/hub.py`, `snapshot_download.py`, `file_download.py`, November 2026); the SDK's own functions for them
# print, have no timeout, and take every failure for "not there". Deleting is Gitea's own (`POST …/contents`, operation
# "delete", the request by which the SDK commits): no function of the SDK does it.


_BRANCH = "master"
_PAGE = 1000
_README = "README.md"  # AI Studio puts one into each repository
_SMALL = 5 * 2**20  # bytes; up to which AI Studio keeps a file in git itself


class _File(NamedTuple):
    """A file to be uploaded: where it lies, and its MD5, as an object storage states it."""

    path: str
    md5: str


class AIStudio:
    """The folder `folder` of the model repository `repo`, "owner/name". `token` is "" where the hub is asked as
    anybody; `environ` goes over this process's variables for the SDK.

    aistudio-sdk reports success for files that it skipped, so nothing it says counts. Of a large file, the pointer has
    to name the SHA-256 and size, and the object storage the size and the MD5; where it states none, the bytes are read
    back once. Of a large file that another session put, pointer and size are taken.

    Each file is a commit. The history keeps what was deleted, and no way to take it out is known.
    """

    batches = False
    commits: Limit | None = None
    budget: Budget | None = None
    largest = 50 * 2**30  # aistudio_sdk/config.py 0.3.9: LFS_FILE_SIZE_LIMIT
    trouble: str | None = None

    def __init__(
        self,
        repo: str,
        folder: str,
        *,
        token: str,
        endpoint: str,
        environ: Mapping[str, str],
        patience: Patience | None = None,
    ) -> None:
        self._repo = repo
        self._url = f"aistudio://{repo}"
        self._token = token
        self._process = Process(
            CHILD,
            place=self._url,
            service="AI Studio",
            silent="It is tried again. If it keeps failing, see if git.aistudio.baidu.com can be reached from here.",
            environ={**environ, "AISTUDIO_LOG": "info"},
        )
        self._folder = folder
        self._headers = {"Authorization": f"token {token}"} if token else {}
        self._api = f"{endpoint.rstrip('/')}/api/v1/repos/{repo}"
        self.patience = patience or Patience()
        self._ask = Asking(self._url, _WORDS, self.patience)
        self._sizes: dict[str, tuple[int, str | None, bool | None]] = {}  # by git's name: it never changes
        self._turn = threading.Lock()
        self._is_private = False

    def prepare(self) -> str:
        """There are no ids of commits here. A repository that others can read is refused."""
        self._see_token()
        with self._turn:
            if self._is_private:
                return ""
            if not self._exists():
                self.patience(self._create)
                if not self._exists():
                    raise StoreError(
                        problem=f"{self._url} was made, and is not there: the token seems to be another user's.",
                        remedy=_WORDS.missing,
                    )
            if self._ask("be asked", self._answers_anybody):
                raise StoreError(
                    problem=f"{self._url} is public: anybody could read your checkpoints. Nothing was uploaded.",
                    remedy="Make it private on its page, or name another repository: colabkeep makes it, private.",
                )
            self._is_private = True
        return ""

    def facts(self, names: Iterable[str], at: str | None = None) -> Mapping[str, Fact]:
        found = {name: self._fact(name) for name in names}
        return {name: fact for name, fact in found.items() if fact is not None}

    def tree(self, prefix: str) -> Iterator[Fact]:
        """What may be a pointer is looked at once, for the size of what it stands for."""
        start = f"{self._path(prefix)}/" if self._path(prefix) else ""
        cut = len(f"{self._folder}/") if self._folder else 0
        try:
            entries = list(self._entries())
        except ObjectNotFound:
            self._see_token()
            return
        for entry in entries:
            path = str(entry["path"])
            if entry.get("type") != "blob" or not path.startswith(start) or path == _README:
                continue
            name, git, size = path[cut:], str(entry["sha"]), int(entry.get("size", 0))
            if git not in self._sizes and size <= POINTER_BYTES:
                self._fact(name)
            real, sha256, large = self._sizes.get(git, (size, None, None))
            yield Fact(name=name, size=real, git=git, sha256=sha256, large=large)

    def reader(self, fact: Fact) -> BinaryIO:
        doing = f"read {fact.name!r}"
        return download(
            fact.size,
            lambda start: self._media(fact.name, start).raw,
            lambda call: self._ask(doing, call, missing=ObjectNotFound),
        )

    @contextmanager
    def upload(self, name: str, source: Source) -> Iterator[Addition]:
        """The SDK takes files only, and judges by the ending of their names."""
        with tempfile.TemporaryDirectory(prefix="colabkeep-aistudio-") as folder:
            path = Path(folder) / name.rpartition("/")[2]
            md5, sha256, came = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
            with path.open("wb") as file:
                for chunk in source.chunks():
                    came += len(chunk)
                    file.write(chunk)
                    md5.update(chunk)
                    sha256.update(chunk)
            if came != source.size:
                raise changed(name, source.size, came)
            yield Addition(
                name=name,
                size=came,
                sha256=sha256.hexdigest(),
                git=git_digest(path.read_bytes()) if came <= _SMALL else None,
                handle=_File(str(path), md5.hexdigest()),
            )

    def commit(self, additions: Iterable[Addition], deletions: Iterable[Fact], parent: str) -> str:
        """One commit for all deletions, and one for each addition."""
        files = [{"operation": "delete", "path": self._path(fact.name), "sha": fact.git} for fact in deletions]
        if files:
            body = {"branch": _BRANCH, "message": "colabkeep", "files": files}
            with suppress(ObjectNotFound):  # somebody else was faster, or our own first attempt
                self._ask("delete", lambda: self._send("POST", "/contents", json=body), missing=ObjectNotFound)
        for addition in additions:
            self._see_token()
            path, seconds = self._path(addition.name), 2 * _TELL + addition.size / _SLOWEST
            said = self._sdk(f"take {path!r} into", seconds, operation="upload", path=addition.handle.path, name=path)
            if self._fact(addition.name) is None:
                raise self._skipped(addition.name, said)
        return ""

    def holds(self, fact: Fact, addition: Addition) -> bool:
        if addition.git is not None and fact.git == addition.git:
            return True
        if not _points_to(fact, addition.sha256, addition.size):
            return False
        size, etag = self._stored(fact)
        return size == addition.size and (
            etag == addition.handle.md5 or digest_of(self.reader(fact)) == addition.sha256
        )

    def states(self, receipt: Receipt, fact: Fact | None) -> bool | None:
        fact = fact or self._glance(receipt.name)
        if fact is None:
            return None
        if fact.size != receipt.size or (fact.sha256 is not None and fact.sha256 != receipt.sha256):
            return False
        if fact.large is False:
            return True
        if fact.sha256 is None and not _points_to(fact, receipt.sha256, receipt.size):
            seen = self._glance(fact.name)
            return None if seen is None or seen.sha256 is None else seen.sha256 == receipt.sha256
        try:
            return within(MOMENT, lambda: self._stored(fact, again=False))[0] == receipt.size
        except (StoreError, TimeoutError):
            return None

    def give_back(self, deleted: Iterable[Fact], waiting: Iterable[str]) -> bool:
        return False

    def close(self) -> None:
        self._process.close()

    def _sdk(self, doing: str, seconds: float, **what: Any) -> Any:
        """What the SDK answers to one request."""
        request = {"token": self._token, "repo": self._repo, **what}
        return self._ask(doing, lambda: self._process.ask(doing, request, seconds), again=False)

    def _create(self) -> None:
        """Make the repository, private. That there is one already is no error.

        Raises:
            StoreError: it was refused, or made public all the same.
        """
        answer = self._sdk("be created", _TELL, operation="create")
        code, said = answer.get("error_code"), f"{answer.get('error_msg')} ({answer.get('error_code')})"
        if code == _EXISTS:
            return
        if code:
            refused = code == _NO_TOKEN or _REFUSED.search(f"{said} {answer.get('biz_code')}")
            remedy = _WORDS.sign_in if refused else _WORDS.missing
            raise StoreError(problem=f"{self._url} could not be created: {said}.", remedy=remedy)
        if answer.get("private") is not True:
            raise StoreError(
                problem=f"{self._url} was asked to be private, and AI Studio made it public. Nothing was uploaded.",
                remedy="Make it private on its page, or delete it there; then run again.",
            )

    def _skipped(self, name: str, said: str) -> StoreError:
        """The error for a file that is not there after an upload, by what the SDK said meanwhile."""
        problem = f"{name!r} is not in {self._url} after its upload: aistudio-sdk skipped it ({said or 'no reason'})."
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
            return StoreFull(problem=problem, remedy="Make room there: saving resumes by itself.")
        if _REFUSED.search(said):
            return StoreError(problem=problem, remedy=_WORDS.sign_in)
        return StoreUnavailable(problem=problem, remedy="It is tried again by itself. What is saved so far is safe.")

    def _see_token(self) -> None:
        """To a stranger, a private repository looks like none."""
        if not self._token:
            raise StoreError(
                problem=f"{self._url} cannot be used without a token: nobody is signed in to AI Studio.",
                remedy=_WORDS.sign_in,
            )

    def _path(self, name: str) -> str:
        return "/".join(part for part in (self._folder, name) if part)

    def _exists(self) -> bool:
        """Is there such a repository, which this token may read?"""
        try:
            self._ask("be asked", lambda: self._get("/git/trees/master?per_page=1"), missing=ObjectNotFound)
        except ObjectNotFound:
            return False
        return True

    def _fact(self, name: str, *, again: bool = True) -> Fact | None:
        """What is stated about one file; None if it is not there."""
        try:
            return self._ask(f"tell of {name!r}", lambda: self._look(name), missing=ObjectNotFound, again=again)
        except ObjectNotFound:
            self._see_token()
            return None

    def _glance(self, name: str) -> Fact | None:
        """The same in one attempt of a second; None also where it cannot be told."""
        try:
            return within(MOMENT, lambda: self._fact(name, again=False))
        except (StoreError, TimeoutError):
            return None

    def _stored(self, fact: Fact, *, again: bool = True) -> tuple[int, str]:
        """What the object storage states about a large file: how many bytes it has, and its ETag, "" if none.

        Of a file that was put there in one piece that is the MD5 of its bytes (Baidu's BOS, as S3's).
        """

        def ask() -> tuple[int, str]:
            with self._media(fact.name, 0, last=0, accept=(416,)) as answer:
                if answer.status_code == 416:  # there is no first byte
                    return 0, ""
                total = str(answer.headers.get("Content-Range", "")).rpartition("/")[2]
                told = total if total.isdigit() else answer.headers.get("Content-Length", "0")
                return int(told), str(answer.headers.get("ETag", "")).strip('"-').lower()

        return self._ask(f"tell of {fact.name!r}", ask, missing=ObjectNotFound, again=again)

    def _look(self, name: str) -> Fact:
        told = self._get(f"/contents/{self._path(name)}?ref={_BRANCH}").json()
        if not isinstance(told, dict) or told.get("type", "file") != "file":
            raise ObjectNotFound(problem=f"{name!r} is a folder in {self._url}.", remedy="Name a file.")
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
        """Can it be read by somebody who is not signed in?"""
        import requests

        answer = requests.get(f"{self._api}/git/trees/{_BRANCH}?per_page=1", timeout=TIMEOUTS)
        if answer.status_code in (401, 403, 404):
            return False
        checked(answer)
        return True

    def _media(self, name: str, start: int, *, last: int | None = None, accept: Sequence[int] = ()) -> Any:
        """The bytes from `start` on. Large ones come from another host, to which requests does not send the token."""
        import requests

        headers = {
            **self._headers,
            "Accept-Encoding": "identity",
            "Range": f"bytes={start}-{'' if last is None else last}",
        }
        url = f"{self._api}/media/{self._path(name)}?ref={_BRANCH}"
        answer = requests.get(url, headers=headers, timeout=TIMEOUTS, stream=True)
        if answer.status_code not in accept:
            checked(answer)
        if start and answer.status_code == 200:  # it sends all, whatever was asked for
            _skip(answer.raw, start)
        return answer

    def _get(self, path: str) -> Any:
        return self._send("GET", path)

    def _send(self, method: str, path: str, **words: Any) -> Any:
        import requests

        url = f"{self._api}{path}"
        return checked(requests.request(method, url, headers=self._headers, timeout=TIMEOUTS, **words))


def _points_to(fact: Fact, sha256: str, size: int) -> bool:
    """Is it the pointer to a large file of this SHA-256 and size?"""
    return is_pointer_to(fact.git, sha256, size) or (fact.large is True and fact.sha256 == sha256)


def _skip(raw: Any, count: int) -> None:
    while count:
        piece = raw.read(min(count, 2**20))
        if not piece:
            raise ConnectionError(f"it broke off {count} bytes before what was asked for")
        count -= len(piece)


_HOST = "https://git.aistudio.baidu.com"  # aistudio_sdk/config.py 0.3.9
_TOKEN = "AISTUDIO_ACCESS_TOKEN"  # noqa: S105 - its name


def open_url(
    url: str,
    context: StoreContext = StoreContext(),
    *,
    token: str | None = None,
    endpoint: str | None = None,
    patience: Patience | None = None,
) -> HubStore:
    """The store at an aistudio:// URL. Nothing is contacted yet.

    `token` is looked for, where none is given, as aistudio-sdk does (the variable AISTUDIO_ACCESS_TOKEN, before the
    file that its login leaves), and among the platform's secrets. It is kept in memory, nowhere else. `endpoint` is
    another server than AI Studio's, for its git and its models; by default what STUDIO_GIT_HOST says.

    Raises:
        UsageError: it names no repository.
        MissingDependency: aistudio-sdk is not installed.
    """
    found = place(url, "aistudio://")
    if found is None:
        raise UsageError(
            problem=f"storage={shown(url)} names no repository of models on AI Studio.",
            remedy="Write aistudio://owner/repo, or aistudio://owner/repo/folder, the owner being your user number.",
        )
    if find_spec("aistudio_sdk") is None:
        raise MissingDependency(problem="The store for aistudio:// cannot be loaded: no aistudio-sdk.", remedy=_INSTALL)
    here = Environment.here()
    token = token or here.environ.get(_TOKEN, "") or context.find_secret(_TOKEN) or _cached(here)
    host = endpoint or here.environ.get("STUDIO_GIT_HOST", "") or _HOST
    own = {} if endpoint is None else {"STUDIO_GIT_HOST": endpoint, "STUDIO_MODEL_API_URL_PREFIX": endpoint}
    hub = AIStudio(*found, token=token, endpoint=host, environ=own, patience=patience)
    return HubStore(hub, url.strip().rstrip("/"))


def _cached(here: Environment) -> str:
    """The token that `aistudio config --token` keeps in the user's cache; "" if there is none."""
    home = here.environ.get("AISTUDIO_CACHE_HOME") or here.environ.get("HOME", "")
    return here.text(f"{home}/.cache/aistudio/.auth/token", limit=4096).strip() if home else ""

"""The Hub as one repository's folder: each call to huggingface_hub with a deadline, tried again, in our words; and
space given back from its history.
"""

from __future__ import annotations

import copy
import hashlib
import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from colabkeep.core.errors import ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.core.timeouts import within
from colabkeep.stores.base import Source
from colabkeep.stores.hub.lfs import SourceFile, git_digest
from colabkeep.stores.shared.retry import Asking, Patience, Words
from colabkeep.stores.shared.streaming import streamed

__all__ = [
    "Addition",
    "Fact",
    "Hub",
    "Moved",
    "Space",
    "reads_as",
]

_T = TypeVar("_T")

_DEADLINE = 120.0  # seconds without any progress
_MOMENT = 1.0  # seconds that a question about durability may take
_READ = (10, 60)  # seconds: to connect, and between two pieces of an answer
_IN_MEMORY = 12 * 2**20  # bytes; above the 10 MB up to which the Hub keeps a file in git itself
_BRANCH = "main"
_LOUD = ("huggingface_hub.utils._http", "huggingface_hub._commit_api", "huggingface_hub.hf_api", "huggingface_hub.lfs")

WORDS = Words(
    sign_in="Make a token with the right to write on huggingface.co/settings/tokens, store it as the notebook's secret "
    "HF_TOKEN, and give the notebook access to it; on Kaggle also set os.environ['HF_TOKEN'] from the secret.",
    missing="Correct the name in storage=…: hf://owner/name, the owner being you or your organisation. The repository "
    "is made by colabkeep, private.",
)


class Moved(StoreUnavailable):
    """Somebody else committed in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What the Hub states about a file: its size, and the SHA-256 of a large one, the git digest of a small one."""

    name: str
    size: int
    sha256: str | None
    git: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """A file to be committed. `uploaded`: the Hub has its bytes already; else they are in memory, and few."""

    name: str
    size: int
    sha256: str
    git: str
    uploaded: bool
    operation: Any

    @property
    def data(self) -> bytes | None:
        """The bytes that are still in memory."""
        held = self.operation.path_or_fileobj
        return held.getvalue() if isinstance(held, io.BytesIO) and not self.uploaded else None

    def is_there(self, fact: Fact) -> bool:
        """Does the Hub state just these bytes?"""
        same = fact.sha256 == self.sha256 if fact.sha256 is not None else fact.git == self.git
        return same and fact.size == self.size


class Hub:
    """The folder `folder` of the model repository `repo`. `token` is None where the Hub is asked as anybody."""

    def __init__(
        self,
        repo: str,
        folder: str = "",
        *,
        token: str | None = None,
        endpoint: str | None = None,
        patience: Patience | None = None,
        deadline: float = _DEADLINE,
    ) -> None:
        from huggingface_hub import HfApi

        self._api = HfApi(endpoint=endpoint, token=token or False)
        self._token = token
        self._repo = repo
        self._folder = folder.strip("/")
        self._deadline = deadline
        self.patience = patience or Patience()
        self._ask = Asking(f"hf://{repo}", WORDS, self.patience)

    @property
    def hiccups(self) -> int:
        """How many attempts have failed in passing since the beginning."""
        return self._ask.hiccups

    def head(self) -> str:
        """The newest commit's id.

        Raises:
            ObjectNotFound: there is no such repository.
        """
        refs = self._call("be asked", lambda: self._api.list_repo_refs(self._repo), missing=ObjectNotFound)
        commits: list[str] = [branch.target_commit for branch in refs.branches if branch.name == _BRANCH]
        if not commits:
            raise StoreError(
                problem=f"hf://{self._repo} has no branch {_BRANCH!r}.",
                remedy="Give it one on its page, or choose another repository in storage=…: colabkeep makes a new one.",
            )
        return commits[0]

    def create(self) -> None:
        """Make the repository, private; it is no error that it is there."""
        self._call("be created", lambda: self._api.create_repo(self._repo, private=True, exist_ok=True))

    def facts(self, names: Iterable[str], at: str = _BRANCH) -> Mapping[str, Fact]:
        """Those of the files that are there at a commit."""
        paths = [self._path(name) for name in names]
        if not paths:
            return {}
        found = self._call(
            "be asked for files",
            lambda: self._api.get_paths_info(self._repo, paths, revision=at),
            missing=ObjectNotFound,
        )
        facts = map(self._fact, found)
        return {fact.name: fact for fact in facts if fact is not None}

    def glance(self, name: str) -> Fact | None:
        """What is stated about one file, in one attempt of a second; None also where it cannot be told."""
        path = self._path(name)

        def look() -> list[Any]:
            with _quiet():
                return list(self._api.get_paths_info(self._repo, [path], revision=_BRANCH))

        try:
            found = self._ask("be asked for a file", lambda: within(_MOMENT, look), again=False)
        except StoreError:
            return None
        return next((fact for fact in map(self._fact, found) if fact is not None), None)

    def tree(self, prefix: str) -> Iterator[Fact]:
        """All files below the prefix.

        Raises:
            ObjectNotFound: there is no such folder, or no such repository.
        """
        path = self._path(prefix) or None
        entries = self._call(
            f"list {prefix!r}",
            lambda: list(self._api.list_repo_tree(self._repo, path, recursive=True, revision=_BRANCH)),
            missing=ObjectNotFound,
        )
        yield from (fact for fact in map(self._fact, entries) if fact is not None)

    def digests(self) -> set[str]:
        """The SHA-256 of all large files of the repository, also outside of the folder."""
        entries = self._call(
            "be listed",
            lambda: list(self._api.list_repo_tree(self._repo, recursive=True, revision=_BRANCH)),
        )
        return {fact.sha256 for fact in map(self._fact, entries) if fact is not None and fact.sha256 is not None}

    def reader(self, fact: Fact) -> BinaryIO:
        """A file, opened for reading."""
        import requests
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self._repo, self._path(fact.name), revision=_BRANCH, endpoint=self._api.endpoint)
        headers = {"Accept-Encoding": "identity"}
        if self._token is not None:
            # The Hub redirects to the storage of large files, another host: requests takes the token off then.
            headers["Authorization"] = f"Bearer {self._token}"

        def begin(start: int) -> Any:
            return requests.get(url, headers={**headers, "Range": f"bytes={start}-"}, timeout=_READ, stream=True)

        return streamed(fact.size, begin, self._ask, fact.name)

    def upload(self, name: str, source: Source) -> Addition:
        """Hand the bytes over. Large ones are at the Hub then, though not yet in any commit.

        Raises:
            StoreError: what the promise of `put` says.
        """
        from huggingface_hub import CommitOperationAdd

        if source.size <= _IN_MEMORY:
            data = b"".join(map(bytes, source.chunks()))
            check_size(name, source, len(data))
            file: Any = io.BytesIO(data)
            operation: Any = CommitOperationAdd(self._path(name), file)
            git, moved = git_digest(data), None
        else:
            file = stream = SourceFile(name, source)
            operation = _streamed(self._path(name), source, stream)
            git, moved = "", stream
        try:
            self._call(f"take {name!r}", lambda: self._preupload(operation), moved=moved)
        except BaseException:
            if moved is not None:
                moved.abandon()
                if moved.failure is not None and not isinstance(moved.failure, ConnectionAbortedError):
                    raise moved.failure from None
            raise
        uploaded = operation.path_or_fileobj is not file  # huggingface_hub lets go of what it has uploaded
        if moved is not None and not uploaded:  # larger than the Hub takes into git, by its rules of 2026
            moved.seek(0)
            git = git_digest(moved.read())
            moved.seek(0)
        return Addition(
            name=name, size=source.size, sha256=source.sha256, git=git, uploaded=uploaded, operation=operation
        )

    def commit(self, additions: Iterable[Addition], deletions: Iterable[str], parent: str) -> str:
        """Make one commit on top of `parent`; its id.

        Raises:
            Moved: `parent` is not the newest commit any more.
        """
        from huggingface_hub import CommitOperationDelete

        operations: list[Any] = [CommitOperationDelete(self._path(name)) for name in deletions]
        operations += [_again(addition) for addition in additions]

        def send() -> str:
            try:
                done = self._api.create_commit(
                    self._repo, operations, commit_message="colabkeep", revision=_BRANCH, parent_commit=parent
                )
            except OSError as error:
                if getattr(getattr(error, "response", None), "status_code", 0) == 412:
                    problem = f"hf://{self._repo} got another commit in between."
                    raise Moved(problem=problem, remedy="It is tried again by itself.") from error
                raise
            return done.oid

        return self._call("commit", send, again=False)

    def other_references(self) -> bool:
        """Are there other branches, or tags? They may need what the newest commit does not."""
        refs = self._call("list its branches", lambda: self._api.list_repo_refs(self._repo))
        return bool(refs.tags) or any(branch.name != _BRANCH for branch in refs.branches)

    def free(self, digests: set[str]) -> None:
        """Give back the space of large files, by their SHA-256, for good: else the history keeps them."""

        def forget() -> None:
            found = self._api.list_lfs_files(self._repo)
            self._api.permanently_delete_lfs_files(self._repo, [file for file in found if file.oid in digests])

        self._call("give back space", forget)

    def _preupload(self, operation: Any) -> None:
        file = operation.path_or_fileobj
        file.seek(0)
        self._api.preupload_lfs_files(self._repo, [operation], revision=_BRANCH)

    def _call(
        self,
        doing: str,
        call: Callable[[], _T],
        *,
        again: bool = True,
        missing: type[StoreError] = StoreError,
        moved: SourceFile | None = None,
    ) -> _T:
        def quietly() -> _T:
            with _quiet():
                return call()

        last_moved = (lambda: moved.moved) if moved is not None else (lambda: 0.0)
        return self._ask(doing, lambda: within(self._deadline, quietly, moved=last_moved), again=again, missing=missing)

    def _path(self, name: str) -> str:
        return "/".join(part for part in (self._folder, name) if part)

    def _fact(self, entry: Any) -> Fact | None:
        """What a file's entry says; None for a folder's."""
        if getattr(entry, "size", None) is None:
            return None
        name = entry.path.removeprefix(f"{self._folder}/") if self._folder else entry.path
        return Fact(name=name, size=entry.size, sha256=entry.lfs.sha256 if entry.lfs else None, git=entry.blob_id)


def reads_as(hub: Hub, fact: Fact, sha256: str) -> bool | None:
    """Read a file that git keeps, of which the Hub states no SHA-256: has it this one? None: it is large, or does not
    come within a second."""
    if fact.size > _IN_MEMORY:
        return None

    def fetch() -> bytes:
        with hub.reader(fact) as reader:
            return reader.read()

    try:
        data = within(_MOMENT, fetch)
    except (StoreError, TimeoutError):
        return None
    return git_digest(data) == fact.git and hashlib.sha256(data).hexdigest() == sha256


def check_size(name: str, source: Source, came: int) -> None:
    """That a source gave as many bytes as it announced.

    Raises:
        StoreError: it did not.
    """
    if came != source.size:
        raise StoreError(
            problem=f"{name!r} was to have {source.size} bytes and came with {came}; it is not kept.",
            remedy="Its data changed while it was being saved: leave arrays and files alone until their save is done.",
        )


def _streamed(path: str, source: Source, stream: SourceFile) -> Any:
    """The operation for a stream whose digest is known: huggingface_hub would read it once more to compute it."""
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.lfs import UploadInfo

    operation = CommitOperationAdd(path, b"")
    operation.path_or_fileobj = stream  # type: ignore[assignment]
    operation.upload_info = UploadInfo(size=source.size, sample=stream.sample, sha256=bytes.fromhex(source.sha256))
    return operation


def _again(addition: Addition) -> Any:
    """The operation as if it had never been used: a commit marks those it takes, also one that nobody waits for."""
    operation = copy.copy(addition.operation)
    if isinstance(operation.path_or_fileobj, io.BytesIO):
        operation.path_or_fileobj = io.BytesIO(operation.path_or_fileobj.getvalue())
    return operation


@contextmanager
def _quiet() -> Iterator[None]:
    """What huggingface_hub would print about this thread's requests is for us to say; it prints signed addresses."""
    me = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        return record.thread != me

    loggers = [logging.getLogger(name) for name in _LOUD]
    for logger in loggers:
        logger.addFilter(keep)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(keep)


class Space:
    """`trouble` says, in a sentence for the user, why space is not given back; None when it is."""

    def __init__(self, hub: Hub, url: str) -> None:
        self._hub = hub
        self._url = url
        self._garbage: set[str] = set()  # digests of large files that were deleted
        self.trouble: str | None = None

    def deleted(self, digests: Iterable[str]) -> None:
        """These large files were deleted, under one name at least."""
        self._garbage.update(digests)

    def give_back(self, waiting: Iterable[str]) -> bool:
        """Take out of the history what nothing needs, nor the digests `waiting` for their commit. Was it written anew?
        Where that fails, the next one tries again."""
        if not self._garbage:
            return False
        try:
            if self._hub.other_references():
                self.trouble = (
                    f"{self._url} has other branches or tags, which may need deleted checkpoints: their space is not "
                    "given back. Delete these references on the repository's page if you do not need them."
                )
                return False
            garbage = self._garbage - self._hub.digests() - set(waiting)
            if garbage:
                self._hub.free(garbage)
        except StoreError as error:
            self.trouble = f"The space of deleted checkpoints is not given back yet: {error.problem}"
            return False
        self._garbage.clear()
        self.trouble = None
        return bool(garbage)

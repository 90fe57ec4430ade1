"""The Hugging Face Hub: each call to huggingface_hub with a deadline, tried again, in our words; and how a hf:// URL
becomes a store.
"""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar

from colabkeep.core.errors import MissingDependency, ObjectNotFound, StoreError, UsageError
from colabkeep.core.rate_limits import HUB, HUB_COMMITS, Budget, Limit
from colabkeep.core.timeouts import within
from colabkeep.stores.base import Receipt, Source, StoreContext, changed, shown
from colabkeep.stores.fsspec.backend import Backend, Kind
from colabkeep.stores.fsspec.store import FsspecStore
from colabkeep.stores.hub.store import MOMENT, TIMEOUTS, Addition, Fact, HubStore, Moved, git_digest, place
from colabkeep.stores.shared.retry import Asking, Patience, Words, checked, quiet
from colabkeep.stores.shared.streaming import SourceReader, download

_T = TypeVar("_T")

_DEADLINE = 120.0  # seconds without any progress
_IN_MEMORY = 12 * 2**20  # bytes; above the 10 MB up to which the Hub keeps a file in git itself
_SAMPLE = 512  # bytes that the Hub looks at to tell text from binary
_BRANCH = "main"
_LOUD = ("huggingface_hub.utils._http", "huggingface_hub._commit_api", "huggingface_hub.hf_api", "huggingface_hub.lfs")
_WORDS = Words(
    sign_in="Make a token with the right to write on huggingface.co/settings/tokens, store it as the notebook's secret "
    "HF_TOKEN, and give the notebook access to it; on Kaggle also set os.environ['HF_TOKEN'] from the secret.",
    missing="Correct the name in storage=…: hf://owner/name, the owner being you or your organisation. The repository "
    "is made by colabkeep, private.",
    install='Run: pip install "colabkeep[hf]"',
)


class HuggingFace:
    """The folder `folder` of the model repository `repo`. `token` is None where the Hub is asked as anybody.

    Of a small file the Hub states a git digest only, which no checkpoint knows. So what another session put is read
    once, and has to have that digest and the right SHA-256.
    """

    batches = True
    commits: Limit | None = HUB_COMMITS
    budget: Budget | None = HUB
    largest = 50 * 10**9  # huggingface.co/docs/hub/storage-limits: files up to 50 GB can be handed over by HTTP

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

        self._api: Any = HfApi(endpoint=endpoint, token=token or False)
        self._token = token
        self._repo = repo
        self._folder = folder
        self._deadline = deadline
        self.patience = patience or Patience()
        self._ask = Asking(f"hf://{repo}", _WORDS, self.patience)
        self._garbage: set[str] = set()  # digests of large files that were deleted
        self.trouble: str | None = None

    def prepare(self) -> str:
        try:
            return self._head()
        except ObjectNotFound:
            self._call("be created", lambda: self._api.create_repo(self._repo, private=True, exist_ok=True))
            return self._head()

    def facts(self, names: Iterable[str], at: str | None = None) -> Mapping[str, Fact]:
        paths = [self._path(name) for name in names]
        if not paths:
            return {}
        try:
            found = self._call("be asked for files", lambda: self._look(paths, at or _BRANCH), missing=ObjectNotFound)
        except ObjectNotFound:
            return {}
        return {fact.name: fact for fact in self._facts(found)}

    def tree(self, prefix: str) -> Iterator[Fact]:
        path = self._path(prefix) or None
        try:
            entries = self._call(
                f"list {prefix!r}",
                lambda: list(self._api.list_repo_tree(self._repo, path, recursive=True, revision=_BRANCH)),
                missing=ObjectNotFound,
            )
        except ObjectNotFound:
            return
        yield from self._facts(entries)

    def reader(self, fact: Fact) -> BinaryIO:
        import requests
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self._repo, self._path(fact.name), revision=_BRANCH, endpoint=self._api.endpoint)
        headers = {"Accept-Encoding": "identity"}
        if self._token is not None:
            # The Hub redirects to the storage of large files, another host: requests takes the token off then.
            headers["Authorization"] = f"Bearer {self._token}"

        def begin(start: int) -> Any:
            wanted = {**headers, "Range": f"bytes={start}-"}
            return checked(requests.get(url, headers=wanted, timeout=TIMEOUTS, stream=True)).raw

        doing = f"read {fact.name!r}"
        return download(fact.size, begin, lambda call: self._ask(doing, call, missing=ObjectNotFound))

    @contextmanager
    def upload(self, name: str, source: Source) -> Iterator[Addition]:
        from huggingface_hub import CommitOperationAdd

        data, stream = None, None
        if source.size <= _IN_MEMORY:
            data = b"".join(map(bytes, source.chunks()))
            if len(data) != source.size:
                raise changed(name, source.size, len(data))
            operation = CommitOperationAdd(self._path(name), io.BytesIO(data))
        else:
            stream = SourceReader(name, source)
            operation = _streamed(self._path(name), source, stream)
        file: Any = operation.path_or_fileobj
        try:
            self._call(f"take {name!r}", lambda: self._preupload(operation), moved=stream)
        except BaseException:
            if stream is not None:
                stream.abandon()
                if stream.failure is not None:
                    raise stream.failure from None
            raise
        uploaded = operation.path_or_fileobj is not file  # huggingface_hub lets go of what it has uploaded
        if data is not None:
            git: str | None = git_digest(data)
        else:
            git = None if uploaded else git_digest(_all(file))
        yield Addition(
            name=name,
            size=source.size,
            sha256=source.sha256,
            git=git,
            data=None if uploaded else data,
            uploaded=uploaded,
            handle=operation,
        )

    def commit(self, additions: Iterable[Addition], deletions: Iterable[Fact], parent: str) -> str:
        from huggingface_hub import CommitOperationDelete

        operations: list[Any] = [CommitOperationDelete(self._path(fact.name)) for fact in deletions]
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
            newest: str = done.oid
            return newest

        return self._call("commit", send, again=False)

    def holds(self, fact: Fact, addition: Addition) -> bool:
        same = fact.sha256 == addition.sha256 if fact.sha256 is not None else fact.git == addition.git
        return same and fact.size == addition.size

    def states(self, receipt: Receipt, fact: Fact | None) -> bool | None:
        fact = fact or self._glance(receipt.name)
        if fact is None or fact.size != receipt.size:
            return None if fact is None else False
        return self._reads_as(fact, receipt.sha256) if fact.sha256 is None else fact.sha256 == receipt.sha256

    def give_back(self, deleted: Iterable[Fact], waiting: Iterable[str]) -> bool:
        """What was deleted stays in the history, and counts: large files are taken out of it, unless another branch or
        a tag may need them. Where that fails, `trouble` says why, and the next call tries again."""
        self._garbage |= {fact.sha256 for fact in deleted if fact.sha256 is not None}
        if not self._garbage:
            return False
        try:
            refs = self._call("list its branches", lambda: self._api.list_repo_refs(self._repo))
            if refs.tags or any(branch.name != _BRANCH for branch in refs.branches):
                self.trouble = (
                    f"hf://{self._repo} has other branches or tags, which may need deleted checkpoints: their space is "
                    "not given back. Delete these references on the repository's page if you do not need them."
                )
                return False
            whole = self._call(
                "be listed", lambda: list(self._api.list_repo_tree(self._repo, recursive=True, revision=_BRANCH))
            )
            needed = {entry.lfs.sha256 for entry in whole if getattr(entry, "lfs", None)}  # in other folders, too
            garbage = self._garbage - needed - set(waiting)
            if garbage:
                files = self._call("give back space", lambda: list(self._api.list_lfs_files(self._repo)))
                found = [file for file in files if file.oid in garbage]
                self._call("give back space", lambda: self._api.permanently_delete_lfs_files(self._repo, found))
        except StoreError as error:
            self.trouble = f"The space of deleted checkpoints is not given back yet: {error.problem}"
            return False
        self._garbage.clear()
        self.trouble = None
        return bool(garbage)

    def close(self) -> None: ...

    def _head(self) -> str:
        """The newest commit's id.

        Raises:
            ObjectNotFound: there is no such repository.
        """
        refs = self._call("be asked", lambda: self._api.list_repo_refs(self._repo), missing=ObjectNotFound)
        commits: list[str] = [branch.target_commit for branch in refs.branches if branch.name == _BRANCH]
        if not commits:
            raise StoreError(
                problem=f"hf://{self._repo} has no branch {_BRANCH!r}.",
                remedy="Create it on the repository's page, or choose another repository in storage=….",
            )
        return commits[0]

    def _look(self, paths: list[str], at: str) -> list[Any]:
        return list(self._api.get_paths_info(self._repo, paths, revision=at))

    def _glance(self, name: str) -> Fact | None:
        """What is stated about one file, in one attempt of a second; None also where it cannot be told."""

        def look() -> list[Any]:
            with quiet(*_LOUD):
                return self._look([self._path(name)], _BRANCH)

        try:
            found = self._ask("be asked for a file", lambda: within(MOMENT, look), again=False)
        except StoreError:
            return None
        return next(self._facts(found), None)

    def _reads_as(self, fact: Fact, sha256: str) -> bool | None:
        """Has a file of which the Hub states no SHA-256 this one? None: it does not come within a second."""
        if fact.size > _IN_MEMORY:
            return None
        try:
            data = within(MOMENT, lambda: _all(self.reader(fact)))
        except (StoreError, TimeoutError):
            return None
        return git_digest(data) == fact.git and hashlib.sha256(data).hexdigest() == sha256

    def _preupload(self, operation: Any) -> None:
        operation.path_or_fileobj.seek(0)
        self._api.preupload_lfs_files(self._repo, [operation], revision=_BRANCH)

    def _call(
        self,
        doing: str,
        call: Callable[[], _T],
        *,
        again: bool = True,
        missing: type[StoreError] = StoreError,
        moved: SourceReader | None = None,
    ) -> _T:
        """Each in a thread with a deadline, for huggingface_hub would wait for ever."""

        def quietly() -> _T:
            with quiet(*_LOUD):
                return call()

        last_moved = (lambda: moved.moved) if moved is not None else (lambda: 0.0)
        return self._ask(doing, lambda: within(self._deadline, quietly, moved=last_moved), again=again, missing=missing)

    def _path(self, name: str) -> str:
        return "/".join(part for part in (self._folder, name) if part)

    def _facts(self, entries: Iterable[Any]) -> Iterator[Fact]:
        for entry in entries:
            if getattr(entry, "size", None) is not None:
                name = entry.path.removeprefix(f"{self._folder}/") if self._folder else entry.path
                sha256 = entry.lfs.sha256 if entry.lfs else None
                yield Fact(name=name, size=entry.size, git=entry.blob_id, sha256=sha256, large=sha256 is not None)


def _all(file: Any) -> bytes:
    """All bytes of a file, which is at its beginning afterwards."""
    file.seek(0)
    data: bytes = file.read()
    file.seek(0)
    return data


def _streamed(path: str, source: Source, stream: SourceReader) -> Any:
    """The operation for a stream whose digest is known: huggingface_hub would read it once more to compute it."""
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.lfs import UploadInfo

    file = io.BufferedReader(stream, buffer_size=2**20)
    operation = CommitOperationAdd(path, b"")
    operation.path_or_fileobj = file
    sample = file.peek(_SAMPLE)[:_SAMPLE]
    operation.upload_info = UploadInfo(size=source.size, sample=sample, sha256=bytes.fromhex(source.sha256))
    return operation


def _again(addition: Addition) -> Any:
    """The operation as if it had never been used: a commit marks those it takes, also one that nobody waits for."""
    operation = copy.copy(addition.handle)
    if addition.data is not None:
        operation.path_or_fileobj = io.BytesIO(addition.data)
    return operation


_KINDS = ("buckets/", "datasets/", "spaces/", "kernels/")  # not an owner, but what kind of thing follows
_BUCKET = Kind(lists_lag=True, words=_WORDS)


def open_url(
    url: str,
    context: StoreContext = StoreContext(),
    *,
    token: str | None = None,
    endpoint: str | None = None,
    patience: Patience | None = None,
    deadline: float = _DEADLINE,
) -> HubStore | FsspecStore:
    """The store at a hf:// URL. Nothing is contacted yet, but for Colab's secrets, which may ask the user.

    `token` is looked for by huggingface_hub where none is given (HF_TOKEN, its own file, Colab's secrets), then among
    the platform's secrets. That is done here and now because Colab answers the main thread only. It is kept in memory,
    nowhere else. `endpoint` is another Hub than huggingface.co, or what HF_ENDPOINT says. `deadline`: after how many
    seconds without any progress a request is given up.

    Raises:
        UsageError: it names no repository or bucket.
        MissingDependency: huggingface_hub is not installed, or too old.
    """
    bucket, repository = place(url, "hf://buckets/"), place(url, "hf://")
    found = bucket or repository
    if found is None or (bucket is None and found[0].startswith(_KINDS)):
        raise UsageError(
            problem=f"storage={shown(url)} names no repository of models and no bucket on the Hugging Face Hub.",
            remedy="Write hf://owner/name, or hf://owner/name/folder, the owner being your user name there.",
        )
    try:
        from huggingface_hub import get_token, list_lfs_files  # noqa: F401 - the second one is what old ones lack
    except ImportError as error:
        raise MissingDependency(
            problem=f"The store for hf:// cannot be loaded: {error}.", remedy=_WORDS.install
        ) from error
    token = token or get_token() or context.find_secret("HF_TOKEN")
    address, (name, folder) = url.strip().rstrip("/"), found
    if bucket is None:
        hub = HuggingFace(name, folder, token=token, endpoint=endpoint, patience=patience, deadline=deadline)
        return HubStore(hub, address)

    def reach() -> Backend:
        from colabkeep.stores.fsspec.filesystem import BucketBackend

        ask = Asking(address, _WORDS, patience or Patience(), one_at_a_time=True)
        return BucketBackend.at(name, folder, token=token, endpoint=endpoint, ask=ask)

    return FsspecStore(address, _BUCKET, reach)

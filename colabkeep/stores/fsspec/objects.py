"""Work at S3 through obstore: one small package that brings nothing along and replaces nothing that a notebook has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Full, Queue
from threading import Event
from typing import Any

from colabkeep.core.errors import ObjectNotFound
from colabkeep.stores.base import Source
from colabkeep.stores.fsspec.backend import block_size, notes, notes_of
from colabkeep.stores.shared.retry import Asking


class ObstoreBackend:
    """`bucket` is a store of obstore, `root` the folder in it. An upload in several parts cannot be refused by the
    service when the name is taken (obstore has no such call), so only a look just before the end of it tells."""

    def __init__(self, bucket: Any, root: str, ask: Asking) -> None:
        self._bucket = bucket
        self._root = root.strip("/")
        self._ask = ask

    def find(self, prefix: str) -> Iterator[tuple[str, int]]:
        def listed() -> list[tuple[str, int]]:
            pages = self._bucket.list(prefix=self._key(prefix) or None, chunk_size=1000)
            return [(self._name(entry["path"]), entry["size"]) for page in pages for entry in page]

        found = self._ask(f"list {prefix!r}", listed)
        # obstore takes the last slash off "run/", which other tools put as a mark of the folder.
        folders = {name.rpartition("/")[0] for name, _ in found}
        yield from ((name, size) for name, size in found if size or name not in folders)

    def stat(self, name: str, *, again: bool = True) -> Mapping[str, Any]:
        def look() -> Mapping[str, Any]:
            found = self._bucket.get(self._key(name), options={"head": True})
            return {"size": found.meta["size"], "ETag": found.meta["e_tag"], "notes": dict(found.attributes)}

        return self._ask(f"say how large {name!r} is", look, again=again, missing=ObjectNotFound)

    def read(self, name: str, start: int, end: int) -> bytes:
        def fetch() -> bytes:
            return bytes(self._bucket.get_range(self._key(name), start=start, end=end))

        return self._ask(f"read {name!r}", fetch, missing=ObjectNotFound)

    def send(self, name: str, source: Source, blocks: Iterator[memoryview]) -> None:
        key, block, doing = self._key(name), block_size(source.size), f"write {name!r}"
        if source.size <= block:
            data = b"".join(map(bytes, blocks))
            beside = notes_of(source, data)
            self._ask(doing, lambda: self._bucket.put(key, data, mode="create", use_multipart=False, attributes=beside))
            return
        beside = notes(source.sha256)
        with ThreadPoolExecutor(1, thread_name_prefix="colabkeep-obstore") as pool:
            belt = _Belt()
            sent = pool.submit(
                self._bucket.put,
                key,
                iter(belt),
                use_multipart=True,
                chunk_size=block,
                max_concurrency=1,
                attributes=beside,
            )
            sent.add_done_callback(belt.stop)
            try:
                for piece in blocks:
                    if not belt.lay(bytes(piece)):  # a copy: it is still on the wire when the next one is asked for
                        break
                belt.lay(None)
            except BaseException as error:
                belt.lay(error)  # obstore gives the upload up
                raise
            self._ask(doing, sent.result, again=False)  # obstore has sent failed parts again by itself

    def remove(self, name: str) -> None:
        with suppress(ObjectNotFound):
            self._ask(f"delete {name!r}", lambda: self._bucket.delete(self._key(name)), missing=ObjectNotFound)

    def sweep(self, prefix: str) -> int:
        return 0  # obstore cannot list unfinished uploads; the service does not show them either

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self._root, name) if part)

    def _name(self, key: str) -> str:
        return key.removeprefix(self._root).lstrip("/")


class _Belt:
    """Blocks on their way to obstore's `put`, which takes them in a thread of its own: what makes them may itself ask
    obstore for something, and that fails where obstore is waiting for it."""

    def __init__(self) -> None:
        self._laid: Queue[bytes | BaseException | None] = Queue(1)
        self._stopped = Event()

    def lay(self, item: bytes | BaseException | None) -> bool:
        """Lay down a block, an error that ends it all, or None for the end. False: nothing is taken any more."""
        while not self._stopped.is_set():
            with suppress(Full):
                self._laid.put(item, timeout=0.1)
                return True
        return False

    def stop(self, _: object) -> None:
        self._stopped.set()

    def __iter__(self) -> Iterator[bytes]:
        while (item := self._laid.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

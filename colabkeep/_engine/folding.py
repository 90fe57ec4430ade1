"""Folding what old sessions left: sixteen leases with their diaries into one history, sixteen small histories into one.

A run that is taken up every day for years would else leave thousands of files, and each session lists them all. A
session folds what the oldest have left, on the writer's thread, when it has saved once and nothing else is to do. What
it folds goes only when the history is where it lasts, was read back there and holds these very bytes, a second listing
shows it, and this session is still the newest. Whoever dies in between leaves files that are also in a history.

Never folded: the newest sessions, so that the next one finds the number to follow; leases of sessions that have a
checkpoint, which older versions look for; what is damaged. Where nobody may delete, nothing is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TypeAlias

from colabkeep._engine.history import HISTORY_FILE, MOST_FILES, check_old, history_name, pack, unpack
from colabkeep._engine.journal import SEGMENT_FILE
from colabkeep._engine.lease import LEASE_FILE, Lease
from colabkeep._engine.reading import SMALL, read_up_to
from colabkeep._engine.repository import id_parts
from colabkeep.stores.base import BytesSource, Receipt, Rung, sides
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.errors import NameTaken, RunTakenOver, StoreError

__all__ = ["KEPT", "TOGETHER", "Folding"]

KEPT = 16
"""Sessions that are never folded: the newest."""

TOGETHER = 16
"""Sessions, or histories, that are folded into one."""

_MOST_BYTES = 2**23  # of what is folded into one; what one session alone left may be four times as much
_REFUSALS = 3  # of the store: then this session folds no more
_SLICE = 1.0  # seconds at a time; how things stand is asked and told between two

_Found: TypeAlias = tuple[int, dict[str, bytes], tuple[str, ...]]
"""What can be folded into one: the highest session number, name inside the run → bytes of what the history will hold,
and the names of what goes then."""


class Folding:
    """What this session folds. Lives on the writer thread."""

    def __init__(self, lease: Lease, clock: Clock) -> None:
        self._lease = lease
        self._repository = lease.repository
        self._clock = clock
        self._steps: Iterator[bool] | None = None
        self._left: set[str] = set()  # sessions and histories that cannot be folded
        self._refusals = 0
        self._over = False

    def work(self, wanted: Callable[[], bool]) -> bool:
        """Fold for a moment, until `wanted` says that there is something better to do, which is asked between any two
        requests. Returns whether there is more to do now. A failure of the store only means that things stay as they
        are: they cost time, and no checkpoint needs them.
        """
        until, going = self._clock.monotonic() + _SLICE, True
        try:
            while going and not self._over and not wanted():
                if self._clock.monotonic() > until:
                    return True
                self._steps = self._steps or self._fold_all()
                going = next(self._steps)
        except StopIteration:
            self._over = True
        except StoreError as error:
            self._steps = None
            self._refusals += 1 if error.retryable else _REFUSALS
            self._over = self._refusals >= _REFUSALS
            return False
        except RunTakenOver:  # which the next save tells
            self._over = True
        return going and not self._over

    def _fold_all(self) -> Iterator[bool]:
        """Yields after each request: True to go on, False where nothing can be done now."""
        while (old := (yield from self._old_sessions())) is not None:
            yield from self._fold(*old)
            while (small := (yield from self._small_histories())) is not None:
                yield from self._fold(*small)

    def _old_sessions(self) -> Generator[bool, None, _Found | None]:
        while len(self._left) <= TOGETHER:
            batch, files = self._batch(), dict[str, bytes]()
            yield True
            for session, (_, names) in batch.items():
                for name in names:
                    try:
                        files[name] = self._read(name)
                        check_old(name, files[name])
                    except ValueError:
                        self._left.add(session)  # damaged: `colabkeep verify` tells of it
                    yield True
            if not batch:
                return None
            if self._left.isdisjoint(batch):
                return max(fence for fence, _ in batch.values()), files, tuple(files)
        return None

    def _batch(self) -> dict[str, tuple[int, list[str]]]:
        """Session → its number and files, of the oldest that make a history; empty where there are too few."""
        matches = [match for match in map(LEASE_FILE.fullmatch, self._repository.files("lease")) if match]
        leases = sorted((int(match[1]), match[2], f"lease/{match[0]}") for match in matches)
        own = self._lease.fence, self._lease.session
        old = [each for each in leases if each[:2] < own][: -KEPT + 1]
        if len(old) < TOGETHER:
            return {}
        sizes = self._repository.files("journal")
        segments: dict[str, list[str]] = {}
        for name in sorted(sizes):
            if SEGMENT_FILE.fullmatch(name):
                segments.setdefault(name.partition("-")[0], []).append(name)
        saved = {id_parts(id)[1] for id in self._repository.known_ids()}
        batch: dict[str, tuple[int, list[str]]] = {}
        total = 0
        for fence, session, lease in old:
            parts = segments.get(session, [])
            size = sum(sizes[name] for name in parts)
            names = [f"journal/{name}" for name in parts] + ([] if session in saved else [lease])
            if not names or session in self._left or size > 4 * _MOST_BYTES or len(names) > MOST_FILES // TOGETHER:
                continue
            if batch and total + size > _MOST_BYTES:
                return batch
            batch[session], total = (fence, names), total + size
            if len(batch) == TOGETHER:
                return batch
        return {}

    def _small_histories(self) -> Generator[bool, None, _Found | None]:
        while len(self._left) <= TOGETHER:
            sizes = self._repository.files("journal")
            small = [name for name, size in sizes.items() if size <= _MOST_BYTES // TOGETHER]
            names = sorted(name for name in small if HISTORY_FILE.fullmatch(name) and name not in self._left)
            files: dict[str, bytes] = {}
            yield True
            if len(names) < TOGETHER:
                return None
            for name in names[:TOGETHER]:
                try:
                    files |= unpack(name, self._read(f"journal/{name}"))
                except ValueError:
                    self._left.add(name)
                yield True
            if self._left.isdisjoint(names):
                fence = max(int(name.split("-")[1]) for name in names[:TOGETHER])
                return fence, files, tuple(f"journal/{name}" for name in names[:TOGETHER])
        return None

    def _fold(self, fence: int, files: Mapping[str, bytes], doomed: tuple[str, ...]) -> Iterator[bool]:
        text = pack(files)
        name = history_name(fence, text)
        receipt = self._put(f"journal/{name}", BytesSource(text))
        yield True
        store = self._repository.store
        while (receipt := store.confirm(receipt)).rung != store.properties.top_rung:
            yield False
        with sides(store)[-1].get(receipt.name) as reader:
            same = read_up_to(reader, len(text) + 1) == text
        yield True
        shown = self._repository.files("journal").get(name) == len(text)
        self._lease.check()
        if not (same and shown):
            self._over = True  # a damaged one has this very name: `colabkeep verify` tells of it
            return
        for each in doomed:
            if each != f"journal/{name}":
                store.delete(f"{self._repository.folder}/{each}")
                self._refusals = 0
                yield True

    def _put(self, name: str, source: BytesSource) -> Receipt:
        store = self._repository.store
        whole = f"{self._repository.folder}/{name}"
        try:
            return store.put(whole, source)
        except NameTaken:  # by a session that died before it could delete, and folded the same
            properties = store.properties
            local = properties.behind is not None or properties.top_rung == "local"
            rung: Rung = "local" if local else "sent"
            return Receipt(name=whole, size=source.size, sha256=source.sha256, rung=rung)

    def _read(self, name: str) -> bytes:
        with self._repository.store.get(f"{self._repository.folder}/{name}") as reader:
            return read_up_to(reader, SMALL + 1)

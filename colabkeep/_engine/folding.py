"""Folding what old sessions left: sixteen leases with their diaries into one history, sixteen small histories into one.

A run that is taken up every day for years would else leave thousands of files, and each session lists them all. A
session folds what the oldest have left, on the writer's thread, when it has saved once and nothing else is to do. What
it folds goes only when the history is where it lasts, was read back there and holds these very bytes, a second listing
shows it, and this session is still the newest. Whoever dies in between leaves files that are also in a history.

Never folded: the newest sessions, so that the next one finds the number to follow; leases of sessions that have a
checkpoint, which older versions look for; what is damaged. Where nobody may delete, nothing is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

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


class Folding:
    """What this session folds. Lives on the writer thread."""

    def __init__(self, lease: Lease, clock: Clock) -> None:
        self._lease = lease
        self._repository = lease.repository
        self._clock = clock
        self._steps: Iterator[bool] | None = None
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
        for fence, names in self._batches():
            yield True
            files: dict[str, bytes] = {}
            for name in names:
                files |= self._good(name)
                yield True
            shown = yield from self._fold(fence, files, [*files])
            while len(small := _small(shown)) == TOGETHER:
                good, files = [], {}
                for name in small:
                    found = self._good(name)
                    files |= found
                    good += [name] if found else []
                    yield True
                if len(good) < 2:
                    break
                shown = yield from self._fold(max(map(_number, good)), files, good)

    def _batches(self) -> Iterator[tuple[int, list[str]]]:
        """The highest session number and the files of sixteen old sessions, the oldest first, and of the next sixteen;
        of fewer where these are large."""
        matches = [match for match in map(LEASE_FILE.fullmatch, self._repository.files("lease")) if match]
        leases = sorted((int(match[1]), match[2], f"lease/{match[0]}") for match in matches)
        own = self._lease.fence, self._lease.session
        old = [each for each in leases if each[:2] < own][: -KEPT + 1]
        if len(old) < TOGETHER:
            return
        sizes = self._repository.files("journal")
        parts: dict[str, list[str]] = {}
        for name in sorted(filter(SEGMENT_FILE.fullmatch, sizes)):
            parts.setdefault(name.partition("-")[0], []).append(name)
        saved = {id_parts(id)[1] for id in self._repository.known_ids()}
        batch, count, total, last = list[str](), 0, 0, 0
        for fence, session, lease in old:
            size = sum(sizes[name] for name in parts.get(session, ()))
            names = [f"journal/{name}" for name in parts.get(session, ())] + ([] if session in saved else [lease])
            if not names or size > 4 * _MOST_BYTES or len(names) > MOST_FILES // TOGETHER:
                continue
            if batch and (count == TOGETHER or total + size > _MOST_BYTES):
                yield last, batch
                batch, count, total = [], 0, 0
            batch, count, total, last = batch + names, count + 1, total + size, fence
        if count == TOGETHER:
            yield last, batch

    def _good(self, name: str) -> dict[str, bytes]:
        """What a lease, a segment or a history holds, as files; nothing where it is not what was written: it stays
        where it is, and `colabkeep verify` tells of it."""
        with self._repository.store.get(f"{self._repository.folder}/{name}") as reader:
            text = read_up_to(reader, SMALL + 1)
        try:
            file = name.removeprefix("journal/")
            if HISTORY_FILE.fullmatch(file):
                return unpack(file, text)
            check_old(name, text)
        except ValueError:
            return {}
        return {name: text}

    def _fold(
        self, fence: int, files: Mapping[str, bytes], doomed: Sequence[str]
    ) -> Generator[bool, None, Mapping[str, int]]:
        """Write the history of these files, and delete what is doomed. Returns what there is of the diary then."""
        if not files:
            return {}
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
        shown = self._repository.files("journal")
        self._lease.check()
        if not same or shown.get(name) != len(text):
            self._over = True  # a damaged one has this very name: `colabkeep verify` tells of it
            return {}
        for each in doomed:
            if each != f"journal/{name}":
                store.delete(f"{self._repository.folder}/{each}")
                shown.pop(each.removeprefix("journal/"), None)
                self._refusals = 0
                yield True
        return shown

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


def _small(sizes: Mapping[str, int]) -> list[str]:
    """The oldest histories, by their names inside the run, of those of which sixteen fit into one: sixteen at most."""
    found = (name for name, size in sizes.items() if size <= _MOST_BYTES // TOGETHER and HISTORY_FILE.fullmatch(name))
    return [f"journal/{name}" for name in sorted(found)[:TOGETHER]]


def _number(name: str) -> int:
    """The highest session number in a history, by its name inside the run."""
    return int(name.split("-")[1])

"""A thousand saves of a gigabyte into a drive of fifteen, whose trash counts: it is never full.

    python -m tests.long.quota [--saves 1000] [--gigabyte 1000000000]

Run it from the repository. The whole takes about an hour, for each byte is hashed and checked; `--gigabyte 1000000`
makes all of it a thousand times smaller, with the same decisions. The objects are sparse (what is zero takes no
memory), time is a clock that is moved: a save every ten minutes, for a week.

The drive behind holds other people's files. What is deleted there lies in the trash for a while, where it still counts.
Retention is asked to keep more than fits. Checked after every save: the drive has never refused an object for want of
room, the newest checkpoint is there, all that are there are whole, and other people's files are untouched.
"""

from __future__ import annotations

import argparse
import io
import json
import mmap
import random
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.checkpoint.retention import KeepBest, KeepLast
from colabkeep.checkpoint.writer import Committer, Identity
from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreFull
from colabkeep.core.events import Event, SpaceShort
from colabkeep.core.manifest import Progress
from colabkeep.core.state import HostTensor
from colabkeep.stores.base import Entry, Receipt, StoreProperties
from colabkeep.stores.memory import MemoryLock
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock

RUN = "quota"
MINUTES = 10  # between two saves
KEEP_LAST, KEEP_BEST = 6, 3
PATIENCE = 120.0  # seconds; a drive that is full would never catch up


@dataclass
class Sparse:
    """An object's bytes, exactly: pieces that are not all zero, by their offset."""

    size: int = 0
    pieces: dict[int, bytes] = field(default_factory=dict)

    def add(self, chunk: memoryview) -> None:
        data = bytes(chunk)
        if data.count(0) != len(data):
            self.pieces[self.size] = data
        self.size += len(data)


class _Reader(io.RawIOBase):
    def __init__(self, sparse: Sparse) -> None:
        self._sparse = sparse
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._sparse.size - self._at)
        buffer[:size] = bytes(size)
        for start, piece in self._sparse.pieces.items():
            first, last = max(start, self._at), min(start + len(piece), self._at + size)
            if first < last:
                buffer[first - self._at : last - self._at] = piece[first - start : last - start]
        self._at += size
        return size


class Drive:
    """A store on the promise of `colabkeep.stores.base`. What is deleted is in the trash, and counts, until `clock`
    says that `trash_seconds` have passed."""

    url = "drive"
    degraded = None

    def __init__(self, clock: FakeClock, quota: int, trash_seconds: float) -> None:
        self._clock = clock
        self._quota = quota
        self._trash_seconds = trash_seconds
        self._objects: dict[str, Sparse] = {}
        self._trash: deque[tuple[float, int]] = deque()
        self._guard = threading.RLock()
        self.refused = 0
        self.least_free = quota

    @property
    def free(self) -> int:
        with self._guard:
            while self._trash and self._trash[0][0] + self._trash_seconds <= self._clock.time():
                self._trash.popleft()
            used = sum(sparse.size for sparse in self._objects.values()) + sum(size for _, size in self._trash)
            return self._quota - used

    @property
    def properties(self) -> StoreProperties:
        return StoreProperties(top_level="local", persists=True, free_bytes=self.free)

    def put(self, name: str, source: Any) -> Receipt:
        with self._guard:
            if name in self._objects:
                raise NameTaken(problem=f"{name} exists.", remedy="Choose another.")
            if source.size > self.free:
                self.refused += 1
                raise StoreFull(problem="The drive is full.", remedy="Make room.")
            sparse = Sparse()
            for chunk in source.chunks():
                sparse.add(chunk)
            self._objects[name] = sparse
            self.least_free = min(self.least_free, self.free)
        return Receipt(name=name, size=sparse.size, sha256=source.sha256, level="local")

    def get(self, name: str) -> Any:
        if name not in self._objects:
            raise ObjectNotFound(problem=f"There is no {name}.", remedy="Put it first.")
        return _Reader(self._objects[name])

    def list(self, prefix: str) -> list[Entry]:
        with self._guard:
            found = dict(self._objects)
        start = f"{prefix}/" if prefix else ""
        return [Entry(name=name, size=sparse.size) for name, sparse in found.items() if name.startswith(start)]

    def delete(self, name: str) -> None:
        with self._guard:
            sparse = self._objects.pop(name, None)
            if sparse is not None:
                self._trash.append((self._clock.time(), sparse.size))

    def confirm(self, receipt: Receipt) -> Receipt:
        return receipt

    def doubt(self, name: str) -> bool:
        return False

    def lock(self, name: str, holder: str) -> MemoryLock:
        return MemoryLock({name: holder}, name)

    def sweep(self, prefix: str) -> int:
        return 0

    def flush(self, timeout: float) -> bool:
        return True

    def close(self) -> None: ...


@dataclass
class _Taken:
    parts: dict[str, Any]
    remark: str = ""

    def finish(self) -> _Taken:
        return self

    def stored(self) -> None: ...

    def release(self) -> None: ...


def state(step: int, size: int) -> dict[str, Any]:
    """A tensor of that many bytes, all but the first few of them zero."""
    memory = mmap.mmap(-1, size)
    memory[:8] = step.to_bytes(8, "little")
    return {"model": {"weight": HostTensor(dtype="U8", shape=(size,), data=memoryview(memory))}}


@dataclass
class Outcome:
    """What came of it; `wrong` should be empty. Sizes in bytes."""

    saves: int = 0
    refused: int = 0
    least_free: int = 0
    kept_at_the_end: int = 0
    told: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Others:
    """Other people's files in the drive."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sha256 = ""

    def chunks(self) -> Any:
        left = self.size
        while left:
            size = min(left, 2**20)
            yield memoryview(b"\x01" + bytes(size - 1))
            left -= size


def campaign(saves: int, gigabyte: int, seed: int = 1) -> Outcome:
    """Save so often; what came of it."""
    began, chance, clock, outcome = time.monotonic(), random.Random(seed), FakeClock(), Outcome()
    drive = Drive(clock, quota=15 * gigabyte, trash_seconds=45 * 60)
    drive.put("photos/holiday", Others(2 * gigabyte))
    untouched = drive._objects["photos/holiday"]
    front = Drive(clock, quota=100 * gigabyte, trash_seconds=0)
    front.url = "disk"  # type: ignore[misc]
    store = TieredStore(front, drive, pauses=(0.001, 0.01))
    events: deque[Event] = deque()
    repository = Repository(store, RUN)
    repository.open_run(created=clock.time(), run_id="0" * 16)
    retention = KeepLast(KEEP_LAST) + KeepBest(n=KEEP_BEST, monitor="loss", mode="min")
    committer = Committer(
        take_lease(repository, "aaaaaaaa", {}),
        Journal(repository, "aaaaaaaa"),
        retention,
        clock,
        Identity(framework="numpy", fingerprint={}),
        events.append,
    )
    for step in range(1, saves + 1):
        progress = Progress(step=step, seconds=step * MINUTES * 60.0)
        committer.commit(_Taken(state(step, gigabyte)), progress, "", {"loss": chance.random()})
        if not store.flush(PATIENCE):
            outcome.wrong.append(f"save {step}: the drive has not caught up: {store.degraded}")
        committer.after_commit()
        store.flush(PATIENCE)  # what that has deleted
        outcome.wrong += [f"save {step}: {what}" for what in faults(drive, step)]
        outcome.saves = step
        clock.advance(MINUTES * 60.0)
    outcome.refused, outcome.least_free = drive.refused, drive.least_free
    outcome.kept_at_the_end = len(Repository(drive, RUN).ids())
    outcome.told = [
        f"keeps {event.keeps}, full at {event.full_at}" for event in events if isinstance(event, SpaceShort)
    ]
    if drive.refused:
        outcome.wrong.append(f"the drive was full {drive.refused} times")
    if drive._objects.get("photos/holiday") is not untouched:
        outcome.wrong.append("other people's file was touched")
    store.close()
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


def faults(drive: Drive, step: int) -> list[str]:
    """What a machine that finds the drive alone would miss."""
    repository = Repository(drive, RUN)
    manifests = repository.manifests(repository.ids())
    if not manifests or manifests[-1].progress.step != step:
        return [f"the newest checkpoint is not there, only {[manifest.id for manifest in manifests]}"]
    return [f"{manifest.id} is not whole" for manifest in manifests if repository.lost(manifest)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=1000)
    parser.add_argument("--gigabyte", type=int, default=10**9, help="how many bytes that is here")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    told = vars(campaign(words.saves, words.gigabyte))
    if words.json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name:>16}: {value}")
    return 1 if told["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

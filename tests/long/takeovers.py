"""Two machines on one run in Drive, in any order of their requests: nothing safe is deleted, and one of them writes.

    python -m tests.long.takeovers --examples 2000 [--json]

Run it from the repository (about two examples a second). A state machine of Hypothesis lets two machines start, save,
prune and die, each request of theirs one by one; the listings of the Drive lag by up to 100 seconds, by parent and by
properties, some of them or all, and answers for several folders are partial. Checked:

* no blob is ever deleted that a manifest of another session names, as long as that manifest may be there;
* once a checkpoint was called safe, there is always one that is whole;
* a run that has had a safe checkpoint for longer than listings lag is never begun anew at step zero: it goes on or is
  refused;
* in the end, when the listings show all and everybody who lives has saved, at most one goes on writing: the session
  that came last, if it lives; all others were told. What a stranger finds is the writer's newest checkpoint.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import KEEPS, Repository, take_lease
from colabkeep.checkpoint.restore import load_newest
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.checkpoint.writer import Committer, Identity
from colabkeep.core.errors import ColabKeepError, NoUsableCheckpoint, RunTakenOver
from colabkeep.core.events import COMMITTED, Event, SaveCommitted
from colabkeep.core.layout import LEASE_FILE
from colabkeep.core.manifest import Manifest, Progress
from colabkeep.session.prune import prune
from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.files import read_place
from colabkeep.stores.google.account import Account, SignedIn
from tests.fakes.drive import Drive, File, partial_listing, running_drive, stale_listing
from tests.fakes.drive.clock import SharedClock
from tests.fakes.drive.requests import Index
from tests.fakes.runs import Taken, state

RUN = "run"
LAG = 100.0  # seconds that a listing is behind at most; no source says how long it may be
PATIENCE = 60.0  # seconds; a machine that does nothing for this long is a bug
ALL = 10**9
NAMES = ("A", "B")


@dataclass(frozen=True)
class Late:
    """How listings lag: by which indexes, in which folders (none: all), how many of them, and which answers for several
    folders are partial."""

    by: tuple[Index, ...]
    within: tuple[str, ...]
    chance: float
    partial: bool


LAGS = st.builds(
    Late,
    by=st.sampled_from(((), ("parents",), ("properties",), ("parents", "properties"))),
    within=st.sampled_from(((), ("checkpoints",), ("checkpoints", "journal"), ("blobs",), ("lease",))),
    chance=st.sampled_from((0.5, 1.0)),
    partial=st.booleans(),
)


class Killed(BaseException):
    """SIGKILL: nothing of this machine reaches the service any more."""


class Gate:
    """Lets the requests of one machine through, as many as it is told."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left = self._under_way = self._waiting = 0
        self._killed, self._idle = False, True

    @property
    def idle(self) -> bool:
        """Has the machine done what it was told?"""
        with self._changed:
            return self._idle

    def begin(self) -> None:
        """It is told to do something."""
        with self._changed:
            self._idle = False

    def end(self) -> None:
        """That is done."""
        with self._changed:
            self._idle = True
            self._changed.notify_all()

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request, when it may."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._left > 0 or self._killed, PATIENCE)
            self._waiting -= 1
            if self._killed:
                raise Killed
            self._left, self._under_way = self._left - 1, self._under_way + 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def let(self, requests: int) -> None:
        """Let so many through, and wait until they are done and the next one asks, or there is none."""
        with self._changed:
            self._left = requests
            self._changed.notify_all()
            assert self._changed.wait_for(self._is_still, PATIENCE)
            self._left = 0

    def kill(self) -> None:
        """Nothing passes any more."""
        with self._changed:
            self._killed = True
            self._changed.notify_all()

    def _is_still(self) -> bool:
        return self._idle or (self._left == self._under_way == 0 and self._waiting > 0)


@dataclass
class World:
    """What all machines share, and what is true of it."""

    drive: Drive
    folder: str
    clock: SharedClock
    keep: int
    alike: bool
    counts: Counter[str]
    wrong: list[str] = field(default_factory=list)
    safe_since: float | None = None  # when a save returned that said that a checkpoint was safe

    def truth(self) -> dict[str, list[File]]:
        """The run's files that are not in the trash, by their names inside the run."""
        by_id = {file.id: file for file in self.drive.files()}
        found: dict[str, list[File]] = {}
        for file in by_id.values():
            parts, above, trashed = [file.name], by_id.get(file.parent or ""), file.trashed
            while above is not None:
                parts, trashed, above = [above.name, *parts], trashed or above.trashed, by_id.get(above.parent or "")
            if parts[:2] == [self.folder, RUN] and file.size is not None and not trashed:
                found.setdefault("/".join(parts[2:]), []).append(file)
        return found

    def manifests(self, truth: dict[str, list[File]]) -> list[Manifest]:
        """The checkpoints that are there."""
        names = [name for name in truth if name.startswith("checkpoints/")]
        ids = {name: name.removeprefix("checkpoints/").removesuffix(".json") for name in names}
        return [Manifest.from_bytes(self.drive.content(truth[name][0]), id=ids[name]) for name in names]

    def deleting(self, session: str, id: str) -> None:
        """A session asks for this file to be deleted."""
        truth = self.truth()
        gone = next((name for name, files in truth.items() if [file.id for file in files] == [id]), None)
        self.counts["deleted"] += gone is not None
        for manifest in self.manifests(truth):
            if manifest.session != session and gone in {f"blobs/{blob.file}" for blob in manifest.blobs}:
                self.wrong.append(f"{session} deletes {gone}, which {manifest.id} needs")

    def whole(self) -> list[str]:
        """The checkpoints that are there with all their blobs."""
        truth = self.truth()
        return [one.id for one in self.manifests(truth) if all(f"blobs/{blob.file}" in truth for blob in one.blobs)]

    def highest(self) -> str:
        """The session that came last."""
        matches = (LEASE_FILE.fullmatch(name.removeprefix("lease/")) for name in self.truth())
        return max(((int(match[1]), match[2]) for match in matches if match), default=(0, ""))[1]


class Machine:
    """One machine: what it is told to do, it does in a thread of its own, request by request."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._thread: threading.Thread | None = None
        self.gate = Gate()
        self.session = ""
        self.committer: Committer | None = None
        self.store: DriveStore | None = None
        self.error: BaseException | None = None
        self._step = 0

    def tell(self, call: Callable[[], None]) -> None:
        """Do this, as far as requests are let through."""

        def work() -> None:
            try:
                call()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001  # the test hears of it
                self.error = error
            finally:
                self.gate.end()

        self.gate.begin()
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def let(self, requests: int) -> None:
        """Let requests through."""
        if not self.gate.idle:
            self.gate.let(requests)
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """The machine is gone."""
        self.gate.kill()
        if self._thread is not None:
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive()
        if self.store is not None:
            self.store.close()

    def open(self) -> DriveStore:
        """A store as a fresh process has it."""
        world, credentials = self._world, self._world.drive.credentials()
        place = read_place(f"drive://{world.folder}?service={world.drive.url}")
        store = DriveStore(place, Account(lambda: SignedIn(credentials=credentials)), clock=world.clock)
        send = store._api.send

        def gated(method: str, url: str, **options: Any) -> Any:
            with self.gate.request():
                if method == "DELETE":
                    world.deleting(self.session, url.rpartition("/")[2])
                return send(method, url, **options)

        store._api.send = gated  # type: ignore[method-assign]
        self.store = store
        return store

    def start(self, session: str) -> None:
        """What `open_session` does: take the run, and go on from its newest checkpoint."""
        world, clock = self._world, self._world.clock
        self.session, began = session, clock.time()
        repository = Repository(self.open(), RUN)
        try:
            take_up(repository)
            repository.open_run(created=began, run_id=session * 2)
            loaded = load_newest(repository, lambda *_: None, sleep=clock.sleep)
            manifest = None if loaded is None else loaded.manifest
            if manifest is None and world.safe_since is not None and began - world.safe_since > LAG:
                world.wrong.append(f"{session} begins at step zero what was safe {began - world.safe_since} s ago")
            world.counts["started" if manifest is None else "resumed"] += 1
            lease = take_lease(repository, session, {KEEPS: repr(KeepLast(world.keep)), "started": began})
        except NoUsableCheckpoint:
            world.counts["refused"] += 1
        except RunTakenOver:
            world.counts["told"] += 1
        else:
            self._begin(repository, lease, manifest)

    def _begin(self, repository: Repository, lease: Any, manifest: Manifest | None) -> None:
        identity = Identity(framework="numpy", fingerprint={}, began=manifest, heir=manifest is not None)
        self._events: deque[Event] = deque()
        self._journal = Journal(repository, self.session)
        self.committer = Committer(
            lease, self._journal, KeepLast(self._world.keep), self._world.clock, identity, self._events.append
        )
        if manifest is not None:
            self.committer.ledger.add(manifest, {})
        self._step = manifest.progress.step if manifest else 0

    def save(self) -> None:
        """One step more, and a checkpoint of it."""
        assert self.committer is not None
        self._step += 1
        progress = Progress(step=self._step, seconds=float(self._step))
        number = self._step if self._world.alike else self._step + 1000 * int(self.session[1:], 16)
        self._write(lambda committer: committer.commit(Taken(state(number)), progress, "steps", {}))

    def tidy(self) -> None:
        """What the writer does between saves."""
        self._write(lambda committer: committer.after_commit())

    def _write(self, call: Callable[[Committer], object]) -> None:
        committer, world = self.committer, self._world
        assert committer is not None
        try:
            call(committer)
        except RunTakenOver:
            self.committer = None
            world.counts["told"] += 1
        while self._events:
            event = self._events.popleft()
            if isinstance(event, SaveCommitted):
                world.counts["saved"] += 1
                self._journal.add({"at": world.clock.time(), "event": COMMITTED, "checkpoint": event.checkpoint})
        if committer.ledger.safe is not None and world.safe_since is None:
            world.safe_since = world.clock.time()

    def prune(self) -> None:
        """`colabkeep prune --keep-last 1`, as another process of this machine. It may refuse."""
        self.session = "prune"
        try:
            prune(self.open(), RUN, KeepLast(1), self._world.clock)
            self._world.counts["pruned by hand"] += 1
        except ColabKeepError:
            self._world.counts["not pruned"] += 1


def machine_on(drive: Drive, counts: Counter[str]) -> type[RuleBasedStateMachine]:
    """The state machine's class for one server. Each history has a folder of its own. `counts` what happens."""
    folders, clock = (f"two-{number}" for number in itertools.count()), SharedClock(drive)

    class Takeovers(RuleBasedStateMachine):
        @initialize(
            keep=st.sampled_from((1, 2)),
            past=st.lists(st.sampled_from((0.0, LAG + 1)), max_size=3),
            alike=st.booleans(),
            late=LAGS,
        )
        def begin(self, keep: int, past: list[float], alike: bool, late: Late) -> None:
            """`past`: seconds after each checkpoint that is there when it begins, of a machine that still lives.
            `alike`: at one step all sessions have the same state, as those have that resume exactly."""
            drive.faults()
            self.world = World(drive, next(folders), clock, keep, alike, counts)
            counts["histories"] += 1
            self.machines = {name: Machine(self.world) for name in NAMES}
            self.sessions = 0
            if past:
                self.start("A", "8", at_once=True)
            for seconds in past:
                self.save("A", at_once=True)
                clock.advance(seconds)
            self.lag(late)

        @rule(who=st.sampled_from(NAMES), letter=st.sampled_from("0f"), at_once=st.booleans())
        def start(self, who: str, letter: str, at_once: bool) -> None:
            """Takes over from whoever writes. A machine that did something else is gone, as after a reconnect."""
            self.machines[who].kill()
            machine = self.machines[who] = Machine(self.world)
            self.sessions += 1
            session = f"{letter}{self.sessions:07x}"
            machine.tell(lambda: machine.start(session))
            machine.let(ALL if at_once else 0)

        @rule(who=st.sampled_from(NAMES), at_once=st.booleans())
        def save(self, who: str, at_once: bool) -> None:
            machine = self.machines[who]
            machine.let(ALL)
            if machine.committer is not None:
                machine.tell(machine.save)
                machine.let(ALL if at_once else 0)

        @rule(who=st.sampled_from(NAMES))
        def tidy(self, who: str) -> None:
            machine = self.machines[who]
            machine.let(ALL)
            if machine.committer is not None:
                machine.tell(machine.tidy)

        @rule(who=st.sampled_from(NAMES), requests=st.integers(1, 25))
        def go_on(self, who: str, requests: int) -> None:
            self.machines[who].let(requests)

        @rule(who=st.sampled_from(NAMES), prunes=st.booleans())
        def crash(self, who: str, prunes: bool) -> None:
            """SIGKILL; then the machine stays off, or its user runs `colabkeep prune` there."""
            self.machines[who].kill()
            machine = self.machines[who] = Machine(self.world)
            if prunes:
                machine.tell(machine.prune)

        @rule(late=LAGS)
        def lag(self, late: Late) -> None:
            """From now on; with nothing to lag by, not any more."""
            stale = stale_listing(LAG, by=late.by, within=late.within)
            half = partial_listing(*late.within).on("GET", "/files$", count=None, chance=0.5)
            drive.faults(
                *[half] * late.partial, *[stale.on("GET", "/files$", count=None, chance=late.chance)] * bool(late.by)
            )

        @rule(seconds=st.sampled_from((6.0, 61.0, 125.0, 3700.0)))
        def time_passes(self, seconds: float) -> None:
            clock.advance(seconds)

        @invariant()
        def nothing_is_wrong(self) -> None:
            if hasattr(self, "world"):
                assert not self.world.wrong, self.world.wrong
                assert self.world.safe_since is None or self.world.whole(), "no checkpoint is whole any more"

        def teardown(self) -> None:
            drive.faults()
            if hasattr(self, "world"):
                try:
                    self.settle()
                finally:
                    for machine in self.machines.values():
                        machine.kill()

        def settle(self) -> None:
            """When the listings show all, and everybody who lives has saved."""
            for machine in self.machines.values():
                machine.let(ALL)
            living = [machine for machine in self.machines.values() if machine.committer is not None]
            for _ in range(2):
                clock.advance(LAG + 61)
                for machine in living:
                    if machine.committer is not None:
                        machine.tell(machine.save)
                        machine.let(ALL)
            self.nothing_is_wrong()
            writers = [machine for machine in living if machine.committer is not None]
            last = [machine for machine in living if machine.session == self.world.highest()]
            assert writers == last, f"{len(writers)} of {len(living)} go on"
            self.look_in(writers)

        def look_in(self, writers: list[Machine]) -> None:
            stranger, found = Machine(self.world), []
            stranger.tell(lambda: found.append(load_newest(Repository(stranger.open(), RUN), lambda *_: None)))
            stranger.let(ALL)
            stranger.kill()
            manifest = found[0].manifest if found[0] is not None else None
            assert manifest is not None or self.world.safe_since is None, "a stranger finds nothing"
            assert not writers or (manifest is not None and manifest.session == writers[0].session)

    return Takeovers


def explore(drive: Drive, examples: int, counts: Counter[str], *, steps: int = 25) -> None:
    """Try so many histories. Raises AssertionError, with the shortest one found, where something is wrong."""
    drive.set(token_seconds=10**9)  # hours pass
    few = settings(
        deadline=None,
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    run_state_machine_as_test(machine_on(drive, counts), settings=few)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=25, help="of a history, at most")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    began, wrong, counts = time.monotonic(), [], Counter[str]()
    with (
        tempfile.TemporaryDirectory(prefix="colabkeep-takeovers-") as folder,
        running_drive(Path(folder), quota_bytes=None) as drive,
    ):
        try:
            explore(drive, words.examples, counts, steps=words.steps)
        except AssertionError as error:
            wrong = [str(error), *getattr(error, "__notes__", ())]
    told = {**counts, "seconds": round(time.monotonic() - began, 1), "wrong": wrong}
    print(json.dumps(told) if words.json else "\n".join(f"{name:>14}: {value}" for name, value in told.items()))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

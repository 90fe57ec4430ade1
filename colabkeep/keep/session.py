"""One folder, kept while a program works in it: put back at the start, watched on a thread, and a last version at the
end.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote

from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import KEEPS, Repository, take_lease
from colabkeep.checkpoint.restore import load_newest, newest_first
from colabkeep.checkpoint.writer import Checkpointer, Committer, Identity
from colabkeep.core.arguments import Duration, duration_text, interval_text, read_duration
from colabkeep.core.errors import (
    CheckpointError,
    ColabKeepError,
    NotStorable,
    RunBusy,
    SaveFailed,
    UsageError,
)
from colabkeep.core.events import (
    CheckpointSkipped,
    DeadlineNear,
    Durability,
    DurabilityTold,
    Event,
    FolderSeen,
    MachineGiven,
    Noted,
    Restored,
    RunStarted,
    RunStopped,
    SaveCommitted,
    SpaceShort,
    StoreDegraded,
)
from colabkeep.core.manifest import FOLDER, Manifest, Progress
from colabkeep.core.state import Stale
from colabkeep.core.system import Clock, Environment
from colabkeep.keep.content import Content, FileChanged, grows
from colabkeep.keep.tree import Entry, Patterns, Scan, scan
from colabkeep.keep.version import PART, FolderCapture, encode_folder, put_back, stored_packs, table_of
from colabkeep.keep.watch import SETTLE, Look, Watch
from colabkeep.platforms.base import MOUNTED_DRIVE, file_system
from colabkeep.session.machine import Deadline, StopRequests, machine_id, still_copying, still_saving
from colabkeep.session.open import RunArguments, asked_for, cache_folder, take_lock, this_process
from colabkeep.session.run import EventBus
from colabkeep.session.scheduler import UploadLatency
from colabkeep.stores.base import Store, sides

_POLL = 2.0  # seconds between two looks, at most
_SHARE = 0.01  # of one core, at most, that looking may take
_PATIENCE = 300.0  # seconds of which it is said that nothing was at rest, and then after each time twice as long
_SAY = 10.0  # seconds between two words about files that are put back
_LAST_TRIES = (0.0, 0.5, 2.0)  # seconds before each attempt at the last version
_BEHIND = "the newest version is on this machine's disk only. Run this again while the machine lives, and it is sent."
_PAUSE = 5.0  # seconds between two words about what a look saw
_COMPARED = 8  # versions with which files that are there already are compared
_REMEMBERED = 4  # versions whose files are remembered, to tell what is not in them
STOP_PATIENCE = 120.0
"""Seconds that a program has to end after it was asked to, each time that it is asked."""
_LOGS = 5.0  # times `every` between versions in which only logs have grown
_MOUNTED = "mounted://"
_DEADLY = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
_PROMISE = (
    "The files come back byte for byte, with their times and permissions. What the program does with them is its own."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSpec:
    """What a kept folder is made of: the words of the user, read, and what was found for them. Times in seconds.
    `run`: of the words those that every run knows."""

    folder: str
    name: str
    run: RunArguments
    store: Store
    environment: Environment
    clock: Clock
    patterns: Patterns
    restore: str = "auto"
    every: float = 60.0
    settle: float = SETTLE
    deadline: Deadline | None = None
    machine: Callable[[], MachineGiven] | None = None
    notes: tuple[str, ...] = ()

    @property
    def marks(self) -> Path | None:
        """Where this machine remembers folders."""
        disk = cache_folder(self.environment)
        return None if disk is None else disk / "folders"


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """What a folder began with. `source`: "storage" if a stored version was put into it, "folder" if the files of this
    run were there still, as after a restarted kernel. `version` counts from 1; `saved`: when it was made, in seconds
    since 1970; both are those of the newest version known. `files`, `bytes`: what is in the folder."""

    source: str
    version: int
    saved: float
    files: int
    bytes: int


class KeptFolder:
    """A folder whose whole versions are kept, as a context manager around the program that writes it."""

    def __init__(self, spec: FolderSpec) -> None:
        self.folder = os.path.realpath(spec.folder)
        self.restored: PutBack | None = None
        self.cut_off = False
        """Was the program ended in the middle, by a signal that it could not answer? Then the last version is made only
        of what was at rest."""
        self._spec = spec
        self._stack = ExitStack()
        self._events = deque[Any]()
        self._wake, self._stopping, self._ending = threading.Event(), False, threading.Lock()
        self._signals = StopRequests()
        self._end_program: Callable[[], None] | None = None
        self._stopped: tuple[str, str] | None = None  # why the program ended, where that is known
        self._interrupted = False  # by us, because its time is over
        self._every, self._made_at, self._budgeted = spec.every, -math.inf, 0.0
        self._urgent = False  # a version is to be made, however soon after the last one
        self._near = False  # the end was told
        self._made: dict[str, Mapping[str, Entry]] = {}  # version → its files
        self._making: Mapping[str, Entry] = {}
        self._looked = False
        self._owed = 0.0  # seconds of a core that looks took beyond their share
        self._waiting = self._news = False  # did the last look see what was not at rest, and was it the first one?
        self._only_logs = False  # did the last version have nothing else that was new?
        self._short: set[str] = set()  # places of which it was told that a version may not fit
        self._shown: tuple[object, ...] = ()
        self._shown_at = -math.inf
        self._flush_until = math.inf
        self._asked, self._answered, self._done = 0, 0, threading.Condition()
        self._failure: ColabKeepError | None = None
        self._told_waits = _PATIENCE
        self._waits_since: float | None = None
        self._said: set[str] = set()

    def __enter__(self) -> KeptFolder:
        """Take the run and the folder, put the newest version back where that is to be, and begin to watch.

        Raises:
            RunBusy: another process keeps this run, or this folder.
            UsageError: the folder has other files.
            NoUsableCheckpoint, StoreError: the versions cannot be read.
        """
        with self._stack:
            self._open()
            self._stack = self._stack.pop_all()
        return self

    def _open(self) -> None:
        spec, clock = self._spec, self._spec.clock
        about = this_process(clock)
        if spec.store is not spec.run.storage:  # it was opened for this
            self._stack.callback(spec.store.close)
        lock = take_lock(spec.store, spec.name, about)
        self._stack.callback(lock.release)
        _refuse_place(self.folder, spec)
        os.makedirs(self.folder, exist_ok=True)
        self._stack.enter_context(_alone(self.folder))
        self._repository = Repository(spec.store, spec.name)
        take_up(self._repository)
        self._repository.open_run(created=clock.time(), run_id=secrets.token_hex(8))
        self._content = Content(self.folder)
        self._watch = Watch(self.folder, spec.patterns, clock.monotonic, spec.settle)
        self._arrivals = UploadLatency(spec.store.properties.top_level, clock)
        place = os.stat(self.folder).st_ino
        begun = self._begin()
        if os.stat(self.folder).st_ino != place:  # another folder is there in its place
            self._stack.enter_context(_alone(self.folder))
        session = secrets.token_hex(4)
        machine = None if spec.machine is None else spec.machine()
        about |= {} if machine is None else {"machine": asdict(machine)}
        lease = take_lease(self._repository, session, {**about, KEEPS: repr(spec.run.retention), "folder": self.folder})
        self._mark(session, begun)
        journal = Journal(self._repository, session)
        committer = Committer(
            lease,
            journal,
            spec.run.retention,
            clock,
            Identity(
                framework=FOLDER,
                fingerprint={},
                began=begun,
                heir=self.restored is not None and self.restored.source == "storage",
            ),
            self._hear,
            encode=encode_folder,
        )
        self._newest = None if begun is None else begun.id
        if begun is not None:
            committer.ledger.add(begun, {})
        self._saver = Checkpointer(partial(FolderCapture, self.folder, self._content), committer, clock, self._events)
        self._number = 0 if begun is None else begun.progress.step
        now = clock.monotonic()
        self._zero = now - (0.0 if begun is None else begun.progress.seconds)
        self._last_seconds = now - self._zero
        self._until = math.inf if spec.run.max_time is None else now + spec.run.max_time
        self._saver.begin(self._zero)
        self._bus = EventBus(spec.run.observers, clock, queue=self._events, journal=journal)
        self._events.appendleft(
            RunStarted(
                run=spec.name,
                session=session,
                storage=spec.store.url,
                promise=_PROMISE,
                folder=spec.store.properties.folder,
                ends_at=None if spec.deadline is None else clock.time() + spec.deadline.at - now,
                ends_source="" if spec.deadline is None else spec.deadline.source,
                keeps=self.folder,
                asked=asked_for(spec.run.storage),
            )
        )
        if machine is not None:
            self._events.appendleft(machine)
        self._events.extend(Noted(text=note) for note in spec.notes)
        self._bus.drain()
        if threading.current_thread() is threading.main_thread():
            self._end_program = self._interrupt
        self._signals.install()
        self._stack.callback(self._signals.remove)
        self._signals.obey()
        # In the context of the cell: a notebook's output is shown below it, from this thread too.
        work = partial(copy_context().run, self._work)
        self._thread = threading.Thread(target=work, name="colabkeep-folder", daemon=True)
        self._thread.start()

    def _begin(self) -> Manifest | None:
        """Bring the folder to where the run is. Returns the version that the next one follows."""
        there = bool(os.listdir(self.folder))
        if self._spec.restore == "never":
            if self._repository.ids():
                self.say(
                    'restore="never": started again with what is in the folder. The versions of before stay in the '
                    f"storage; `colabkeep prune {self._spec.name} --apart` deletes them."
                )
            return None
        if there and self._spec.restore != "overwrite":
            known = newest_first(self._repository)
            found, readable = scan(self.folder, self._spec.patterns), list(islice(self._readable(known), _COMPARED))
            if not self._is_old(found, readable):
                return self._continued(found, readable, known)
        loaded = load_newest(
            self._repository,
            lambda id, why: self._events.append(CheckpointSkipped(checkpoint=id, reason=why)),
            sleep=self._spec.clock.sleep,
            load=self._put_back,
        )
        if self._spec.restore == "overwrite" and there and loaded is None:
            self.say(f"There is no version of {self._spec.name!r} yet: what is in {self.folder} stays, and is kept.")
        return None if loaded is None else loaded.manifest

    def _is_old(self, found: Scan, readable: list[Manifest]) -> bool:
        """Is what is in the folder a version of this run, with nothing changed, that another machine has gone on
        from? Then nothing is lost by putting the newest one there."""
        mark = self._mark_of()
        return (
            len(readable) > 1
            and not (mark is not None and _follows(mark, readable[0]))
            and any(table_of(self._repository, old).entries == found.entries for old in readable[1:])
        )

    def _continued(self, found: Scan, readable: list[Manifest], known: list[str]) -> Manifest | None:
        """There are files already: those of this run, which go on, or others, which are never overwritten.

        Raises:
            UsageError: others, and the run has versions.
        """
        manifest = readable[0] if readable else None
        if manifest is None and known:
            raise _other_files(self._spec, self.folder)
        mark = self._mark_of()
        if manifest is not None:
            table = table_of(self._repository, manifest)
            if dict(table.entries) != dict(found.entries):
                if mark is None:
                    raise _other_files(self._spec, self.folder)
                if not _follows(mark, manifest):
                    raise _newer_elsewhere(self._spec, self.folder, manifest)
            self._content.adopt(table, stored_packs(manifest), {})
            self._watch.kept(Scan(entries=table.entries, left_out={}))
            self._made[manifest.id] = table.entries
            self.restored = _as_put_back("folder", manifest, found)
            age = duration_text(max(0.0, self._spec.clock.time() - manifest.created))
            self.say(
                f"{self.folder} has this run's files still, as after a restarted kernel: they stay as they are. The "
                f"newest version, {manifest.progress.step}, was made {age} ago."
            )
        if mark is not None:
            self._watch.left(found)
        return manifest

    def _readable(self, ids: list[str]) -> Iterator[Manifest]:
        for id in ids:
            try:
                manifest = self._repository.manifest(id)
                table_of(self._repository, manifest)
            except CheckpointError as error:
                self._events.append(CheckpointSkipped(checkpoint=id, reason=error.problem))
            else:
                yield manifest

    def _put_back(self, manifest: Manifest) -> dict[str, Any]:
        """Make the files beside the folder, and let them take its place when all are there: a folder that is half put
        back is never seen, and what stood there before is moved, not deleted."""
        parent, name = os.path.split(self.folder)
        left = re.compile(re.escape(f".{name}.colabkeep-") + "[0-9a-f]{8}")  # of a machine that died in the middle
        made = os.path.join(parent, f".{name}.colabkeep-{secrets.token_hex(4)}")
        try:
            for each in filter(left.fullmatch, os.listdir(parent)):
                shutil.rmtree(os.path.join(parent, each), ignore_errors=True)
            os.mkdir(made)
            table = put_back(self._repository, manifest, made, self._progress(manifest))
            self._replace_folder(made)
        except BaseException as error:
            shutil.rmtree(made, ignore_errors=True)
            if isinstance(error, OSError) and not isinstance(error, ColabKeepError):
                raise _cannot_put_back(self.folder, manifest, error) from error
            raise
        found = scan(self.folder, self._spec.patterns)
        stamps = {path: entry.stamp for path, entry in found.entries.items()}
        self._content.adopt(table, stored_packs(manifest), stamps)
        self._made[manifest.id] = {path: found.entries.get(path, entry) for path, entry in table.entries.items()}
        self._watch.kept(Scan(entries=self._made[manifest.id], left_out={}))
        self.restored = _as_put_back("storage", manifest, found)
        age = max(0.0, self._spec.clock.time() - manifest.created)
        self._events.append(Restored(checkpoint=manifest.id, progress=manifest.progress, age=age))
        return {}

    def _replace_folder(self, made: str) -> None:
        """By what was made beside it. What is in it stays, under another name."""
        aside = f"{self.folder}.before-{secrets.token_hex(4)}" if os.listdir(self.folder) else None
        here = os.path.samefile(".", self.folder)
        if aside is not None:
            os.rename(self.folder, aside)
        try:
            os.rename(made, self.folder)
        except OSError:
            if aside is not None:
                os.rename(aside, self.folder)
            raise
        if here:  # the program's relative paths are meant for what is there now
            os.chdir(self.folder)
        if aside is not None:
            self.say(f"The files that were in {self.folder} are in {aside} now.")

    def _progress(self, manifest: Manifest) -> Callable[[int], None]:
        """Says now and then how much is back."""
        clock, whole = self._spec.clock, sum(blob.size for blob in manifest.blobs)
        done, say_at = 0, clock.monotonic() + _SAY

        def count(size: int) -> None:
            nonlocal done, say_at
            done += size
            if clock.monotonic() >= say_at:
                say_at = clock.monotonic() + _SAY
                self.say(f"Putting the files back: {done / 1e9:.1f} of {whole / 1e9:.1f} GB.")

        return count

    # What this machine remembers of the folder: that its files are those of this run, in whatever state the program
    # has left them, and which versions they came with. It is forgotten with the machine.

    def _facts(self) -> dict[str, Any]:
        facts = os.stat(self.folder)
        place = {"run": self._spec.name, "store": self._spec.store.url, "device": facts.st_dev, "inode": facts.st_ino}
        return {**place, "machine": machine_id(self._spec.environment)}

    def _mark_file(self) -> Path | None:
        marks = self._spec.marks
        return None if marks is None else marks / f"{sha256(os.fsencode(self.folder)).hexdigest()[:16]}.json"

    def _mark_of(self) -> dict[str, Any] | None:
        """The mark of this very folder and run: `session` had it last, and began with the version `begun`."""
        file = self._mark_file()
        try:
            mark = None if file is None else json.loads(file.read_bytes())
        except (OSError, ValueError):
            return None
        if not isinstance(mark, dict) or not {"session", "begun"} <= mark.keys():
            return None
        return mark if self._facts().items() <= mark.items() else None

    def _mark(self, session: str, begun: Manifest | None) -> None:
        file = self._mark_file()
        if file is not None:
            mark = {**self._facts(), "session": session, "begun": None if begun is None else begun.id}
            with suppress(OSError):  # then a restarted kernel takes the files for somebody else's, and says so
                file.parent.mkdir(parents=True, exist_ok=True)
                beside = file.with_suffix(".new")
                beside.write_text(json.dumps(mark))
                beside.replace(file)

    # The thread that looks.

    def _work(self) -> None:
        while not self._stopping:
            began = self._spec.clock.monotonic()
            self._wake.wait(self._pause())
            self._wake.clear()
            self._owed = max(0.0, self._owed - _SHARE * (self._spec.clock.monotonic() - began))
            try:
                if not self._stopping:
                    self._turn()
            except BaseException as error:  # noqa: BLE001  # a thread has no caller: told, and raised at the end
                self._fail(error)

    def _pause(self) -> float:
        """Seconds until the next look. The more of a core looks take, the fewer there are; but there is one soon after
        one that saw something new, to tell whether that is at rest, and one when it has to be."""
        poll, now = min(_POLL, self._spec.settle), self._spec.clock.monotonic()
        pause = max(poll, self._owed / _SHARE)
        if self._news or self._asked > self._answered:
            pause, self._news = min(pause, self._spec.settle + poll), False
        left = min(self._until, self._last_call(now)) - now
        return min(pause, left) if left > 0 else pause

    def _last_call(self, now: float) -> float:
        """When the last version must begin to be safe before the session ends, and the program be told to end for it;
        infinite where nothing is known of an end."""
        deadline = self._spec.deadline
        if deadline is None:
            return math.inf
        takes = self._saver.longest + self._arrivals.seconds(now)
        return deadline.last_call(takes) - (STOP_PATIENCE if deadline.ends else 0.0)

    def _turn(self, *, last: bool = False) -> None:
        """Look, and make a version if there is one to make."""
        asked, now = self._asked, self._spec.clock.monotonic()
        if asked > self._answered:
            self._watch.trust()
        began, waited = time.thread_time(), self._waiting
        try:
            look = self._watch.look(last=last and not self.cut_off)
            self._owed += time.thread_time() - began
            self._waiting = bool(look.waits)
            self._news = self._waiting and not waited
        except OSError as error:
            self._once(f"The folder {self.folder} cannot be read ({error.strerror}), so no new version can be made.")
            return
        self._looked = True
        self._tell(look, now)
        if last:
            self._tell_last(look)
        else:
            self._look_ahead(now)
        reason = self._reason(look, now, asked=asked > self._answered, last=last)
        kept, left = not look.changed, len(look.changed)
        if reason and look.version is not None:
            self._weigh(look)
            self._making = look.version.entries
            kept = self._save(look.version, reason)
            self._urgent = self._urgent and not kept
            self._made_at, self._only_logs = self._spec.clock.monotonic(), look.only_logs
            left = len(look.held) if kept else left
        self._show(left, look.waits, now, last=last)
        self._bus.drain()
        if kept or self._failure is not None:
            with self._done:
                self._answered = asked
                self._done.notify_all()

    def _reason(self, look: Look, now: float, *, asked: bool, last: bool) -> str | None:
        if last:
            return "end"
        if asked:
            return "asked"
        if self._urgent:
            return "deadline"
        again = self._saver.due(now)
        if again is not None or self._saver.waiting is not None:
            return again
        pause = max(self._every * (_LOGS if self._only_logs and look.only_logs else 1.0), self._budgeted)
        return "changed" if now >= self._made_at + pause else None

    def _weigh(self, look: Look) -> None:
        """Tell before it is made that a version may not fit, by what has changed in the folder. What is deleted to make
        room goes only when the new one is complete."""
        version, properties = look.version, self._spec.store.properties
        if version is None:
            return
        found = (version.entries.get(path) for path in look.changed)
        size = sum(entry.size for entry in found if entry is not None and not entry.same_as)
        behind = properties.behind
        rooms = {self._spec.store.url: properties.free_bytes} | ({behind.url: behind.free_bytes} if behind else {})
        for url, free in rooms.items():
            if free is not None and free < size and url not in self._short:
                self._events.append(SpaceShort(url=url, free_bytes=free, save_bytes=size))
                self._short.add(url)
            elif free is None or free >= size:
                self._short.discard(url)

    def _look_ahead(self, now: float) -> None:
        """Is the end of the session, or of `max_time`, so near that the last version must be made now, and the program
        be ended for it?"""
        deadline, takes = self._spec.deadline, self._saver.longest + self._arrivals.seconds(now)
        if self._near or self._stopping:
            return
        if now >= self._until:
            self.say(f"max_time={interval_text(self._spec.run.max_time or 0.0)} is over.")
            self._end("max_time")
        elif deadline is not None and now >= self._last_call(now):
            self._events.append(DeadlineNear(seconds=max(0.0, deadline.at - now), ends=deadline.ends, takes=takes))
            self._near = self._urgent = True
            if deadline.ends:
                self._end("session_end")

    def _end(self, reason: str) -> None:
        """Have the program end, because its time is over: in time for its last version."""
        self._near = self._urgent = True
        with self._ending:
            if self._stopping:
                return
            self._stopped = (reason, "")
            if self._end_program is None:
                self.say("Nothing here can end the program: let it end by itself, soon. Its files are kept until then.")
            else:
                self._end_program()

    def _interrupt(self) -> None:
        """As Ctrl-C does, and the notebook's stop button: where this process leads a group, the programs that it has
        started are interrupted too."""
        self._interrupted = True
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGINT)
        else:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _show(self, changed: int, waiting: Mapping[str, str], now: float, *, last: bool) -> None:
        """Have displays say what was seen, where that is new, and once a minute. `changed` files are not as in the
        newest version."""
        if now < self._shown_at + _PAUSE and not last:
            return
        path, why = next(iter(waiting.items()), ("", ""))
        waits, durability = f"{path} ({why})" if path else "", self.durability
        shown = changed, waits, durability.checkpoint, durability.level, durability.lost, now // 60
        if shown != self._shown:
            self._shown, self._shown_at = shown, now
            self._events.append(FolderSeen(changed=changed, waits=waits, durability=durability))

    def _hear(self, event: Event) -> None:
        """What the engine says, also on its own thread."""
        if isinstance(event, (DurabilityTold, StoreDegraded)) and event.durability is not None:
            event = replace(event, durability=self._judged(event.durability))
        elif isinstance(event, SaveCommitted):
            self._newest = event.checkpoint
            self._last_seconds = event.progress.seconds
            self._made = dict([*self._made.items(), (event.checkpoint, self._making)][-_REMEMBERED:])
            self._respect(event.written)
        self._arrivals(event)
        self._events.append(event)

    def _respect(self, written: int) -> None:
        """Versions come no faster than the place takes them for a day."""
        properties = self._spec.store.properties
        budget = (properties.behind or properties).budget
        self._budgeted = 0.0 if budget is None else budget.interval(written)
        if budget is not None and self._budgeted > self._every:
            self._once(
                f"Versions come {interval_text(self._budgeted)} apart at least, not {interval_text(self._every)} "
                f"(every=…): {self._spec.store.url} takes no more ({budget.text()})."
            )

    def _judged(self, durability: Durability) -> Durability:
        """The same, with what no safe version has of the folder as it was seen last."""
        durability = replace(durability, versions=True)
        safe = {} if durability.checkpoint is None else self._made.get(durability.checkpoint)
        paths = None if safe is None or not self._looked else self._watch.since(safe)
        if paths is None or (paths and durability.checkpoint is None):
            return durability
        if not paths:
            return replace(durability, lost="", lost_seconds=0.0)
        entries = [entry for entry in map(self._watch.seen, paths) if entry is not None and entry.kind == "file"]
        text = duration_text(durability.lost_seconds)
        if entries:
            newest = max(entries, key=lambda entry: (not grows(entry.path), entry.mtime))
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            text += f" ({newest.path} of {datetime.fromtimestamp(newest.mtime / 1e9):%H:%M}{more})"
        return replace(durability, lost=text)

    def _save(self, version: Scan, reason: str) -> bool:
        """Make a version of what was seen. False where that failed: it is told, and tried again."""
        progress = Progress(step=self._number + 1, seconds=self._spec.clock.monotonic() - self._zero)
        try:
            begun = self._saver.save({PART: version}, progress, reason, {})
            self._saver.wait(meanwhile=self._bus.drain)
            self._saver.raise_past_failure()
            stale = self._saver.stale
        except Stale as error:
            begun, stale = False, error
        except NotStorable as error:
            self._once(f"{error.problem} {error.remedy}")
            return False
        except SaveFailed as error:  # what failed is told already
            self._once(error.remedy)
            return False
        if isinstance(stale, FileChanged):
            self._watch.missed(stale.path, stale.why)
        if not begun or self._saver.saved != progress:
            return False
        self._number += 1
        self._watch.kept(version)
        return True

    def _tell(self, look: Look, now: float) -> None:
        for path, why in look.left_out.items():
            self._once(f"{path} is not kept: {why}.")
        if not look.waits:
            self._waits_since, self._told_waits = None, _PATIENCE
            return
        self._waits_since = now if self._waits_since is None else self._waits_since
        if now - self._waits_since >= self._told_waits:
            self._told_waits *= 2
            path, why = next(iter(look.waits.items()))
            more = f", and {len(look.waits) - 1} more" if len(look.waits) > 1 else ""
            kept = (
                "The other files are kept; this one stays as in the last version." if look.version is not None else ""
            )
            self.say(
                f"For {duration_text(now - self._waits_since)} the folder has not been at rest: {path} ({why}){more}. "
                f"{kept or 'The last version stays the newest one.'}"
            )

    def _tell_last(self, look: Look) -> None:
        if self.cut_off and look.waits and look.version is None:
            path, why = next(iter(look.waits.items()))
            self.say(
                f"The program was killed while it wrote, or less than {duration_text(self._spec.settle)} after "
                f"({path}: {why}), so some of its files may be newer than others. No version was made of them: the "
                "last one stays the newest. They are in the folder as they were left."
            )
            return
        for path, why in look.held.items():
            self._once(f"{path} is not complete ({why}): the last version has an older copy of it, or none.")

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, ColabKeepError):
            error = SaveFailed(
                problem=f"The folder {self.folder} is not watched any more: {type(error).__name__}: {error}.",
                remedy="What was kept before is untouched. Run it again; if it happens again, please report it.",
            )
        self._failure, self._stopping = error, True
        self.say(f"{error.problem} {error.remedy}")
        self._bus.drain()
        with self._done:
            self._done.notify_all()

    def say(self, text: str) -> None:
        """Tell a sentence, at the next look."""
        self._events.append(Noted(text=text))

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    # What the user calls.

    @property
    def durability(self) -> Durability:
        """What would be lost if this machine vanished now, as of the last look: `sentence` says it."""
        return self._judged(self._saver.ledger.durability())

    @property
    def version(self) -> int:
        """The number of the newest version; 0 where there is none yet."""
        return self._number

    def every(self, interval: Duration) -> None:
        """From now on at least so long, in seconds or as "10 min", is between the beginnings of two versions.

        Raises:
            UsageError: that is no duration.
        """
        self._every = read_duration("every", interval)

    def at_end(self, end_program: Callable[[], None]) -> None:
        """Have the program ended so when its time is over. Called on another thread, and waits for nothing."""
        self._end_program = end_program

    def ended(self, reason: str, error: str = "") -> None:
        """Why the program has ended, by the words of `RunStopped`, where nothing else tells it."""
        self._stopped = self._stopped or (reason, error)

    def save(self, timeout: float = 300.0) -> bool:
        """Make a version of the folder as it is, as soon as it is at rest, and wait for it for `timeout` seconds at
        most. True when there is one, or nothing has changed since the last.

        Raises:
            ColabKeepError: the folder cannot be kept any more.
        """
        with self._done:
            self._asked += 1
            mine = self._asked
            self._wake.set()
            self._done.wait_for(lambda: self._answered >= mine or self._failure is not None, timeout)
        if self._failure is not None:
            raise self._failure
        return self._answered >= mine

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Make a last version, wait until it is safe, let go. Ends the interrupt that came because the program's time
        is over.

        Raises:
            RunTakenOver, SaveFailed: the folder was not kept to its end.
            KeyboardInterrupt, SystemExit: asked for by a signal meanwhile.
        """
        if isinstance(error, subprocess.CalledProcessError):
            self.cut_off = was_cut_off(error.returncode)
        with self._stack:
            self._leave()
            self._wake.set()
            self._thread.join()
            try:
                if self._failure is None:
                    self._last_version()
            finally:
                self._events.append(self._why_stopped(error))  # into the journal, with the rest
                self._bus.drain()
                patience = self._spec.run.flush_timeout
                self._flush_until = self._spec.clock.monotonic() + patience
                try:
                    there = self._saver.close(patience, self._bus.drain)
                    if not there and self._failure is None:
                        self.say(f"{self._spec.store.url} has not caught up yet: {_BEHIND}")
                finally:
                    self._bus.drain()
                self._bus.step(DurabilityTold(durability=self.durability))
        if self._failure is not None and error is None:
            raise self._failure
        if error is None and self._signals.requested is not None:
            self._signals.honour()
        return self._interrupted and isinstance(error, KeyboardInterrupt)

    def _leave(self) -> None:
        """From here on nobody ends the program any more, and who asks to stop waits for the last version."""
        try:
            self._signals.leave(lambda number: self._events.append(self._answer(number)))
            with self._ending:
                self._stopping = True
            time.sleep(0)  # an interrupt of ours that is on its way comes here
        except KeyboardInterrupt:
            if not self._interrupted:
                raise
        self._stopping = True

    def _answer(self, number: signal.Signals) -> Noted:
        """To somebody who asks to stop while the last version is made."""
        if math.isinf(self._flush_until):
            return Noted(text=still_saving(number, self._saver.left, 0))
        left = max(0.0, self._flush_until - self._spec.clock.monotonic())
        return Noted(text=still_copying(number, self._spec.store.url, left))

    def _last_version(self) -> None:
        """What something else still writes may change in the middle: then it is tried again."""
        for pause in _LAST_TRIES:
            self._spec.clock.sleep(pause)
            try:
                self._turn(last=True)
            except ColabKeepError as failure:
                self._fail(failure)
                return
            if self.cut_off or not self._watch.look(last=True).version:
                break
        else:
            self.say("The last changes could not be kept; the version before them is the newest.")
        if not self._number and not self.cut_off:
            self.say(f"There is nothing in {self.folder}, so no version was made. Does the program write elsewhere?")

    def _why_stopped(self, error: BaseException | None) -> RunStopped:
        reason, said = self._stopped or ("finished", "")
        if isinstance(error, Exception):
            text = str(getattr(error, "problem", error))  # the journal's texts are English
            reason, said = "error", ": ".join(filter(None, (type(error).__name__, text.strip()[:500])))
        elif error is not None and self._stopped is None:
            reason = "interrupt" if isinstance(error, KeyboardInterrupt) else "left"
            if isinstance(error, SystemExit) and error.code in (129, 143):
                reason = "sigterm" if error.code == 143 else "sighup"
        whole = self._number == 0 or not self._watch.look(last=True).changed
        seconds = self._last_seconds if whole else self._spec.clock.monotonic() - self._zero
        return RunStopped(
            reason=reason,
            progress=Progress(step=self._number, seconds=seconds),
            checkpoint=self._newest,
            error=said.partition("\n")[0],
            not_finite_since=None,
        )


def was_cut_off(status: int) -> bool:
    """Does this exit status, Python's or a shell's, say that a program could not end what it was writing?"""
    if status < 0:
        return -status != signal.SIGINT  # Python unwinds at that one, and ends with it
    return status - 128 in _DEADLY


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Hold the folder for this process.

    Raises:
        RunBusy: another one has it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunBusy(
                problem=f"Another colabkeep keeps the folder {folder} already.",
                remedy="Let it run, or stop it first (interrupt its cell, or restart its kernel).",
            ) from error
        except OSError:  # a mount without locks: the run's own lock and fence are there
            pass
        yield
    finally:
        os.close(descriptor)


def _as_put_back(source: str, manifest: Manifest, found: Scan) -> PutBack:
    files = sum(entry.kind == "file" for entry in found.entries.values())
    return PutBack(source=source, version=manifest.progress.step, saved=manifest.created, files=files, bytes=found.size)


def _other_files(spec: FolderSpec, folder: str) -> UsageError:
    return UsageError(
        problem=f"The folder {folder} is not empty: its files are neither the newest version of {spec.name!r} in "
        f"{spec.store.url}, nor the files of this machine from which that version was made. Nothing was changed.",
        remedy="Name an empty folder, and that version is put into it; or take "
        'restore="overwrite" (--restore overwrite), which puts it here and moves what is here beside it; or '
        'restore="never" (--restore never), which begins anew with what is here; or another run_name (--run), for a '
        "new run.",
    )


def _follows(mark: Mapping[str, Any], newest: Manifest) -> bool:
    """Is the newest version of the session that had the folder last, or the one that it began with? If not, another
    machine, or another folder, has gone on since."""
    return bool(newest.id == mark["begun"] or newest.session == mark["session"])


def _newer_elsewhere(spec: FolderSpec, folder: str, manifest: Manifest) -> UsageError:
    return UsageError(
        problem=f"Version {manifest.progress.step} of {spec.name!r} in {spec.store.url} was made elsewhere after the "
        f"files in {folder} were written. Nothing was changed.",
        remedy='restore="overwrite" (--restore overwrite) puts that version here, and moves what is here beside it; '
        'restore="never" (--restore never) begins anew with what is here.',
    )


def _cannot_put_back(folder: str, manifest: Manifest, error: OSError) -> UsageError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    what = "the disk is full" if full else f"{error.strerror}"
    return UsageError(
        problem=f"The files of {manifest.run!r} could not be put into {folder}: {what}. The folder is as it was.",
        remedy="Free some space, or name a folder on a larger disk, and run it again."
        if full
        else "Name a folder in which you may write, below your home or on this machine's disk, and run it again.",
    )


def _refuse_place(folder: str, spec: FolderSpec) -> None:
    """See that the folder can be put back whole, and is not where its versions go.

    Raises:
        UsageError: it is not to be kept there.
    """
    if os.path.ismount(folder):
        raise UsageError(
            problem=f"{folder} is a mount, or a whole disk: it cannot be replaced by what is restored.",
            remedy=f"Name a folder in it: {os.path.join(folder, 'train')}.",
        )
    on_drive = file_system(replace(spec.environment, folder=Path(folder))) == MOUNTED_DRIVE
    for side in sides(spec.store):
        url = side.url
        mounted = unquote(url.removeprefix(_MOUNTED)) if url.startswith(_MOUNTED) else None
        place = mounted or side.properties.folder
        if place is None:
            continue
        place = os.path.realpath(place)
        if os.path.commonpath([folder, place]) in (folder, place):
            raise UsageError(
                problem=f"The folder {folder} contains the storage {place}, or lies in it: each version would hold "
                "those before it.",
                remedy="Name a folder of which the storage is no part, such as the one below it that the program "
                "writes, or another storage.",
            )
        on_drive |= mounted is not None and _is_in_drive(folder, place)
    if on_drive:
        raise UsageError(
            problem=f"The folder {folder} lies on the mounted Drive. What a program writes there may be lost in the "
            "mount's cache, and each version would be read through it again.",
            remedy="Let the program write to this machine's own disk, such as /content/train, and keep that folder: "
            f"its versions go to {spec.store.url}.",
        )


def _is_in_drive(folder: str, place: str) -> bool:
    """Are both in one mounted Drive? It shows "MyDrive" and "Shareddrives" side by side."""
    drives = [each.parent for each in Path(place).parents if each.name in ("MyDrive", "Shareddrives")]
    return any(Path(folder).is_relative_to(drive) for drive in drives)

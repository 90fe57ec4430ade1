"""The history of a run over all its sessions, from what they left in the store: saves, resumes, outages, losses.
Changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

from colabkeep.checkpoint.compaction import Unfolded
from colabkeep.checkpoint.inspect import durability_of, listed_once, run_names, run_record
from colabkeep.checkpoint.journal import SEGMENT_FILE, JournalLines, Line, is_amount, read_journal
from colabkeep.checkpoint.lease import LEASE_FILE
from colabkeep.checkpoint.repository import CHECKPOINT_ID, Repository
from colabkeep.core.arguments import meant_run, run_folder
from colabkeep.core.durability import Durability
from colabkeep.core.errors import CheckpointDamaged, CheckpointError, CheckpointNotFound, StoreError
from colabkeep.core.events import PRUNED, PRUNING
from colabkeep.core.manifest import Manifest
from colabkeep.session.metrics import LOSSES, read_points, thinned
from colabkeep.stores.base import Store, check_name

__all__ = [
    "Message",
    "Outage",
    "RepeatedSteps",
    "RunHistory",
    "Save",
    "SessionHistory",
    "Sources",
    "Totals",
    "read_history",
    "write_session_history",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One checkpoint that was made. `at`: when, in seconds since 1970 (UTC); `blocked`: seconds that training waited;
    `seconds`: of background time; `bytes`: its size, of which `written` were new; `rung`: the highest that is known to
    have been reached. None is what nobody noted before the machine went. `kept`: it is there still."""

    checkpoint: str
    step: int
    at: float | None
    reason: str
    bytes: int | None
    written: int | None
    blocked: float | None
    seconds: float | None
    rung: str | None
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedSteps:
    """What was trained again when a session went on: `steps` and `seconds` of training. Not `exact`: these are the
    least, for the session before went without a goodbye; `at_most` seconds can have been lost (None: not known)."""

    steps: int
    seconds: float
    exact: bool
    at_most: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A time in which a place was out of order. `until` is None where its end was not noted."""

    url: str
    detail: str
    since: float | None
    until: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A sentence of the session: `kind` is the name of the event."""

    at: float | None
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHistory:
    """One session. Times are in seconds since 1970 (UTC), None where nothing tells.

    `number`: its fencing number, None without a lease. `resumed_at`: the step it went on from, 0 for a fresh start,
    after `before` seconds of training; `reached`: the last step it is known to have done, and `trained` the seconds of
    training by then, over all sessions. `stopped`: why it ended ("finished", "max_time", …), with the `error` that
    ended it; None: it trains still, or was lost after `last_seen`. `noted`: its journal was read. `age`: seconds that
    its checkpoint was old when it went on. `gap`: seconds without a machine before it. `start`: the way to its first
    step, each part with its seconds. `nan_since`: the step since which its loss was no finite number to its end.
    """

    session: str
    number: int | None
    host: str
    platform: str
    kind: str
    accelerators: tuple[str, ...]
    began: float | None
    last_seen: float | None
    resumed_from: str | None
    resumed_at: int | None
    before: float | None
    reached: int | None
    trained: float | None
    stopped: str | None
    error: str
    saves: tuple[Save, ...]
    spells: tuple[Outage, ...]
    told: tuple[Message, ...]
    noted: bool
    age: float | None = None
    gap: float | None = None
    redone: RepeatedSteps | None = None
    start: tuple[tuple[str, float], ...] = ()
    nan_since: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What there is of one session: its lines, its lease, its manifests; `rungs` of checkpoints, as they are now;
    `kept`: the ids of all checkpoints that are there; `mentioned`: those that any session went on from or deleted."""

    lines: Sequence[Line]
    lease: Mapping[str, Any]
    manifests: Sequence[Manifest]
    rungs: Mapping[str, str]
    kept: frozenset[str]
    mentioned: frozenset[str]


def write_session_history(session: str, number: int | None, sources: Sources) -> SessionHistory:
    """Put together what is known of a session."""
    first = {line.event: line for line in reversed(sources.lines)}
    last = {line.event: line for line in sources.lines}
    lease, nothing = Line(sources.lease), Line({})
    machine = first.get("MachineGiven") or Line(_mapping(sources.lease.get("machine")))
    restored, stopped = first.get("Restored"), last.get("RunStopped", nothing)
    times = [line.at for line in sources.lines if line.at is not None]
    seen = [*times, *(manifest.created for manifest in sources.manifests)]
    places = [line.place for line in sources.lines] + [(m.progress.step, m.progress.seconds) for m in sources.manifests]
    reached, trained = max((place for place in places if place is not None), default=(None, None))
    began, resumed_at = lease.number("started"), _resumed_at(sources, restored)
    return SessionHistory(
        session=session,
        number=number,
        host=lease.text("host") or "",
        platform=machine.text("platform") or "",
        kind=machine.text("kind") or "",
        accelerators=machine.names("accelerators"),
        began=min(times, default=None) if began is None else began,
        last_seen=max(seen, default=None),
        resumed_from=None if restored is None else restored.text("checkpoint"),
        resumed_at=resumed_at,
        before=restored.place[1] if restored is not None and restored.place is not None else None,
        reached=reached,
        trained=trained,
        stopped=stopped.text("reason"),
        error=stopped.text("error") or "",
        saves=tuple(_saves(session, sources)),
        spells=tuple(_spells(sources.lines)),
        told=tuple(_told(sources.lines)),
        noted=bool(sources.lines),
        age=None if restored is None else restored.number("age"),
        start=tuple(_laps(first.get("FirstStepDone", nothing))),
        nan_since=_nan_since(sources.lines),
    )


def _laps(line: Line) -> Iterator[tuple[str, float]]:
    laps = Line(_mapping(line.record.get("laps")))
    for name in laps.record:
        seconds = laps.number(name)
        if seconds is not None:
            yield str(name), seconds


def _resumed_at(sources: Sources, restored: Line | None) -> int | None:
    if restored is not None and restored.place is not None:
        return restored.place[0]
    for manifest in sources.manifests:
        return manifest.lineage[-1][1] if manifest.lineage else 0
    return 0 if any(line.event == "RunStarted" for line in sources.lines) and restored is None else None


def _saves(session: str, sources: Sources) -> Iterator[Save]:
    """By the journal, and by the checkpoints that are there: a lost session did not note its last save."""
    committed = {line.text("checkpoint") or "": line for line in sources.lines if line.event == "SaveCommitted"}
    blocked = {line.place: line.number("blocked") for line in sources.lines if line.event == "SaveStarted"}
    rungs = {line.text("checkpoint") or "": line.text("rung") for line in sources.lines if line.event in _RUNGS}
    known = {manifest.id: manifest for manifest in sources.manifests}
    for id in sorted({*committed, *known, *sources.mentioned}):
        match = CHECKPOINT_ID.fullmatch(id)
        if match is None or match[2] != session:
            continue
        line, manifest = committed.get(id, Line({})), known.get(id)
        place = line.place if manifest is None else (manifest.progress.step, manifest.progress.seconds)
        yield Save(
            checkpoint=id,
            step=int(match[1]),
            at=line.at if manifest is None else manifest.created,
            reason=(line.text("reason") or "") if manifest is None else manifest.reason,
            bytes=line.count("bytes") if manifest is None else manifest.total_bytes,
            written=line.count("written"),
            blocked=None if place is None else blocked.get(place),
            seconds=line.number("seconds"),
            rung=sources.rungs.get(id, rungs.get(id)),
            kept=id in sources.kept,
        )


_RUNGS = ("SaveCommitted", "RungReached")
_LOSSES = ("LossNotFinite", "LossRecovered")


def _spells(lines: Sequence[Line]) -> Iterator[Outage]:
    since: dict[str, Line] = {}
    for line in lines:
        if line.event == "StoreDegraded":
            url = line.text("url") or ""
            before = since.pop(url, None)
            if before is not None:
                yield Outage(url=url, detail=before.text("detail") or "", since=before.at, until=line.at)
            if line.record.get("healed") is not True:
                since[url] = line
    for url, line in since.items():
        yield Outage(url=url, detail=line.text("detail") or "", since=line.at, until=None)


def _told(lines: Sequence[Line]) -> Iterator[Message]:
    for line in lines:
        sentence = _SENTENCES.get(line.event)
        if sentence is not None:
            yield Message(at=line.at, kind=line.event, text=sentence(line))


_SENTENCES: Mapping[str, Callable[[Line], str]] = {
    "LossNotFinite": lambda line: f"THE LOSS IS NOT FINITE since step {line.count('step')}{_back(line)}",
    "LossRecovered": lambda line: f"the loss is a finite number again since step {line.count('step')}",
    "RestoredInexactly": lambda line: f"not bit for bit: {line.text('reason') or '?'}",
    "CheckpointSetAside": lambda line: f"walked past {line.text('checkpoint') or '?'}: {line.text('reason') or '?'}",
    "SaveSkipped": lambda line: f"the save due at step {_step(line)} waited for the one before",
    "SaveFailing": lambda line: f"NOT SAVED at step {_step(line)}: {line.text('error') or '?'}",
    "StoreDegraded": lambda line: f"{line.text('url') or '?'}: {line.text('detail') or '?'}",
    "SpaceShort": lambda line: f"space is short in {line.text('url') or '?'}",
    "DeadlineNear": lambda line: f"the session's end was near: {line.number('seconds') or 0:.0f} s left at most",
    "CadenceChosen": lambda line: line.text("text") or "?",
    "Noted": lambda line: line.text("text") or "?",
}


def _back(line: Line) -> str:
    checkpoint = line.text("checkpoint")
    return f'; to go back: resume="{checkpoint}"' if checkpoint else ""


def _nan_since(lines: Sequence[Line]) -> int | None:
    last = next((line for line in reversed(lines) if line.event in _LOSSES), None)
    return last.count("step") if last is not None and last.event == "LossNotFinite" else None


def _step(line: Line) -> str:
    return "?" if line.place is None else str(line.place[0])


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


MOST = 300
"""Segments of the journal, and leases, that are read: each is a request, and over a network takes a fraction of a
second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over the sessions, in seconds and bytes. `wall`: from the first beginning to the last sign of life;
    `trained`: what the weights have seen; between `lost_at_least` and `lost_at_most` was trained twice; `written`: at
    least so much, for a lost session could not note its last save."""

    sessions: int
    steps: int
    wall: float
    trained: float
    gaps: float
    redone_steps: int
    lost_at_least: float
    lost_at_most: float
    saves: int
    written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """A run so far. `sessions`: the first one first. `points`: the loss curve over all of them. `resumed_at`: where
    sessions of this line went on. `durability`: what would be lost now; None where the store cannot say.
    `troubles`: what could not be read; `left_out`: parts of the journal that were not looked at, there being so many.
    """

    run: str
    storage: str
    created: float | None
    sessions: tuple[SessionHistory, ...]
    points: tuple[tuple[int, float], ...]
    totals: Totals
    durability: Durability | None
    troubles: tuple[str, ...]
    left_out: int

    @property
    def nan_since(self) -> int | None:
        """The step since which the loss is no finite number, as its last session left it; None where it is one."""
        return self.sessions[-1].nan_since if self.sessions else None

    @property
    def resumed_at(self) -> tuple[int, ...]:
        """The steps at which sessions went on, in order of time."""
        return tuple(each.resumed_at for each in self.sessions if each.resumed_at)


def read_history(store: Store, run: str, *, most: int = MOST) -> RunHistory:
    """Read the story of a run: one listing, its leases and manifests, and at most `most` parts of its journal.

    Raises:
        CheckpointNotFound: the store has no such run.
        StoreError: the store cannot be listed.
    """
    run = meant_run(run)
    folder = check_name(run_folder(run))
    past = Unfolded(listed_once(store, folder), folder)
    repository = Repository(cast("Store", past), run)
    files = [entry.name[len(folder) + 1 :] for entry in past.list(folder)]
    folders = _folders(files)
    ids = [id for id in (name.removesuffix(".json") for name in folders["checkpoints"]) if CHECKPOINT_ID.fullmatch(id)]
    if not ids and "run.json" not in files:
        known = run_names(store)
        raise CheckpointNotFound(
            problem=f"There is no run {run!r} in {store.url}.",
            remedy=f"It has: {', '.join(known)}." if known else "It has no runs; check storage=… (--storage).",
        )
    troubles: list[str] = []
    manifests = _manifests(repository, ids, troubles)
    order = _order(folders, manifests)
    diary = read_journal(repository, folders["journal"], order[::-1], most)
    durability = _durability(repository, troubles)
    rungs = {} if durability is None else {s.checkpoint: s.rung for s in durability.standings if s.checkpoint}
    leases, mentioned = _leases(folders), frozenset(_mentioned(diary))
    late = {session: leases[session][1] for session in order[-most:] if session in leases}
    session_histories = []
    for session in order:
        sources = Sources(
            lines=diary.lines.get(session, ()),
            lease=_lease(repository, late[session], troubles) if session in late else {},
            manifests=manifests.get(session, ()),
            rungs=rungs,
            kept=frozenset(ids),
            mentioned=mentioned,
        )
        session_histories.append(
            write_session_history(session, leases[session][0] if session in leases else None, sources)
        )
    sessions = tuple(_with_losses(_with_gaps(session_histories)))
    created = run_record(repository).get("created")
    return RunHistory(
        run=run,
        storage=store.url,
        created=float(created) if is_amount(created) else None,
        sessions=sessions,
        points=thinned(_points(sessions, diary)),
        totals=_totals(sessions),
        durability=durability,
        troubles=(*troubles, *(f"{name}: {why}" for name, why in past.troubles.items()), *diary.troubles),
        left_out=diary.left_out,
    )


def _folders(files: Sequence[str]) -> Mapping[str, list[str]]:
    """Folder → the names in it. Another run may lie below this one's name; its files are in deeper folders."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in files:
        folder, _, name = file.partition("/")
        found[folder].append(name)
    return found


def _leases(folders: Mapping[str, list[str]]) -> dict[str, tuple[int, str]]:
    """Session → its number, and the name of its lease."""
    return {
        match[2]: (int(match[1]), match[0])
        for match in map(LEASE_FILE.fullmatch, folders["lease"])
        if match is not None
    }


def _order(folders: Mapping[str, list[str]], manifests: Mapping[str, Sequence[Manifest]]) -> list[str]:
    """All sessions, by their fencing numbers; those of which nothing tells the number come first."""
    journals = {match[1]: 0 for match in map(SEGMENT_FILE.fullmatch, folders["journal"]) if match is not None}
    fences = {session: known[0].fence for session, known in manifests.items()}
    leased = {session: number for session, (number, _) in _leases(folders).items()}
    numbers = {**journals, **fences, **leased}
    return sorted(numbers, key=lambda session: (numbers[session], session))


def _manifests(repository: Repository, ids: Sequence[str], troubles: list[str]) -> dict[str, list[Manifest]]:
    """Session → its checkpoints that can be read, the oldest first."""
    found: dict[str, list[Manifest]] = defaultdict(list)
    for id in sorted(ids):
        try:
            manifest = repository.manifest(id)
        except (CheckpointError, StoreError) as error:
            troubles.append(f"checkpoints/{id}.json: {error.problem}")
        else:
            found[manifest.session].append(manifest)
    return dict(found)


def _mentioned(diary: JournalLines) -> Iterator[str]:
    for line in chain.from_iterable(diary.lines.values()):
        if line.event == "Restored":
            yield line.text("checkpoint") or ""
        elif line.event in (PRUNING, PRUNED):
            yield from line.names("checkpoints")


def _lease(repository: Repository, name: str, troubles: list[str]) -> Mapping[str, Any]:
    try:
        return repository.sealed_record(f"lease/{name}")
    except (CheckpointDamaged, StoreError) as error:
        troubles.append(f"lease/{name}: {error.problem}")
        return {}


def _durability(repository: Repository, troubles: list[str]) -> Durability | None:
    try:
        return durability_of(repository)
    except StoreError as error:
        troubles.append(f"What is safe cannot be told: {error.problem}")
        return None


def _with_gaps(session_histories: Sequence[SessionHistory]) -> Iterator[SessionHistory]:
    seen: float | None = None
    for session_history in session_histories:
        if seen is not None and session_history.began is not None:
            yield replace(session_history, gap=max(0.0, session_history.began - seen))
        else:
            yield session_history
        seen = max(filter(None, (seen, session_history.began, session_history.last_seen)), default=None)


def _with_losses(session_histories: Iterator[SessionHistory]) -> Iterator[SessionHistory]:
    """What each one trained again, against what those before it are known to have done."""
    past = None
    for session_history in session_histories:
        yield session_history if past is None else replace(session_history, redone=past.redone(session_history))
        past = _past(past, session_history)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """How far the sessions so far are known to have come. `exact`: the last one said goodbye there; `since`: when it
    began; `saved`: there was a checkpoint."""

    step: int
    trained: float
    exact: bool
    since: float | None
    saved: bool

    def redone(self, session_history: SessionHistory) -> RepeatedSteps | None:
        """What this one does again. A start from zero beside checkpoints is wanted: nothing is lost by it."""
        if session_history.resumed_at is None or (session_history.resumed_at == 0 and self.saved):
            return None
        before = 0.0 if session_history.resumed_at == 0 else session_history.before
        at_most = session_history.age
        if session_history.resumed_at == 0 and self.since is not None and session_history.began is not None:
            at_most = max(0.0, session_history.began - self.since)
        return RepeatedSteps(
            steps=max(0, self.step - session_history.resumed_at),
            seconds=0.0 if before is None else max(0.0, self.trained - before),
            exact=self.exact,
            at_most=None if self.exact else at_most,
        )


def _past(past: _Past | None, session_history: SessionHistory) -> _Past:
    step, trained = session_history.reached or 0, session_history.trained or 0.0
    if past is not None and session_history.resumed_at is None:  # where it went on is not known: the further one counts
        step, trained = max((past.step, past.trained), (step, trained))
    return _Past(
        step=step,
        trained=trained,
        exact=session_history.stopped is not None,
        since=session_history.began,
        saved=bool(session_history.saves) or (past is not None and past.saved),
    )


def _totals(sessions: Sequence[SessionHistory]) -> Totals:
    times = [time for each in sessions for time in (each.began, each.last_seen) if time is not None]
    redone = [each.redone for each in sessions if each.redone is not None]
    saves = [save for each in sessions for save in each.saves]
    last = [each for each in sessions if each.reached is not None][-1:]
    return Totals(
        sessions=len(sessions),
        steps=last[0].reached or 0 if last else 0,
        wall=max(times) - min(times) if times else 0.0,
        trained=last[0].trained or 0.0 if last else 0.0,
        gaps=sum(each.gap or 0.0 for each in sessions),
        redone_steps=sum(each.steps for each in redone),
        lost_at_least=sum(each.seconds for each in redone),
        lost_at_most=sum(each.seconds if each.at_most is None else max(each.seconds, each.at_most) for each in redone),
        saves=len(saves),
        written=sum(save.written or 0 for save in saves),
    )


def _points(sessions: Sequence[SessionHistory], diary: JournalLines) -> list[tuple[int, float]]:
    """The curve of the line: a session that went on from a step takes the points up to it, and adds its own."""
    found: dict[int, float] = {}
    for session_history in sessions:
        if session_history.resumed_at is not None:
            found = {step: loss for step, loss in found.items() if step <= session_history.resumed_at}
        for line in diary.lines.get(session_history.session, ()):
            if line.event in (LOSSES, "Recalled"):
                found.update(read_points(line.record.get("points")))
    return sorted(found.items())

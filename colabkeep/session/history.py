"""The history of a run over all its sessions, from what they left in the store: saves, resumes, outages, losses.
Changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar, cast

from colabkeep.checkpoint.compaction import Unfolded
from colabkeep.checkpoint.inspect import durability_of, no_run, run_names, run_record
from colabkeep.checkpoint.journal import JournalLines, Line, read_journal
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.arguments import meant_run, run_folder
from colabkeep.core.errors import CheckpointError, StoreError
from colabkeep.core.events import COMMITTED, LEVEL, PRUNED, PRUNING, REACHED, Durability
from colabkeep.core.layout import CHECKPOINT_ID, LEASE_FILE, SEGMENT_FILE, id_parts, is_amount
from colabkeep.core.manifest import FOLDER, Manifest
from colabkeep.session.state import LOSSES, read_points, thinned
from colabkeep.stores.base import Store

_T = TypeVar("_T")
Tell: TypeAlias = Callable[[Line, bool], "str | None"]
"""Makes a sentence of a line of the journal, of another program's folder if so; None for one that is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One checkpoint that was made. `at`: when, in seconds since 1970 (UTC); `blocked`: seconds that training waited;
    `seconds`: of background time; `bytes`: its size, of which `written` were new; `level`: the highest that is known to
    have been reached. None is what nobody noted before the machine went. `kept`: it is there still."""

    checkpoint: str
    step: int
    at: float | None
    reason: str
    bytes: int | None
    written: int | None
    blocked: float | None
    seconds: float | None
    level: str | None
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedSteps:
    """The steps that a session repeated when it resumed: `steps` and `seconds` of training. Not `exact`: these are the
    least, for the session before ended unexpectedly; `at_most` seconds can have been lost (None: not known)."""

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
    outages: tuple[Outage, ...]
    told: tuple[Message, ...]
    noted: bool
    age: float | None = None
    gap: float | None = None
    redone: RepeatedSteps | None = None
    start: tuple[tuple[str, float], ...] = ()
    nan_since: int | None = None


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
    `folder`: it is the folder of another program, and its steps are versions. `logged`: what was logged, as
    `Run.history`, and `monitor` the metric that its last session watched, "" for none; `mode`: "min" or "max".
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
    folder: bool = False
    logged: tuple[Mapping[str, Any], ...] = ()
    monitor: str = ""
    mode: str = "min"

    @property
    def nan_since(self) -> int | None:
        """The step since which the loss is no finite number, as its last session left it; None where it is one."""
        return self.sessions[-1].nan_since if self.sessions else None

    @property
    def resumed_at(self) -> tuple[int, ...]:
        """The steps at which sessions went on, in order of time."""
        return tuple(each.resumed_at for each in self.sessions if each.resumed_at)


def _text(line: Line, _: bool) -> str | None:
    return line.text("text")


def read_history(store: Store, run: str, tell: Tell = _text, *, most: int = MOST) -> RunHistory:
    """Read the history of a run: one listing, its leases and manifests, and at most `most` parts of its journal, which
    `tell` makes sentences of.

    Raises:
        CheckpointNotFound: the store has no such run.
        StoreError: the store cannot be listed.
    """
    run = meant_run(run)
    past = Unfolded(store, run_folder(run))
    repository = Repository(cast("Store", past), run)
    with repository.one_look():
        return _read(repository, past.troubles, tell, most)


def _read(repository: Repository, unread: Mapping[str, str], tell: Tell, most: int) -> RunHistory:
    """`unread`: as `Unfolded.troubles`."""
    store, run = repository.store, repository.run
    folders: dict[str, list[str]] = defaultdict(list)  # another run may lie below this one's name, in deeper folders
    for path in repository.files(""):
        inside, _, name = path.partition("/")
        folders[inside].append(name)
    ids = [id for id in (name.removesuffix(".json") for name in folders["checkpoints"]) if CHECKPOINT_ID.fullmatch(id)]
    if not ids and "run.json" not in folders:
        raise no_run(store, run, run_names(store))
    troubles: list[str] = []
    manifests = _manifests(repository, ids, troubles)
    # All sessions, by their fencing numbers; those of which nothing tells the number come first.
    leases = {match[2]: match for match in map(LEASE_FILE.fullmatch, folders["lease"]) if match is not None}
    numbers = {match[1]: 0 for match in map(SEGMENT_FILE.fullmatch, folders["journal"]) if match is not None}
    numbers |= {session: known[0].fence for session, known in manifests.items()}
    numbers |= {session: int(match[1]) for session, match in leases.items()}
    order = sorted(numbers, key=lambda session: (numbers[session], session))
    journal = read_journal(repository, folders["journal"], order[::-1], most)
    durability = _noting(troubles, "Cannot determine which checkpoints are safe: ", partial(durability_of, repository))
    started = [line for session in order for line in journal.lines.get(session, ()) if line.event == "RunStarted"]
    of_folder = any(each.framework == FOLDER for some in manifests.values() for each in some) or any(
        line.text("keeps") for line in started
    )
    sources = _Sources(
        levels={} if durability is None else {s.checkpoint: s.level for s in durability.standings if s.checkpoint},
        kept=frozenset(ids),
        mentioned=frozenset(_mentioned(journal)),
        tell=lambda line: tell(line, of_folder),
    )
    found = []
    for number, session in enumerate(order):
        lease = None
        if session in leases and number >= len(order) - most:
            file = f"lease/{leases[session][0]}"
            lease = _noting(troubles, f"{file}: ", partial(repository.sealed_record, file))
        fence = int(leases[session][1]) if session in leases else None
        lines = journal.lines.get(session, ())
        found.append(_session_history(session, fence, lease or {}, lines, manifests.get(session, ()), sources))
    sessions = tuple(_connected(found))
    created = run_record(repository).get("created")
    return RunHistory(
        run=run,
        storage=store.url,
        created=float(created) if is_amount(created) else None,
        sessions=sessions,
        points=thinned(_points(sessions, journal)),
        totals=_totals(sessions),
        durability=durability,
        troubles=(*troubles, *(f"{name}: {why}" for name, why in unread.items()), *journal.troubles),
        left_out=journal.left_out,
        folder=of_folder,
        logged=tuple(_logged(sessions, journal)),
        monitor=(started[-1].text("monitor") or "") if started else "",
        mode="max" if started and started[-1].text("mode") == "max" else "min",
    )


def _noting(troubles: list[str], what: str, read: Callable[[], _T]) -> _T | None:
    """What is read; None where that fails, which is noted."""
    try:
        return read()
    except (CheckpointError, StoreError) as error:
        troubles.append(f"{what}{error.problem}")
        return None


def _manifests(repository: Repository, ids: Sequence[str], troubles: list[str]) -> dict[str, list[Manifest]]:
    """Session → its checkpoints that can be read, the oldest first."""
    found: dict[str, list[Manifest]] = defaultdict(list)
    for id in sorted(ids):
        manifest = _noting(troubles, f"checkpoints/{id}.json: ", partial(repository.manifest, id))
        if manifest is not None:
            found[manifest.session].append(manifest)
    return found


def _mentioned(journal: JournalLines) -> Iterator[str]:
    for line in chain.from_iterable(journal.lines.values()):
        if line.event == "Restored":
            yield line.text("checkpoint") or ""
        elif line.event in (PRUNING, PRUNED):
            yield from line.names("checkpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """What all sessions are told from: `levels` of checkpoints, as they are now; `kept`: the ids of all checkpoints
    that are there; `mentioned`: those that any session went on from or deleted."""

    levels: Mapping[str, str]
    kept: frozenset[str]
    mentioned: frozenset[str]
    tell: Callable[[Line], str | None]


def _session_history(
    session: str,
    number: int | None,
    lease: Mapping[str, Any],
    lines: Sequence[Line],
    manifests: Sequence[Manifest],
    sources: _Sources,
) -> SessionHistory:
    """Put together what is known of a session."""
    first, last = {line.event: line for line in reversed(lines)}, {line.event: line for line in lines}
    leased, nothing = Line(lease), Line({})
    machine = first.get("MachineGiven") or Line(_mapping(lease.get("machine")))
    restored, stopped = first.get("Restored"), last.get("RunStopped", nothing)
    times = [line.at for line in lines if line.at is not None]
    places = [line.place for line in lines] + [(each.progress.step, each.progress.seconds) for each in manifests]
    reached, trained = max((place for place in places if place is not None), default=(None, None))
    unnoted = [step for step, by, _ in map(id_parts, sources.mentioned) if by == session]  # when it was killed
    reached = max(unnoted) if unnoted and max(unnoted) > (reached or 0) else reached
    resumed_at = 0 if "RunStarted" in first and restored is None else None
    if restored is not None and restored.place is not None:
        resumed_at = restored.place[0]
    elif manifests:
        resumed_at = manifests[0].lineage[-1][1] if manifests[0].lineage else 0
    began, laps = leased.number("started"), Line(_mapping(first.get("FirstStepDone", nothing).record.get("laps")))
    texts = ((line, sources.tell(line)) for line in lines)
    loss = next((line for line in reversed(lines) if line.event in ("LossNotFinite", "LossRecovered")), nothing)
    return SessionHistory(
        session=session,
        number=number,
        host=leased.text("host") or "",
        platform=machine.text("platform") or "",
        kind=machine.text("kind") or "",
        accelerators=machine.names("accelerators"),
        began=min(times, default=None) if began is None else began,
        last_seen=max([*times, *(manifest.created for manifest in manifests)], default=None),
        resumed_from=None if restored is None else restored.text("checkpoint"),
        resumed_at=resumed_at,
        before=restored.place[1] if restored is not None and restored.place is not None else None,
        reached=reached,
        trained=trained,
        stopped=stopped.text("reason"),
        error=stopped.text("error") or "",
        saves=tuple(_saves(session, lines, manifests, sources)),
        outages=tuple(_outages(lines)),
        told=tuple(Message(at=line.at, kind=line.event, text=text) for line, text in texts if text is not None),
        noted=bool(lines),
        age=None if restored is None else restored.number("age"),
        start=tuple((str(name), seconds) for name in laps.record if (seconds := laps.number(name)) is not None),
        nan_since=loss.count("step") if loss.event == "LossNotFinite" else None,
    )


def _saves(session: str, lines: Sequence[Line], manifests: Sequence[Manifest], sources: _Sources) -> Iterator[Save]:
    """By the journal, and by the checkpoints that are there: a lost session did not note its last save."""
    committed = {line.text("checkpoint") or "": line for line in lines if line.event == "SaveCommitted"}
    blocked = {line.place: line.number("blocked") for line in lines if line.event == "SaveStarted"}
    reached = (line for line in lines if line.event in (COMMITTED, REACHED))
    levels = {line.text("checkpoint") or "": line.text(LEVEL) for line in reached}
    known = {manifest.id: manifest for manifest in manifests}
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
            level=sources.levels.get(id, levels.get(id)),
            kept=id in sources.kept,
        )


def _outages(lines: Sequence[Line]) -> Iterator[Outage]:
    open_since: dict[str, Line] = {}
    for line in lines:
        if line.event == "StoreDegraded":
            url = line.text("url") or ""
            before = open_since.pop(url, None)
            if before is not None:
                yield Outage(url=url, detail=before.text("detail") or "", since=before.at, until=line.at)
            if line.record.get("healed") is not True:
                open_since[url] = line
    for url, line in open_since.items():
        yield Outage(url=url, detail=line.text("detail") or "", since=line.at, until=None)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _connected(found: Sequence[SessionHistory]) -> Iterator[SessionHistory]:
    """Each with the gap before it, and with what it trained again, against what those before it are known to have
    done."""
    seen: float | None = None
    step, trained, saved = 0, 0.0, False  # how far the run is known to have come, and was there a checkpoint?
    before: SessionHistory | None = None
    for each in found:
        gap = None if seen is None or each.began is None else max(0.0, each.began - seen)
        seen = max(filter(None, (seen, each.began, each.last_seen)), default=None)
        redone = None if before is None else _redone(each, before, step, trained, saved=saved)
        yield replace(each, gap=gap, redone=redone)
        reached = each.reached or 0, each.trained or 0.0
        if before is not None and each.resumed_at is None:  # where it went on is not known: the further one counts
            reached = max((step, trained), reached)
        (step, trained), saved, before = reached, saved or bool(each.saves), each


def _redone(
    each: SessionHistory, before: SessionHistory, step: int, trained: float, *, saved: bool
) -> RepeatedSteps | None:
    """What a session did again. A start from zero beside checkpoints is wanted: nothing is lost by it."""
    if each.resumed_at is None or (each.resumed_at == 0 and saved):
        return None
    stood = 0.0 if each.resumed_at == 0 else each.before
    exact, at_most = before.stopped is not None, each.age
    if each.resumed_at == 0 and before.began is not None and each.began is not None:
        at_most = max(0.0, each.began - before.began)
    return RepeatedSteps(
        steps=max(0, step - each.resumed_at),
        seconds=0.0 if stood is None else max(0.0, trained - stood),
        exact=exact,
        at_most=None if exact else at_most,
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


def _points(sessions: Sequence[SessionHistory], journal: JournalLines) -> list[tuple[int, float]]:
    """The curve of the line: a session that went on from a step takes the points up to it, and adds its own."""
    found: dict[int, float] = {}
    for each in sessions:
        if each.resumed_at is not None:
            found = {step: loss for step, loss in found.items() if step <= each.resumed_at}
        for line in journal.lines.get(each.session, ()):
            if line.event in (LOSSES, "Recalled"):
                found.update(read_points(line.record.get("points")))
    return sorted(found.items())


def _logged(sessions: Sequence[SessionHistory], journal: JournalLines) -> list[dict[str, Any]]:
    """What was logged on the line, by epoch and step. A session takes up what there was where it went on."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for each in sessions:
        if each.resumed_at is not None:
            found = {at: record for at, record in found.items() if at[1] <= each.resumed_at}
        for line in journal.lines.get(each.session, ()):
            if line.event == "MetricsLogged":
                at = Line(_mapping(line.record.get("progress")))
                epoch, step = at.count("epoch") or 0, at.count("step") or 0
                numbers = {str(name): _as_loss(value) for name, value in _mapping(line.record.get("metrics")).items()}
                known = {name: value for name, value in numbers.items() if value is not None}
                found.setdefault((epoch, step), {"epoch": epoch, "step": step}).update(known)
    return [found[at] for at in sorted(found)]


def _as_loss(value: object) -> float | None:
    read = read_points([[0, value]])  # what a journal says may be anything
    return read[0][1] if read else None

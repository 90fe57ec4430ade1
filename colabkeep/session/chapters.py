"""One session of a run, as its journal, its lease and its checkpoints tell it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colabkeep._engine.repository import CHECKPOINT_ID
from colabkeep.session.diary import Line
from colabkeep.vocabulary.manifest import Manifest

__all__ = ["Chapter", "Redone", "Save", "Sources", "Spell", "Told", "write_chapter"]


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
class Redone:
    """What was trained again when a session went on: `steps` and `seconds` of training. Not `exact`: these are the
    least, for the session before went without a goodbye; `at_most` seconds can have been lost (None: not known)."""

    steps: int
    seconds: float
    exact: bool
    at_most: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """A time in which a place was out of order. `until` is None where its end was not noted."""

    url: str
    detail: str
    since: float | None
    until: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A sentence of the session: `kind` is the name of the event."""

    at: float | None
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
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
    spells: tuple[Spell, ...]
    told: tuple[Told, ...]
    noted: bool
    age: float | None = None
    gap: float | None = None
    redone: Redone | None = None
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


def write_chapter(session: str, number: int | None, sources: Sources) -> Chapter:
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
    return Chapter(
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


def _spells(lines: Sequence[Line]) -> Iterator[Spell]:
    since: dict[str, Line] = {}
    for line in lines:
        if line.event == "StoreDegraded":
            url = line.text("url") or ""
            before = since.pop(url, None)
            if before is not None:
                yield Spell(url=url, detail=before.text("detail") or "", since=before.at, until=line.at)
            if line.record.get("healed") is not True:
                since[url] = line
    for url, line in since.items():
        yield Spell(url=url, detail=line.text("detail") or "", since=line.at, until=None)


def _told(lines: Sequence[Line]) -> Iterator[Told]:
    for line in lines:
        sentence = _SENTENCES.get(line.event)
        if sentence is not None:
            yield Told(at=line.at, kind=line.event, text=sentence(line))


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

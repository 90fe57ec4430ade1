"""The whole story of a run over all its sessions, from what they left in the store. Changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

from colabkeep._engine.history import Unfolded
from colabkeep._engine.journal import SEGMENT_FILE
from colabkeep._engine.lease import LEASE_FILE
from colabkeep._engine.repository import CHECKPOINT_ID, Repository
from colabkeep.session.catalogue import run_names, run_record
from colabkeep.session.chapters import Chapter, Redone, Sources, write_chapter
from colabkeep.session.diary import Diary, is_amount, read_diary
from colabkeep.session.durability import durability_of
from colabkeep.session.listed import listed_once
from colabkeep.session.losses import LOSSES, read_points, thinned
from colabkeep.stores.base import Store, check_name
from colabkeep.vocabulary.diary import PRUNED, PRUNING
from colabkeep.vocabulary.durability import Durability
from colabkeep.vocabulary.errors import CheckpointDamaged, CheckpointError, CheckpointNotFound, StoreError
from colabkeep.vocabulary.manifest import Manifest
from colabkeep.vocabulary.names import meant_run, run_folder

__all__ = ["Story", "Totals", "read_story"]

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
class Story:
    """A run so far. `sessions`: the first one first. `points`: the loss curve over all of them. `resumed_at`: where
    sessions of this line went on. `durability`: what would be lost now; None where the store cannot say.
    `troubles`: what could not be read; `left_out`: parts of the journal that were not looked at, there being so many.
    """

    run: str
    storage: str
    created: float | None
    sessions: tuple[Chapter, ...]
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


def read_story(store: Store, run: str, *, most: int = MOST) -> Story:
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
    diary = read_diary(repository, folders["journal"], order[::-1], most)
    durability = _durability(repository, troubles)
    rungs = {} if durability is None else {s.checkpoint: s.rung for s in durability.standings if s.checkpoint}
    leases, mentioned = _leases(folders), frozenset(_mentioned(diary))
    late = {session: leases[session][1] for session in order[-most:] if session in leases}
    chapters = []
    for session in order:
        sources = Sources(
            lines=diary.lines.get(session, ()),
            lease=_lease(repository, late[session], troubles) if session in late else {},
            manifests=manifests.get(session, ()),
            rungs=rungs,
            kept=frozenset(ids),
            mentioned=mentioned,
        )
        chapters.append(write_chapter(session, leases[session][0] if session in leases else None, sources))
    sessions = tuple(_with_losses(_with_gaps(chapters)))
    created = run_record(repository).get("created")
    return Story(
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


def _mentioned(diary: Diary) -> Iterator[str]:
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


def _with_gaps(chapters: Sequence[Chapter]) -> Iterator[Chapter]:
    seen: float | None = None
    for chapter in chapters:
        if seen is not None and chapter.began is not None:
            yield replace(chapter, gap=max(0.0, chapter.began - seen))
        else:
            yield chapter
        seen = max(filter(None, (seen, chapter.began, chapter.last_seen)), default=None)


def _with_losses(chapters: Iterator[Chapter]) -> Iterator[Chapter]:
    """What each one trained again, against what those before it are known to have done."""
    past = None
    for chapter in chapters:
        yield chapter if past is None else replace(chapter, redone=past.redone(chapter))
        past = _past(past, chapter)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """How far the sessions so far are known to have come. `exact`: the last one said goodbye there; `since`: when it
    began; `saved`: there was a checkpoint."""

    step: int
    trained: float
    exact: bool
    since: float | None
    saved: bool

    def redone(self, chapter: Chapter) -> Redone | None:
        """What this one does again. A start from zero beside checkpoints is wanted: nothing is lost by it."""
        if chapter.resumed_at is None or (chapter.resumed_at == 0 and self.saved):
            return None
        before = 0.0 if chapter.resumed_at == 0 else chapter.before
        at_most = chapter.age
        if chapter.resumed_at == 0 and self.since is not None and chapter.began is not None:
            at_most = max(0.0, chapter.began - self.since)
        return Redone(
            steps=max(0, self.step - chapter.resumed_at),
            seconds=0.0 if before is None else max(0.0, self.trained - before),
            exact=self.exact,
            at_most=None if self.exact else at_most,
        )


def _past(past: _Past | None, chapter: Chapter) -> _Past:
    step, trained = chapter.reached or 0, chapter.trained or 0.0
    if past is not None and chapter.resumed_at is None:  # where it went on is not known: the further one counts
        step, trained = max((past.step, past.trained), (step, trained))
    return _Past(
        step=step,
        trained=trained,
        exact=chapter.stopped is not None,
        since=chapter.began,
        saved=bool(chapter.saves) or (past is not None and past.saved),
    )


def _totals(sessions: Sequence[Chapter]) -> Totals:
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


def _points(sessions: Sequence[Chapter], diary: Diary) -> list[tuple[int, float]]:
    """The curve of the line: a session that went on from a step takes the points up to it, and adds its own."""
    found: dict[int, float] = {}
    for chapter in sessions:
        if chapter.resumed_at is not None:
            found = {step: loss for step, loss in found.items() if step <= chapter.resumed_at}
        for line in diary.lines.get(chapter.session, ()):
            if line.event in (LOSSES, "Recalled"):
                found.update(read_points(line.record.get("points")))
    return sorted(found.items())

"""`colabkeep.compare()`: runs beside each other: which settings differ, how good each became, their curves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from colabkeep.checkpoint.inspect import run_names, tip
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.arguments import duration_text, public
from colabkeep.core.errors import CheckpointError, CheckpointNotFound, UsageError
from colabkeep.core.language import said
from colabkeep.core.manifest import Manifest
from colabkeep.core.settings import Plain, Settings, changes, from_text, same
from colabkeep.core.system import SystemClock
from colabkeep.session.history import RunHistory, read_history
from colabkeep.session.open import asked_for, find_store
from colabkeep.session.state import plain_points
from colabkeep.stores import Storage
from colabkeep.stores.base import Store
from colabkeep.ui import curve, figures
from colabkeep.ui import drawing as draw
from colabkeep.ui.drawing import BLUE, Markup
from colabkeep.ui.records import finite_or_text
from colabkeep.ui.report import STATE_TEXTS, state_of
from colabkeep.ui.text import Record, aligned, plain, utc_time

_VALIDATED = ("val_loss", "eval_loss", "valid_loss")
_COLUMNS = 6  # settings in the table; `to_dict` has them all
_MOST = 200  # settings of two runs that are told apart; models of other kinds differ in thousands
_LONGEST = 24  # characters of a setting's value
LOSS = "training loss"
"""What runs are compared by that have measured nothing."""


@public()
def compare(
    runs: str | Sequence[str] = "*", *, storage: Storage = "auto", metric: str | None = None, mode: str | None = None
) -> Comparison:
    """Compare runs: the settings that differ, the best value of each, and their curves over each other.

    ::

        colabkeep.compare("lr-*")

    Reads what lies in the storage, as `report` does, and changes nothing. Runs may be under way.

    Args:
        runs: names of runs, in which "*" and "?" stand for anything; one or a list of them.
        storage: where they are kept, as in `resumable_fit`.
        metric: by which they are ordered; by default what they monitor, else "val_loss", else the training loss.
        mode: is less of it better ("min"), or more ("max")? By default as the runs say, else "min".

    Returns:
        Comparison: shown as the last line of a cell; ``print`` it elsewhere; ``to_dict()`` for programs, ``plot()`` for
            a figure.

    Raises:
        CheckpointNotFound: there is no such run.
        UsageError: `runs` is no text and no list of them; no run has this metric; or `mode` is neither.
        StoreError: the storage cannot be listed.
    """
    store = find_store(storage)
    try:
        given: Any = runs
        patterns = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        return compare_in(store, patterns, metric, mode, asked_for(storage))
    finally:
        if store is not storage:
            store.close()


def compare_in(
    store: Store, patterns: Sequence[str], metric: str | None, mode: str | None, asked: str = ""
) -> Comparison:
    """The comparison of the runs in a store, whose place was `asked` for by ``storage=…``; raises as `compare`."""
    if mode not in (None, "min", "max"):
        raise UsageError(problem=f"mode={mode!r} is unknown.", remedy='Pass mode="min" or mode="max".')
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise UsageError(
            problem=f"runs={patterns!r:.100} must be the name of a run, or a list of names.",
            remedy='Write names in quotes: colabkeep.compare("lr-*"), or colabkeep.compare(["first", "second"]).',
        )
    known = run_names(store)
    found = [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not found:
        raise CheckpointNotFound(
            problem=f"No run in {store.url} is called {' or '.join(map(repr, patterns))}.",
            remedy=f"It has: {', '.join(known)}." if known else "It has no runs; check storage=… (--storage).",
        )
    histories = [read_history(store, name) for name in found]
    trainings = [history for history in histories if not history.folder]
    if not trainings:
        raise UsageError(
            problem="These are folders of other programs, whose metrics colabkeep does not know.",
            remedy=f"colabkeep.report({found[0]!r}{asked and f', storage={asked}'}) shows one of them.",
        )
    metric, mode = _judge(trainings, metric, mode)
    told = _differing([_settings(Repository(store, history.run)) for history in trainings])
    rows = [
        Compared(
            history=history,
            best=_best(history, metric, mode),
            settings={name: values[number] for name, values in told.items()},
        )
        for number, history in enumerate(trainings)
    ]
    worst = math.inf if mode == "min" else -math.inf
    rows.sort(key=lambda row: worst if row.best is None else row.best.value, reverse=mode == "max")
    return Comparison(rows, metric, mode, store.url, SystemClock().time())


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best value of the metric. `epoch` counts from 1, as displays do; None of the training loss."""

    value: float
    epoch: int | None
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A run of the comparison. `settings`: those in which the runs differ; None is what it has not."""

    history: RunHistory
    best: Best | None
    settings: Mapping[str, Plain]

    @property
    def last(self) -> Mapping[str, float]:
        """The last value of each metric."""
        return {name: series[-1][1] for name, series in figures.measured(self.history.logged).items()}

    @property
    def epochs(self) -> int:
        """In which something was logged."""
        return max((record["epoch"] + 1 for record in self.history.logged), default=0)

    @property
    def curves(self) -> figures.Curves:
        """What is drawn of it."""
        run = self.history
        return figures.Curves(run=run.run, points=run.points, logged=run.logged, resumed_at=run.resumed_at)


class Comparison(figures.Plotted):
    """What `colabkeep.compare()` returns. `rows`: a `Compared` of each run, the best first; `metric`: what that was
    told by, and `mode`, "min" or "max"."""

    def __init__(self, rows: Sequence[Compared], metric: str, mode: str, storage: str, as_of: float) -> None:
        self.rows, self.title = tuple(rows), f"{len(rows)} run(s) compared"
        self.metric, self.mode, self.storage, self.as_of = metric, mode, storage, as_of

    def lines(self) -> Iterator[str]:
        """The comparison as lines of text."""
        yield f"{len(self.rows)} run(s) in {plain(self.storage)}, the best {plain(self.metric, limit=40)} first"
        yield from aligned([self._head(), *self._cells()], right=self._numbers())
        yield from self._notes()

    def to_dict(self) -> Record:
        """The comparison for programs: "metric", "mode", "settings" (the names of those that differ) and "runs", each
        with "best", "last", "settings" and "losses" as [step, loss]. A value that is no finite number is a text."""
        return {
            "storage": self.storage,
            "as_of": self.as_of,
            "metric": self.metric,
            "mode": self.mode,
            "settings": list(self._settings()),
            "runs": [
                {
                    "name": row.history.run,
                    "state": state_of(row.history) or "open",
                    "step": row.history.totals.steps,
                    "epochs": row.epochs,
                    "trained_seconds": row.history.totals.trained,
                    "best": None if row.best is None else asdict(row.best),
                    "last": finite_or_text(row.last),
                    "settings": finite_or_text(row.settings),
                    "losses": plain_points(row.history.points),
                }
                for row in self.rows
            ],
        }

    def plot(self) -> Any:
        """The curves of the runs over each other: a matplotlib Figure.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        return figures.drawn(f"{len(self.rows)} runs", figures.plots([row.curves for row in self._drawn]))

    @property
    def _drawn(self) -> Sequence[Compared]:
        """As many of the best as there are colours."""
        return self.rows[: len(curve.COLOURS)]

    def _repr_html_(self) -> str:
        drawn = self._drawn
        colours = [f"color:{ink}" for ink in curve.COLOURS]
        rows = [
            (Markup(f'<span style="{style}">●</span> {draw.escape(cells[0], 200)}'), *cells[1:])
            for style, cells in zip(colours, self._cells(), strict=False)
        ] + self._cells()[len(drawn) :]
        losses = {row.history.run: curve.smoothed(row.history.points) for row in drawn}
        judged = {row.history.run: figures.measured(row.history.logged).get(self.metric, []) for row in drawn}
        caption = f"{len(self.rows)} run(s), the best {self.metric} first"
        parts = [
            draw.table(draw.escape(caption, 200), self._head(), rows, right=self._numbers()),
            curve.overlaid(self.metric, judged, dots=True),
            curve.overlaid(LOSS, losses, dots=False),
            *(draw.paragraph(line, quiet=True) for line in self._notes()),
            draw.paragraph(f"As of {utc_time(self.as_of)}, in {self.storage}.", quiet=True),
        ]
        return draw.frame(draw.join(*parts), BLUE)

    def _settings(self) -> tuple[str, ...]:
        return tuple(self.rows[0].settings)

    def _head(self) -> tuple[str, ...]:
        shown = (plain(name, limit=40) for name in self._settings()[:_COLUMNS])
        return ("run", f"best {plain(self.metric, limit=40)}", "epoch", *shown, "steps", "trained", "state")

    def _numbers(self) -> range:
        return range(1, len(self._head()) - 1)

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                plain(row.history.run, limit=80),
                "" if row.best is None else f"{row.best.value:.5g}",
                "" if row.best is None or row.best.epoch is None else str(row.best.epoch),
                *(_shown(row.settings[name]) for name in self._settings()[:_COLUMNS]),
                str(row.history.totals.steps),
                duration_text(row.history.totals.trained),
                said(STATE_TEXTS[state_of(row.history)]),
            )
            for row in self.rows
        ]

    def _notes(self) -> Iterator[str]:
        names = self._settings()
        if len(self.rows) > 1 and not names:
            yield "No setting that colabkeep knows of differs."
        if len(names) > _COLUMNS:
            others = ", ".join(plain(name, limit=60) for name in names[_COLUMNS : _COLUMNS + 20])
            yield f"{len(names) - _COLUMNS} more settings differ: {others}{' …' if len(names) > _COLUMNS + 20 else ''}"
        if len(self.rows) > len(curve.COLOURS):
            yield f"The curves are those of the best {len(curve.COLOURS)}."
        for row in self.rows:
            yield from (f"{row.history.run}: could not be read: {plain(why)}" for why in row.history.troubles[:2])


def _judge(runs: Sequence[RunHistory], metric: str | None, mode: str | None) -> tuple[str, str]:
    """The metric that tells which run is the best, and "min" or "max"."""
    logged = {name for run in runs for name in figures.measured(run.logged)}
    if metric is not None and metric != LOSS and metric not in logged:
        raise UsageError(
            problem=f"None of these runs has measured {metric!r}.",
            remedy=f"They have: {', '.join(sorted(logged) or [LOSS])}.",
        )
    watched = Counter(run.monitor for run in runs if run.monitor in logged)
    usual = [name for name, _ in watched.most_common(1)] + [name for name in _VALIDATED if name in logged]
    metric = metric or (usual[0] if usual else LOSS)
    said = next((run.mode for run in runs if run.monitor == metric), "min")
    return metric, mode or said


def _best(run: RunHistory, metric: str, mode: str) -> Best | None:
    if metric == LOSS:
        found = [Best(value=value, epoch=None, step=step) for step, value in curve.smoothed(run.points)]
    else:
        found = [
            Best(value=record[metric], epoch=record["epoch"] + 1, step=record["step"])
            for record in run.logged
            if metric in record
        ]
    finite = [each for each in found if math.isfinite(each.value)]
    pick = max if mode == "max" else min
    return pick(finite, key=lambda each: each.value) if finite else None


def _settings(repository: Repository) -> tuple[Settings, Mapping[str, str]]:
    """Of the newest checkpoint: what was set up, and what the session was told and ran on; nothing where it cannot be
    read."""
    manifest: Manifest | None = tip(repository)
    if manifest is None:
        return {}, {}
    known = [name for name in ("run", "settings") if name in manifest.parts]
    try:
        parts: Mapping[str, Any] = repository.load(manifest, known)
        seed = {"seed": str(parts["run"]["state"]["seed"])} if "run" in parts else {}
        written = from_text(parts["settings"]["state"]["written"]) if "settings" in parts else {}
    except (CheckpointError, LookupError, TypeError, ValueError, AttributeError):  # `colabkeep verify` tells of it
        return {}, {**manifest.settings, **manifest.fingerprint}
    return written, {**seed, **manifest.settings, **manifest.fingerprint}


def _differing(found: Sequence[tuple[Settings, Mapping[str, str]]]) -> dict[str, list[Plain]]:
    """Each setting that is not the same in all runs, with its value in each."""
    places = dict[tuple[str, str, str], None]()
    first = next((settings for settings, _ in found if settings), {})
    for settings, _ in found:
        places |= {change.where: None for change in changes(first, settings)[:_MOST]}
    for part in {part: None for settings, _ in found for part in settings}:
        if any(settings and part not in settings for settings, _ in found):
            places[part, "", ""] = None
    told = {_name(place): [_value(settings, place) for settings, _ in found] for place in places}
    names = dict.fromkeys(name for _, facts in found for name in facts)
    told |= {name: [facts.get(name) for _, facts in found] for name in names}
    told = {name: values for name, values in told.items() if any(not same(values[0], value) for value in values)}
    shown = dict[str, list[Plain]]()
    for name, values in sorted(told.items(), key=lambda each: len(each[0])):  # lr before initial_lr, which follows it
        if not any(values == others and name.split(".")[0] == other.split(".")[0] for other, others in shown.items()):
            shown[name] = values
    return {name: shown[name] for name in told if name in shown}


def _name(place: tuple[str, str, str]) -> str:
    part, item, option = place
    return ".".join(filter(None, (part, item, option.partition("@")[0])))


def _value(settings: Settings, place: tuple[str, str, str]) -> Plain:
    part, item, option = place
    found = settings.get(part, {}).get(item)
    if found is None:
        return None
    if not option:
        return found.kind
    return list(found.frozen) if option == "requires_grad" else found.options.get(option)


def _shown(value: Plain) -> str:
    text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return plain(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")

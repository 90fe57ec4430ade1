"""What a training gave back, and a run under way, as the last line of a cell shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from colabkeep.checkpoint.inspect import CheckpointInfo
from colabkeep.session import fit
from colabkeep.session.open import taken_over
from colabkeep.session.run import Run
from colabkeep.ui import curve, figures
from colabkeep.ui import drawing as draw
from colabkeep.ui.drawing import BLUE, Markup
from colabkeep.ui.panel.render import STATES, state_chip
from colabkeep.ui.panel.state import end_of
from colabkeep.ui.text import aligned, plain, size_text, utc_time

_EPOCHS = 10
_METRICS = 6
_CHECKPOINTS = 20
_CHECKPOINT = ("checkpoint", "step", "size", "saved", "state")


class Checkpoints(list[CheckpointInfo]):
    """The checkpoints of a run, the newest first: a list that is shown as a table."""

    def __repr__(self) -> str:
        return "\n".join(aligned([_CHECKPOINT, *map(_cells, self)], right=(1, 2))) if self else "no checkpoints"

    def _repr_html_(self) -> str:
        return draw.frame(_checkpoints(self), BLUE)


class FitResult(fit.FitResult):
    """The result of `colabkeep.resumable_fit`: its base says what the fields mean. As the last line of a cell it is a
    table and the loss curve; `plot()` draws that as a figure."""

    __slots__ = ()

    @classmethod
    def of(cls, result: fit.FitResult) -> FitResult:
        """The same result, to be shown."""
        words = {each.name: getattr(result, each.name) for each in fields(result)}
        return cls(**{**words, "checkpoints": Checkpoints(result.checkpoints)})

    def plot(self) -> Any:
        """The loss over all sessions and what was measured each epoch: a matplotlib Figure.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        name, logged = self.run_name, self.history
        curves = figures.Curves(run=name, points=self.losses, logged=logged, resumed_at=self.resumed_at)
        return figures.drawn(name, figures.plots([curves]))

    def __repr__(self) -> str:
        best = (
            "" if self.best is None else f", best {self.best.monitor} {self.best.value:.6g} in epoch {self.best.epoch}"
        )
        state = _ended(self.stopped, self.nan_since)
        return f"<FitResult {self.run_name!r}: {state}, {self.epochs} epochs, {self.steps} steps{best}>"

    def _repr_html_(self) -> str:
        began = "started from zero" if self.resumed_from is None else f"resumed from step {self.resumed_from}"
        best, measured = "", replace(curve.measured_in(self.history), best=None)
        if self.best is not None:
            measured = replace(measured, best=self.best.step)
            at, of = self.best, f"Best {self.best.monitor}: {self.best.value:.6g}"
            kept = "not kept" if at.checkpoint is None else f"checkpoint {at.checkpoint}"
            best = f"{of}, epoch {at.epoch}, step {at.step}, {kept}."
        return _card(
            end_of(self.stopped, self.nan_since),
            _why(self.run_name, self.stopped, self.nan_since),
            f"{self.steps} steps, {self.epochs} epochs; this session {began}.",
            draw.paragraph(best) if best else "",
            _curve(self.losses, self.resumed_at, self.nan_since, measured),
            _history(self.history),
            _checkpoints(self.checkpoints),
        )


def run_html(run: Run) -> Markup:
    """A run, before, in or after its `with` block."""
    if not run.began:
        return draw.frame(draw.join(draw.chip("○", "NOT STARTED", BLUE), draw.badge(run.name)), BLUE)
    nan_since = run.losses.proof.broken
    live = "fresh" if nan_since is None else "nan"
    return _card(
        live if run.stopped is None else end_of(run.stopped, nan_since),
        _why(run.name, run.stopped, nan_since),
        f"Epoch {_epoch(run)}, step {run.progress.step}.",
        draw.paragraph(run.durability.sentence),
        _curve(run.losses.points, taken_over(run.resumed_from), nan_since, curve.measured_in(run.history)),
        _history(run.history),
    )


def _card(phase: str, badges: Markup, how_far: str, *parts: Markup | str) -> Markup:
    chip = state_chip(phase)
    return draw.frame(draw.join(chip, badges, draw.paragraph(how_far, strong=True), *parts), STATES[phase][1])


def _curve(
    points: curve.Points, resumed_at: Sequence[int], nan_since: int | None, measured: curve.Measured
) -> Markup | str:
    return curve.loss_curve(points, resumed_at, nan_since, measured=measured) if points else ""


def run_text(run: Run) -> str:
    """The same in one line."""
    if not run.began:
        return f"<Run {run.name!r}: not started>"
    state = "training" if run.stopped is None else _ended(run.stopped, run.losses.proof.broken)
    saved = run.checkpoint or "none"
    return f"<Run {run.name!r}: {state}, epoch {_epoch(run)}, step {run.progress.step}, newest checkpoint {saved}>"


def _epoch(run: Run) -> int:
    """The one under way, or the last one that was trained, from 1."""
    return run.progress.epoch + (run.stopped is None or run.progress.batches > 0)


def _ended(stopped: str, nan_since: int | None) -> str:
    """How, in a word or two."""
    phase = end_of(stopped, nan_since)
    return {"interrupted": f"stopped ({stopped})", "diverged": "ended, loss not finite"}.get(phase, phase)


def _why(name: str, stopped: str | None, nan_since: int | None) -> Markup:
    """Its name; and why it ended, where the chip does not say that, or since when the loss is not finite."""
    if nan_since is not None:
        return draw.join(draw.badge(name), draw.badge(f"since step {nan_since}"))
    ended = stopped is not None and end_of(stopped, None) == "interrupted"
    return draw.join(draw.badge(name), draw.badge(stopped) if ended else "")


def _history(records: Sequence[Mapping[str, Any]]) -> Markup | str:
    if not records:
        return ""
    last = records[-_EPOCHS:]
    known = dict.fromkeys(name for record in last for name in record if name not in ("epoch", "step"))
    names = list(known)[:_METRICS]
    rows = [
        (str(record["epoch"] + 1), str(record["step"]), *(_number(record.get(name)) for name in names))
        for record in last
    ]
    caption = "Logged" if len(records) == len(last) else f"Logged, the last {len(last)} of {len(records)}"
    return draw.table(caption, ("epoch", "step", *names), rows, right=range(len(names) + 2))


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else ""


def _checkpoints(found: Sequence[CheckpointInfo]) -> Markup:
    more = "" if len(found) <= _CHECKPOINTS else f", the newest {_CHECKPOINTS} of {len(found)}"
    return draw.table(f"Checkpoints{more}", _CHECKPOINT, map(_cells, found[:_CHECKPOINTS]), right=(1, 2))


def _cells(info: CheckpointInfo) -> tuple[str, ...]:
    return info.id, str(info.step), size_text(info.bytes), utc_time(info.created), plain(info.state)

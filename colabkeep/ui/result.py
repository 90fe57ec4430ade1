"""What a training gave back, and a run under way, as the last line of a cell shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from colabkeep.checkpoint.inspect import CheckpointInfo
from colabkeep.session import fit
from colabkeep.session.open import taken_over
from colabkeep.session.run import Run
from colabkeep.ui.drawing import (
    BLUE,
    GREEN,
    PURPLE,
    RED,
    Colour,
    Mark,
    Markup,
    badge,
    chip,
    curve,
    frame,
    join,
    paragraph,
    result_figure,
    table,
)
from colabkeep.ui.text import plain, size_text, utc_time

__all__ = ["Checkpoints", "FitResult", "run_html"]

_EPOCHS = 10
_METRICS = 6
_CHECKPOINTS = 20


class Checkpoints(list[CheckpointInfo]):
    """The checkpoints of a run, the newest first: a list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return frame(_checkpoints(self), BLUE)


class FitResult(fit.FitResult):
    """The result of `colabkeep.resumable_fit`: its base says what the fields mean. As the last line of a cell it is a
    table and the loss curve; `plot()` draws that as a figure."""

    __slots__ = ()

    @classmethod
    def of(cls, result: fit.FitResult) -> FitResult:
        """The same result, with a face."""
        words = {each.name: getattr(result, each.name) for each in fields(result)}
        return cls(**{**words, "checkpoints": Checkpoints(result.checkpoints)})

    def plot(self) -> Any:
        """The loss over all sessions and what was measured of it each epoch: a matplotlib Figure.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        return result_figure(self.run_name, self.losses, self.resumed_at, self.history)

    def _repr_html_(self) -> str:
        done = self.stopped in ("finished", "max_steps")
        symbol, colour = ("✔", GREEN) if done else ("■", PURPLE)
        word = "FINISHED" if done else f"STOPPED: {self.stopped}"
        if self.nan_since is not None:
            symbol, word, colour = _broken(self.nan_since)
        return frame(join(chip(symbol, word, colour), badge(self.run_name), *self._parts()), colour)

    def _parts(self) -> Iterator[Markup]:
        fresh = "started from zero" if self.resumed_from is None else f"went on from step {self.resumed_from}"
        yield paragraph(f"{self.steps} steps, {self.epochs} epochs; this session {fresh}.", strong=True)
        if self.best is not None:
            best = self.best
            kept = "not kept" if best.checkpoint is None else f"checkpoint {best.checkpoint}"
            yield paragraph(f"Best {best.monitor}: {best.value:.6g}, epoch {best.epoch + 1}, step {best.step}, {kept}.")
        yield _curve(self.losses, self.resumed_at, self.nan_since)
        yield _history(self.history)
        yield _checkpoints(self.checkpoints)


def run_html(run: Run) -> Markup:
    """A run, before, in or after its `with` block."""
    if not run.began:
        return frame(join(chip("○", "NOT BEGUN", BLUE), badge(run.name)), BLUE)
    symbol, word, colour = ("↻", "OPEN", BLUE) if run.stopped is None else ("■", f"ENDED: {run.stopped}", PURPLE)
    progress, points, nan_since = run.progress, run.losses.points, run.losses.proof.broken
    if nan_since is not None:
        symbol, word, colour = _broken(nan_since)
    parts = [
        chip(symbol, word, colour),
        badge(run.name),
        paragraph(f"Epoch {progress.epoch + 1}, step {progress.step}.", strong=True),
        paragraph(run.durability.sentence),
        _curve(points, taken_over(run.resumed_from), nan_since),
        _history(run.history.records),
    ]
    return frame(join(*parts), colour)


def _broken(step: int) -> tuple[str, str, Colour]:
    """Symbol, word and colour of weights that give no finite loss."""
    return "✖", f"LOSS NOT FINITE SINCE STEP {step}", RED


def _curve(points: Sequence[tuple[int, float]], resumed_at: Sequence[int], nan_since: int | None) -> Markup:
    marks = [Mark(step, "resumed", f"resumed at {step}") for step in resumed_at]
    marks += [] if nan_since is None else [Mark(nan_since, "broken", f"not finite at {nan_since}")]
    return curve(points, marks) if points else Markup("")


def _history(records: Sequence[Mapping[str, Any]]) -> Markup:
    if not records:
        return Markup("")
    last = records[-_EPOCHS:]
    known = dict.fromkeys(name for record in last for name in record if name not in _PLACE)
    names = list(known)[:_METRICS]
    rows = [
        (str(record["epoch"] + 1), str(record["step"]), *(_number(record.get(name)) for name in names))
        for record in last
    ]
    caption = "Logged" if len(records) == len(last) else f"Logged, the last {len(last)} of {len(records)}"
    return table(caption, ("epoch", "step", *names), rows, right=range(len(names) + 2))


_PLACE = ("epoch", "step")


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else ""


def _checkpoints(found: Sequence[CheckpointInfo]) -> Markup:
    rows = [
        (info.id, str(info.step), size_text(info.bytes), utc_time(info.created), plain(info.state))
        for info in found[:_CHECKPOINTS]
    ]
    more = "" if len(found) <= _CHECKPOINTS else f", the newest {_CHECKPOINTS} of {len(found)}"
    return table(f"Checkpoints{more}", ("checkpoint", "step", "size", "saved", "state"), rows, right=(1, 2))

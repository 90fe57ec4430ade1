"""The loop of `resumable_fit`: one that anybody could write on `Run`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colabkeep.checkpoint.inspect import CheckpointInfo, checkpoints, find_run
from colabkeep.core.errors import UsageError
from colabkeep.core.events import LengthTold, Noted, RestoredInexactly
from colabkeep.core.state import derive
from colabkeep.session.open import RunSpec, taken_over
from colabkeep.session.run import Run
from colabkeep.session.wiring import FitPlan, wire_fit

__all__ = ["Best", "FitResult", "fit", "train"]

_ON_PLATEAUS = ("ReduceLROnPlateau", "ReduceOnPlateau")  # torch's, Paddle's: their step takes what was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best value of the monitored metric, and the checkpoint that holds it (None: not kept)."""

    monitor: str
    value: float
    epoch: int
    step: int
    checkpoint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """What came of a run, over all its sessions.

    `epochs` and `steps` are those of the whole run; `resumed_from` is the step at which this session
    went on, None for a fresh start. `history` has one record per epoch: {"epoch", "step", "train_loss",
    "lr", "val_loss", …}. `stopped`: "finished", or why training ended early ("max_time", "max_steps").
    `losses`: the loss curve of the whole run, as (step, loss), at most 512 points; `resumed_at`: the steps at which its
    sessions went on. `nan_since`: the step since which the loss is no finite number, None if it is one.
    """

    run_name: str
    epochs: int
    steps: int
    resumed_from: int | None
    history: Sequence[Mapping[str, Any]] = field(repr=False)
    best: Best | None
    checkpoints: Sequence[CheckpointInfo] = field(repr=False)
    stopped: str
    losses: Sequence[tuple[int, float]] = field(default=(), repr=False)
    resumed_at: Sequence[int] = field(default=(), repr=False)
    nan_since: int | None = None


def fit(plan: FitPlan) -> FitResult:
    """Train to the end, or until the session's time is up; tell what came of it."""
    spec = wire_fit(plan)
    run = Run(spec)
    with run:
        if (other := plan.state.other_precision()) is not None:
            run.tell(RestoredInexactly(checkpoint=run.checkpoint or "", reason=other))
        if said := plan.state.interval_said():
            run.tell(Noted(text=said))
        train(run, plan)
    return _result(run, spec)


def train(run: Run, plan: FitPlan) -> None:
    """The loop, inside the run's `with` block."""
    state = plan.state
    run.resumes_behind = True
    if plan.arguments.max_steps is not None:
        run.tell(LengthTold(max_steps=plan.arguments.max_steps))
    for _ in run.epochs(plan.arguments.max_epochs):
        if not run.progress.batches:
            state.mean.reset()
        plan.training.train()
        _epoch(run, plan)
        metrics = {"train_loss": state.mean.value(), "lr": plan.training.learning_rate(), **_validate(run, plan)}
        run.log(**{name: value for name, value in metrics.items() if value is not None})
        if plan.arguments.scheduler is not None and state.interval == "epoch":
            _step_scheduler(plan, metrics)


def _epoch(run: Run, plan: FitPlan) -> None:
    arguments = plan.arguments
    if arguments.max_steps is not None and run.progress.step >= arguments.max_steps:
        run.stop("max_steps")
    accumulate, backward = arguments.accumulate_grad_batches, plan.training.backward
    step = _step(run, plan)
    size, done = 1, run.progress.batches  # a session begins at the boundary of a window
    window: list[tuple[Any, float]] = []
    for _, batch in run.enumerate(plan.train_loader):  # nobody need look who counts
        if accumulate > 1:
            size = _window(accumulate, run.epoch_batches, done)
        window.append((backward(batch, share=1.0 / size), run.batch_samples or 1))
        if len(window) == size:
            done += size
            step(window)
    if window:  # of unknown length, the epoch ended inside a window
        step(window)


def _window(accumulate: int, length: int | None, done: int) -> int:
    """Micro-batches in the window that begins after `done`; the last one of an epoch may be shorter."""
    return accumulate if length is None else max(1, min(accumulate, length - done))


def _step(run: Run, plan: FitPlan) -> Callable[[list[tuple[Any, float]]], None]:
    """What ends a window, with all that does not change looked up once."""
    arguments, update, add, done = plan.arguments, plan.training.step, plan.state.mean.add, run.step
    ema, model, max_steps = arguments.ema, arguments.model, arguments.max_steps
    scheduler = arguments.scheduler if plan.state.interval == "step" else None

    def step(window: list[tuple[Any, float]]) -> None:
        update()
        if ema is not None:
            ema.update_parameters(model)
        if scheduler is not None:
            scheduler.step()
        for loss, weight in window:  # not before: an exception inside a window leaves the state of the last step whole
            add(loss, weight)
        last = window[-1][0]
        window.clear()
        done(loss=last)
        if max_steps is not None and run.progress.step >= max_steps:
            run.stop("max_steps")

    return step


def _validate(run: Run, plan: FitPlan) -> dict[str, float]:
    if plan.val_loader is None:
        return {}
    # The same seed and epoch each time: every validation sees the same samples, whatever the data set draws.
    seed = derive(plan.arguments.run.seed, "validation")
    opened = run.same_data.open(plan.val_data, "val", plan.val_loader, None, seed=seed, epoch=0, batches=0, samples=0)
    try:
        measured = plan.training.evaluate(run.polled(opened))
    finally:
        opened.close()
    return {f"val_{name}": value for name, value in measured.items()}


def _step_scheduler(plan: FitPlan, metrics: Mapping[str, float | None]) -> None:
    scheduler = plan.arguments.scheduler
    if scheduler is None:
        return
    if type(scheduler).__name__ not in _ON_PLATEAUS:
        scheduler.step()
        return
    name = plan.arguments.run.monitor or ("val_loss" if "val_loss" in metrics else "train_loss")
    if metrics.get(name) is None:
        raise UsageError(
            problem=f"{type(scheduler).__name__} waits for the metric {name!r}, which this epoch did not measure.",
            remedy=f"Measured were: {', '.join(metrics)}. Name one with monitor=…, or pass a val_loader.",
        )
    scheduler.step(metrics[name])


def _result(run: Run, spec: RunSpec) -> FitResult:
    found = checkpoints(find_run(spec.store, spec.name))
    return FitResult(
        run_name=spec.name,
        epochs=run.progress.epoch,
        steps=run.progress.step,
        resumed_from=run.resumed_from.progress.step if run.resumed_from else None,
        history=run.history.records,
        best=_best(spec, run.history.records, found),
        checkpoints=found,
        stopped=run.stopped or "",
        losses=run.losses.points,
        resumed_at=taken_over(run.resumed_from),
        nan_since=spec.proof.broken,
    )


def _best(spec: RunSpec, history: Sequence[Mapping[str, Any]], found: Sequence[CheckpointInfo]) -> Best | None:
    if spec.best is None:
        return None
    monitor, sign = spec.best.monitor, 1 if spec.best.mode == "min" else -1
    measured = [record for record in history if not math.isnan(record.get(monitor, math.nan))]
    if not measured:
        return None
    record = min(measured, key=lambda record: sign * record[monitor])
    holders = [
        info.id
        for info in found
        if info.manifest and info.step == record["step"] and info.manifest.metrics.get(monitor) == record[monitor]
    ]
    return Best(
        monitor=monitor,
        value=record[monitor],
        epoch=record["epoch"],
        step=record["step"],
        checkpoint=holders[0] if holders else None,
    )

"""`resumable_fit`: its arguments checked, and its loop, which is one that anybody could write on `Run`; and whether
several processes are faster in it than one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from colabkeep.checkpoint.inspect import CheckpointInfo, checkpoints, find_run
from colabkeep.checkpoint.retention import KeepBest
from colabkeep.core.errors import UsageError
from colabkeep.core.events import LengthTold, Noted, RestoredInexactly
from colabkeep.core.settings import Item, Plain
from colabkeep.core.state import derive
from colabkeep.core.system import Clock, SystemClock
from colabkeep.frameworks import find_framework
from colabkeep.frameworks.base import Data, Framework, MeanLike, Pieces, Training, TrainingOptions
from colabkeep.frameworks.shared.iterables import length_of
from colabkeep.frameworks.shared.training import counts_to, is_per_step
from colabkeep.session.micro_batches import NOT_FIXED, MicroBatch, MicroBatches
from colabkeep.session.open import (
    RunArguments,
    RunSpec,
    Starting,
    bare,
    check_monitor,
    check_word,
    refuse_classes,
    taken_over,
    wire_run,
)
from colabkeep.session.run import Run

_ON_PLATEAUS = ("ReduceLROnPlateau", "ReduceOnPlateau")  # torch's, Paddle's: their step takes what was measured
_EACH = {"epoch": "once per epoch", "step": "once per optimizer step"}
_COMPUTES_WITH = ("accumulate_grad_batches", "gradient_clip_val", "precision", "scheduler_interval")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitArguments(TrainingOptions):
    """The words of `colabkeep.resumable_fit`, which says what they mean."""

    run: RunArguments
    train_loader: Any
    batch_size: int | None = None
    val_loader: Any = None
    scheduler_interval: Literal["auto", "epoch", "step"] = "auto"
    ema: Any = None
    count_tokens: Callable[[Any], Any] | None = None
    max_epochs: int | None = None
    max_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """How often the scheduler is stepped: once per "epoch" or "step"; `said`: that and why, a sentence, empty where the
    user has written it, or there is no scheduler."""

    word: str
    said: str = ""


def choose_interval(arguments: FitArguments, loader: object) -> Interval:
    """As the user says, else as the scheduler counts."""
    scheduler = arguments.scheduler
    if arguments.scheduler_interval != "auto" or scheduler is None:
        return Interval(word="epoch" if arguments.scheduler_interval == "auto" else arguments.scheduler_interval)
    batches, accumulate = length_of(loader), arguments.accumulate_grad_batches
    each = -(-batches // accumulate) if batches else None  # optimizer steps in an epoch
    epochs = {n for n in (arguments.max_epochs, arguments.max_steps and each and -(-arguments.max_steps // each)) if n}
    steps = {n for n in (arguments.max_epochs and each and arguments.max_epochs * each, arguments.max_steps) if n}
    name, total = type(scheduler).__name__, counts_to(scheduler)
    if total in epochs:
        return _chosen("epoch", name, f" (it counts to {total}, the epochs of this run)")
    if total in steps:
        return _chosen("step", name, f" (it counts to {total}, the optimizer steps of this run)")
    length = f"{min(steps)} optimizer steps" if steps else "a number of steps that is not known beforehand"
    length += f" in {min(epochs)} epoch(s)" if epochs else ""
    if is_per_step(scheduler):
        if total is None:
            return _chosen("step", name, " (it is made for that)")
        raise _unclear(name, total, length, min(steps, default=None))
    if total is None or (epochs and total < min(epochs)):
        return _chosen("epoch", name, "")
    if not steps:
        raise _unclear(name, total, length, None)
    return Interval(
        word="epoch",
        said=f"{name} counts to {total}, and is stepped once per epoch: the run has {length}. If it counts optimizer "
        'steps, write scheduler_interval="step". If this is what you want, write scheduler_interval="epoch".',
    )


def _chosen(word: str, name: str, why: str) -> Interval:
    other = "epoch" if word == "step" else "step"
    said = f'{name} is stepped {_EACH[word]}{why}; scheduler_interval="{other}" would step it {_EACH[other]}.'
    return Interval(word=word, said=said)


def _unclear(name: str, total: int, length: str, steps: int | None) -> UsageError:
    build = f"Build {name}(…, total_steps={steps}), and write" if name == "OneCycleLR" and steps else "Write"
    return UsageError(
        problem=f"{name} counts to {total}, and the run has {length}: it cannot be told whether it counts epochs or "
        "steps.",
        remedy=f'{build} scheduler_interval="step", to step it after each optimizer step; or '
        'scheduler_interval="epoch", to step it after each epoch.',
    )


@dataclass(slots=True, kw_only=True)
class FitState:
    """The part "fit" of a run: the running mean of the epoch's loss, and the settings that the loop computes with.

    `written` are those that the user wrote, by item; `precision` is its word for what is in `settings`. `chosen`: how
    often the scheduler is stepped, where the user left that to us. A run goes on as it began, then: what its length is
    now may say something else. `scaler`: the gradient scaler in use; `aside`: the state of one where none is, for a
    session that computes in float16 again; `taken_up`: this is such a session."""

    between_steps: ClassVar[bool] = True
    mean: MeanLike
    settings: Mapping[str, Any]
    written: Mapping[str, Item]
    precision: str
    chosen: Interval | None
    micro: MicroBatch
    scaler: Any = None
    aside: Mapping[str, Any] | None = None
    taken_up: bool = False
    stored: Mapping[str, Any] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """Mean and settings; micro-batches, where there ever were any, and a scaler that is put aside."""
        more = {"micro_batch": self.micro.state_dict(), "scaler": self.aside}
        told = {name: state for name, state in more.items() if state}
        return {"mean": self.mean.state_dict(), "settings": dict(self.settings), **told}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the mean; the stored settings are kept for what is told of them."""
        self.mean.load_state_dict(state["mean"])
        self.micro.load_state_dict(state.get("micro_batch", {}))
        self.stored = state["settings"]
        self.aside = state.get("scaler")
        if self.scaler is not None and self.aside is not None:
            self.scaler.load_state_dict(self.aside)
            self.aside, self.taken_up = None, True
        if self.chosen is not None:
            began = self.stored.get("scheduler_interval", self.chosen.word)
            self.settings = {**self.settings, "scheduler_interval": began}

    @property
    def interval(self) -> str:
        """The scheduler is stepped once per "epoch", or "step"."""
        return str(self.settings["scheduler_interval"])

    def interval_said(self) -> str:
        """How often the scheduler is stepped and why, where the user has not written it; else empty."""
        if self.chosen is None or not self.chosen.said or self.interval == self.chosen.word:
            return "" if self.chosen is None else self.chosen.said
        return (
            f'This run began with scheduler_interval="{self.interval}", and continues so. Now it would be '
            f'"{self.chosen.word}": {self.chosen.said}'
        )

    def written_settings(self) -> Mapping[str, Item]:
        """What the user wrote in the call."""
        return self.written

    def reached_settings(self, state: Mapping[str, Any]) -> Mapping[str, Plain]:
        """What an earlier session computed with. "auto" is no change where it comes to the same,
        or to what the run began with."""
        then: Mapping[str, Plain] = state["settings"]
        if then.get("precision") == self.settings["precision"]:
            then = {**then, "precision": self.precision}
        if self.chosen is not None:  # it goes on as it began
            then = {**then, "scheduler_interval": self.chosen.word}
        return then

    def put_aside(self, scaler: Mapping[str, Any]) -> None:
        """The run has a scaler, and this session needs none."""
        self.aside = scaler

    def scaler_said(self) -> str:
        """What becomes of the gradient scaler where the precision is another one than before; else empty."""
        then, now = (words.get("precision") == "16-mixed" for words in (self.stored or self.settings, self.settings))
        if then == now:
            return ""
        if then:
            return (
                "The gradient scaler of float16 is not needed now. Its state is kept for when the run needs it again."
            )
        begins = "the run's own continues where it stopped" if self.taken_up else "a new one begins"
        return f"float16 needs a gradient scaler: {begins}."

    def other_precision(self) -> str | None:
        """A sentence where precision="auto" comes to something else on this device than before."""
        then, now = self.stored.get("precision", self.settings["precision"]), self.settings["precision"]
        if self.precision != "auto" or then == now:
            return None
        return f"precision was {then} and is {now}: from here on the weights are not those of the old setting"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPlan:
    """What the loop works with, everything found and checked. The loaders are made ones, too, where the arguments have
    data sets. `pieces`: None where all batches are computed as a whole. `leads`: this process saves and shows."""

    arguments: FitArguments
    data: Data
    train_loader: object
    val_loader: object | None
    training: Training
    pieces: Pieces | None
    state: FitState
    starting: Starting
    leads: bool = True


def plan_fit(arguments: FitArguments) -> FitPlan:
    """Check the words of `resumable_fit`, and make its loop's arithmetic and state. Opens nothing."""
    starting = Starting(SystemClock(), {})
    _check(arguments)
    optimizer, scheduler = bare(arguments.optimizer), bare(arguments.scheduler)
    arguments = replace(arguments, optimizer=optimizer, scheduler=scheduler, run=arguments.run.read())
    starting.lap("ready")
    framework = find_framework([arguments.model, optimizer])
    training = framework.training(arguments)
    data = framework.data()
    loader = data.as_loader(arguments.train_loader, arguments.batch_size)
    interval = choose_interval(arguments, loader)
    validated = () if arguments.val_loader is None else [f"val_{name}" for name in training.measures]
    check_monitor(arguments.run.monitor, ("train_loss", "lr", *validated))
    words = {**{name: getattr(arguments, name) for name in _COMPUTES_WITH}, "scheduler_interval": interval.word}
    pieces = None if arguments.micro_batch is None else training.pieces()
    micro = MicroBatch(asked=arguments.micro_batch, card="" if pieces is None else pieces.card)
    state = FitState(
        mean=training.mean(),
        settings={**words, "precision": training.precision},
        written=_written(arguments, words, framework, loader),
        precision=arguments.precision,
        chosen=interval if arguments.scheduler_interval == "auto" else None,
        micro=micro,
        scaler=training.scaler,
    )
    starting.lap("import")
    return FitPlan(
        arguments=arguments,
        data=data,
        train_loader=loader,
        val_loader=None if arguments.val_loader is None else data.as_loader(arguments.val_loader, None),
        training=training,
        pieces=None if arguments.micro_batch == "auto" and not micro.adapts else pieces,
        state=state,
        starting=starting,
        leads=framework.place()[0] == 0,
    )


def _check(arguments: FitArguments) -> None:
    if arguments.max_epochs is None and arguments.max_steps is None:
        raise UsageError(problem="The length of the training is missing.", remedy="Pass max_epochs=… or max_steps=….")
    for name in ("max_epochs", "max_steps", "accumulate_grad_batches"):
        value: object = getattr(arguments, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise UsageError(
                problem=f"{name} must be a whole number, 1 or more, and is {value!r:.100}.",
                remedy=f"Write it without quotes and without a point: {name}=30.",
            )
    words = ("model", "train_loader", "optimizer", "scheduler", "ema", "loss_fn", "step_fn", "val_loader")
    refuse_classes(count_tokens=arguments.count_tokens, **{word: getattr(arguments, word) for word in words})
    if arguments.count_tokens is not None and not callable(arguments.count_tokens):
        raise UsageError(
            problem=f"count_tokens is a {type(arguments.count_tokens).__name__}, which cannot be called.",
            remedy='Pass a function of a batch: count_tokens=lambda batch: batch["input_ids"].numel().',
        )
    check_word("scheduler_interval", arguments.scheduler_interval, "auto", "epoch", "step")
    given: object = arguments.sync_batchnorm
    if not isinstance(given, bool):
        raise UsageError(
            problem=f"sync_batchnorm must be True or False, and is {given!r:.100}.",
            remedy="Write sync_batchnorm=True, or leave it out.",
        )
    ema = arguments.ema
    if ema is not None and not hasattr(ema, "update_parameters"):
        raise UsageError(
            problem=f"ema is a {type(ema).__name__}, which has no update_parameters(model).",
            remedy="Give its class that method (torch.optim.swa_utils.AveragedModel has it); it is called after each "
            "step. Or keep a loop of your own on colabkeep.Run, with ema=… too.",
        )


def _written(
    arguments: FitArguments, words: Mapping[str, Any], framework: Framework, loader: object
) -> dict[str, Item]:
    found = {"": Item(kind="resumable_fit", sure=True, options={**words, "batch_size": _batch_size(loader)})}
    for name in ("loss_fn", "step_fn"):
        if (function := getattr(arguments, name)) is not None:
            items = framework.described(function)
            found |= {".".join(filter(None, (name, inner))): item for inner, item in items.items()}
    return found


def _batch_size(loader: object) -> Any:
    """As the loader says; None where it does not."""
    return getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)


def wire_fit(plan: FitPlan) -> RunSpec:
    """What `wire_run` does, for a planned `resumable_fit`."""
    arguments, loader = plan.arguments, plan.train_loader
    plan.starting.lap("check")
    objects = {
        "model": arguments.model,
        "optimizer": arguments.optimizer,
        "scheduler": arguments.scheduler,
        "scaler": plan.training.scaler,
        "ema": arguments.ema,
        "fit": plan.state,
    }
    monitor = arguments.run.monitor or ("val_loss" if arguments.val_loader is not None else None)
    spec = wire_run(replace(arguments.run, objects=objects, monitor=monitor), plan.starting)
    told = {
        "max_epochs": arguments.max_epochs,
        "max_steps": arguments.max_steps,
        "num_workers": getattr(loader, "num_workers", None),
    }
    return replace(
        spec,
        loader=loader,
        val_loader=plan.val_loader,
        max_epochs=arguments.max_epochs,
        max_steps=arguments.max_steps,
        settings={name: str(value) for name, value in told.items()},
        precision=precision_chosen(arguments.precision, plan.training.precision),
        exceptions=(NOT_FIXED,) if plan.state.micro.adapts else (),
        optional={"scaler": plan.state.put_aside},
    )


def precision_chosen(asked: str, became: str) -> str:
    """What "auto" chose, where that changes what is computed; "" else."""
    if asked != "auto" or became == "32-true":
        return ""
    return f'precision="auto" became "{became}" on this device; precision="32-true" computes in float32 throughout.'


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best value of the monitored metric, and the checkpoint that holds it (None: not kept). `epoch` counts from 1,
    as displays do; in the history it counts from 0."""

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
    with plan.training.synchronised(), run:
        if (other := plan.state.other_precision()) is not None:
            run.tell(RestoredInexactly(checkpoint=run.checkpoint or "", reason=other))
        for said in filter(None, (plan.state.scaler_said(), plan.state.interval_said())):
            run.tell(Noted(text=said))
        if plan.pieces is None and (other := plan.state.micro.other(_batch_size(plan.train_loader))) is not None:
            run.tell(RestoredInexactly(checkpoint=run.checkpoint or "", reason=other))
        train(run, plan)
    return _result(run, spec)


def train(run: Run, plan: FitPlan) -> None:
    """The loop, inside the run's `with` block."""
    state = plan.state
    run.resumes_behind = True
    micro = None
    if plan.pieces is not None:
        micro = MicroBatches(run, plan.pieces, state.micro, _batch_size(plan.train_loader))
    worth = None
    if plan.leads and run.ranks > 1 and plan.training.summing is not None:
        worth = Worth(run.ranks, plan.training.summing, SystemClock(), run.tell)
    if run.resumed_from is None:
        plan.training.align()
    if plan.arguments.max_steps is not None:
        run.tell(LengthTold(max_steps=plan.arguments.max_steps))
    for _ in run.epochs(plan.arguments.max_epochs):
        if not run.progress.batches:
            state.mean.reset()
        plan.training.train()
        _epoch(run, plan, micro, worth)
        metrics = {"train_loss": state.mean.value(), "lr": plan.training.learning_rate(), **_validate(run, plan)}
        run.log(**{name: value for name, value in metrics.items() if value is not None})
        if plan.arguments.scheduler is not None and state.interval == "epoch":
            _step_scheduler(plan, metrics)


def _epoch(run: Run, plan: FitPlan, micro: MicroBatches | None, worth: Worth | None) -> None:
    arguments = plan.arguments
    if arguments.max_steps is not None and run.progress.step >= arguments.max_steps:
        run.stop("max_steps")
    accumulate, backward = arguments.accumulate_grad_batches, plan.training.backward
    tokens: list[Any] = []  # of each batch of the window
    step = _step(run, plan, tokens, worth)
    together, count = run.ranks > 1, arguments.count_tokens
    size, done = 1, run.progress.batches  # a session begins at the boundary of a window
    window: list[tuple[Any, float]] = []
    begins = together and not run.progress.step
    for _, batch in run.enumerate(plan.train_loader):  # nobody need look who counts
        if accumulate > 1:
            length = run.epoch_batches  # the last window of an epoch may be shorter
            size = accumulate if length is None else max(1, min(accumulate, length - done))
        if count is not None:
            told = _one_number(count(batch))
            tokens.append(told if run.batch_weight else 0)  # else another process counts it
        # Each of several processes has its part of the batch, of its loss, and of the gradient.
        part = run.batch_weight / run.ranks if together else 1.0
        if micro is None:
            loss = backward(batch, share=part / size)
            window.append((loss * part if together else loss, run.batch_samples or 1))
        else:
            micro(batch, part, size, window)
        if begins:
            begins = False
            _tell_other_loss(run, plan.training.loss_differs)
        if len(window) == size:
            done += size
            step(window)
    if window:  # of unknown length, the epoch ended inside a window
        step(window)


def _tell_other_loss(run: Run, differs: str) -> None:
    if differs:
        text = (
            f"The loss of a batch is not the mean of the losses of its samples: {differs}. Each process computes the "
            "loss of its part of a batch, so another number of processes gives another training. If your loss is a "
            'sum, take the mean (reduction="mean"). If it compares the samples of a batch (contrastive, in-batch '
            "negatives), each process compares fewer of them."
        )
        run.tell(Noted(text=text))


def _one_number(tokens: Any) -> Any:
    if not isinstance(tokens, (int, float)) and not (hasattr(tokens, "item") and math.prod(tokens.shape) == 1):
        raise UsageError(
            problem=f"count_tokens returned a {type(tokens).__name__}; it must return one number.",
            remedy='Let it return how many tokens the batch has: lambda batch: batch["input_ids"].numel().',
        )
    return tokens


def _step(run: Run, plan: FitPlan, tokens: list[Any], worth: Worth | None) -> Callable[[list[tuple[Any, float]]], None]:
    """What ends a window, with all that does not change looked up once. `tokens`: of the window's batches, where they
    are counted."""
    arguments, training, add, done = plan.arguments, plan.training, plan.state.mean.add, run.step
    update = training.step
    ema, model, max_steps = arguments.ema, arguments.model, arguments.max_steps
    scheduler = arguments.scheduler if plan.state.interval == "step" else None
    together = run.ranks > 1
    if worth is not None:
        worth.pause()

    def step(window: list[tuple[Any, float]]) -> None:
        if together:
            summed = training.reduce([*(loss for loss, _ in window), *tokens])
            tokens[:] = summed[len(window) :]
            window[:] = [(loss, weight) for loss, (_, weight) in zip(summed, window, strict=False)]
        update()
        if ema is not None:
            ema.update_parameters(model)
        if scheduler is not None:
            scheduler.step()
        for loss, weight in window:  # not before: an exception inside a window leaves the state of the last step whole
            add(loss, weight)
        last = window[-1][0]
        counted = sum(tokens) if tokens else None
        window.clear()
        tokens.clear()
        done(loss=last, grad_norm=training.grad_norm, tokens=counted)
        if worth is not None:
            worth(last)
        if max_steps is not None and run.progress.step >= max_steps:
            run.stop("max_steps")

    return step


def _validate(run: Run, plan: FitPlan) -> dict[str, float]:
    if plan.val_loader is None:
        return {}
    # The same seed and epoch each time: every validation sees the same samples, whatever the data set draws.
    seed = derive(plan.arguments.run.seed, "validation")
    opened = run.same_data.open(plan.data, "val", plan.val_loader, None, seed=seed, epoch=0, batches=0, samples=0)
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
        history=list(run.history),
        best=_best(spec.arguments.best, run.history, found),
        checkpoints=found,
        stopped=run.stopped or "",
        losses=run.losses.points,
        resumed_at=taken_over(run.resumed_from),
        nan_since=run.losses.proof.broken,
    )


def _best(best: KeepBest | None, history: Sequence[Mapping[str, Any]], found: Sequence[CheckpointInfo]) -> Best | None:
    if best is None:
        return None
    monitor, sign = best.monitor, 1 if best.mode == "min" else -1
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
        epoch=record["epoch"] + 1,
        step=record["step"],
        checkpoint=holders[0] if holders else None,
    )


_FIRST = 20  # steps of a session that are not measured: kernels are chosen, and memory is got
_TOGETHER = 5  # steps between two looks at the clock, at which the device is waited for
_TIMES = 8  # so often


class Worth:
    """Called after each step of rank 0: tells once if several processes do not pay.

    A step of N processes takes T seconds: the median of eight times five steps, the first twenty of the session left
    out, with the wait for data and without validation. S of them are spent on what the processes tell each other:
    `summing`, measured before the training with as many bytes as the gradients have. The rest, T - S, is a process's
    part of the batch. One process alone would need N * (T - S) at most: N parts, nothing of which is faster than
    before, though the update of the weights is there once and small batches hardly take less time than large ones. So
    several do not pay where N * (T - S) <= T, and that is all that is told; that they pay is not.
    """

    def __init__(self, size: int, summing: float, clock: Clock, tell: Callable[[Noted], object]) -> None:
        self._size, self._summing, self._clock, self._tell = size, summing, clock, tell
        self._steps, self._since = 0, 0
        self._began: float | None = None
        self._taken: list[float] = []

    def pause(self) -> None:
        """What comes now is no step."""
        self._began = None

    def __call__(self, loss: Any) -> None:
        """A step was made, whose loss this is, perhaps still on a device."""
        self._steps += 1
        if self._steps < _FIRST or len(self._taken) == _TIMES:
            return
        if self._began is not None:
            self._since += 1
            if self._since < _TOGETHER:
                return
        float(loss)  # waits for the device
        now = self._clock.monotonic()
        if self._began is not None:
            self._taken.append((now - self._began) / self._since)
            if len(self._taken) == _TIMES and (text := self.sentence(statistics.median(self._taken))):
                self._tell(Noted(text=text))
        self._began, self._since = now, 0

    def sentence(self, step: float) -> str:
        """What is told of steps that take so many seconds; empty where several processes may pay."""
        alone = self._size * (step - self._summing)
        if alone > step:
            return ""
        if alone <= 0:
            return (
                f"{self._size} devices are no faster than one for this model: a step takes about {_ms(step)}, and the "
                "sums over all of them took as long in the trial before the training. devices=1 needs no sums."
            )
        return (
            f"{self._size} devices are no faster than one for this model: a step takes about {_ms(step)}, of which "
            f"the sums over all of them take about {_ms(self._summing)}. With devices=1 a step would take about "
            f"{_ms(alone)} at most."
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"

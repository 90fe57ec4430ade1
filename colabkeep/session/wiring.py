"""From what the user wrote to what a run is made of: finds the parts and checks the arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from colabkeep.core.arguments import checked_run_name, read_duration
from colabkeep.core.errors import NotPersistent, UsageError
from colabkeep.core.events import Event
from colabkeep.core.policies import OVERHEAD, KeepBest, KeepLast, Mode, RetentionPolicy, parse_save_every, read_overhead
from colabkeep.core.settings import Item, Plain
from colabkeep.core.system import Environment, SystemClock
from colabkeep.frameworks import find_framework
from colabkeep.frameworks.base import Data, Framework, MeanLike, Training, TrainingOptions
from colabkeep.platforms import find_platform
from colabkeep.platforms.base import DefaultStorage
from colabkeep.session.event_bus import Remounting, Starting
from colabkeep.session.machine import find_deadline, this_machine, usual_lifetime
from colabkeep.session.open import RunSpec, precision_chosen
from colabkeep.session.rehearsal import REHEARSAL
from colabkeep.session.scheduler import read_on_nan
from colabkeep.session.settings import check_on_change
from colabkeep.session.validation import (
    Decided,
    Length,
    check_monitor,
    check_resume,
    check_seed,
    choose_name,
    decide,
    refuse_classes,
    refuse_ranks,
    refuse_reserved,
)
from colabkeep.stores import open_store
from colabkeep.stores.base import Store, StoreContext

__all__ = [
    "FitArguments",
    "FitPlan",
    "FitState",
    "RunArguments",
    "bare",
    "bare_parts",
    "decide_interval",
    "find_store",
    "open_home",
    "plan_fit",
    "prune_policy",
    "state_parts",
    "wire_fit",
    "wire_run",
]

_INSIDE = {"accelerate.optimizer": "optimizer", "accelerate.scheduler": "scheduler"}


def bare(part: Any) -> Any:
    """The optimizer or scheduler that `accelerator.prepare` was given; anything else as it is."""
    inside = _INSIDE.get(type(part).__module__)
    return part if inside is None else getattr(part, inside)


def bare_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a run, taken out. A scaler that only a prepared optimizer knows becomes a part of its own."""
    taken = {name: bare(part) for name, part in parts.items()}
    for name, part in parts.items():
        scaler = getattr(part, "scaler", None) if taken[name] is not part else None
        if scaler is not None and not any(scaler is other for other in taken.values()):
            taken[f"{name}.scaler"] = scaler
    return taken


_SECRET_SECONDS = 20.0  # how long the notebook's page may take to answer
_REMOUNT_SECONDS = 60.0  # and how long training may be held up, where its Drive died: perhaps nobody is at the page


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """The words that every run knows; `colabkeep.Run` says what they mean. `objects` may hold None."""

    run_name: str | None
    objects: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] | None = None
    storage: Any = "auto"
    resume: str = "auto"
    save_every: Any = "auto"
    overhead: Any = OVERHEAD
    keep_last: int | None = 2
    keep_best: int = 1
    monitor: str | None = None
    mode: Mode = "min"
    max_time: Any = None
    session_limit: Any = None
    flush_timeout: Any = 60.0
    on_nan: str = "warn"
    on_change: str = "error"
    seed: int = 0
    observers: tuple[Callable[[Event], None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FitArguments:
    """The words of `colabkeep.resumable_fit`, which says what they mean."""

    model: Any
    train_loader: Any
    optimizer: Any
    run: RunArguments
    batch_size: int | None = None
    loss_fn: Callable[[Any, Any], Any] | None = None
    step_fn: Callable[[Any, Any], Any] | None = None
    val_loader: Any = None
    metrics: Mapping[str, Any] | None = None
    scheduler: Any = None
    scheduler_interval: Literal["auto", "epoch", "step"] = "auto"
    ema: Any = None
    max_epochs: int | None = None
    max_steps: int | None = None
    precision: str = "auto"
    accumulate_grad_batches: int = 1
    gradient_clip_val: float | None = None


@dataclass(slots=True, kw_only=True)
class FitState:
    """The state of the loop of `fit`: the running mean of the epoch's loss, and the settings that it computes with.

    `written` are those that the user wrote, by item; `precision` is its word for what is in `settings`. `decided`: how
    often the scheduler is stepped, where the user left that to us. A run goes on as it began, then: what its length is
    now may say something else."""

    between_steps: ClassVar[bool] = True
    mean: MeanLike
    settings: Mapping[str, Any]
    written: Mapping[str, Item]
    precision: str
    stored: Mapping[str, Any] = field(default_factory=dict)
    decided: Decided | None = None

    def state_dict(self) -> dict[str, Any]:
        """Mean and settings."""
        return {"mean": self.mean.state_dict(), "settings": dict(self.settings)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the mean; the stored settings are kept for `changes`."""
        self.mean.load_state_dict(state["mean"])
        self.stored = state["settings"]
        if self.decided is not None:
            began = self.stored.get("scheduler_interval", self.decided.interval)
            self.settings = {**self.settings, "scheduler_interval": began}

    @property
    def interval(self) -> str:
        """The scheduler is stepped once per "epoch", or "step"."""
        return str(self.settings["scheduler_interval"])

    def interval_said(self) -> str:
        """How often the scheduler is stepped and why, where the user has not written it; else empty."""
        if self.decided is None or not self.decided.said:
            return ""
        if self.interval == self.decided.interval:
            return self.decided.said
        return (
            f'This run began with scheduler_interval="{self.interval}", and goes on so. Now it would be '
            f'"{self.decided.interval}": {self.decided.said}'
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
        if self.decided is not None:  # it goes on as it began
            then = {**then, "scheduler_interval": self.decided.interval}
        return then

    def other_precision(self) -> str | None:
        """A sentence where precision="auto" comes to something else on this device than before."""
        then, now = self.stored.get("precision", self.settings["precision"]), self.settings["precision"]
        if self.precision != "auto" or then == now:
            return None
        return f"precision was {then} and is {now}: from here on the weights are not those of the old setting"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPlan:
    """What the loop of `fit` works with, everything found and checked."""

    arguments: FitArguments
    train_loader: object
    val_loader: object | None
    training: Training
    state: FitState
    val_data: Data
    starting: Starting


def state_parts(state: object) -> dict[str, Any]:
    """What is passed as `state`, each as a part of the run.

    Raises:
        UsageError: it is no mapping.
    """
    if state is not None and not isinstance(state, Mapping):
        raise UsageError(
            problem=f"state= names more objects, and this is of the type {type(state).__name__}.",
            remedy='Give each a name: state={"generator": generator}.',
        )
    return {f"state.{name}": part for name, part in (state or {}).items()}


def wire_run(arguments: RunArguments, starting: Starting | None = None) -> RunSpec:
    """Find framework and store, check the arguments. `starting`: what has timed the way here, if anything has.

    Raises:
        UsageError: an argument cannot be meant so.
    """
    rehearsal = REHEARSAL.get()
    if rehearsal is not None:
        arguments = replace(arguments, **rehearsal.words(arguments.observers))
    parts = {name: part for name, part in arguments.objects.items() if part is not None}
    parts = bare_parts(parts | state_parts(arguments.state))
    if not parts:
        raise UsageError(problem="There is nothing to keep.", remedy="Pass model=…, optimizer=… or state={…}.")
    refuse_classes(**parts)
    check_resume(arguments.resume)
    check_seed(arguments.seed)
    best = _best(arguments.keep_best, arguments.monitor, arguments.mode)
    clock = SystemClock()
    max_time, limit, flush_timeout = _seconds(arguments)
    here, starting = Environment.here(), starting or Starting(clock, {})
    deadline = None if rehearsal else find_deadline(here, clock, limit=limit, may_end=max_time is None)
    remounting = Remounting(lambda: find_platform(here).mount(here, timeout=_REMOUNT_SECONDS))
    starting.lap("ready")
    store, name, note = _named_store(arguments, here, remounting)
    starting.lap("storage")
    framework = find_framework(parts.values())
    refuse_ranks(framework.processes(), here.environ)
    if rehearsal is not None:
        rehearsal.framework = framework.name
    notes = tuple(filter(None, (note, framework.untrained(parts))))
    starting.lap("import")
    return RunSpec(
        name=name,
        parts=parts,
        framework=framework,
        store=store,
        closes_store=store is not arguments.storage,
        save_every=parse_save_every(arguments.save_every),
        overhead=read_overhead(arguments.overhead),
        usual=usual_lifetime(find_platform(here).limits(here)),
        retention=_retention(arguments.keep_last, best),
        best=best,
        resume=arguments.resume,
        on_change=check_on_change(arguments.on_change),
        seed=arguments.seed,
        max_time=max_time,
        flush_timeout=flush_timeout,
        deadline=deadline,
        machine=this_machine(here),
        clock=clock,
        observers=(*arguments.observers, remounting),  # the others tell first why the page is asked
        laps=starting.laps,
        waits=rehearsal is not None,
        on_nan=read_on_nan(arguments.on_nan),
        notes=notes,
    )


def _named_store(arguments: RunArguments, here: Environment, remounting: Remounting) -> tuple[Store, str, str]:
    """The store, the run's name in it, and what to say of that."""
    store = find_store(arguments.storage, remounting.ask)
    try:
        name, note = choose_name(arguments.run_name, store, here)
        refuse_reserved(store, name)
        return store, name, note
    except BaseException:
        if store is not arguments.storage:
            store.close()
        raise


def plan_fit(arguments: FitArguments) -> FitPlan:
    """Check the words of `resumable_fit`, and make its loop's arithmetic and state. Opens nothing.

    Raises:
        UsageError: an argument cannot be meant so.
    """
    starting = Starting(SystemClock(), {})
    arguments = replace(arguments, optimizer=bare(arguments.optimizer), scheduler=bare(arguments.scheduler))
    _check(arguments)
    _check_words(arguments.run)
    starting.lap("ready")
    framework = find_framework([arguments.model, arguments.optimizer])
    training = framework.training(
        TrainingOptions(
            model=arguments.model,
            optimizer=arguments.optimizer,
            loss_fn=arguments.loss_fn,
            step_fn=arguments.step_fn,
            metrics=arguments.metrics,
            scheduler=arguments.scheduler,
            precision=arguments.precision,
            accumulate_grad_batches=arguments.accumulate_grad_batches,
            gradient_clip_val=arguments.gradient_clip_val,
        )
    )
    data = framework.data()
    loader = data.as_loader(arguments.train_loader, arguments.batch_size)
    decided = decide_interval(arguments, loader)
    validated = () if arguments.val_loader is None else [f"val_{name}" for name in training.measures]
    check_monitor(arguments.run.monitor, ("train_loss", "lr", *validated))
    words = {**_words(arguments), "scheduler_interval": decided.interval}
    state = FitState(
        mean=training.mean(),
        settings={**words, "precision": training.precision},
        written=_written(arguments, words, framework, loader),
        precision=arguments.precision,
        decided=decided if arguments.scheduler_interval == "auto" else None,
    )
    starting.lap("import")
    return FitPlan(
        arguments=arguments,
        train_loader=loader,
        val_loader=None if arguments.val_loader is None else data.as_loader(arguments.val_loader, None),
        training=training,
        state=state,
        val_data=data,
        starting=starting,
    )


def _words(arguments: FitArguments) -> dict[str, Any]:
    """The words of the call that decide about the weights."""
    names = ("accumulate_grad_batches", "gradient_clip_val", "precision", "scheduler_interval")
    return {name: getattr(arguments, name) for name in names}


def _written(
    arguments: FitArguments, words: Mapping[str, Any], framework: Framework, loader: object
) -> dict[str, Item]:
    batches = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    options = {**words, "batch_size": batches}
    found = {"": Item(kind="resumable_fit", sure=True, options=options)}
    for name in ("loss_fn", "step_fn"):
        if (function := getattr(arguments, name)) is not None:
            items = framework.described(function)
            found |= {".".join(filter(None, (name, inner))): item for inner, item in items.items()}
    return found


def decide_interval(arguments: FitArguments, loader: object) -> Decided:
    """How often the scheduler is stepped: as the user says, else as the scheduler counts.

    Raises:
        UsageError: neither tells.
    """
    if arguments.scheduler_interval != "auto":
        return Decided(interval=arguments.scheduler_interval)
    length = Length(
        max_epochs=arguments.max_epochs,
        max_steps=arguments.max_steps,
        loader=loader,
        accumulate=arguments.accumulate_grad_batches,
    )
    return decide(arguments.scheduler, length)


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
    chosen = precision_chosen(arguments.precision, plan.training.precision)
    return replace(
        spec,
        loader=loader,
        val_loader=plan.val_loader,
        settings=_settings(arguments, loader),
        max_epochs=arguments.max_epochs,
        max_steps=arguments.max_steps,
        precision=chosen,
    )


def _settings(arguments: FitArguments, loader: object) -> dict[str, str]:
    told = {
        "max_epochs": arguments.max_epochs,
        "max_steps": arguments.max_steps,
        "num_workers": getattr(loader, "num_workers", None),
    }
    return {name: str(value) for name, value in told.items()}


def find_store(storage: Any, remount: Callable[[], bool] | None = None) -> Store:
    """Open what the user wrote; "auto" is the platform's own place, with what earlier sessions left there. `remount`:
    as in `StoreContext`; only a training has one, for who merely looks shall not be asked to agree to anything.

    Raises:
        UsageError: it names no store.
        NotPersistent: the platform's own place vanishes with this machine. Whoever names a folder is not asked.
    """
    if isinstance(storage, str) and storage == "auto":
        here = Environment.here()
        return open_home(find_platform(here).home(here), remount)
    return open_store(storage, context=_context(Environment.here(), remount))


def open_home(home: DefaultStorage, remount: Callable[[], bool] | None = None) -> Store:
    """Open a platform's own place, with what earlier sessions left there. `remount`: as in `find_store`.

    Raises:
        NotPersistent: it vanishes with this machine.
    """
    if home.persists is False:
        raise NotPersistent(
            problem=f"Checkpoints would go to {home.folder}, which is gone with this machine. {home.reason}",
            remedy=home.remedy or 'Name a folder that outlives it: storage="<folder>".',
        )
    return open_store(home.storage, home.earlier, StoreContext(remount=remount))


def _context(environment: Environment, remount: Callable[[], bool] | None) -> StoreContext:
    """What this platform can do for a store; nothing is asked of it yet."""
    home = environment.environ.get("HOME")
    cache = environment.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else None)
    platform = find_platform(environment)
    return StoreContext(
        secret=lambda name: platform.secret(environment, name, timeout=_SECRET_SECONDS),
        user=platform.google_user(environment),
        disk=None if cache is None else environment.path(cache) / "colabkeep",
        remount=remount,
    )


def _check(arguments: FitArguments) -> None:
    if arguments.max_epochs is None and arguments.max_steps is None:
        raise UsageError(problem="How long to train is not said.", remedy="Pass max_epochs=… or max_steps=….")
    for name in ("max_epochs", "max_steps", "accumulate_grad_batches"):
        value: object = getattr(arguments, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise UsageError(
                problem=f"{name} must be a whole number, 1 or more, and is {value!r:.100}.",
                remedy=f"Write it without quotes and without a point: {name}=30.",
            )
    words = ("model", "train_loader", "optimizer", "scheduler", "ema", "loss_fn", "step_fn", "val_loader")
    refuse_classes(**{word: getattr(arguments, word) for word in words})
    if arguments.scheduler_interval not in ("auto", "epoch", "step"):
        raise UsageError(
            problem=f"scheduler_interval={arguments.scheduler_interval!r} is unknown.",
            remedy='Use "step" or "epoch"; or "auto", which reads from the scheduler what it counts.',
        )
    ema = arguments.ema
    if ema is not None and not hasattr(ema, "update_parameters"):
        raise UsageError(
            problem=f"ema is a {type(ema).__name__}, which has no update_parameters(model).",
            remedy="Give its class that method (torch.optim.swa_utils.AveragedModel has it); it is called after each "
            "step. Or keep a loop of your own on colabkeep.Run, with ema=… too.",
        )


def prune_policy(keep_last: int, keep_best: int, monitor: str, mode: Mode) -> RetentionPolicy:
    """What stays when a run is pruned by hand, in the same words.

    Raises:
        UsageError: it would leave nothing.
    """
    return _retention(keep_last, _best(keep_best, monitor, mode))


def _check_words(arguments: RunArguments) -> None:
    """Refuse what `wire_run` would refuse, before anything is asked of the machine."""
    check_resume(arguments.resume)
    check_seed(arguments.seed)
    if arguments.run_name is not None:
        checked_run_name(arguments.run_name)
    _retention(arguments.keep_last, _best(arguments.keep_best, arguments.monitor, arguments.mode))
    _seconds(arguments)
    parse_save_every(arguments.save_every)
    read_overhead(arguments.overhead)
    read_on_nan(arguments.on_nan)
    check_on_change(arguments.on_change)


def _best(keep_best: int, monitor: str | None, mode: Mode) -> KeepBest | None:
    if mode not in ("min", "max"):
        raise UsageError(problem=f"mode={mode!r} is unknown.", remedy='Use "min" or "max".')
    if monitor is None:
        return None
    count: object = keep_best
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise UsageError(
            problem=f"keep_best={keep_best!r} is no number of checkpoints.", remedy="Keep 0 or more: keep_best=1."
        )
    return KeepBest(n=keep_best, monitor=monitor, mode=mode)


def _retention(keep_last: object, best: KeepBest | None) -> RetentionPolicy:
    n = keep_last
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise UsageError(
            problem=f"keep_last={n!r} would leave nothing to go on from.", remedy="Keep 1 or more; None keeps all."
        )
    last = KeepLast(n)
    return last if best is None else last + best


def _seconds(arguments: RunArguments) -> tuple[float | None, float | None, float]:
    """`max_time`, `session_limit` and `flush_timeout`."""
    given = {"max_time": arguments.max_time, "session_limit": arguments.session_limit}
    max_time, limit = (None if value is None else read_duration(name, value) for name, value in given.items())
    patience = arguments.flush_timeout
    return max_time, limit, 0.0 if patience == 0 else read_duration("flush_timeout", patience)

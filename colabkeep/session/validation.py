"""What cannot be meant so, refused before anything is asked of the machine; the run's name where nobody said one,
and how often the scheduler is stepped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral
from pathlib import PurePath
from typing import Any

from colabkeep.checkpoint.repository import CHECKPOINT_ID
from colabkeep.core.arguments import checked_run_name, is_reserved, run_folder
from colabkeep.core.errors import UsageError
from colabkeep.core.events import EpochDone, Event, LengthTold, MetricsLogged, Noted, RunStopped
from colabkeep.core.policies import KeepBest
from colabkeep.core.system import Environment
from colabkeep.frameworks.shared.iterables import length_of
from colabkeep.frameworks.shared.training import counts_to, is_per_step
from colabkeep.session.metrics import History
from colabkeep.stores.base import Store

__all__ = [
    "Decided",
    "Length",
    "check_callbacks",
    "check_monitor",
    "check_resume",
    "check_seed",
    "checked_length",
    "choose_name",
    "decide",
    "refuse_classes",
    "refuse_ranks",
    "refuse_reserved",
    "unlogged",
]

_ONCE = "default"  # what every run without a name was called, in versions before this one
_UNNAMED = re.compile(r"untitled[ _-]?\d*", re.IGNORECASE)  # what a notebook is called before it is named


def choose_name(given: object, store: Store, here: Environment) -> tuple[str, str]:
    """The name of the run, and a sentence about it, empty where the user has written it.

    Without one a run is called after the notebook or program, if that is known. A run that an earlier version has
    called "default" goes on under that name.

    Raises:
        UsageError: `given` is no name; or nothing says what to call it, and another notebook may keep its run here.
        StoreError: the store cannot be asked.
    """
    if given is not None:
        return checked_run_name(given), ""
    own = _own_name(here)
    if own and _is_there(store, own):
        return own, f"run_name was not given: the run is called {own!r}, after {PurePath(here.program).name}."
    if _is_there(store, _ONCE):
        return _ONCE, (
            f"run_name was not given: the run {_ONCE!r} of this storage goes on. Every notebook without a run_name "
            f'that keeps its runs here shares it: write run_name="{_ONCE}" in this one, and another name in the others.'
        )
    if own:
        return own, (
            f"run_name was not given: the run is called {own!r}, after {PurePath(here.program).name}. Under another "
            f'file name a new run would begin: write run_name="{own}" to be sure.'
        )
    if store.properties.persists is False:
        return _ONCE, ""  # nobody else ever comes here
    raise UsageError(
        problem="run_name is not given, and nothing here says what this notebook or program is called. Two of them "
        f"that keep their checkpoints in {store.url} would go on with each other's run.",
        remedy='Write a name of your own, once and for all: run_name="my-run".',
    )


def refuse_reserved(store: Store, name: str) -> None:
    """Refuse a new run that is called like colabkeep's own files; one that an earlier version began goes on.

    Raises:
        UsageError: the remedy says what to write.
        StoreError: the store cannot be asked.
    """
    part = is_reserved(name)
    if part and not _is_there(store, name):
        raise UsageError(
            problem=f"run_name={name!r} cannot be the name of a new run: {part!r} is what colabkeep's own files are "
            "called like.",
            remedy=f'Call it otherwise, such as run_name="{name.replace(part, "my-" + part.replace(".", "-"))}".',
        )


def _own_name(here: Environment) -> str:
    """After the notebook or program; empty where that is not known, or says nothing."""
    file = PurePath(here.program)
    stem = file.parent.name if file.name == "__main__.py" else file.stem
    try:
        name = checked_run_name(stem.strip())
    except UsageError:
        return ""
    return "" if _UNNAMED.fullmatch(name) or is_reserved(name) else name


def _is_there(store: Store, name: str) -> bool:
    return any(True for _ in store.list(run_folder(name)))


RESUME_WORDS = ("auto", "must", "never", "best")
_AUTO = 'Write resume="auto", which goes on if there is a checkpoint, or leave it out: that is the default.'
_MUST = f'Write resume="must", which goes on or raises. {_AUTO}'
_NEVER = 'Write resume="never", which starts from zero; the checkpoints that are there stay.'


def check_resume(resume: object) -> None:
    """Refuse what is neither a word nor an id: True and None could mean two things each.

    Raises:
        UsageError: it is none; the remedy says which one was meant.
    """
    if isinstance(resume, str) and (resume in RESUME_WORDS or CHECKPOINT_ID.fullmatch(resume)):
        return
    remedy = _MUST if resume is True else _NEVER if resume is False else _AUTO
    if isinstance(resume, str):
        words = ", ".join(f'"{word}"' for word in RESUME_WORDS)
        remedy = f"Use {words}, or the id of a checkpoint, which `colabkeep show` lists. {_AUTO}"
    raise UsageError(problem=f"resume={resume!r:.100} is unknown.", remedy=remedy)


def check_seed(seed: object) -> None:
    """Refuse what two sessions would not read alike.

    Raises:
        UsageError: it is no whole number.
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise UsageError(problem=f"seed={seed!r:.100} is no whole number.", remedy="Write one: seed=0.")


def checked_length(*, max_epochs: int | None = None, max_steps: int | None = None) -> LengthTold:
    """What is told of a loop's length. One that it could never reach is refused; 0 is a loop that does nothing.

    Raises:
        UsageError: one of them is neither None nor a whole number.
    """
    lengths: tuple[tuple[str, str, object], ...] = (
        ("max_epochs", "epochs", max_epochs),
        ("max_steps", "steps", max_steps),
    )
    for name, word, value in lengths:
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < 0):
            a_number = isinstance(value, str | float) and _whole(value)
            raise UsageError(
                problem=f"run.{word}({value!r:.100}): {name} must be a whole number, 0 or more.",
                remedy=f"Write run.{word}({a_number or 30}), or run.{word}(None) for a loop without an end."
                + (f" A value from the command line needs type=int: run.{word}(int(…))." if a_number else ""),
            )
    return LengthTold(max_epochs=max_epochs, max_steps=max_steps)


def _whole(value: str | float) -> int | None:
    try:
        return int(value) if int(value) > 0 else None
    except (ValueError, OverflowError):
        return None


def refuse_ranks(processes: int, environ: Mapping[str, str]) -> None:
    """Refuse a training in several processes: each would write checkpoints of its own into one run, with the random
    numbers and the place in the data of one rank. `processes`: as the framework tells. torchrun tells it by variables
    before the framework knows.

    Raises:
        UsageError: there are more than one.
    """
    started = environ.get("WORLD_SIZE", "") if environ.get("TORCHELASTIC_RUN_ID") else ""
    ranks = max(processes, int(started) if started.isdecimal() else 1)
    if ranks > 1:
        rank = environ.get("RANK", "")
        own = f" (this one is rank {rank})" if rank.isdecimal() else ""
        raise UsageError(
            problem=f"This training runs as {ranks} ranks{own}, and colabkeep keeps trainings of one process: they "
            "would write one run over each other. Nothing was touched.",
            remedy="Train in one process: start the script with python, not with a launcher (torchrun, "
            "paddle.distributed.launch). In torch one process can use several GPUs: torch.nn.DataParallel(model).",
        )


def check_callbacks(callbacks: object) -> tuple[Callable[[Event], None], ...]:
    """The callbacks, each a function of one event.

    Raises:
        UsageError: one cannot be called.
    """
    if not isinstance(callbacks, Iterable) or isinstance(callbacks, (str, Mapping)):
        raise UsageError(
            problem=f"callbacks={callbacks!r:.100} is no list.", remedy="Pass a list of functions: callbacks=[tell]."
        )
    listed = tuple(callbacks)
    for each in listed:
        if isinstance(each, type) or not callable(each):
            kind = f"the class {each.__name__}" if isinstance(each, type) else f"a {type(each).__name__}"
            raise UsageError(
                problem=f"callbacks has {kind}, which cannot be called with an event.",
                remedy="Pass functions of one argument: def tell(event): print(event), and callbacks=[tell]. Each is "
                "called with every event; callbacks of other trainers have no place here.",
            )
    return listed


def refuse_classes(**objects: object) -> None:
    """Refuse a class where an object of it is wanted: it has the same methods, and no state.

    Raises:
        UsageError: there is one.
    """
    for word, found in objects.items():
        if isinstance(found, type):
            raise UsageError(
                problem=f"{word} is the class {found.__name__}, not an object of it.",
                remedy=f"Make one: {word}={found.__name__}(…).",
            )


def check_monitor(monitor: str | None, known: Iterable[str]) -> None:
    """Refuse a metric that a training of ours will never measure.

    Raises:
        UsageError: it is none of the `known` ones, which are listed.
    """
    names = list(known)
    if monitor is None or monitor in names:
        return
    close = [name for name in names if name.endswith(f"_{monitor}")] or get_close_matches(monitor, names, 1)
    meant = f'Did you mean monitor="{close[0]}"? ' if close else ""
    lacks = "" if any(name.startswith("val_") for name in names) else " With a val_loader there is val_loss too."
    raise UsageError(
        problem=f"monitor={monitor!r} is never measured in this training.",
        remedy=f"{meant}It measures {', '.join(names)}; each of metrics={{…}} is a name with val_ in front.{lacks}",
    )


def unlogged(best: KeepBest | None, history: History, say: Callable[[Event], Any]) -> list[Callable[[Event], None]]:
    """Who sees that what is monitored is never logged; nobody where nothing is."""
    return [] if best is None else [Unlogged(best.monitor, history, say)]


class Unlogged:
    """Tells once that `monitor` was not logged: at the end of the first epoch in which something else was, or where the
    training ends.

    An observer of a run's events; the sentence is handed to `say`.
    """

    steps_from = float("inf")  # of steps it need not hear

    def __init__(self, monitor: str, history: History, say: Callable[[Event], Any]) -> None:
        self._monitor: str | None = monitor
        self._history = history
        self._say = say
        self._logged: dict[str, None] = {}

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, MetricsLogged):
            self._logged.update(dict.fromkeys(event.metrics))
        over = isinstance(event, RunStopped) and event.reason in ("finished", "max_steps") and event.progress.step > 0
        if self._monitor is None or not (over or (isinstance(event, EpochDone) and self._logged)):
            return
        monitor, self._monitor = self._monitor, None
        if not self._history.values(monitor):
            when, logged = "in this training" if over else "in this epoch", ", ".join(self._logged) or "nothing"
            self._say(
                Noted(
                    text=f"monitor={monitor!r} was not logged {when}, so no checkpoint is kept as the best. Logged: "
                    f"{logged}. Write run.log({monitor}=…) before the epoch ends, or monitor something that is logged."
                )
            )


_EACH = {"epoch": "once per epoch", "step": "once per optimizer step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long a run is asked to be: `max_epochs`, `max_steps`, None where not said; `loader` gives the batches of an
    epoch, `accumulate` of which make a step."""

    max_epochs: int | None
    max_steps: int | None
    loader: Any
    accumulate: int = 1

    @property
    def per_epoch(self) -> int | None:
        """Optimizer steps in an epoch; None where the loader does not know its length."""
        batches = length_of(self.loader)
        return None if not batches else -(-batches // self.accumulate)

    @property
    def steps(self) -> set[int]:
        """What may be meant by the steps of the run."""
        whole = self.max_epochs and self.per_epoch and self.max_epochs * self.per_epoch
        return {steps for steps in (whole, self.max_steps) if steps}

    @property
    def epochs(self) -> set[int]:
        """What may be meant by its epochs."""
        some = self.max_steps and self.per_epoch and -(-self.max_steps // self.per_epoch)
        return {epochs for epochs in (self.max_epochs, some) if epochs}

    def __str__(self) -> str:
        steps = f"{min(self.steps)} optimizer steps" if self.steps else "a number of steps that nobody knows beforehand"
        return f"{steps} in {min(self.epochs)} epoch(s)" if self.epochs else steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """`interval`: "epoch" or "step"; `said`: that and why, a sentence, empty without a scheduler."""

    interval: str
    said: str = ""


def decide(scheduler: object, length: Length) -> Decided:
    """Read from the scheduler what it counts.

    Raises:
        UsageError: it is documented to be stepped after each batch, or counts further than the epochs, and it cannot be
            told what it counts; the remedy is the argument to write.
    """
    if scheduler is None:
        return Decided(interval="epoch")
    name, total = type(scheduler).__name__, counts_to(scheduler)
    if total in length.epochs:
        return _decided("epoch", name, f"it counts to {total}, the epochs of this run")
    if total in length.steps:
        return _decided("step", name, f"it counts to {total}, the optimizer steps of this run")
    if is_per_step(scheduler):
        if total is None:
            return _decided("step", name, "it is made for that")
        raise _unclear(name, total, length)
    if total is None or (length.epochs and total < min(length.epochs)):
        return _decided("epoch", name, "")
    if not length.steps:
        raise _unclear(name, total, length)
    return Decided(
        interval="epoch",
        said=f"{name} counts to {total}, and is stepped once per epoch: the run has {length}. If it counts optimizer "
        'steps, write scheduler_interval="step"; scheduler_interval="epoch" says that this is meant.',
    )


def _decided(interval: str, name: str, why: str) -> Decided:
    other = "epoch" if interval == "step" else "step"
    said = f"{name} is stepped {_EACH[interval]}{why and f' ({why})'}; "
    return Decided(interval=interval, said=f'{said}scheduler_interval="{other}" would step it {_EACH[other]}.')


def _unclear(name: str, total: int, length: Length) -> UsageError:
    fitting = f"{name}(…, total_steps={min(length.steps)})" if name == "OneCycleLR" and length.steps else ""
    build = f"Build {fitting}, and write" if fitting else "Write"
    return UsageError(
        problem=f"{name} counts to {total}, and the run has {length}: it cannot be told whether it counts epochs or "
        "steps.",
        remedy=f'{build} scheduler_interval="step", to step it after each optimizer step; or '
        'scheduler_interval="epoch", to step it after each epoch.',
    )

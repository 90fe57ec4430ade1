"""Words that cannot be meant so, refused with what to write before anything is asked of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral
from typing import Any

from colabkeep._engine.repository import CHECKPOINT_ID
from colabkeep.session.history import History
from colabkeep.vocabulary.errors import UsageError
from colabkeep.vocabulary.events import EpochDone, Event, LengthTold, MetricsLogged, Noted, RunStopped
from colabkeep.vocabulary.policies import KeepBest

__all__ = [
    "check_callbacks",
    "check_monitor",
    "check_resume",
    "check_seed",
    "checked_length",
    "refuse_classes",
    "refuse_ranks",
    "unlogged",
]

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

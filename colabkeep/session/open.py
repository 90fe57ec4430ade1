"""From what the user wrote to a session that has begun: arguments are read, the run is taken, compared and loaded."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from numbers import Integral
from pathlib import Path, PurePath
from typing import Any, TypeAlias, cast

from colabkeep.checkpoint.codec import encode_parts
from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import KEEPS, Lease, Repository, take_lease
from colabkeep.checkpoint.restore import Loaded, good_before, load_best, load_id, load_newest, understood
from colabkeep.checkpoint.retention import KeepBest, KeepLast, RetentionPolicy
from colabkeep.checkpoint.writer import Checkpointer, Committer, Identity, Named
from colabkeep.core.arguments import checked_run_name, is_reserved, read_duration, run_folder
from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    ColabKeepError,
    Incompatible,
    NotPersistent,
    RunBusy,
    StoreBusy,
    StoreUnavailable,
    UsageError,
)
from colabkeep.core.events import (
    CheckpointSkipped,
    DurabilityTold,
    Event,
    FirstStepDone,
    LengthTold,
    LossNotFinite,
    MachineGiven,
    Noted,
    Recalled,
    Restored,
    RestoredInexactly,
    RunStarted,
    StoreDegraded,
)
from colabkeep.core.layout import CHECKPOINT_ID
from colabkeep.core.manifest import Manifest, Progress
from colabkeep.core.policies import OVERHEAD, EverySteps, Mode, parse_save_every, read_overhead
from colabkeep.core.state import Tree
from colabkeep.core.system import Clock, Environment, SystemClock
from colabkeep.frameworks import find_framework
from colabkeep.frameworks.base import METRICS, Framework, Inexact
from colabkeep.platforms import find_platform
from colabkeep.platforms.base import DefaultStorage
from colabkeep.session.data_fingerprint import SameData
from colabkeep.session.frozen_base import Base, begin, go_on
from colabkeep.session.machine import (
    UNKNOWN,
    Deadline,
    UsualLifetime,
    ask_machine,
    find_deadline,
    machine_id,
    unused_card,
    usual_lifetime,
)
from colabkeep.session.ranks import Group
from colabkeep.session.rehearsal import REHEARSAL
from colabkeep.session.state import LoopState, RunSettings, is_own, read_own
from colabkeep.stores import open_store
from colabkeep.stores.base import Lock, Store, StoreContext, to_type

Observer: TypeAlias = Callable[[Event], object]


class Starting:
    """Notes how long each part of the way to the first step took, from the end of the one before. `laps`: those that
    are over already."""

    def __init__(self, clock: Clock, laps: Mapping[str, float]) -> None:
        self.laps = dict(laps)
        self.over = False
        self._clock = clock
        self._since = clock.monotonic()

    def lap(self, name: str) -> None:
        """A part ends here. One that comes in several pieces is added up. After the first step nothing is timed."""
        if not self.over:
            now = self._clock.monotonic()
            self.laps[name] = self.laps.get(name, 0.0) + now - self._since
            self._since = now

    def first_step(self) -> FirstStepDone:
        """The first step is done."""
        self.lap("step")
        self.over = True
        return FirstStepDone(laps=self.laps)


class Remounting:
    """Mounts a Drive that died. The thread that copies meets that first, and can only leave word here (`ask`). Between
    two steps, when the training hears its next event (that the store is out of order is one), it mounts: that holds it
    up for a bounded time, and once in an outage. `mount` does nothing where all is well.
    """

    def __init__(self, mount: Callable[[], object]) -> None:
        self._mount = mount
        self._wanted = False
        self._failure: ColabKeepError | None = None

    def ask(self) -> bool:
        """Mount now, on the main thread (True). On another one it is left to the training (False), and what that came
        to is told when somebody asks again."""
        if threading.current_thread() is threading.main_thread():
            self._mount()
            return True
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._wanted = True
        return False

    def __call__(self, event: Event) -> None:
        """Mount, if that was asked for."""
        if isinstance(event, StoreDegraded) and event.healed:
            self._wanted, self._failure = False, None
        if not self._wanted:
            return
        self._wanted = False
        try:
            self._mount()
        except ColabKeepError as error:
            self._failure = error


_PROCESS = secrets.token_hex(4)  # of this process: after a restart, a container has its name and its numbers again
_ONCE = "default"  # what every run without a name was called, in versions before this one
_UNNAMED = re.compile(r"untitled[ _-]?\d*", re.IGNORECASE)  # what a notebook is called before it is named


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
    observers: tuple[Observer, ...] = ()

    def read(self) -> RunArguments:
        """The same, checked, with times in seconds and `save_every` as a policy. Reading twice changes nothing."""
        if self.run_name is not None:
            checked_run_name(self.run_name)
        _check_resume(self.resume)
        seed: object = self.seed
        if isinstance(seed, bool) or not isinstance(seed, Integral):
            problem = f"seed must be a whole number, and is {seed!r:.100}."
            raise UsageError(problem=problem, remedy="Write one: seed=0.")
        check_word("on_change", self.on_change, "error", "keep", "apply")
        check_word("on_nan", self.on_nan, "warn", "stop")
        _ = self.retention
        max_time, limit, patience = self.max_time, self.session_limit, self.flush_timeout
        return replace(
            self,
            save_every=parse_save_every(self.save_every),
            overhead=read_overhead(self.overhead),
            max_time=None if max_time is None else read_duration("max_time", max_time),
            session_limit=None if limit is None else read_duration("session_limit", limit),
            flush_timeout=0.0 if patience == 0 else read_duration("flush_timeout", patience),
        )

    @property
    def best(self) -> KeepBest | None:
        """What says which checkpoints are the best; None where nothing is monitored."""
        check_word("mode", self.mode, "min", "max")
        if self.monitor is None:
            return None
        count: object = self.keep_best
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise UsageError(
                problem=f"keep_best must be a whole number, 0 or more, and is {count!r}.", remedy="Write keep_best=1."
            )
        return KeepBest(n=count, monitor=self.monitor, mode=self.mode)

    @property
    def retention(self) -> RetentionPolicy:
        """Which checkpoints are kept."""
        best, n = self.best, cast("object", self.keep_last)
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
            raise UsageError(
                problem=f"keep_last={n!r} would leave nothing to resume from.", remedy="Keep 1 or more; None keeps all."
            )
        return KeepLast(n) if best is None else KeepLast(n) + best


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything a run is made of.

    `arguments` are as `read`. `parts`: the user's objects by part name, in the order in which they are restored.
    `closes_store`: the store was opened for this run, and is closed with it. `machine` waits for which one it is,
    `deadline`: when it goes, if that is known; `usual`: how long sessions live here. `listeners`: observers of our own,
    which hear of no step. `laps`: what the way here took. `waits`: training waits for each save. `notes`: what is to be
    told at the start. `optional`: parts that one session has and another one has not; the state of one that is stored
    and not handed in goes to that function.

    What `resumable_fit` knows more: `loader` and `val_loader`, checked against the checkpoint before anything is
    touched; `max_epochs` and `max_steps`; `settings`, which the user may change from session to session without
    changing a bit, and a change is told; `precision`: what "auto" chose, a sentence; `exceptions`: as in `Exactness`.
    `base`: what of the model is frozen and can be had again.
    """

    name: str
    arguments: RunArguments
    parts: Mapping[str, object]
    store: Store
    framework: Framework
    clock: Clock
    closes_store: bool = False
    machine: Callable[[], MachineGiven] | None = None
    deadline: Deadline | None = None
    usual: UsualLifetime = UNKNOWN
    listeners: tuple[Observer, ...] = ()
    laps: Mapping[str, float] = field(default_factory=dict)
    waits: bool = False
    notes: tuple[str, ...] = ()
    optional: Mapping[str, Callable[[Any], object]] = field(default_factory=dict)
    loader: object | None = None
    val_loader: object | None = None
    max_epochs: int | None = None
    max_steps: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    precision: str = ""
    exceptions: tuple[str, ...] = ()
    group: Group | None = None
    base: Base | None = None


def choose_name(given: object, store: Store, here: Environment) -> tuple[str, str]:
    """The name of the run, and a sentence about it, empty where the user has written it. Without one it is called after
    the notebook or program, if that is known; a run that an earlier version has called "default" goes on so."""
    if given is not None:
        return checked_run_name(given), ""
    own = _own_name(here)
    if own and _is_there(store, own):
        return own, f"run_name was not given: the run is called {own!r}, after {PurePath(here.program).name}."
    if _is_there(store, _ONCE):
        return _ONCE, (
            f"run_name was not given: the run {_ONCE!r} of this storage is resumed. Every notebook without a run_name "
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
        f"that keep their checkpoints in {store.url} would continue each other's run.",
        remedy='Write a name of your own, once and for all: run_name="my-run".',
    )


def refuse_reserved(store: Store, name: str) -> None:
    """Refuse a new run that is called like colabkeep's own files; one that an earlier version began goes on."""
    part = is_reserved(name)
    if part and not _is_there(store, name):
        raise UsageError(
            problem=f"run_name={name!r} cannot be the name of a new run: colabkeep's own files have names like "
            f"{part!r}.",
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


def _check_resume(resume: object) -> None:
    """Refuse what is neither a word nor an id: True and None could mean two things each."""
    if isinstance(resume, str) and (resume in RESUME_WORDS or CHECKPOINT_ID.fullmatch(resume)):
        return
    remedy = 'Write resume="auto", which goes on if there is a checkpoint, or leave it out: that is the default.'
    if resume is True:
        remedy = f'Write resume="must", which goes on or raises. {remedy}'
    elif resume is False:
        remedy = 'Write resume="never", which starts from zero; the checkpoints that are there stay.'
    elif isinstance(resume, str):
        words = ", ".join(f'"{word}"' for word in RESUME_WORDS)
        remedy = f"Use {words}, or the id of a checkpoint, which `colabkeep show` lists. {remedy}"
    raise UsageError(problem=f"resume={resume!r:.100} is unknown.", remedy=remedy)


def check_word(name: str, word: object, *known: str) -> None:
    """Refuse what is none of the known words."""
    if word not in known:
        *some, last = (f'"{each}"' for each in known)
        raise UsageError(problem=f"{name}={word!r:.100} is unknown.", remedy=f"Use {', '.join(some)} or {last}.")


def checked_length(*, max_epochs: int | None = None, max_steps: int | None = None) -> LengthTold:
    """What is told of a loop's length. One that it could never reach is refused; 0 is a loop that does nothing."""
    lengths: dict[str, object] = {"max_epochs": max_epochs, "max_steps": max_steps}
    for name, value in lengths.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < 0):
            word, number = name.removeprefix("max_"), 0
            if isinstance(value, str | float):
                with suppress(ValueError, OverflowError):
                    number = max(0, int(value))
            raise UsageError(
                problem=f"run.{word}({value!r:.100}): {name} must be a whole number, 0 or more.",
                remedy=f"Write run.{word}({number or 30}), or run.{word}(None) for a loop without an end."
                + (f" A value from the command line needs type=int: run.{word}(int(…))." if number else ""),
            )
    return LengthTold(max_epochs=max_epochs, max_steps=max_steps)


def begun_together(environ: Mapping[str, str]) -> int:
    """As how many processes torchrun, or what is built on it, began this program; 1: it did not."""
    number = environ.get("WORLD_SIZE", "") if environ.get("TORCHELASTIC_RUN_ID") else ""
    return int(number) if number.isdecimal() else 1


def refuse_ranks(processes: int, environ: Mapping[str, str]) -> None:
    """Refuse a training in several processes: each would write checkpoints of its own into one run, with the random
    numbers and the place in the data of one rank. `processes`: as the framework tells. torchrun tells it by variables
    before the framework knows.
    """
    ranks = max(processes, begun_together(environ))
    rank = environ.get("RANK", "")
    own = f" (this one is rank {rank})" if rank.isdecimal() else ""
    if ranks > processes == 1:
        raise UsageError(
            problem=f"This program was started as {ranks} ranks{own} that do not know of each other yet: each would "
            "train for itself and write the run over the others. Nothing was touched.",
            remedy="With torch, write before the run begins: torch.distributed.init_process_group(). "
            "accelerate.Accelerator() does that too. Or start the program with python, for one process.",
        )
    if ranks > 1:
        raise UsageError(
            problem=f"This training runs as {ranks} ranks{own}, and with this framework colabkeep keeps trainings of "
            "one process: they would write one run over each other. Nothing was touched.",
            remedy="Train in one process: start the script with python, not with a launcher (torchrun, "
            "paddle.distributed.launch). In torch one process can use several GPUs: torch.nn.DataParallel(model).",
        )


def refuse_shards(sharded: str | None) -> None:
    """Refuse parts of which a process holds pieces: their stored names and shapes would fit no whole model, and no
    other number of processes. `sharded`: as the framework tells."""
    if sharded is not None:
        raise UsageError(
            problem=f"This training cuts its {sharded}, so that each process holds a piece of it. colabkeep keeps "
            "whole models and optimizers: a checkpoint of pieces could be opened by no other training. Nothing was "
            "touched.",
            remedy="Leave that call out, and pass the model and its optimizer as they are without it. If one card's "
            'memory is too small then: resumable_fit(…, micro_batch="auto"), or a method that trains a small part of '
            "the model (LoRA).",
        )


def check_callbacks(callbacks: object) -> tuple[Callable[[Event], None], ...]:
    """The callbacks, each a function of one event."""
    if not isinstance(callbacks, Iterable) or isinstance(callbacks, (str, Mapping)):
        raise UsageError(
            problem=f"callbacks must be a list of functions, and is {callbacks!r:.100}.",
            remedy="Pass a list: callbacks=[tell].",
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
    """Refuse a class where an object of it is wanted: it has the same methods, and no state. And several objects."""
    for word, found in objects.items():
        if isinstance(found, type):
            raise UsageError(
                problem=f"{word} is the class {found.__name__}, not an object of it.",
                remedy=f"Make one: {word}={found.__name__}(…).",
            )
        members = found.values() if type(found) is dict else found if type(found) in (list, tuple) else ()
        if any(hasattr(each, "state_dict") for each in cast("Iterable[object]", members)):
            raise UsageError(
                problem=f"{word} is a {type(found).__name__} of several objects, and takes one.",
                remedy='Give each a name of its own: state={"generator": …, "discriminator": …}.',
            )


def check_monitor(monitor: str | None, known: Iterable[str]) -> None:
    """Refuse a metric that a training of ours will never measure."""
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


_INSIDE = {"accelerate.optimizer": "optimizer", "accelerate.scheduler": "scheduler"}
_SECRET_SECONDS = 20.0  # how long the notebook's page may take to answer
_REMOUNT_SECONDS = 60.0  # and how long training may be held up, where its Drive died: perhaps nobody is at the page


def bare(part: Any) -> Any:
    """The optimizer or scheduler that `accelerator.prepare` was given; anything else as it is."""
    inside = _INSIDE.get(type(part).__module__)
    return part if inside is None else getattr(part, inside)


def bare_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a run, taken out. A scaler that only a prepared optimizer knows becomes a part of its own."""
    taken = {name: bare(part) for name, part in parts.items()}
    for name, part in parts.items():
        if taken[name] is not part:
            _refuse_open_windows(part)
        scaler = getattr(part, "scaler", None) if taken[name] is not part else None
        if scaler is not None and not any(scaler is other for other in taken.values()):
            taken[f"{name}.scaler"] = scaler
    return taken


def _refuse_open_windows(part: Any) -> None:
    """Refuse windows of `accelerator.accumulate` that go on behind an epoch: the accelerator alone counts in them, and
    nothing of the run leads to it."""
    windows = getattr(part, "gradient_state", None)
    if windows is None or windows.num_steps == 1 or windows.sync_with_dataloader:
        return
    raise UsageError(
        problem="With sync_with_dataloader=False, Accelerate accumulates gradients beyond the end of an epoch, and no "
        f"checkpoint can hold how many of the {windows.num_steps} batches it has: a resumed training would be another.",
        remedy="Leave out sync_with_dataloader=False: then the last batches of an epoch are a step of their own. Or "
        "accumulate without accelerator.accumulate, and count the batches yourself (run.state).",
    )


def state_parts(state: object) -> dict[str, Any]:
    """What is passed as `state`, each as a part of the run."""
    if state is not None and not isinstance(state, Mapping):
        raise UsageError(
            problem=f"state= names more objects, and this is of the type {type(state).__name__}.",
            remedy='Give each a name: state={"generator": generator}.',
        )
    return {f"state.{name}": part for name, part in (state or {}).items()}


def wire_run(arguments: RunArguments, starting: Starting | None = None) -> RunSpec:
    """Read the arguments, find framework and store. `starting`: what has timed the way here, if anything has."""
    rehearsal = REHEARSAL.get()
    if rehearsal is not None:
        arguments = replace(arguments, **rehearsal.words(arguments.observers))
    parts = {name: part for name, part in arguments.objects.items() if part is not None}
    parts = bare_parts(parts | state_parts(arguments.state))
    if not parts:
        raise UsageError(problem="There is nothing to keep.", remedy="Pass model=…, optimizer=… or state={…}.")
    refuse_classes(**parts)
    arguments, clock, here = arguments.read(), SystemClock(), Environment.here()
    starting = starting or Starting(clock, {})
    framework = find_framework(parts.values())
    refuse_shards(framework.sharded(parts))
    ranks = framework.ranks()
    group = None if ranks is None else Group(ranks)
    if group is not None:
        group.refuse_machines(machine_id(here))
        group.refuse_other_models(parts)
    if group is None:
        refuse_ranks(framework.place()[1], here.environ)
    elif rehearsal is not None:
        raise UsageError(
            problem="verify_resume tries a training out in one process, and this program runs as several.",
            remedy="Start it with python, without a launcher, to try it out.",
        )
    elif not group.leads:
        return _follow(arguments, parts, framework, group, starting)
    deadline = None
    if rehearsal is None:
        deadline = find_deadline(here, clock, limit=arguments.session_limit, may_end=arguments.max_time is None)
    machine, platform = ask_machine(here), find_platform(here)
    remounting = Remounting(lambda: platform.mount(here, timeout=_REMOUNT_SECONDS))
    starting.lap("ready")
    try:
        store, name, note = _find_place(arguments, here, remounting)
    except BaseException as error:
        if group is not None:
            group.fail(error)
        raise
    starting.lap("storage")
    if rehearsal is not None:
        rehearsal.framework = framework.name
    notes = filter(None, (note, framework.untrained(parts)))
    starting.lap("import")
    return RunSpec(
        name=name,
        arguments=arguments,
        parts=parts,
        store=store,
        framework=framework,
        clock=clock,
        closes_store=store is not arguments.storage,
        machine=machine,
        deadline=deadline,
        usual=usual_lifetime(platform.limits(here)),
        listeners=(remounting,) if platform.mounts else (),
        laps=starting.laps,
        waits=rehearsal is not None,
        notes=tuple(notes),
        group=group,
    )


def _find_place(arguments: RunArguments, here: Environment, remounting: Remounting) -> tuple[Store, str, str]:
    """The store, the name of the run in it, and a sentence about the name."""
    store = find_store(arguments.storage, remounting.ask)
    try:
        name, note = choose_name(arguments.run_name, store, here)
        refuse_reserved(store, name)
    except BaseException:
        if store is not arguments.storage:
            store.close()
        raise
    return store, name, note


def _follow(
    arguments: RunArguments, parts: Mapping[str, object], framework: Framework, group: Group, starting: Starting
) -> RunSpec:
    """The same for a rank that is not the first: it gets what rank 0 loads, saves nothing and shows nothing. What it
    notes for itself goes into its own memory."""
    quiet = replace(
        arguments,
        storage="memory://",
        resume="auto",
        save_every=EverySteps(sys.maxsize),
        keep_last=None,
        monitor=None,
        max_time=None,
        observers=(),
    )
    return RunSpec(
        name=arguments.run_name or _ONCE,
        arguments=quiet,
        parts=parts,
        store=open_store("memory://"),
        framework=framework,
        clock=SystemClock(),
        closes_store=True,
        laps=starting.laps,
        group=group,
    )


def find_store(storage: Any, remount: Callable[[], bool] | None = None) -> Store:
    """Open what the user wrote; "auto" is the platform's own place, with what earlier sessions left there. `remount`:
    as in `StoreContext`; only a training has one, for who merely looks shall not be asked to agree to anything."""
    here = Environment.here()
    platform = find_platform(here)
    if isinstance(storage, str) and storage == "auto":
        return open_home(platform.home(here), remount)
    context = StoreContext(
        secret=lambda name: platform.secret(here, name, timeout=_SECRET_SECONDS),
        user=platform.google_user(here),
        disk=cache_folder(here),
        remount=remount,
    )
    return open_store(storage, context=context)


def cache_folder(environment: Environment) -> Path | None:
    """The folder on this machine's disk for what need not outlive it; None where nothing says where that may be."""
    home = environment.environ.get("HOME")
    cache = environment.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else None)
    return None if cache is None else environment.path(cache) / "colabkeep"


def open_home(home: DefaultStorage, remount: Callable[[], bool] | None = None) -> Store:
    """Open a platform's own place, unless it vanishes with this machine, with what earlier sessions left there."""
    if home.persists is False:
        raise NotPersistent(
            problem=f"Checkpoints would go to {home.folder}, which is gone with this machine. {home.reason}",
            remedy=home.remedy or 'Name a folder that outlives it: storage="<folder>".',
        )
    return open_store(home.storage, home.earlier, StoreContext(remount=remount))


_MOST = 8  # parts that are named
_LOOP = (
    "Not seen: variables of your own loop that are neither in run.state nor in state={{…}}{more}, and the files that "
    "your code reads."
)
_FIT = (
    "Not seen: what your own functions keep in variables that are not in state={…}, and the files that your code reads."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """A run taken and, if it had a checkpoint, restored: the user's parts in place, the loop's own in `state`.
    `run_id`: the same in all sessions of the run, "" where it cannot be read."""

    id: str
    run_id: str
    lock: Lock
    lease: Lease
    journal: Journal
    checkpointer: Checkpointer
    starting: Starting
    state: LoopState
    machine: MachineGiven | None
    resumed_from: Manifest | None

    @property
    def progress(self) -> Progress:
        """Where this session starts."""
        return self.resumed_from.progress if self.resumed_from else Progress()


def open_session(spec: RunSpec, events: deque[Event]) -> OpenSession:
    """Open the run of `spec`; what should be told on the way is appended to `events`.

    Raises:
        RunBusy: a live process trains this run.
        Incompatible: the objects are not those of the run; nothing was touched.
        NotStorable: an object's state cannot be kept; the error names its path.
        MemoryFull: this machine has no room for the copy that saves are made from.
        NoUsableCheckpoint, CheckpointNotFound, CheckpointUnsupported, StoreError: as they say.
    """
    group = spec.group
    return _open(spec, events) if group is None else group.together(lambda: _open(spec, events))


def _open(spec: RunSpec, events: deque[Event]) -> OpenSession:
    group, follows = spec.group, spec.group is not None and not spec.group.leads
    starting, repository = Starting(spec.clock, spec.laps), Repository(spec.store, spec.name)
    session, about, retention = secrets.token_hex(4), this_process(spec.clock), spec.arguments.retention
    lock = take_lock(spec.store, spec.name, about)
    try:
        settings = RunSettings(spec.framework, spec.parts, spec.arguments.on_change)
        run_id = _open_run(spec, repository, events)
        starting.lap("find")
        loaded = group.take() if group is not None and follows else _find(spec, repository, events)
        manifest = loaded.manifest if loaded else None
        stored, data = understood(manifest, partial(_all_compared, spec, loaded, settings, events))
        starting.lap("read")
        named = rehearse(spec)
        about |= {KEEPS: repr(retention)}
        machine = None if spec.machine is None else spec.machine()
        if machine is not None:
            events.appendleft(machine)
            about |= {"machine": asdict(machine)}
            if spec.framework.is_on_cpu(spec.parts) and (said := unused_card(machine)):
                events.append(Noted(text=said))
        lease = take_lease(repository, session, about)
        starting.lap("ready")
        if group is not None:
            stored = understood(manifest, partial(_shared, spec, group, loaded, stored, settings))
        if loaded is not None:
            names = (name for name in (*spec.parts, *spec.optional) if name not in settings.replaced)
            trees = {name: _own(loaded.parts[name], stored.get(name)) for name in names if name in loaded.parts}
            loaded = None
            understood(manifest, partial(_restore, spec, trees))
        seed = spec.arguments.seed
        state = understood(manifest, partial(LoopState, spec.framework, seed, data, settings, stored))
        if manifest is not None:
            events.extend(understood(manifest, partial(_restored, spec, manifest, stored)))
            events.extend([*settings.restored(manifest.progress.step), *_recalled(state, manifest, lease)])
            starting.lap("restore")
        else:
            events.extend(settings.started())
    except BaseException:
        lock.release()
        raise
    notes = spec.notes if spec.deadline is None else (*spec.notes, spec.deadline.text)
    events.extend(Noted(text=note) for note in notes)
    identity = Identity(
        framework=spec.framework.name,
        fingerprint=_fingerprint(spec),
        settings=spec.settings,
        began=manifest,
        heir=manifest is not None and spec.arguments.resume in ("auto", "must"),
    )
    journal = Journal(repository, session)
    committer = Committer(
        lease, journal, retention, spec.clock, identity, events.append, state.losses.proof, named=named
    )
    if manifest is not None:
        committer.ledger.add(manifest, {})
        durability = committer.ledger.durability(manifest.progress.seconds)
        if durability.level is not None:  # else it is being asked, and the answer is told
            events.append(DurabilityTold(durability=durability))
    return OpenSession(
        id=session,
        run_id=run_id,
        lock=lock,
        lease=lease,
        journal=journal,
        checkpointer=Checkpointer(spec.framework.capture, committer, spec.clock, events),
        starting=starting,
        state=state,
        machine=machine,
        resumed_from=manifest,
    )


def _shared(
    spec: RunSpec, group: Group, loaded: Loaded | None, stored: Mapping[str, Tree], settings: RunSettings
) -> Mapping[str, Tree]:
    """Rank 0 gives what it loaded to the others; of the loop's own parts each has its own."""
    if group.leads:
        group.hand_out(loaded)
    step = 0 if loaded is None else loaded.manifest.progress.step
    own = group.own(spec.framework, stored, spec.arguments.seed, step)
    settings.take_own(own.get("settings"))
    return own


def _own(tree: Tree, state: Tree) -> Tree:
    """A part; where this process has a state of its own of it, with that: of a module its buffers and what
    its metrics have counted."""
    if state is None or not isinstance(tree, dict):
        return tree
    if tree["kind"] != "module":
        return {**tree, "state": state}
    own = {
        each: {name: state.get(name, leaf) for name, leaf in tree[each].items()} for each in ("weights", "transient")
    }
    counted = {"metrics": state[METRICS]} if METRICS in state else {}
    return {**tree, **own, **counted}


def this_process(clock: Clock, **more: Any) -> dict[str, Any]:
    """What a session says of itself in its lease."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "process": _PROCESS, "started": clock.time(), **more}


def take_lock(store: Store, run: str, about: Mapping[str, Any]) -> Lock:
    """Hold the run for this process. `about` says who it is: "pid" and "host"."""
    holder = f"process {about['pid']} on {about['host']}"
    try:
        return store.lock(f"{run_folder(run)}/lease/lock", holder)
    except StoreBusy as error:
        raise RunBusy(
            problem=f"The run {run!r} is in use right now by {error.holder or 'another process'}.",
            remedy=(
                "Let it run, or stop it first (interrupt its cell, or restart its kernel). "
                "For another training, or another folder, choose another run_name."
            ),
        ) from error


def _open_run(spec: RunSpec, repository: Repository, events: deque[Event]) -> str:
    try:
        take_up(repository)
    except StoreUnavailable as error:
        raise StoreUnavailable(problem=f"Training has not begun: {error.problem}", remedy=error.remedy) from error
    try:
        return repository.open_run(created=spec.clock.time(), run_id=secrets.token_hex(8))
    except CheckpointDamaged as error:
        events.append(CheckpointSkipped(checkpoint="run.json", reason=error.problem))
        return ""


def _find(spec: RunSpec, repository: Repository, events: deque[Event]) -> Loaded | None:
    resume, best = spec.arguments.resume, spec.arguments.best
    if resume == "never":
        if repository.ids():
            text = f'resume="never": the checkpoints of {spec.name!r} stay, and the run starts at step zero.'
            events.append(Noted(text=text))
        return None
    if resume == "best":
        if best is None:
            raise UsageError(
                problem='resume="best" needs to know what is best.',
                remedy='Say which metric: monitor="val_loss", mode="min".',
            )
        return load_best(repository, best)
    if resume not in ("auto", "must"):
        return load_id(repository, resume)
    loaded = load_newest(
        repository,
        lambda id, why: events.append(CheckpointSkipped(checkpoint=id, reason=why)),
        sleep=spec.clock.sleep,
    )
    if loaded is None and resume == "must":
        raise CheckpointNotFound(
            problem=f"There is no checkpoint of the run {spec.name!r} in {spec.store.url}.",
            remedy='Check run_name and storage; or use resume="auto", which starts from zero when there is none.',
        )
    return loaded


def _compared(
    spec: RunSpec, loaded: Loaded | None, settings: RunSettings, events: deque[Event]
) -> tuple[Mapping[str, Tree], SameData]:
    """See that what was handed in fits the checkpoint. Returns the loop's own parts of it, and what is known of the
    data; without a checkpoint there is nothing to compare, and the data is got to know."""
    stored, checkpoint = read_own(loaded), "" if loaded is None else loaded.manifest.id
    words, stopped = spec.arguments, None if loaded is None else loaded.manifest.progress
    same = SameData(
        spec.framework.name,
        words.seed,
        stored.get("data"),
        spec.clock.monotonic,
        lambda note: events.append(as_event(checkpoint, note)),
        apply=words.on_change == "apply",
    )
    data, inside = spec.framework.data(), stopped.epoch if stopped is not None and stopped.batches else None
    of_data = list[str]()
    for name, loader in (("train", spec.loader), ("val", spec.val_loader)):
        if loader is not None:
            of_data += same.differences(data, name, loader, inside=inside)
    if loaded is None:
        return stored, same
    differences = _other_objects(spec, loaded, stored["run"]["seed"])
    if spec.loader is not None and stored["loader"] is not None:
        told_better = ("data set length", "samples in an epoch", "batches") if of_data else ()
        state = {name: value for name, value in stored["loader"].items() if name not in told_better}
        differences += same.stopping(data.check(spec.loader, seed=stored["run"]["seed"], state=state))
    differences += of_data
    changed = list[str]()
    if loaded.manifest.framework == spec.framework.name:
        changed = settings.compare(stored.get("settings"), loaded.parts)
        common = [name for name in spec.parts if name in loaded.parts and name not in settings.replaced]
        parts, trees = ({name: each[name] for name in common} for each in (spec.parts, loaded.parts))
        differences += spec.framework.check(parts, trees)
    if changed and not differences:
        problem = settings.problem(spec.name, checkpoint)
        raise Incompatible(problem=problem, remedy=settings.remedy(), differences=changed)
    if differences:
        raise Incompatible(
            problem=f"The run {spec.name!r} does not fit what was passed (checkpoint {checkpoint}):",
            remedy=(
                "Nothing was touched. Make them as they were; or train under another run_name; "
                'or start this run from zero with resume="never" (its checkpoints stay).'
                + (' on_change="apply" continues with the data as it is now, which the report says.' if of_data else "")
            ),
            differences=[*differences, *changed],
        )
    return stored, same


def _other_objects(spec: RunSpec, loaded: Loaded, seed: Any) -> list[str]:
    then, now = [name for name in loaded.parts if not is_own(name)], spec.framework.name
    lines = []
    if loaded.manifest.framework != now:
        lines.append(f"it was trained with {loaded.manifest.framework}, now with {now}")
    parts, optional = spec.parts, spec.optional
    lost, new = (n for n in then if n not in parts), (n for n in parts if n not in then)
    lines += [f"{name} was part of the run and is not passed now" for name in lost if name not in optional]
    lines += [f"{name} is passed now and was not part of the run" for name in new if name not in optional]
    if seed != spec.arguments.seed:
        lines.append(f"seed was {seed} and is {spec.arguments.seed}: the rest of the epoch would be in another order")
    return lines


def _all_compared(
    spec: RunSpec, loaded: Loaded | None, settings: RunSettings, events: deque[Event]
) -> tuple[Mapping[str, Tree], SameData]:
    """As `_compared`; and then, for that reads all of them: are the weights that are only named the same?"""
    found = _compared(spec, loaded, settings, events)
    if loaded is None and spec.base is not None:
        events.extend(begin(spec.framework, spec.parts, spec.base))
    elif loaded is not None:
        trees = {part: tree for part, tree in loaded.parts.items() if isinstance(tree, dict) and "base" in tree}
        if trees:
            apply, id = spec.arguments.on_change == "apply", loaded.manifest.id
            events.extend(go_on(spec.framework, spec.parts, trees, spec.base, id, apply=apply))
    return found


def rehearse(spec: RunSpec) -> Named:
    """What cannot be stored is told now, not after an hour. Returns what of a base is not to be stored.

    Raises:
        NotStorable: something of the state has no form without pickle.
    """
    snapshot = spec.framework.rehearse(spec.parts).finish()
    try:
        encode_parts(snapshot.parts)
        return Named(snapshot.parts)
    finally:
        snapshot.release()


def _restore(spec: RunSpec, trees: dict[str, Tree]) -> None:
    for name in list(trees):  # one by one: memory of what is loaded is free for what is not yet
        if name in spec.parts:
            spec.framework.restore(spec.parts, {name: trees.pop(name)})
        else:
            spec.optional[name](spec.framework.native(trees.pop(name)["state"]))


def _restored(spec: RunSpec, manifest: Manifest, stored: Mapping[str, Tree]) -> list[Event]:
    """What there is to tell of a restore. `stored`: the parts that are the loop's own."""
    run: Any = stored["run"]
    age = max(0.0, spec.clock.time() - manifest.created)
    told: list[Event] = [Restored(checkpoint=manifest.id, progress=manifest.progress, age=age)]
    for name, setting in spec.settings.items():
        before = manifest.settings.get(name, setting)
        if before != setting:
            told.append(Noted(text=f"{name} changed from {before} to {setting}; this does not affect the training"))
    if left := run.get("left"):
        told.append(Noted(text=f"The loop was {left}; the code after that did not run for that epoch."))
    told += [RestoredInexactly(checkpoint=manifest.id, reason=str(text)) for text in run.get("unseen", [])]
    now = _fingerprint(spec)
    if (then := manifest.fingerprint.get(_PROCESSES, "1")) != (here := now.pop(_PROCESSES, "1")):
        reason = (
            f"{then} process(es) trained this run, and now {here}: batches, steps and learning rates are the same; "
            "sums are rounded differently, and what model and data draw at random is drawn differently"
            if stored.get("data")
            else f"{then} process(es) trained this run, and now {here}. This loop reads its data without colabkeep, so "
            "that a step may be of other batches, and an epoch of another number of steps; sums are rounded "
            "differently, and what is drawn at random is drawn differently"
        )
        told.append(RestoredInexactly(checkpoint=manifest.id, reason=reason))
    # What only one side knows is no change: another version of colabkeep, or of the framework, tells more. GPUs all do.
    known = (now.keys() & manifest.fingerprint.keys()) | ({"gpu"} & (now.keys() | manifest.fingerprint.keys()))
    for name in sorted(known):
        before, after = manifest.fingerprint.get(name, "absent"), now.get(name, "absent")
        if before != after:
            reason = f"{name} was {before} and is {after}: the state is exact, later steps may round differently"
            told.append(RestoredInexactly(checkpoint=manifest.id, reason=reason))
    return told


_PROCESSES = "processes"


def _fingerprint(spec: RunSpec) -> dict[str, str]:
    """What bits depend on; one process goes without saying."""
    group = {} if spec.group is None else {_PROCESSES: str(spec.group.size)}
    return {**spec.framework.fingerprint(spec.parts), **group}


def _recalled(state: LoopState, manifest: Manifest, lease: Lease) -> list[Event]:
    losses, proof = state.losses, state.losses.proof
    resumed_at, logged = taken_over(manifest), tuple(state.history)
    told: list[Event] = [Recalled(points=losses.points, resumed_at=resumed_at, sessions=lease.fence, history=logged)]
    if proof.broken is not None:
        good = good_before(lease.repository, manifest, proof.finite or 0)
        told.append(LossNotFinite(step=proof.broken, value=proof.value, finite=proof.finite, checkpoint=good))
    return told


def taken_over(manifest: Manifest | None) -> tuple[int, ...]:
    """The steps at which the sessions that led to a checkpoint took over from each other, and its own."""
    return () if manifest is None else (*(step for _, step in manifest.lineage), manifest.progress.step)


def as_event(checkpoint: str, note: str) -> Event:
    """The event that tells what was noted about data."""
    return RestoredInexactly(checkpoint=checkpoint, reason=note) if isinstance(note, Inexact) else Noted(text=note)


def run_started(spec: RunSpec, session: str, *, changed: bool = False, exceptions: tuple[str, ...] = ()) -> RunStarted:
    """What holds for these parts on this machine. "Exact" is said only where nothing is known that prevents it.
    `changed`: the bits depend on something that is not as it was when the checkpoint was made, which is told besides.
    `exceptions`: as in `Exactness`, those of a trainer.
    """
    told, deadline, clock = spec.framework.exactness(spec.parts), spec.deadline, spec.clock
    exceptions = (*told.exceptions, *spec.exceptions, *exceptions)
    names = [name.removeprefix("state.") for name in spec.parts if name != "fit"]
    more = [] if len(names) <= _MOST else [f"{len(names) - _MOST} more"]
    restored = f"{', '.join(names[:_MOST] + more)}, the random streams and the position in the data are restored"
    same = told.same if spec.group is None else f"{told.same}, {spec.group.size} processes"
    if changed:
        word, promise = "course", f"Not bit for bit: {restored}, but something named below has changed since."
    elif told.obstacles:
        word, then = "course", "but the steps after that may round differently on this machine"
        promise = f"Same course, not the same bits: {restored}, {then}."
    else:
        word, but = ("mostly", "Exact, but for what is named here") if exceptions else ("exact", "Exact")
        promise = f"{but}: {restored}, and the steps after that give the same bits with the same {same}."
    best = spec.arguments.best
    return RunStarted(
        run=spec.name,
        session=session,
        storage=spec.store.url,
        folder=spec.store.properties.folder,
        promise=promise,
        exactness=word,
        reasons=(*told.obstacles, *exceptions, *told.notes),
        unseen=_LOOP.format(more=told.unseen and f", {told.unseen}") if spec.loader is None else _FIT,
        precision=spec.precision,
        ends_at=None if deadline is None else clock.time() + deadline.at - clock.monotonic(),
        ends_source="" if deadline is None else deadline.source,
        monitor="" if best is None else best.monitor,
        mode="min" if best is None else best.mode,
        asked=asked_for(spec.arguments.storage),
    )


def asked_for(storage: object) -> str:
    """As `RunStarted` has it."""
    return "" if isinstance(storage, str) and storage == "auto" else to_type(storage)

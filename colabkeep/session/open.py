"""The beginning of a session: take the run, find where it stopped, check that it fits, load it; and what that
resume promises.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypedDict

from colabkeep.checkpoint.codec import encode_parts
from colabkeep.checkpoint.durability import Ledger
from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.lease import KEEPS, Lease, take_lease
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import Loaded, good_before, load_best, load_id, load_newest, understood
from colabkeep.checkpoint.writer import Checkpointer, Committer, Identity
from colabkeep.core.arguments import run_folder
from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    Incompatible,
    RunBusy,
    StoreBusy,
    StoreUnavailable,
    UsageError,
)
from colabkeep.core.events import (
    CheckpointSetAside,
    DurabilityTold,
    Event,
    LossNotFinite,
    MachineGiven,
    Noted,
    Recalled,
    Restored,
    RestoredInexactly,
)
from colabkeep.core.manifest import Manifest, Progress, Proof
from colabkeep.core.policies import OVERHEAD, KeepBest, OnNan, RetentionPolicy, SavePolicy
from colabkeep.core.state import Tree
from colabkeep.core.system import Clock
from colabkeep.frameworks.base import Framework, Inexact
from colabkeep.session.data_fingerprint import SameData
from colabkeep.session.event_bus import Starting
from colabkeep.session.machine import UNKNOWN, Deadline, UsualLifetime
from colabkeep.session.metrics import LossRecord
from colabkeep.session.settings import SETTINGS, RunSettings
from colabkeep.stores.base import Lock, Store

__all__ = [
    "OpenSession",
    "Promised",
    "RunSpec",
    "Value",
    "as_event",
    "open_session",
    "precision_chosen",
    "promise_of",
    "take_lock",
    "taken_over",
]

OWN_PARTS = (
    "run", "history", "rng", "rng_at_epoch", "loader", "losses", "state", "state_at_epoch", "averages", "streams",
    "streams_at_epoch", "data", "gradients", SETTINGS,
)  # fmt: skip
"""Parts of a checkpoint that are the session's own; every other is an object of the user."""

_ALWAYS = frozenset({"run", "history", "rng", "rng_at_epoch", "loader"})
"""Those of all checkpoints; the others are there where a run needs them, in those of newer versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything a run is made of, found and wired by `colabkeep.api`.

    `parts` are the user's objects by part name, in the order in which they are restored. `max_time`: seconds of this
    session, None for no limit; `deadline`: when the machine goes, if that is known; `machine`: which one it is.
    `flush_timeout`: seconds that the end waits at most for slower storage. `loader` and `val_loader`, if known at the
    start, are checked against the checkpoint before anything is touched. `on_change`: what becomes of settings and
    data that are not as they were when the run began, "error", "keep" or "apply". `best` is None when nothing is
    monitored. `closes_store`: the store was opened for this run, and is closed with it. `settings`: what the user may
    change from session to session without changing a bit; a change is told. `overhead`: the share of time that saves
    may cost, where the cadence is chosen from that, and `usual`: how long sessions live here. `laps`: what the way here
    took. `waits`: training waits for each save.
    `max_epochs` and `max_steps`: how long the run is to be in all, if that is known at the start. `on_nan`: what is
    done when a loss is no finite number; `proof`: what the losses have proven, filled by the session. `precision`: what
    "auto" chose, a sentence. `notes`: what is to be told at the start.
    """

    name: str
    parts: Mapping[str, object]
    store: Store
    framework: Framework
    save_every: SavePolicy
    retention: RetentionPolicy
    clock: Clock
    best: KeepBest | None = None
    resume: str = "auto"
    seed: int = 0
    max_time: float | None = None
    deadline: Deadline | None = None
    machine: MachineGiven | None = None
    flush_timeout: float = 60.0
    loader: object | None = None
    val_loader: object | None = None
    on_change: str = "error"
    observers: tuple[Callable[[Event], None], ...] = ()
    closes_store: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    overhead: float = OVERHEAD
    usual: UsualLifetime = UNKNOWN
    laps: Mapping[str, float] = field(default_factory=dict)
    waits: bool = False
    max_epochs: int | None = None
    max_steps: int | None = None
    on_nan: OnNan = "warn"
    precision: str = ""
    proof: Proof = field(default_factory=Proof)
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Value:
    """A plain value as a part of the state."""

    value: Any = None

    def state_dict(self) -> Any:
        """The value."""
        return self.value

    def load_state_dict(self, state: Any) -> None:
        """Another value."""
        self.value = state


@dataclass(slots=True, kw_only=True)
class OpenSession:
    """A run taken and, if it had a checkpoint, restored. `trees` are the own parts of that checkpoint."""

    id: str
    lock: Lock
    journal: Journal
    checkpointer: Checkpointer
    starting: Starting
    data: SameData
    settings: RunSettings
    resumed_from: Manifest | None = None
    trees: Mapping[str, Tree] = field(default_factory=dict)

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
    starting, repository = Starting(spec.clock, spec.laps), Repository(spec.store, spec.name)
    session = secrets.token_hex(4)
    about = _about(spec)
    if spec.machine is not None:
        events.append(spec.machine)
    lock = take_lock(spec.store, spec.name, about)
    try:
        settings = RunSettings(spec.framework, spec.parts, spec.on_change)
        _open_run(spec, repository, events)
        starting.lap("find")
        loaded = _find(spec, repository, events)
        manifest = loaded.manifest if loaded else None
        data = understood(manifest, partial(_compared, spec, loaded, settings, events))
        starting.lap("read")
        _rehearse(spec)
        lease = take_lease(repository, session, about)
        starting.lap("ready")
        own = dict[str, Tree]()
        if loaded is not None and manifest is not None:
            own = _own(loaded)
            trees = {name: loaded.parts[name] for name in spec.parts if name not in settings.replaced}
            loaded = None
            understood(manifest, partial(_restore, spec, trees))
            understood(manifest, partial(_tell, spec, manifest, own, events))
            told = understood(manifest, partial(_recalled, spec, manifest, own, lease))
            events.extend([*settings.restored(manifest.progress.step), *told])
            starting.lap("restore")
        else:
            events.extend(settings.started())
    except BaseException:
        lock.release()
        raise
    events.extend(Noted(text=note) for note in _notes(spec))
    journal = Journal(repository, session)
    identity = _identity(spec, manifest)
    committer = Committer(lease, journal, spec.retention, spec.clock, identity, events.append, spec.proof)
    if manifest is not None:
        _remember(committer.ledger, manifest, events)
    return OpenSession(
        id=session,
        lock=lock,
        journal=journal,
        checkpointer=Checkpointer(spec.framework, committer, spec.clock, events),
        starting=starting,
        data=data,
        settings=settings,
        resumed_from=manifest,
        trees=own,
    )


def _notes(spec: RunSpec) -> tuple[str, ...]:
    return spec.notes if spec.deadline is None else (*spec.notes, spec.deadline.text)


def _about(spec: RunSpec) -> dict[str, Any]:
    """What a session says of itself in its lease."""
    about = {"host": socket.gethostname(), "pid": os.getpid(), "started": spec.clock.time()}
    about[KEEPS] = repr(spec.retention)
    return about if spec.machine is None else {**about, "machine": asdict(spec.machine)}


def _restore(spec: RunSpec, trees: dict[str, Tree]) -> None:
    for name in list(trees):  # one by one: memory of what is loaded is free for what is not yet
        spec.framework.restore(spec.parts, {name: trees.pop(name)})


def _open_run(spec: RunSpec, repository: Repository, events: deque[Event]) -> None:
    try:
        spec.store.sweep(run_folder(spec.name))
    except StoreUnavailable as error:
        raise StoreUnavailable(problem=f"Training has not begun: {error.problem}", remedy=error.remedy) from error
    try:
        repository.open_run(created=spec.clock.time(), run_id=secrets.token_hex(8))
    except CheckpointDamaged as error:
        events.append(CheckpointSetAside(checkpoint="run.json", reason=error.problem))


def _identity(spec: RunSpec, manifest: Manifest | None) -> Identity:
    return Identity(
        framework=spec.framework.name,
        fingerprint=spec.framework.fingerprint(spec.parts),
        settings=spec.settings,
        parent=manifest.id if manifest else None,
        heir=manifest is not None and spec.resume in ("auto", "must"),
        lineage=(*manifest.lineage, (manifest.session, manifest.progress.step)) if manifest else (),
    )


def _remember(ledger: Ledger, manifest: Manifest, events: deque[Event]) -> None:
    """Begin with what training goes on from, and tell how safe it is, if that is known without asking the store."""
    ledger.add(manifest, {})
    durability = ledger.durability(manifest.progress.seconds)
    if durability.rung is not None:  # else it is being asked, and the answer is told
        events.append(DurabilityTold(durability=durability))


def _own(loaded: Loaded) -> dict[str, Tree]:
    return {name: own_state(loaded, name) for name in OWN_PARTS if name in loaded.parts or name in _ALWAYS}


def own_state(loaded: Loaded, name: str) -> Tree:
    """The state of one of the session's own parts.

    Raises:
        CheckpointDamaged: it is not there, so this is no checkpoint of a session.
    """
    tree = loaded.parts.get(name)
    if not isinstance(tree, dict) or "state" not in tree:
        raise CheckpointDamaged(
            problem=f"Checkpoint {loaded.manifest.id} lacks {name!r}, which every session writes.",
            remedy="It was not written by a training. Choose another with resume=…, or another run_name.",
        )
    return tree["state"]


def taken_over(manifest: Manifest | None) -> tuple[int, ...]:
    """The steps at which the sessions that led to a checkpoint took over from each other, and its own."""
    return () if manifest is None else (*(step for _, step in manifest.lineage), manifest.progress.step)


def take_lock(store: Store, run: str, about: Mapping[str, Any]) -> Lock:
    """Hold the run for this process. `about` says who it is: "pid" and "host".

    Raises:
        RunBusy: a live process trains this run.
    """
    holder = f"process {about['pid']} on {about['host']}"
    try:
        return store.lock(f"{run_folder(run)}/lease/lock", holder)
    except StoreBusy as error:
        raise RunBusy(
            problem=f"The run {run!r} is being trained right now by {error.holder or 'another process'}.",
            remedy=(
                "Let it go on, or stop it first (interrupt its cell, or restart its kernel). "
                "For a second training choose another run_name."
            ),
        ) from error


def _find(spec: RunSpec, repository: Repository, events: deque[Event]) -> Loaded | None:
    if spec.resume == "never":
        if repository.ids():
            events.append(
                Noted(text=f'resume="never": the checkpoints of {spec.name!r} stay, and the run starts at step zero.')
            )
        return None
    if spec.resume == "best":
        if spec.best is None:
            raise UsageError(
                problem='resume="best" needs to know what is best.',
                remedy='Say which metric: monitor="val_loss", mode="min".',
            )
        return load_best(repository, spec.best)
    if spec.resume not in ("auto", "must"):
        return load_id(repository, spec.resume)
    loaded = load_newest(
        repository,
        lambda id, why: events.append(CheckpointSetAside(checkpoint=id, reason=why)),
        sleep=spec.clock.sleep,
    )
    if loaded is None and spec.resume == "must":
        raise CheckpointNotFound(
            problem=f"There is no checkpoint of the run {spec.name!r} in {spec.store.url}.",
            remedy='Check run_name and storage; or use resume="auto", which starts from zero when there is none.',
        )
    return loaded


def _same_data(spec: RunSpec, loaded: Loaded | None, events: deque[Event]) -> SameData:
    stored = own_state(loaded, "data") if loaded is not None and "data" in loaded.parts else None
    checkpoint = "" if loaded is None else loaded.manifest.id

    def tell(note: str) -> None:
        events.append(as_event(checkpoint, note))

    return SameData(spec.framework.name, spec.seed, stored, spec.clock.monotonic, tell, apply=spec.on_change == "apply")


def _compared_data(spec: RunSpec, same: SameData, inside: int | None) -> list[str]:
    data, lines = spec.framework.data(), list[str]()
    for name, loader in (("train", spec.loader), ("val", spec.val_loader)):
        if loader is not None:
            lines += same.differences(data, name, loader, inside=inside)
    return lines


def _compared(spec: RunSpec, loaded: Loaded | None, settings: RunSettings, events: deque[Event]) -> SameData:
    data = _same_data(spec, loaded, events)
    _check(spec, loaded, data, settings)
    return data


def _check(spec: RunSpec, loaded: Loaded | None, same: SameData, settings: RunSettings) -> None:
    if loaded is None:
        _compared_data(spec, same, None)  # there is nothing to compare it with: it gets to know the data
        return
    stored = {name: tree for name, tree in loaded.parts.items() if name not in OWN_PARTS}
    differences = []
    if loaded.manifest.framework != spec.framework.name:
        differences.append(f"it was trained with {loaded.manifest.framework}, now with {spec.framework.name}")
    differences += [f"{name} was part of the run and is not handed in now" for name in stored if name not in spec.parts]
    differences += [f"{name} is handed in now and was not part of the run" for name in spec.parts if name not in stored]
    seed = own_state(loaded, "run")["seed"]
    if seed != spec.seed:
        differences.append(f"seed was {seed} and is {spec.seed}: the rest of the epoch would be in another order")
    loader_state = own_state(loaded, "loader")
    stopped = loaded.manifest.progress
    of_data = _compared_data(spec, same, stopped.epoch if stopped.batches else None)
    if spec.loader is not None and loader_state is not None:
        told_better = ("data set length", "samples in an epoch", "batches") if of_data else ()
        state = {name: value for name, value in loader_state.items() if name not in told_better}
        differences += same.stopping(spec.framework.data().check(spec.loader, seed=seed, state=state))
    differences += of_data
    changed = list[str]()
    if loaded.manifest.framework == spec.framework.name:
        changed = settings.compare(loaded)
        common = {name: part for name, part in spec.parts.items() if name in stored and name not in settings.replaced}
        differences += spec.framework.check(common, {name: stored[name] for name in common})
    if changed and not differences:
        problem = settings.problem(spec.name, loaded.manifest.id)
        raise Incompatible(problem=problem, remedy=settings.remedy(), differences=changed)
    if differences:
        raise Incompatible(
            problem=f"The run {spec.name!r} does not fit what was handed in (checkpoint {loaded.manifest.id}):",
            remedy=(
                "Nothing was touched. Make them as they were; or train under another run_name; "
                'or start this run from zero with resume="never" (its checkpoints stay).'
                + (' on_change="apply" goes on with the data as it is now, which the report says.' if of_data else "")
            ),
            differences=[*differences, *changed],
        )


def _rehearse(spec: RunSpec) -> None:
    # What cannot be stored is told now, not after an hour.
    snapshot = spec.framework.rehearse(spec.parts).finish()
    try:
        encode_parts(snapshot.parts)
    finally:
        snapshot.release()


def _recalled(spec: RunSpec, manifest: Manifest, own: Mapping[str, Tree], lease: Lease) -> list[Event]:
    losses = LossRecord(spec.framework.losses(), Proof())
    if "losses" in own:
        losses.load_state_dict(own["losses"])
    told: list[Event] = [Recalled(points=losses.points, resumed_at=taken_over(manifest), sessions=lease.fence)]
    proof = losses.proof
    if proof.broken is not None:
        good = good_before(lease.repository, manifest, proof.finite or 0)
        told.append(LossNotFinite(step=proof.broken, value=proof.value, finite=proof.finite, checkpoint=good))
    return told


def as_event(checkpoint: str, note: str) -> Event:
    """The event that tells what was noted about data."""
    return RestoredInexactly(checkpoint=checkpoint, reason=note) if isinstance(note, Inexact) else Noted(text=note)


def _tell(spec: RunSpec, manifest: Manifest, own: Mapping[str, Tree], events: deque[Event]) -> None:
    age = max(0.0, spec.clock.time() - manifest.created)
    events.append(Restored(checkpoint=manifest.id, progress=manifest.progress, age=age))
    for name, setting in spec.settings.items():
        before = manifest.settings.get(name, setting)
        if before != setting:
            events.append(Noted(text=f"{name} was {before} and is {setting}: harmless, training goes on"))
    if left := own["run"].get("left"):
        events.append(Noted(text=f"The loop was {left}: what it does there is not done for that epoch."))
    now = spec.framework.fingerprint(spec.parts)
    # What only one side knows is no change: another version of colabkeep, or of the framework, tells more. GPUs all do.
    known = (now.keys() & manifest.fingerprint.keys()) | ({"gpu"} & (now.keys() | manifest.fingerprint.keys()))
    for name in sorted(known):
        before, after = manifest.fingerprint.get(name, "absent"), now.get(name, "absent")
        if before != after:
            reason = f"{name} was {before} and is {after}: the state is exact, later steps may round differently"
            events.append(RestoredInexactly(checkpoint=manifest.id, reason=reason))


_MOST = 8  # parts that are named
_LOOP = (
    "Not seen: variables of your own loop that are neither in run.state nor in state={{…}}{more}, and the files that "
    "your code reads."
)
_FIT = (
    "Not seen: what your own functions keep in variables that are not in state={…}, and the files that your code reads."
)


class Promised(TypedDict):
    """Members of `RunStarted`."""

    promise: str
    exactness: str
    reasons: tuple[str, ...]
    unseen: str
    precision: str


def promise_of(spec: RunSpec) -> Promised:
    """What holds for these parts on this machine. "Exact" is said only where nothing is known that prevents it."""
    told = spec.framework.exactness(spec.parts)
    restored = f"{_named(spec)}, the random streams and the position in the data are restored"
    if told.obstacles:
        word, then = "course", "but the steps after that may round differently on this machine"
        sentence = f"Same course, not the same bits: {restored}, {then}."
    else:
        word, but = ("mostly", "Exact, but for what is named here") if told.exceptions else ("exact", "Exact")
        sentence = f"{but}: {restored}, and the steps after that give the same bits with the same {told.same}."
    return Promised(
        promise=sentence,
        exactness=word,
        reasons=(*told.obstacles, *told.exceptions, *told.notes),
        unseen=_LOOP.format(more=told.unseen and f", {told.unseen}") if spec.loader is None else _FIT,
        precision=spec.precision,
    )


def precision_chosen(asked: str, became: str) -> str:
    """What "auto" chose, where that changes what is computed; "" else."""
    if asked != "auto" or became == "32-true":
        return ""
    return f'precision="auto" became "{became}" on this device; precision="32-true" computes in float32 throughout.'


def _named(spec: RunSpec) -> str:
    names = [name.removeprefix("state.") for name in spec.parts if name != "fit"]
    more = [] if len(names) <= _MOST else [f"{len(names) - _MOST} more"]
    return ", ".join(names[:_MOST] + more)

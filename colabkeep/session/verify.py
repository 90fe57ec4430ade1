"""Proving on the user's own code that a resume is exact, and finding what is kept where no checkpoint sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from colabkeep.checkpoint.repository import Repository
from colabkeep.core.arguments import door
from colabkeep.core.errors import UsageError
from colabkeep.core.events import Event, RunStarted, StepDone
from colabkeep.core.manifest import Manifest
from colabkeep.frameworks import FRAMEWORKS, find_framework, open_framework
from colabkeep.frameworks.base import Framework
from colabkeep.frameworks.shared.training import is_per_step
from colabkeep.session.fit import train
from colabkeep.session.rehearsal import Rehearsal, differences, flat, state_digest
from colabkeep.session.run import Run
from colabkeep.session.wiring import FitArguments, RunArguments, decide_interval, plan_fit, wire_fit
from colabkeep.stores.base import Store
from colabkeep.stores.memory import MemoryStore

__all__ = ["ResumeReport", "verify_resume"]

_RUN = "verify-resume"
_UNCOMPARED = ("run", "history", "losses", "loader", "data")  # own parts that hold no arithmetic of the training
_IGNORED = {
    "run_name", "storage", "resume", "save_every", "overhead", "copy", "on_change", "on_nan", "keep_last", "keep_best",
    "monitor", "mode", "max_epochs", "max_steps", "max_time", "callbacks", "progress",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReport:
    """What `verify_resume` found. True in a condition when the resume is exact and nothing is kept outside.

    `steps`: of the training that was compared; `interrupted`: the steps after which it was, and was resumed.
    `differing`: state that is not bit for bit that of the uninterrupted training. `outside`: values that a restore does
    not bring back, by path. `told`: why a resumed session itself said that it is not exact. `deterministic`: do two
    uninterrupted trainings agree? None: not asked, since nothing differs.
    """

    steps: int
    interrupted: tuple[int, ...]
    differing: tuple[str, ...]
    outside: tuple[str, ...]
    told: tuple[str, ...] = ()
    deterministic: bool | None = None

    def __bool__(self) -> bool:
        return not self.differing and not self.outside and not self.told

    def __str__(self) -> str:
        where = " and ".join(map(str, self.interrupted))
        if self:
            return f"exact: {self.steps} steps, killed after {where} and resumed with new objects, gave the same bits"
        lines = [f"{self.steps} steps, killed after {where} and resumed with new objects:"]
        if self.differing:
            lines.append("NOT exact: at the end these differ from the uninterrupted training:")
            lines += [f"  - {line}" for line in self.differing]
        if self.deterministic is False:
            lines.append("Two uninterrupted trainings differ as well: something draws numbers that no seed governs.")
        if self.told:
            lines.append("The resumed training itself said why it is not exact:")
            lines += [f"  - {line}" for line in self.told]
        if self.outside:
            lines.append("Kept where no checkpoint sees it (put it into run.state, or hand it in with state={…}):")
            lines += [f"  - {line}" for line in self.outside]
        return "\n".join(lines)


@door()
def verify_resume(train: Callable[[], Any], *, steps: int | None = None) -> ResumeReport:
    """Prove on your own code that a resume is exact, and find what you keep where no checkpoint sees it.

    Two forms:

    * A function that builds everything and trains, with `colabkeep.Run` or `resumable_fit`. It is called some five
      times: twice whole, then killed and resumed at two steps, with its runs kept in memory; so let it train for a
      minute at most, on a little of the data. Every bit of the end is compared, and the variables of the function.
    * A function that builds everything and returns the arguments of `resumable_fit`, by name: {"model": …,
      "train_loader": …, "optimizer": …, "loss_fn": …}. It is called two or three times. What says where, how long and
      how often to save is ignored: `steps` steps are trained, killed, resumed and trained again.

    What two uninterrupted trainings do not agree on, such as the time, is not taken for a loss.

    Args:
        train: a function without arguments, in one of the two forms.
        steps: in the second form the optimizer steps before the restore, and again after it (5).

    Returns:
        ResumeReport: print it.

    Raises:
        UsageError: the function is of neither form, or returned old objects, or trains too few steps to be killed.
        NotStorable: something cannot be stored; the error names its path.
    """
    if steps is not None and steps < 1:
        raise UsageError(problem=f"steps={steps} leaves nothing to compare.", remedy="Pass steps=1 or more.")
    streams = [open_framework(entry.name).rng() for entry in FRAMEWORKS if entry.module in sys.modules]
    before = [rng.state_dict() for rng in streams]

    def again() -> None:
        for rng, state in zip(streams, before, strict=True):
            rng.load_state_dict(state)

    try:
        whole = Rehearsal(MemoryStore())
        given = whole.call(train)
        if whole.steps:
            return _compare_loops(train, whole, again)
        sample = _made(given)
        return _compare(train, find_framework([sample.model, sample.optimizer]), 5 if steps is None else steps)
    finally:
        again()  # asking must not change the user's random streams


def _compare_loops(train: Callable[[], object], whole: Rehearsal, again: Callable[[], None]) -> ResumeReport:
    twin = Rehearsal(MemoryStore())
    again()
    twin.call(train)
    spots = [spot for spot in whole.found if spot in twin.found]
    if not spots:
        raise UsageError(
            problem=f"The training ended after {max(whole.steps.values())} steps, before it could be killed.",
            remedy="Let it train some eight steps or more, with one checkpoint before its end.",
        )
    chosen = sorted({spots[len(spots) // 2], spots[-1]}, key=spots.index)
    store, outside, told = MemoryStore(), dict[str, str](), list[str]()
    for number in range(len(chosen) + 1):
        again()
        life = Rehearsal(store, die_at=chosen[number] if number < len(chosen) else None)
        life.call(train)
        told += [reason for reason in life.told if reason not in told]
        if number:
            before, after = whole.found[chosen[number - 1]], life.found[chosen[number - 1]]
            for path in _outside(before, twin.found[chosen[number - 1]], after):
                outside.setdefault(path, *differences({path: before[path]}, {path: after[path]}))
    ends = [_ends(rehearsal.store, whole.steps) for rehearsal in (whole, twin)]
    differing = _differing(ends[0], _ends(store, whole.steps))
    return ResumeReport(
        steps=sum(whole.steps.values()),
        interrupted=tuple(step for _, step in chosen),
        differing=tuple(differing),
        outside=tuple(outside.values()),
        told=tuple(told),
        deterministic=not _differing(*ends) if differing else None,
    )


def _outside(whole: Mapping[str, str], twin: Mapping[str, str], resumed: Mapping[str, str]) -> Iterator[str]:
    """The paths that a resumed training has otherwise than two that nobody interrupted. What those do not agree on is
    noise; and a variable that it does not have yet was not missed, else it would have failed."""
    return (path for path, value in whole.items() if twin.get(path) == value != resumed.get(path, value))


def _ends(store: Store, runs: Mapping[str, int]) -> dict[str, str]:
    """Path → value of all that was saved at the end of each run."""
    found: dict[str, str] = {}
    for run in runs:
        repository = Repository(store, run)
        newest = max(repository.manifests(repository.ids()), key=lambda manifest: manifest.order)
        state = _saved_state(repository, newest)
        found |= {path if len(runs) == 1 else f"{run}: {path}": value for path, value in state.items()}
    return found


def _saved_state(repository: Repository, manifest: Manifest) -> dict[str, str]:
    trees = repository.load(manifest)
    return {path: value for part, tree in trees.items() if part not in _UNCOMPARED for path, value in flat(tree, part)}


def _compare(make: Callable[[], Mapping[str, Any]], framework: Framework, steps: int) -> ResumeReport:
    rng = framework.rng()
    seed = rng.state_dict()
    store = MemoryStore()
    first, second = _made(make()), _made(make())
    if second.model is first.model or second.optimizer is first.optimizer:
        raise UsageError(
            problem="make() returned the same model or optimizer twice.", remedy="Build them anew inside make()."
        )
    whole = _trained(first, framework, store, steps, resume="never")
    middle = next(id for id in Repository(store, _RUN).ids() if int(id[:12]) == steps)
    resumed = _trained(second, framework, store, steps, resume=middle)
    differing = _differing(whole.state, resumed.state)
    deterministic = None
    if differing:
        rng.load_state_dict(seed)
        third, _ = _made(make()), _made(make())  # as before, so that the streams stand where they stood
        again = _trained(third, framework, MemoryStore(), steps, resume="never")
        deterministic = not _differing(whole.state, again.state)
    return ResumeReport(
        steps=2 * steps,
        interrupted=(steps,),
        differing=tuple(differing),
        outside=tuple(differences(whole.middle, resumed.middle)),
        deterministic=deterministic,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    """`middle`: the census at the step of the restore; `state`: path → value of all that was saved at the end."""

    middle: Mapping[str, str]
    state: Mapping[str, str]


def _trained(arguments: FitArguments, framework: Framework, store: Store, steps: int, resume: str) -> _Trained:
    roots = {f.name: getattr(arguments, f.name) for f in fields(arguments) if f.name != "run"}
    middle: dict[str, str] = {}

    def look(event: Event) -> None:
        restored = isinstance(event, RunStarted) and resume != "never"
        halfway = isinstance(event, StepDone) and event.progress.step == steps
        if restored or halfway:
            middle.update(state_digest(roots, framework))

    words = replace(
        arguments.run, storage=store, resume=resume, save_every=f"{steps} steps", keep_last=None, observers=(look,)
    )
    plan = plan_fit(replace(arguments, run=words, max_steps=2 * steps, max_epochs=None))
    spec = wire_fit(plan)
    run = Run(spec)
    with run:
        train(run, plan)
    repository = Repository(store, _RUN)
    state = _saved_state(repository, repository.manifest(run.checkpoint or ""))
    return _Trained(middle=middle, state=state)


def _made(given: object) -> FitArguments:
    if not isinstance(given, Mapping):
        raise UsageError(
            problem="The function neither trained with colabkeep.Run or resumable_fit, nor returned the arguments of "
            "resumable_fit.",
            remedy="Pass the function that builds everything and trains; without arguments: verify_resume(train).",
        )
    words = dict(given)
    state, seed = words.pop("state", None), words.pop("seed", 0)
    length = {name: words[name] for name in ("max_epochs", "max_steps") if words.get(name) is not None}
    known = {f.name for f in fields(FitArguments)} - {"run"}
    words = {name: value for name, value in words.items() if name not in _IGNORED}
    unknown, missing = sorted(set(words) - known), [n for n in ("model", "train_loader", "optimizer") if n not in words]
    if unknown or missing:
        raise UsageError(
            problem=f"make() returned what resumable_fit does not take: {', '.join(unknown)}."
            if unknown
            else f"make() did not return {', '.join(missing)}.",
            remedy='Return the arguments of resumable_fit by name: {"model": …, "train_loader": …, "optimizer": …, …}.',
        )
    made = FitArguments(**words, run=RunArguments(run_name=_RUN, state=state, seed=seed))
    return replace(made, scheduler_interval=_interval(made, length))


def _interval(made: FitArguments, length: Mapping[str, int]) -> Literal["epoch", "step"]:
    """How often the scheduler is stepped in a training of that length; without one, what its class is made for."""
    if not length and made.scheduler_interval == "auto":
        return "step" if is_per_step(made.scheduler) else "epoch"
    asked = replace(made, max_epochs=length.get("max_epochs"), max_steps=length.get("max_steps"))
    loader = find_framework([made.model, made.optimizer]).data().as_loader(made.train_loader, made.batch_size)
    return "step" if decide_interval(asked, loader).interval == "step" else "epoch"


def _differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [
        f"{path}: {before.get(path, 'absent')} without the restore, {after.get(path, 'absent')} with it"
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    ]

"""Proving on the user's own code that a resume is exact, and finding what is kept where no checkpoint sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from colabkeep._engine.repository import Repository
from colabkeep.frameworks import FRAMEWORKS, find_framework, open_framework
from colabkeep.frameworks.base import Framework
from colabkeep.session.census import census, differences, flat
from colabkeep.session.fit import train
from colabkeep.session.run import Run
from colabkeep.session.wiring import FitArguments, RunArguments, plan_fit, wire_fit
from colabkeep.stores.base import Store
from colabkeep.stores.memory import MemoryStore
from colabkeep.vocabulary.errors import UsageError
from colabkeep.vocabulary.events import Event, RunStarted, StepDone

__all__ = ["ResumeReport", "verify_resume"]

_RUN = "verify-resume"
_UNCOMPARED = ("run", "history", "losses", "loader")  # own parts that hold no arithmetic of the training
_IGNORED = {
    "run_name", "storage", "resume", "save_every", "overhead", "copy", "keep_last", "keep_best", "monitor", "mode",
    "max_epochs", "max_steps", "max_time", "callbacks", "progress",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReport:
    """What `verify_resume` found. True in a condition when the resume is exact and nothing is kept outside.

    `steps`: steps before the restore, and again after it. `differing`: state that is not bit for bit that of
    the uninterrupted training. `outside`: values that a restore does not bring back, by path. `deterministic`: do
    two uninterrupted trainings agree? Asked only when something differs; None otherwise.
    """

    steps: int
    differing: tuple[str, ...]
    outside: tuple[str, ...]
    deterministic: bool | None = None

    def __bool__(self) -> bool:
        return not self.differing and not self.outside

    def __str__(self) -> str:
        if self:
            return f"exact: {self.steps} steps, a restore into new objects and {self.steps} more gave the same bits"
        lines = []
        if self.differing:
            lines.append(f"NOT exact: after the restore and {self.steps} more steps these differ:")
            lines += [f"  - {line}" for line in self.differing]
        if self.deterministic is False:
            lines.append("Two uninterrupted trainings differ as well: something draws numbers that no seed governs.")
        if self.outside:
            lines.append("Kept where no checkpoint sees it (hand it in with state={…}, or make it a buffer):")
            lines += [f"  - {line}" for line in self.outside]
        return "\n".join(lines)


def verify_resume(make: Callable[[], Mapping[str, Any]], *, steps: int = 5) -> ResumeReport:
    """Train `2 * steps` steps; then restore the state of the middle into new objects, train on, compare every bit.

    Args:
        make: builds everything anew and returns the arguments of `resumable_fit`, by name: {"model": …,
            "train_loader": …, "optimizer": …, "loss_fn": …}. It is called two or three times. What says where,
            how long and how often to save is ignored.
        steps: optimizer steps before the restore, and again after it.

    Returns:
        ResumeReport: print it.

    Raises:
        UsageError: what `make` returned is not what `resumable_fit` takes, or it returned old objects.
        NotStorable: something cannot be stored; the error names its path.
    """
    if steps < 1:
        raise UsageError(problem=f"steps={steps} leaves nothing to compare.", remedy="Pass steps=1 or more.")
    streams = [open_framework(entry.name).rng() for entry in FRAMEWORKS if entry.module in sys.modules]
    before = [rng.state_dict() for rng in streams]
    try:
        sample = _made(make)
        return _compare(make, find_framework([sample.model, sample.optimizer]), steps)
    finally:
        for rng, state in zip(streams, before, strict=True):
            rng.load_state_dict(state)  # asking must not change the user's random streams


def _compare(make: Callable[[], Mapping[str, Any]], framework: Framework, steps: int) -> ResumeReport:
    rng = framework.rng()
    seed = rng.state_dict()
    store = MemoryStore()
    first, second = _made(make), _made(make)
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
        third, _ = _made(make), _made(make)  # as before, so that the streams stand where they stood
        again = _trained(third, framework, MemoryStore(), steps, resume="never")
        deterministic = not _differing(whole.state, again.state)
    return ResumeReport(
        steps=steps,
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
            middle.update(census(roots, framework))

    words = replace(
        arguments.run, storage=store, resume=resume, save_every=f"{steps} steps", keep_last=None, observers=(look,)
    )
    plan = plan_fit(replace(arguments, run=words, max_steps=2 * steps, max_epochs=None))
    spec = wire_fit(plan)
    run = Run(spec)
    with run:
        train(run, plan)
    repository = Repository(store, _RUN)
    trees = repository.load(repository.manifest(run.checkpoint or ""))
    state = {path: value for part, tree in trees.items() if part not in _UNCOMPARED for path, value in flat(tree, part)}
    return _Trained(middle=middle, state=state)


def _made(make: Callable[[], Mapping[str, Any]]) -> FitArguments:
    words = dict(make())
    state, seed = words.pop("state", None), words.pop("seed", 0)
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
    return FitArguments(**words, run=RunArguments(run_name=_RUN, state=state, seed=seed))


def _differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [
        f"{path}: {before.get(path, 'absent')} without the restore, {after.get(path, 'absent')} with it"
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    ]

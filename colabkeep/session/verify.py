"""Proving on the user's own code that a resume is exact, and finding what is kept where no checkpoint sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal

from colabkeep.checkpoint.repository import Repository
from colabkeep.core.arguments import public
from colabkeep.core.errors import UsageError
from colabkeep.frameworks import FRAMEWORKS, find_framework, open_framework
from colabkeep.frameworks.shared.training import is_per_step
from colabkeep.session.fit import FitArguments, choose_interval, plan_fit, wire_fit
from colabkeep.session.fit import train as fit_loop
from colabkeep.session.open import RunArguments
from colabkeep.session.rehearsal import AFTER, REHEARSAL, Rehearsal, differences, flat
from colabkeep.session.run import Run
from colabkeep.stores.base import Store
from colabkeep.stores.memory import MemoryStore

_RUN = "verify-resume"
_UNCOMPARED = ("run", "history", "losses", "loader", "data")  # own parts that hold no arithmetic of the training
_COMPARED, _RESTORED = ("without the restore", "with it"), ("in the run", "after the restore")
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
        for title, found in (
            ("NOT exact: at the end these differ from the uninterrupted training:", self.differing),
            ("The resumed training itself said why it is not exact:", self.told),
            ("No checkpoint holds these (put them into run.state, or pass them in state={…}):", self.outside),
        ):
            lines += [title, *(f"  - {line}" for line in found)] if found else []
        if self.deterministic is False:
            lines.append("Two uninterrupted trainings differ as well: something draws numbers that no seed governs.")
        return "\n".join(lines)


@public()
def verify_resume(train: Callable[[], Any], *, steps: int | None = None) -> ResumeReport:
    """Prove on your own code that a resume is exact, and find what you keep where no checkpoint sees it.

    Two forms:

    * A function that builds everything and trains, with `colabkeep.Run` or `resumable_fit`. It is called some five
      times: twice whole, then killed and resumed at two steps, with its runs kept in memory; so let it train for a
      minute at most, on a little of the data. Every bit of the end is compared, and the variables of the function.
    * A function that builds everything and returns the arguments of `resumable_fit`, by name: {"model": …,
      "train_loader": …, "optimizer": …, "loss_fn": …}. It is called five times. What says where, how long and
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
            return _compare(train, whole, partial(Rehearsal, saves=AFTER), again)
        middle = 5 if steps is None else steps
        fitting, begin = _fitting(train, given, middle), partial(Rehearsal, saves=(middle,))
        again()
        whole = begin(MemoryStore())
        whole.call(fitting)
        return _compare(fitting, whole, begin, again)
    finally:
        again()  # asking must not change the user's random streams


def _compare(
    train: Callable[[], object], whole: Rehearsal, begin: Callable[..., Rehearsal], again: Callable[[], None]
) -> ResumeReport:
    """Train again, undisturbed; and once more, killed and resumed. `whole`: the first training."""
    twin = begin(MemoryStore())
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
        life = begin(store, die_at=chosen[number] if number < len(chosen) else None)
        life.call(train)
        told += [reason for reason in life.told if reason not in told]
        if number:
            before, after = whole.found[chosen[number - 1]], life.found[chosen[number - 1]]
            for path in _outside(before, twin.found[chosen[number - 1]], after):
                outside.setdefault(path, *differences({path: before[path]}, {path: after[path]}, _RESTORED))
    ends = [_ends(rehearsal.store, whole.steps) for rehearsal in (whole, twin)]
    differing = differences(ends[0], _ends(store, whole.steps), _COMPARED)
    return ResumeReport(
        steps=sum(whole.steps.values()),
        interrupted=tuple(step for _, step in chosen),
        differing=tuple(differing),
        outside=tuple(outside.values()),
        told=tuple(told),
        deterministic=not differences(ends[0], ends[1], _COMPARED) if differing else None,
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
        trees = repository.load(max(repository.manifests(repository.ids()), key=lambda manifest: manifest.order))
        compared = (each for part, tree in trees.items() if part not in _UNCOMPARED for each in flat(tree, part))
        found |= {path if len(runs) == 1 else f"{run}: {path}": value for path, value in compared}
    return found


def _fitting(make: Callable[[], object], given: object, middle: int) -> Callable[[], None]:
    """The training of what `make` returns, of twice as many steps as there are to its `middle`. `given`: what it
    returned first."""
    earlier = [_made(given, middle)]

    def trains() -> None:
        made = _made(make(), middle)
        if any(made.model is other.model or made.optimizer is other.optimizer for other in earlier):
            raise UsageError(
                problem="make() returned the same model or optimizer twice.", remedy="Build them again inside make()."
            )
        earlier.append(made)
        rehearsal = REHEARSAL.get()
        if rehearsal is not None:
            rehearsal.roots = {f.name: getattr(made, f.name) for f in fields(made) if f.name != "run"}
        plan = plan_fit(made)
        with Run(wire_fit(plan)) as run:
            fit_loop(run, plan)

    return trains


def _made(given: object, middle: int) -> FitArguments:
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
    made = FitArguments(**words, run=RunArguments(run_name=_RUN, state=state, seed=seed), max_steps=2 * middle)
    return replace(made, scheduler_interval=_interval(made, length))


def _interval(made: FitArguments, length: Mapping[str, int]) -> Literal["epoch", "step"]:
    """How often the scheduler is stepped in a training of that length; without one, what its class is made for."""
    if not length and made.scheduler_interval == "auto":
        return "step" if is_per_step(made.scheduler) else "epoch"
    asked = replace(made, max_epochs=length.get("max_epochs"), max_steps=length.get("max_steps"))
    loader = find_framework([made.model, made.optimizer]).data().as_loader(made.train_loader, made.batch_size)
    return "step" if choose_interval(asked, loader).word == "step" else "epoch"

"""A training that is tried out, its runs kept in memory and killed on demand; and what objects hold by path, to
find state that no checkpoint holds.
"""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import Any, cast

from colabkeep.core.errors import NotStorable
from colabkeep.core.events import Event, Restored, RestoredInexactly, RunStarted, SaveStarted, StepDone
from colabkeep.core.manifest import Progress
from colabkeep.core.policies import SaveMark
from colabkeep.core.state import HostTensor, Tagged
from colabkeep.frameworks import open_framework
from colabkeep.frameworks.base import Framework
from colabkeep.session.state import Value
from colabkeep.stores.base import Store


class Killed(BaseException):
    """Leaves the loop of a run as a kill would: nothing is saved any more."""


_MOST = 50_000  # nodes; a graph that is larger is compared as far as this
_PLUMBING = ("_modules.", "_sub_layers.", "_parameters.", "_buffers.")  # of torch and Paddle
_SKIPPED = {"training", "_iterator", "__weakref__", "__doc__", "__module__", "__qualname__"} | {
    "_full_name",  # of a Paddle layer: counts the layers made in this process
    "_data_format",  # of a Paddle BatchNorm: another word for the same after the first forward
    "_compiled_call_impl",  # of a compiled module: what was compiled so far
}
_APART = frozenset(
    {"torch", "paddle", "numpy", "functools", "threading", "logging", "colabkeep", "tqdm", "rich", "matplotlib"}
    | {"IPython", "ipywidgets", "ipykernel"}
)
"""Packages whose objects keep their state in their state_dict, or show something and keep none."""
_OPAQUE = (types.ModuleType, type, types.BuiltinFunctionType, types.GeneratorType, types.CodeType)


def state_digest(roots: Mapping[str, object], framework: Framework) -> dict[str, str]:
    """Path → digest or text of every leaf that can be reached from `roots`: numbers, strings, tensors,
    arrays, generators; through attributes, containers, closures and the globals that functions name."""
    found: dict[str, str] = {}
    for path, leaf in _leaves(roots):
        if leaf is None or isinstance(leaf, (bool, int, float, complex, str, bytes)):
            found[path] = repr(leaf)
        else:
            digest = _digest(leaf, framework)
            if digest is not None:
                found[path] = digest
    return found


def differences(before: Mapping[str, str], after: Mapping[str, str], where: tuple[str, str]) -> list[str]:
    """A line for each path that holds something else, or is there only once. `where`: how the two sides are called."""
    return [
        f"{_pretty(path)}: {before.get(path, 'absent')} {where[0]}, {after.get(path, 'absent')} {where[1]}"
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    ]


def _leaves(roots: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    seen: set[int] = set()
    todo: list[tuple[str, object]] = list(reversed(list(roots.items())))
    while todo and len(seen) < _MOST:
        path, node = todo.pop()
        if isinstance(node, (bool, int, float, complex, str, bytes)) or node is None:
            yield path, node
            continue
        if id(node) in seen or isinstance(node, _OPAQUE):
            continue
        seen.add(id(node))
        if _is_leaf(node):
            yield path, node
        else:
            todo.extend(reversed([(f"{path}{step}", child) for step, child in _children(node)]))


def _is_leaf(node: object) -> bool:
    kind = type(node)
    if kind.__name__ in ("Generator", "RandomState", "Random") and kind.__module__ != "builtins":
        return True
    return hasattr(node, "dtype") and hasattr(node, "shape")


def _children(node: object) -> Iterator[tuple[str, object]]:
    if isinstance(node, Mapping):
        yield from ((f".{key}", child) for key, child in node.items() if isinstance(key, (str, int)))
    elif isinstance(node, (list, tuple, set, frozenset)):
        yield from ((f"[{i}]", child) for i, child in enumerate(node))
    elif isinstance(node, types.MethodType):
        yield ".__self__", node.__self__
        yield "", node.__func__
    elif isinstance(node, types.FunctionType):
        yield from _of_function(node)
    elif _is_foreign(node):
        return
    elif type(node).__module__.startswith("torch._dynamo"):  # a compiled module: what it wraps
        yield ".", getattr(node, "_orig_mod", None)
    else:
        for name, child in getattr(node, "__dict__", {}).items():
            if name not in _SKIPPED:
                yield f".{name}", child


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".<{name}>", cell.cell_contents
        except ValueError:
            continue  # a variable that was never set
    yield from ((f".<default {i}>", value) for i, value in enumerate(function.__defaults__ or ()))
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f".<global {name}>", function.__globals__[name]


def _is_foreign(node: object) -> bool:
    """An object of a framework's own class keeps its state in its state_dict; modules are looked into all the same."""
    where = type(node).__module__
    package = where.partition(".")[0]
    return package in _APART and not (hasattr(node, "_modules") or hasattr(node, "_sub_layers"))


def _digest(leaf: object, framework: Framework) -> str | None:
    try:
        snapshot = framework.capture({"leaf": Value(leaf)}).finish()
    except NotStorable:
        return None
    try:
        return f"{type(leaf).__name__} {_sum(flat(snapshot.parts['leaf'], ''))}"
    finally:
        snapshot.release()


def flat(tree: object, path: str) -> Iterator[tuple[str, str]]:
    """Path → digest or text of every leaf of a stored tree."""
    if isinstance(tree, HostTensor):
        digest = hashlib.sha256(tree.data).hexdigest()[:12]
        yield path, f"{tree.dtype}{list(tree.shape)} {digest}"
    elif isinstance(tree, Tagged):
        yield from flat(tree.value, f"{path}<{tree.kind}>")
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from flat(value, f"{path}.{key}")
    elif isinstance(tree, (list, tuple)):
        for i, value in enumerate(tree):
            yield from flat(value, f"{path}[{i}]")
    else:
        yield path, repr(tree)


def _sum(leaves: Iterator[tuple[str, str]]) -> str:
    return hashlib.sha256(repr(list(leaves)).encode()).hexdigest()[:12]


def _pretty(path: str) -> str:
    for plumbing in _PLUMBING:
        path = path.replace(plumbing, "")
    return path


Spot = tuple[str, int]
"""A run, and the step of a checkpoint of it."""

AFTER = tuple(2**n - 2 for n in range(2, 40))  # 2, 6, 14, 30 …: few, whatever the length, and in odd places


class Rehearsal:
    """One call of the user's function. It saves after `saves` steps. `die_at`: it is killed in the step after this
    checkpoint. `found`: what there was outside of each checkpoint: below `roots` when it was made or restored; without
    any, in the step after it, among the variables of the functions under way. `told`: why a resume was said not to be
    exact. `framework`: of the runs. `steps`: of each run, the last one."""

    def __init__(self, store: Store, die_at: Spot | None = None, saves: Sequence[int] = AFTER) -> None:
        self.found: dict[Spot, dict[str, str]] = {}
        self.told: list[str] = []
        self.steps: dict[str, int] = {}
        self.store = store
        self.framework = "numpy"
        self.roots: Mapping[str, object] | None = None
        self._die_at = die_at
        self._saves = saves

    def words(self, observers: tuple[Callable[[Event], object], ...]) -> dict[str, Any]:
        """The arguments of a run that are ours to say."""
        return {
            "storage": self.store,
            "resume": "auto",
            "save_every": _After(self._saves),
            "keep_last": None,
            "max_time": None,
            "flush_timeout": 0,
            "observers": (*observers, self._watch()),
        }

    def call(self, train: Callable[[], object]) -> object:
        """Call the function; a kill ends it."""
        token = REHEARSAL.set(self)
        try:
            return train()
        except Killed:
            return None
        finally:
            REHEARSAL.reset(token)

    def _watch(self) -> Callable[[Event], None]:
        """Hears the events of one run."""
        run, saved = "", cast("int | None", None)

        def hear(event: Event) -> None:
            nonlocal run, saved
            if isinstance(event, RunStarted):
                run = event.run
            elif isinstance(event, (SaveStarted, Restored)):
                saved = event.progress.step
                if self.roots is not None and saved in self._saves:
                    self.found[run, saved] = state_digest(self.roots, open_framework(self.framework))
            elif isinstance(event, RestoredInexactly):
                self.told.append(event.reason)
            elif isinstance(event, StepDone):
                self.steps[run] = event.progress.step
                step, saved = saved, None
                if step is not None:
                    self._stepped((run, step))

        return hear

    def _stepped(self, spot: Spot) -> None:
        """The step after a checkpoint was made, or resumed from, is done."""
        if self.roots is None:
            self.found[spot] = state_digest(_variables(sys._getframe(1)), open_framework(self.framework))
        if spot == self._die_at:
            raise Killed


REHEARSAL: ContextVar[Rehearsal | None] = ContextVar("colabkeep_rehearsal", default=None)
"""The one under way, for runs that the user's function makes."""


class _After:
    """Saves after these steps, the same ones in each call."""

    def __init__(self, steps: Sequence[int]) -> None:
        self._steps = steps

    def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
        between = (step for step in self._steps if last.progress.step < step <= progress.step)
        return "rehearsal" if next(between, None) is not None else None


def _variables(frame: FrameType | None) -> dict[str, object]:
    """The variables of the user's functions that are under way, and the globals that they name."""
    found: dict[str, object] = {}
    while frame is not None and frame.f_code is not Rehearsal.call.__code__:
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith("colabkeep.") or module.startswith("colabkeep.examples."):
            where = frame.f_code.co_name
            found |= {f"{where}: {name}": value for name, value in frame.f_locals.items()}
            names = (name for name in frame.f_code.co_names if name in frame.f_globals)
            found |= {f"global {name}": frame.f_globals[name] for name in names}
        frame = frame.f_back
    return found

"""What the loop itself keeps from step to step: `run.state`, and the means of `run.average`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from colabkeep.core.errors import UsageError
from colabkeep.frameworks import open_framework
from colabkeep.frameworks.base import Framework, MeanLike
from colabkeep.session.open import Value

__all__ = ["Averages", "RunState"]

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})


class RunState(MutableMapping[str, Any]):
    """Variables of the loop that belong to the training: saved with each checkpoint, back before the loop goes on.

    ::

        run.state.best = 0.0                # before the loop: what was saved replaces it in a resumed run
        for epoch in run.epochs(30):
            ...
            run.state.best = max(run.state.best, accuracy)

    By attribute or by key. Plain values, arrays, tensors, and lists, tuples and dicts of them.
    """

    def __init__(self, framework: str) -> None:
        vars(self).update(_framework=framework, _values={}, _marked={}, _versions={})

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._values:
            _check(self._framework, name, value)
        if type(value) not in _ATOMS:
            _refuse_graph(name, value)
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return vars(self)["_values"][name]
        except KeyError:
            raise AttributeError(
                f"run.state has no {name!r} yet. Give it its first value before the loop: run.state.{name} = …"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"run.state has no {name!r}.") from None

    def __repr__(self) -> str:
        return f"run.state({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def state_dict(self) -> dict[str, Any]:
        """The variables, live."""
        return dict(self._values)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what was saved; a variable that is new in the code keeps the value it was given."""
        self._values.update(state)

    def mark(self) -> None:
        """The training is between two steps."""
        vars(self).update(_marked=dict(self._values), _versions=_versions(self._values))

    def rewind(self) -> str | None:
        """Go back to the last mark; or say which variable may have been changed since, in a clause."""
        changed = self._values.keys() | self._marked.keys()
        for name in sorted(changed):
            value = self._marked.get(name)
            kind = type(value)
            if kind in _ATOMS or (kind is tuple and all(type(member) in _ATOMS for member in value)):
                continue
            if self._versions.get(name) is None or getattr(value, "_version", None) != self._versions[name]:
                return f"run.state.{name} is a {kind.__name__}, which may have been changed in the middle of the step"
        vars(self).update(_values=dict(self._marked))
        return None


def _versions(values: Mapping[str, Any]) -> dict[str, int | None]:
    """Version counters of the values that have one, as torch's tensors do."""
    return {name: getattr(value, "_version", None) for name, value in values.items()}


def _check(framework: str, name: object, value: Any) -> None:
    """Refuse at once what no checkpoint could hold, and not when the first one is made.

    Raises:
        UsageError: `name` is no name.
        NotStorable: the value has no form that can be kept; the error names its path.
    """
    if not isinstance(name, str) or name.startswith("_"):
        raise UsageError(
            problem=f"run.state[{name!r}]: a variable's name is text that does not begin with an underscore.",
            remedy='Write, for example, run.state.best = 0.0 or run.state["best"] = 0.0.',
        )
    if type(value) not in _ATOMS:
        open_framework(framework).rehearse({"run": Value({"state": {name: value}})}).finish().release()


def _refuse_graph(name: str, value: Any) -> None:
    """Refuse a tensor that remembers how it was computed, such as a hidden state that is not detached.

    Raises:
        UsageError: it would come back as a number that nothing leads to.
    """
    members = value if type(value) in (tuple, list) else (value,)
    # Paddle's tensors have a grad_fn each, and say by another name whether it leads anywhere.
    if any(getattr(member, "grad_fn", None) and not getattr(member, "stop_gradient", False) for member in members):
        raise UsageError(
            problem=f"run.state.{name} still has the graph that it was computed with, which no checkpoint can hold.",
            remedy=f"Detach it where the step ends, as training by pieces does: run.state.{name} = {name}.detach().",
        )


class Averages(Mapping[str, float]):
    """Means over the steps of an epoch, which go on where they were when the run is resumed.

    ::

        for x, y in run.batches(loader):
            ...
            run.average(loss=loss, accuracy=accuracy)
            run.step(loss=loss)
        run.log(**run.average)              # or run.average.loss

    Each call weighs by the samples of the batch; `weight=` says otherwise. `run.epochs` begins anew with each epoch;
    in a loop over `run.steps`, `run.average.reset()` does. Nothing waits for the device until a mean is read.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._means: dict[str, MeanLike] = {}
        self._pending: list[tuple[str, Any, float]] = []  # since the last mark
        self._read = False  # were they added, for somebody read a mean before the mark?
        self.samples: int | None = None  # of the batch at hand

    def __call__(self, *, weight: float | None = None, **values: Any) -> None:
        """Count numbers, or tensors of one number, in the means of their names. `weight`: of this call, by default the
        samples of the batch that `run.batches` gave last, or 1 where their number is not known."""
        share = float(self.samples or 1) if weight is None else float(weight)
        for name, value in values.items():
            self._pending.append((name, value.detach() if hasattr(value, "detach") else value, share))

    def __getitem__(self, name: str) -> float:
        self._add()
        found = self._means[name].value()
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        self._add()
        return iter(self._means)

    def __len__(self) -> int:
        self._add()
        return len(self._means)

    def __getattr__(self, name: str) -> float:
        if not name.startswith("_") and name in self:
            return self[name]
        raise AttributeError(f"Nothing has been averaged as {name!r} in this epoch: call run.average({name}=…) first.")

    def reset(self) -> None:
        """Begin anew, with nothing."""
        self._means, self._pending = {}, []

    def mark(self) -> None:
        """The training is between two steps: what was counted stays counted."""
        if self._pending:
            self._add()
        self._read = False

    def rewind(self) -> str | None:
        """Forget what was counted since the last mark; or say why that cannot be, in a clause."""
        self._pending = []
        return "a mean of run.average was read in the middle of the step" if self._read else None

    def state_dict(self) -> dict[str, Any]:
        """Each mean's state."""
        return {name: mean.state_dict() for name, mean in self._means.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.reset()
        self._read = False
        for name, each in state.items():
            mean = self._means[name] = self._framework.mean(each["sum"])
            mean.load_state_dict(each)

    def _add(self) -> None:
        pending, self._pending = self._pending, []
        self._read = self._read or bool(pending)
        for name, value, weight in pending:
            mean = self._means.get(name)
            if mean is None:
                mean = self._means[name] = self._framework.mean(value)
            mean.add(value, weight)

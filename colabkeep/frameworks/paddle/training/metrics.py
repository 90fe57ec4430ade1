"""Metrics of both kinds: functions of output and target, and the objects of `paddle.metric`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import paddle

from colabkeep.frameworks.common.refusals import as_number
from colabkeep.vocabulary.errors import UsageError

__all__ = ["Counted", "counted", "functions"]


class Counted:
    """A `paddle.metric.Metric` over one validation: it counts samples itself, so it is no mean over batches.

    Its state is cleared before and after, so that nothing passes from one validation to the next.
    """

    def __init__(self, name: str, metric: paddle.metric.Metric) -> None:
        self.names = _names(name, metric)
        self._metric = metric

    def reset(self) -> None:
        """Forget what was counted."""
        self._metric.reset()

    def __call__(self, output: Any, target: Any) -> None:
        """Count one batch. Waits for the device: the object counts in NumPy."""
        states = _listed(self._metric.compute(*_listed(output), *_listed(target)))
        self._metric.update(*[_plain(state) for state in states])

    def results(self) -> Iterator[tuple[str, float]]:
        """The numbers so far, by name.

        Raises:
            UsageError: they are not numbers, or not as many as the metric has names.
        """
        found = self._metric.accumulate()
        values = list(found) if isinstance(found, (list, tuple)) else [found]
        if len(values) != len(self.names):
            raise UsageError(
                problem=f"The metric {', '.join(self.names)} gave {len(values)} numbers in validation.",
                remedy="Let its accumulate() return one number for each name of its name().",
            )
        yield from ((name, as_number(name, value)) for name, value in zip(self.names, values, strict=True))


def functions(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Those of the user's metrics that are functions.

    Raises:
        UsageError: one is neither a function nor an object of a metric.
    """
    given = dict(metrics or {})
    for name, metric in given.items():
        kind = metric.__name__ if isinstance(metric, type) else type(metric).__name__
        if isinstance(metric, type) and issubclass(metric, paddle.metric.Metric):
            raise UsageError(
                problem=f"The metric {name!r} is the class {kind}, not an object of it.",
                remedy=f'Make one: metrics={{"{name}": paddle.metric.{kind}()}}.',
            )
        if not callable(metric) and not isinstance(metric, paddle.metric.Metric):
            raise UsageError(
                problem=f"The metric {name!r} is a {kind}.",
                remedy="Pass a function of (output, target) that returns a number, or an object of paddle.metric.",
            )
    return {name: metric for name, metric in given.items() if not isinstance(metric, paddle.metric.Metric)}


def counted(metrics: Mapping[str, Any] | None) -> dict[str, Counted]:
    """Those of the user's metrics that are objects. One that gives several numbers uses its own names for them.

    Raises:
        UsageError: two numbers would have one name.
    """
    given = dict(metrics or {})
    found = {name: Counted(name, metric) for name, metric in given.items() if isinstance(metric, paddle.metric.Metric)}
    taken = ["loss", *(name for name in given if name not in found)]
    taken += [name for metric in found.values() for name in metric.names]
    twice = sorted({name for name in taken if taken.count(name) > 1})
    if twice:
        raise UsageError(
            problem=f"Two numbers of a validation would be called {twice[0]!r}.",
            remedy='Give one metric another name: paddle.metric.Accuracy(topk=(1, 5), name="test").',
        )
    return found


def _names(name: str, metric: paddle.metric.Metric) -> list[str]:
    own = metric.name()
    return [name] if isinstance(own, str) or len(own) == 1 else [str(each) for each in own]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _plain(state: Any) -> Any:
    if not isinstance(state, paddle.Tensor):
        return state
    return (state.astype("float32") if state.dtype == paddle.bfloat16 else state).numpy()  # NumPy has no bfloat16

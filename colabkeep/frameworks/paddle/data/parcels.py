"""Batches on their way out of Paddle's workers and reading thread.

Paddle's queue loses what it was not made for. An exception kills the reading thread, and the training waits for
ever or gets a `SystemError`; a batch without an array ends the epoch; the memory of a `Tensor` may be used again
before it was sent. So a batch leaves with arrays for tensors and, where there is none to send or something
went wrong, inside a `Parcel`. (All three observed with Paddle 3.3.1.)
"""

from __future__ import annotations

import numbers
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from colabkeep.frameworks.common.cargo import Cargo, travels
from colabkeep.frameworks.paddle.data.arrays import as_array

__all__ = ["Guarded", "Posted", "opened", "restructured"]


class LoadingError(Exception):
    """The traceback of an error in a loader's worker, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Failed:
    """What stands for a sample or batch that could not be loaded."""

    def __init__(self, error: Exception) -> None:
        self.trace = traceback.format_exc()
        self.error = error if travels(error) else RuntimeError(f"{type(error).__qualname__}: {error}")


class Parcel:
    """A value that travels beside the arrays of a batch."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Guarded:
    """A data set whose errors are values."""

    def __init__(self, cargo: Cargo, inside: Any) -> None:
        self._cargo = cargo
        self._inside = inside

    def __getitem__(self, index: Any) -> Any:
        if self._cargo.failure is not None:
            return Failed(self._cargo.failure)
        try:
            return self._inside[index]
        except Exception as error:  # noqa: BLE001 - it is raised where the training is
            return Failed(error)

    def __iter__(self) -> Iterator[Any]:
        try:
            if self._cargo.failure is not None:
                raise self._cargo.failure
            yield from self._inside
        except Exception as error:  # noqa: BLE001 - as above
            while True:  # so that even a batch of full size only holds it
                yield Failed(error)

    def __len__(self) -> int:
        return len(self._inside)

    def __getattr__(self, name: str) -> Any:
        # For subclasses of DataLoader that look into their data set. Python's own questions are about this object.
        if name.startswith("__") or name in ("_inside", "_cargo"):
            raise AttributeError(name)
        return getattr(self._inside, name)


class Posted:
    """A collate function that gives batches ready for the way. `abroad`: they leave this process."""

    def __init__(self, collate: Callable[[Any], Any], *, abroad: bool) -> None:
        self._collate = collate
        self._abroad = abroad

    def __call__(self, items: Any) -> Any:
        failed = _failed(items)
        if failed is not None:
            return _parcel(failed)
        try:
            return self._ready(self._collate(items))
        except Exception as error:  # noqa: BLE001 - it is raised where the training is
            return _parcel(Failed(error))

    def _ready(self, value: Any) -> Any:
        arrays = 0

        def leaf(array: Any) -> Any:
            nonlocal arrays
            arrays += 1
            if not self._abroad or isinstance(array, np.ndarray):
                return array
            copy = as_array(array)
            return array if copy is None else copy

        ready = restructured(value, leaf)
        return ready if arrays else _parcel(ready)


def opened(value: Any) -> Any:
    """The batch that was posted.

    Raises:
        Exception: the user's own, where loading the batch failed.
    """
    if type(value) is not list or not value or type(value[0]) is not Parcel:
        return value
    inside = value[0].value
    if isinstance(inside, Failed):
        raise inside.error from LoadingError(inside.trace)
    return inside


def restructured(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A batch in the shape that Paddle's loaders give: lists and dicts, with `leaf` of each array and tensor."""
    if isinstance(value, (np.ndarray, paddle.Tensor)):
        return leaf(value)
    if isinstance(value, (str, bytes, numbers.Number)):
        return value
    if isinstance(value, Mapping):
        return {key: restructured(member, leaf) for key, member in value.items()}
    if isinstance(value, Sequence):
        return [restructured(member, leaf) for member in value]
    return value


def _failed(items: Any) -> Failed | None:
    if isinstance(items, Failed):
        return items
    return next((item for item in items if isinstance(item, Failed)), None) if isinstance(items, list) else None


def _parcel(value: Any) -> list[Any]:
    return [Parcel(value), np.zeros(1, dtype=np.uint8)]

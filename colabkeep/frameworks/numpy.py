"""The reference adapter: models of NumPy arrays, or of plain values only.

A part is any object whose `state_dict` returns arrays and plain values. Arrays are copied at once
into memory that is kept, so a capture is complete when it returns.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from colabkeep.core.settings import Item
from colabkeep.core.state import Capture, Stateful, Tree
from colabkeep.frameworks.base import (
    Boundary,
    Data,
    Exactness,
    Framework,
    Losses,
    MeanLike,
    PartsSettings,
    Remembered,
    Training,
    TrainingOptions,
)
from colabkeep.frameworks.shared.boundary import StreamMarks, opaque_parts, remember_objects
from colabkeep.frameworks.shared.capture import Captures
from colabkeep.frameworks.shared.describe import described
from colabkeep.frameworks.shared.rng import GlobalStreams, NumpyStream, PythonStream
from colabkeep.frameworks.shared.settings import Setup
from colabkeep.frameworks.shared.training import HostLosses, RunningMean, no_loop_for
from colabkeep.frameworks.shared.trees import (
    ArrayLeaves,
    array_leaf,
    child,
    describe_array,
    encode_object,
    missing_parts,
    object_differences,
    rebuild,
    restore_object,
    shortened,
)

__all__ = ["NumpyFramework"]


class NumpyFramework(Framework):
    """Arrays and plain values. NumPy itself is used only if the user imported it."""

    name = "numpy"

    def __init__(self) -> None:
        self._leaves = ArrayLeaves(plain=True)
        self._captures = Captures()
        self._rng = GlobalStreams([PythonStream(), NumpyStream()])

    def owns(self, obj: object) -> bool:
        numpy = sys.modules.get("numpy")
        return numpy is not None and isinstance(obj, (numpy.ndarray, numpy.generic))

    def capture(self, parts: Mapping[str, object]) -> Capture:
        with self._captures.begin() as begun:
            self._leaves.turn()
            for name, target in parts.items():
                begun.parts[name] = encode_object(name, target, self._leaves)
            self._leaves.sweep()
        return begun

    def rehearse(self, parts: Mapping[str, object]) -> Capture:
        return self.capture(parts)

    def check(self, parts: Mapping[str, object], trees: Mapping[str, Tree]) -> Sequence[str]:
        lines = missing_parts(list(parts), list(trees))
        for name in [name for name in parts if name in trees]:
            lines += object_differences(name, parts[name], trees[name]) or _array_differences(name, parts, trees)
        return shortened(lines)

    def restore(self, parts: Mapping[str, object], trees: Mapping[str, Tree]) -> None:
        for name, tree in trees.items():
            restore_object(parts[name], tree, self.native)

    def native(self, tree: Tree) -> Any:
        return rebuild(tree, array_leaf)

    def rng(self) -> Stateful:
        return self._rng

    def boundary(self, parts: Mapping[str, object]) -> Boundary:
        return StreamMarks(self._rng.streams, opaque_parts(parts))

    def settings(self, parts: Mapping[str, object]) -> PartsSettings:
        return Setup({}, digest=str)

    def described(self, value: object) -> Mapping[str, Item]:
        return described(value)

    def remember(self, parts: Mapping[str, object]) -> Remembered:
        return remember_objects(parts)

    def data(self) -> Data:
        from colabkeep.frameworks.shared.iterables import IterableData

        return IterableData()

    def training(self, options: TrainingOptions) -> Training:
        raise no_loop_for(options.model)

    def mean(self, value: object) -> MeanLike:
        return RunningMean()

    def fingerprint(self, parts: Mapping[str, object]) -> Mapping[str, str]:
        numpy = sys.modules.get("numpy")
        return {
            "framework": self.name,
            "python": platform.python_version(),
            "numpy": "not imported" if numpy is None else numpy.__version__,
            "machine": platform.machine(),
        }

    def exactness(self, parts: Mapping[str, object]) -> Exactness:
        numpy = sys.modules.get("numpy")
        version = "" if numpy is None else f"NumPy {numpy.__version__}, "
        processor = f"generation of processor ({platform.machine()})"
        return Exactness(same=f"{version}linear-algebra library, number of threads and {processor}")

    def losses(self) -> Losses:
        return HostLosses()


def _array_differences(name: str, parts: Mapping[str, Any], trees: Mapping[str, Tree]) -> list[str]:
    """Names, shapes and dtypes of a model's arrays. Other parts may hold arrays that grow."""
    if name != "model":
        return []
    then, now = dict(_arrays(trees[name]["state"], "")), dict(_arrays(parts[name].state_dict(), ""))
    return [
        f"{name}: {path} was {then.get(path, 'not there')}, and is {now.get(path, 'not there')} now."
        for path in dict.fromkeys([*then, *now])
        if then.get(path) != now.get(path)
    ]


def _arrays(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Each array of a live state or a stored tree: its path, and its shape and dtype in words."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _arrays(member, child(path, key))
    elif isinstance(value, (list, tuple)):
        for i, member in enumerate(value):
            yield from _arrays(member, f"{path}[{i}]")
    elif described := describe_array(value):
        yield path, described

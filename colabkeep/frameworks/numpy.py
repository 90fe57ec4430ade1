"""The reference adapter: models of NumPy arrays, or of plain values only.

A part is any object whose `state_dict` returns arrays and plain values. Arrays are copied at once
into memory that is kept, so a capture is complete when it returns.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from colabkeep.frameworks.arrays import ArrayLeaves, array_leaf
from colabkeep.frameworks.base import Boundary, Data, Training, TrainingOptions
from colabkeep.frameworks.captures import Captures
from colabkeep.frameworks.marks import StreamMarks
from colabkeep.frameworks.objects import encode_object, missing_parts, object_differences, restore_object, shortened
from colabkeep.frameworks.randomness import NumpyStream, PythonStream, Streams
from colabkeep.frameworks.trees import rebuild
from colabkeep.vocabulary.errors import UsageError
from colabkeep.vocabulary.state import Capture, Stateful, Tree
from colabkeep.vocabulary.world import SoloWorld, World

__all__ = ["NumpyFramework"]


class NumpyFramework:
    """Arrays and plain values. NumPy itself is used only if the user imported it."""

    name = "numpy"

    def __init__(self) -> None:
        self._leaves = ArrayLeaves(plain=True)
        self._captures = Captures()
        self._rng = Streams([PythonStream(), NumpyStream()])

    def owns(self, obj: object) -> bool:
        numpy = sys.modules.get("numpy")
        return numpy is not None and isinstance(obj, (numpy.ndarray, numpy.generic))

    def capture(self, parts: Mapping[str, object]) -> Capture:
        with self._captures.begin() as begun:
            self._leaves.turn()
            for name, target in parts.items():
                begun.trees[name] = encode_object(name, target, self._leaves)
            self._leaves.sweep()
        return begun

    def check(self, parts: Mapping[str, object], trees: Mapping[str, Tree]) -> Sequence[str]:
        lines = missing_parts(list(parts), list(trees))
        for name in parts.keys() & trees.keys():
            lines += object_differences(name, parts[name], trees[name])
        return shortened(lines)

    def restore(self, parts: Mapping[str, object], trees: Mapping[str, Tree]) -> None:
        for name, tree in trees.items():
            restore_object(parts[name], tree, self.native)

    def native(self, tree: Tree) -> Any:
        return rebuild(tree, array_leaf)

    def rng(self) -> Stateful:
        return self._rng

    def boundary(self, parts: Mapping[str, object]) -> Boundary:
        return StreamMarks(self._rng.streams)

    def data(self) -> Data:
        from colabkeep.frameworks.iterables import IterableData

        return IterableData()

    def training(self, options: TrainingOptions) -> Training:
        raise UsageError(
            problem="resumable_fit has no training loop for models made of NumPy arrays.",
            remedy="Keep your own loop, inside: with colabkeep.Run(name, model=...) as run: … run.step()",
        )

    def fingerprint(self, parts: Mapping[str, object]) -> Mapping[str, str]:
        numpy = sys.modules.get("numpy")
        return {
            "framework": self.name,
            "python": platform.python_version(),
            "numpy": "not imported" if numpy is None else numpy.__version__,
            "machine": platform.machine(),
        }

    def exactness(self, parts: Mapping[str, object]) -> str:
        return (
            "Exact: a resumed run gives the same bits as an uninterrupted one on a machine with the same NumPy, "
            "linear-algebra library, number of threads and processor generation; elsewhere the last digits may differ."
        )

    def world(self) -> World:
        return SoloWorld()

"""One recorder for each part, kept from capture to capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paddle import nn
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from colabkeep.frameworks.common.names import ParameterNames
from colabkeep.frameworks.common.objects import encode_object
from colabkeep.frameworks.common.trees import encode
from colabkeep.frameworks.paddle.state.copies import Copies
from colabkeep.frameworks.paddle.state.layers import LayerRecorder
from colabkeep.frameworks.paddle.state.leaves import TensorLeaves
from colabkeep.frameworks.paddle.state.optimizers import OptimizerRecorder
from colabkeep.frameworks.paddle.state.schedulers import scheduler_state
from colabkeep.frameworks.paddle.state.staging import Slot
from colabkeep.frameworks.paddle.state.tensors import Recall
from colabkeep.vocabulary.state import Tree

__all__ = ["ObjectRecorder", "Recorders"]


class ObjectRecorder:
    """Captures whatever tells its own state: schedulers, scalers, random streams, the user's own."""

    def __init__(self, part: str, target: object) -> None:
        self.part = part
        self.target = target
        self._leaves = TensorLeaves(devices=True)

    def record(self, copies: Copies) -> Tree:
        """The object's tree; its tensors are filled when `copies` runs."""
        self._leaves.turn(copies)
        if isinstance(self.target, LRScheduler):
            state = encode(scheduler_state(self.target), self.part, self._leaves)
            tree: Tree = {"kind": "object", "class": type(self.target).__name__, "state": state}
        else:
            tree = encode_object(self.part, self.target, self._leaves)
        self._leaves.sweep()
        return tree


class Recorders:
    """The recorders of all parts, and the names of the parameters that they share."""

    def __init__(self) -> None:
        self.recall = Recall()
        self._layers: dict[str, LayerRecorder] = {}
        self._others: dict[str, OptimizerRecorder | ObjectRecorder] = {}
        self._names = ParameterNames(())

    def record(self, parts: Mapping[str, object], copies: Copies) -> dict[str, Tree]:
        """The trees of all parts; their tensors are filled when `copies` runs.

        Raises:
            NotStorable: a part cannot be kept.
        """
        self._refresh(parts)
        trees = {}
        for name in parts:
            other = self._others.get(name)
            if isinstance(other, OptimizerRecorder):
                trees[name] = other.record(copies, self._names)
            else:
                trees[name] = (other or self._layers[name]).record(copies)
        return trees

    def prepare(self, parts: Mapping[str, object]) -> Iterator[Slot]:
        """Plan for these parts; the slots of layers and optimizers, some of which may be new.

        Raises:
            NotStorable: a part cannot be kept.
        """
        self._refresh(parts)
        for layer in self._layers.values():
            yield from layer.slots()
        for other in self._others.values():
            if isinstance(other, OptimizerRecorder):
                yield from other.slots(self._names)

    def _refresh(self, parts: Mapping[str, object]) -> None:
        """Recorders for exactly these parts; the memory of those that are gone is let go."""
        layers: dict[str, LayerRecorder] = {}
        others: dict[str, OptimizerRecorder | ObjectRecorder] = {}
        renamed = False
        for name, target in parts.items():
            if isinstance(target, nn.Layer):
                layer = self._layers.get(name)
                if layer is None or layer.target is not target:
                    layer, renamed = LayerRecorder(name, target, self.recall), True
                elif layer.refresh():
                    renamed = True
                layers[name] = layer
            else:
                other = self._others.get(name)
                if other is None or other.target is not target:
                    if isinstance(target, Optimizer):
                        other = OptimizerRecorder(name, target, self.recall)
                    else:
                        other = ObjectRecorder(name, target)
                others[name] = other
        if renamed or list(layers) != list(self._layers):
            self._names = ParameterNames((name, layer.parameters()) for name, layer in layers.items())
        self._layers, self._others = layers, others

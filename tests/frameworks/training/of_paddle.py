"""Paddle's words for the tests of the arithmetic."""

from __future__ import annotations

from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.optimizer import LBFGS, SGD

from colabkeep.frameworks.paddle.training import PaddleTraining as Training

__all__ = ["F", "Training", "nn"]

MODEL, OPTIMIZER = "paddle.nn.Layer", "paddle.optimizer.Optimizer"
OPTIMIZERS = ["SGD", "Momentum", "Adam", "AdamW", "RMSProp", "Adagrad", "Adadelta", "Lamb", "Adamax"]
seed, tensor = paddle.seed, paddle.to_tensor


def sgd(model: Any) -> SGD:
    return SGD(0.1, parameters=model.parameters())


def lbfgs(model: Any) -> LBFGS:
    return LBFGS(parameters=model.parameters())


def optimizer(name: str, model: Any) -> paddle.optimizer.Optimizer:
    return getattr(paddle.optimizer, name)(learning_rate=0.1, parameters=model.parameters())


class Closing(SGD):
    """An optimizer of the user's own that must have its closure."""

    def step(self, closure: Any) -> Any:
        return closure()


def closing(model: Any) -> Closing:
    return Closing(parameters=model.parameters())


def accuracy(output: paddle.Tensor, target: paddle.Tensor) -> paddle.Tensor:
    return (output.argmax(1) == target).astype("float32").mean()


def modules(model: nn.Layer) -> list[nn.Layer]:
    return model.sublayers(include_self=True)


def has_graph(tensor: paddle.Tensor) -> bool:
    return not tensor.stop_gradient


def stream() -> Any:
    return [state.__getstate__() for state in paddle.get_rng_state()]

"""The reference adapter against the obligations of `colabkeep.frameworks.base`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from colabkeep.frameworks.base import Framework
from colabkeep.frameworks.numpy import NumpyFramework
from colabkeep.testing.frameworks import FrameworkContract


class Perceptron:
    """A linear model of arrays, trained with momentum on noise."""

    def __init__(self, seed: int, width: int = 5) -> None:
        generator = np.random.default_rng(seed)
        self.weights = generator.normal(size=(3, width))
        self.momentum = np.asfortranarray(np.zeros((3, width), dtype=np.float32))
        self.private = generator
        self.steps = np.int64(0)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    def step(self) -> None:
        noise = np.random.normal(size=self.weights.shape) + random.gauss(0, 1) + self.private.random()
        self.momentum *= 0.9
        self.momentum += noise.astype(np.float32)
        self.weights -= 0.1 * self.momentum
        self.steps += 1


class TestNumpy(FrameworkContract):
    def make_framework(self) -> Framework:
        return NumpyFramework()

    def make_parts(self, seed: int) -> dict[str, Any]:
        np.random.seed(seed)
        random.seed(seed)
        return {"model": Perceptron(seed)}

    def make_other_parts(self) -> dict[str, Any]:
        return {"model": Perceptron(1, width=6)}

    def train(self, parts: Mapping[str, Any], steps: int) -> None:
        for _ in range(steps):
            parts["model"].step()

    def tensor(self, number: float) -> Any:
        return np.asarray(number)

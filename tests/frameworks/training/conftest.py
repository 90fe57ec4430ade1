"""The arithmetic of each framework that is installed is tested by the same sentences."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colabkeep.frameworks.base import Batch, TrainingOptions


@pytest.fixture(scope="session")
def kit(framework_name: str) -> SimpleNamespace:
    """The framework's words, and trainings of a small model made with them."""
    words = importlib.import_module(f"tests.frameworks.training.of_{framework_name}")

    def train_with(**options: Any) -> Any:
        model = options.pop("model", None) or words.nn.Linear(4, 3)
        optimizer = options.pop("optimizer", None) or words.sgd(model)
        return words.Training(TrainingOptions(model=model, optimizer=optimizer, **options))

    def make_training(**options: Any) -> tuple[Any, Any]:
        words.seed(0)
        norm = getattr(words.nn, "BatchNorm1d", None) or words.nn.BatchNorm1D
        nn = words.nn
        model = nn.Sequential(nn.Linear(6, 8), norm(8), nn.Dropout(0.5), nn.Linear(8, 3))
        options = {"loss_fn": words.F.cross_entropy, "precision": "32-true", **options}
        return train_with(model=model, **options), model

    def batches(*sizes: int) -> list[Batch]:
        draw = np.random.default_rng(1)
        pairs = [(draw.standard_normal((n, 6)).astype("float32"), draw.integers(0, 3, n)) for n in sizes]
        return [Batch((words.tensor(x), words.tensor(y)), len(y)) for x, y in pairs]

    def bits(*tensors: Any) -> list[bytes]:
        return [tensor.detach().numpy().tobytes() for tensor in tensors]

    own = {"train_with": train_with, "make_training": make_training, "batches": batches, "bits": bits}
    return SimpleNamespace(**{**vars(words), **own})

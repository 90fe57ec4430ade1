"""A small training with everything in it that breaks a resume, to prove that a part of colabkeep loses none of it.

::

    resumable_fit(**hard_training(workers=2), run_name="r", storage=store)
    assert final_state(store, "r") == what_an_uninterrupted_run_had

An epoch has 42 samples in 11 batches, the last one short. A life of six epochs takes a quarter of a second.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset

from colabkeep._engine.repository import Repository
from colabkeep._engine.restore import load_newest
from colabkeep.session.census import flat
from colabkeep.session.weights import load_weights
from colabkeep.stores import Storage, open_store
from colabkeep.vocabulary.events import Event, StepDone

__all__ = ["SAMPLES", "Consumed", "Noisy", "Tied", "consumed", "final_state", "hard_training", "weights_sha256"]

SAMPLES = 42
_FEATURES = 8
_BATCH = 4

Consumed = Callable[[int, int, list[int]], None]
"""Called after each step with the step, its epoch and the indices of the samples it was made of."""


class Noisy(Dataset[tuple[torch.Tensor, tuple[torch.Tensor, int]]]):
    """Pairs (features, (target, index)), augmented at random from torch, NumPy, `random` and a generator of its own."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self._features = torch.linspace(-1, 1, samples * _FEATURES).reshape(samples, _FEATURES)
        self._own = np.random.default_rng()

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, tuple[torch.Tensor, int]]:
        noise = random.gauss(0, 0.1) + float(np.random.normal(0, 0.1)) + float(self._own.normal(0, 0.1))
        features = self._features[index] + noise + 0.1 * torch.randn(_FEATURES)
        return features, (features.flip(0), index)


class Tied(nn.Module):
    """Two layers that share one weight, with BatchNorm and dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(_FEATURES, _FEATURES)
        self.norm = nn.BatchNorm1d(_FEATURES)
        self.drop = nn.Dropout(0.2)
        self.second = nn.Linear(_FEATURES, _FEATURES)
        self.second.weight = self.first.weight

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Shape (n, 8) → (n, 8)."""
        hidden = self.drop(torch.relu(self.norm(self.first(features))))
        result: torch.Tensor = self.second(hidden)
        return result


class _Witness:
    """The loss, which notes the samples it was computed from; and the observer that passes them on."""

    def __init__(self, heard: Consumed, measured: Callable[[], None]) -> None:
        self._heard = heard
        self._measured = measured
        self._seen: list[int] = []

    def loss(self, output: torch.Tensor, target: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        wanted, index = target
        if output.requires_grad:
            self._seen += index.tolist()
        else:
            self._measured()
        return nn.functional.mse_loss(output, wanted)

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone):
            samples, self._seen = self._seen, []
            self._heard(event.progress.step, event.progress.epoch, samples)


def hard_training(
    *,
    workers: int = 0,
    accumulate: int = 1,
    epochs: int = 6,
    heard: Consumed = lambda *_: None,
    measured: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The arguments of `colabkeep.resumable_fit`, all objects built anew from the same seed.

    `heard` is told of each step, `measured` is called for each batch of a validation.
    """
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    witness = _Witness(heard, measured)
    loader = DataLoader(Noisy(), _BATCH, shuffle=True, num_workers=workers)
    steps = epochs * -(-len(loader) // accumulate)
    return {
        "model": model,
        "train_loader": loader,
        "optimizer": optimizer,
        "loss_fn": witness.loss,
        "val_loader": DataLoader(Noisy(7), _BATCH),
        "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps),
        "scheduler_interval": "step",
        "ema": AveragedModel(model, avg_fn=_follow, use_buffers=True),
        "accumulate_grad_batches": accumulate,
        "gradient_clip_val": 1.0,
        "max_epochs": epochs,
        "callbacks": (witness,),
        "progress": False,
    }


def _follow(average: torch.Tensor, now: torch.Tensor, _: Any) -> torch.Tensor:
    return average.lerp(now.to(average.dtype), 0.1) if average.is_floating_point() else now


def final_state(storage: Storage, run: str) -> dict[str, str]:
    """Path → digest or text of everything in the newest checkpoint of a run, all of its bytes verified.

    Raises:
        AssertionError: a checkpoint was walked past, or there is none.
        NoUsableCheckpoint: none can be used.
    """
    passed: list[tuple[str, str]] = []
    loaded = load_newest(Repository(open_store(storage), run), lambda id, why: passed.append((id, why)))
    assert not passed, passed
    assert loaded is not None, "there is no checkpoint"
    return {path: value for part, tree in loaded.parts.items() for path, value in flat(tree, part)}


def weights_sha256(storage: Storage, run: str) -> str:
    """SHA-256 over names and bytes of the newest weights of a run, model and EMA."""
    digest = hashlib.sha256()
    for part in ("model", "ema"):
        for name, tensor in sorted(load_weights(run, storage=storage, part=part).items()):
            digest.update(f"{part} {name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def consumed(steps: Mapping[int, tuple[int, Iterable[int]]]) -> dict[int, list[int]]:
    """Epoch → the indices of its samples in the order of training; `steps` is step → (epoch, indices)."""
    epochs: dict[int, list[int]] = {}
    for _, (epoch, samples) in sorted(steps.items()):
        epochs.setdefault(epoch, []).extend(samples)
    return epochs

"""A small training with everything in it that breaks a resume, to prove that a part of colabkeep loses none of it.

::

    training = open_training("torch")
    resumable_fit(**training.hard_training(workers=2), run_name="r", storage=store)
    assert final_state(store, "r") == what_an_uninterrupted_run_had

There is one for each framework, made of the same things: tied weights, BatchNorm, dropout, augmentation from four
sources of randomness, loader workers, accumulation, clipping, a schedule that moves with each step, an average of the
weights. An epoch has 42 samples in 11 batches, the last one short. A life of six epochs takes a quarter of a second
with torch, a little more with Paddle.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Mapping
from typing import cast

from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import load_newest
from colabkeep.checkpoint.retention import KeepBest
from colabkeep.session.rehearsal import flat
from colabkeep.session.weights import choose, plain_weights
from colabkeep.stores import Storage, open_store
from tests.trainings.base import BATCH, FEATURES, SAMPLES, Consumed, HardTraining, Witness

__all__ = [
    "BATCH",
    "FEATURES",
    "SAMPLES",
    "Consumed",
    "HardTraining",
    "Witness",
    "consumed",
    "final_state",
    "open_training",
    "weights_sha256",
]


def open_training(framework: str) -> HardTraining:
    """The training of "torch" or "paddle", which is imported here."""
    return cast("HardTraining", importlib.import_module(f"{__name__}.{framework}"))


def final_state(storage: Storage, run: str) -> dict[str, str]:
    """Path → digest or text of everything in the newest checkpoint of a run, all of its bytes verified; but for the
    settings as written, which are the script's and not the training's, and for the samples that were looked at last,
    which goes by the clock.

    Raises:
        AssertionError: a checkpoint was skipped, or there is none.
        NoUsableCheckpoint: none can be used.
    """
    passed: list[tuple[str, str]] = []
    loaded = load_newest(Repository(open_store(storage), run), lambda id, why: passed.append((id, why)))
    assert not passed, passed
    assert loaded is not None, "there is no checkpoint"
    found = {path: value for part, tree in loaded.parts.items() for path, value in flat(tree, part)}
    looked_at = tuple(f"data.state.{name}.{what}" for name in ("train", "val") for what in ("samples", "epoch"))
    return {
        name: value
        for name, value in found.items()
        if name != "settings.state.written" and not name.startswith(looked_at)
    }


def weights_sha256(storage: Storage, run: str) -> str:
    """SHA-256 over names and bytes of the newest weights of a run, model and EMA."""
    digest = hashlib.sha256()
    loaded = choose(Repository(open_store(storage), run), "latest", KeepBest(n=1, monitor="val_loss", mode="min"))
    for part in ("model", "ema"):
        for name, tensor in sorted(plain_weights(loaded, part).items()):
            digest.update(f"{part} {name} {tensor.dtype} {tensor.shape}\n".encode())
            digest.update(tensor.data)
    return digest.hexdigest()


def consumed(steps: Mapping[int, tuple[int, Iterable[int]]]) -> dict[int, list[int]]:
    """Epoch → the indices of its samples in the order of training; `steps` is step → (epoch, indices)."""
    epochs: dict[int, list[int]] = {}
    for _, (epoch, samples) in sorted(steps.items()):
        epochs.setdefault(epoch, []).extend(samples)
    return epochs

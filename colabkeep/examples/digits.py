"""A small convolutional network learns scikit-learn's handwritten digits: the training that `colabkeep demo` kills.

Everything that usually breaks a resume is in it: random augmentation from three libraries, loader workers, dropout,
BatchNorm, momentum, and a schedule that moves with each step. Run as a program, it tells what it does on
stdout, one JSON object per line; ``--resume never|must`` says whether it is the first session::

    python -m colabkeep.examples.digits --storage runs --run-name digits --epochs 9 --workers 1 --resume never
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from typing import Any, TextIO

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import colabkeep
from colabkeep.core.events import EpochDone, Event, Restored, SaveCommitted, StepDone

BATCH_SIZE = 64
HELD_OUT = 5  # every fifth image is for testing


class Digits(Dataset[tuple[torch.Tensor, tuple[int, int]]]):
    """Pairs (image of shape (1, 8, 8), (digit, index)); for training, shifted, faded and made noisy at random."""

    def __init__(self, *, train: bool) -> None:
        images, digits = load_digits(return_X_y=True)
        chosen = (np.arange(len(digits)) % HELD_OUT != 0) == train
        self._images = torch.tensor(images[chosen], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self._digits = [int(digit) for digit in digits[chosen]]
        self._train = train

    def __len__(self) -> int:
        return len(self._digits)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, tuple[int, int]]:
        image = self._images[index]
        if self._train:
            shift = random.choices((-1, 0, 1), k=2)  # noqa: S311  # no secret
            image = torch.roll(image, shift, dims=(1, 2)) * float(np.random.uniform(0.8, 1.2))
            image = image + 0.05 * torch.randn(image.shape)
        return image, (self._digits[index], index)


class Teller:
    """Hears of each step what it was made of, and says it to whoever reads the stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._seen: list[int] = []

    def loss(self, output: torch.Tensor, target: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Cross entropy; the indices of the samples it was computed from are noted."""
        digit, index = target
        if output.requires_grad:  # not in validation
            self._seen += index.tolist()
        return nn.functional.cross_entropy(output, digit)

    def __call__(self, event: Event) -> None:
        """Say what happened, as a line of JSON."""
        if isinstance(event, StepDone):
            at = event.progress
            samples, self._seen = self._seen, []
            self._say("step", step=at.step, epoch=at.epoch, batch=at.batches, of=event.epoch_batches, samples=samples)
        elif isinstance(event, EpochDone):
            self._say("epoch", epoch=event.epoch, accuracy=event.metrics["val_accuracy"])
        elif isinstance(event, SaveCommitted):
            self._say("saved", step=event.progress.step)
        elif isinstance(event, Restored):
            self._say("restored", step=event.progress.step)

    def _say(self, what: str, **details: Any) -> None:
        self._stream.write(json.dumps({"what": what, **details}) + "\n")
        self._stream.flush()


def network() -> nn.Module:
    """Images of shape (n, 1, 8, 8) → scores of shape (n, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    )


def _accuracy(output: torch.Tensor, target: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return (output.argmax(1) == target[0]).float().mean()


def main() -> None:
    """One session of the training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", required=True)
    parser.add_argument("--run-name", required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--resume", required=True)
    words = parser.parse_args()
    torch.set_num_threads(1)  # faster for a net as small as this; and the bits are those of one thread on any machine
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loader = DataLoader(Digits(train=True), BATCH_SIZE, shuffle=True, num_workers=words.workers)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=words.epochs * len(loader))
    teller = Teller(sys.stdout)
    colabkeep.resumable_fit(
        model,
        loader,
        optimizer=optimizer,
        loss_fn=teller.loss,
        val_loader=DataLoader(Digits(train=False), 512),
        metrics={"accuracy": _accuracy},
        scheduler=scheduler,
        scheduler_interval="step",
        max_epochs=words.epochs,
        run_name=words.run_name,
        storage=words.storage,
        resume=words.resume,
        save_every=[1, "10 steps"],
        callbacks=[teller],
        progress=False,
    )


if __name__ == "__main__":
    try:
        main()
    except colabkeep.ColabKeepError as error:
        sys.exit(str(error))

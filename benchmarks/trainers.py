"""What `Resumable` adds to the epochs of other people's trainers: Hugging Face's, Lightning's, Keras's on torch. Each
trains as by default, without saves; in turn with it trains the same one with `Resumable`, which saves as by default."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from epochs import in_turn, saves, terminal
from measuring import Figure, Setting, figure
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

Training = Callable[[Callable[[], None], list[Any]], object]
"""Trains, with these callbacks, and calls the function at the end of each epoch."""

_GOAL = 1.02


def run(setting: Setting) -> list[Figure]:
    """Epochs of the trainer alone and epochs with `Resumable` in turn."""
    torch.set_num_threads(1)
    os.environ["KERAS_BACKEND"] = "torch"
    steps, epochs = (3, 3) if setting.quick else (25, 20)
    found = []
    for what, package, integration, make in (
        ("a small BERT", "transformers", "transformers", _hugging_face),
        ("a small CNN", "pytorch_lightning", "lightning", _lightning),
        ("on torch, a small CNN", "keras", "keras", _keras),
    ):
        if find_spec(package) is None:
            print(f"{package} is not installed: left out", flush=True)
            continue
        name = f"{package} {version(package)}, {what}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a loader without workers, a GPU that is not used
            turns = []
            for _ in range(setting.rounds(3)):
                alone = Beside(make(steps, epochs, setting.folder), epochs)
                turns.append(
                    in_turn(alone.epoch, _with(integration, make(steps, epochs, setting.folder), setting.folder))
                )
                alone.join()
        ratio = [turn.ours[0] / turn.hand[0] for turn in turns]
        counted = (epochs - 1) * steps
        found += [
            figure(f"{name}: a step of the trainer alone", "ms", [turn.hand[0] / counted * 1e3 for turn in turns]),
            figure(f"{name}: Resumable adds", "ms", [(turn.ours[0] - turn.hand[0]) / counted * 1e3 for turn in turns]),
            figure(f"{name}: epochs with Resumable", "times alone", ratio, _GOAL),
            saves(name, turns),
        ]
    return found


class Beside(threading.Thread):
    """A training in a thread of its own, which goes on for one epoch at a time."""

    def __init__(self, training: Training, epochs: int) -> None:
        super().__init__(daemon=True)
        self._training, self._left = training, epochs
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self.start()

    def run(self) -> None:
        self._go.acquire()
        self._training(self._turn, [])

    def epoch(self) -> None:
        """Train one."""
        self._go.release()
        self._done.acquire()

    def _turn(self) -> None:
        self._left -= 1
        self._done.release()
        if self._left:
            self._go.acquire()


def _with(integration: str, training: Training, folder: Path) -> Callable[[Any], None]:
    def fit(observer: Any) -> None:
        kind = import_module(f"colabkeep.integrations.{integration}").Resumable
        keep = kind("epochs", storage=folder / "runs", resume="never", keep_last=1, callbacks=[observer])
        with terminal():
            training(lambda: None, [keep])

    return fit


def _hugging_face(steps: int, epochs: int, folder: Path) -> Training:
    import transformers

    class Ends(transformers.TrainerCallback):
        def __init__(self, turn: Callable[[], None]) -> None:
            self._turn = turn

        def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self._turn()

    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
    )
    model = transformers.BertForSequenceClassification(config)
    data = [
        {"input_ids": torch.randint(0, 1000, (32,)), "labels": torch.tensor(number % 2)} for number in range(steps * 8)
    ]
    args = transformers.TrainingArguments(
        str(folder / "own"), num_train_epochs=epochs, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True
    )

    def train(turn: Callable[[], None], callbacks: list[Any]) -> None:
        transformers.Trainer(model, args, train_dataset=data, callbacks=[*callbacks, Ends(turn)]).train()

    return train


def _lightning(steps: int, epochs: int, folder: Path) -> Training:
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*_layers())

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            loss = cross_entropy(self.net(x), y)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    class Ends(pytorch_lightning.Callback):
        def __init__(self, turn: Callable[[], None]) -> None:
            self._turn = turn

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            self._turn()

    data = TensorDataset(torch.randn(steps * 64, 1, 28, 28), torch.randint(0, 10, (steps * 64,)))

    def train(turn: Callable[[], None], callbacks: list[Any]) -> None:
        trainer = pytorch_lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[*callbacks, Ends(turn)],
        )
        trainer.fit(Module(), DataLoader(data, batch_size=64, shuffle=True))

    return train


def _layers() -> Iterator[nn.Module]:
    yield from (nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2))
    yield from (nn.Flatten(), nn.Linear(32 * 5 * 5, 10))


def _keras(steps: int, epochs: int, _: Path) -> Training:
    import keras
    import numpy as np

    class Ends(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self, turn: Callable[[], None]) -> None:
            super().__init__()
            self._turn = turn

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._turn()

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    x, y = np.random.default_rng(0).normal(size=(steps * 64, 28, 28, 1)).astype("float32"), np.arange(steps * 64) % 10

    def train(turn: Callable[[], None], callbacks: list[Any]) -> None:
        model.fit(x, y, batch_size=64, epochs=epochs, verbose=0, callbacks=[*callbacks, Ends(turn)])

    return train

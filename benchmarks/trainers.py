"""What `Resumable` adds to the epochs of other people's trainers: Hugging Face's, Lightning's, Keras's on torch. Each
trains as by default, without saves; in turn with it trains the same one with `Resumable`, which saves as by default;
and both once more, where the trainer's own checkpoints and those of `Resumable` come after as many steps.

Each trains in the main thread of a new process of its own, for the very same training takes up to a tenth more or less
in another process, or in another thread of one: memory lies elsewhere. That is more than what `Resumable` adds, which
is the same however much a model computes: so it is also measured where a model computes next to nothing. What a save
costs depends on how large a model is: so saves are compared with those of a small model and of a common one, too.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from epochs import terminal
from measuring import Figure, Setting, figure
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from colabkeep.core.events import SaveCommitted

Training = Callable[[Callable[[], None], list[Any]], object]
"""Trains, with these callbacks, and calls the function at the end of each epoch."""

_GOAL = 1.02
# The C library gives memory back and takes it again: in one process 2,300 times in each step, in another one, with the
# very same training, never. That is up to a third of a step. Here both keep what they have.
_KEEP = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_TOP_PAD_": "67108864"}


def run(setting: Setting) -> list[Figure]:
    """Epochs of the trainer alone and epochs with `Resumable` in turn."""
    os.environ["KERAS_BACKEND"] = "torch"
    steps, epochs, rounds = (3, 3, 1) if setting.quick else (100, 4, setting.rounds(3))
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
        every = max(1, steps // 5)
        words = steps, epochs, setting.folder
        tiny, common = partial(make, size="tiny"), partial(make, size="common")
        # A quick look measures nothing, and to begin a trainer takes ten seconds: it begins each once.
        often = [_in_turn(tiny if setting.quick else make, integration, *words, every) for _ in range(rounds)]
        turns = often if setting.quick else [_in_turn(make, integration, *words) for _ in range(rounds)]
        least = often if setting.quick else [_in_turn(tiny, integration, *words) for _ in range(5)]
        # Their steps take longer: fewer are enough.
        large = often if setting.quick else [_in_turn(common, integration, 40, *words[1:], 8) for _ in range(rounds)]
        counted = (epochs - 1) * steps
        alone, added = ([turn[which] / counted * 1e3 for turn in turns] for which in (0, 1))
        nothing = f"{package}, a model that computes next to nothing"
        ten = f"{package} {version(package)}, {what.replace('small ', '')} of 10 million weights"
        ratios = [ours / own for own, ours, _ in large]
        as_often = f"{name}, both save every {every} steps: epochs with Resumable"
        found += [
            figure(f"{name}: a step of the trainer alone", "ms", alone),
            figure(f"{name}: Resumable adds", "ms", [ours - own for own, ours in zip(alone, added, strict=True)]),
            figure(f"{name}: epochs with Resumable", "times alone", [ours / own for own, ours, _ in turns], _GOAL),
            figure(f"{name}: … saves in these epochs", "saves", [turn[2] for turn in turns]),
            figure(f"{nothing}: a step of the trainer alone", "ms", [own / counted * 1e3 for own, _, _ in least]),
            figure(f"{nothing}: Resumable adds", "ms", [(ours - own) / counted * 1e3 for own, ours, _ in least]),
            figure(as_often, "times its own", [ours / own for own, ours, _ in often], 1.0),
            figure(f"{name}: … saves in these epochs", "saves", [turn[2] for turn in often]),
            figure(f"{ten}, both save every 8 steps: epochs with Resumable", "times its own", ratios, 1.0),
            figure(f"{ten}: … saves in these epochs", "saves", [turn[2] for turn in large]),
        ]
    return found


Make = Callable[[int, int, Path, int], Training]
"""Steps of an epoch, epochs, a folder for what it writes, and after how many steps it saves by itself; 0: never. A
"tiny" model computes next to nothing, a "small" one has up to half a million weights, a "common" one ten million."""


def _in_turn(
    make: Make, integration: str, steps: int, epochs: int, folder: Path, every: int = 0
) -> tuple[float, float, int]:
    """Seconds of the trainer alone and of the one with `Resumable`, in all epochs but the first, which warms up; and
    how many saves the second ones hold. `every`: both save after so many steps, the trainer alone by itself."""
    alone, ours = (Beside(make, with_it, steps, epochs, folder, every) for with_it in ("", integration))
    took, saved = [], []
    for _ in range(epochs):
        began = time.perf_counter()
        saved.append(ours.epoch())
        middle = time.perf_counter()
        alone.epoch()
        took.append((time.perf_counter() - middle, middle - began))
    alone.join()
    ours.join()
    own, with_it = zip(*took[1:], strict=True)
    return sum(own), sum(with_it), saved[-1] - saved[0]


class Beside:
    """A training in a process of its own, which goes on for one epoch at a time."""

    def __init__(self, make: Make, integration: str, steps: int, epochs: int, folder: Path, every: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        words = (theirs, make, integration, steps, epochs, folder, every)
        self._process = context.Process(target=_in_turns, args=words)
        os.environ.update(_KEEP)
        self._process.start()
        for name in _KEEP:
            del os.environ[name]
        theirs.close()
        self._pipe.recv()  # it is ready

    def epoch(self) -> int:
        """Train one. Returns how many saves there were so far."""
        self._pipe.send(None)
        return int(self._pipe.recv())

    def join(self) -> None:
        """Wait for its end."""
        self._process.join()


def _in_turns(
    pipe: Connection, make: Make, integration: str, steps: int, epochs: int, folder: Path, every: int
) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # a loader without workers, a GPU that is not used
    training, left, saves = make(steps, epochs, folder, 0 if integration else every), epochs, 0

    def count(event: Any) -> None:
        nonlocal saves
        saves += type(event) is SaveCommitted

    count.steps_from = math.inf  # type: ignore[attr-defined]  # it does not want to hear of steps
    callbacks = []
    if integration:
        kind = import_module(f"colabkeep.integrations.{integration}").Resumable
        words: dict[str, Any] = {"save_every": f"{every} steps"} if every else {}
        callbacks = [kind("epochs", storage=folder / "runs", resume="never", keep_last=1, callbacks=[count], **words)]
    pipe.send(None)
    pipe.recv()

    def turn() -> None:
        nonlocal left
        left -= 1
        pipe.send(saves)
        if left:
            pipe.recv()

    with terminal():
        training(turn, callbacks)


def _hugging_face(steps: int, epochs: int, folder: Path, every: int, *, size: str = "small") -> Training:
    import transformers

    class Ends(transformers.TrainerCallback):
        def __init__(self, turn: Callable[[], None]) -> None:
            self._turn = turn

        def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self._turn()

    width, layers = {"tiny": (8, 1), "small": (128, 2), "common": (384, 6)}[size]
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=4 * width,
    )
    model = transformers.BertForSequenceClassification(config)
    data = [
        {"input_ids": torch.randint(0, 1000, (32,)), "labels": torch.tensor(number % 2)} for number in range(steps * 8)
    ]
    saving: dict[str, Any] = {"save_strategy": "no"}
    if every:
        saving = {"save_strategy": "steps", "save_steps": every, "save_total_limit": 1}
    args = transformers.TrainingArguments(
        str(folder / "own"), num_train_epochs=epochs, report_to=[], use_cpu=True, disable_tqdm=True, **saving
    )

    def train(turn: Callable[[], None], callbacks: list[Any]) -> None:
        transformers.Trainer(model, args, train_dataset=data, callbacks=[*callbacks, Ends(turn)]).train()

    return train


def _lightning(steps: int, epochs: int, folder: Path, every: int, *, size: str = "small") -> Training:
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*_layers(size))

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
        if every:
            callbacks = [pytorch_lightning.callbacks.ModelCheckpoint(folder / "own", every_n_train_steps=every)]
        trainer = pytorch_lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=bool(every),
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[*callbacks, Ends(turn)],
        )
        trainer.fit(Module(), DataLoader(data, batch_size=64, shuffle=True))

    return train


def _layers(size: str) -> Iterator[nn.Module]:
    if size == "tiny":
        yield from (nn.Flatten(), nn.Linear(784, 10))
        return
    yield from (nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2))
    yield nn.Flatten()
    yield from (
        (nn.Linear(32 * 5 * 5, 12_000), nn.ReLU(), nn.Linear(12_000, 10))
        if size == "common"
        else (nn.Linear(32 * 5 * 5, 10),)
    )


def _keras(steps: int, epochs: int, folder: Path, every: int, *, size: str = "small") -> Training:
    import keras
    import numpy as np

    class Ends(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self, turn: Callable[[], None]) -> None:
            super().__init__()
            self._turn = turn

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._turn()

    layers = keras.layers
    computing = [
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
    ]
    model = keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            *([] if size == "tiny" else computing),
            layers.Flatten(),
            *([layers.Dense(12_000, activation="relu")] if size == "common" else []),
            layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    x, y = np.random.default_rng(0).normal(size=(steps * 64, 28, 28, 1)).astype("float32"), np.arange(steps * 64) % 10

    def train(turn: Callable[[], None], callbacks: list[Any]) -> None:
        if every:
            callbacks = [keras.callbacks.BackupAndRestore(folder / "own", save_freq=every)]
        model.fit(x, y, batch_size=64, epochs=epochs, verbose=0, callbacks=[*callbacks, Ends(turn)])

    return train

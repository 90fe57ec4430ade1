"""Keras's own examples, with `Resumable` among their callbacks, killed five times at random steps::

    python -m tests.integrations.keras_long [--kills 5] [--only mnist_convnet] [--epochs 2]

Each is run whole, twice, and then again and again under another name, with SIGKILL in the middle of an epoch; at last
weights, optimizer, metrics, history and random streams have to be the same bits. Data is synthetic, of the examples'
own shape: nothing is downloaded. The backend is that of KERAS_BACKEND; another release of Keras is tried with
``pip install --target FOLDER --no-deps keras==3.5.0`` and FOLDER on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras

from colabkeep.integrations.keras import Resumable

SAMPLES = 1280


class Killed(keras.callbacks.Callback):  # type: ignore[misc]
    """Dies as machines do, behind so many steps of this session."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def pictures() -> tuple[Any, Any]:
    """As many digits as a test can pay for, of MNIST's shape."""
    drawn = np.random.default_rng(0)
    return drawn.random((SAMPLES, 28, 28, 1), dtype="float32"), drawn.integers(0, 10, SAMPLES)


# keras.io/examples/vision/mnist_convnet: the model, the call of compile and that of fit are Keras's own.


def mnist_convnet(callbacks: list[Any], epochs: int) -> Any:
    """Arrays, `validation_split`, Dropout."""
    x_train, y_train = pictures()
    y_train = keras.utils.to_categorical(y_train, 10)
    model = keras.Sequential(
        [
            keras.Input(shape=(28, 28, 1)),
            keras.layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
            keras.layers.MaxPooling2D(pool_size=(2, 2)),
            keras.layers.Conv2D(64, kernel_size=(3, 3), activation="relu"),
            keras.layers.MaxPooling2D(pool_size=(2, 2)),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    return model, model.fit(
        x_train, y_train, batch_size=128, epochs=epochs, validation_split=0.1, callbacks=callbacks, verbose=2
    )


# The same with what such notebooks add: layers that augment, callbacks that wait, a PyDataset.


class Pictures(keras.utils.PyDataset):  # type: ignore[misc]
    """Augmented with NumPy, shuffled between epochs, as in many notebooks."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = pictures()
        self.indices = np.arange(SAMPLES)

    def __len__(self) -> int:
        return SAMPLES // 64

    def __getitem__(self, index: int) -> Any:
        chosen = self.indices[index * 64 : (index + 1) * 64]
        return self.x[chosen] + np.random.normal(0, 0.1, (64, 1, 1, 1)).astype("float32"), self.y[chosen]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.indices)


def augmented(callbacks: list[Any], epochs: int) -> Any:
    """Random layers, BatchNormalization, bfloat16, a schedule, a moving average of the weights, early stopping."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = keras.Sequential(
        [
            keras.Input(shape=(28, 28, 1)),
            keras.layers.RandomTranslation(0.1, 0.1),
            keras.layers.RandomRotation(0.1),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.GaussianNoise(0.1),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10, dtype="float32"),
        ]
    )
    schedule = keras.optimizers.schedules.CosineDecay(1e-2, 100, warmup_target=2e-2, warmup_steps=10)
    model.compile(
        keras.optimizers.AdamW(schedule, use_ema=True, gradient_accumulation_steps=3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(3)],
    )
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True)
    held_out = pictures()[0][:100], pictures()[1][:100]
    return model, model.fit(
        Pictures(), epochs=epochs, shuffle=False, validation_data=held_out, callbacks=[*callbacks, stopping], verbose=2
    )


# keras.io/guides/custom_train_step_in_torch, …_in_jax and …_in_tensorflow, "Going lower-level".


class CustomModel(keras.Model):  # type: ignore[misc]
    """Its `train_step` is the guide's."""

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.mae_metric]

    def train_step(self, *words: Any) -> Any:
        return getattr(self, f"step_in_{keras.backend.backend()}")(*words)

    def step_in_tensorflow(self, data: Any) -> Any:
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}

    def step_in_torch(self, data: Any) -> Any:
        import torch

        x, y = data
        y_pred = self(x, training=True)
        loss = self.loss_fn(y, y_pred)
        self.zero_grad()
        trainable_weights = list(self.trainable_weights)
        loss.backward()
        gradients = [v.value.grad for v in trainable_weights]
        with torch.no_grad():
            self.optimizer.apply(gradients, trainable_weights)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    def compute_loss_and_updates(self, trainable: Any, others: Any, x: Any, y: Any, training: bool = False) -> Any:
        y_pred, others = self.stateless_call(trainable, others, x, training=training)
        return self.loss_fn(y, y_pred), (y_pred, others)

    def step_in_jax(self, state: Any, data: Any) -> Any:
        import jax

        trainable, others, optimizer, metrics = state
        x, y = data
        compute = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (loss, (y_pred, others)), gradients = compute(trainable, others, x, y, training=True)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        logs, updated = {}, []
        for metric in self.metrics:
            values = metrics[len(updated) : len(updated) + len(metric.variables)]
            told = (loss,) if metric.name == "loss" else (y, y_pred)
            values = metric.stateless_update_state(values, *told)
            logs[metric.name] = metric.stateless_result(values)
            updated += values
        return logs, (trainable, others, optimizer, updated)


def custom_train_step(callbacks: list[Any], epochs: int) -> Any:
    """The guide's model and data, with a layer that draws."""
    inputs = keras.Input(shape=(32,))
    hidden = keras.layers.Dropout(0.2)(keras.layers.Dense(32, activation="relu")(inputs))
    model = CustomModel(inputs, keras.layers.Dense(1)(hidden))
    model.compile(optimizer="adam")
    drawn = np.random.default_rng(0)
    x, y = drawn.random((1000, 32), dtype="float32"), drawn.random((1000, 1), dtype="float32")
    return model, model.fit(x, y, epochs=epochs, callbacks=callbacks, verbose=2)


PROGRAMS = {each.__name__: each for each in (mnist_convnet, augmented, custom_train_step)}


def session(name: str, folder: str, epochs: int, kill: int) -> dict[str, str]:
    """Train; what it came to, a hash for each thing."""
    keras.utils.set_random_seed(0)
    keep = Resumable(name, storage=folder, progress=False, save_every="3 steps")
    model, history = PROGRAMS[name]([keep, *([Killed(kill)] if kill else [])], epochs)
    parts = {
        "weights": model.variables,
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }
    found: dict[str, bytes] = {
        part: b"".join(keras.ops.convert_to_numpy(each.value).tobytes() for each in variables)
        for part, variables in parts.items()
    }
    found["history"] = json.dumps([history.epoch, history.history]).encode()
    found["streams"] = repr([random.random(), np.random.rand()]).encode()
    return {part: hashlib.sha256(value).hexdigest()[:16] for part, value in found.items()}


def run(name: str, folder: str, epochs: int, kill: int = 0) -> dict[str, str] | None:
    """A session in a process of its own; None if it was killed."""
    program = [sys.executable, "-m", "tests.integrations.keras_long", "--session", name, folder, str(epochs), str(kill)]
    done = subprocess.run(program, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGKILL:
        return None
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """See the top of this page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", choices=PROGRAMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--session", nargs=4)
    words = parser.parse_args()
    if words.session:
        name, folder, epochs, kill = words.session
        print(json.dumps(session(name, folder, int(epochs), int(kill))))
        return
    chance, bad = random.Random(words.seed), 0
    for name in [words.only] if words.only else PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            whole, twice = (run(name, f"{folder}/{n}", words.epochs) for n in ("whole", "twice"))
            kills = 0
            while kills < words.kills and run(name, f"{folder}/kept", words.epochs, chance.randint(3, 9)) is None:
                kills += 1
            kept = run(name, f"{folder}/kept", words.epochs)
        others = [part for part in whole or {} if (whole or {})[part] != (kept or {}).get(part)]
        bad += bool(others) or whole != twice
        verdict = f"other bits: {', '.join(others)}" if others else "the same bits"
        print(f"{name}, Keras {keras.__version__} on {keras.backend.backend()}: {kills} kills, {verdict}", flush=True)
        if whole != twice:
            print(f"  uninterrupted twice it is not the same either: {whole} {twice}")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()

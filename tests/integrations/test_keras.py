"""`model.fit` of Keras 3 with one callback more: it goes on after a disconnect, and nobody can tell."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import random
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabkeep.core.errors import Incompatible, UnknownArgument, UsageError
from colabkeep.core.events import AlreadyComplete, Event, Noted, RestoredInexactly, RunStarted

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", minversion="3.5")

from colabkeep.integrations.keras import Resumable  # noqa: E402
from colabkeep.integrations.keras_insides import TABLE  # noqa: E402
from tests.trainings import final_state  # noqa: E402

if "torch" in sys.modules:
    sys.modules["torch"].set_num_threads(1)  # several tests share the machine, and each step is tiny
BACKEND = keras.backend.backend()
pytestmark = [
    pytest.mark.torch,  # its backend, unless another one is asked for
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras
]
X = np.random.default_rng(0).random((82, 6, 6, 1), dtype="float32")
Y = np.arange(82) % 3


class Breakage(Exception):
    """What goes wrong on purpose."""


class Breaking(keras.callbacks.Callback):  # type: ignore[misc]
    """Fails behind a step of the training."""

    def __init__(self, step: int = 0) -> None:
        super().__init__()
        self.step, self.steps = step, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self.steps == self.step:
            raise Breakage


class Interrupting(Breaking):
    """Asks for the end of the session: it is saved behind this step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self.steps == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


class Witness(keras.callbacks.Callback):  # type: ignore[misc]
    """What a callback of the user's own hears, and remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.heard.append(["begin", epoch])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        drawn = float(keras.ops.convert_to_numpy(keras.random.normal(())))  # from the seeds that all share
        self.heard.append(["batch", batch, logs["loss"], drawn])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.heard.append(["end", epoch, dict(logs)])


class Augmented(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches drawn from every source of randomness, of samples that are shuffled between epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.order = np.arange(len(X))
        self.names = np.array([f"{number}.png" for number in range(len(X))])
        self.recent = deque(range(9))
        self.own = np.random.default_rng(1)

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        chosen = self.order[index * 10 : index * 10 + 10]
        if index % 2:
            chosen = np.array([int(name.removesuffix(".png")) for name in self.names[index * 10 : index * 10 + 10]])
        chosen[0] = self.order[self.recent[index]]
        noise = np.random.rand() + random.random() + self.own.random()
        return X[chosen] + np.float32(noise), Y[chosen]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)
        np.random.shuffle(self.names)
        self.recent.rotate(2)


class Framed(Augmented):
    """What decides its batches is in an object that no checkpoint can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.frame = memoryview(bytes(range(90)))


class OwnStep(keras.Model):  # type: ignore[misc]
    """A model with a `train_step` of its own, two optimizers and a metric of its own."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole = whole
        self.tracker = keras.metrics.Mean(name="loss")
        self.second = keras.optimizers.SGD(0.01, momentum=0.9)
        self.scale = self.add_weight(shape=(3,), initializer="ones", name="scale")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def call(self, x: Any, training: bool = False) -> Any:
        return self.whole(x, training=training) * self.scale

    def train_step(self, data: Any) -> dict[str, Any]:
        if BACKEND == "tensorflow":
            return self.step_in_tensorflow(data)
        import torch

        x, y = data
        self.zero_grad()
        loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        loss.backward()
        with torch.no_grad():
            body, scale = self.whole.trainable_weights, [self.scale]
            self.optimizer.apply([v.value.grad for v in body], body)
            self.second.apply([v.value.grad for v in scale], scale)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def step_in_tensorflow(self, data: Any) -> dict[str, Any]:
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        body, scale = self.whole.trainable_weights, [self.scale]
        gradients = tape.gradient(loss, [*body, *scale])
        self.optimizer.apply(gradients[:-1], body)
        self.second.apply(gradients[-1:], scale)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def build() -> Any:
    """Augmentation, BatchNormalization and Dropout: each has a state of its own."""
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.RandomFlip("horizontal"),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ]
    )


def fit(
    folder: Path, *more: Any, own: bool = False, words: dict[str, Any] | None = None, rate: float = 0.01, **call: Any
) -> list[Any]:
    """One session; what it came to: weights, history, what a callback heard, the next random numbers."""
    keras.utils.clear_session()
    if more:
        build()  # so that layers have other names than in the uninterrupted session
    keras.utils.set_random_seed(3)
    model = OwnStep(build()) if own else build()
    if own:
        model.build((None, 6, 6, 1))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, **({} if own else {"metrics": ["accuracy"]}))
    events = list[Event]()
    told = {"storage": str(folder / "runs"), "progress": False, "save_every": "2 steps", "callbacks": [events.append]}
    keep, witness = Resumable("net", **{**told, **(words or {})}), Witness()
    data: dict[str, Any] = {"x": X, "y": Y, "batch_size": 8, "validation_data": (X[:20], Y[:20])}
    history = model.fit(**{"epochs": 3, "verbose": 0, **data, **call}, callbacks=[keep, witness, *more])
    everything = [*model.variables, *model.optimizer.variables, *(model.second.variables if own else [])]
    bits = b"".join(keras.ops.convert_to_numpy(each.value).tobytes() for each in everything)
    drawn = [random.random(), np.random.rand(), float(keras.ops.convert_to_numpy(keras.random.normal(())))]
    return [
        hashlib.sha256(bits).hexdigest(),
        history.epoch,
        history.history,
        keep.run.progress.step if keep.run else None,
        witness.heard,
        drawn,
        [each.text for each in events if isinstance(each, Noted)],
    ]


def loader() -> Any:
    """torch's own, with workers that augment nothing and shuffle."""
    torch = pytest.importorskip("torch")
    samples = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True)


def pipeline(*, repeat: bool = False, batch: int = 8) -> Any:
    """One of TensorFlow's, which shuffles anew in each epoch."""
    tf = pytest.importorskip("tensorflow")
    keras.utils.set_random_seed(3)  # the order of a shuffle with a seed depends on that for all, too
    samples = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(30, seed=4).batch(batch).prefetch(2)
    return samples.repeat() if repeat else samples


KINDS: dict[str, dict[str, Any]] = {
    "arrays": {},
    "a PyDataset that shuffles itself": {"x": Augmented, "y": None, "batch_size": None, "shuffle": False},
    "a DataLoader": {"x": loader, "y": None, "batch_size": None, "shuffle": False},
    "short epochs": {"steps_per_epoch": 4, "epochs": 8, "shuffle": "batch"},
    "a tf.data pipeline": {"x": pipeline, "y": None, "batch_size": None, "shuffle": False},
    "a pipeline without an end": {
        "x": functools.partial(pipeline, repeat=True),
        "y": None,
        "batch_size": None,
        "shuffle": False,
        "steps_per_epoch": 4,
        "epochs": 8,
    },
    "a train_step of one's own": {"own": True, "validation_data": None},
}


def made(options: dict[str, Any]) -> dict[str, Any]:
    """A session's own."""
    return {name: value() if name == "x" and callable(value) else value for name, value in options.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_failed_twice_comes_to_the_same(tmp_path: Path, kind: str) -> None:
    """Weights, seeds, history, callbacks and random streams are those of an uninterrupted training, to the bit."""
    if BACKEND != "tensorflow" and "pipeline" in kind:
        pytest.skip(f"not with {BACKEND}")
    if (BACKEND != "torch" and kind == "a DataLoader") or (BACKEND == "jax" and "train_step" in kind):
        pytest.skip(f"not with {BACKEND}")
    whole = fit(tmp_path / "whole", **made(KINDS[kind]))
    for step in (4, 15):  # in the first epoch, and in the second
        with pytest.raises(Breakage):
            fit(tmp_path / "kept", Breaking(step), **made(KINDS[kind]))
    assert fit(tmp_path / "kept", Breaking(), **made(KINDS[kind]))[:-1] == whole[:-1]
    assert whole[3] == sum(line[0] == "batch" for line in whole[4])


def test_what_no_checkpoint_can_hold_of_a_pydataset_is_named(tmp_path: Path) -> None:
    """Its `on_epoch_end` may change that, and nobody could tell."""
    told = fit(tmp_path, x=Framed(), y=None, batch_size=None, shuffle=False, epochs=1)[-1]
    assert [line for line in told if "Framed.frame cannot be stored in a checkpoint: if on_epoch" in line]
    assert not [line for line in told if "Framed.own" in line or "Framed.names" in line]


def test_a_recurrent_layer_goes_on_where_it_was(tmp_path: Path) -> None:
    """With `stateful=True`, the next batch begins with what the last one left in the layer."""
    if BACKEND != "torch":
        pytest.skip("tried on torch")
    found: list[Any] = []
    for folder, step in (("whole", 0), ("kept", 13), ("kept", 0)):
        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        layer = keras.layers.LSTM(4, stateful=True, recurrent_dropout=0.2)
        model = keras.Sequential([keras.Input(batch_shape=(8, 36, 1)), layer, keras.layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        keep = Resumable("net", storage=str(tmp_path / folder), progress=False, save_every="2 steps")
        data = {"x": X[:80].reshape(80, 36, 1), "y": Y[:80], "batch_size": 8, "shuffle": False}
        try:
            model.fit(**data, epochs=2, verbose=0, callbacks=[keep, Breaking(step)])
        except Breakage:
            assert step
            continue
        assert not model.stop_training  # as Keras leaves it
        variables = [*model.variables, *layer.states]
        found.append([keras.ops.convert_to_numpy(each.value).tolist() for each in variables])
    assert found[0] == found[1]


class Holding(keras.callbacks.Callback):  # type: ignore[misc]
    """An average of the weights, a number, a metric, and a model that is trained beside."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.average = keras.models.clone_model(self.model)
        self.average.set_weights(self.model.get_weights())
        self.total = keras.Variable(0.0)
        self.metric = keras.metrics.Mean()
        self.beside = keras.Sequential([keras.Input((36,)), keras.layers.Dense(3)])
        self.beside.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pairs = zip(self.average.get_weights(), self.model.get_weights(), strict=True)
        self.average.set_weights([0.9 * old + 0.1 * new for old, new in pairs])
        self.total.assign_add(logs["loss"])
        self.metric.update_state(logs["loss"])
        self.beside.train_on_batch(X[:8].reshape(8, 36), Y[:8])


class Validated(Augmented):
    """Not all of its samples are in an epoch."""

    def __len__(self) -> int:
        return 2


def test_what_callbacks_hold_of_keras_and_validation_data_go_on(tmp_path: Path) -> None:
    """Models, variables and metrics of callbacks; the order of a PyDataset that shuffles itself after a validation."""
    if BACKEND != "torch":
        pytest.skip("tried on torch")
    found = []
    for folder, step in (("whole", 0), ("kept", 15), ("kept", 0)):
        held = Holding()
        try:
            told = fit(tmp_path / folder, held, Breaking(step), validation_data=Validated())
        except Breakage:
            assert step
            continue
        held_now = [held.average, held.beside, held.beside.optimizer, held.metric]
        variables = [each for holder in held_now for each in holder.variables] + [held.total]
        found.append([told[:-1], [keras.ops.convert_to_numpy(each.value).tolist() for each in variables]])
    assert found[0] == found[1]


def several(folder: Path, kind: str, breaks: int = 0) -> list[Any]:
    """A script that calls `fit` several times on one model, from the top; what it came to. It fails at that step of all
    of them together."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    model, breaking, found = build(), Breaking(breaks), list[Any]()
    fails = keras.callbacks.LambdaCallback(on_train_batch_end=breaking.on_train_batch_end)

    def compiled(rate: float) -> None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])

    def fits(name: str, epochs: int) -> None:
        keep, witness = Resumable(name, storage=str(folder), progress=False, save_every="2 steps"), Witness()
        plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=9.0, factor=0.5)
        told = model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=[keep, witness, plateau, fails])
        drawn = [random.random(), np.random.rand(), float(keras.ops.convert_to_numpy(keras.random.normal(())))]
        found.append([told.epoch, told.history, witness.heard, drawn, int(model.optimizer.iterations)])

    if kind == "frozen, then all of it":
        for trainable in (False, True):
            for layer in model.layers[:3]:
                layer.trainable = trainable
            compiled(0.001 if trainable else 0.01)
            fits("tuned" if trainable else "frozen", 2)
    else:
        compiled(0.01)
        for epoch in range(4):
            fits(f"net-{epoch}", 1)
            model.optimizer.learning_rate = rate(model) * 0.7
    everything = [*model.variables, *model.optimizer.variables]
    return [*found, [keras.ops.convert_to_numpy(each.value).tobytes() for each in everything]]


@pytest.mark.parametrize("kind", ["frozen, then all of it", "an epoch each"])
def test_a_script_that_fits_several_times_comes_to_the_same(tmp_path: Path, kind: str) -> None:
    """With a name for each `fit`, run again from the top: weights, the optimizer that goes from one to the next,
    histories, and what is drawn between them. A `fit` that is complete is passed as if it had just trained."""
    whole = several(tmp_path / "whole", kind)
    for step in (4, 20, 9):  # of what is left to train: in the first one, in the middle, in the last one
        with pytest.raises(Breakage):
            several(tmp_path / "kept", kind, step)
    assert several(tmp_path / "kept", kind) == whole
    assert several(tmp_path / "kept", kind) == whole  # all complete


def test_a_second_fit_of_one_name_says_that_it_trained_nothing(tmp_path: Path) -> None:
    """And what to do: a name for each."""
    events = list[Event]()
    model, callbacks = build(), [events.append]
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for name in ("net", "net", "other"):
        keep = Resumable(name, storage=str(tmp_path), progress=False, callbacks=callbacks)
        model.fit(X, Y, verbose=0, callbacks=[keep])
    (line,) = (each.text for each in events if isinstance(each, Noted) and "trained nothing" in each.text)
    assert line.startswith("This fit trained nothing")
    assert 'Resumable(f"net-{epoch}")' in line
    assert [each.length for each in events if isinstance(each, AlreadyComplete)] == ["epochs"]


def watching(folder: Path) -> list[Any]:
    """What many trainings have among their callbacks. Nothing improves but in the first epoch. One draws."""
    return [
        keras.callbacks.EarlyStopping("loss", mode="min", patience=3, min_delta=9.0, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=9.0, factor=0.5),
        keras.callbacks.ModelCheckpoint(
            folder / "best.weights.h5", "loss", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: random.random() + np.random.rand()),
    ]


def test_what_other_callbacks_know_is_kept_and_a_training_that_one_ended_stays_ended(tmp_path: Path) -> None:
    """The patience of early stopping, its best weights, and a learning rate that went down go on as they were."""
    seen = []
    for folder, breaks in ((tmp_path / "whole", ()), (tmp_path / "kept", (13, 14))):
        folder.mkdir()
        for step in breaks:
            with pytest.raises(Breakage):
                fit(folder, *watching(folder), Breaking(step), epochs=9)
        callbacks = [*watching(folder), Breaking()]
        found = fit(folder, *callbacks, epochs=9)
        stopping, plateau, best = callbacks[:3]
        known = stopping.wait, stopping.best, stopping.stopped_epoch, stopping.min_delta, plateau.best, best.best
        seen.append([*found[:-1], known])
    assert seen[0] == seen[1]
    assert seen[0][1] == [0, 1, 2, 3]  # it ended early
    again = fit(tmp_path / "kept", *watching(tmp_path), Breaking(), epochs=9)
    assert again[1:3] == seen[0][1:3]
    assert again[5] == seen[0][5]  # what is drawn behind it
    assert any("A callback ended this training" in line for line in again[-1])
    more = fit(tmp_path / "kept", *watching(tmp_path), Breaking(), epochs=10)
    assert more[1] == [0, 1, 2, 3, 4]


def test_a_killed_training_comes_to_the_same(tmp_path: Path) -> None:
    """SIGKILL in the middle of an epoch, a fresh process: the same bits."""
    whole = fit(tmp_path / "whole")
    root = Path(__file__).parents[2]
    program = [sys.executable, "-m", "tests.integrations.test_keras", str(tmp_path / "kept"), "16"]
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(root))))  # another Keras may be on it
    done = subprocess.run(program, cwd=root, env={**os.environ, "PYTHONPATH": path}, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL
    assert fit(tmp_path / "kept", Breaking())[:-1] == whole[:-1]


def test_a_training_that_ran_out_of_time_ends_without_another_word(tmp_path: Path) -> None:
    """`max_time` ends `fit` between two batches: no validation, no epoch's end; the next session has both."""
    begun: list[int] = []
    tells = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
    whole = fit(tmp_path / "whole", epochs=1)
    cut = fit(tmp_path / "kept", tells, epochs=1, words={"max_time": 0.001})
    assert [line[0] for line in cut[4]] == ["begin", "batch"]
    assert fit(tmp_path / "kept", tells, epochs=1)[:-1] == whole[:-1]
    assert begun == [0]


def test_data_that_cannot_be_placed_begins_its_epoch_again_and_that_is_said(tmp_path: Path) -> None:
    """A generator's epochs are counted, and no more is promised."""

    def batches() -> Any:
        while True:
            yield X[:8], Y[:8]

    def session(*more: Any, **words: Any) -> list[Any]:
        return fit(tmp_path, *more, x=batches(), y=None, batch_size=None, shuffle=False, steps_per_epoch=4, **words)

    with pytest.raises(Breakage):
        session(Breaking(6))
    told = list[Event]()
    found = session(Breaking(), words={"callbacks": [told.append]})
    assert next(each.exactness for each in told if isinstance(each, RunStarted)) == "mostly"
    assert [line[:2] for line in found[4] if line[0] != "batch"] == [
        [word, epoch] for epoch in range(3) for word in ("begin", "end")
    ]
    lines = [each.text for each in told if isinstance(each, Noted)]
    assert any("begins again at its first batch" in line and "Generator" in line for line in lines)
    assert any("only at the end of each epoch" in line for line in lines)
    assert not any("run.batches" in line for line in lines)  # that is for loops of one's own


@pytest.mark.parametrize("kind", ["a tf.data pipeline", "a pipeline without an end"])
def test_a_pipeline_with_large_buffers_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """They are in no checkpoint; the batches, and the bits, are the same, and what it costs is said."""
    if BACKEND != "tensorflow":
        pytest.skip(f"not with {BACKEND}")
    whole = fit(tmp_path / "whole", **made(KINDS[kind]))
    monkeypatch.setattr("colabkeep.integrations.keras_data.LARGE", 1000)
    for step in (8, 15):
        with pytest.raises(Breakage):
            fit(tmp_path / "kept", Breaking(step), **made(KINDS[kind]))
    found = fit(tmp_path / "kept", Breaking(), **made(KINDS[kind]))
    assert found[:-1] == whole[:-1]
    assert not any("not bit-exact" in line for line in found[-1])
    assert any("own state cannot be stored" in line for line in found[-1])


@pytest.mark.parametrize("kind", ["draws", "calls Python"])
def test_a_pipeline_that_does_not_tell_its_place_begins_its_epoch_again(tmp_path: Path, kind: str) -> None:
    """Numbers of `tf.random` and functions of Python have a state that TensorFlow does not give out."""
    if BACKEND != "tensorflow":
        pytest.skip(f"not with {BACKEND}")
    import tensorflow as tf

    def session(*more: Any) -> list[Any]:
        samples = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
        if kind == "draws":
            samples = samples.map(lambda x, y: (x + tf.random.uniform(()), y))
        else:
            x, y = tf.TensorSpec((None, 6, 6, 1), tf.float32), tf.TensorSpec((None,), tf.int64)
            samples = tf.data.Dataset.from_generator(lambda: samples_of(8), output_signature=(x, y))
            samples = samples.apply(tf.data.experimental.assert_cardinality(11))
        return fit(tmp_path, *more, x=samples, y=None, batch_size=None, shuffle=False)

    with pytest.raises(Breakage):
        session(Breaking(14))
    found = session(Breaking())
    assert [line[1] for line in found[4] if line[0] == "batch"][11:22] == list(range(11))
    assert any("begins again at its first batch" in line and "TFDataset" in line for line in found[-1])


@pytest.mark.parametrize("other", [False, True])
def test_a_pipeline_of_other_data_is_told(tmp_path: Path, other: bool) -> None:
    """As where names of files are listed in another order in each session."""
    if BACKEND != "tensorflow":
        pytest.skip(f"not with {BACKEND}")
    import tensorflow as tf

    told: list[Event] = []
    for session, order in enumerate((1, -1 if other else 1)):
        keras.utils.set_random_seed(3)
        samples = tf.data.Dataset.from_tensor_slices((X[::order], Y[::order])).shuffle(30, seed=4).batch(8)
        words = {"callbacks": [told.append]}
        if session == 0:
            with pytest.raises(SystemExit):
                fit(tmp_path, Interrupting(4), x=samples, y=None, batch_size=None, shuffle=False, words=words)
        else:
            fit(tmp_path, Breaking(), x=samples, y=None, batch_size=None, shuffle=False, words=words)
    assert any(isinstance(each, RestoredInexactly) and "tf.data" in each.reason for each in told) is other


class NotCallable(keras.Model):  # type: ignore[misc]
    """Trained by its own step, and never called: its metrics are made there."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = build()

    def train_step(self, data: Any) -> Any:
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self.whole(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return self.compute_metrics(x, y, y_pred)


@pytest.mark.parametrize("eager", [False, True])
def test_metrics_that_come_with_the_first_step_go_on_or_are_told_to_be_lost(tmp_path: Path, eager: bool) -> None:
    """They are there where the step is traced; else those of the epoch that was cut off are lost, and no weights."""
    if BACKEND != "tensorflow":
        pytest.skip(f"not with {BACKEND}")
    told, found = list[Event](), []
    for folder, step in (("whole", 0), ("kept", 4), ("kept", 0)):
        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        model = NotCallable()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], run_eagerly=eager)
        words: dict[str, Any] = {"storage": str(tmp_path / folder), "progress": False, "callbacks": [told.append]}
        calls = [Resumable("n", **words), Interrupting(step)]
        try:
            history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=calls).history
        except SystemExit:
            assert step
            continue
        weights = [keras.ops.convert_to_numpy(each.value).tolist() for each in model.trainable_variables]
        found.append([weights, None if eager else history])
    assert found[0] == found[1]
    assert (
        sum(isinstance(each, Noted) and "metrics of this epoch have lost their counts" in each.text for each in told)
        == eager
    )


def noisy(**words: Any) -> Any:
    """A model whose layer draws, and counts, as TensorFlow does it; compiled."""
    import tensorflow as tf

    class Noise(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.drawn, self.calls = tf.random.Generator.from_seed(3), tf.Variable(0.0)

        def call(self, x: Any) -> Any:
            self.calls.assign_add(1.0)
            return x + self.drawn.normal((1,)) + 0.01 * self.calls

    model = keras.Sequential([keras.Input((6, 6, 1)), Noise(), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **words)
    return model


@pytest.mark.parametrize("jit", [False, True])
def test_variables_of_tensorflow_that_a_step_uses_go_on(tmp_path: Path, jit: bool) -> None:
    """A `tf.Variable` and a `tf.random.Generator` of a layer are none of the model's variables."""
    if BACKEND != "tensorflow":
        pytest.skip(f"not with {BACKEND}")
    found = []
    for folder, step in (("whole", 0), ("kept", 8), ("kept", 0)):
        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        model = noisy(jit_compile=jit)
        keep = Resumable("n", storage=str(tmp_path / folder), progress=False, save_every="2 steps")
        try:
            model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[keep, Breaking(step)])
        except Breakage:
            assert step
            continue
        noise = model.layers[0]
        weights = [each.numpy().tolist() for each in model.variables]
        found.append([weights, float(noise.calls), noise.drawn.state.numpy().tolist()])
    assert found[0] == found[1]


def test_variables_of_tensorflow_that_are_too_many_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a large model beside the one that is trained."""
    if BACKEND != "tensorflow":
        pytest.skip(f"not with {BACKEND}")
    monkeypatch.setattr("colabkeep.integrations.keras._LARGE", 8)
    told = list[Event]()
    words: dict[str, Any] = {"storage": str(tmp_path), "progress": False, "callbacks": [told.append]}
    noisy().fit(X, Y, batch_size=8, verbose=0, callbacks=[Resumable("n", **words)])
    assert any(isinstance(each, Noted) and "too many to be stored" in each.text for each in told)


def test_a_step_that_draws_from_tf_random_is_not_called_exact(tmp_path: Path) -> None:
    """Nobody is given its state; before the first step a line says so, and names what is kept. A step that is not
    traced is not looked at, which a line says."""
    if BACKEND != "tensorflow":
        pytest.skip(f"not with {BACKEND}")
    import tensorflow as tf

    said: list[Any] = []
    for draw, eager in ((tf.random.normal, False), (keras.random.normal, False), (keras.random.normal, True)):
        keras.utils.clear_session()
        noise = keras.layers.Lambda(lambda x, draw=draw: x + draw((1,)))
        model = keras.Sequential([keras.Input((6, 6, 1)), noise, keras.layers.Flatten(), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=eager)
        told = list[Event]()
        words: dict[str, Any] = {"storage": str(tmp_path), "progress": False, "callbacks": [told.append]}
        model.fit(X, Y, verbose=0, callbacks=[Resumable(f"{len(said)}", **words)])
        started = next(each for each in told if isinstance(each, RunStarted))
        said.append((started.exactness, ["tf.random" in each for each in started.reasons]))
    assert said[0] == ("mostly", [True])
    assert said[1] == ("exact", [])
    assert said[2] == ("mostly", [True])


def validated(kind: str) -> Any:
    """What a training is validated on, where one validation depends on those before it."""
    tf = pytest.importorskip("tensorflow")
    samples = tf.data.Dataset.from_tensor_slices((X[:50], Y[:50])).shuffle(50, seed=7).batch(8)
    if kind == "a pipeline that draws":
        return samples.map(lambda x, y: (x + tf.random.uniform(()), y))
    return samples.repeat() if kind == "a pipeline without an end" else samples


@pytest.mark.parametrize("kind", ["a pipeline", "a pipeline without an end", "all of a pipeline"])
def test_a_validation_pipeline_shuffles_as_it_would_have(tmp_path: Path, kind: str) -> None:
    """Each validation has another order, and, with `validation_steps`, other samples."""
    if BACKEND == "torch":
        pytest.skip("the tests of that backend have no TensorFlow")
    call: dict[str, Any] = {"validation_steps": 7 if kind.startswith("all") else 3, "validation_batch_size": None}
    whole = fit(tmp_path / "whole", validation_data=validated(kind), **call)
    for step in (15, 28):
        with pytest.raises(Breakage):
            fit(tmp_path / "kept", Breaking(step), validation_data=validated(kind), **call)
    assert fit(tmp_path / "kept", Breaking(), validation_data=validated(kind), **call)[:-1] == whole[:-1]


@pytest.mark.parametrize("kind", ["a generator", "a pipeline that draws"])
def test_a_validation_that_may_be_another_one_is_told(tmp_path: Path, kind: str) -> None:
    """Before the first step, and "exact" is not said."""
    told = list[Event]()
    if kind == "a generator":
        data: Any = (each for _ in range(99) for each in samples_of(8))
    elif BACKEND == "torch":
        pytest.skip("the tests of that backend have no TensorFlow")
    else:
        data = validated(kind)
    fit(tmp_path, validation_data=data, validation_steps=2, words={"callbacks": [told.append]})
    started = next(each for each in told if isinstance(each, RunStarted))
    assert started.exactness == "mostly"
    assert [each for each in started.reasons if "validate on other batches" in each]


def samples_of(size: int) -> Any:
    """Batches of a generator."""
    for start in range(0, len(X), size):
        yield X[start : start + size], Y[start : start + size]


def test_a_model_that_is_not_built_is_built_for_its_batches(tmp_path: Path) -> None:
    """With TensorFlow too, where Keras builds it in the first step: a checkpoint needs its weights before."""
    found = []
    for step in (0, 13, 0):
        folder = tmp_path / ("whole" if not found else "kept")
        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
        keep = Resumable("net", storage=str(folder), progress=False, save_every="2 steps")
        try:
            history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[keep, Breaking(step)])
        except Breakage:
            found.append(None)
            continue
        found.append([history.history, [keras.ops.convert_to_numpy(each.value).tolist() for each in model.variables]])
    assert found[0] is not None
    assert found == [found[0], None, found[0]]


def test_other_settings_are_an_error_or_hold_from_here_on(tmp_path: Path) -> None:
    """As with `Run`: the message names what differs, and nothing is touched."""
    with pytest.raises(Breakage):
        fit(tmp_path, Breaking(3))
    with pytest.raises(Incompatible, match=r"learning_rate.*0\.01 → 0\.02"):
        fit(tmp_path, Breaking(), rate=0.02)
    with pytest.raises(Incompatible, match="batch_size"):
        fit(tmp_path, Breaking(), batch_size=16)
    last: list[Any] = [keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: rates.append(rate(last[0].model)))]
    rates: list[float] = []
    fit(tmp_path, *last, rate=0.02, epochs=1, words={"on_change": "apply"})
    assert rates == [pytest.approx(0.02)]


def rate(model: Any) -> float:
    """The learning rate in use."""
    return float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))


def test_what_was_measured_is_logged_and_the_run_is_like_any_other(tmp_path: Path) -> None:
    """`monitor` takes the names of Keras, and the weights come out of the storage by the names of the layers."""
    fit(tmp_path, words={"monitor": "val_loss", "save_every": 1}, epochs=1)
    state = final_state(f"{tmp_path}/runs", "net")
    assert any("dense/kernel" in name for name in state)


def test_what_cannot_be_kept_is_refused_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is trained."""
    with pytest.raises(UsageError, match="BackupAndRestore and Resumable"):
        fit(tmp_path, keras.callbacks.BackupAndRestore(tmp_path / "own"))
    with pytest.raises(UnknownArgument, match="save_freq"):
        fit(tmp_path, words={"save_freq": 2})
    with pytest.raises(UsageError, match="not the fit of a Keras model"):
        Resumable("net").on_train_begin()
    with monkeypatch.context() as patched:
        patched.setattr(keras.distribution, "distribution", lambda: "several")
        with pytest.raises(UsageError, match="several devices"):
            fit(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(keras.backend, "backend", lambda: "openvino")
        with pytest.raises(UsageError, match="openvino"):
            fit(tmp_path)
    if BACKEND == "tensorflow":
        tf: Any = importlib.import_module("tensorflow")
        with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
            model = build()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        with pytest.raises(UsageError, match="several devices"):
            model.fit(X, Y, callbacks=[Resumable("net", storage=str(tmp_path / "runs"))])
        trainer = importlib.import_module("keras.src.backend.tensorflow.trainer")
        with monkeypatch.context() as patched:
            patched.setattr(trainer, "TFEpochIterator", object)
            with pytest.raises(UsageError, match="_distributed_dataset"):
                fit(tmp_path)
        with monkeypatch.context() as patched:  # as Keras 3.6 and older
            patched.delattr(trainer.TensorFlowTrainer, "_make_function")
            with pytest.raises(UsageError, match=r"_make_function(.|\n)*with TensorFlow: 3\.7"):
                fit(tmp_path)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("size", "step"), [(11, 7), (27, 7)])
def test_a_session_may_begin_with_the_shorter_last_batch(tmp_path: Path, size: int, step: int) -> None:
    """What TensorFlow compiles must not depend on the shape that came first: it rounds differently then."""
    whole = fit(tmp_path / "whole", batch_size=size)
    with pytest.raises(SystemExit):
        fit(tmp_path / "kept", Interrupting(step), batch_size=size)
    assert fit(tmp_path / "kept", Breaking(), batch_size=size)[:-1] == whole[:-1]


@pytest.mark.parametrize(("place", "name"), [(place, n) for place in TABLE if ":" not in place for n in TABLE[place]])
def test_keras_of_another_make_is_refused(monkeypatch: pytest.MonkeyPatch, place: str, name: str) -> None:
    """A version whose insides differ from those known is not guessed at: no Resumable is made."""
    module = importlib.import_module(place)
    monkeypatch.setattr(module, name, lambda other: None)
    with pytest.raises(UsageError, match=rf"{name}.*Nothing was trained(.|\n)*keep_folder"):
        Resumable("net")
    monkeypatch.delattr(module, name)
    with pytest.raises(UsageError, match=name):
        Resumable("net")


def test_a_model_is_left_as_it_was(tmp_path: Path) -> None:
    """After `fit`, whether it failed or not, the model's methods are its own again, and it trains without a run."""
    model = build()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = set(vars(model))
    for callback in (Breaking(2), Breaking()):
        keep = Resumable("net", storage=str(tmp_path), progress=False, save_every="1 steps")
        try:
            model.fit(X, Y, verbose=0, callbacks=[keep, callback])
        except Breakage:
            assert callback.step
        assert not {"evaluate", "_enumerate_iterator"} & (set(vars(model)) - before)
        assert model._initial_epoch is None
        assert not isinstance(model.train_function, functools.partial)
    assert len(model.fit(X, Y, epochs=2, verbose=0).epoch) == 2


if __name__ == "__main__":

    class Killed(Breaking):
        """Dies as machines do."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            if self.steps == self.step:
                os.kill(os.getpid(), signal.SIGKILL)

    fit(Path(sys.argv[1]), Killed(int(sys.argv[2])))

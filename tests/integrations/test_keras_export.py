"""From a run of `fit` into a file that `keras.models.load_model` or `load_weights` loads by itself."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabkeep.checkpoint.inspect import find_run
from colabkeep.checkpoint.restore import Loaded, load_newest
from colabkeep.core.errors import CheckpointDamaged, CheckpointNotFound, NotStorable, UsageError
from colabkeep.session.open import find_store
from colabkeep.ui.cli import main
from colabkeep.ui.keras_file import packed, unpacked, weights_file
from colabkeep.ui.trainers import to_keras
from tests.long.running import with_modules

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", minversion="3.5")
h5py: Any = pytest.importorskip("h5py")

from colabkeep.integrations.keras import Resumable  # noqa: E402

layers = keras.layers
if "torch" in sys.modules:
    sys.modules["torch"].set_num_threads(1)  # several tests share the machine, and each step is tiny
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras
    pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer"),
]
X = np.random.default_rng(0).random((24, 6), dtype="float32")
Y = X.sum(axis=1, keepdims=True)


def chain(width: int = 4) -> Any:
    """BatchNormalization and Dropout: variables that are not trained, and seeds."""
    inner = [layers.Dense(width, "relu"), layers.BatchNormalization(), layers.Dropout(0.2)]
    return keras.Sequential([keras.Input((6,)), *inner, layers.Dense(1)])


def graph() -> Any:
    """Two layers of one shape beside each other, operations, a regularizer, an initializer."""
    x = keras.Input((6,))
    left, right = layers.Dense(4, "tanh")(x), layers.Dense(4, kernel_regularizer="l2")(x)
    both = keras.ops.relu(left) * 2.0 + layers.Dense(4, kernel_initializer="he_normal")(layers.add([left, right]))
    return keras.Model(x, layers.Dense(1)(both))


def nested() -> Any:
    """Models in a model, two deep."""
    x = keras.Input((6,))
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(6), layers.BatchNormalization()])
    middle = keras.Model(x, layers.Dense(6)(inner(x)))
    return keras.Sequential([keras.Input((6,)), middle, layers.Dropout(0.1), layers.Dense(1)])


def shared() -> Any:
    """A layer and a model that are used twice."""
    x = keras.Input((6,))
    twice, inner = layers.Dense(6, "tanh"), keras.Sequential([keras.Input((6,)), layers.Dense(6), layers.Dense(6)])
    return keras.Model(x, layers.Dense(1)(inner(twice(twice(inner(x))))))


def sequence() -> Any:
    """Recurrence, attention, an embedding."""
    x = keras.Input((6,))
    steps = layers.Embedding(8, 4)(layers.Rescaling(5.0)(x))
    steps = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(steps)
    steps = layers.LayerNormalization()(layers.MultiHeadAttention(2, 3)(steps, steps))
    return keras.Model(x, layers.Dense(1)(layers.GlobalAveragePooling1D()(steps)))


def narrow() -> Any:
    """bfloat16 all over."""
    return keras.Sequential([keras.Input((6,)), layers.Dense(4, dtype="bfloat16"), layers.Dense(1, dtype="bfloat16")])


class Wide(layers.Layer):  # type: ignore[misc]
    """A layer of the user's own."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return x * self.scale


class Halved(layers.Dense):  # type: ignore[misc]
    """A layer that stores other values than it has."""

    def save_own_variables(self, store: Any) -> None:
        store["0"] = keras.ops.convert_to_numpy(self.kernel) / 2


class Own(keras.Model):  # type: ignore[misc]
    """A model of the user's own, with a second optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.wide = chain(), Wide()
        self.second = keras.optimizers.SGD(0.01, momentum=0.9)

    def build(self, shape: Any) -> None:
        self.wide.build((None, 1))

    def call(self, x: Any, training: bool = False) -> Any:
        return self.wide(self.body(x, training=training))


def own() -> Any:
    model = Own()
    model.build((None, 6))
    return model


KINDS: dict[str, Callable[[], Any]] = {each.__name__: each for each in (chain, graph, nested, shared, sequence, narrow)}
if keras.__version__.startswith("3.5."):
    del KINDS["shared"]  # which it cannot load from a file of its own either


def compiled(model: Any, **words: Any) -> Any:
    chosen: dict[str, Any] = {"optimizer": keras.optimizers.Adam(0.01), "loss": "mse", "metrics": ["mae"]}
    model.compile(**{**chosen, **words})
    return model


def train(folder: Path, model: Any, name: str = "net", epochs: int = 2, callbacks: Any = ()) -> Any:
    """A run to its end; the model has the weights of its last checkpoint."""
    keep = Resumable(name, storage=str(folder / "runs"), progress=False)
    model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=[keep, *callbacks])
    return model


def export(folder: Path, out: str, *words: str, name: str = "net") -> int:
    """By the command line."""
    return main(["export", name, str(folder / out), "--storage", str(folder / "runs"), *words])


def values(model: Any) -> list[list[str]]:
    """Shape, type and bits of weights and of the optimizer's variables, in order."""
    if hasattr(model, "jax_state_sync"):  # in the middle of a fit
        model.jax_state_sync()
    arrays = [keras.ops.convert_to_numpy(each.value) for each in (*model.weights, *model.optimizer.variables)]
    return [[str(each.shape), str(each.dtype), each.tobytes().hex()] for each in arrays]


def answers(model: Any) -> str:
    """What it predicts, to the bit."""
    return np.asarray(keras.ops.convert_to_numpy(model(X))).tobytes().hex()


LOADS = """
import json, sys
from tests.integrations.test_keras_export import answers, keras, values
found = {}
for name in sys.argv[2:]:
    model = keras.models.load_model(name)
    found[name] = [answers(model), values(model)]
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A trained model of each kind, its file, and what a fresh process found in it."""
    folder, files, known = tmp_path_factory.mktemp("exported"), [], {}
    for kind, make in KINDS.items():
        make()  # so that layers have other names than in the process that loads
        keras.utils.set_random_seed(1)
        scaled = {"optimizer": keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())} if kind == "graph" else {}
        model = train(folder, compiled(make(), **scaled), kind)
        assert export(folder, f"{kind}.keras", name=kind) == 0
        files.append(str(folder / f"{kind}.keras"))
        known[kind] = [answers(model), values(model)]
    program = [sys.executable, "-c", LOADS, str(folder / "found.json"), *files]
    subprocess.run(program, env=with_modules(), timeout=240, check=True)
    found = json.loads((folder / "found.json").read_text())
    return folder, {kind: [known[kind], found[str(folder / f"{kind}.keras")]] for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_load_model_has_the_trained_model_in_a_fresh_process(exported: tuple[Path, Any], kind: str) -> None:
    """Predictions, weights and the optimizer, to the bit."""
    known, found = exported[1][kind]
    assert found == known


@pytest.mark.parametrize("out", ["net.keras", "net.weights.h5"])
def test_a_file_that_was_exported_begins_another_run(tmp_path: Path, out: str) -> None:
    """With its weights and its optimizer."""
    trained = train(tmp_path, compiled(chain()))
    assert export(tmp_path, out) == 0
    model, began = compiled(chain()), list[Any]()
    begins = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs=None: began.append(values(model)))
    keep = Resumable("next", resume_from=tmp_path / out, storage=str(tmp_path / "runs"), progress=False)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[keep, begins])
    assert began[0] == values(trained)


def test_a_file_is_as_keras_itself_would_have_saved_it(tmp_path: Path) -> None:
    """The same description, the same arrays under the same names."""
    trained = train(
        tmp_path, compiled(nested(), optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()))
    )
    assert export(tmp_path, "ours.keras") == 0
    trained.save(tmp_path / "theirs.keras")
    ours, theirs = (read(tmp_path / f"{name}.keras") for name in ("ours", "theirs"))
    assert ours == theirs


def read(file: Path) -> tuple[Any, dict[str, bytes], str]:
    """Description, arrays by name, version of Keras."""
    arrays: dict[str, bytes] = {}

    def take(name: str, each: Any) -> None:
        arrays[name] = f"{each.dtype}".encode() + each[()].tobytes() if hasattr(each, "dtype") else b"a group"

    with zipfile.ZipFile(file) as whole:
        with whole.open("model.weights.h5") as content, h5py.File(content) as opened:
            opened.visititems(take)
        config = comparable(json.loads(whole.read("config.json")), {})
        return config, arrays, json.loads(whole.read("metadata.json"))["keras_version"]


def comparable(config: Any, ids: dict[int, int]) -> Any:
    """Objects of two sessions have other ids: they are numbered as they come. Of the learning rate Keras writes the
    latest, which is among the values too; and of an optimizer where it is for the backend."""
    if isinstance(config, list):
        return [comparable(each, ids) for each in config]
    if not isinstance(config, dict):
        return config
    left = {"learning_rate", *(("module", "registered_name") if "Adam" in str(config.get("class_name")) else ())}
    return {
        key: ids.setdefault(value, len(ids)) if key == "shared_object_id" else comparable(value, ids)
        for key, value in config.items()
        if key not in left
    }


def test_a_run_that_was_stopped_is_exported_as_far_as_it_came(tmp_path: Path) -> None:
    """An older checkpoint too, and the optimizer has the steps of that one."""
    events = list[Any]()
    keep = Resumable(
        "net",
        storage=str(tmp_path / "runs"),
        progress=False,
        save_every="2 steps",
        keep_last=9,
        callbacks=[events.append],
    )
    model = compiled(chain())
    at = list[Any]()
    ends = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs=None: at.append(values(model)))
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[keep, ends])
    saved = {each.progress.step: each.checkpoint for each in events if type(each).__name__ == "SaveCommitted"}
    step = min(saved)
    assert 0 < step < len(at)
    assert export(tmp_path, "early.keras", "--which", saved[step]) == 0
    assert values(keras.models.load_model(tmp_path / "early.keras")) == at[step - 1]


def test_a_model_of_ones_own_has_its_weights_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A .keras would need its code: the message says what goes without, which is loaded by the model itself."""
    trained = own()

    def build(batch: int, logs: Any = None) -> None:  # as a train_step of one's own may, at its first step
        if not trained.second.built:
            trained.second.build(trained.wide.trainable_variables)
            trained.second.variables[-1].assign([3.0])

    train(tmp_path, compiled(trained), callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=build)])
    assert export(tmp_path, "net.keras") == 2
    told = capsys.readouterr().err
    assert "Own" in told
    assert "colabkeep export net net.weights.h5" in told
    assert not (tmp_path / "net.keras").exists()
    assert export(tmp_path, "net.weights.h5") == 0
    model = compiled(own())
    model.optimizer.build(model.trainable_variables)
    model.second.build(model.wide.trainable_variables)
    model.load_weights(tmp_path / "net.weights.h5")
    assert [values(model), answers(model)] == [values(trained), answers(trained)]
    assert keras.ops.convert_to_numpy(model.second.variables[-1]) == [3.0]


def test_functions_of_ones_own_are_not_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No byte code is kept. A loss of one's own goes without: the model is there, and not compiled."""

    def loss(true: Any, found: Any) -> Any:
        return keras.ops.mean((true - found) ** 2)

    trained = train(tmp_path, compiled(chain(), loss=loss, metrics=[]), "loss")
    assert export(tmp_path, "loss.keras", name="loss") == 0
    assert "a part of compile is your own: loss." in capsys.readouterr().out
    model = keras.models.load_model(tmp_path / "loss.keras")
    assert not model.compiled
    assert answers(model) == answers(trained)
    train(tmp_path, compiled(chain(), loss=lambda true, found: true - found, metrics=[]), "lambda", epochs=1)

    def relu(x: Any) -> Any:  # Keras would find its own by this name
        return x * 2

    doubled = lambda x: x * 2  # noqa: E731
    inner = [layers.Dense(4, activation=relu), layers.Dense(4, activation=doubled), layers.Lambda(doubled)]
    for number, each in enumerate(inner):
        train(
            tmp_path,
            compiled(keras.Sequential([keras.Input((6,)), each, layers.Dense(1)])),
            f"inner-{number}",
            epochs=1,
        )
        assert export(tmp_path, "inner.keras", name=f"inner-{number}") == 2
        assert export(tmp_path, f"{number}.weights.h5", name=f"inner-{number}") == 0
    for each in ("lambda", "inner-1", "inner-2"):
        state: Any = loaded(tmp_path, each).parts["state.keras"]
        file = unpacked(state["state"]["file"])
        assert file["uncompiled" if each == "lambda" else "lacks"] in ("a lambda", "<lambda>", "Lambda")
        assert "4wEAAAAA" not in json.dumps(file)  # as byte code begins


def test_a_layer_that_stores_other_values_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file is written that would hold others than Keras's own has."""
    train(tmp_path, compiled(keras.Sequential([keras.Input((6,)), Halved(1)])), epochs=1)
    assert export(tmp_path, "net.weights.h5") == 2
    assert "layers/halved/vars/0" in capsys.readouterr().err
    assert not (tmp_path / "net.weights.h5").exists()


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="a layer of torch's")
def test_no_pickle_is_made_of_a_layer_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras would describe it by one."""
    torch = sys.modules["torch"]
    monkeypatch.setattr(torch, "save", None)
    inner = layers.TorchModuleWrapper(torch.nn.Linear(6, 6))
    train(tmp_path, compiled(keras.Sequential([keras.Input((6,)), inner, layers.Dense(1)])), epochs=1)
    state: Any = loaded(tmp_path).parts["state.keras"]
    assert unpacked(state["state"]["file"])["lacks"] == "TorchModuleWrapper"


def loaded(folder: Path, name: str = "net") -> Loaded:
    found = load_newest(find_run(find_store(str(folder / "runs")), name), lambda *_: None, marking=False)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """One of a whole run."""
    folder = tmp_path_factory.mktemp("checkpoint")
    train(folder, compiled(chain()), epochs=1)
    return loaded(folder)


def changed(checkpoint: Loaded, act: Callable[[dict[str, Any]], None]) -> Loaded:
    """As somebody else's store might have it."""
    state: Any = checkpoint.parts["state.keras"]
    file = unpacked(state["state"]["file"])
    act(file)
    return with_file(checkpoint, packed(file))


def with_file(checkpoint: Loaded, text: str | None) -> Loaded:
    """None: as older versions saved it."""
    state: Any = checkpoint.parts["state.keras"]
    others = {name: each for name, each in state["state"].items() if name != "file"}
    told = {**state, "state": {**others, "file": text} if text is not None else others}
    return dataclasses.replace(checkpoint, parts={**checkpoint.parts, "state.keras": told})


def module(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"module": name, "class_name": kind, "config": {}, "registered_name": None, **more}


def function(name: str, called: str) -> dict[str, Any]:
    return {"module": name, "class_name": "function", "config": called, "registered_name": called}


HOSTILE: dict[str, Any] = {
    "a Lambda": module("keras.layers", "Lambda"),
    "a lambda": {"class_name": "__lambda__", "config": {"value": ["4wAAAA==", None, None]}},
    "a pickle": module("keras.layers", "TorchModuleWrapper", config={"module": "gASV"}),
    "a saved graph": module("keras.layers", "TFSMLayer", config={"filepath": "/tmp/graph"}),
    "a file that is read": module("keras.layers", "StringLookup", config={"vocabulary": "/etc/passwd"}),
    "a class elsewhere": module("subprocess", "Popen"),
    "a module beside": module("keras_evil.layers", "Dense"),
    "a module below": module("keras.src.utils.torch_utils", "TorchModuleWrapper"),
    "no module": {"class_name": "Dense", "config": {}},
    "a registered name": module("keras.layers", "Dense", registered_name="Custom>Evil"),
    "a name with a path": module("keras.layers", "Dense.__init__"),
    "a class at the top": module("keras", "Function"),
    "a download": function("keras.utils", "get_file"),
    "a loader": function("keras.models", "load_model") | {"module": "keras.saving"},
    "a function of the system": function("os", "system"),
    "a builtin": function("builtins", "eval"),
    "a function of one's own": function("builtins", "loss"),
    "a type": {"class_name": "__typespec__", "spec_name": "X", "module": "os", "config": [], "registered_name": None},
    "no name": module("keras.layers", "x") | {"class_name": ["Dense"]},
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("place", ["at the top", "within", "in compile"])
def test_a_description_that_could_run_code_is_not_written(
    checkpoint: Loaded, tmp_path: Path, kind: str, place: str
) -> None:
    """Wherever in it. Nothing is built to find out."""

    def act(file: dict[str, Any]) -> None:
        config = json.loads(file["config"])
        if place == "at the top":
            config = HOSTILE[kind]
        elif place == "within":
            config["config"]["layers"][1]["config"]["activation"] = {"deep": [HOSTILE[kind]]}
        else:
            config["compile_config"]["loss"] = HOSTILE[kind]
        file["config"] = json.dumps(config)

    with pytest.raises(UsageError, match="may run code"):
        to_keras(changed(checkpoint, act), "model", str(tmp_path / "net.keras"), force=False)
    assert not list(tmp_path.iterdir())
    to_keras(changed(checkpoint, act), "model", str(tmp_path / "net.weights.h5"), force=False)


DAMAGED: dict[str, Callable[[dict[str, Any]], None]] = {
    "no JSON": lambda file: file.update(config="{"),
    "no text": lambda file: file.update(config=7),
    "too deep": lambda file: file.update(config="[" * 100_000 + "]" * 100_000),
    "without an end": lambda file: file.update(more=" " * (1 << 27)),
    "nothing at all": lambda file: file.clear(),
    "a place twice": lambda file: file.update(arrays=file["arrays"] * 2),
    "a place in a place": lambda file: file.update(
        arrays=[["a", *file["arrays"][0][1:]], ["a/b", *file["arrays"][1][1:]]]
    ),
    "a weight that is not there": lambda file: file.update(arrays=[["a", None, "none", False]]),
    "an optimizer that is not there": lambda file: file.update(arrays=[["a", 3, 0, False]]),
    "a value that is not there": lambda file: file.update(arrays=[["a", 0, 999, False]]),
    "too short": lambda file: file.update(arrays=[["a"]]),
    "a place that is none": lambda file: file.update(arrays=[[7, *file["arrays"][0][1:]]]),
}


TEXTS = {
    "no text of that kind": "§",
    "not packed": base64.b64encode(b"{}").decode(),
    "no table": base64.b64encode(zlib.compress(b"[]")).decode(),
}


@pytest.mark.parametrize("kind", [*DAMAGED, *TEXTS])
def test_what_does_not_fit_is_told_and_nothing_is_written(checkpoint: Loaded, tmp_path: Path, kind: str) -> None:
    """Whatever a store holds."""
    bad = changed(checkpoint, DAMAGED[kind]) if kind in DAMAGED else with_file(checkpoint, TEXTS[kind])
    with pytest.raises(CheckpointDamaged, match="Nothing was written"):
        to_keras(bad, "model", str(tmp_path / "net.keras"), force=False)
    assert not list(tmp_path.iterdir())


def test_a_run_of_an_older_colabkeep_says_how_to_come_by_the_file(checkpoint: Loaded, tmp_path: Path) -> None:
    """By running the notebook once more."""
    with pytest.raises(CheckpointNotFound, match="older colabkeep") as caught:
        to_keras(with_file(checkpoint, None), "model", str(tmp_path / "net.keras"), force=False)
    assert "model.save" in caught.value.remedy


def test_names_of_files_are_those_that_keras_knows(checkpoint: Loaded, tmp_path: Path) -> None:
    """Without an ending it is a .keras; a file that is there is left alone; a folder gets one."""

    def write(out: str, part: str = "model", force: bool = False) -> str:
        return Path(to_keras(checkpoint, part, str(tmp_path / out), force=force)["file"]).name

    assert write("net") == "net.keras"
    assert write("") == "model.keras"
    with pytest.raises(UsageError, match="exists already"):
        write("net.keras")
    assert write("net.keras", force=True) == "net.keras"
    with pytest.raises(UsageError, match="not a name by which Keras knows"):
        write("net.h5")
    with pytest.raises(CheckpointNotFound, match="of ema"):
        write("other.keras", part="ema")


def test_a_run_of_a_loop_has_no_file_of_keras(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what to do instead."""
    import colabkeep

    class Part:
        def state_dict(self) -> dict[str, Any]:
            return {"a": np.zeros(3)}

        def load_state_dict(self, state: Any) -> None: ...

    with colabkeep.Run("loop", state={"part": Part()}, storage=tmp_path / "runs", progress=False) as run:
        for _ in run.steps(1):
            pass
    assert export(tmp_path, "net.keras", name="loop") == 3
    assert "Leave out --format" in capsys.readouterr().err


def test_values_that_no_file_of_keras_holds_are_refused() -> None:
    """The eight-bit floats."""
    from colabkeep.core.state import HostTensor

    with pytest.raises(NotStorable, match="F8_E4M3"):
        weights_file([("a", HostTensor(dtype="F8_E4M3", shape=(2,), data=memoryview(bytes(2))), False)])

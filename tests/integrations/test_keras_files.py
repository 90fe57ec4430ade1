"""From a `.keras` or a `.weights.h5` of Keras's own into a run."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabkeep.core.errors import ColabKeepError, Incompatible, UsageError
from colabkeep.core.events import Event, Noted

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", minversion="3.5")
h5py: Any = pytest.importorskip("h5py")

from colabkeep.integrations.keras import Resumable  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras
]
X = np.random.default_rng(0).random((32, 6), dtype="float32")
Y = X.sum(axis=1, keepdims=True)


class First(keras.callbacks.Callback):  # type: ignore[misc]
    """What the model has when the first batch of this session begins."""

    def __init__(self) -> None:
        super().__init__()
        self.bits = list[bytes]()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self.bits:
            self.bits = bits(self.model)


def bits(model: Any) -> list[bytes]:
    """Weights and the optimizer's variables: what Keras stores."""
    return [keras.ops.convert_to_numpy(each.value).tobytes() for each in (*model.weights, *model.optimizer.variables)]


def build(width: int = 4, rate: float = 0.01, kind: str = "Adam") -> Any:
    """A new model, which has begun nothing."""
    layers = [keras.layers.Dense(width), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
    model.compile(getattr(keras.optimizers, kind)(rate), "mse", metrics=["mae"])
    return model


def begin(folder: Path, file: Path, model: Any) -> tuple[list[bytes], list[str]]:
    """One session: what its first batch found, and what was told."""
    first, events = First(), list[Event]()
    keep = Resumable("net", resume_from=file, storage=str(folder / "runs"), progress=False, callbacks=[events.append])
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[keep, first])
    return first.bits, [each.text for each in events if isinstance(each, Noted)]


@pytest.fixture
def trained() -> Any:
    """A model with weights and an optimizer that have moved."""
    model = build()
    model.fit(X, Y, batch_size=8, verbose=0)
    return model


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_a_new_run_begins_with_what_keras_saved(tmp_path: Path, trained: Any, name: str) -> None:
    """Weights and optimizer are those of the file, to the bit; a run that exists goes on with its own."""
    file = tmp_path / name
    (trained.save if name.endswith(".keras") else trained.save_weights)(file)
    model, later = build(rate=0.5), build(rate=0.5)
    began, told = begin(tmp_path, file, model)
    assert began == bits(trained)
    assert [line for line in told if name in line] == [
        f"Begins from the weights in {name}. Epochs are counted from the first, and data is read anew",
        f"{name} has no random streams: those of this session continue",
        f"The learning rate is the one in {name}: 0.01",
    ]
    file.write_bytes(b"no longer a file of Keras")
    _, told = begin(tmp_path, file, later)
    assert bits(later) == bits(model)
    assert any("resumes from its own checkpoint" in line for line in told)


def test_weights_without_an_optimizer_begin_with_a_new_one(tmp_path: Path, trained: Any) -> None:
    """Which is told."""
    file = tmp_path / "model.weights.h5"
    trained.save_weights(file)
    with h5py.File(file, "a") as opened:  # as one has it that was saved before compile
        del opened["optimizer"]
    model = build()
    began, told = begin(tmp_path, file, model)
    assert began[: len(model.weights)] == bits(trained)[: len(model.weights)]
    assert "model.weights.h5 was saved without its optimizer: it starts again" in told


@pytest.mark.parametrize("other", [{"width": 5}, {"kind": "SGD"}])
def test_a_file_of_another_model_or_optimizer_is_refused(tmp_path: Path, trained: Any, other: dict[str, Any]) -> None:
    """Before a weight is touched."""
    file = tmp_path / "model.keras"
    trained.save(file)
    model = build(**other)
    before = [keras.ops.convert_to_numpy(each.value).tobytes() for each in model.weights]
    with pytest.raises(Incompatible, match="another model or optimizer"):
        begin(tmp_path, file, model)
    assert [keras.ops.convert_to_numpy(each.value).tobytes() for each in model.weights] == before


BIAS = "layers/dense/vars/1"


def replaced(make: Callable[[Any, Path], None]) -> Callable[[Path], None]:
    """A file whose bias is something else."""

    def act(file: Path) -> None:
        with h5py.File(file, "a") as opened:
            del opened[BIAS]
            make(opened, file)

    return act


def virtual(opened: Any, file: Path) -> None:
    layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
    layout[:] = h5py.VirtualSource(str(file.with_name("secret.h5")), "x", shape=(4,))
    opened.create_virtual_dataset(BIAS, layout)


def external(opened: Any, file: Path) -> None:
    opened.create_dataset(BIAS, (4,), "f4", external=[(str(file.with_name("secret")), 0, 16)])


def link(opened: Any, file: Path) -> None:
    opened[BIAS] = h5py.ExternalLink(str(file.with_name("secret.h5")), "x")


def soft(opened: Any, file: Path) -> None:
    opened[BIAS] = h5py.SoftLink("/layers/dense/vars/0")


def circle(opened: Any, file: Path) -> None:
    opened[BIAS] = opened["layers"]


def text(opened: Any, file: Path) -> None:
    opened[BIAS] = ["a", "b", "c", "d"]


def huge(opened: Any, file: Path) -> None:
    opened.create_dataset(BIAS, (1 << 40,), "f4")


def packed(opened: Any, file: Path) -> None:
    opened.create_dataset(BIAS, (4,), "f4", maxshape=(None,), chunks=(1 << 24,), compression="gzip")


def named(opened: Any, file: Path) -> None:
    opened[BIAS] = np.dtype("f4")


HOSTILE: dict[str, tuple[Callable[[Any, Path], None], str]] = {
    "a virtual dataset": (virtual, "in another file"),
    "an external dataset": (external, "in another file"),
    "an external link": (link, "a link to another place"),
    "a soft link": (soft, "a link to another place"),
    "a circle": (circle, "in it twice"),
    "text": (text, "no array of numbers"),
    "a type": (named, "no array of numbers"),
    "a huge array": (huge, "1 have another shape"),
    "a packed array": (packed, "in pieces or compressed"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_that_keras_never_writes_is_refused(tmp_path: Path, trained: Any, kind: str) -> None:
    """Nothing outside it is read, and nothing of it is loaded."""
    make, words = HOSTILE[kind]
    file = tmp_path / "model.weights.h5"
    trained.save_weights(file)
    replaced(make)(file)
    model = build()
    before = [keras.ops.convert_to_numpy(each.value).tobytes() for each in model.weights]
    with pytest.raises(ColabKeepError, match=words):
        begin(tmp_path, file, model)
    assert [keras.ops.convert_to_numpy(each.value).tobytes() for each in model.weights] == before


def test_a_run_whose_file_was_refused_begins_with_the_next_one(tmp_path: Path, trained: Any) -> None:
    """It has no checkpoint of its own, so the file that is named next is not passed over."""
    file = tmp_path / "model.keras"
    trained.save(file)
    whole = file.read_bytes()
    place = whole.index(keras.ops.convert_to_numpy(trained.layers[0].kernel).tobytes())
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])  # one bit of a weight
    with pytest.raises(UsageError, match="is damaged"):
        begin(tmp_path, file, build())
    file.write_bytes(whole)
    assert begin(tmp_path, file, build())[0] == bits(trained)


def test_an_archive_that_would_grow_without_end_is_refused(tmp_path: Path, trained: Any) -> None:
    """Before it is unpacked."""
    file = tmp_path / "model.keras"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(80 << 20))
    with pytest.raises(UsageError, match="would take"):
        begin(tmp_path, file, trained)


def test_the_configuration_in_a_file_is_never_read(tmp_path: Path, trained: Any) -> None:
    """It may name code."""
    whole, file = tmp_path / "whole.keras", tmp_path / "model.keras"
    trained.save(whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(file, "w") as target:
        target.writestr("config.json", "no JSON")
        target.writestr("model.weights.h5", source.read("model.weights.h5"))
    assert begin(tmp_path, file, build())[0] == bits(trained)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.h5", b"", "is not a .keras or .weights.h5 file"),
        ("model.keras", b"nothing", "is damaged"),
        ("model.weights.h5", b"nothing", "is damaged"),
    ],
)
def test_what_is_no_file_of_keras_is_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    """With what to do."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=words):
        begin(tmp_path, tmp_path / name, build())

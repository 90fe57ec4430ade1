"""The weights of a run as arrays, wherever they are needed: without the framework, and in what NumPy has."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import colabkeep
from colabkeep.core.errors import CheckpointNotFound
from colabkeep.core.state import HostTensor
from colabkeep.session.weights import widened
from colabkeep.ui.cli import main
from tests.trainings import open_training

BFLOAT16 = np.arange(1 << 16, dtype="<u2")  # every one there is


@pytest.fixture(scope="module")
def trained(framework_name: str, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run "r" of a model that is half in bfloat16, its weights as they were, and where it is kept."""
    folder = tmp_path_factory.mktemp(framework_name)
    words = open_training(framework_name).hard_training(epochs=1)
    model, half = words["model"], open_training(framework_name).hard_training()["model"].first
    # Paddle's own bfloat16() leaves a layer as it is where the processor cannot compute with it.
    half = half.to(dtype="bfloat16") if framework_name == "paddle" else half.bfloat16()
    with colabkeep.Run("r", model=model, state={"half": half}, storage=folder, progress=False) as run:
        run.save(wait=True)
    return SimpleNamespace(folder=folder, model=model.state_dict(), half=half.float().state_dict())


def test_weights_are_had_as_arrays_under_their_names(trained: SimpleNamespace) -> None:
    """Names, shapes, dtypes and bits are those of the model; tied weights appear under each of their names."""
    found = colabkeep.load_weights("r", storage=trained.folder, framework="numpy")
    assert found.keys() == trained.model.keys()
    for name, tensor in trained.model.items():
        array = tensor.numpy()
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name
    assert found["first.weight"].tobytes() == found["second.weight"].tobytes()


def test_bfloat16_becomes_float32_of_the_same_values(trained: SimpleNamespace) -> None:
    """NumPy has no bfloat16, and a wider type changes no value: what the model computes with is what is read."""
    found = colabkeep.load_weights("r", storage=trained.folder, part="state.half", framework="numpy")
    assert {array.dtype for array in found.values()} == {np.dtype("float32")}
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: tensor.numpy().tobytes() for name, tensor in trained.half.items()
    }


def test_every_bfloat16_is_widened_exactly() -> None:
    """Zeros of both signs, subnormals, infinities and each NaN keep their bits in the upper half of a float32."""
    found = widened("w", HostTensor(dtype="BF16", shape=(1 << 16,), data=memoryview(BFLOAT16.tobytes())))
    assert (found.dtype, found.shape) == ("F32", (1 << 16,))
    words = np.frombuffer(found.data, "<u4")
    assert np.array_equal(words >> 16, BFLOAT16)
    assert not (words & 0xFFFF).any()


def test_a_float_of_eight_bits_is_refused_with_a_way_out() -> None:
    """No NumPy type holds it as it is; a framework that has it does."""
    with pytest.raises(colabkeep.ColabKeepError, match="dtype F8_E4M3") as caught:
        widened("w", HostTensor(dtype="F8_E4M3", shape=(1,), data=memoryview(b"\0")))
    assert 'framework="torch"' in caught.value.remedy


def test_arrays_need_no_framework(trained: SimpleNamespace, framework_name: str) -> None:
    """A machine without the one that trained them reads the weights all the same, and is told how."""
    program = f"""
import sys
sys.modules[{framework_name!r}] = None  # as if it were not installed
import colabkeep
try:
    colabkeep.load_weights("r", storage={str(trained.folder)!r})
except colabkeep.ColabKeepError as error:
    print(type(error).__name__, 'framework="numpy"' in error.remedy)
print(*sorted(colabkeep.load_weights("r", storage={str(trained.folder)!r}, framework="numpy")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["MissingDependency True", " ".join(sorted(trained.model))], done.stderr


def test_an_unknown_framework_is_named_with_those_that_are_known(trained: SimpleNamespace) -> None:
    """A misspelt word is no guess."""
    with pytest.raises(colabkeep.ColabKeepError, match="'tensorflow'") as caught:
        colabkeep.load_weights("r", storage=trained.folder, framework="tensorflow")
    assert "numpy" in caught.value.remedy


@pytest.mark.parametrize("part", ["model", "state.half"])
def test_an_export_is_read_by_the_framework_s_own_reader(
    trained: SimpleNamespace, framework_name: str, tmp_path: Path, part: str
) -> None:
    """Names, shapes and values of the run, bfloat16 as bfloat16."""
    out = tmp_path / "model.safetensors"
    assert main(["export", "r", str(out), "--part", part, "--storage", str(trained.folder)]) == 0
    found = importlib.import_module(f"safetensors.{framework_name}").load_file(str(out))
    own = trained.model if part == "model" else trained.half
    assert found.keys() == own.keys()
    for name, tensor in own.items():
        assert list(found[name].shape) == list(tensor.shape), name
        assert ("bfloat16" in str(found[name].dtype)) is (part == "state.half")
        same = found[name].float() if part == "state.half" else found[name]
        assert same.numpy().tobytes() == tensor.numpy().tobytes(), name


def test_an_export_says_who_can_read_it(trained: SimpleNamespace, framework_name: str, tmp_path: Path) -> None:
    """ "pt" for torch; of a Paddle run "np", which PaddleNLP reads as well."""
    out = tmp_path / "model.safetensors"
    assert main(["export", "r", str(out), "--storage", str(trained.folder)]) == 0
    with safetensors.safe_open(out, "np") as file:
        assert file.metadata()["format"] == {"torch": "pt", "paddle": "np"}[framework_name]
    assert sorted(safetensors.numpy.load_file(out)) == sorted(trained.model)


class InArrays:
    """A model of no framework that has models: Keras's on JAX is handed in so."""

    def __init__(self) -> None:
        self.weights = {"dense/kernel": np.arange(6.0).reshape(2, 3), "dense/bias": np.ones(3, np.float32)}

    def state_dict(self) -> dict[str, np.ndarray]:
        return self.weights

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        self.weights = state


def test_a_model_that_gives_its_state_as_arrays_has_weights(tmp_path: Path) -> None:
    """Nothing that is no array is taken for one."""
    model, words = InArrays(), {"storage": tmp_path, "progress": False}
    with colabkeep.Run("r", model=model, state={"other": InNumbers()}, **words) as run:
        run.save(wait=True)
    found = colabkeep.load_weights("r", storage=tmp_path)
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in model.weights.items()
    }
    file = tmp_path / "r.safetensors"
    assert main(["export", "r", str(file), "--storage", str(tmp_path)]) == 0
    assert safetensors.numpy.load_file(file)["dense/kernel"].tolist() == model.weights["dense/kernel"].tolist()
    with pytest.raises(CheckpointNotFound, match=r"no weights in a part 'state\.other'") as caught:
        colabkeep.load_weights("r", storage=tmp_path, part="state.other")
    assert caught.value.remedy == "Parts with weights: model."


class InNumbers:
    """What has a number beside its array."""

    def state_dict(self) -> dict[str, object]:
        return {"array": np.ones(2), "number": 3}

    def load_state_dict(self, state: dict[str, object]) -> None:
        pass

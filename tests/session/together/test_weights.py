"""Weights that were trained in one framework, read in the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import safetensors.numpy
import safetensors.paddle
import safetensors.torch
import torch

import colabkeep
from colabkeep.ui.cli import main
from tests.trainings import open_training


@pytest.fixture(scope="module", params=["torch", "paddle"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The framework and the storage of a short run "r"."""
    folder = tmp_path_factory.mktemp(request.param)
    words = open_training(request.param).hard_training(epochs=1)
    colabkeep.resumable_fit(**words, run_name="r", storage=folder)
    return request.param, folder


def as_arrays(weights: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: tensor if isinstance(tensor, np.ndarray) else tensor.numpy() for name, tensor in weights.items()}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert sorted(one) == sorted(other)
    for name, array in one.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape), name
        assert array.tobytes() == other[name].tobytes(), name


def test_weights_come_as_tensors_of_either_framework(trained: tuple[str, Path]) -> None:
    """The same names, shapes and bits, whoever trained them and whoever asks."""
    _, folder = trained
    kept = colabkeep.load_weights("r", storage=folder)
    assert {"first.weight", "second.weight"} < set(kept)
    for framework, kind in (("torch", torch.Tensor), ("paddle", paddle.Tensor), ("numpy", np.ndarray)):
        weights = colabkeep.load_weights("r", storage=folder, framework=framework)
        assert all(isinstance(tensor, kind) for tensor in weights.values())
        assert_same(as_arrays(weights), as_arrays(kept))


def test_an_exported_file_is_read_by_every_reader(trained: tuple[str, Path], tmp_path: Path) -> None:
    """`colabkeep export` writes one plain file for torch, Paddle and NumPy, tied weights under each of their names."""
    _, folder = trained
    out = tmp_path / "model.safetensors"
    assert main(["export", "r", str(out), "--storage", str(folder)]) == 0
    expected = as_arrays(colabkeep.load_weights("r", storage=folder))
    for reader in (safetensors.torch, safetensors.paddle, safetensors.numpy):
        assert_same(as_arrays(reader.load_file(out)), expected)
    assert expected["first.weight"].tobytes() == expected["second.weight"].tobytes()


def test_a_layer_of_the_other_framework_takes_them_after_a_transposition(trained: tuple[str, Path]) -> None:
    """Nothing is transposed on the way: Paddle's Linear keeps [in, out], torch's [out, in], and users know which."""
    own, folder = trained
    arrays = colabkeep.load_weights("r", storage=folder, framework="numpy")
    features = np.random.default_rng(1).normal(size=(3, 8)).astype("float32")
    theirs = torch.nn.Linear(8, 8)
    turned = arrays["first.weight"].T if own == "paddle" else arrays["first.weight"]
    theirs.load_state_dict({"weight": torch.tensor(turned), "bias": torch.tensor(arrays["first.bias"])})
    layer = open_training(own).Tied()
    kept = colabkeep.load_weights("r", storage=folder)
    (layer.set_state_dict if own == "paddle" else layer.load_state_dict)(kept)
    given = paddle.to_tensor(features) if own == "paddle" else torch.tensor(features)
    np.testing.assert_allclose(theirs(torch.tensor(features)).detach(), layer.first(given).detach().numpy(), rtol=1e-5)

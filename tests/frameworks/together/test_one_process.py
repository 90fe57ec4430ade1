"""torch and Paddle in one process: whichever is imported first, neither disturbs the other's training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
import torch

import colabkeep
from colabkeep.core.errors import UsageError
from colabkeep.frameworks import find_framework

PROGRAM = """
import sys
import warnings
sys.path.append(sys.argv[2])  # the repository
warnings.filterwarnings("error")
for paddle_s_own in ("No ccache found", "When training, we now always track"):
    warnings.filterwarnings("ignore", paddle_s_own, UserWarning)
for name in sys.argv[1].split():
    __import__(name)
import tempfile
import colabkeep
from tests.trainings import open_training, weights_sha256

trainings = {name: open_training(name) for name in sys.argv[1].split()}
for training in trainings.values():
    training.one_thread()

def fit(name, storage, **changes):
    words = {**trainings[name].hard_training(epochs=2, workers=0), **changes}
    colabkeep.resumable_fit(**words, run_name=name, storage=storage, save_every=1)

with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as mixed:
    for name in trainings:
        fit(name, whole)
    for steps in (3, 7, 15, None):  # each goes on a little, in turn
        for name in trainings:
            fit(name, mixed, max_steps=steps)
    for name in trainings:
        print(name, weights_sha256(whole, name) == weights_sha256(mixed, name), weights_sha256(mixed, name))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, list[str]]:
    """What the program says, by the order of import."""
    orders = ("torch paddle", "paddle torch")
    runs = {order: [sys.executable, "-c", PROGRAM, order, str(Path(__file__).resolve().parents[3])] for order in orders}
    return {
        order: subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")[:-1]
        for order, command in runs.items()
    }


def test_trainings_that_take_turns_end_as_if_each_were_alone(told: dict[str, list[str]]) -> None:
    """Two runs go on by a few steps each, one in torch and one in Paddle, and both end with the bits of a whole run."""
    for lines in told.values():
        assert sorted(line.split()[:2] for line in lines) == [["paddle", "True"], ["torch", "True"]]


def test_the_order_of_import_changes_no_bit(told: dict[str, list[str]]) -> None:
    """Paddle before torch or after it: the same weights."""
    one, other = told.values()
    assert sorted(one) == sorted(other)


def test_of_two_mixed_by_mistake_the_wrong_one_is_named(tmp_path: Path) -> None:
    """A beginner's notebook has cells of both: the model decides, and the other is told of."""
    layer, module = paddle.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    adam = paddle.optimizer.Adam(parameters=layer.parameters())
    mixed = [(layer, torch.optim.Adam(module.parameters()), "torch"), (module, adam, "paddle")]
    for model, optimizer, stranger in mixed:
        words = {"optimizer": optimizer, "loss_fn": print, "max_epochs": 1, "storage": tmp_path, "run_name": "r"}
        with pytest.raises(UsageError, match=f"(?s)optimizer is a Adam.*this one is of {stranger}"):
            colabkeep.resumable_fit(model, [], **words)


def test_a_tensor_among_arrays_decides(tmp_path: Path) -> None:
    """Whatever comes first: arrays are stored by every framework, tensors by their own."""
    assert find_framework([np.ones(1), paddle.ones([1])]).name == "paddle"
    assert find_framework([np.ones(1), torch.ones(1)]).name == "torch"

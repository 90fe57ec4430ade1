"""torch and Paddle in one process: whichever is imported first, neither disturbs the other's training."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import warnings
warnings.filterwarnings("error")
for paddle_s_own in ("No ccache found", "When training, we now always track"):
    warnings.filterwarnings("ignore", paddle_s_own, UserWarning)
for name in sys.argv[1].split():
    __import__(name)
import tempfile
import colabkeep
from colabkeep.testing.trainings import open_training, weights_sha256

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
    runs = {order: [sys.executable, "-c", PROGRAM, order] for order in orders}
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

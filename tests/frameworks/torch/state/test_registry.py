"""The right adapter is found, and nothing is imported to find it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from colabkeep.frameworks import FRAMEWORKS, find_framework, open_framework
from colabkeep.frameworks.base import TrainingOptions
from colabkeep.frameworks.numpy import NumpyFramework
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import Keeper
from colabkeep.vocabulary.errors import MissingDependency, UsageError

MODEL = torch.nn.Linear(1, 1)
SGD = torch.optim.SGD(MODEL.parameters(), lr=0.1)


@pytest.mark.parametrize(
    "thing",
    [MODEL, SGD, torch.optim.lr_scheduler.StepLR(SGD, 1), torch.amp.GradScaler("cpu"), torch.ones(1), MODEL.weight],
    ids=lambda thing: type(thing).__name__,
)
def test_torch_is_recognised_by_any_of_its_objects(thing: object) -> None:
    """One object of torch among others is enough."""
    assert isinstance(find_framework([Keeper(), thing]), TorchFramework)


@pytest.mark.parametrize("things", [[], [Keeper()], [np.ones(1)], [3, None]])
def test_plain_objects_are_handled_by_the_reference(things: list[object]) -> None:
    """What no framework owns is arrays and plain values, although torch is imported here."""
    assert isinstance(find_framework(things), NumpyFramework)


def test_no_framework_is_imported_to_recognise_one() -> None:
    """An object cannot come from a package that nobody imported; a bare machine can use the reference."""
    code = (
        "import sys\n"
        "from colabkeep.frameworks import find_framework\n"
        "class Part:\n"
        "    def state_dict(self): return {'a': 1}\n"
        "    def load_state_dict(self, state): pass\n"
        "framework = find_framework([Part()])\n"
        "assert framework.capture({'p': Part(), 'rng': framework.rng()}).finish().parts['p']['state'] == {'a': 1}\n"
        "framework.fingerprint({})\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_each_framework_opens_by_its_name() -> None:
    """Two openings are two adapters: runs do not share memory."""
    for entry in FRAMEWORKS:
        one, other = open_framework(entry.name), open_framework(entry.name)
        assert one.name == entry.name
        assert one is not other


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    """A typo gets the list."""
    with pytest.raises(UsageError, match="torch, numpy"):
        open_framework("tensorflow")


def test_a_framework_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of torch on a machine without torch."""
    monkeypatch.delitem(sys.modules, "colabkeep.frameworks.torch.adapter")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency) as caught:
        open_framework("torch")
    assert "pip install" in caught.value.remedy


def test_the_reference_has_no_training_loop() -> None:
    """It says what to use instead."""
    with pytest.raises(UsageError, match="Run"):
        NumpyFramework().training(TrainingOptions(model=None, optimizer=None))


def test_the_promise_tells_threads_and_instruction_set() -> None:
    """What exactness on a CPU depends on is said, and stored in the fingerprint."""
    framework = TorchFramework()
    facts, promise = framework.fingerprint({"model": MODEL}), framework.exactness({"model": MODEL})
    assert facts["torch"] == torch.__version__
    assert facts["threads"] in promise
    assert facts["cpu capability"] in promise
    assert facts["devices"] == "cpu"
    torch.use_deterministic_algorithms(True)
    try:
        assert framework.fingerprint({})["deterministic algorithms"] == "on"
    finally:
        torch.use_deterministic_algorithms(False)
    assert framework.fingerprint({})["deterministic algorithms"] == "off"

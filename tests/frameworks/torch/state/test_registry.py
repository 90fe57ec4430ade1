"""Torch's objects are recognised, and what their exactness depends on is told."""

from __future__ import annotations

import pytest
import torch

from colabkeep.frameworks import find_framework
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import Keeper

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


def test_the_promise_tells_threads_and_instruction_set() -> None:
    """What exactness on a CPU depends on is said, and stored in the fingerprint."""
    framework = TorchFramework()
    facts, promise = framework.fingerprint({"model": MODEL}), framework.exactness({"model": MODEL}).same
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

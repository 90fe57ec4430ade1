"""Paddle's objects are recognised, and what their exactness depends on is told."""

from __future__ import annotations

import subprocess
import sys

import paddle
import pytest

from colabkeep.frameworks import find_framework
from colabkeep.frameworks.paddle.adapter import PaddleFramework
from colabkeep.frameworks.shared.streams import reachable
from colabkeep.testing.frameworks import Keeper

MODEL = paddle.nn.Linear(1, 1)
RATE = paddle.optimizer.lr.StepDecay(0.1, 1)
SGD = paddle.optimizer.SGD(RATE, MODEL.parameters())


@pytest.mark.parametrize(
    "thing",
    [MODEL, SGD, RATE, paddle.amp.GradScaler(enable=False), paddle.ones([1]), MODEL.weight],
    ids=lambda thing: type(thing).__name__,
)
def test_paddle_is_recognised_by_any_of_its_objects(thing: object) -> None:
    """One object of Paddle among others is enough."""
    assert isinstance(find_framework([Keeper(), thing]), PaddleFramework)


def test_torch_is_never_imported() -> None:
    """On AI Studio it may not even be allowed: a whole save and restore goes without it."""
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); sys.modules['torch'] = None\n"
        "import paddle\n"
        "from colabkeep.frameworks import find_framework\n"
        "model = paddle.nn.Linear(2, 2); framework = find_framework([model])\n"
        "parts = {'model': model, 'rng': framework.rng()}\n"
        "trees = framework.capture(parts).finish().parts\n"
        "assert framework.check(parts, trees) == []\n"
        "framework.restore({'model': model}, {'model': trees['model']})\n"
        "framework.boundary(parts).mark(); framework.fingerprint(parts); framework.exactness(parts)\n"
        "assert sys.modules['torch'] is None and framework.name == 'paddle'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_what_has_no_memory_yet_is_on_no_device(framework: PaddleFramework) -> None:
    """The dropout state of an RNN waits for a forward pass on a GPU: on the CPU the promise is the same without it."""
    parts = {"model": paddle.nn.GRU(2, 2, num_layers=2, dropout=0.1)}
    assert framework.fingerprint(parts)["devices"] == "cpu"
    assert framework.exactness(parts).obstacles == ()


def test_the_promise_tells_threads_and_instruction_set(framework: PaddleFramework) -> None:
    """What exactness on a CPU depends on is said, and stored in the fingerprint."""
    facts, promise = framework.fingerprint({"model": MODEL}), framework.exactness({"model": MODEL}).same
    assert facts["paddle"] == paddle.__version__
    assert facts["cpu capability"] in promise
    assert facts["threads"] in promise
    assert facts["devices"] == "cpu"
    before = paddle.get_default_dtype()
    paddle.set_default_dtype("float64")
    try:
        assert framework.fingerprint({})["default dtype"] == "float64"
    finally:
        paddle.set_default_dtype(before)


def test_a_search_for_generators_does_not_wander_through_paddle() -> None:
    """What a user's object reaches ends where the library begins."""
    classes = [each for each in reachable([MODEL]) if isinstance(each, type)]
    assert not [each for each in classes if each.__module__.partition(".")[0] == "paddle"]

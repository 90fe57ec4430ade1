"""Random streams, mutable buffers, and going back to a step boundary."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from colabkeep.frameworks.base import Framework
from colabkeep.frameworks.numpy import NumpyFramework
from colabkeep.frameworks.shared.rng import NumpyStream
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import captured, same_bits

DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(3).tolist(),
    "torch normal": lambda: torch.randn(3).tolist(),
    "python": random.random,
    "python gauss": lambda: random.gauss(0, 1),
    "python seed": lambda: (random.seed(7), random.random())[1],
    "numpy": lambda: np.random.rand(2).tolist(),
    "numpy normal": lambda: float(np.random.standard_normal()),
    "numpy integers": lambda: np.random.randint(0, 10, 3).tolist(),
    "numpy bytes": lambda: np.random.bytes(3),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_after_the_mark_is_taken_back(name: str, framework: TorchFramework) -> None:
    """However a stream was moved, rewinding gives the same numbers again; three boundaries in a row."""
    draw = DRAWS[name]
    boundary = framework.boundary({})
    for _ in range(3):
        boundary.mark()
        first = draw()
        draw()
        boundary.rewind()
        assert draw() == first


@pytest.mark.parametrize("framework", [TorchFramework(), NumpyFramework()], ids=["torch", "numpy"])
@pytest.mark.parametrize("before", [0, 1])
def test_the_remembered_half_of_a_gaussian_pair_is_part_of_the_boundary(framework: Framework, before: int) -> None:
    """Drawing it moves nothing else in the generator, and is noticed all the same."""
    boundary = framework.boundary({})
    np.random.seed(3)
    random.seed(3)
    for _ in range(before):
        np.random.standard_normal(), random.gauss(0, 1)
    boundary.mark()
    np.random.standard_normal(), random.gauss(0, 1)
    boundary.mark()  # differs from the mark before by one remembered half
    expected = [np.random.standard_normal(), random.gauss(0, 1), np.random.standard_normal(), random.gauss(0, 1)]
    boundary.rewind()
    assert [
        np.random.standard_normal(),
        random.gauss(0, 1),
        np.random.standard_normal(),
        random.gauss(0, 1),
    ] == expected


def test_a_generator_put_in_place_of_numpys_own_is_followed() -> None:
    """`np.random.set_bit_generator` changes what a look at memory means; the state is still right."""
    if not hasattr(np.random, "set_bit_generator"):
        pytest.skip("this NumPy has none")
    stream, own = NumpyStream(), np.random.get_bit_generator()
    stream.read()
    try:
        np.random.set_bit_generator(np.random.PCG64(5))
        state = stream.read()
        first = np.random.rand(3).tolist()
        assert stream.read() != state
        stream.write(state)
        assert np.random.rand(3).tolist() == first
    finally:
        np.random.set_bit_generator(own)


def test_numpy_is_not_imported_for_its_stream() -> None:
    """A stream that nobody can have drawn from is not saved, and nothing is loaded to look at it."""
    code = (
        "import sys; from colabkeep.frameworks.shared.rng import NumpyStream\n"
        "assert NumpyStream().read() is None; assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_device_is_woken_up(framework: TorchFramework) -> None:
    """Reading, saving and restoring the streams leaves a GPU that training does not use alone."""
    asleep = torch.cuda.is_initialized()
    trees = captured(framework, {"rng": framework.rng()})
    framework.rng().load_state_dict(framework.native(trees["rng"])["state"])
    assert torch.cuda.is_initialized() == asleep
    assert "cuda" in trees["rng"]["state"] or not asleep


def test_streams_of_devices_that_are_missing_here_are_kept(framework: TorchFramework) -> None:
    """From two GPUs to none and back: their streams go on where they were."""
    if torch.cuda.is_available():
        pytest.skip("needs a machine without GPU")
    states = [torch.arange(16, dtype=torch.uint8), torch.arange(16, 32, dtype=torch.uint8)]
    rng = framework.rng()
    rng.load_state_dict({**rng.state_dict(), "cuda": states})
    state = captured(framework, {"rng": rng})["rng"]["state"]
    assert [bytes(host.data) for host in state["cuda"]] == [bytes(range(16)), bytes(range(16, 32))]


class Forgetful(nn.Module):
    """Replaces, resizes, fills and drops its buffers in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("replaced", torch.zeros(2), persistent=False)
        self.register_buffer("filled", None, persistent=False)
        self.register_buffer("dropped", torch.ones(2))
        self.register_buffer("resized", torch.ones(2))
        self.register_buffer("expanded", torch.ones(1).expand(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.replaced = self.replaced + 1
        self.filled = torch.ones(3)
        self.dropped = None
        self.resized.data = torch.zeros(5)
        self.expanded = torch.zeros(3)
        return self.norm(x)


def test_buffers_that_a_forward_changed_are_put_back(framework: TorchFramework) -> None:
    """Running means, counters and caches are those of the last boundary after a step that broke."""
    model = Forgetful()
    model.norm(torch.randn(4, 3))
    boundary = framework.boundary({"model": model})
    boundary.mark()
    before = captured(framework, {"model": model})
    mean = model.norm.running_mean
    model(torch.randn(4, 3))
    assert not same_bits(captured(framework, {"model": model}), before)
    boundary.rewind()
    assert same_bits(captured(framework, {"model": model}), before)
    assert model.norm.running_mean is mean


def test_each_mark_moves_the_boundary(framework: TorchFramework) -> None:
    """Rewinding goes to the last mark, also when buffers were replaced between marks."""
    model = nn.Sequential(Forgetful())
    boundary = framework.boundary({"model": model, "twice": model})
    for _ in range(3):
        model(torch.randn(4, 3))
        boundary.mark()
        before = captured(framework, {"model": model})
        model(torch.randn(4, 3))
        boundary.rewind()
        assert same_bits(captured(framework, {"model": model}), before)


@pytest.mark.parametrize("wants_gradient", [False, True])
def test_a_buffer_that_moved_in_memory_is_followed(framework: TorchFramework, wants_gradient: bool) -> None:
    """The same buffer over other memory of the same shape, as `x.data = …` leaves it; no graph grows in the copy."""
    model = nn.Module()
    model.register_buffer("moved", torch.zeros(2).requires_grad_(wants_gradient))
    boundary = framework.boundary({"model": model})
    boundary.mark()
    if not wants_gradient:
        model.moved.data = torch.ones(2)
    boundary.mark()
    expected = model.moved.detach().clone()
    with torch.no_grad():
        model.moved.fill_(9.0)
    boundary.rewind()
    assert torch.equal(model.moved, expected)
    assert model.moved.is_leaf


def test_parameters_are_left_alone(framework: TorchFramework) -> None:
    """Rewinding costs no copy of the model: parameters change in the optimizer's step only."""
    model = nn.Linear(2, 2)
    boundary = framework.boundary({"model": model})
    boundary.mark()
    with torch.no_grad():
        model.weight.fill_(3.0)
    boundary.rewind()
    assert torch.equal(model.weight, torch.full((2, 2), 3.0))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.LBFGS])
def test_a_step_that_began_tears_the_boundary(optimizer: Any, framework: TorchFramework) -> None:
    """Once an optimizer has touched parameters there is no way back, until the next mark."""
    model = nn.Linear(2, 2)
    parts = {"model": model, "optimizer": optimizer(model.parameters(), lr=0.1)}
    boundary = framework.boundary(parts)
    boundary.mark()
    assert not boundary.torn

    def broken() -> Any:
        assert boundary.torn
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parts["optimizer"].step(broken)
    assert boundary.torn
    boundary.mark()
    assert not boundary.torn


def test_a_closed_boundary_leaves_no_hooks(framework: TorchFramework) -> None:
    """The user's optimizer is as it was."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    boundary = framework.boundary({"optimizer": optimizer})
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    boundary.close()
    boundary.close()
    assert not optimizer._optimizer_step_pre_hooks
    optimizer.step()
    assert not boundary.torn


def test_modes_and_options_that_changed_since_the_mark_are_taken_back(framework: TorchFramework) -> None:
    """An interrupt in a validation, or at the top of an epoch: the checkpoint is of the boundary, and so are they."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    boundary = framework.boundary({"model": model, "optimizer": optimizer})
    model[1].eval()
    boundary.mark()
    model.eval()
    optimizer.param_groups[0].update(lr=0.05, initial_lr=0.2)
    optimizer.add_param_group({"params": model[1].parameters()})
    boundary.rewind()
    boundary.close()
    assert [each.training for each in model.modules()] == [True, True, False]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1]
    assert "initial_lr" not in optimizer.param_groups[0]


def test_schedulers_that_count_in_those_inside_them_are_watched(framework: TorchFramework) -> None:
    """A ChainedScheduler has no count of its own."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    chained = torch.optim.lr_scheduler.ChainedScheduler([torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)])
    boundary = framework.boundary({"optimizer": optimizer, "scheduler": chained})
    boundary.mark()
    assert not boundary.torn
    optimizer.step()
    boundary.mark()
    chained.step()
    assert boundary.torn
    boundary.close()


class Climbing(torch.optim.Optimizer):
    """Moves parameters in more than its step, as sharpness-aware minimization does."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def first_step(self) -> None:
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(1.0)


def test_parameters_that_change_elsewhere_than_in_a_step_tear_the_boundary(framework: TorchFramework) -> None:
    """An error behind that must not be saved as if the step had not begun: an optimizer with a method of its own, a key
    encoder that follows in the forward pass, in place or with other memory."""
    model, key = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    climbing = Climbing(model.parameters())

    def follow(in_place: bool) -> None:
        if in_place:
            key.weight.mul_(0.5)
        else:
            key.weight.data = key.weight.data * 0.5

    own = {"model": model, "key": key, "optimizer": climbing}
    torchs = {"model": nn.Linear(2, 2), "key": key}
    torchs["optimizer"] = torch.optim.SGD(torchs["model"].parameters(), lr=0.1)
    for parts, change in [
        (own, climbing.first_step),
        (torchs, lambda: follow(True)),
        (torchs, lambda: follow(False)),
    ]:
        boundary = framework.boundary(parts)
        boundary.mark()
        assert not boundary.torn
        change()
        assert boundary.torn
        boundary.mark()
        assert not boundary.torn
        boundary.close()


def test_a_model_without_an_optimizer_may_change_at_any_moment(framework: TorchFramework) -> None:
    """Updated by hand, through `.data`, nobody sees it; one whose parameters are frozen is not trained at all."""
    model = nn.Linear(2, 2)
    assert framework.boundary({"model": model}).opaque == ["model"]
    assert framework.boundary({"model": nn.Linear(2, 2).requires_grad_(False)}).opaque == []
    trained = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "ema": nn.Linear(2, 2)}
    assert framework.boundary(trained).opaque == []

"""Random streams, what a forward pass changes, and going back to a step boundary."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

from colabkeep.frameworks.paddle.adapter import PaddleFramework
from colabkeep.frameworks.paddle.rng import DeviceStream, GeneratorState, SeedStream, plain_state, revived_state
from colabkeep.testing.frameworks import captured, same_bits

Parts = dict[str, Any]

DRAWS: dict[str, Callable[[], Any]] = {
    "paddle": lambda: paddle.rand([3]).tolist(),
    "paddle normal": lambda: paddle.randn([3]).tolist(),
    "paddle permutation": lambda: paddle.randperm(9).tolist(),
    "paddle dropout": lambda: nn.functional.dropout(paddle.ones([9])).tolist(),
    "paddle initializer": lambda: nn.Linear(2, 2).weight.tolist(),  # noqa: PLW0108  # made anew each time
    "paddle seed": lambda: (paddle.seed(7), paddle.rand([2]).tolist())[1],
    "python": random.random,
    "python gauss": lambda: random.gauss(0, 1),
    "numpy": lambda: np.random.rand(2).tolist(),
    "numpy normal": lambda: float(np.random.standard_normal()),
}
OLD_AND_NEW = pytest.mark.parametrize("reseed", [None, True], ids=["as it is", "reseeding"])


@OLD_AND_NEW
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_after_the_mark_is_taken_back(name: str, reseed: bool | None) -> None:
    """However a stream was moved, rewinding gives the same numbers again; three boundaries in a row."""
    draw = DRAWS[name]
    boundary = PaddleFramework(reseed=reseed).boundary({})
    for _ in range(3):
        boundary.mark()
        first = draw()
        draw()
        boundary.rewind()
        assert draw() == first


@OLD_AND_NEW
@pytest.mark.parametrize("draws", [0, 1, 3])
def test_a_new_session_draws_the_same_numbers(reseed: bool | None, draws: int) -> None:
    """What is stored of a stream, wherever it stood, is enough to continue it, and says nothing of objects."""
    framework = PaddleFramework(reseed=reseed)
    paddle.seed(5)
    for _ in range(draws):
        paddle.rand([3])
    trees = captured(framework, {"rng": framework.rng()})
    expected = paddle.rand([5]).tolist()
    paddle.seed(99)
    paddle.rand([2])
    later = PaddleFramework(reseed=reseed)
    later.rng().load_state_dict(later.native(trees["rng"])["state"])
    assert paddle.rand([5]).tolist() == expected


def stepped(boundary: Any, steps: int, save: Callable[[int], None]) -> list[list[float]]:
    drawn = []
    for i in range(steps):
        drawn.append(paddle.rand([2]).tolist())
        boundary.mark()
        save(i)
    return drawn


def test_when_a_run_saves_does_not_change_its_reseeded_streams() -> None:
    """Where the position cannot be told, each step begins a new stream: the numbers are the same with any saves."""
    courses = []
    for saves in (set(), {1}, {0, 1, 2, 3}):
        framework = PaddleFramework(reseed=True)
        paddle.seed(5)
        boundary = framework.boundary({})
        boundary.mark()
        save = lambda i, f=framework, s=saves: f.rng().state_dict() if i in s else None  # noqa: E731
        courses.append(stepped(boundary, 4, save))
    assert courses[0] == courses[1] == courses[2]
    assert len({tuple(numbers) for numbers in courses[0]}) == 4


def test_a_reseeded_stream_goes_on_from_any_step() -> None:
    """Resumed from the save of a step, the steps after it draw what they drew in the uninterrupted run."""
    framework, saved = PaddleFramework(reseed=True), {}
    paddle.seed(5)
    boundary = framework.boundary({})
    boundary.mark()
    drawn = stepped(boundary, 4, lambda i: saved.update({i: framework.rng().state_dict()}))
    for i in range(3):
        later = PaddleFramework(reseed=True)
        paddle.seed(99)
        resumed = later.boundary({})
        resumed.mark()
        later.rng().load_state_dict(saved[i])
        assert stepped(resumed, 3 - i, lambda _: None) == drawn[i + 1 :]


def test_a_stream_that_did_not_move_keeps_its_seed() -> None:
    """Marking a boundary twice, or saving at it, begins no new stream."""
    paddle.seed(5)
    paddle.rand([1])
    stream = SeedStream()
    seed = stream.read()
    assert type(seed) is int
    assert stream.read() == seed != 5
    paddle.rand([1])
    assert stream.read() != seed


def test_the_promise_says_that_streams_are_reseeded() -> None:
    """A user of an old Paddle reads what it means."""
    (note,) = PaddleFramework(reseed=True).exactness({}).notes
    assert "new seed after every step" in note
    assert PaddleFramework(reseed=False).exactness({}).notes == ()


def test_a_checkpoint_of_an_old_paddle_resumes_with_a_new_one() -> None:
    """A seed is a state that every version understands."""
    old, new = PaddleFramework(reseed=True), PaddleFramework(reseed=False)
    trees = captured(old, {"rng": old.rng()})
    expected = paddle.rand([3]).tolist()
    paddle.rand([2])
    new.rng().load_state_dict(new.native(trees["rng"])["state"])
    assert paddle.rand([3]).tolist() == expected


class FakeGenerator:
    """A device's generator: a seed and a position."""

    def __init__(self, index: int) -> None:
        self.state = revived_state({"device": index, "seed": 7 + index, "offset": 4 * index, "engine": None})

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


def test_streams_of_devices_that_are_missing_here_are_kept() -> None:
    """From two GPUs to none, to one and to two: their streams go on where they were."""
    two = [FakeGenerator(0), FakeGenerator(1)]
    states = DeviceStream("gpu", lambda: 2, two.__getitem__).read()
    assert [type(state) for state in states] == [GeneratorState] * 2
    none = DeviceStream("gpu", lambda: 0, two.__getitem__)
    assert not none.here
    none.write(states)
    one = [FakeGenerator(0)]
    some = DeviceStream("gpu", lambda: 1, one.__getitem__)
    some.write(none.read())
    one[0].set_state(FakeGenerator(5).state)
    assert [plain_state(state)["seed"] for state in some.read()] == [12, 8]
    assert DeviceStream("gpu", lambda: 0, two.__getitem__).read() is None


class Forgetful(nn.Layer):
    """Replaces, fills, drops and resizes its buffers in a forward pass, and moves running means."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1D(3)
        self.register_buffer("replaced", paddle.zeros([2]), persistable=False)
        self.register_buffer("filled", None, persistable=False)
        self.register_buffer("dropped", paddle.ones([2]))
        self.register_buffer("resized", paddle.ones([2]))
        self.register_buffer("turned", paddle.arange(6, dtype="float32").reshape([2, 3]).t())

    def forward(self, x: Any) -> Any:
        self._buffers["replaced"] = self._buffers["replaced"] + 1
        self._buffers["filled"] = paddle.ones([3])
        self._buffers["dropped"] = None
        self._buffers["resized"].data = paddle.zeros([5])
        self._buffers["turned"].add_(paddle.ones([3, 2]))
        return self.norm(x)


def test_buffers_that_a_forward_changed_are_put_back(framework: PaddleFramework) -> None:
    """Running means, counters and caches are those of the last boundary after a step that broke."""
    model = Forgetful()
    model.norm(paddle.randn([4, 3]))
    boundary = framework.boundary({"model": model})
    boundary.mark()
    before = captured(framework, {"model": model})
    mean = model.norm._mean
    model(paddle.randn([4, 3]))
    assert not same_bits(captured(framework, {"model": model}), before)
    boundary.rewind()
    assert same_bits(captured(framework, {"model": model}), before)
    assert model.norm._mean is mean


def test_each_mark_moves_the_boundary(framework: PaddleFramework) -> None:
    """Rewinding goes to the last mark, also when buffers were replaced between marks."""
    model = nn.Sequential(Forgetful())
    boundary = framework.boundary({"model": model, "twice": model})
    for _ in range(3):
        model(paddle.randn([4, 3]))
        boundary.mark()
        before = captured(framework, {"model": model})
        model(paddle.randn([4, 3]))
        boundary.rewind()
        assert same_bits(captured(framework, {"model": model}), before)


def test_vectors_of_a_spectral_norm_are_put_back(framework: PaddleFramework) -> None:
    """They move in every forward pass in training."""
    model = nn.utils.spectral_norm(nn.Linear(3, 4), n_power_iterations=2)
    model(paddle.randn([1, 3]))
    boundary = framework.boundary({"model": model})
    boundary.mark()
    before = captured(framework, {"model": model})
    model(paddle.randn([1, 3]))
    assert not same_bits(captured(framework, {"model": model}), before)
    boundary.rewind()
    assert same_bits(captured(framework, {"model": model}), before)


def test_weights_are_left_alone(framework: PaddleFramework) -> None:
    """Rewinding costs no copy of the model: weights change in the optimizer's step only, frozen ones never."""
    model = nn.Linear(2, 2)
    frozen = nn.Linear(2, 2)
    frozen.weight.stop_gradient = True
    boundary = framework.boundary({"model": model, "frozen": frozen})
    boundary.mark()
    for each in (model, frozen):
        each.weight.set_value(paddle.full([2, 2], 3.0))
    boundary.rewind()
    assert model.weight.tolist() == frozen.weight.tolist() == [[3.0, 3.0]] * 2


def test_a_layer_that_is_frozen_between_marks_is_followed(framework: PaddleFramework) -> None:
    """A GAN freezes one half at a time."""
    model = nn.BatchNorm1D(3)
    boundary = framework.boundary({"model": model})
    boundary.mark()
    model.weight.stop_gradient = True
    boundary.mark()
    before = model.weight.tolist()
    model.weight.set_value(paddle.full([3], 9.0))
    boundary.rewind()
    assert model.weight.tolist() == before


def begin_step(optimizer: Any, loss: Any) -> None:
    optimizer.step()


def begin_minimize(optimizer: Any, loss: Any) -> None:
    optimizer.minimize(loss)


def begin_scaled(optimizer: Any, loss: Any) -> None:
    paddle.amp.GradScaler(enable=False).step(optimizer)


@pytest.mark.parametrize("begin", [begin_step, begin_minimize, begin_scaled])
def test_a_step_that_began_tears_the_boundary(begin: Any, framework: PaddleFramework) -> None:
    """Once an optimizer has touched parameters there is no way back, until the next mark."""
    model = nn.Linear(2, 2)
    optimizer = paddle.optimizer.SGD(0.1, model.parameters())
    boundary = framework.boundary({"model": model, "optimizer": optimizer})
    boundary.mark()
    loss = model(paddle.ones([1, 2])).sum()
    loss.backward()
    assert not boundary.torn
    begin(optimizer, loss)
    assert boundary.torn
    boundary.mark()
    assert not boundary.torn


def test_an_exception_inside_a_step_leaves_the_boundary_torn(framework: PaddleFramework) -> None:
    """Ctrl-C in the middle of LBFGS."""
    model = nn.Linear(2, 2)
    optimizer = paddle.optimizer.LBFGS(parameters=model.parameters())
    boundary = framework.boundary({"optimizer": optimizer})
    boundary.mark()

    def broken() -> Any:
        assert boundary.torn
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(broken)
    assert boundary.torn


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_scheduler_that_moved_on_tears_the_boundary(handed_over: bool, framework: PaddleFramework) -> None:
    """Also one that only the optimizer knows."""
    scheduler = paddle.optimizer.lr.StepDecay(0.1, 3)
    optimizer = paddle.optimizer.SGD(scheduler, nn.Linear(2, 2).parameters())
    parts: Parts = {"scheduler": scheduler} if handed_over else {"optimizer": optimizer}
    boundary = framework.boundary(parts)
    boundary.mark()
    assert not boundary.torn
    scheduler.step()
    assert boundary.torn


def test_a_closed_boundary_leaves_no_trace(framework: PaddleFramework) -> None:
    """The user's optimizer is as it was."""
    optimizer = paddle.optimizer.SGD(0.1, nn.Linear(2, 2).parameters())
    before = dict(vars(optimizer))
    boundary = framework.boundary({"optimizer": optimizer})
    assert vars(optimizer) != before
    boundary.close()
    boundary.close()
    assert vars(optimizer) == before
    optimizer.step()
    assert not boundary.torn


def test_a_step_that_others_have_wrapped_stays_wrapped(framework: PaddleFramework) -> None:
    """Another library's wrapper, put on before or after ours, is left where it is."""
    heard = []
    optimizer = paddle.optimizer.SGD(0.1, nn.Linear(2, 2).parameters())
    plain = optimizer.step
    optimizer.step = lambda: (heard.append("before"), plain())
    first = framework.boundary({"optimizer": optimizer})
    ours = optimizer.step
    first.close()
    optimizer.step()
    assert heard == ["before"]
    second = framework.boundary({"optimizer": optimizer})
    ours = optimizer.step
    optimizer.step = lambda: (heard.append("after"), ours())
    second.close()
    optimizer.step()
    assert heard == ["before", "after", "before"]
    assert not second.torn


def test_a_model_without_an_optimizer_may_change_at_any_moment(framework: PaddleFramework) -> None:
    """Updated by hand, nobody hears of it; an error in the middle must not be saved as if nothing had been."""
    layer = nn.Linear(2, 2)
    assert list(framework.boundary({"model": layer}).opaque) == ["model"]
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    assert list(framework.boundary({"model": layer, "optimizer": optimizer}).opaque) == []
    for parameter in layer.parameters():
        parameter.stop_gradient = True
    assert list(framework.boundary({"model": layer}).opaque) == []

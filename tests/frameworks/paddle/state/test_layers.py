"""Layers: every tensor under the user's name, in place, with its ties."""

from __future__ import annotations

from typing import Any

import paddle
import pytest
from paddle import nn

from colabkeep.core.errors import Incompatible, NotStorable
from colabkeep.frameworks.paddle.adapter import PaddleFramework
from colabkeep.testing.frameworks import addresses, captured, same_bits

Parts = dict[str, Any]


class Tied(nn.Layer):
    """A language model's habit: one matrix to read with and to write with."""

    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Layer()
        self.head.weight = self.embed.weight if tie else self.create_parameter([7, 4])

    def forward(self, x: Any) -> Any:
        return self.embed(x) @ self.head.weight.t()


class Cached(nn.Layer):
    """Buffers of every kind: kept, not kept, grown, empty at first, and registered late; parameters of odd shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scalar = self.create_parameter([])
        self.register_buffer("kept", paddle.zeros([2]))
        self.register_buffer("cache", paddle.zeros([1]), persistable=False)
        self.register_buffer("later", None, persistable=False)
        self.register_buffer("later_kept", None)
        self.register_buffer("gone", paddle.zeros([1]), persistable=False)
        self.register_buffer("empty", paddle.zeros([0, 3]))
        self.register_buffer("queue", paddle.ones([4, 3]), persistable=False)
        self.register_buffer("turned", paddle.zeros([2, 3]).t())

    def grow(self) -> None:
        self._buffers["kept"] += 1
        self._buffers["cache"] = paddle.arange(5)
        self._buffers["later"] = paddle.full([2, 2], 3.0)
        self._buffers["later_kept"] = paddle.full([2], 4.0)
        self._buffers["gone"] = None
        self._buffers["queue"] = paddle.zeros([0, 3])
        self._buffers["turned"] = paddle.arange(6, dtype="float32").reshape([2, 3]).t()
        self.register_buffer("newcomer", paddle.ones([2]), persistable=False)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Sequential(nn.Conv2D(1, 2, 3), nn.BatchNorm2D(2)),
        nn.LSTM(3, 4, num_layers=2, direction="bidirect"),
        nn.Transformer(4, 2, 1, 1, 8),
        nn.SpectralNorm([3, 4]),
        Cached(),
        Tied(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_weights_have_the_names_and_values_of_the_state_dict(framework: PaddleFramework, layer: nn.Layer) -> None:
    """A checkpoint's weights are those `layer.state_dict()` tells, in its order."""
    tree = captured(framework, {"model": layer})["model"]
    told = {name: each for name, each in layer.state_dict().items() if each._is_initialized() or 0 in each.shape}
    assert list(tree["weights"]) == list(told)
    for name, value in told.items():
        assert paddle.equal_all(framework.native(tree["weights"][name]), value)


def test_parameters_are_filled_in_place(framework: PaddleFramework) -> None:
    """An optimizer that holds the parameters goes on with the restored numbers."""
    trees = captured(framework, {"model": nn.Linear(2, 2)})
    model = nn.Linear(2, 2)
    held, place = model.weight, model.weight.data_ptr()
    framework.restore({"model": model}, trees)
    assert model.weight is held
    assert held.data_ptr() == place
    assert not held.stop_gradient
    assert held.is_leaf
    assert paddle.equal_all(held, framework.native(trees["model"]["weights"]["weight"]))


@pytest.mark.filterwarnings("ignore:The program will return to single-card operation:UserWarning")
def test_wrappers_leave_no_trace(framework: PaddleFramework) -> None:
    """A checkpoint of a data-parallel or compiled model fits the bare one, and the other way round."""
    bare = nn.Sequential(("module", nn.Linear(2, 2)), ("_layers", nn.Linear(2, 2)))
    trees = captured(framework, {"model": bare})
    fresh = nn.Sequential(("module", nn.Linear(2, 2)), ("_layers", nn.Linear(2, 2)))
    for wrapped in (paddle.jit.to_static(fresh), paddle.DataParallel(fresh)):
        assert framework.check({"model": wrapped}, trees) == []
        framework.restore({"model": wrapped}, trees)
        assert same_bits(captured(framework, {"model": wrapped}), trees)
    assert list(trees["model"]["weights"]) == ["module.weight", "module.bias", "_layers.weight", "_layers.bias"]


def test_a_compiled_model_trains_on_after_a_restore(framework: PaddleFramework) -> None:
    """`paddle.jit.to_static` keeps references to parameters; they see what was restored."""
    bare, compiled = nn.Linear(2, 2), paddle.jit.to_static(nn.Linear(2, 2))
    x = paddle.ones([1, 2])
    compiled(x)
    framework.restore({"model": compiled}, captured(framework, {"model": bare}))
    assert compiled(x).tolist() == bare(x).tolist()


def test_a_tied_weight_is_stored_once_and_stays_tied(framework: PaddleFramework) -> None:
    """One tensor under two names."""
    trees = captured(framework, {"model": Tied()})
    weights = trees["model"]["weights"]
    assert list(weights) == ["embed.weight", "head.weight"]
    assert weights["embed.weight"] is weights["head.weight"]
    later = Tied()
    framework.restore({"model": later}, trees)
    assert later.head.weight is later.embed.weight
    assert same_bits(captured(framework, {"model": later}), trees)


def test_ties_that_came_or_went_are_refused(framework: PaddleFramework) -> None:
    """Another architecture with the same names and shapes."""
    tied, loose = captured(framework, {"model": Tied()}), captured(PaddleFramework(), {"model": Tied(tie=False)})
    assert framework.check({"model": Tied(tie=False)}, tied) == [
        "model: embed.weight was tied to head.weight in the checkpoint, and is not now."
    ]
    assert framework.check({"model": Tied()}, loose) == [
        "model: head.weight was not tied to embed.weight in the checkpoint, and is now."
    ]


def test_buffers_of_every_kind_come_back(framework: PaddleFramework) -> None:
    """Also those that grew, vanished or appeared during training, and those that are not in a state_dict."""
    before = Cached()
    before.grow()
    trees = captured(framework, {"model": before})
    later = Cached()
    assert framework.check({"model": later}, trees) == []
    framework.restore({"model": later}, trees)
    assert same_bits(captured(framework, {"model": later}), trees)
    assert later.cache.tolist() == [0, 1, 2, 3, 4]
    assert later.gone is None
    assert [list(later.empty.shape), list(later.queue.shape)] == [[0, 3], [0, 3]]
    assert later.turned.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert "newcomer" not in later.state_dict()


def test_an_empty_parameter_is_kept(framework: PaddleFramework) -> None:
    """A layer for none of the classes yet: it has no numbers, and is there."""

    def build() -> nn.Layer:
        layer = nn.Linear(2, 2)
        layer.nothing = layer.create_parameter([0, 2])
        return layer

    later, trees = build(), captured(framework, {"model": build()})
    assert framework.check({"model": later}, trees) == []
    framework.restore({"model": later}, trees)
    assert list(later.nothing.shape) == [0, 2]
    assert same_bits(captured(framework, {"model": later}), trees)


def test_a_buffer_that_the_first_forward_fills_is_saved_from_then_on(framework: PaddleFramework) -> None:
    """As the dropout state of an LSTM on a GPU; until then there is nothing to save, and nothing is made of it."""

    def build() -> nn.Layer:
        layer = nn.Linear(2, 2)
        layer.register_buffer("filled_later", layer.create_variable(dtype="float32"))  # as nn.LSTM makes it
        return layer

    before, later = build(), build()
    trees = captured(framework, {"model": before})
    assert "filled_later" not in trees["model"]["weights"]
    assert framework.check({"model": later}, trees) == []
    framework.restore({"model": later}, trees)
    assert later._buffers["filled_later"] is not None
    before._buffers["filled_later"].data = paddle.full([3], 2.0)
    trees = captured(framework, {"model": before})
    assert framework.check({"model": later}, trees) == []
    framework.restore({"model": later}, trees)
    assert later._buffers["filled_later"].tolist() == [2.0] * 3


def test_layers_added_later_are_saved_too(framework: PaddleFramework) -> None:
    """A model that is changed between saves is saved as it is."""
    model = nn.Sequential(nn.Linear(2, 2))
    captured(framework, {"model": model})
    model.add_sublayer("head", nn.Linear(2, 1))
    assert list(captured(framework, {"model": model})["model"]["weights"])[2:] == ["head.weight", "head.bias"]


def replaced(model: nn.Layer) -> None:
    model.weight = paddle.create_parameter([2, 2], "float32")


def grown(model: nn.Layer) -> None:
    model.weight = paddle.create_parameter([4, 2], "float32")


def moved(model: nn.Layer) -> None:
    model.weight.data = paddle.full([2, 2], 9.0)


def cast(model: nn.Layer) -> None:
    model.to(dtype="float64")


def filled(model: nn.Layer) -> None:
    model.weight.set_value(paddle.full([2, 2], 5.0))


@pytest.mark.parametrize("change", [replaced, grown, moved, cast, filled])
def test_a_model_changed_between_saves_is_saved_as_it_is(framework: PaddleFramework, change: Any) -> None:
    """The plan of an earlier capture does not outlive what it was made for."""
    model = nn.Linear(2, 2)
    captured(framework, {"model": model})
    change(model)
    assert same_bits(captured(framework, {"model": model}), captured(PaddleFramework(), {"model": model}))


def test_frozen_weights_are_marked_and_running_means_are_not(framework: PaddleFramework) -> None:
    """What training does not change is packed apart; Paddle's running means only look as if it did not."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1D(2))
    model[0].weight.stop_gradient = True
    weights = captured(framework, {"model": model})["model"]["weights"]
    assert {name: host.frozen for name, host in weights.items()} == {
        "0.weight": True, "0.bias": False, "1.weight": False, "1.bias": False, "1._mean": False, "1._variance": False,
    }  # fmt: skip
    model[0].weight.stop_gradient = False
    assert not captured(framework, {"model": model})["model"]["weights"]["0.weight"].frozen


def test_another_architecture_is_described(framework: PaddleFramework) -> None:
    """Names, shapes and dtypes, each in a sentence."""
    trees = captured(framework, {"model": nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))})
    other = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(3, 1))
    differences = framework.check({"model": other}, trees)
    assert "model: 0.weight has shape (2, 3) in the checkpoint and (2, 4) now." in differences
    assert "model: 1.weight is in the checkpoint, and not in this Sequential." in differences
    assert "model: 2.weight is in this Sequential, and not in the checkpoint." in differences
    half = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).to(dtype="float64")
    assert "model: 0.bias is float32 in the checkpoint and float64 now." in framework.check({"model": half}, trees)


def test_a_parameter_of_another_shape_is_never_filled_by_halves(framework: PaddleFramework) -> None:
    """Without a check before, restoring raises and changes nothing of what does not fit."""
    trees = captured(framework, {"model": nn.Linear(2, 3)})
    other = nn.Linear(2, 4)
    before = captured(framework, {"model": other})
    with pytest.raises(Incompatible, match="another shape"):
        framework.restore({"model": other}, trees)
    assert same_bits(captured(framework, {"model": other}), before)


def test_an_optimizer_in_place_of_a_model_is_told(framework: PaddleFramework) -> None:
    """Parts that were mixed up."""
    trees = captured(framework, {"model": nn.Linear(2, 2)})
    parts = {"model": paddle.optimizer.SGD(0.1, nn.Linear(2, 2).parameters())}
    assert framework.check(parts, trees) == [
        "model: the checkpoint holds a module, and this run has an optimizer there."
    ]


def test_a_model_without_data_is_refused(framework: PaddleFramework) -> None:
    """A model built under LazyGuard has no numbers to save yet."""
    with paddle.LazyGuard():
        model = nn.Linear(2, 2)
    with pytest.raises(NotStorable, match=r"model\.weight") as caught:
        framework.capture({"model": model})
    assert "initialize" in caught.value.remedy


class Hidden(nn.Layer):
    """Keeps a tensor where only its own state_dict finds it."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["secret"] = paddle.ones([2])

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {**super().state_dict(*args, **kwargs), "secret": self.__dict__["secret"]}


def test_state_that_only_the_layer_knows_is_not_lost_silently(framework: PaddleFramework) -> None:
    """A state_dict that tells more than parameters and buffers is refused with the way out."""
    with pytest.raises(NotStorable) as caught:
        framework.capture({"model": nn.Sequential(Hidden())})
    assert caught.value.path == "model.0.secret"
    assert "register_buffer" in caught.value.remedy


def test_the_second_capture_reuses_memory_in_any_layout(framework: PaddleFramework) -> None:
    """Tensors that are stored turned round in memory are copied to the same place each time."""
    model = Cached()
    first = framework.capture({"model": model}).finish()
    places = addresses(first.parts)
    first.release()
    model._buffers["turned"].set_value(paddle.ones([3, 2]))
    second = framework.capture({"model": model}).finish()
    assert addresses(second.parts) == places
    assert framework.native(second.parts["model"]["weights"]["turned"]).tolist() == [[1.0, 1.0]] * 3

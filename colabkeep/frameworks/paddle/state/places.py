"""Where Paddle's layers keep their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from paddle import nn

from colabkeep.frameworks.common import places
from colabkeep.frameworks.common.places import Anatomy, Place
from colabkeep.frameworks.paddle.state.memory import has_data

__all__ = ["Place", "Places", "held_by", "is_frozen", "is_statistic", "owners"]


class Places(places.Places):
    """The places of a Paddle layer and its children."""

    def __init__(self, layer: nn.Layer) -> None:
        super().__init__(_PADDLE, layer)


def held_by(place: Place) -> Any:
    """The tensor in a place; None for a buffer that the first forward pass will fill (the dropout state of an LSTM)."""
    tensor = place.tensor
    return tensor if place.parameter or tensor is None or has_data(tensor) else None


def is_statistic(parameter: Any) -> bool:
    """May a forward pass change this parameter?

    Paddle keeps running means and the vectors of spectral norms as parameters without gradient, and changes
    them without a trace. From frozen weights they differ in that they have one dimension at most.
    """
    return parameter is not None and bool(parameter.stop_gradient) and len(parameter.shape) < 2


def is_frozen(place: Place) -> bool:
    """Is it a weight that training does not change?"""
    return place.parameter and bool(place.tensor.stop_gradient) and not is_statistic(place.tensor)


def owners(layers: Iterable[nn.Layer]) -> list[tuple[dict[str, Any], Callable[[Any], bool]]]:
    """The dicts with tensors that a forward pass may change, each once, and a test for which of them it may."""
    found: dict[int, tuple[dict[str, Any], Callable[[Any], bool]]] = {}
    for layer in layers:
        for _, each in Places(layer).modules:
            if each._buffers:
                found[id(each._buffers)] = each._buffers, _always
            if any(map(is_statistic, each._parameters.values())):
                found[id(each._parameters)] = each._parameters, is_statistic
    return list(found.values())


def _always(_: Any) -> bool:
    return True


def _tells_plainly(layer: nn.Layer) -> bool:
    kind, base = type(layer), nn.Layer
    return kind.state_dict is base.state_dict and kind._state_dict_impl is base._state_dict_impl


_PADDLE = Anatomy(
    children="_sub_layers",
    transient="_non_persistable_buffer_names_set",
    wrappers=(("paddle.distributed.parallel", "DataParallel", "_layers"),),
    plain=_tells_plainly,
    told=lambda layer: layer.state_dict(),
    elsewhere="Its state_dict() holds more than parameters and buffers. Register them as buffers: "
    "self.register_buffer(name, tensor).",
)

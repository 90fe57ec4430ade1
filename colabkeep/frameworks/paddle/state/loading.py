"""Stored tensors into a live layer, in place."""

from __future__ import annotations

from typing import Any

from paddle import nn

from colabkeep.frameworks.paddle.state.dtypes import plain_name
from colabkeep.frameworks.paddle.state.leaves import fill, native, shape_and_dtype
from colabkeep.frameworks.paddle.state.memory import has_data, is_somewhere, place_name
from colabkeep.frameworks.paddle.state.places import Place, Places
from colabkeep.vocabulary.errors import Incompatible
from colabkeep.vocabulary.state import Tree

__all__ = ["fits", "restore_layer"]


def restore_layer(part: str, layer: nn.Layer, tree: Tree) -> None:
    """Give every parameter and buffer its stored value.

    Parameters and persistable buffers are filled in place, so that optimizers and ties stay.
    Other buffers may have grown since the layer was built: such a one is replaced.
    """
    places = Places(layer)
    live = {place.name: place for place in places.places}
    device = next(
        (place_name(p.tensor.place) for p in places.places if p.tensor is not None and is_somewhere(p.tensor)), "cpu"
    )
    pairs: list[tuple[Any, Tree]] = []
    done: dict[int, Any] = {}  # what became of each live tensor: a tied one is filled once
    for name, leaf in {**tree["weights"], **tree.get("transient", {})}.items():
        place = live.get(name) or _registered(name, dict(places.modules))
        before = place.tensor
        if leaf is None:
            place.owner[place.key] = None
        elif before is not None and id(before) in done:
            place.owner[place.key] = done[id(before)]
        elif before is not None and fits(before, leaf):
            pairs.append((before, leaf))
            done[id(before)] = before
        elif place.parameter:
            raise Incompatible(
                problem=f"{part}: the parameter {name} has another shape or dtype than the checkpoint's.",
                remedy="Build the model as it was, or start again under another run_name.",
            )
        else:
            made = native(leaf).to(place_name(before.place) if before is not None and is_somewhere(before) else device)
            place.owner[place.key] = made
            if before is not None:
                done[id(before)] = made
    fill(pairs)


def fits(tensor: Any, leaf: Tree) -> bool:
    """Can the stored tensor be copied into this live one as it is?"""
    return shape_and_dtype(leaf) == (tuple(tensor.shape), plain_name(tensor.dtype)) and has_data(tensor)


def _registered(name: str, layers: dict[str, Any]) -> Place:
    """The place of a buffer that the layer registers later in its life: registered now."""
    prefix, _, key = name.rpartition(".")
    owner = layers[prefix]
    owner.register_buffer(key, None, persistable=False)
    return Place(name, owner._buffers, key, parameter=False, kept=False)

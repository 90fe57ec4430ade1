"""Stored tensors into a live module, in place."""

from __future__ import annotations

from math import prod

import torch

from colabkeep.frameworks.torch.state.bulk import copy_all
from colabkeep.frameworks.torch.state.dtypes import dtype_of, plain_name
from colabkeep.frameworks.torch.state.leaves import native, view_host, view_leaf
from colabkeep.frameworks.torch.state.places import Place, Places
from colabkeep.vocabulary.errors import Incompatible
from colabkeep.vocabulary.state import HostTensor, Tree

__all__ = ["describe", "fill", "restore_module"]


def restore_module(part: str, module: torch.nn.Module, tree: Tree) -> None:
    """Give every parameter and buffer its stored value, then hand over extra state.

    Parameters and persistent buffers are filled in place, so that optimizers, ties and strides stay.
    Non-persistent buffers may have grown since the module was built: such a one is replaced.
    """
    places = Places(module)
    live = {place.name: place for place in places.places}
    device = next((p.tensor.device for p in places.places if p.tensor is not None), torch.device("cpu"))
    fills: list[tuple[torch.Tensor, torch.Tensor]] = []
    done: dict[int, torch.Tensor] = {}  # what became of each live tensor: a tied one is filled once
    for name, leaf in {**tree["weights"], **tree["transient"]}.items():
        place = live.get(name) or _registered(name, dict(places.modules))
        before = place.tensor
        if leaf is None:
            place.owner[place.key] = None
        elif before is not None and id(before) in done:
            place.owner[place.key] = done[id(before)]
        elif before is None or (source := source_of(before, leaf)) is None:
            if place.parameter:
                raise Incompatible(
                    problem=f"{part}: the parameter {name} has another shape or dtype than the checkpoint's.",
                    remedy="Build the model as it was, or start again under another run_name.",
                )
            made = native(leaf).to(device if before is None else before.device)
            place.owner[place.key] = made
            if before is not None:
                done[id(before)] = made
        else:
            fills.append((before, source))
            done[id(before)] = before
    copy_all([target for target, _ in fills], [source for _, source in fills])
    for name, each in places.extras():
        if name in tree["extra"]:
            each.set_extra_state(native(tree["extra"][name], devices=True))


def fill(tensor: torch.Tensor, leaf: Tree) -> bool:
    """Copy a stored tensor into a live one. False, and nothing done, if that cannot be in place."""
    source = source_of(tensor, leaf)
    if source is None:
        return False
    copy_all([tensor], [source])
    return True


def source_of(tensor: torch.Tensor, leaf: Tree) -> torch.Tensor | None:
    """The stored tensor, in its file's buffer, if it can be copied into this live one as it is; else None."""
    if tensor.layout is not torch.strided or describe(leaf) != (tuple(tensor.shape), plain_name(tensor.dtype)):
        return None
    if any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
        return None  # expanded: one number in memory stands for many
    return view_host(leaf) if isinstance(leaf, HostTensor) else view_leaf(leaf.value)


def describe(leaf: Tree) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a stored tensor; "sparse float32" for one that is no block of memory."""
    if isinstance(leaf, HostTensor):
        dtype = dtype_of(leaf.dtype)
        return leaf.shape, leaf.dtype if dtype is None else plain_name(dtype)
    value = leaf.value
    if leaf.kind == "torch.sparse":
        return tuple(value["size"]), f"sparse {describe(value['parts'][-1])[1]}"
    host: HostTensor = value["data"]
    shape, dtype_text = describe(host)
    if "dtype" in value:
        shape, dtype_text = host.shape[:-1], value["dtype"]
    if "stride" in value:
        shape = tuple(view_leaf(value).shape) if prod(shape) else shape
    return shape, dtype_text


def _registered(name: str, modules: dict[str, torch.nn.Module]) -> Place:
    """The place of a buffer that the module registers later in its life: registered now."""
    prefix, _, key = name.rpartition(".")
    owner = modules[prefix]
    owner.register_buffer(key, None, persistent=False)
    return Place(name, owner._buffers, key, parameter=False, kept=False)

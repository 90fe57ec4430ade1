"""Paddle's leaves in any state: tensors of all dtypes and devices, generators' states; and back."""

from __future__ import annotations

from typing import Any

import paddle
from paddle.base import framework

from colabkeep.core.errors import CheckpointUnsupported
from colabkeep.core.state import HostTensor, Tagged, Tree
from colabkeep.frameworks.paddle.rng import GeneratorState, plain_state, revived_state
from colabkeep.frameworks.paddle.staging import (
    Copies,
    Slot,
    copy_host,
    cpu_tensor,
    dtype_name,
    dtype_of,
    has_data,
    on_cpu,
    place_name,
    plain_name,
    size_of,
)
from colabkeep.frameworks.shared.host_memory import LARGE, copy_pairs, large_ones
from colabkeep.frameworks.shared.trees import ArrayLeaves, Rebuild, SlotCache, native_leaf, not_storable, rebuild

__all__ = ["TensorLeaves", "fill", "native", "refuse_dataless", "shape_and_dtype", "slot_leaf"]

_PLAIN_TYPES = (paddle.Tensor, framework.EagerParamBase)
_PLACES = (paddle.CPUPlace, paddle.CUDAPlace, paddle.XPUPlace, paddle.CustomPlace)


class TensorLeaves:
    """The leaves of one part, with the slots it needs from capture to capture.

    `devices` notes the device of a tensor that is not on the CPU; a part that finds its own place on
    loading (an optimizer: beside its parameter) needs none.
    """

    def __init__(self, *, devices: bool) -> None:
        self._devices = devices
        self._arrays = ArrayLeaves()
        self._shelf: SlotCache[Slot] = SlotCache()
        self._met: dict[int, tuple[object, Tree]] = {}  # holds the tensors, so that no id is given twice
        self._copies = Copies()

    def turn(self, copies: Copies) -> None:
        """A capture begins; copies go to `copies`."""
        self._copies = copies
        self._shelf.turn()
        self._arrays.turn()
        self._met = {}

    def sweep(self) -> None:
        """A capture is complete."""
        self._copies = Copies()
        self._shelf.sweep()
        self._arrays.sweep()
        self._met = {}

    def __call__(self, value: Any, path: str) -> Tree:
        """The leaf for `value`, of any type.

        Raises:
            NotStorable: nobody here knows its type.
        """
        if isinstance(value, paddle.Tensor):
            met = self._met.get(id(value))
            if met is None:
                met = self._met[id(value)] = value, self._tensor(value, path)
            return met[1]
        kind = type(value)
        if kind is paddle.dtype:
            return Tagged("paddle.dtype", plain_name(value))
        if kind in _PLACES:
            return Tagged("paddle.place", place_name(value))
        if kind is GeneratorState:
            return Tagged("paddle.generator_state", _told(value, path))
        return self._arrays(value, path)

    def _tensor(self, tensor: Any, path: str) -> Tree:
        refuse_dataless(tensor, path)
        slot = self._shelf.take(path)
        if slot is None or not slot.fits(tensor):
            slot = Slot(tensor)
        self._shelf.keep(path, slot)
        self._copies.add(slot, tensor)
        details: dict[str, Tree] = {}
        if self._devices and not on_cpu(tensor):
            details["device"] = place_name(tensor.place)
        if isinstance(tensor, framework.EagerParamBase):
            details["parameter"] = not tensor.stop_gradient
        elif not tensor.stop_gradient and tensor.is_leaf:
            details["requires_grad"] = True
        return slot_leaf(slot, **details)


def slot_leaf(slot: Slot, **details: Tree) -> Tree:
    """The leaf of a slot: bare where the bytes, shape and dtype say all, else tagged with the rest."""
    if dtype_name(slot.dtype) is None:
        details["dtype"] = plain_name(slot.dtype)
    return Tagged("paddle.tensor", {"data": slot.host, **details}) if details else slot.host


def refuse_dataless(tensor: Any, path: str) -> None:
    """Raise for a tensor whose numbers are not there, or not in a form that can be copied.

    Raises:
        NotStorable: with the remedy for its kind.
    """
    if tensor.is_sparse():
        raise not_storable(tensor, path, "Make it an ordinary tensor first: x.to_dense().")
    if type(tensor) not in _PLAIN_TYPES or tensor.is_dist():
        raise not_storable(tensor, path, "Store a plain tensor on one device, or its parts.")
    if not has_data(tensor):
        raise not_storable(
            tensor, path, "It has no data yet. Build the model outside paddle.LazyGuard(), or call x.initialize()."
        )


def shape_and_dtype(leaf: Tree) -> tuple[tuple[int, ...], str]:
    """Those of a stored tensor."""
    host = _host_of(leaf)
    if isinstance(leaf, Tagged) and "dtype" in leaf.value:
        return host.shape[:-1], leaf.value["dtype"]
    dtype = dtype_of(host.dtype)
    return host.shape, host.dtype if dtype is None else plain_name(dtype)


def fill(pairs: list[tuple[Any, Tree]]) -> None:
    """Copy stored tensors into live ones of the same shape and dtype, in place, wherever they are."""
    direct: list[tuple[Any, HostTensor]] = []
    for tensor, leaf in pairs:
        if not size_of(tensor):
            continue
        if on_cpu(tensor) and tensor.is_contiguous():
            direct.append((tensor, _host_of(leaf)))
        else:
            tensor.copy_(_fresh(leaf), True)
    copy_pairs(direct, copy_host, _is_large)


def native(tree: Tree, *, devices: bool = False) -> Any:
    """The tree in Paddle's own objects, in fresh memory; with `devices`, where tensors were."""
    large = list(large_ones(tree))
    made = [cpu_tensor(host.shape, _dtype(host.dtype)) for host in large]
    copy_pairs(list(zip(made, large, strict=True)), copy_host, _is_large)
    copies = {id(host): tensor for host, tensor in zip(large, made, strict=True)}

    def leaf(node: HostTensor | Tagged, _: Rebuild) -> Any:
        if isinstance(node, HostTensor):
            copy = copies.get(id(node))
            return _fresh(node) if copy is None else copy
        return _native_tagged(node, devices)

    return rebuild(tree, leaf)


def _host_of(leaf: Tree) -> HostTensor:
    host: HostTensor = leaf if isinstance(leaf, HostTensor) else leaf.value["data"]
    return host


def _is_large(tensor: Any) -> bool:
    return size_of(tensor) >= LARGE


def _told(state: Any, path: str) -> Tree:
    plain = plain_state(state)
    if plain is None:
        raise not_storable(
            state,
            path,
            f"Paddle {paddle.__version__} does not tell the position of its CPU generator; leave the state out, the "
            "run keeps the random numbers itself.",
        )
    return plain


def _dtype(name: str) -> Any:
    found = dtype_of(name)
    if found is None:
        raise CheckpointUnsupported(
            problem=f"The checkpoint holds a tensor of dtype {name}, which Paddle {paddle.__version__} lacks.",
            remedy="Install a newer Paddle, or load these weights with the framework that made them.",
        )
    return found


def _fresh(leaf: Tree) -> Any:
    """A stored tensor on the CPU, in memory of its own."""
    host = _host_of(leaf)
    shape, dtype = shape_and_dtype(leaf)
    tensor = cpu_tensor(shape, _dtype(dtype))
    copy_host(tensor, host)
    return tensor


def _native_tagged(node: Tagged, devices: bool) -> Any:
    if node.kind == "paddle.tensor":
        return _native_tensor(node, devices)
    if node.kind == "paddle.dtype":
        return _dtype(node.value)
    if node.kind == "paddle.place":
        return paddle.device._convert_to_place(node.value)
    if node.kind == "paddle.generator_state":
        return revived_state(node.value)
    return native_leaf(node)


def _native_tensor(node: Tagged, devices: bool) -> Any:
    value, tensor = node.value, _fresh(node)
    if devices and "device" in value:
        tensor = tensor._copy_to(paddle.device._convert_to_place(_at_hand(value["device"])), True)
    if "parameter" in value:
        return framework.EagerParamBase.from_tensor(tensor, trainable=value["parameter"])
    tensor.stop_gradient = not value.get("requires_grad", False)
    return tensor


def _at_hand(name: str) -> str:
    """The device of that name if this machine has it, else the first of its kind, else the CPU."""
    kind = name.partition(":")[0]
    found = [each for each in paddle.device.get_available_device() if each.partition(":")[0] == kind]
    return name if name in found else (*found, "cpu")[0]

"""Torch's leaves in any state: tensors of all layouts, dtypes and devices, generators; and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from colabkeep.core.errors import CheckpointDamaged, CheckpointUnsupported, NotStorable
from colabkeep.core.state import HostTensor, Tagged, Tree
from colabkeep.frameworks.shared.host_memory import LARGE, copy_pairs, large_ones
from colabkeep.frameworks.shared.trees import ArrayLeaves, Rebuild, SlotCache, native_leaf, not_storable, rebuild
from colabkeep.frameworks.torch.copies import Copies, Devices
from colabkeep.frameworks.torch.staging import (
    HostMemory,
    Slot,
    dtype_name,
    dtype_of,
    memory_order,
    plain_name,
    slot_leaf,
)

__all__ = [
    "TensorLeaves",
    "adopted",
    "copy_all",
    "native",
    "ordinary",
    "refuse_dataless",
    "refuse_expanded",
    "view_host",
    "view_leaf",
]


@contextmanager
def ordinary() -> Iterator[None]:
    """What is made in here may be written to later, also if the caller is in inference mode: its tensors may not."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():  # leaving it would turn gradients on
            yield
    else:
        yield


# For state that the framework makes anew anyway, as an optimizer's: 336 MB of Adam's moments took 0.15 s to be copied
# on a quiet machine of two cores, and a second on a busy one, nearly all of it for the pages of fresh memory.
#
# Torch cannot resize a storage that it did not allocate. Its own optimizers never ask for that; others may, to keep
# their state elsewhere between two steps, so theirs is copied. Whoever does so by hand with one of torch's own has to
# give the tensors memory of torch's after a resume: `state[p][key] = state[p][key].clone()`.


_ALIGNED = 64
"""Bytes, as torch's own allocator aligns (c10/core/alignment.h). On memory that was not, LBFGS went on with other bits:
some kernels sum up in another order there."""


def adopted(host: HostTensor) -> torch.Tensor | None:
    """The tensor in its file's own memory, for good; None if it cannot stay there and must be copied.

    It keeps the file's whole buffer alive, so this is for tensors that are most of what is in it.
    """
    kind = dtype_of(host.dtype)
    if kind is None or not host.fresh or host.data.readonly or not host.data.nbytes:
        return None
    storage = torch.frombuffer(host.data, dtype=torch.uint8).untyped_storage()
    if storage.data_ptr() % _ALIGNED:
        return None
    # A tensor with a storage of its own, and no view of another one: it is like any that the framework made.
    rows = torch.empty(host.shape, dtype=kind, device="meta").stride()
    return torch.empty(0, dtype=kind, device="cpu").set_(storage, 0, torch.Size(host.shape), rows)


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source into its target; gradients are not tracked."""
    copy_pairs(list(zip(targets, sources, strict=True)), _copy, _is_large)


def _is_large(target: torch.Tensor) -> bool:
    return target.is_cpu and target.nbytes >= LARGE


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.no_grad():  # of this thread
        target.copy_(source)


_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_MKLDNN = getattr(torch, "_mkldnn", None)
_SUB_BYTE = {getattr(torch, f"{sign}int{bits}", None) for sign in ("", "u") for bits in range(1, 8)}  # not copyable
_CONSTANTS = {torch.dtype: "torch.dtype", torch.layout: "torch.layout", torch.memory_format: "torch.memory_format"}


class TensorLeaves:
    """The leaves of one part, with the slots it needs from capture to capture.

    `devices` notes the device of a tensor that is not on the CPU; a part that finds its own place on
    loading (an optimizer: beside its parameter) needs none.
    """

    def __init__(self, memory: HostMemory, *, devices: bool) -> None:
        self._memory = memory
        self._devices = devices
        self._arrays = ArrayLeaves()
        self._shelf: SlotCache[Slot] = SlotCache()
        self._met: dict[int, tuple[object, Tree]] = {}  # holds the tensors, so that no id is given twice
        self._copies = Copies(Devices())

    def turn(self, copies: Copies) -> None:
        """A capture begins; copies go to `copies`."""
        self._copies = copies
        self._shelf.turn()
        self._arrays.turn()
        self._met = {}

    def sweep(self) -> None:
        """A capture is complete."""
        self._copies = Copies(Devices())
        self._shelf.sweep()
        self._arrays.sweep()
        self._met = {}

    def __call__(self, value: Any, path: str) -> Tree:
        """The leaf for `value`, of any type.

        Raises:
            NotStorable: nobody here knows its type.
        """
        if isinstance(value, torch.Tensor):
            met = self._met.get(id(value))
            if met is None:
                met = self._met[id(value)] = value, self._tensor(value, path)
            return met[1]
        kind = type(value)
        if kind in _CONSTANTS:
            return Tagged(_CONSTANTS[kind], plain_name(value))
        if kind is torch.device:
            return Tagged("torch.device", str(value))
        if kind is torch.Size:
            return Tagged("torch.Size", tuple(value))
        if kind is torch.Generator:
            state = self(value.get_state(), f"{path}.<state>")
            return Tagged("torch.generator", {"device": str(value.device), "state": state})
        return self._arrays(value, path)

    def _tensor(self, tensor: torch.Tensor, path: str) -> Tree:
        refuse_dataless(tensor, path)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise not_storable(tensor, path, "Store a plain tensor: x.as_subclass(torch.Tensor), or its parts.")
        if tensor.layout is torch.sparse_coo:
            names: tuple[str, ...] = ("_indices", "_values")
        elif tensor.layout in _COMPRESSED:
            names = (*_COMPRESSED[tensor.layout], "values")
        else:
            return self._strided(tensor, path)
        parts = [self._strided(getattr(tensor, name)().detach(), f"{path}.{name}") for name in names]
        coalesced = tensor.is_coalesced() if tensor.layout is torch.sparse_coo else None
        layout, size = plain_name(tensor.layout), tuple(tensor.shape)
        return Tagged("torch.sparse", {"layout": layout, "parts": parts, "size": size, "coalesced": coalesced})

    def _strided(self, tensor: torch.Tensor, path: str) -> Tree:
        slot = self._shelf.take(path)
        if slot is None or not slot.fits(tensor):
            self._memory.expect([tensor], () if slot is None else (slot,))
            slot = Slot(tensor, self._memory, keep_order=True)
        else:
            slot.renew()
        self._shelf.keep(path, slot)
        self._copies.add(slot, tensor)
        details: dict[str, Tree] = {}
        if self._devices and not tensor.is_cpu:
            details["device"] = str(tensor.device)
        if isinstance(tensor, torch.nn.Parameter):
            details["parameter"] = tensor.requires_grad
        elif tensor.requires_grad and tensor.is_leaf:
            details["requires_grad"] = True
        return slot_leaf(slot, **details)


def refuse_dataless(tensor: torch.Tensor, path: str) -> None:
    """Raise for a tensor whose numbers are not there, or not in a form that can be copied.

    Raises:
        NotStorable: with the remedy for its kind.
    """
    if torch.nn.parameter.is_lazy(tensor):
        raise not_storable(tensor, path, "It has no shape yet. Run one forward pass before training begins to save.")
    if tensor.is_meta:
        raise not_storable(tensor, path, "It is on the meta device and has no data. Call module.to_empty() or load it.")
    if tensor.is_quantized:
        raise not_storable(tensor, path, "Quantized tensors cannot be trained: save x.dequantize(), or leave it out.")
    if tensor.is_nested or tensor.layout is _MKLDNN or tensor.dtype in _SUB_BYTE or _is_wrapper(tensor):
        raise not_storable(
            tensor, path, "Make it an ordinary tensor first: x.to_dense(), x.full_tensor() or x.to(...)."
        )


def refuse_expanded(tensor: torch.Tensor, path: str) -> None:
    """Raise for a parameter of which one number in memory stands for many: no optimizer can write it, and no restore.

    Raises:
        NotStorable: with the remedy.
    """
    if any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise NotStorable(
            problem=f"{path} is an expanded tensor: one number in memory stands for many of its {tuple(tensor.shape)}, "
            "so that neither an optimizer nor a resume can write them.",
            remedy="Give each number a place of its own: torch.nn.Parameter(x.expand(…).clone()).",
            path=path,
        )


def _is_wrapper(tensor: object) -> bool:
    """A tensor that only leads to others (distributed, quantized by a library)."""
    return torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor)


def view_host(host: HostTensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The bytes as a row-major tensor that lives in the file's buffer: to be copied from, never kept.

    Raises:
        CheckpointUnsupported: this torch has no such dtype.
    """
    kind = dtype or dtype_of(host.dtype)
    if kind is None:
        raise CheckpointUnsupported(
            problem=f"The checkpoint holds a tensor of dtype {host.dtype}, which torch {torch.__version__} lacks.",
            remedy="Install a newer torch.",
        )
    shape = host.shape if dtype is None or dtype_name(dtype) else host.shape[:-1]
    if not host.data.nbytes:
        return torch.empty(shape, dtype=kind, device="cpu")
    data = bytearray(host.data) if host.data.readonly else host.data
    raw = torch.frombuffer(data, dtype=torch.uint8)
    if raw.data_ptr() % kind.itemsize:
        raw = raw.clone()  # as bytes: torch 2.4 crashes in a transposing copy from memory that is not aligned
    return raw.view(kind).view(shape)


def view_leaf(value: Tree) -> torch.Tensor:
    """The same for the inside of a tagged tensor, with its own order of dimensions.

    Raises:
        CheckpointDamaged: its strides cannot be those of its shape.
    """
    rows = view_host(value["data"], _constant("torch.dtype", value["dtype"]) if "dtype" in value else None)
    stride = value.get("stride")
    if stride is None:
        return rows
    order = sorted(range(len(stride)), key=lambda d: -stride[d])
    shape = [0] * len(stride)
    for size, d in zip(rows.shape, order, strict=True):
        shape[d] = size
    if memory_order(shape, stride) != order:
        raise CheckpointDamaged(
            problem=f"A tensor of shape {tuple(shape)} is stored with strides {stride}, which do not fit.",
            remedy="Resume from another checkpoint; this one was not written by colabkeep as it is.",
        )
    # as_strided and not permute: the strides of dimensions of size one are kept too.
    return rows.as_strided(shape, stride)


def native(tree: Tree, *, devices: bool = False, adopting: bool = False) -> Any:
    """The tree in torch's own objects, in fresh memory; with `devices`, where tensors were. With `adopting`, large ones
    stay in the memory that they were read to, where they can: the tree must not be used again."""
    copies: dict[int, torch.Tensor] = {}
    large: list[HostTensor] = []
    for node in large_ones(tree):
        kept = adopted(node) if adopting else None
        if kept is None:
            large.append(node)
        else:
            copies[id(node)] = kept
    sources = [view_host(node) for node in large]
    made = [torch.empty_like(source) for source in sources]
    copy_all(made, sources)
    copies.update({id(node): copy for node, copy in zip(large, made, strict=True)})

    def leaf(node: HostTensor | Tagged, inner: Rebuild) -> Any:
        if isinstance(node, HostTensor):
            copy = copies.get(id(node))
            return view_host(node).clone() if copy is None else copy
        return _native_tagged(node, inner, devices)

    return rebuild(tree, leaf)


def _native_tagged(node: Tagged, inner: Rebuild, devices: bool) -> Any:
    kind, value = node.kind, node.value
    if kind == "torch.tensor":
        return _native_tensor(value, devices)
    if kind == "torch.sparse":
        return _native_sparse(value, inner)
    if kind == "torch.generator":
        generator = torch.Generator(torch.device(value["device"]))
        generator.set_state(inner(value["state"]))
        return generator
    if kind == "torch.Size":
        return torch.Size(value)
    if kind == "torch.device":
        return torch.device(value)
    if kind in _CONSTANTS.values():
        return _constant(kind, value)
    return native_leaf(node)


def _constant(kind: str, name: str) -> Any:
    found = getattr(torch, name, None)
    if _CONSTANTS.get(type(found)) != kind:
        raise CheckpointUnsupported(
            problem=f"The checkpoint names the {kind} {name!r}, which torch {torch.__version__} lacks.",
            remedy="Install a newer torch.",
        )
    return found


def _native_tensor(value: Tree, devices: bool) -> torch.Tensor:
    source = view_leaf(value)
    # clone() keeps the strides of gapless memory, whatever their order.
    made = source.clone()
    if devices and "device" in value:
        made = made.to(_at_hand(value["device"]))
    if "parameter" in value:
        return torch.nn.Parameter(made, requires_grad=value["parameter"])
    return made.requires_grad_() if value.get("requires_grad") else made


def _native_sparse(value: Tree, inner: Rebuild) -> torch.Tensor:
    parts, size = [inner(part) for part in value["parts"]], value["size"]
    if value["layout"] == "sparse_coo":
        indices, values = parts
        return torch.sparse_coo_tensor(
            indices, values, size, device=values.device, is_coalesced=value["coalesced"], check_invariants=True
        )
    layout = _constant("torch.layout", value["layout"])
    compressed, plain, values = parts
    return torch.sparse_compressed_tensor(
        compressed, plain, values, size, layout=layout, device=values.device, check_invariants=True
    )


def _at_hand(name: str) -> torch.device:
    """The device of that name if this machine has it, else the first of its kind, else the CPU."""
    device = torch.device(name)
    module = getattr(torch, device.type, None)
    count = module.device_count() if module is not None and module.is_available() else 0
    if count == 0:
        return torch.device("cpu")
    return device if (device.index or 0) < count else torch.device(device.type, 0)

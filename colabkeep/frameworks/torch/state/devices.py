"""Devices that nobody has tried: whether a state can be copied from there is found out at the start, on this machine.

Seen to work are the CPU and CUDA (ROCm is CUDA to torch). Of any other, one small tensor is captured for real and
written back: torch's lazy devices, XLA among them, have no memory to copy from, and training would die at its first
save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from colabkeep.vocabulary.errors import NotStorable

__all__ = ["refuse_devices"]

_SEEN = ("cpu", "cuda", "meta")  # of the meta device, the parts themselves are refused with a remedy of their own


def refuse_devices(tensors: Iterable[torch.Tensor], capture: Callable[[Mapping[str, object]], torch.Tensor]) -> None:
    """Raise where a tensor is on a device whose state cannot be copied. `capture`: captures parts, here a module named
    "trial" with one buffer named "tensor", and gives what is stored of that buffer.

    Raises:
        NotStorable: with the remedy.
    """
    smallest: dict[str, torch.Tensor] = {}
    for tensor in tensors:
        kind = tensor.device.type
        if kind not in _SEEN and tensor.numel() <= _size(smallest.get(kind)):
            smallest[kind] = tensor
    for kind, tensor in smallest.items():
        try:
            if tensor.numel() and not tensor.data_ptr():
                raise RuntimeError("its tensors have no memory that can be read")
            trial = torch.nn.Module()
            trial.register_buffer("tensor", tensor.detach())
            there, stored = tensor.detach().cpu(), capture({"trial": trial})
            back = torch.empty_like(tensor.detach()).copy_(stored).cpu()
            works, why = _same(there, stored) and _same(there, back), "what came back were other numbers"
        except Exception as error:  # noqa: BLE001  # whatever this device raises, the answer is the same
            works, why = False, f"{error}".partition("\n")[0][:200] or type(error).__name__
        if not works:
            raise NotStorable(
                problem=f"The model is on a device of the kind {kind!r}, and its state cannot be copied from there "
                f"({why}). Training would end at its first save, with nothing kept.",
                remedy="Nothing was begun. Train on a GPU with CUDA or on the CPU: choose such a machine (on Colab: "
                'Runtime → Change runtime type → T4 GPU), and model.to("cuda") before the optimizer is built.',
                path=kind,
            )


def _size(tensor: torch.Tensor | None) -> float:
    return float("inf") if tensor is None else tensor.numel()


def _same(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and torch.equal(_bytes(one), _bytes(other)))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)

"""A model with the state of a training: weights and Adam's moments, of a given size in megabytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["built", "copied", "size", "stirred", "tensors", "trained"]


def built(megabytes: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Linear layers and Adam. Their numbers are not initialised: that is the user's time, not a checkpoint's."""
    width = 1024 if megabytes > 50 else 128
    layers = max(1, round(megabytes * 1e6 / (12 * width * (width + 1))))
    with torch.device("meta"):
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    model = model.to_empty(device="cpu")
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def trained(megabytes: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The same, with numbers, after one step."""
    model, optimizer = built(megabytes)
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.03, 0.03)
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All tensors of the state."""
    moments = [value for entry in optimizer.state.values() for value in entry.values()]
    return [*(parameter.detach() for parameter in model.parameters()), *moments]


def size(state: Sequence[torch.Tensor]) -> int:
    """Bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state)


def stirred(state: Sequence[torch.Tensor]) -> None:
    """Change every tensor a little, so that nothing can be stored by reference to what was stored before."""
    for tensor in state:
        tensor.view(-1)[0] += 1


def copied(state: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Ready buffers: of the state's sizes, their memory touched."""
    return [tensor.clone() for tensor in state]

"""What `torch.nn.SyncBatchNorm` calls on a card and the CPU build of torch has no kernels for: by its definitions, out
of operations that the simulated device has."""

from __future__ import annotations

import torch

__all__ = ["register"]

Tensor = torch.Tensor
_LIBRARIES: list[torch.library.Library] = []


def register() -> None:
    """For the rest of this process."""
    library = torch.library.Library("aten", "IMPL")
    for function in (stats, gather_stats_with_counts, elemt, backward_reduce, backward_elemt):
        library.impl(f"batch_norm_{function.__name__}", function, "CUDA")
    _LIBRARIES.append(library)  # it takes its kernels along when it goes


def _others(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _wide(channels: Tensor, x: Tensor) -> Tensor:
    return channels.reshape(1, -1, *[1] * (x.dim() - 2))


def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean, and one by the deviation, of each channel."""
    mean = x.mean(_others(x))
    return mean, ((x - _wide(mean, x)).square().mean(_others(x)) + eps).rsqrt()


def gather_stats_with_counts(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Those of all processes together (a row each), weighted by how many numbers each has; the running ones follow."""
    counts, total = counts.view(-1, 1), counts.sum()
    whole = (mean * counts).sum(0) / total
    var = ((invstd.square().reciprocal() - eps + (mean - whole).square()) * counts).sum(0) / total
    for running, now in ((running_mean, whole), (running_var, var * total / (total - 1))):
        if running is not None:
            running.mul_(1 - momentum).add_(now * momentum)
    return whole, (var + eps).rsqrt()


def elemt(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    """The layer's result."""
    out = (x - _wide(mean, x)) * _wide(invstd, x)
    out = out if weight is None else out * _wide(weight, x)
    return out if bias is None else out + _wide(bias, x)


def backward_reduce(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    of_x: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The sums of the gradient and of its product with the deviations; the gradients of weight and bias."""
    total = grad.sum(_others(x))
    product = (grad * (x - _wide(mean, x))).sum(_others(x))
    return total, product, product * invstd if of_weight else None, total.clone() if of_bias else None


def backward_elemt(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    total: Tensor,
    product: Tensor,
    counts: Tensor,
) -> Tensor:
    """The gradient of what went in; `total` and `product` are those of all processes."""
    whole = counts.sum()
    deviation = (x - _wide(mean, x)) * _wide(invstd.square() * product / whole, x)
    scale = invstd if weight is None else invstd * weight
    return (grad - _wide(total / whole, x) - deviation) * _wide(scale, x)

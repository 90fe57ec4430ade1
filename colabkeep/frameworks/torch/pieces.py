"""Batches computed in pieces by torch, and what it says where memory runs out."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.shared.training import cut, part

cuda: Any = torch.cuda

# torch.OutOfMemoryError is newer than 2.4, where its name was in torch.cuda; later that is another name of the same.
_FULL: tuple[type[Exception], ...] = tuple(
    {getattr(torch, "OutOfMemoryError", cuda.OutOfMemoryError), cuda.OutOfMemoryError}
)
_LIBRARIES = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""What libraries that allocate beside torch have it say, as a RuntimeError."""

_TRIED = 4  # samples by which a loss is tried
_NEAR = {torch.float64: 1e-6, torch.float32: 1e-3}  # TF32 and sums in another order; of 16 bits: 1e-2


def _near(whole: Any, mean: float, values: Sequence[float]) -> bool:
    """Is the loss of the whole, the first of the values, as near to the mean of its pieces as rounding leaves it?"""
    near = _NEAR.get(whole.dtype, 1e-2) if isinstance(whole, torch.Tensor) else 1e-6
    return abs(values[0] - mean) <= near * max(map(abs, (*values, mean)))


def is_out_of_memory(error: BaseException) -> bool:
    """Did a device have too little memory for what was to be computed?"""
    if isinstance(error, _FULL):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _LIBRARIES)


class TorchPieces:
    """The batches of one training in pieces; see `Pieces`. `backward` and `loss`: those of the training; `loss` is
    called without a graph and in the precision of training."""

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        loss_fn: object,
        backward: Callable[..., Any],
        loss: Callable[[Any], Any],
        clear: Callable[[], None],
    ) -> None:
        self._model, self._device = model, device
        self._mean_over = _mean_over(loss_fn)
        self._backward, self._loss, self._clear = backward, loss, clear
        self.card = ""
        if device.type == "cuda":
            facts = cuda.get_device_properties(device)
            self.card = f"{facts.name}, {facts.total_memory / 2**30:.0f} GB"

    def backward(self, batch: Any, samples: int | None, micro: int | None, share: float) -> Any:
        pieces = cut(batch, samples, micro)
        if len(pieces) == 1:
            return self._backward(batch, share=share)
        shares = self._shares(pieces)
        return sum(
            self._backward(piece, share=share * own) * own
            for (piece, _), own in zip(pieces, shares, strict=True)
            if own  # the mean over nothing would be no number
        )

    def check(self, batch: Any, samples: int) -> str:
        tried = part(batch, samples, 0, min(samples, _TRIED))
        count = min(samples, _TRIED)
        self._model.eval()  # else dropout differs, and a layer that looks at all samples is told of by `across`
        try:
            whole = self._loss(tried)
            pieces = [(part(tried, count, begin, end), end - begin) for begin, end in ((0, 1), (1, count))]
            losses = [self._loss(piece) for piece, _ in pieces]
            values = [float(each) for each in (whole, *losses)]
        except Exception as error:  # noqa: BLE001  # of the user's code, which need not know that mode
            return f"in evaluation mode it ended with {type(error).__name__}: {str(error).partition(chr(10))[0]:.120}"
        shares = self._shares(pieces)
        mean = sum(value * own for value, own in zip(values[1:], shares, strict=True) if own)
        if not _near(whole, mean, values):
            raise _no_mean(values[0], mean, count)
        return ""

    def across(self) -> Sequence[str]:
        kind = torch.nn.modules.batchnorm._BatchNorm
        return [
            name or type(each).__name__
            for name, each in self._model.named_modules()
            if isinstance(each, kind) and (each.training or not each.track_running_stats)
        ]

    def streams(self) -> object:
        states = [torch.get_rng_state()]
        if self._device.type == "cuda":
            states.append(cuda.get_rng_state(self._device))
        return [state.tolist() for state in states]

    def is_out_of_memory(self, error: BaseException) -> bool:
        return is_out_of_memory(error)

    def release(self) -> None:
        self._clear()
        gc.collect()  # graphs and exceptions that refer to themselves
        if self._device.type == "cuda":
            cuda.empty_cache()  # whole segments go back to the driver, so no half-filled ones are left
            cuda.reset_peak_memory_stats(self._device)  # what did not fit is no peak of a step

    def _shares(self, pieces: Sequence[tuple[Any, int]]) -> list[float]:
        """What each piece counts in the mean over its batch; together 1."""
        weights = [float(samples) for _, samples in pieces]
        if self._mean_over is not None:
            counted = [self._mean_over(piece, samples) for piece, samples in pieces]
            weights = counted if any(counted) else weights
        whole = sum(weights)
        return [weight / whole for weight in weights]


class TriedLoss:
    """A loss function of several processes, which tries itself in the first call behind `begin`: is the loss of a batch
    the mean of those of its samples? Else it is another one of the parts that the processes have."""

    def __init__(self, loss_fn: Callable[[Any, Any], Any], device: torch.device) -> None:
        self._loss_fn = loss_fn
        self._devices = [device] if device.type == "cuda" else []
        self._untried = False
        self.differs = ""
        """The two numbers, a clause, where it is not the mean. Empty where it is, or where that could not be tried: a
        batch of one sample, outputs that cannot be cut, an error for fewer samples."""

    def begin(self) -> None:
        """The next call is the first one of a run. A later session of it does not try again: to be asked more often
        might change what the user's function remembers."""
        self._untried = True

    def __call__(self, output: Any, target: Any) -> Any:
        if self._untried:
            self._untried = False
            with torch.random.fork_rng(self._devices), torch.no_grad():
                self.differs = self._tried(output, target)
        return self._loss_fn(output, target)

    def _tried(self, output: Any, target: Any) -> str:
        try:
            loss_fn = copy.deepcopy(self._loss_fn) if isinstance(self._loss_fn, nn.Module) else self._loss_fn
            samples = len(output)
            count = min(samples, _TRIED)
            if count < 2:
                return ""
            some = part((output, target), samples, 0, count)
            whole, *two = (loss_fn(*each) for each in (some, part(some, count, 0, 1), part(some, count, 1, count)))
            values = [float(each) for each in (whole, *two)]
        except Exception:  # noqa: BLE001  # of the user's code, which need not know so few samples
            return ""
        mean = (values[1] + values[2] * (count - 1)) / count
        if _near(whole, mean, values):
            return ""
        return f"of {count} samples at once it is {values[0]:.6g}, of the same in two parts {mean:.6g}"


_ENTROPIES = (functional.cross_entropy, functional.nll_loss)


def _mean_over(loss_fn: Any) -> Callable[[Any, int], float] | None:
    """The weight of a batch in torch's own losses whose mean is not over samples, but over the targets that are not
    ignored, by the weights of their classes. None for any other loss."""
    words: dict[str, Any] = {}
    if isinstance(loss_fn, partial):
        words, loss_fn = dict(loss_fn.keywords), loss_fn.func
    if type(loss_fn) in (nn.CrossEntropyLoss, nn.NLLLoss):
        words = {"ignore_index": loss_fn.ignore_index, "weight": loss_fn.weight}
    elif not any(loss_fn is each for each in _ENTROPIES):
        return None
    ignored, weight = words.get("ignore_index", -100), words.get("weight")

    def counted(batch: Any, samples: int) -> float:
        target = batch[-1]
        if not isinstance(target, torch.Tensor) or target.is_floating_point():
            return float(samples)  # probabilities: the mean is over samples
        kept = target[target != ignored]
        return float(kept.numel() if weight is None else weight.to(kept.device)[kept].sum())

    return counted


def _no_mean(whole: float, mean: float, count: int) -> UsageError:
    return UsageError(
        problem="micro_batch needs a loss that is the mean of the losses of its samples, and this one is not: of "
        f"{count} samples at once it is {whole:.6g}, of the same in two pieces {mean:.6g}. In pieces, the training "
        "would be another one.",
        remedy='If it is a sum, take the mean (reduction="mean"). If it is a mean over words or pixels that are not '
        "ignored, or weighted by class, pass torch.nn.CrossEntropyLoss(ignore_index=…, weight=…) itself as loss_fn: "
        "colabkeep can split that. If it compares the samples of a batch (contrastive), it cannot be split: leave out "
        "micro_batch.",
    )

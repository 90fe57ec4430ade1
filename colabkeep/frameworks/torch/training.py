"""The arithmetic of a training loop in PyTorch: precision, accumulation, clipping, evaluation; and what it refuses."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.base import Batch, TrainingOptions
from colabkeep.frameworks.shared.training import (
    Objective,
    as_number,
    check_functions,
    check_held,
    check_one_loss,
    half_weights,
    moved,
    no_gradient,
    unfit_loss,
    unfit_number,
    unknown_precision,
    wrong_kind,
)

__all__ = [
    "RunningMean",
    "TorchTraining",
    "autocast",
    "check_options",
    "gradient_scaler",
    "one_number",
    "refuse_loss",
    "resolve_precision",
    "to_device",
]


def check_options(options: TrainingOptions) -> None:
    """Refuse what cannot be meant so, before the first batch.

    Raises:
        UsageError: the sentence says which option, and what to pass instead.
    """
    model, optimizer = options.model, options.optimizer
    if not isinstance(model, torch.nn.Module):
        remedy = "Pass the model object itself, for example resumable_fit(MyModel(), …)."
        raise wrong_kind("model", model, "torch.nn.Module", remedy)
    if not isinstance(optimizer, torch.optim.Optimizer):
        remedy = "Pass an optimizer object, for example torch.optim.AdamW(model.parameters(), lr=1e-3)."
        raise wrong_kind("optimizer", optimizer, "torch.optim.Optimizer", remedy)
    check_held(model.parameters(), (p for group in optimizer.param_groups for p in group["params"]))
    check_one_loss(optimizer)
    check_functions(options)
    for name, metric in (options.metrics or {}).items():
        if isinstance(metric, type) or not callable(metric):
            kind = f"the class {metric.__name__}" if isinstance(metric, type) else f"a {type(metric).__name__}"
            raise UsageError(
                problem=f"The metric {name!r} is {kind}.",
                remedy="Pass a function of (output, target) that returns a number, or an object that can be called so.",
            )


def one_number(name: str, value: Any) -> Any:
    """`value` if it is a number or a tensor of one, for a running mean; nothing waits for the device.

    Raises:
        UsageError: it is anything else.
    """
    if not isinstance(value, torch.Tensor):
        return as_number(name, value)
    if value.dim():
        raise unfit_number(name, f"a tensor of shape {tuple(value.shape)}")
    return value


def refuse_loss(loss: Any, own_step: bool) -> UsageError:
    """Why a backward pass cannot start from this value."""
    if not isinstance(loss, torch.Tensor):
        return unfit_loss(loss, None, own_step)
    if loss.dim():
        return unfit_loss(loss, tuple(loss.shape), own_step)
    return no_gradient(own_step, ".detach(), .item(), torch.no_grad() or argmax", "requires_grad_(False)")


_HALF = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def resolve_precision(precision: str, device: torch.device) -> str:
    """What `precision` means on `device`: "32-true", "16-mixed" or "bf16-mixed".

    "auto" is bfloat16 where the GPU computes in it (capability 8.0), float16 where it has tensor cores for
    that (7.0: V100, T4), else float32. `torch.cuda.is_bf16_supported()` is not asked: it
    also says yes where bfloat16 is emulated, which is slower than float32.

    Raises:
        UsageError: none of the known words.
    """
    if precision in ("32-true", *_HALF):
        return precision
    if precision != "auto":
        raise unknown_precision(precision)
    if device.type != "cuda":
        return "32-true"
    major, _ = torch.cuda.get_device_capability(device)
    return "bf16-mixed" if major >= 8 else "16-mixed" if major >= 7 else "32-true"


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The context of a forward pass. One object serves a whole run: building it costs more than entering it.

    Raises:
        UsageError: this torch cannot compute in that precision on that device.
    """
    if precision not in _HALF:
        return contextlib.nullcontext()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # where torch cannot, it warns and computes in float32
            return torch.autocast(device.type, dtype=_HALF[precision])
    except (RuntimeError, UserWarning) as error:
        raise UsageError(
            problem=f"precision={precision!r} is not possible on {device} with torch {torch.__version__}: {error}",
            remedy='Pass precision="auto", which takes what this machine can do, or "32-true".',
        ) from error


def gradient_scaler(
    precision: str, device: torch.device, optimizer: torch.optim.Optimizer
) -> torch.amp.GradScaler | None:
    """A scaler where gradients could vanish in float16; None where none is needed.

    Raises:
        UsageError: the weights themselves are float16.
    """
    if precision != "16-mixed":
        return None
    if any(p.dtype == torch.float16 for group in optimizer.param_groups for p in group["params"]):
        raise half_weights(
            "float16",
            'Call model.float() before building the optimizer, or pass precision="32-true" '
            "to compute in the weights' own type.",
        )
    return torch.amp.GradScaler(device.type)


_GATHERED = 256  # numbers added in one go, 0.3 µs each; one by one 2 µs, and 6 among the steps of a model


class RunningMean:
    """A mean that adds on its device, in float64, and waits only when read.

    Saved and loaded, it goes on with the same bits. On the CPU, numbers are gathered and added many at a time,
    always at the same counts, wherever it was saved. On a GPU they are added at once: a graph that is played
    again writes its next loss over the last one.
    """

    def __init__(self, device: torch.device) -> None:
        # Apple's GPUs have no float64.
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._sum = torch.zeros((), dtype=self._dtype, device=device)
        self._weight = 0.0
        self._gathers = device.type == "cpu"
        self._values: list[float] = []
        self._weights: list[float] = []

    def add(self, value: Any, weight: float) -> None:
        """Count `value`, a number or a tensor of one number without a graph, with `weight`."""
        self._weight += weight
        if not self._gathers:
            self._sum.add_(value, alpha=weight)
            return
        self._values.append(value if value.__class__ is float else float(value))
        self._weights.append(weight)
        if len(self._values) == _GATHERED:
            self._sum = self._total()
            self._values, self._weights = [], []

    def value(self) -> float | None:
        """The mean so far, None of nothing. Waits for the device."""
        return float(self._total().item()) / self._weight if self._weight else None

    def reset(self) -> None:
        """Begin anew, with nothing."""
        self._sum.zero_()
        self._weight = 0.0
        self._values, self._weights = [], []

    def state_dict(self) -> dict[str, Any]:
        """The sum and the weights, as copies, and what is gathered but not added yet."""
        return {
            "sum": self._sum.clone(),
            "weight": self._weight,
            "values": self._gathered(),
            "weights": list(self._weights),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; that of the first versions had gathered nothing."""
        self._sum.copy_(state_dict["sum"])
        self._weight = float(state_dict["weight"])
        self._values = list(map(float, state_dict.get("values", ())))
        self._weights = list(state_dict.get("weights", ()))

    def _gathered(self) -> torch.Tensor:
        return torch.tensor(self._values, dtype=self._dtype, device=self._sum.device)

    def _total(self) -> torch.Tensor:
        if not self._values:
            return self._sum
        return (
            self._sum
            + (self._gathered() * torch.tensor(self._weights, dtype=self._dtype, device=self._sum.device)).sum()
        )


def to_device(value: Any, device: torch.device) -> Any:
    """`value` with every tensor in it on `device`; containers keep their type, the user's are not changed.

    Knows tensors, tuples, named tuples, lists, mappings, dataclasses and objects with a `to` of their own;
    anything else stays as it is. Copies from pinned memory overlap with computing. For a CPU
    model nothing is looked at: batches are made there.
    """
    if device.type == "cpu":
        return value

    def move(member: Any) -> Any:
        if isinstance(member, torch.Tensor):
            return member.to(device, non_blocking=True)  # the same object where nothing has to move
        return member.to(device, **_non_blocking(member.to))

    return moved(value, _moves, move)


def _moves(member: Any) -> bool:
    return callable(getattr(member, "to", None)) and not isinstance(member, type)


def _non_blocking(to: Any) -> dict[str, bool]:
    parameters = inspect.signature(to).parameters
    takes = "non_blocking" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {"non_blocking": True} if takes else {}


# Between two calls nothing waits for the device: losses stay where they are, batches are sent ahead. (The one wait
# there is belongs to float16: before an update torch's gradient scaler has to know whether the gradients are finite.)


class TorchTraining:
    """Forward, backward and update of one model with one optimizer.

    `precision` is what "auto" became on this machine. The device is that of the model's first
    parameter, found once: move the model before, not during training.

    Raises:
        UsageError: model, optimizer, precision or metrics do not fit together.
    """

    def __init__(self, options: TrainingOptions) -> None:
        check_options(options)
        self._model = options.model
        self._optimizer = options.optimizer
        self._objective = Objective(options)
        self._metrics = dict(options.metrics or {})
        self.measures: Sequence[str] = ("loss", *self._metrics)
        self._clip = options.gradient_clip_val
        self._device = next(options.model.parameters()).device
        self.precision = resolve_precision(options.precision, self._device)
        self._autocast = autocast(self.precision, self._device)
        self._here = self._device.type == "cpu"  # nothing to move, and a loss is read without a wait
        self._plain = self._here and self.precision == "32-true"  # nor to cast
        self._scaler = gradient_scaler(self.precision, self._device, options.optimizer)
        self.scaler: object | None = self._scaler

    def train(self) -> None:
        """Put the model into training mode and clear gradients."""
        self._model.train()
        self._optimizer.zero_grad(set_to_none=True)

    def backward(self, batch: Any, *, share: float) -> torch.Tensor | float:
        """Forward and backward of one micro-batch; its loss, unscaled: detached, on its device, or a number on the CPU.

        Raises:
            UsageError: the batch or the loss is not of the form that training needs.
        """
        if self._plain:
            loss = self._objective.loss(batch)
        else:
            with self._autocast:
                loss = self._objective.loss(to_device(batch, self._device))
        if not isinstance(loss, torch.Tensor) or loss.dim() or not loss.requires_grad:
            raise refuse_loss(loss, self._objective.own_step)
        scaled = loss if share == 1.0 else loss * share
        if self._scaler is not None:
            scaled = self._scaler.scale(scaled)
        scaled.backward()  # type: ignore[no-untyped-call]
        return loss.item() if self._here else loss.detach()

    def step(self) -> None:
        """Unscale, clip, one optimizer update (float16: none if a gradient is not finite), clear gradients."""
        scaler = self._scaler
        if self._clip is not None:
            if scaler is not None:
                scaler.unscale_(self._optimizer)
            # The parameters of now: groups may have been added since the start (unfreezing).
            held = [p for group in self._optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(held, self._clip)
        if scaler is None:
            self._optimizer.step()
        else:
            scaler.step(self._optimizer)
            scaler.update()
        self._optimizer.zero_grad(set_to_none=True)

    def mean(self) -> RunningMean:
        """A new running mean of losses, on the model's device."""
        return RunningMean(self._device)

    def learning_rate(self) -> float:
        """That of the first parameter group, now."""
        return float(self._optimizer.param_groups[0]["lr"])

    def evaluate(self, batches: Iterator[Batch]) -> dict[str, float]:
        """Mean loss ("loss") and metrics, weighted by samples (a batch of unknown size counts as one).

        Evaluation mode, no gradients, the precision of training. Afterwards every module has the mode it
        had: one that the user keeps in evaluation mode stays there. Empty when there are no batches.

        Raises:
            UsageError: a loss or a metric is not one number.
        """
        means = {name: self.mean() for name in self.measures}
        modes = [(module, module.training) for module in self._model.modules()]
        self._model.eval()
        try:
            with torch.no_grad():
                for batch in batches:
                    weight = 1.0 if batch.samples is None else float(batch.samples)
                    with self._autocast:
                        measured = self._objective.measured(to_device(batch.value, self._device), self._metrics)
                    for name, value in measured.items():
                        means[name].add(one_number(name, value), weight)
        finally:
            for module, mode in modes:
                module.training = mode
        found = {name: mean.value() for name, mean in means.items()}
        return {name: value for name, value in found.items() if value is not None}

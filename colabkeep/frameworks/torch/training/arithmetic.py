"""The arithmetic of a training loop in PyTorch: precision, accumulation, clipping, evaluation.

Between two calls nothing waits for the device: losses stay where they are, batches are sent ahead.
(The one wait there is belongs to float16: before an update torch's gradient scaler has to know whether
the gradients are finite.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from colabkeep.frameworks.base import Batch, TrainingOptions
from colabkeep.frameworks.common.objective import Objective
from colabkeep.frameworks.torch.training.checks import check_options, one_number, refuse_loss
from colabkeep.frameworks.torch.training.means import RunningMean
from colabkeep.frameworks.torch.training.precision import autocast, gradient_scaler, resolve_precision
from colabkeep.frameworks.torch.training.transfer import to_device

__all__ = ["TorchTraining"]


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

"""The arithmetic of a training loop in Paddle: precision, accumulation, clipping, evaluation.

Between two calls nothing waits for the device: losses stay where they are, batches are sent ahead.
(The waits there are belong to float16, whose gradient scaler has to know before an update whether the gradients are
finite, and to the objects of `paddle.metric`, which count in NumPy.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import paddle

from colabkeep.frameworks.base import Batch, TrainingOptions
from colabkeep.frameworks.common.objective import Objective
from colabkeep.frameworks.paddle.training.checks import check_options, held_parameters, one_number, refuse_loss
from colabkeep.frameworks.paddle.training.means import RunningMean
from colabkeep.frameworks.paddle.training.metrics import counted, functions
from colabkeep.frameworks.paddle.training.precision import autocast, gradient_scaler, resolve_precision, weights_type
from colabkeep.frameworks.paddle.training.transfer import to_place

__all__ = ["PaddleTraining"]


class PaddleTraining:
    """Forward, backward and update of one model with one optimizer.

    `precision` is what "auto" became on this machine; a model decorated by `paddle.amp.decorate(level="O2")` trains
    at level O2. The device is that of the model's first parameter, found once: move the model before, not during
    training.

    Raises:
        UsageError: model, optimizer, scheduler, precision or metrics do not fit together.
    """

    def __init__(self, options: TrainingOptions) -> None:
        check_options(options)
        self._model = options.model
        self._optimizer = options.optimizer
        self._objective = Objective(options)
        self._functions = functions(options.metrics)
        self._counted = counted(options.metrics)
        own = (name for each in self._counted.values() for name in each.names)
        self.measures: Sequence[str] = ("loss", *self._functions, *own)
        clip = options.gradient_clip_val
        self._clip = None if clip is None else paddle.nn.ClipGradByGlobalNorm(clip)
        self._place = options.model.parameters()[0].place
        weights = weights_type(options.model)
        self.precision = resolve_precision(options.precision, self._place, weights)
        self._autocast = autocast(self.precision, weights, options.optimizer)
        self._plain = self._place.is_cpu_place()  # nothing to move, and nothing that could be cast
        self._scaler = gradient_scaler(self.precision)
        self.scaler: object | None = self._scaler

    def train(self) -> None:
        """Put the model into training mode and clear gradients."""
        self._model.train()
        self._clear()

    def backward(self, batch: Any, *, share: float) -> paddle.Tensor:
        """Forward and backward of one micro-batch; its loss, unscaled, detached, on its device.

        Raises:
            UsageError: the batch or the loss is not of the form that training needs.
        """
        if self._plain:
            loss = self._objective.loss(batch)
        else:
            with self._autocast():
                loss = self._objective.loss(to_place(batch, self._place))
        if not isinstance(loss, paddle.Tensor) or loss.ndim or loss.stop_gradient:
            raise refuse_loss(loss, self._objective.own_step)
        scaled = loss if share == 1.0 else loss * share
        if self._scaler is not None:
            scaled = self._scaler.scale(scaled)
        scaled.backward()
        return loss.detach()

    def step(self) -> None:
        """Unscale, clip, one optimizer update (float16: none if a gradient is not finite), clear gradients."""
        scaler = self._scaler
        if self._clip is not None:
            if scaler is not None:
                scaler.unscale_(self._optimizer)
            self._clip_gradients(self._clip)
        if scaler is None:
            self._optimizer.step()
        else:
            scaler.step(self._optimizer)
            scaler.update()
        self._clear()

    def mean(self) -> RunningMean:
        """A new running mean of losses, on the model's device."""
        return RunningMean(self._place)

    def learning_rate(self) -> float:
        """That of the first parameter group, now."""
        return float(self._optimizer.get_lr())

    def evaluate(self, batches: Iterator[Batch]) -> dict[str, float]:
        """Mean loss ("loss") and metrics, weighted by samples (a batch of unknown size counts as one); objects of
        `paddle.metric` weigh as they do anywhere.

        Evaluation mode, no gradients, the precision of training. Afterwards every layer has the mode it
        had: one that the user keeps in evaluation mode stays there. Empty when there are no batches.

        Raises:
            UsageError: a loss or a metric is not one number.
        """
        means = {name: self.mean() for name in ("loss", *self._functions)}
        metrics = {**self._functions, **self._counted}
        modes = [(layer, layer.training) for layer in self._model.sublayers(include_self=True)]
        self._model.eval()
        self._reset_counted()
        try:
            with paddle.no_grad():
                for batch in batches:
                    weight = 1.0 if batch.samples is None else float(batch.samples)
                    with self._autocast():
                        measured = self._objective.measured(to_place(batch.value, self._place), metrics)
                    for name, mean in means.items():
                        mean.add(one_number(name, measured[name]), weight)
            found = {name: value for name, mean in means.items() if (value := mean.value()) is not None}
            return {**found, **{n: v for each in self._counted.values() for n, v in each.results()}} if found else {}
        finally:
            self._reset_counted()
            if modes[0][1]:
                self._model.train()  # Paddle keeps a mode of its own beside those of the layers
            for layer, mode in modes:
                layer.training = mode

    def _clip_gradients(self, clip: Any) -> None:
        held = [(p, p.grad) for p in held_parameters(self._optimizer) if p.grad is not None]
        for parameter, gradient in clip(held):
            parameter.grad = gradient

    def _clear(self) -> None:
        # Not to zero, which is Paddle's default: an optimizer also moves a parameter whose gradient is zero, but not
        # one that has none, so that a parameter unused in a step would fare differently after a resume.
        self._optimizer.clear_grad(set_to_zero=False)

    def _reset_counted(self) -> None:
        for metric in self._counted.values():
            metric.reset()

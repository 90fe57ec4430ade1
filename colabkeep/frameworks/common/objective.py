"""What a training minimizes and measures, as the user wrote it: functions of outputs and targets, of any framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colabkeep.frameworks.base import TrainingOptions
from colabkeep.frameworks.common.refusals import unfit_batch

__all__ = ["Objective"]

_PAIR = frozenset({tuple, list})


class Objective:
    """Applies `loss_fn` or `step_fn`, and metrics, to a model and a batch that is on its device."""

    def __init__(self, options: TrainingOptions) -> None:
        self.model = options.model
        self.own_step = options.step_fn is not None
        self._loss_fn: Any = options.loss_fn
        self._step_fn: Any = options.step_fn

    def loss(self, batch: Any) -> Any:
        """The loss of one batch, as the user's function returned it.

        Raises:
            UsageError: loss_fn cannot be used on this batch.
        """
        if self.own_step:
            return self._step_fn(self.model, batch)
        if type(batch) in _PAIR and len(batch) == 2:
            return self._loss_fn(self.model(batch[0]), batch[1])  # nearly always: no need to look closer
        return self._applied(batch)[0]

    def measured(self, batch: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """ "loss", and what each metric returns for the batch.

        Raises:
            UsageError: loss_fn cannot be used on this batch.
        """
        if self.own_step:
            return {"loss": self._step_fn(self.model, batch)}
        loss, output, target = self._applied(batch)
        return {"loss": loss, **{name: metric(output, target) for name, metric in metrics.items()}}

    def _applied(self, batch: Any) -> tuple[Any, Any, Any]:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise unfit_batch(batch)
        *inputs, target = batch
        output = self.model(*inputs)
        return self._loss_fn(output, target), output, target

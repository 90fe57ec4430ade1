"""The arithmetic of a training loop in Paddle: precision, accumulation, clipping, metrics, evaluation; and what it
refuses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import paddle

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.base import Batch, Pieces, TrainingOptions
from colabkeep.frameworks.paddle.capture import groups_of
from colabkeep.frameworks.paddle.facts import refuse_static_mode
from colabkeep.frameworks.shared.training import (
    Arithmetic,
    RunningMean,
    as_number,
    by_capability,
    check_functions,
    check_held,
    check_one_loss,
    half_weights,
    moved,
    unknown_precision,
    wrong_kind,
)

_SCHEDULER = paddle.optimizer.lr.LRScheduler


def check_options(options: TrainingOptions) -> None:
    """Refuse what is invalid, before the first batch.

    Raises:
        UsageError: the sentence says which option, and what to pass instead.
    """
    model, optimizer = options.model, options.optimizer
    refuse_static_mode()
    if not isinstance(model, paddle.nn.Layer):
        remedy = "Pass the model object itself, for example resumable_fit(MyModel(), …)"
        inner = ": that is model.network of a paddle.Model." if isinstance(model, paddle.Model) else "."
        raise wrong_kind("model", model, "paddle.nn.Layer", remedy + inner)
    if not isinstance(optimizer, paddle.optimizer.Optimizer):
        remedy = "Pass an optimizer object, for example paddle.optimizer.AdamW(parameters=model.parameters())."
        raise wrong_kind("optimizer", optimizer, "paddle.optimizer.Optimizer", remedy)
    check_held(model.parameters(), held_parameters(optimizer))
    check_one_loss(optimizer)
    check_functions(options)
    _check_scheduler(optimizer, options.scheduler)
    if options.sync_batchnorm:
        raise UsageError(
            problem="sync_batchnorm=True is for several processes, and with Paddle colabkeep trains in one.",
            remedy="Leave it out.",
        )
    if options.gradient_clip_val is not None and _clips(optimizer):
        raise UsageError(
            problem="Gradients would be clipped twice: by gradient_clip_val and by the optimizer's own grad_clip.",
            remedy="Leave out one of the two.",
        )


def held_parameters(optimizer: paddle.optimizer.Optimizer) -> list[Any]:
    """The parameters of now, of all groups: some may have been added since the start (unfreezing)."""
    entries = getattr(optimizer, "_param_groups", None) or optimizer._parameter_list or ()
    return [p for entry in entries for p in (entry["params"] if isinstance(entry, dict) else (entry,))]


def _clips(optimizer: paddle.optimizer.Optimizer) -> bool:
    own = [group.get("grad_clip") for group in groups_of(optimizer)]
    return any(clip is not None for clip in [getattr(optimizer, "_grad_clip", None), *own])


def _check_scheduler(optimizer: paddle.optimizer.Optimizer, scheduler: object) -> None:
    """In Paddle a scheduler acts on the one optimizer whose learning_rate it is: any other would change nothing."""
    own = optimizer._learning_rate
    if isinstance(own, _SCHEDULER) and scheduler is None:
        raise UsageError(
            problem=f"The optimizer's learning rate follows a {type(own).__name__}, which nobody would step.",
            remedy='Pass it as scheduler=… too (and scheduler_interval="step" if it counts steps, not epochs). '
            "One that you step yourself goes with a loop of your own, on colabkeep.Run.",
        )
    if isinstance(scheduler, _SCHEDULER) and own is not scheduler:
        raise UsageError(
            problem=f"The {type(scheduler).__name__} is not the learning rate of this optimizer, "
            "so it would change nothing.",
            remedy="Build the optimizer with it: paddle.optimizer.AdamW(learning_rate=scheduler, …), "
            "and pass the same object as scheduler=….",
        )


_HALF = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}
_MIXED = {kind: precision for precision, kind in _HALF.items()}
_DECORATE = 'model, optimizer = paddle.amp.decorate(models=model, optimizers=optimizer, level="O2"{})'


def weights_type(model: paddle.nn.Layer) -> str | None:
    """ "float16" or "bfloat16" where the model's weights are of 16 bits (`paddle.amp.decorate` leaves those of
    normalizing layers in float32), else None."""
    kinds = {parameter.dtype for parameter in model.parameters()}
    return next((name for name in _MIXED if getattr(paddle, name) in kinds), None)


def resolve_precision(precision: str, place: Any, weights: str | None) -> str:
    """What `precision` means on `place` for weights of that type: "32-true", "16-mixed" or "bf16-mixed".

    "auto" follows weights of 16 bits.

    Raises:
        UsageError: none of the known words, or Paddle cannot compute in that precision there or with these weights.
    """
    if precision not in ("auto", "32-true", *_HALF):
        raise unknown_precision(precision)
    if place.is_cpu_place():
        # Paddle says so in a warning and computes in float32 (auto_cast, GradScaler and decorate, 2.6 and 3.3).
        if precision in _HALF:
            raise UsageError(
                problem=f"precision={precision!r} is not possible on a CPU: Paddle has mixed precision on accelerators "
                "only.",
                remedy='Pass precision="auto", which takes what this machine can do, or "32-true".',
            )
        return "32-true"
    if precision == "auto":
        if weights is not None:
            return _MIXED[weights]
        gpu = place.is_gpu_place()
        return by_capability(paddle.device.cuda.get_device_capability(place.gpu_device_id())[0]) if gpu else "32-true"
    if weights is not None and _HALF.get(precision, weights) != weights:
        raise UsageError(
            problem=f"precision={precision!r} and the model's weights, which are {weights}, contradict each other.",
            remedy=f'Pass precision="{_MIXED[weights]}", or decorate the model for the other type.',
        )
    return precision


def autocast(
    precision: str, weights: str | None, optimizer: paddle.optimizer.Optimizer
) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """What makes the context of a forward pass: one serves once. Level O2 where the weights are of 16 bits.

    Raises:
        UsageError: the weights are of 16 bits, and the optimizer keeps no copy of them in float32.
    """
    if precision not in _HALF:
        return contextlib.nullcontext
    if weights is not None and not getattr(optimizer, "_multi_precision", False):
        kind = "" if weights == "float16" else f', dtype="{weights}"'
        raise half_weights(
            weights,
            f"Let the optimizer keep them: {_DECORATE.format(kind)}, with a model in float32; "
            'or pass precision="32-true" to compute in the weights\' own type.',
        )
    return partial(paddle.amp.auto_cast, level="O1" if weights is None else "O2", dtype=_HALF[precision])


def gradient_scaler(precision: str) -> Any:
    """A scaler where gradients could vanish in float16; None where none is needed."""
    return paddle.amp.GradScaler() if precision == "16-mixed" else None


class DeviceMean(RunningMean):
    """One that adds on a device."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self._dtype = "float64" if place.is_gpu_place() else "float32"  # other accelerators need not have float64
        super().__init__()

    def number(self, value: Any) -> paddle.Tensor:
        if not isinstance(value, paddle.Tensor):
            return paddle.to_tensor(value, dtype=self._dtype, place=self._place)
        here = value.place == self._place
        return (value if here else value._copy_to(self._place, True)).astype(self._dtype)


def mean_on(place: Any) -> RunningMean:
    """A new mean of numbers that are there."""
    return RunningMean() if place.is_cpu_place() else DeviceMean(place)


class Counted:
    """A `paddle.metric.Metric` over one validation: it counts samples itself, so it is no mean over batches.

    Its state is cleared before and after, so that nothing passes from one validation to the next.
    """

    def __init__(self, name: str, metric: paddle.metric.Metric) -> None:
        self.names = _names(name, metric)
        self._metric = metric

    def reset(self) -> None:
        """Forget what was counted."""
        self._metric.reset()

    def __call__(self, output: Any, target: Any) -> None:
        """Count one batch. Waits for the device: the object counts in NumPy."""
        states = _listed(self._metric.compute(*_listed(output), *_listed(target)))
        self._metric.update(*[_plain(state) for state in states])

    def results(self) -> Iterator[tuple[str, float]]:
        """The numbers so far, by name.

        Raises:
            UsageError: they are not numbers, or not as many as the metric has names.
        """
        found = self._metric.accumulate()
        values = list(found) if isinstance(found, (list, tuple)) else [found]
        if len(values) != len(self.names):
            raise UsageError(
                problem=f"The metric {', '.join(self.names)} gave {len(values)} numbers in validation.",
                remedy="Let its accumulate() return one number for each name of its name().",
            )
        yield from ((name, as_number(name, value)) for name, value in zip(self.names, values, strict=True))


def functions(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Those of the user's metrics that are functions.

    Raises:
        UsageError: one is neither a function nor an object of a metric.
    """
    given = dict(metrics or {})
    for name, metric in given.items():
        kind = metric.__name__ if isinstance(metric, type) else type(metric).__name__
        if isinstance(metric, type) and issubclass(metric, paddle.metric.Metric):
            raise UsageError(
                problem=f"The metric {name!r} is the class {kind}, not an object of it.",
                remedy=f'Make one: metrics={{"{name}": paddle.metric.{kind}()}}.',
            )
        if not callable(metric) and not isinstance(metric, paddle.metric.Metric):
            raise UsageError(
                problem=f"The metric {name!r} is a {kind}.",
                remedy="Pass a function of (output, target) that returns a number, or an object of paddle.metric.",
            )
    return {name: metric for name, metric in given.items() if not isinstance(metric, paddle.metric.Metric)}


def counted(metrics: Mapping[str, Any] | None) -> dict[str, Counted]:
    """Those of the user's metrics that are objects. One that gives several numbers uses its own names for them.

    Raises:
        UsageError: two numbers would have one name.
    """
    given = dict(metrics or {})
    found = {name: Counted(name, metric) for name, metric in given.items() if isinstance(metric, paddle.metric.Metric)}
    taken = ["loss", *(name for name in given if name not in found)]
    taken += [name for metric in found.values() for name in metric.names]
    twice = sorted({name for name in taken if taken.count(name) > 1})
    if twice:
        raise UsageError(
            problem=f"Two numbers of a validation would be called {twice[0]!r}.",
            remedy='Give one metric another name: paddle.metric.Accuracy(topk=(1, 5), name="test").',
        )
    return found


def _names(name: str, metric: paddle.metric.Metric) -> list[str]:
    own = metric.name()
    return [name] if isinstance(own, str) or len(own) == 1 else [str(each) for each in own]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _plain(state: Any) -> Any:
    if not isinstance(state, paddle.Tensor):
        return state
    return (state.astype("float32") if state.dtype == paddle.bfloat16 else state).numpy()  # NumPy has no bfloat16


def to_place(value: Any, place: Any) -> Any:
    """`value` with every tensor in host memory copied to `place`; containers keep their type.

    Paddle's own loader gives batches on the device already: these are left alone. For a CPU model
    nothing is looked at: batches are made there.
    """
    return value if place.is_cpu_place() else moved(value, _is_on_host, lambda tensor: tensor._copy_to(place, False))


def _is_on_host(member: Any) -> bool:
    if not isinstance(member, paddle.Tensor):
        return False
    return bool(member.place.is_cpu_place() or member.place.is_cuda_pinned_place())


# Between two calls nothing waits for the device: losses stay where they are, batches are sent ahead. (The waits there
# are belong to float16, whose gradient scaler has to know before an update whether the gradients are finite, and to the
# objects of `paddle.metric`, which count in NumPy.)


class PaddleTraining(Arithmetic):
    """See `Arithmetic`.

    `precision` is what "auto" became on this machine; a model decorated by `paddle.amp.decorate(level="O2")` trains
    at level O2. Objects of `paddle.metric` weigh as they do anywhere.

    Raises:
        UsageError: model, optimizer, scheduler, precision or metrics do not fit together.
    """

    tensor = paddle.Tensor
    breaks = ".detach(), .item(), .numpy(), paddle.no_grad() or argmax"
    frozen = "stop_gradient = True"

    def __init__(self, options: TrainingOptions) -> None:
        check_options(options)
        super().__init__(options)
        self._functions = functions(options.metrics)
        self._counted = counted(options.metrics)
        self._metrics = {**self._functions, **self._counted}
        own = (name for each in self._counted.values() for name in each.names)
        self.measures = ("loss", *self._functions, *own)
        self._clip: Any = paddle.nn.ClipGradByGlobalNorm(options.gradient_clip_val) if self._clips else None
        self._place = options.model.parameters()[0].place
        weights = weights_type(options.model)
        self.precision = resolve_precision(options.precision, self._place, weights)
        self._autocast = autocast(self.precision, weights, options.optimizer)
        self._plain = self._place.is_cpu_place()  # nothing to move, and nothing that could be cast
        self.scaler = gradient_scaler(self.precision)

    def backward(self, batch: Any, *, share: float) -> paddle.Tensor:
        if self._plain:
            loss = self._objective.loss(batch)
        else:
            with self._autocast():
                loss = self._objective.loss(to_place(batch, self._place))
        if not isinstance(loss, paddle.Tensor) or loss.ndim or loss.stop_gradient:
            raise self.refused(loss)
        scaled = loss if share == 1.0 else loss * share
        if self.scaler is not None:
            scaled = self.scaler.scale(scaled)
        scaled.backward()
        return loss.detach()

    def pieces(self) -> Pieces:
        raise UsageError(
            problem="micro_batch cuts batches for torch only: with Paddle, colabkeep computes each batch as a whole.",
            remedy="Leave micro_batch out; before the run begins, choose a smaller batch_size, and a larger "
            "accumulate_grad_batches for as many samples in a step.",
        )

    def mean(self) -> RunningMean:
        return mean_on(self._place)

    def learning_rate(self) -> float:
        return float(self._optimizer.get_lr())

    def evaluate(self, batches: Iterator[Batch]) -> dict[str, float]:
        self._reset_counted()
        try:
            found = super().evaluate(batches)
            return {**found, **{n: v for each in self._counted.values() for n, v in each.results()}} if found else {}
        finally:
            self._reset_counted()

    def averaged(self) -> Sequence[str]:
        return ("loss", *self._functions)

    def modules(self) -> Iterable[Any]:
        found: Iterable[Any] = self._model.sublayers(include_self=True)
        return found

    def clip(self) -> None:
        held = [(p, p.grad) for p in held_parameters(self._optimizer) if p.grad is not None]
        for parameter, gradient in self._clip(held):
            parameter.grad = gradient

    def clear(self) -> None:
        self._optimizer.clear_grad(set_to_zero=False)  # to zero is Paddle's default

    def moved(self, batch: Any) -> Any:
        return to_place(batch, self._place)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return self._autocast()

    def no_grad(self) -> contextlib.AbstractContextManager[Any]:
        context: contextlib.AbstractContextManager[Any] = paddle.no_grad()
        return context

    def _reset_counted(self) -> None:
        for metric in self._counted.values():
            metric.reset()

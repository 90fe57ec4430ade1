"""The arithmetic of a training loop in Paddle: precision, accumulation, clipping, metrics, evaluation; and what it
refuses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import paddle

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.base import Batch, TrainingOptions
from colabkeep.frameworks.paddle.facts import refuse_static_mode
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
    "Counted",
    "PaddleTraining",
    "RunningMean",
    "autocast",
    "check_options",
    "counted",
    "functions",
    "gradient_scaler",
    "held_parameters",
    "one_number",
    "refuse_loss",
    "resolve_precision",
    "to_place",
    "weights_type",
]

_SCHEDULER = paddle.optimizer.lr.LRScheduler


def check_options(options: TrainingOptions) -> None:
    """Refuse what cannot be meant so, before the first batch.

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
    if options.gradient_clip_val is not None and _clips(optimizer):
        raise UsageError(
            problem="Gradients would be clipped twice: by gradient_clip_val and by the optimizer's own grad_clip.",
            remedy="Leave out one of the two.",
        )


def held_parameters(optimizer: paddle.optimizer.Optimizer) -> list[Any]:
    """The parameters of now, of all groups: some may have been added since the start (unfreezing)."""
    entries = getattr(optimizer, "_param_groups", None) or optimizer._parameter_list or ()
    return [p for entry in entries for p in (entry["params"] if isinstance(entry, dict) else (entry,))]


def one_number(name: str, value: Any) -> Any:
    """`value` if it is a number or a tensor of one, for a running mean; nothing waits for the device.

    Raises:
        UsageError: it is anything else.
    """
    if not isinstance(value, paddle.Tensor):
        return as_number(name, value)
    if value.ndim:
        raise unfit_number(name, f"a tensor of shape {tuple(value.shape)}")
    return value


def refuse_loss(loss: Any, own_step: bool) -> UsageError:
    """Why a backward pass cannot start from this value."""
    if not isinstance(loss, paddle.Tensor):
        return unfit_loss(loss, None, own_step)
    if loss.ndim:
        return unfit_loss(loss, tuple(loss.shape), own_step)
    return no_gradient(own_step, ".detach(), .item(), .numpy(), paddle.no_grad() or argmax", "stop_gradient = True")


def _clips(optimizer: paddle.optimizer.Optimizer) -> bool:
    groups = getattr(optimizer, "_param_groups", None) or ()
    own = [group.get("grad_clip") for group in groups if isinstance(group, dict)]
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

    "auto" follows weights of 16 bits; else it is bfloat16 where the GPU computes in it (capability 8.0), float16 where
    it has tensor cores for that (7.0: V100, T4), else float32.

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
        return _MIXED[weights] if weights is not None else _best(place)
    if weights is not None and _HALF.get(precision, weights) != weights:
        raise UsageError(
            problem=f"precision={precision!r} and the model's weights, which are {weights}, contradict each other.",
            remedy=f'Pass precision="{_MIXED[weights]}", or decorate the model for the other type.',
        )
    return precision


def _best(place: Any) -> str:
    if not place.is_gpu_place():
        return "32-true"
    major, _ = paddle.device.cuda.get_device_capability(place.gpu_device_id())
    return "bf16-mixed" if major >= 8 else "16-mixed" if major >= 7 else "32-true"


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


_GATHERED = 256  # losses added in one go: 0.7 µs each; one by one 9


class RunningMean:
    """A mean that adds on its device, in float64, and waits only when read.

    Values are gathered and added many at a time, always at the same counts, wherever it was saved: it goes on
    with the same bits.
    """

    def __init__(self, place: Any) -> None:
        self._place = place
        # Other accelerators need not have float64.
        self._dtype = "float64" if place.is_cpu_place() or place.is_gpu_place() else "float32"
        self._sum = self._tensor(0.0)
        self._weight = 0.0
        self._values: list[paddle.Tensor] = []
        self._weights: list[float] = []

    def add(self, value: Any, weight: float) -> None:
        """Count `value`, a number or a tensor of one number without a graph, with `weight`."""
        self._weight += weight
        self._values.append(value if isinstance(value, paddle.Tensor) else self._tensor(value))
        self._weights.append(weight)
        if len(self._values) == _GATHERED:
            self._sum = self._total()
            self._values, self._weights = [], []

    def value(self) -> float | None:
        """The mean so far, None of nothing. Waits for the device."""
        return float(self._total().item()) / self._weight if self._weight else None

    def reset(self) -> None:
        """Begin anew, with nothing."""
        self._sum = self._tensor(0.0)
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
        """Go on from what `state_dict` returned."""
        self._sum = self._tensor(state_dict["sum"])
        self._weight = float(state_dict["weight"])
        self._weights = list(state_dict["weights"])
        gathered = self._tensor(state_dict["values"])
        self._values = [gathered[i] for i in range(len(self._weights))]

    def _tensor(self, value: Any) -> paddle.Tensor:
        if isinstance(value, paddle.Tensor):
            return value._copy_to(self._place, True).astype(self._dtype)
        return paddle.to_tensor(value, dtype=self._dtype, place=self._place)

    def _gathered(self) -> paddle.Tensor:
        if not self._values:
            return paddle.zeros([0], dtype=self._dtype)
        if len({value.dtype for value in self._values}) > 1:  # what was restored stands beside what was added since
            return paddle.stack([value.astype(self._dtype) for value in self._values])
        return paddle.stack(self._values).astype(self._dtype)

    def _total(self) -> paddle.Tensor:
        if not self._values:
            return self._sum
        return self._sum + (self._gathered() * self._tensor(self._weights)).sum()


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

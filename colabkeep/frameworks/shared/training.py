"""A training loop in any framework: objective, losses and means, batches moved and cut into pieces along their samples,
what a schedule counts to, and what is refused.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from inspect import getclosurevars, isfunction
from itertools import pairwise
from typing import Any

from colabkeep.core.errors import UsageError
from colabkeep.core.state import HostTensor
from colabkeep.frameworks.base import Batch, Losses, MeanLike, Training, TrainingOptions
from colabkeep.frameworks.shared.samples import arrays_in

_FRAMEWORKS = frozenset({"torch", "paddle"})


def wrong_kind(word: str, found: object, wanted: str, remedy: str) -> UsageError:
    """Why `found` cannot be the model or the optimizer."""
    package = type(found).__module__.partition(".")[0]
    if package in _FRAMEWORKS and package != wanted.partition(".")[0]:
        remedy = f"Model, optimizer and data must be of one framework, and this one is of {package}. {remedy}"
    return UsageError(problem=f"{word} is a {type(found).__name__}, not a {wanted}.", remedy=remedy)


def no_loop_for(model: object) -> UsageError:
    """Why resumable_fit cannot train a model that is of no framework with a loop of ours."""
    kind = type(model)
    package = kind.__module__.partition(".")[0]
    what = f"model is a {kind.__name__}" + (f" of {package}" if package not in ("builtins", "__main__") else "")
    own = "Your own loop works with any object that has state_dict() and load_state_dict(): "
    remedy = f"{own}with colabkeep.Run(run_name, model=model) as run: … run.step()"
    if callable(getattr(model, "fit", None)):
        what += ", which brings a fit() of its own"
        remedy = "Train it by that, and save by its own means (Keras: keras.callbacks.BackupAndRestore). " + (
            "Where you write the loop (partial_fit, train_on_batch): "
            "with colabkeep.Run(run_name, state={…}) as run, with objects that have state_dict() and load_state_dict()."
        )
    return UsageError(
        problem=f"{what}; resumable_fit trains a torch.nn.Module or a paddle.nn.Layer.",
        remedy=remedy,
    )


def check_held(own: Iterable[object], held: Iterable[object]) -> None:
    """Refuse an optimizer whose parameters (`held`) are not the model's `own`.

    Raises:
        UsageError: it holds none of them.
    """
    known = {id(parameter) for parameter in own}
    if not any(id(parameter) in known for parameter in held):
        raise UsageError(
            problem="The optimizer holds none of the model's parameters, so training would change nothing.",
            remedy="Build the optimizer from this model's parameters(), after the last thing that replaces the model "
            "or its parameters.",
        )


def check_one_loss(optimizer: object) -> None:
    """Refuse an optimizer that wants to compute the loss itself, several times in a step.

    Raises:
        UsageError: its `step` needs an argument.
    """
    _, *parameters = inspect.signature(type(optimizer).step).parameters.values()  # type: ignore[attr-defined]
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if any(p.default is p.empty and p.kind in by_name for p in parameters):
        raise UsageError(
            problem=f"{type(optimizer).__name__} evaluates the loss several times in one step, by a closure; "
            "resumable_fit computes it once.",
            remedy="Keep your own loop on colabkeep.Run, with optimizer.step(closure) and then run.step(loss=loss), "
            "or use another optimizer.",
        )


def check_functions(options: TrainingOptions) -> None:
    """Refuse words that contradict each other.

    Raises:
        UsageError: the sentence says which, and what to pass instead.
    """
    if (options.loss_fn is None) == (options.step_fn is None):
        raise UsageError(
            problem="Training needs exactly one of loss_fn and step_fn.",
            remedy="Pass loss_fn=f with f(output, target) -> loss for batches of (input, target), "
            "or step_fn=f with f(model, batch) -> loss for any other.",
        )
    word, function = ("loss_fn", options.loss_fn) if options.step_fn is None else ("step_fn", options.step_fn)
    if not callable(function):
        raise UsageError(
            problem=f"{word} is a {type(function).__name__}, which cannot be called.",
            remedy="Pass the function itself: loss_fn=F.cross_entropy, without brackets behind it; or an object such "
            "as torch.nn.CrossEntropyLoss().",
        )
    if options.metrics is not None and not isinstance(options.metrics, Mapping):
        raise UsageError(
            problem=f"metrics is a {type(options.metrics).__name__}, not a mapping of names to metrics.",
            remedy='Give each a name: metrics={"accuracy": accuracy}.',
        )
    if options.metrics and options.step_fn is not None:
        raise UsageError(
            problem="metrics are functions of (output, target), and with step_fn these are not known.",
            remedy="Pass loss_fn instead of step_fn, or leave metrics out and measure in a callback.",
        )
    if "loss" in (options.metrics or {}):
        raise UsageError(
            problem='A metric is named "loss", which is the name of the loss itself.',
            remedy="Give the metric another name.",
        )
    micro: object = options.micro_batch
    if not (micro is None or micro == "auto" or (isinstance(micro, int) and not isinstance(micro, bool) and micro > 0)):
        raise UsageError(
            problem=f"micro_batch={micro!r:.100} is not known.",
            remedy='Pass a number of samples, 1 or more, "auto" for as many as fit into the GPU\'s memory, or None for '
            "all of a batch.",
        )
    if options.gradient_clip_val is not None and not options.gradient_clip_val > 0:
        raise UsageError(
            problem=f"gradient_clip_val={options.gradient_clip_val!r} would clip every gradient to nothing.",
            remedy="Pass the largest gradient norm you allow, for example 1.0, or None for no clipping.",
        )


def unknown_precision(precision: object) -> UsageError:
    """Why this is no precision."""
    return UsageError(
        problem=f"precision={precision!r} is not known.",
        remedy='Pass "auto", "32-true", "16-mixed" or "bf16-mixed" (float16 or bfloat16 beside float32 weights).',
    )


def by_capability(major: int) -> str:
    """What "auto" means on a GPU of NVIDIA's: bfloat16 where it computes in it (capability 8.0), float16 where it has
    tensor cores for that (7.0: V100, T4), else float32."""
    return "bf16-mixed" if major >= 8 else "16-mixed" if major >= 7 else "32-true"


def half_weights(kind: str, remedy: str) -> UsageError:
    """Why weights of 16 bits alone do not learn in mixed precision."""
    return UsageError(
        problem=f"The model's weights are {kind}, and mixed precision needs them in float32: "
        "small updates would be rounded away.",
        remedy=remedy,
    )


def _unfit_batch(batch: Any) -> UsageError:
    """Why loss_fn cannot be used on this batch."""
    shape = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    example = "model(**batch).loss" if isinstance(batch, Mapping) else "loss of the batch"
    return UsageError(
        problem=f"The loader gives a {type(batch).__name__}{shape} as a batch; loss_fn(output, target) needs "
        "(input, target), or (inputs …, target).",
        remedy=f"Pass step_fn instead of loss_fn: def step_fn(model, batch): return {example}",
    )


def _unfit_loss(loss: object, shape: tuple[int, ...] | None, own_step: bool) -> UsageError:
    """Why a backward pass cannot start from this value, which is no tensor (`shape` None) or not of one number."""
    function = "step_fn" if own_step else "loss_fn"
    if shape is None:
        return UsageError(
            problem=f"{function} returned a {type(loss).__name__}; the loss must be a tensor of one number, shape ().",
            remedy='Return only the loss, for example return out["loss"] or return loss (not loss.item(), '
            "nor loss and something else).",
        )
    return UsageError(
        problem=f"{function} returned a tensor of shape {shape}; a loss is one number, shape ().",
        remedy="End it with .mean().",
    )


def _no_gradient(own_step: bool, breaks: str, frozen: str) -> UsageError:
    """Why nothing can be learnt from this loss. `breaks` and `frozen`: the framework's words for how that comes."""
    function = "step_fn" if own_step else "loss_fn"
    return UsageError(
        problem=f"The loss that {function} returned does not depend on any trainable parameter: it has no gradient.",
        remedy=f"Look for {breaks} on the way from the model to the loss, and for parameters frozen by {frozen}.",
    )


def as_number(name: str, value: Any) -> float:
    """A plain number that a metric returned.

    Raises:
        UsageError: it is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise _unfit_number(name, f"a {type(value).__name__}") from None


def _unfit_number(name: str, found: str) -> UsageError:
    """Why this cannot be averaged over a validation."""
    return UsageError(
        problem=f"In validation {name!r} is {found}, not one number.",
        remedy="Return one number or a tensor of shape (), for example by .mean().",
    )


_PAIR = frozenset({tuple, list})


class _Objective:
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
            raise _unfit_batch(batch)
        *inputs, target = batch
        output = self.model(*inputs)
        return self._loss_fn(output, target), output, target


class RunningMean:
    """A mean that adds on the host, in double precision. Saved and loaded, it goes on with the same bits.

    One of numbers on a device adds there, in `number`'s type, and waits for it only when the mean is read.
    """

    sum: Any
    weight: float

    def __init__(self) -> None:
        self.reset()

    def number(self, value: Any) -> Any:
        """A number, or a tensor or array of one number without a graph, as it is added."""
        return float(value)

    def add(self, value: Any, weight: float) -> None:
        """Count `value` with `weight`."""
        self.sum = self.sum + self.number(value) * weight
        self.weight += weight

    def value(self) -> float | None:
        """The mean so far, None of nothing."""
        return float(self.sum) / self.weight if self.weight else None

    def reset(self) -> None:
        """Begin anew, with nothing."""
        self.sum = self.number(0.0)
        self.weight = 0.0

    def state_dict(self) -> dict[str, Any]:
        """The sum and the weight."""
        return {"sum": self.sum, "weight": self.weight}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned. Earlier versions stored numbers that were not added yet, beside it."""
        self.sum = self.number(state_dict["sum"])
        self.weight = float(state_dict["weight"])
        for index, weight in enumerate(state_dict.get("weights", ())):
            self.sum = self.sum + self.number(state_dict["values"][index]) * weight


class Arithmetic(Training):
    """Forward, backward and update of one model with one optimizer, as far as frameworks agree.

    `tensor` is the framework's type; `breaks` and `frozen` are its words for how a loss comes to have no gradient. The
    device is that of the model's first parameter, found once: move the model before, not during training.
    """

    tensor: type[Any]
    breaks: str
    frozen: str
    precision: str

    def __init__(self, options: TrainingOptions) -> None:
        self._model = options.model
        self._optimizer = options.optimizer
        self._objective = _Objective(options)
        self._metrics: dict[str, Any] = dict(options.metrics or {})
        self.measures: Sequence[str] = ("loss", *self._metrics)
        self._clips = options.gradient_clip_val is not None
        self.scaler: Any = None
        self.grad_norm: Any = None
        self.summing: float | None = None

    def train(self) -> None:
        self._model.train()
        self.clear()

    def step(self) -> None:
        scaler = self.scaler
        if self._clips:
            if scaler is not None:
                scaler.unscale_(self._optimizer)
            self.clip()
        if scaler is None:
            self._optimizer.step()
        else:
            scaler.step(self._optimizer)
            scaler.update()
        self.clear()

    def evaluate(self, batches: Iterator[Batch]) -> dict[str, float]:
        means = {name: self.mean() for name in self.averaged()}
        modes = [(module, module.training) for module in self.modules()]
        self._model.eval()
        try:
            with self.no_grad():
                for batch in batches:
                    counted = batch.samples if batch.own is None else batch.own
                    weight = 1.0 if counted is None else float(counted)
                    if not weight:  # another process counts it
                        continue
                    with self.autocast():
                        measured = self._objective.measured(self.moved(batch.value), self._metrics)
                    for name, mean in means.items():
                        mean.add(self._one_number(name, measured[name]), weight)
        finally:
            if modes[0][1]:
                self._model.train()  # Paddle keeps a mode of its own beside those of the layers
            for module, mode in modes:
                module.training = mode
        found = self.together(means)
        return {name: value for name, value in found.items() if value is not None}

    def together(self, means: Mapping[str, MeanLike]) -> Mapping[str, float | None]:
        """The means; over all processes, where several train together."""
        return {name: mean.value() for name, mean in means.items()}

    def averaged(self) -> Sequence[str]:
        """The measures that are means over the batches."""
        return self.measures

    def refused(self, loss: Any) -> UsageError:
        """Why a backward pass cannot start from this value."""
        own_step = self._objective.own_step
        if not isinstance(loss, self.tensor):
            return _unfit_loss(loss, None, own_step)
        if loss.ndim:
            return _unfit_loss(loss, tuple(loss.shape), own_step)
        return _no_gradient(own_step, self.breaks, self.frozen)

    def modules(self) -> Iterable[Any]:
        """All modules of the model, itself first."""
        raise NotImplementedError

    def clip(self) -> None:
        """Clip the gradients of the parameters of now: groups may have been added since the start (unfreezing)."""
        raise NotImplementedError

    def clear(self) -> None:
        """Let go of all gradients. They must not be zero: an optimizer moves a parameter whose gradient is zero, but
        not one that has none, so that one unused in a step would fare differently after a resume."""
        raise NotImplementedError

    def moved(self, batch: Any) -> Any:
        """The batch on the model's device."""
        raise NotImplementedError

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        raise NotImplementedError

    def no_grad(self) -> AbstractContextManager[Any]:
        """A context without gradients."""
        raise NotImplementedError

    def _one_number(self, name: str, value: Any) -> Any:
        """`value` if it is a number or a tensor of one, for a running mean; nothing waits for the device."""
        if not isinstance(value, self.tensor):
            return as_number(name, value)
        if value.ndim:
            raise _unfit_number(name, f"a tensor of shape {tuple(value.shape)}")
        return value


def at_hand(loss: Any) -> float | None:
    """One number in host memory as a float; None for anything else: no training ends for the sake of a picture."""
    if isinstance(loss, (int, float)):
        try:
            return float(loss)
        except OverflowError:  # an int beyond all floats
            return None
    if not hasattr(loss, "item") or math.prod(getattr(loss, "shape", (0,))) != 1:
        return None
    number = loss.item()
    return float(number) if isinstance(number, (int, float)) else None


def stored_steps(steps: Iterable[int]) -> HostTensor:
    """Numbers of steps, as a state holds them."""
    numbers = array("q", steps)
    return HostTensor(dtype="I64", shape=(len(numbers),), data=memoryview(numbers.tobytes()))


class HostLosses(Losses):
    """For a framework whose numbers are all at hand."""

    def take(self, step: int, loss: Any) -> float | None:
        return at_hand(loss)


def moved(value: Any, moves: Callable[[Any], bool], move: Callable[[Any], Any]) -> Any:
    """`value` with `move(member)` for each member that `moves(member)`; the user's containers are not changed.

    Knows tuples, named tuples, lists, mappings and dataclasses; anything else stays as it is.
    """
    if moves(value):
        return move(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(member, moves, move) for member in value))
    if isinstance(value, (tuple, list)):
        return type(value)(moved(member, moves, move) for member in value)
    if isinstance(value, MutableMapping):
        mapping = copy.copy(value)  # keeps what a subclass knows besides its items
        mapping.update({key: moved(member, moves, move) for key, member in value.items()})
        return mapping
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        record = copy.copy(value)
        for field in dataclasses.fields(value):
            # The way around frozen: the copy is not anybody's yet.
            object.__setattr__(record, field.name, moved(getattr(value, field.name), moves, move))
        return record
    return value


# Micro-batches, and the parts of several processes.


_SHARED = (type(None), bool, int, float, complex, str, bytes)


def largest_piece(samples: int, micro: int | None) -> int:
    """The samples in the largest piece of a batch of `samples`, of pieces of `micro` at most; None: all of it."""
    return samples if micro is None or micro >= samples else -(-samples // -(-samples // micro))


def cut(batch: Any, samples: int | None, micro: int | None) -> list[tuple[Any, int]]:
    """`batch` in pieces of `micro` samples at most, as equal as can be (33 by 16: 11, 11, 11), each with its number of
    samples. A batch that is no larger stays whole, and is not looked at.

    Raises:
        UsageError: the number of samples is not known, or the batch has something in it that cannot be cut.
    """
    if micro is None or (samples is not None and samples <= micro):
        return [(batch, samples or 1)]
    if samples is None:
        raise _cannot(f"a {type(batch).__name__} in which no array tells the number of samples")
    count = -(-samples // micro)
    ends = [samples * number // count for number in range(count + 1)]
    return [(part(batch, samples, begin, end), end - begin) for begin, end in pairwise(ends)]


def part(batch: Any, samples: int, begin: int, end: int, *, shared: bool = False) -> Any:
    """Samples `begin` to `end` of a batch, in containers of the same types. Arrays are views of the batch's own.

    An array is cut along its first dimension, which is that of the samples; so is a list with an entry
    for each sample. Numbers, text and arrays without dimensions belong to all samples. `shared`: it is cut for several
    processes, and not by micro_batch.

    Raises:
        UsageError: something is in it that is none of these.
    """

    def is_cut(member: Any) -> bool:
        shape = getattr(member, "shape", None)
        if isinstance(shape, (tuple, list)):
            if shape and shape[0] != samples:
                raise _cannot(f"an array of shape {tuple(shape)} in a batch of {samples} samples", shared=shared)
            return bool(shape)
        if isinstance(member, (tuple, list)):
            return len(member) == samples and not _holds_columns(member, samples)
        if isinstance(member, (Mapping, *_SHARED)) or dataclasses.is_dataclass(member):
            return False
        raise _cannot(f"a {type(member).__name__}", shared=shared)

    return moved(batch, is_cut, lambda member: member[begin:end])


def _holds_columns(members: Any, samples: int) -> bool:
    """Is this a list of arrays that have all samples each, and not one of samples?"""
    arrays = list(arrays_in(members))
    return bool(arrays) and all(array.shape[0] == samples for array in arrays)


def _cannot(found: str, *, shared: bool = False) -> UsageError:
    if shared:
        return UsageError(
            problem=f"Several processes share each batch along its samples, and this one is or has {found}.",
            remedy="Have the loader give tensors whose first dimension is the samples, in tuples, lists or dicts; or "
            "train in one process.",
        )
    return UsageError(
        problem=f"micro_batch cuts each batch along its samples, and this one is or has {found}.",
        remedy="Have the loader give tensors whose first dimension is the samples, in tuples, lists or dicts; or leave "
        "out micro_batch, and take a smaller batch_size with accumulate_grad_batches.",
    )


_TOTALS = (
    "total_steps",  # OneCycleLR of both frameworks, LinearLR of Paddle
    "T_max",  # CosineAnnealingLR, CosineAnnealingDecay
    "total_iters",  # LinearLR, PolynomialLR, ConstantLR of torch
    "decay_steps",  # PolynomialDecay of Paddle
    "T_0",  # CosineAnnealingWarmRestarts: its first cycle
)
_WARM_UPS = ("warmup_steps", "num_warmup_steps")
_PHASES = ("num_warmup_steps", "num_stable_steps", "num_decay_steps")  # warm up, stay, decay: together the whole
_CLOSED_OVER = ("num_training_steps", "total_steps", "t_total", "max_steps", "num_warmup_steps")
_PER_STEP = frozenset({"OneCycleLR", "CyclicLR"})
"""Both frameworks' documentation: "should be called after a batch has been used for training"."""


def is_per_step(scheduler: object) -> bool:
    """Is it documented to be stepped after each batch?"""
    return any(kind.__name__ in _PER_STEP for kind in type(_inner(scheduler)).__mro__)


def counts_to(scheduler: object) -> int | None:
    """The step after which it does nothing new, as it was built; None where it does not say."""
    scheduler = _inner(scheduler)
    parts = getattr(scheduler, "_schedulers", None)
    if isinstance(parts, (list, tuple)) and parts:  # one after the other (SequentialLR), or together (ChainedScheduler)
        milestones = getattr(scheduler, "_milestones", None)
        last = counts_to(parts[-1])
        if milestones:
            return None if last is None else int(milestones[-1]) + last
        return max(filter(None, map(counts_to, parts)), default=None)
    told = vars(scheduler) if hasattr(scheduler, "__dict__") else {}
    found = next(filter(None, (_count(told.get(name)) for name in _TOTALS)), None)
    if found is None:
        found = max(filter(None, map(_count, _closed_over(told))), default=None)
    warm = next(filter(None, (_count(told.get(name)) for name in _WARM_UPS)), None)
    behind = counts_to(told["learning_rate"]) if warm and hasattr(told.get("learning_rate"), "__dict__") else None
    return found if warm is None else warm + (behind or 0)


def _inner(scheduler: object) -> object:
    """What a wrapper of Accelerate's leads to."""
    return getattr(scheduler, "scheduler", scheduler)


def _closed_over(told: dict[str, Any]) -> Iterator[object]:
    """What the functions of a LambdaLR or LambdaDecay were made with, as transformers makes them."""
    functions = told.get("lr_lambdas") or [told.get("lr_lambda")]
    for function in functions if isinstance(functions, (list, tuple)) else ():
        if isinstance(function, partial):
            known: dict[str, Any] = dict(function.keywords)
        else:
            known = dict(getclosurevars(function).nonlocals) if isfunction(function) else {}
        if _PHASES[-1] in known and "num_training_steps" not in known:
            yield sum(_count(known.get(name)) or 0 for name in _PHASES)
        yield next((known[name] for name in _CLOSED_OVER if name in known), None)


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1 else None

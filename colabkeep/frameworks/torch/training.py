"""The arithmetic of a training loop in PyTorch: precision, accumulation, clipping, evaluation; and what it refuses."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.base import Batch, Pieces, TrainingOptions
from colabkeep.frameworks.shared.training import (
    Arithmetic,
    RunningMean,
    by_capability,
    check_functions,
    check_held,
    check_one_loss,
    half_weights,
    moved,
    unknown_precision,
    wrong_kind,
)
from colabkeep.frameworks.torch.facts import place
from colabkeep.frameworks.torch.pieces import TorchPieces, TriedLoss


def check_options(options: TrainingOptions) -> None:
    """Refuse what is invalid, before the first batch.

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


_HALF = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def resolve_precision(precision: str, device: torch.device) -> str:
    """What `precision` means on `device`: "32-true", "16-mixed" or "bf16-mixed".

    `torch.cuda.is_bf16_supported()` is not asked: it also says yes where bfloat16 is emulated, which is slower than
    float32.

    Raises:
        UsageError: none of the known words.
    """
    if precision in ("32-true", *_HALF):
        return precision
    if precision != "auto":
        raise unknown_precision(precision)
    if device.type != "cuda":
        return "32-true"
    return by_capability(torch.cuda.get_device_capability(device)[0])


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


class DeviceMean(RunningMean):
    """One that adds on a device. At once: a graph that is played again writes its next loss over the last one."""

    def __init__(self, device: torch.device) -> None:
        # Apple's GPUs have no float64.
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._device = device
        super().__init__()

    def number(self, value: Any) -> torch.Tensor:
        return torch.as_tensor(value, dtype=self._dtype, device=self._device)

    def add(self, value: Any, weight: float) -> None:
        self.sum = torch.add(self.sum, value, alpha=weight)  # in one go, of whatever type the value is
        self.weight += weight


def mean_on(device: torch.device) -> RunningMean:
    """A new mean of numbers that are there."""
    return RunningMean() if device.type == "cpu" else DeviceMean(device)


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


_SINGLE = "Expected more than 1 value per channel when training"  # torch's BatchNorm and InstanceNorm


def _single_sample() -> UsageError:
    """Why a process that has one sample of a batch cannot go on."""
    return UsageError(
        problem="Several processes share each batch, and one of them has a single sample of this one. BatchNorm needs "
        "two values or more to take a variance. Mostly it is the shorter last batch of an epoch, or the last piece "
        "that micro_batch makes of its part.",
        remedy="Leave that batch out: DataLoader(…, drop_last=True). Or choose a batch_size with which more samples "
        "are left at the end, two for each process at least, and a micro_batch that leaves no piece of one sample; or "
        "train in one process.",
    )


# Between two calls nothing waits for the device: losses stay where they are, batches are sent ahead. (The one wait
# there is belongs to float16: before an update torch's gradient scaler has to know whether the gradients are finite.)


def refuse_sync(options: TrainingOptions) -> None:
    """Of a training in several processes: can BatchNorm take its statistics over all of them, where that is asked for?

    Raises:
        UsageError: no.
    """
    if not options.sync_batchnorm or not isinstance(options.model, torch.nn.Module):
        return
    if any(p.device.type == "cpu" for p in options.model.parameters()):
        raise UsageError(
            problem="sync_batchnorm=True is possible on GPUs only (torch's SyncBatchNorm takes no tensors of the CPU), "
            "and this model is on the CPU.",
            remedy="Leave it out: each process takes the statistics of its part of a batch then.",
        )
    if options.micro_batch is not None:
        raise UsageError(
            problem="With micro_batch the processes may cut their parts of a batch into different numbers of pieces, "
            "and with sync_batchnorm=True each piece would wait for one of the others.",
            remedy="Leave out one of the two.",
        )


@contextlib.contextmanager
def sync_batchnorm(model: torch.nn.Module) -> Iterator[None]:
    """BatchNorm takes its statistics over all processes: its layers are torch's SyncBatchNorm meanwhile, with the same
    parameters and buffers, also in one process, so that a run goes on with any number. A model that is nothing but one
    such layer stays what it is."""
    kind: Any = torch.nn.modules.batchnorm._BatchNorm
    own = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, kind) and not isinstance(layer, torch.nn.SyncBatchNorm)
    ]
    convert: Any = torch.nn.SyncBatchNorm.convert_sync_batchnorm
    if not isinstance(model, kind):
        convert(model)
    try:
        yield
    finally:
        for parent, name, layer in own:
            layer.train(parent.get_submodule(name).training)
            parent.add_module(name, layer)  # its tensors are those that were trained, in place


class TorchTraining(Arithmetic):
    """See `Arithmetic`. `precision` is what "auto" became on this machine.

    Raises:
        UsageError: model, optimizer, precision or metrics do not fit together.
    """

    tensor = torch.Tensor
    breaks = ".detach(), .item(), torch.no_grad() or argmax"
    frozen = "requires_grad_(False)"

    def __init__(self, options: TrainingOptions) -> None:
        check_options(options)
        self._largest, self._loss_fn = options.gradient_clip_val, options.loss_fn
        self._device = next(options.model.parameters()).device
        self._tried: TriedLoss | None = None
        if place()[1] > 1 and options.loss_fn is not None:
            self._tried = TriedLoss(options.loss_fn, self._device)
            options = replace(options, loss_fn=self._tried)
        super().__init__(options)
        self.precision = resolve_precision(options.precision, self._device)
        self._autocast = autocast(self.precision, self._device)
        self._here = self._device.type == "cpu"  # nothing to move, and a loss is read without a wait
        self._plain = self._here and self.precision == "32-true"  # nor to cast
        self.scaler = gradient_scaler(self.precision, self._device, options.optimizer)
        self._reducer: Any = None
        self._sync = options.sync_batchnorm
        if place()[1] > 1:
            refuse_sync(options)
            from colabkeep.frameworks.torch.ranks import SUMMING, Reducer

            self._reducer = Reducer(options.model, options.optimizer)
            self.summing = SUMMING.get()

    def synchronised(self) -> contextlib.AbstractContextManager[object]:
        return sync_batchnorm(self._model) if self._sync else super().synchronised()

    @property
    def loss_differs(self) -> str:
        return "" if self._tried is None else self._tried.differs

    def align(self) -> None:
        if self._reducer is not None:
            self._reducer.align()
        if self._tried is not None:
            self._tried.begin()

    def reduce(self, losses: Sequence[Any]) -> Sequence[Any]:
        return losses if self._reducer is None else self._reducer.reduce(losses)

    def step(self) -> None:
        super().step()
        if self._reducer is not None:
            self._reducer.buffers()

    def evaluate(self, batches: Iterator[Batch]) -> dict[str, float]:
        measured = super().evaluate(batches)
        if self._reducer is not None:  # ranges that are taken in evaluation mode, too, are of a part of the samples
            self._reducer.buffers()
        return measured

    def together(self, means: Mapping[str, Any]) -> Mapping[str, float | None]:
        if self._reducer is None:
            return super().together(means)
        told = self._reducer.total([number for mean in means.values() for number in (float(mean.sum), mean.weight)])
        sums = zip(means, told[::2], told[1::2], strict=True)
        return {name: total / weight if weight else None for name, total, weight in sums}

    def backward(self, batch: Any, *, share: float) -> torch.Tensor | float:
        try:
            if self._plain:
                loss = self._objective.loss(batch)
            else:
                with self._autocast:
                    loss = self._objective.loss(to_device(batch, self._device))
        except ValueError as error:
            if self._reducer is not None and _SINGLE in str(error):
                raise _single_sample() from error
            raise
        if not isinstance(loss, torch.Tensor) or loss.dim() or not loss.requires_grad:
            raise self.refused(loss)
        scaled = loss if share == 1.0 else loss * share
        if self.scaler is not None:
            scaled = self.scaler.scale(scaled)
        scaled.backward()  # type: ignore[no-untyped-call]
        return loss.item() if self._here else loss.detach()

    def pieces(self) -> Pieces:
        return TorchPieces(self._model, self._device, self._loss_fn, self.backward, self._loss_alone, self.clear)

    def _loss_alone(self, batch: Any) -> Any:
        with torch.no_grad(), self._autocast:
            return self._objective.loss(self.moved(batch))

    def mean(self) -> RunningMean:
        return mean_on(self._device)

    def learning_rate(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def modules(self) -> Iterable[torch.nn.Module]:
        found: Iterable[torch.nn.Module] = self._model.modules()
        return found

    def clip(self) -> None:
        held = [p for group in self._optimizer.param_groups for p in group["params"]]
        self.grad_norm = torch.nn.utils.clip_grad_norm_(held, self._largest or 0.0)

    def clear(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def moved(self, batch: Any) -> Any:
        return to_device(batch, self._device)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return self._autocast

    def no_grad(self) -> contextlib.AbstractContextManager[Any]:
        return torch.no_grad()

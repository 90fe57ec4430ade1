"""What a training loop refuses, in any framework, and the sentence for it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from colabkeep.frameworks.base import TrainingOptions
from colabkeep.vocabulary.errors import UsageError

__all__ = [
    "as_number",
    "check_functions",
    "check_held",
    "check_one_loss",
    "half_weights",
    "no_gradient",
    "no_loop_for",
    "unfit_batch",
    "unfit_loss",
    "unfit_number",
    "unknown_precision",
    "wrong_kind",
]


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
            problem="metrics are functions of (output, target), and with step_fn nobody knows these.",
            remedy="Pass loss_fn instead of step_fn, or leave metrics out and measure in a callback.",
        )
    if "loss" in (options.metrics or {}):
        raise UsageError(
            problem='A metric is named "loss", which is the name of the loss itself.',
            remedy="Give the metric another name.",
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


def half_weights(kind: str, remedy: str) -> UsageError:
    """Why weights of 16 bits alone do not learn in mixed precision."""
    return UsageError(
        problem=f"The model's weights are {kind}, and mixed precision needs them in float32: "
        "small updates would be rounded away.",
        remedy=remedy,
    )


def unfit_batch(batch: Any) -> UsageError:
    """Why loss_fn cannot be used on this batch."""
    shape = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    example = "model(**batch).loss" if isinstance(batch, Mapping) else "loss of the batch"
    return UsageError(
        problem=f"The loader gives a {type(batch).__name__}{shape} as a batch; loss_fn(output, target) needs "
        "(input, target), or (inputs …, target).",
        remedy=f"Pass step_fn instead of loss_fn: def step_fn(model, batch): return {example}",
    )


def unfit_loss(loss: object, shape: tuple[int, ...] | None, own_step: bool) -> UsageError:
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


def no_gradient(own_step: bool, breaks: str, frozen: str) -> UsageError:
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
        raise unfit_number(name, f"a {type(value).__name__}") from None


def unfit_number(name: str, found: str) -> UsageError:
    """Why this cannot be averaged over a validation."""
    return UsageError(
        problem=f"In validation {name!r} is {found}, not one number.",
        remedy="Return one number or a tensor of shape (), for example by .mean().",
    )

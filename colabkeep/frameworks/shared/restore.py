"""Modules and optimizers in any framework: whether they belong together, what differs from what was stored, and where
stored tensors go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.core.state import Tree, referred
from colabkeep.frameworks.shared.capture import TensorPlace, TensorPlaces
from colabkeep.frameworks.shared.trees import object_differences

_PARAMETERS_NAMED = 3  # of the parameters in question
_MODEL = "model"
_AVERAGE = "ema"  # is no optimizer's to train

Parameters = Mapping[str, Sequence[tuple[str, Any]]]


def untrained(models: Parameters, held: Iterable[Any], trainable: Iterable[str]) -> str:
    """A sentence about the model's trainable parameters that no optimizer holds; empty if there are none.

    `models`: part → (name, parameter); `held`: the parameters of all optimizers; `trainable`: the names of those of the
    part "model" that ask for gradients.

    Raises:
        UsageError: there are such, and the optimizers hold others that no part of the run has.
    """
    optimized = list(held)
    ids = {id(parameter) for parameter in optimized}
    known = {id(parameter) for part, named in models.items() if part != _AVERAGE for _, parameter in named}
    own, wanted = dict(models.get(_MODEL, ())), list(trainable)
    left = [name for name in wanted if id(own[name]) not in ids]
    if not optimized or not left:
        return ""
    strangers = [parameter for parameter in optimized if id(parameter) not in known]
    if strangers:
        shapes = [f"one of shape {tuple(parameter.shape)}" for parameter in strangers]
        raise UsageError(
            problem=f"The optimizer does not train the model as it is: no optimizer holds {_few(left)}, and it holds "
            f"{_few(shapes)}, which the model does not have. A layer was replaced after the optimizer was built.",
            remedy="Build the optimizer after the last change of the model: optimizer = …(model.parameters(), …). To "
            "freeze parameters, use requires_grad_(False), or stop_gradient = True in Paddle. If the parameters are "
            'of another module, pass that too: state={"head": head}.',
        )
    return (
        f"No optimizer holds {len(left)} of the model's {len(wanted)} trainable parameters ({_few(left)}): they stay "
        "as they are. If they are meant to learn, hand them to the optimizer."
    )


def _few(names: list[str]) -> str:
    more = len(names) - _PARAMETERS_NAMED
    return ", ".join(names[:_PARAMETERS_NAMED]) + (f" and {more} more" if more > 0 else "")


def scheduler_differences(part: str, scheduler: object, tree: Tree) -> Iterator[str]:
    """Its class: another one would take the numbers and mean something else by them."""
    wrong = object_differences(part, scheduler, tree)
    yield from wrong or class_differences(part, scheduler, tree)


def class_differences(part: str, target: object, tree: Tree) -> Iterator[str]:
    """Is it of the class that was stored?"""
    kind = type(target).__name__
    if tree["class"] != kind:
        yield f"{part}: the checkpoint was made with {tree['class']}, this run uses {kind}."


def group_differences(part: str, then: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> Iterator[str]:
    """The names of the parameters in each group of an optimizer."""
    if len(now) != len(then):
        yield f"{part}: it had {len(then)} parameter groups, and has {len(now)} now."
        return
    for i, (here, stored) in enumerate(zip(now, then, strict=True)):
        for name in stored:
            if name not in here:
                yield f"{part}: group {i} trained {name}, and does not now."
        for name in here:
            if name not in stored:
                yield f"{part}: group {i} did not train {name}, and does now."


Shaped = tuple[tuple[int, ...], str]
"""Shape and dtype of a tensor, in words that are the same for a live and a stored one."""


def tensor_differences(part: str, name: str, then: Shaped, now: Shaped) -> Iterator[str]:
    """Shape and dtype."""
    if then[0] != now[0]:
        yield f"{part}: {name} has shape {then[0]} in the checkpoint and {now[0]} now."
    if then[1] != now[1]:
        yield f"{part}: {name} is {then[1]} in the checkpoint and {now[1]} now."


def weight_differences(
    part: str,
    places: TensorPlaces,
    weights: Mapping[str, Tree],
    held: Callable[[TensorPlace], Any],
    differences: Callable[[str, str, Any, Tree], Iterable[str]],
    memory: Callable[[Any], object],
) -> Iterator[str]:
    """Names, shapes, dtypes and ties of parameters and buffers. `held`: the tensor in a place, None where the first
    forward pass will make it; `memory` is equal of two tensors that share it."""
    live, kind = {place.name: held(place) for place in places.places if place.kept}, type(places.modules[0][1]).__name__
    for name in weights.keys() - live.keys():
        yield f"{part}: {name} is in the checkpoint, and not in this {kind}."
    for name, tensor in live.items():
        if tensor is None:
            continue  # restored from the checkpoint
        if name in weights:
            yield from differences(part, name, tensor, weights[name])
        else:
            yield f"{part}: {name} is in this {kind}, and not in the checkpoint."
    ties = {name: name if tensor is None else memory(tensor) for name, tensor in live.items()}
    shared = [name for name in weights if name in live]
    yield from tie_differences(part, shared, {name: id(weights[name]) for name in shared}, ties)


def restore_tensors(
    part: str,
    places: TensorPlaces,
    tree: Tree,
    source_of: Callable[[Any, Tree], Any],
    make: Callable[[Tree, Any], Any],
) -> list[tuple[Any, Any]]:
    """Put every stored tensor of a module in its place, and return (live tensor, source) of those to be filled where
    they are, so that optimizers, ties and strides stay. A buffer may have grown since the module was built: such a
    one is replaced by what `make` makes of the leaf and the tensor before. `source_of` is None for those.

    Raises:
        Incompatible: a parameter would have to be replaced.
    """
    live, modules = {place.name: place for place in places.places}, dict(places.modules)
    fills: list[tuple[Any, Any]] = []
    done: dict[int, Any] = {}  # what became of each live tensor: a tied one is filled once
    for name, leaf in {**tree["weights"], **tree.get("transient", {})}.items():
        if referred(leaf):
            continue  # it was compared, and is there
        place = live.get(name) or registered(name, modules)
        before = place.tensor
        if leaf is None:
            place.owner[place.key] = None
        elif before is not None and id(before) in done:
            place.owner[place.key] = done[id(before)]
        elif before is not None and (source := source_of(before, leaf)) is not None:
            fills.append((before, source))
            done[id(before)] = before
        elif place.parameter:
            raise Incompatible(
                problem=f"{part}: the parameter {name} has another shape or dtype than the checkpoint's.",
                remedy="Build the model as it was, or start again under another run_name.",
            )
        else:
            made = place.owner[place.key] = make(leaf, before)
            if before is not None:
                done[id(before)] = made
    return fills


def transient_differences(part: str, modules: Mapping[str, Any], names: Iterable[str], word: str) -> Iterator[str]:
    """Buffers that are not kept for ever, of modules that are not there."""
    for name in names:
        owner = name.rpartition(".")[0]
        if owner not in modules:
            yield f"{part}: the checkpoint has a buffer {name}, and this model has no {word} {owner!r}."


def registered(name: str, modules: Mapping[str, Any]) -> TensorPlace:
    """The place of a buffer that the module registers later in its life: registered now, as one that is not kept."""
    prefix, _, key = name.rpartition(".")
    owner = modules[prefix]
    owner.register_buffer(key, None, False)
    return TensorPlace(name, owner._buffers, key, parameter=False, kept=False)


def tie_differences(part: str, names: list[str], then: dict[str, int], now: dict[str, object]) -> Iterator[str]:
    """`then` and `now` tell equal things of names that share one tensor."""
    first_then: dict[int, str] = {}
    first_now: dict[object, str] = {}
    for name in names:
        was, shares = first_then.setdefault(then[name], name), first_now.setdefault(now[name], name)
        if was != shares:
            tied = f"{was} was tied to {name}" if was != name else f"{name} was not tied to {shares}"
            verb = "is not" if was != name else "is"
            yield f"{part}: {tied} in the checkpoint, and {verb} now."

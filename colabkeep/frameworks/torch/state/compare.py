"""What was stored against what is there now, in sentences. Touches nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from colabkeep.frameworks.common.compare import (
    class_differences,
    group_differences,
    scheduler_differences,
    tie_differences,
)
from colabkeep.frameworks.common.names import ParameterNames
from colabkeep.frameworks.common.objects import object_differences
from colabkeep.frameworks.torch.state.dtypes import plain_name
from colabkeep.frameworks.torch.state.groups import group_count_differences
from colabkeep.frameworks.torch.state.loading import describe
from colabkeep.frameworks.torch.state.nested import inner_differences
from colabkeep.frameworks.torch.state.optimizers import parameter_names
from colabkeep.frameworks.torch.state.places import Place, Places
from colabkeep.frameworks.torch.state.plausible import check_optimizer
from colabkeep.vocabulary.state import Tree

__all__ = ["module_differences", "optimizer_differences", "schedule_differences"]


def module_differences(part: str, module: torch.nn.Module, tree: Tree) -> Iterator[str]:
    """Names, shapes, dtypes and ties of parameters and buffers."""
    wrong = object_differences(part, module, tree, kind="module")
    if wrong:
        yield from wrong
        return
    places = Places(module)
    live = {place.name: place for place in places.places if place.kept}
    weights = tree["weights"]
    for name in weights.keys() - live.keys():
        yield f"{part}: {name} is in the checkpoint, and not in this {type(module).__name__}."
    for name, place in live.items():
        if name in weights:
            yield from _tensor_differences(part, place, weights[name])
        elif place.tensor is not None:
            yield f"{part}: {name} is in this {type(module).__name__}, and not in the checkpoint."
    yield from _transient_differences(part, dict(places.modules), tree["transient"])
    shared = [name for name in weights if name in live]
    yield from tie_differences(part, shared, {n: id(weights[n]) for n in shared}, {n: _memory(live[n]) for n in shared})
    extras = {name for name, _ in places.extras()}
    for name in extras ^ tree["extra"].keys():
        side = "this model, and not in the checkpoint" if name in extras else "the checkpoint, and not in this model"
        yield f"{part}: extra state of the module {name or type(module).__name__!r} is in {side}."


def optimizer_differences(
    part: str, optimizer: torch.optim.Optimizer, tree: Tree, names: ParameterNames
) -> Iterator[str]:
    """Class, groups, and which parameters they train.

    Raises:
        ValueError: no session writes what is stored there.
    """
    own = isinstance(tree, dict) and tree.get("kind") == "object"  # its state has a form of its own
    wrong = object_differences(part, optimizer, tree, kind="object" if own else "optimizer")
    if wrong:
        yield from wrong
        return
    yield from class_differences(part, optimizer, tree)
    if own:
        return
    yield from inner_differences(part, optimizer, tree)
    named, stored = parameter_names(optimizer, names), [group["params"] for group in tree["groups"]]
    if len(named) != len(stored):
        yield from group_count_differences(part, optimizer, stored, names)
        return
    yield from group_differences(part, stored, named)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    place = dict(zip((name for group in named for name in group), parameters, strict=True))
    for name, leaf in tree["loose"].items():
        if name in place:
            yield from _shape_differences(part, name, place[name], leaf)
    check_optimizer(optimizer, tree)


def schedule_differences(part: str, scheduler: torch.optim.lr_scheduler.LRScheduler, tree: Tree) -> Iterator[str]:
    """Class, and functions that nobody can bring back: those for groups that were added in the training."""
    wrong = list(scheduler_differences(part, scheduler, tree))
    yield from wrong
    now, then = vars(scheduler).get("lr_lambdas"), None if wrong else tree["state"].get("lr_lambdas")
    if then is not None and now is not None and len(then) > len(now):
        yield (
            f"{part}: it had functions for {len(then)} parameter groups and has {len(now)} now; functions cannot be "
            "stored. Use a schedule without functions, or build the optimizer with all groups, frozen until they train."
        )


def _tensor_differences(part: str, place: Place, leaf: Tree) -> Iterator[str]:
    tensor = place.tensor
    if tensor is None:
        return  # a buffer that the first forward fills: restored from the checkpoint
    if torch.nn.parameter.is_lazy(tensor):
        yield f"{part}: {place.name} has no shape yet; run one forward pass before resuming."
        return
    yield from _shape_differences(part, place.name, tensor, leaf)


def _shape_differences(part: str, name: str, tensor: torch.Tensor, leaf: Tree) -> Iterator[str]:
    shape, dtype = describe(leaf)
    sparse = "" if tensor.layout is torch.strided else "sparse "
    if shape != tuple(tensor.shape):
        yield f"{part}: {name} has shape {shape} in the checkpoint and {tuple(tensor.shape)} now."
    if dtype != sparse + plain_name(tensor.dtype):
        yield f"{part}: {name} is {dtype} in the checkpoint and {sparse}{plain_name(tensor.dtype)} now."


def _transient_differences(part: str, modules: dict[str, torch.nn.Module], transient: dict[str, Tree]) -> Iterator[str]:
    for name in transient:
        owner = name.rpartition(".")[0]
        if owner not in modules:
            yield f"{part}: the checkpoint has a buffer {name}, and this model has no module {owner!r}."


def _memory(place: Place) -> object:
    """Equal for two places that share one tensor, or one piece of memory in the same way."""
    tensor = place.tensor
    if tensor is None or tensor.layout is not torch.strided or torch.nn.parameter.is_lazy(tensor) or not tensor.numel():
        return place.name if tensor is None else id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()

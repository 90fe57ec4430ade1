"""What was stored against what is there now, in sentences that fit every framework."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from colabkeep.frameworks.common.objects import object_differences
from colabkeep.vocabulary.state import Tree

__all__ = ["class_differences", "group_differences", "scheduler_differences", "tie_differences"]


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

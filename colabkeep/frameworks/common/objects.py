"""Parts that are neither modules nor optimizers: whatever has `state_dict` and `load_state_dict`, and generators.

Paddle's own objects, and many written for it, call the second one `set_state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from colabkeep.frameworks.common.generators import stateful
from colabkeep.frameworks.common.trees import Leaf, encode, not_storable, stateful_remedy
from colabkeep.vocabulary.state import Tree

__all__ = ["encode_object", "missing_parts", "object_differences", "restore_object", "shortened", "told_state"]

_MOST = 20  # differences shown; a student reads the first and the count


def encode_object(part: str, target: Any, leaf: Leaf, prepare: Callable[[Any], Any] | None = None) -> Tree:
    """The tree of a part that tells its own state.

    Raises:
        NotStorable: it cannot tell its state, or holds a value without a plain form.
    """
    told = stateful(target)
    if not _is_stateful(told):
        raise not_storable(target, part, stateful_remedy(part))
    state = told.state_dict()
    return told_state(target, state if prepare is None else prepare(state), part, leaf)


def told_state(target: object, state: Any, part: str, leaf: Leaf) -> Tree:
    """The tree of a part that told this state.

    Raises:
        NotStorable: it holds a value without a plain form.
    """
    return {"kind": "object", "class": type(target).__name__, "state": encode(state, part, leaf)}


def restore_object(target: Any, tree: Tree, native: Callable[[Tree], Any]) -> None:
    """Hand the stored state to the part."""
    take = _taker(stateful(target))
    if take is None:  # `check` has told so
        raise TypeError(f"a {type(target).__name__} has no load_state_dict()")
    take(native(tree["state"]))


def object_differences(part: str, target: object, tree: Tree, kind: str = "object") -> list[str]:
    """Is the live part of the kind that was stored, and can it take a state?"""
    stored = tree.get("kind") if isinstance(tree, dict) else None
    if stored != kind:
        return [f"{part}: the checkpoint holds {_article(stored)}, and this run has {_article(kind)} there."]
    if kind == "object" and not _is_stateful(stateful(target)):
        return [f"{part}: a {type(target).__name__} has no load_state_dict() to take what is stored."]
    return []


def missing_parts(parts: Sequence[str], trees: Sequence[str]) -> list[str]:
    """Parts that only one side has."""
    lines = [f"{name}: this run has it, the checkpoint does not." for name in parts if name not in trees]
    lines += [f"{name}: the checkpoint has it, this run does not." for name in trees if name not in parts]
    return lines


def shortened(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    rest = len(lines) - _MOST
    return [*lines[:_MOST], f"and {rest} more differences"] if rest > 1 else list(lines)


def _is_stateful(target: object) -> bool:
    # isinstance(target, Stateful) says the same and takes 7 µs.
    return callable(getattr(target, "state_dict", None)) and _taker(target) is not None


def _taker(target: object) -> Callable[[Any], object] | None:
    """What the part takes a state by."""
    for name in ("load_state_dict", "set_state_dict"):
        found = getattr(target, name, None)
        if callable(found):
            return cast("Callable[[Any], object]", found)
    return None


def _article(kind: object) -> str:
    names = {"module": "a module", "optimizer": "an optimizer", "object": "an object with state_dict()"}
    return names.get(str(kind), f"something unknown ({kind!r})")

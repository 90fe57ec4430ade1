"""What an integration uses of a trainer that its makers do not promise: in one table, looked at before anything is
trained."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from colabkeep.core.errors import UsageError

__all__ = ["Table", "find_strange", "named_by", "unknown"]

Table: TypeAlias = Mapping[str, Mapping[str, Sequence[str] | None]]
"""A place, "module" or "module:Class" ("{}" in it: the package) → a name there → the parameters of a function ("*" at
their end: others may follow), or None for an attribute. "a|b" is `a`, or `b` in other versions; "a|" is not in all."""


def find_strange(table: Table, package: str = "") -> str | None:
    """What is not as the table says; None if nothing is. All of it takes a few milliseconds."""
    for place, names in table.items():
        module, _, kind = place.format(package).partition(":")
        try:
            owner: Any = importlib.import_module(module)
            owner = getattr(owner, kind) if kind else owner
        except (ImportError, AttributeError):
            return kind or module
        if kind and not isinstance(owner, type):
            return kind
        named = named_by(owner) if kind else frozenset[str]()
        for name, known in names.items():
            there = [each for each in name.split("|") if not each or each in named or hasattr(owner, each)]
            if not there or (there[0] and known is not None and not _takes(getattr(owner, there[0], None), known)):
                return ".".join(filter(None, (kind, name.partition("|")[0])))
    return None


def named_by(kind: type) -> frozenset[str]:
    """What the code of a class, or of one that it inherits from, names: its attributes are among it."""
    members = [each for base in kind.__mro__ for each in vars(base).values() if inspect.isfunction(each)]
    return frozenset(name for each in members for name in inspect.unwrap(each).__code__.co_names)


def unknown(trainer: str, what: str, remedy: str) -> UsageError:
    """The error for a trainer that has something other than what is known."""
    return UsageError(
        problem=f"{trainer} does not work as colabkeep expects ({what}), so Resumable cannot resume a training at its "
        "step. Nothing was trained.",
        remedy=remedy,
    )


def _takes(found: Any, known: Sequence[str]) -> bool:
    if not callable(found):
        return False
    parameters = [name for name in inspect.signature(found).parameters if name != "self"]
    return parameters[: len(known) - 1] == known[:-1] if known[-1:] == ["*"] else parameters == known

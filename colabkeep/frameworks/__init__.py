"""The frameworks: one line each, recognised by what the user has imported already."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import NamedTuple

from colabkeep.core.errors import MissingDependency, UsageError
from colabkeep.frameworks.base import Framework

__all__ = ["FRAMEWORKS", "Entry", "find_framework", "open_framework"]


class Entry(NamedTuple):
    """One framework: its name, its adapter, the module it is recognised by, and what to do without it."""

    name: str
    adapter: str
    module: str
    remedy: str


FRAMEWORKS = (
    Entry("torch", "colabkeep.frameworks.torch.adapter:TorchFramework", "torch", 'pip install "colabkeep[torch]"'),
    Entry("paddle", "colabkeep.frameworks.paddle.adapter:PaddleFramework", "paddle", "pip install paddlepaddle"),
    Entry("numpy", "colabkeep.frameworks.numpy:NumpyFramework", "numpy", "pip install numpy"),
)


def find_framework(objects: Iterable[object]) -> Framework:
    """A new adapter of the framework that owns the first of the objects that any owns: of two mixed by mistake, the
    model's tells what is wrong with the other.

    Only frameworks that are imported already are asked: an object cannot come from any other. Objects
    that none owns are plain ones, with arrays at most: the NumPy adapter handles them.
    """
    imported = [entry.name for entry in FRAMEWORKS if sys.modules.get(entry.module) is not None]  # None: forbidden
    frameworks = [open_framework(name) for name in imported if name != "numpy"]
    owners = (framework for one in objects for framework in frameworks if framework.owns(one))
    return next(owners, None) or open_framework("numpy")


def open_framework(name: str) -> Framework:
    """A new adapter of the framework called `name`.

    Raises:
        UsageError: there is none of that name.
        MissingDependency: the framework cannot be imported here.
    """
    for entry in FRAMEWORKS:
        if entry.name == name:
            place, _, kind = entry.adapter.partition(":")
            try:
                framework: Framework = getattr(importlib.import_module(place), kind)()
            except ImportError as error:
                raise MissingDependency(
                    problem=f"The framework {name!r} cannot be used here: {error}", remedy=entry.remedy
                ) from error
            return framework
    known = ", ".join(entry.name for entry in FRAMEWORKS)
    raise UsageError(problem=f"There is no framework {name!r}.", remedy=f"Use one of: {known}.")

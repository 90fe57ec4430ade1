"""The platforms, in the order in which they are asked: one line each; those without a file of their own are the rows
of `services`.

Kaggle comes before Colab, because its image is built on Colab's and carries its module and variables
(Kaggle/docker-python, pull request 1444, November 2024). The last one matches everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from colabkeep.core.errors import UsageError
from colabkeep.core.system import Environment
from colabkeep.platforms.base import Platform

__all__ = ["find_platform", "platform_names"]

_PLATFORMS = (
    "colabkeep.platforms.kaggle:KagglePlatform",
    "colabkeep.platforms.aistudio:AIStudioPlatform",
    "colabkeep.platforms.colab.platform:ColabPlatform",
    "colabkeep.platforms.services:rows",
    "colabkeep.platforms.local:JupyterPlatform",
    "colabkeep.platforms.local:ScriptPlatform",
)

_VARIABLE = "COLABKEEP_PLATFORM"


def find_platform(environment: Environment, name: str | None = None) -> Platform:
    """The platform of an environment: the one called `name`, else the one that the variable COLABKEEP_PLATFORM
    names, else the first that matches.

    Raises:
        UsageError: there is none of that name; the known ones are listed.
    """
    variable = environment.environ.get(_VARIABLE, "")
    chosen = (variable if name is None else name).strip().lower()
    if not chosen and name is None:
        return next(platform for platform in _platforms() if platform.matches(environment))
    for platform in _platforms():
        if platform.name == chosen:
            return platform
    raise UsageError(
        problem=f"{f'{_VARIABLE}={variable!r}' if name is None else f'platform={name!r}'}: there is no such platform.",
        remedy=f"Use one of {', '.join(platform_names())}; or leave it away, and the platform is detected.",
    )


def platform_names() -> tuple[str, ...]:
    """The names of all platforms, in the order in which they are asked."""
    return tuple(platform.name for platform in _platforms())


def _platforms() -> Iterator[Platform]:
    for place in _PLATFORMS:
        module, _, name = place.partition(":")
        made = getattr(import_module(module), name)()
        if isinstance(made, tuple):
            yield from made
        else:
            yield made

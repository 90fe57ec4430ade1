"""The platforms, in the order in which they are asked: one line each."""

from __future__ import annotations

from importlib import import_module

from colabkeep.platforms.base import Platform
from colabkeep.vocabulary.environment import Environment

__all__ = ["find_platform"]

_PLATFORMS = ("colabkeep.platforms.local:LocalPlatform",)


def find_platform(environment: Environment) -> Platform:
    """The platform of an environment."""
    for place in _PLATFORMS:
        module, _, name = place.partition(":")
        platform: Platform = getattr(import_module(module), name)()
        if platform.matches(environment):
            return platform
    raise AssertionError("the last platform matches everything")

"""What a platform must tell. A new platform is one file and one line in `colabkeep.platforms`.

A platform is a notebook service, or a plain machine. It is recognised from an `Environment` alone: never
from the real machine, the network, or by importing a package of the service.
"""

from __future__ import annotations

from typing import Protocol

from colabkeep.vocabulary.environment import Environment

__all__ = ["Platform"]


class Platform(Protocol):
    """One kind of machine. Everything here is quick, and does not raise for the user's environment."""

    name: str
    """The registry's name: "local", …"""

    def matches(self, environment: Environment) -> bool:
        """Is this the platform of that environment? Platforms are asked in the registry's order."""
        ...

    def default_storage(self, environment: Environment) -> str:
        """Where checkpoints go with `storage="auto"`: what `colabkeep.stores.open_store` takes."""
        ...

"""A machine of one's own, and any that is not recognised: checkpoints go to a folder beside the notebook."""

from __future__ import annotations

from colabkeep.vocabulary.environment import Environment

__all__ = ["LocalPlatform"]


class LocalPlatform:
    """Matches always; asked last."""

    name = "local"

    def matches(self, environment: Environment) -> bool:
        return True

    def default_storage(self, environment: Environment) -> str:
        return str(environment.folder / "colabkeep-runs")

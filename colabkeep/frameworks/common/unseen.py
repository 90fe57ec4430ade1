"""For frameworks in which nothing can be looked for that was not handed in."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["NothingUnseen"]


class NothingUnseen:
    """Sees what was handed in."""

    def __call__(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        """Nothing was looked at."""

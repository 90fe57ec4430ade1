"""What a store may need and only others know: a secret, the user of the page, a folder on this machine's disk, and how
the platform's Drive is mounted again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from colabkeep.vocabulary.errors import SecretError

__all__ = ["Doors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Handed in by whoever knows the platform; what is None is not to be had.

    `secret`: the value of the user's secret of a name; raises `SecretError` where there is none. `user`: make the
    page's user known to google-auth (Colab's `authenticate_user`); raises `PlatformError` where that cannot be done.
    Both may ask the notebook's page, so they are called on the main thread. `disk`: what lies in there is quick to
    reach, outlives the kernel and not the machine. `remount`: mount the user's Drive again, if it is not well. It may
    be called on any thread: False where it cannot be done there and is left to another one. It raises `PlatformError`
    where it was in vain.
    """

    secret: Callable[[str], str] | None = None
    user: Callable[[], None] | None = None
    disk: Path | None = None
    remount: Callable[[], bool] | None = None

    def find_secret(self, name: str) -> str | None:
        """The value of that secret, None if there is none; whoever needs it says what then is to be done."""
        if self.secret is None:
            return None
        try:
            return self.secret(name)
        except SecretError:
            return None

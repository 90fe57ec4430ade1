"""How often, and for how long: every time the Kaggle store waits for something, in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from colabkeep.vocabulary.budget import KAGGLE_VERSION_SECONDS

__all__ = ["Pace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The defaults are chosen, except where a source is named: Kaggle publishes no figures.

    * `first`: from the first object to the first version, which proves early that the way works.
    * `every`: from one version to the next, for each is uploaded whole.
    * `retry`: the first pause after a failure; it doubles, up to `every`.
    * `call`: for an answer. `slowest`, in bytes per second, is what makes that longer for a transfer.
    * `look`: when a dataset is opened, for a version that is still being processed.
    * `ready`: for a new version to be processed, which Kaggle does in its own time and without which no other can
      follow the first one (Kaggle/kagglehub #181, November 2024).
    * `appear`: for a new version to be seen at all; one beyond the quota never is (Kaggle/kaggle-cli #284).
    * `poll`: between two questions about that.
    """

    first: float = 60.0
    every: float = KAGGLE_VERSION_SECONDS
    retry: float = 15.0
    call: float = 120.0
    slowest: float = 256 * 2**10
    look: float = 120.0
    ready: float = 1800.0
    appear: float = 300.0
    poll: float = 10.0

    def transfer(self, size: int) -> float:
        """The time that so many bytes may take."""
        return self.call + size / self.slowest

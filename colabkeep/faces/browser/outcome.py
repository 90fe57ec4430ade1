"""What an action of the browser came to, and the dry run that stands before each deletion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from colabkeep.faces.browser.listing import Watch
from colabkeep.faces.tables import plain
from colabkeep.vocabulary.errors import UsageError

__all__ = ["DryRun", "Outcome"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Outcome:
    """What was done, in `lines`; `good`: all is well, so far as was looked."""

    lines: tuple[str, ...]
    good: bool = True

    def __repr__(self) -> str:
        return "\n".join(plain(line, limit=2000) for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DryRun:
    """What would be deleted, in `lines`. Nothing is, until `go` is called. `empty`: there is nothing to delete.

    `word`: what has to be typed first, where a whole run would go; None where nothing has to.
    """

    lines: tuple[str, ...]
    empty: bool
    word: str | None = None
    act: Callable[[Watch], Outcome] = field(repr=False)

    def go(self, typed: str = "", watch: Watch = lambda *_: None) -> Outcome:
        """Delete what was said, and nothing else.

        Raises:
            UsageError: the name of the run was not typed.
            RunBusy: the run is being trained.
            CheckpointError: it is not what it was any more; nothing was deleted.
            StoreError: the store failed; what was not deleted stays for the next time.
        """
        if self.word is not None and typed != self.word:
            raise UsageError(
                problem=f"The name of the run that would be gone was not typed ({typed!r:.80}). Nothing was deleted.",
                remedy=f"Type it exactly: {self.word}",
            )
        return self.act(watch)

    def __repr__(self) -> str:
        then = "" if self.word is None else repr(self.word)
        last = () if self.empty else (f"Nothing is deleted yet. To do it, call .go({then}) on this.",)
        return "\n".join(plain(line, limit=2000) for line in (*self.lines, *last))

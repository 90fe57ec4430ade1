"""One set of staging memory, lent to one snapshot at a time."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from colabkeep.frameworks.common.choosing import STOPPED
from colabkeep.vocabulary.state import Tree

__all__ = ["Captures", "Complete"]


class Complete:
    """A capture, and the snapshot it becomes. What was not copied at once is `rest`, which `finish` sees done.

    As a context, it takes the staging memory back if filling the trees fails, once `stop` has seen to it that nothing
    is copied there any more.
    """

    def __init__(self, owner: Captures, at_once: str = "") -> None:
        self._owner = owner
        self.trees: dict[str, Tree] = {}
        self.rest: Callable[[], None] = _nothing
        self.stop: Callable[[], None] = _nothing
        self.mode = f"{STOPPED}: {at_once}" if at_once else STOPPED
        self.waited = 0.0

    @property
    def parts(self) -> dict[str, Tree]:
        """The trees, by part."""
        return self.trees

    def finish(self) -> Complete:
        """The snapshot, which is this object.

        Raises:
            Torn: what was copied later was changed before.
        """
        try:
            self.rest()
        except BaseException:
            self.release()
            raise
        return self

    def release(self) -> None:
        """The memory may be reused."""
        self._owner.take_back(self)

    def __enter__(self) -> Complete:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.stop()
            self.release()


class Captures:
    """Knows whether the staging memory is lent out."""

    def __init__(self) -> None:
        self._lent: Complete | None = None

    def begin(self, at_once: str = "") -> Complete:
        """A new capture, to be filled. `at_once`: why nothing may be copied later, if so.

        Raises:
            RuntimeError: the snapshot before has not been released; its memory would change under its reader.
        """
        if self._lent is not None:
            raise RuntimeError("capture() was called while the snapshot before it is in use; release() it first")
        self._lent = Complete(self, at_once)
        return self._lent

    def take_back(self, snapshot: Complete) -> None:
        """The snapshot is released. A late second call does not take a newer one's memory."""
        if self._lent is snapshot:
            self._lent = None


def _nothing() -> None:
    """All was copied at once."""

"""One set of staging memory, lent to one snapshot at a time."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, TypeVar

from colabkeep.frameworks.common.checksums import Reader
from colabkeep.vocabulary.state import Tree

__all__ = ["Captures", "Complete", "Part"]

Copies_contra = TypeVar("Copies_contra", contravariant=True)


class Part(Protocol[Copies_contra]):
    """The tensors of one part of a run, for the copies of a capture."""

    def add_to(self, copies: Copies_contra) -> None:
        """Have copied what is to be copied."""
        ...

    def prove(self, reader: Reader) -> bool:
        """The copies are made: has all that was not copied the bytes that are stored?"""
        ...

    def renew(self) -> None:
        """Show what is new as new."""
        ...

    def stored(self) -> None:
        """The snapshot is stored."""
        ...


class Complete:
    """A capture, and the snapshot it becomes. `finish` does what is `rest`; `keep` hears that it is stored.

    As a context, it takes the staging memory back if filling the trees fails.
    """

    def __init__(self, owner: Captures) -> None:
        self._owner = owner
        self.trees: dict[str, Tree] = {}
        self.rest: Callable[[], object] = _nothing
        self.keep: Callable[[], object] = _nothing
        self.remark = ""

    @property
    def parts(self) -> dict[str, Tree]:
        """The trees, by part."""
        return self.trees

    def finish(self) -> Complete:
        """The snapshot, which is this object.

        Raises:
            Stale: as `Capture.finish`.
        """
        try:
            self.rest()
        except BaseException:
            self.release()
            raise
        return self

    def stored(self) -> None:
        """A checkpoint holds it."""
        self.keep()

    def release(self) -> None:
        """The memory may be reused."""
        self._owner.take_back(self)

    def __enter__(self) -> Complete:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.release()


class Captures:
    """Knows whether the staging memory is lent out."""

    def __init__(self) -> None:
        self._lent: Complete | None = None

    @property
    def lent(self) -> bool:
        """Is there a snapshot that was not released?"""
        return self._lent is not None

    def begin(self) -> Complete:
        """A new capture, to be filled.

        Raises:
            RuntimeError: the snapshot before has not been released; its memory would change under its reader.
        """
        if self._lent is not None:
            raise RuntimeError("capture() was called while the snapshot before it is in use; release() it first")
        self._lent = Complete(self)
        return self._lent

    def take_back(self, snapshot: Complete) -> None:
        """The snapshot is released. A late second call does not take a newer one's memory."""
        if self._lent is snapshot:
            self._lent = None


def _nothing() -> None:
    """All is copied already."""

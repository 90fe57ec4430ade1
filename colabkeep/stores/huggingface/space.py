"""Giving back the space of what was deleted from a repository, whose history would keep it."""

from __future__ import annotations

from collections.abc import Iterable

from colabkeep.stores.huggingface.hub import Hub
from colabkeep.vocabulary.errors import StoreError

__all__ = ["Space"]


class Space:
    """`trouble` says, in a sentence for the user, why space is not given back; None when it is."""

    def __init__(self, hub: Hub, url: str) -> None:
        self._hub = hub
        self._url = url
        self._garbage: set[str] = set()  # digests of large files that were deleted
        self.trouble: str | None = None

    def deleted(self, digests: Iterable[str]) -> None:
        """These large files were deleted, under one name at least."""
        self._garbage.update(digests)

    def give_back(self, waiting: Iterable[str]) -> bool:
        """Take out of the history what nothing needs, nor the digests `waiting` for their commit. Was it written anew?
        Where that fails, the next one tries again."""
        if not self._garbage:
            return False
        try:
            if self._hub.other_references():
                self.trouble = (
                    f"{self._url} has other branches or tags, which may need deleted checkpoints: their space is not "
                    "given back. Delete these references on the repository's page if you do not need them."
                )
                return False
            garbage = self._garbage - self._hub.digests() - set(waiting)
            if garbage:
                self._hub.free(garbage)
        except StoreError as error:
            self.trouble = f"The space of deleted checkpoints is not given back yet: {error.problem}"
            return False
        self._garbage.clear()
        self.trouble = None
        return bool(garbage)

"""What the store needs to be able to do at a place: eight things. Everything foreign stays on the other side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from colabkeep.stores.base import Source

__all__ = ["BLOCK", "Hands", "block_size"]

BLOCK = 8 * 2**20
"""Bytes that travel in one request. Three to four blocks are in memory at a time: ours, the library's, the wire's."""

_PARTS = 9_000  # S3 takes 10,000 in one upload: docs.aws.amazon.com, "Amazon S3 multipart upload limits"


def block_size(size: int) -> int:
    """The bytes per request for an object of `size` bytes: 8 MiB up to some 70 GiB, then as much more as is needed."""
    return max(BLOCK, -(-size // _PARTS))


class Hands(Protocol):
    """Work at one place. Names are those of the store. All raise `StoreError`s, and try again by themselves."""

    def find(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Name and size in bytes of everything below the prefix, temporary files and foreign ones too."""
        ...

    def taken(self, name: str) -> bool:
        """Is there anything of that name?"""
        ...

    def stat(self, name: str, *, again: bool = True) -> Mapping[str, Any]:
        """What the place says about an object: "size" in bytes, a digest under the key of its library, and under
        "notes" what the writer left beside it (see `digests.notes`). `again`: it is asked again where that can help.

        Raises:
            ObjectNotFound: there is none.
        """
        ...

    def read(self, name: str, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`, not included."""
        ...

    def send(self, name: str, source: Source, blocks: Iterator[memoryview]) -> None:
        """Make the object of the blocks, which are the source's; it appears whole, after the last, or not at all.

        What the iterator raises, also after its last block, comes out as it is, and nothing is left behind.

        Raises:
            NameTaken: the name exists, and the place can tell.
        """
        ...

    def remove(self, name: str) -> None:
        """Delete an object; it is no error that there is none."""
        ...

    def sweep(self, prefix: str) -> int:
        """Remove what killed writers left below the prefix; return how many."""
        ...

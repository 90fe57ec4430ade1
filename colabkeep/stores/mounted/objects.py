"""Which objects there are, and in which files: what the mount lists, corrected by what this process did itself.

A listing may lag, in both directions: it misses what was just written, and shows what was just deleted. So what was
seen once is asked for by its path, which nobody else ever uses; and a path that was given up is no object any more.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

from colabkeep.stores._posix import Files
from colabkeep.stores.mounted.drafts import remove
from colabkeep.stores.mounted.names import new_file_name
from colabkeep.stores.mounted.places import Place, Spot

__all__ = ["Objects"]


class Objects:
    """The objects of a place. Its calls raise the bare `OSError`, and `StoreUnavailable` when the mount is gone.

    `truncate`: empty a file before it is deleted. All that changes is guarded by `_guard`, and no file is touched
    while that is held.
    """

    def __init__(self, files: Files, place: Place, *, truncate: bool) -> None:
        self._files = files
        self._place = place
        self._truncate = truncate
        self._guard = threading.Lock()
        self._known: dict[str, Spot] = {}
        self._void: set[str] = set()  # paths that are being written, or were given up or removed

    def find(self, name: str) -> Spot | None:
        """The object, if it is there."""
        known = self._known.get(name)
        if known is not None and self._is_there(known):
            return known
        spots = self._listed(name)
        with self._guard:
            if known is not None and self._known.get(name) is known:
                del self._known[name]
            if spots:
                self._known.setdefault(name, spots[0])
        return spots[0] if spots else None

    def list(self, parts: Sequence[str]) -> Sequence[Spot]:
        """The objects below a folder."""
        prefix = "/".join(parts)
        with self._guard:  # before the listing: what is put in the meantime is not judged by it
            known = [spot for name, spot in self._known.items() if not prefix or name.startswith(f"{prefix}/")]
        found: dict[str, Spot] = {}
        for spot in self._walk(parts):
            if self._stands(spot):
                found.setdefault(spot.name, spot)
        found.update({spot.name: spot for spot in known if spot.name not in found and self._is_there(spot)})
        with self._guard:
            for spot in known:
                if spot.name not in found and self._known.get(spot.name) is spot:
                    del self._known[spot.name]
            found = {name: spot for name, spot in found.items() if spot.path not in self._void}
            self._known = {**found, **self._known}
        return list(found.values())

    def leftovers(self, parts: Sequence[str]) -> Sequence[Spot]:
        """The files of this store below a folder that are no objects: too short, or given up by this process."""
        return [
            spot
            for spot in self._walk(parts)
            if spot.ours and not self._stands(spot) and self._size(spot.path) is not None
        ]

    def given_up(self, path: str) -> bool:
        """Did this process write that file, and give it up?"""
        return path in self._void

    def room_for(self, name: str) -> str:
        """The folder for the file of a new object; it is made.

        Raises:
            FileExistsError: the object is there already.
        """
        folder = self._place.folder(name.split("/")[:-1], make=True)
        spots, shelf = self._place.look_for(folder, name)
        known = self._known.get(name)
        if any(map(self._stands, spots)) or (known is not None and self._is_there(known)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if shelf != folder:
            self._place.make_shelf(shelf)
        return shelf

    def begin(self, name: str, size: int) -> str:
        """The path for a new object, which this process takes for one when it is added, and not before.

        Raises:
            FileExistsError: the object is there already.
        """
        path = f"{self.room_for(name)}/{new_file_name(name.rpartition('/')[2], size)}"
        with self._guard:
            self._void.add(path)
        return path

    def add(self, spot: Spot) -> None:
        """It was written."""
        with self._guard:
            self._void.discard(spot.path)
            self._known[spot.name] = spot

    def delete(self, name: str) -> None:
        """Remove all files that are this object: a put that failed may have left a second one."""
        known = self._known.get(name)
        for spot in {spot.path: spot for spot in (*filter(None, [known]), *self._listed(name))}.values():
            self.remove(spot)

    def remove(self, spot: Spot) -> None:
        """Remove one file. A plain one was not written by this store, so it goes to the trash as it is."""
        remove(self._files, spot.path, truncate=self._truncate and spot.ours)
        with self._guard:
            self._void.add(spot.path)
            known = self._known.get(spot.name)
            if known is not None and known.path == spot.path:
                del self._known[spot.name]

    def _listed(self, name: str) -> Sequence[Spot]:
        """The files that are this object, in the order of their paths: of two equal ones all readers take the same."""
        try:
            folder = self._place.folder(name.split("/")[:-1])
            spots, _ = self._place.look_for(folder, name)
        except FileNotFoundError:
            return []
        return sorted(filter(self._stands, spots), key=lambda spot: spot.path)

    def _walk(self, parts: Sequence[str]) -> Iterator[Spot]:
        with suppress(FileNotFoundError):  # there is no such folder
            yield from sorted(self._place.walk(parts), key=lambda spot: spot.path)

    def _stands(self, spot: Spot) -> bool:
        return spot.whole and spot.path not in self._void

    def _is_there(self, spot: Spot) -> bool:
        return spot.path not in self._void and self._size(spot.path) == spot.size

    def _size(self, path: str) -> int | None:
        try:
            return self._files.stat(path, follow_symlinks=False).st_size
        except FileNotFoundError:
            return None

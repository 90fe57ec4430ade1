"""Where each folder was when it was first seen, and which of them somebody renamed, moved or removed since."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from colabkeep.stores.drive.files import RemoteFile, age

__all__ = ["Astray", "Whereabouts"]


@dataclass(frozen=True, slots=True)
class Astray:
    """A folder that is not where it was: its path in the store, and the folder as it is now; None if it is gone."""

    path: str
    now: RemoteFile | None


class Whereabouts:
    """`look(id, doing)` asks the service for one folder by its id; that never lags. Used by one thread at a time, but
    for `astray`."""

    def __init__(self, look: Callable[[str, str], RemoteFile | None]) -> None:
        self._look = look
        self._met: dict[str, RemoteFile] = {}  # by id, as it was when it was first seen
        self._astray: dict[str, Astray] = {}  # replaced as a whole

    @property
    def astray(self) -> tuple[Astray, ...]:
        """The folders that are not where they were."""
        return tuple(self._astray.values())

    def meet(self, folders: Iterable[RemoteFile]) -> None:
        """These were seen; one that is known by its id only, from the URL, has no name."""
        for one in folders:
            if one.name:
                self._met.setdefault(one.id, one)

    def by_age(self, ids: Iterable[str]) -> tuple[str, ...]:
        """The oldest first, the same on all machines."""
        return tuple(sorted(ids, key=lambda id: age(self._met[id]) if id in self._met else ("", id)))

    def changed(self, unseen: Iterable[tuple[str, str]], doing: str) -> bool:
        """Is one of these folders, path and id, that a search did not find, not where it was? Or one back that was
        not?

        Raises:
            StoreError: it cannot be told.
        """
        lost: dict[str, Astray] = {}
        for path, id in unseen:
            if id in self._met and self._has_left(id, now := self._look(id, doing)):
                lost[id] = Astray(path, now)
        absent = self._astray.keys() - lost.keys()
        back = {id for id in absent if not self._has_left(id, self._look(id, doing))}
        self._astray = {id: one for id, one in self._astray.items() if id not in back} | lost
        return bool(lost or back)

    def _has_left(self, id: str, now: RemoteFile | None) -> bool:
        was = self._met[id]
        return now is None or now.trashed or (now.name, set(now.parents)) != (was.name, set(was.parents))

"""What a loader that is read in its own order counts by itself: how often it was read, where it stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from colabkeep.frameworks.shared.describe import is_library
from colabkeep.frameworks.shared.streams import instance_dict, reachable

_PLAIN = (bool, int, float)  # no texts: one that changes may be the token of a sign-in, which no run may hold
_SMALL = 100  # members of a dict that are looked at


class Counts:
    """The numbers of a loader, and of the objects of the user's own classes and the dicts in it, in one
    epoch. Kept are those that change while it is read. What the user's loop sets between two epochs, it sets in a
    resumed session too: what one epoch leaves goes on in the next only if it was seen to do so.

    An object is known by its class and its place among those of that class. `set_epoch` tells the loader the epoch:
    what that sets is right, whatever was left.
    """

    def __init__(self, loader: object, epoch: int, set_epoch: Callable[[], None]) -> None:
        seen: Counter[str] = Counter()
        # The name of each, its own attributes, and those of its class.
        self._objects: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        for each in reachable(loader, code=False):
            kind = type(each)
            inside = each if type(each) is dict and len(each) <= _SMALL else instance_dict(each)
            if inside is each or not is_library(kind.__module__):
                bases = () if inside is each else kind.__mro__[::-1]
                of_class = {name: value for base in bases for name, value in vars(base).items()}
                if inside or any(type(value) in _PLAIN for value in of_class.values()):
                    self._objects.append((f"{kind.__qualname__}[{seen[kind.__qualname__]}]", inside, of_class))
                    seen[kind.__qualname__] += 1
        self._epoch, self._set_epoch = epoch, set_epoch
        self._lasting: set[str] = set()  # what an epoch was seen to begin with as the one before had left it
        self._begun: dict[str, Any] = {}
        self._ended: dict[str, Any] | None = {}  # None: it is being read

    def go_on(self, before: Mapping[str, Any], *, resumed: bool) -> list[str]:
        """Count on from what `tree` returned, of this epoch or the one before it. `resumed`: in an earlier session.
        Returns what goes on though it was not seen yet that it should."""
        begun, ended = before["begin"], before["end"]
        self._lasting = set(before["lasting"])
        if before["epoch"] == self._epoch:
            self._put(begun)
            return []
        if not resumed:
            now = self._now()
            same = {name for name, value in ended.items() if now.get(name) == value}
            self._lasting = self._lasting - ended.keys() | same
            return []
        unseen = ended.keys() if before["epoch"] == 0 else set()
        self._set_epoch()
        made = self._now()
        self._put({name: value for name, value in ended.items() if name in self._lasting or name in unseen})
        self._set_epoch()
        now = self._now()
        return [name for name in unseen if name in made and made[name] != ended[name] == now[name]]

    def begin(self) -> None:
        """It is read from now on."""
        self._begun, self._ended = self._now(), None

    def end(self) -> None:
        """It was read, or left."""
        if self._ended is None:
            self._ended = self._now()

    def tree(self) -> dict[str, Any]:
        """What changed since the epoch began; empty if nothing ever did."""
        end = self._now() if self._ended is None else self._ended
        changed = [name for name, value in self._begun.items() if end.get(name, value) != value]
        if not changed and not self._lasting:
            return {}
        return {
            "epoch": self._epoch,
            "begin": {name: self._begun[name] for name in changed},
            "end": {name: end[name] for name in changed},
            "lasting": sorted(self._lasting),
        }

    def _now(self) -> dict[str, Any]:
        return {
            f"{kind}.{name}": value
            for kind, inside, of_class in self._objects
            for name, value in {**of_class, **inside}.items()
            if type(value) in _PLAIN
        }

    def _put(self, values: Mapping[str, Any]) -> None:
        for kind, inside, of_class in self._objects:
            known = {name: f"{kind}.{name}" for name in {**of_class, **inside}}
            inside.update((name, values[key]) for name, key in known.items() if key in values)

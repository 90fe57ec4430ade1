"""Telling, when the first step of a session is done, what moves the training and was not handed in."""

from __future__ import annotations

import math
from collections.abc import Callable

from colabkeep.frameworks.base import Unseen
from colabkeep.vocabulary.events import Event, FirstStepDone, Noted, RestoredInexactly
from colabkeep.vocabulary.manifest import Manifest

__all__ = ["Strangers"]


class Strangers:
    """An observer of one session. `resumed_from`: the checkpoint that it went on from; behind a first step it is too
    late, and "exact" is taken back. `tell` appends to what waits to be told."""

    steps_from = math.inf

    def __init__(self, unseen: Unseen, resumed_from: Manifest | None, tell: Callable[[Event], object]) -> None:
        self._unseen = unseen
        self._resumed = None if resumed_from is None or not resumed_from.progress.step else resumed_from.id
        self._tell = tell

    def __call__(self, event: Event) -> None:
        if not isinstance(event, FirstStepDone):
            return
        for text in self._unseen():
            if self._resumed is None:
                self._tell(Noted(text=text))
            else:
                self._tell(RestoredInexactly(checkpoint=self._resumed, reason=text))

    def close(self) -> None:
        """The session ends."""
        self._unseen.close()

"""What a loop remembers besides its place: random streams, variables, means, streams of batches; now and when the
epoch began."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from colabkeep.frameworks.base import Data, Framework
from colabkeep.session.endless import Endless
from colabkeep.session.opening import Value
from colabkeep.session.same_data import SameData
from colabkeep.session.variables import Averages, RunState
from colabkeep.vocabulary.state import Stateful, Tree

__all__ = ["LoopMemory"]


class LoopMemory:
    """`stored` are the own parts of the checkpoint that a session resumes from. They are put back where the training
    gets to their place: what a loop does before its first batch it does again in a resumed epoch, so until then it has
    the variables and random streams that it had when the epoch began.
    """

    def __init__(self, framework: Framework, data: Data, same: SameData, seed: int, stored: Mapping[str, Tree]) -> None:
        self.state = RunState(framework.name)
        self.averages = Averages(framework)
        self.streams = Endless(data, same, seed)
        self._framework = framework
        self._rng = framework.rng()
        self._stored = stored
        self.arrived = not stored  # is the training where the checkpoint was taken?
        self._at_epoch = {name: Value() for name in ("rng", "state", "streams")}
        self._restore("state", self.state)  # for what is read before the loop

    def parts(self) -> dict[str, object]:
        """All of it, by the names of the parts of a checkpoint; what the run does not use is left out."""
        found: dict[str, object] = {"rng": self._rng, "rng_at_epoch": self._at_epoch["rng"]}
        if self.state:
            found |= {"state": self.state, "state_at_epoch": self._at_epoch["state"]}
        if self.averages:
            found["averages"] = self.averages
        if streams := self.streams.state():
            found |= {"streams": Value(streams), "streams_at_epoch": self._at_epoch["streams"]}
        return found

    def arrive(self) -> None:
        """The training is where the checkpoint was taken: all is in force from here on, the random streams last."""
        if self.arrived:
            return
        self.arrived = True
        self._restore("state", self.state)
        self._restore("averages", self.averages)
        self.streams.put(self._stored.get("streams") or {})
        if "rng" in self._stored:
            self._rng.load_state_dict(self._framework.native(self._stored["rng"]))
        self._stored = {}

    def begin_epoch(self) -> None:
        """An epoch begins."""
        self.arrive()
        self.averages.reset()
        self._at_epoch["rng"].value = self._rng.state_dict()
        self._at_epoch["state"].value = deepcopy(self.state.state_dict())
        self._at_epoch["streams"].value = self.streams.state()

    def begin_epoch_again(self) -> None:
        """One that was left in its middle: what it does before its first batch, it does as it did the first time."""
        if not self.arrived:
            if "rng_at_epoch" in self._stored:
                self._at_epoch["rng"].value = self._framework.native(self._stored["rng_at_epoch"])
            self._restore("state_at_epoch", self._at_epoch["state"])
            self._restore("state_at_epoch", self.state)
            self._at_epoch["streams"].value = self._stored.get("streams_at_epoch")
            self.streams.put(self._at_epoch["streams"].value or {})
        self._rng.load_state_dict(self._at_epoch["rng"].value)

    def mark(self) -> None:
        """The training is between two steps."""
        state, averages, streams = self.state, self.averages, self.streams
        if state._values or state._marked:  # most loops use none of them, and this is done in every step
            state.mark()
        if averages._pending or averages._read:
            averages.mark()
        if streams._streams:
            streams.mark()

    def rewind(self) -> str | None:
        """Go back to the last mark, in what `parts` tells; or say why that cannot be, in a clause. Random streams are
        the boundary's, as are buffers."""
        return self.state.rewind() or self.averages.rewind() or self.streams.rewind()

    def _restore(self, part: str, target: Stateful) -> None:
        if part in self._stored:
            self._framework.restore({part: target}, {part: {"kind": "object", "state": self._stored[part]}})

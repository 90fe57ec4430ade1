"""What is done when the loss of a run is no finite number: say so once, with the checkpoint to go back to; or stop."""

from __future__ import annotations

import math

from colabkeep._engine.checkpointer import Checkpointer
from colabkeep._engine.repository import Repository
from colabkeep._engine.restore import good_before
from colabkeep.session.losses import LossRecord
from colabkeep.session.opening import RunSpec
from colabkeep.vocabulary.errors import StoreError, TrainingDiverged, UsageError
from colabkeep.vocabulary.events import Event, LossNotFinite, LossRecovered, Pruned, SaveCommitted
from colabkeep.vocabulary.manifest import Manifest
from colabkeep.vocabulary.policies import OnNan

__all__ = ["LossGuard", "read_on_nan"]


def read_on_nan(word: object) -> OnNan:
    """The argument `on_nan`.

    Raises:
        UsageError: none of the known words.
    """
    if word == "stop":
        return "stop"
    if word == "warn":
        return "warn"
    raise UsageError(
        problem=f"on_nan={word!r} is unknown.",
        remedy='Use "warn" (it is told, and training goes on) or "stop" (training ends with an error).',
    )


class LossGuard:
    """Turns what `losses` notice into events, for one session. An observer of its saves, so that it knows what there is
    to go back to; `start`: the checkpoint that the session went on from."""

    steps_from = math.inf

    def __init__(self, losses: LossRecord, saver: Checkpointer, spec: RunSpec, start: Manifest | None) -> None:
        self._losses = losses
        self._saver = saver
        self._spec = spec
        self._start = start
        self._own: dict[str, int] = {}  # the checkpoints of this session that are there, and their steps

    def __call__(self, event: Event) -> None:
        """A checkpoint came or went."""
        if isinstance(event, SaveCommitted):
            self._own[event.checkpoint] = event.progress.step
        elif isinstance(event, Pruned):
            for id in event.checkpoints:
                self._own.pop(id, None)

    def judge(self, *, stopping: bool = True) -> None:
        """Tell what `LossRecord.hear` has noticed. `stopping`: training may be ended for it, if that was asked for.

        Raises:
            TrainingDiverged: the loss is not a finite number, and ``on_nan="stop"``.
        """
        proof, since, stops = self._losses.proof, self._losses.told, stopping and self._spec.on_nan == "stop"
        if since is None:
            proof.named = ""
            self._saver.events.append(LossRecovered(step=proof.finite or 0))
            return
        if stops:
            self._saver.wait()  # a save under way may be the one to go back to
        good = self._good(proof.finite or 0)
        proof.named = good or ""
        event = LossNotFinite(step=since, value=proof.value, finite=proof.finite, checkpoint=good)
        self._saver.events.append(event)
        if stops:
            raise _diverged(event)

    def _good(self, finite: int) -> str | None:
        known, saved, newest = dict(self._own), self._saver.saved, self._saver.newest
        if saved is not None and newest is not None:
            known[newest] = saved.step  # the event may be on its way
        own = [id for id, step in known.items() if step < finite]
        if own:
            return max(own, key=lambda id: known[id])
        if self._start is None:
            return None
        try:  # of its own: what a repository remembers of listings is not for two threads
            return good_before(Repository(self._spec.store, self._spec.name), self._start, finite)
        except StoreError:
            return None  # it cannot be asked now; `colabkeep show` lists them


def _diverged(event: LossNotFinite) -> TrainingDiverged:
    causes = "a smaller learning rate, clipped gradients, the batch that has it"
    back = (
        f"Its newest checkpoint from before is {event.checkpoint}. Change what led there ({causes}), and run the cell "
        f'again with resume="{event.checkpoint}".'
        if event.checkpoint
        else f"It has no checkpoint from before. Change what led there ({causes}), and start again with another "
        'run_name or resume="never".'
    )
    return TrainingDiverged(
        problem=f'The loss is {event.word} since step {event.step}, so training was stopped (on_nan="stop"). The '
        "weights of that step were not saved.",
        remedy=back,
    )

"""What a checkpoint of a `fit` holds besides network, optimizer and position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paddle.callbacks import ProgBarLogger

from colabkeep.integrations._paddle_hapi.remembering import Memories, storable
from colabkeep.vocabulary.progress import Progress
from colabkeep.vocabulary.settings import Item, Plain

__all__ = ["FitState"]


class FitState:
    """The metrics' and callbacks' memories, how many batches there were, and whether training was ended early.

    `iterations` counts batches trained and evaluated, as `num_iters` of `fit` does; `logs` are the numbers of the last
    batch. Made when all callbacks are ready for training, so that what differs later is what they learnt.
    """

    between_steps = True

    def __init__(self, model: Any, callbacks: Sequence[object], epochs: int) -> None:
        self.iterations = 0
        self.logs: dict[str, Any] = {}
        self.stopped = False  # in the session before
        self.lines: list[str] = []  # what the user should know of the restore and of what cannot be kept
        self._model = model
        self._epochs = epochs
        self._epochs_before = epochs
        self._settings = {"accumulate_grad_batches": model._accumulate}
        self._metrics = Memories(model._metrics)
        # Progress bars keep clocks; what they count is set anew.
        self._callbacks = Memories([each for each in callbacks if not isinstance(each, ProgBarLogger)])
        self._unkept: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain values and arrays."""
        self._look_for_unkept()
        return {
            "iterations": self.iterations,
            "logs": {name: value for name, value in self.logs.items() if storable(value)},
            "stopped": bool(self._model.stop_training),
            "epochs": self._epochs,
            "settings": self._settings,
            "metrics": self._metrics.state_dict(),
            "callbacks": self._callbacks.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.iterations = state["iterations"]
        self.logs = dict(state["logs"])
        self.stopped = state["stopped"]
        self._epochs_before = state["epochs"]
        gone = [*self._metrics.load_state_dict(state["metrics"]), *self._callbacks.load_state_dict(state["callbacks"])]
        self.lines += [f"{name} was part of the training and is not here now; what it knew is lost" for name in gone]

    def written_settings(self) -> Mapping[str, Item]:
        """What the user wrote in the call of `fit`."""
        return {"": Item(kind="fit", sure=True, options=self._settings)}

    def reached_settings(self, state: Mapping[str, Any]) -> Mapping[str, Plain]:
        """What an earlier session computed with."""
        settings: Mapping[str, Plain] = state["settings"]
        return settings

    def over(self, progress: Progress) -> str | None:
        """Why there is nothing left to train although epochs are left; None if there is."""
        if not self.stopped or progress.batches or self._epochs > self._epochs_before:
            return None
        return (
            f"A callback ended this training after epoch {progress.epoch}, so nothing is left to train. "
            f"To go on all the same, ask for more than {self._epochs_before} epochs."
        )

    def _look_for_unkept(self) -> None:
        for name in {*self._metrics.unkept(), *self._callbacks.unkept()} - self._unkept:
            self._unkept.add(name)
            self.lines.append(f"{name} holds what cannot be stored: a resumed training begins with a new one")

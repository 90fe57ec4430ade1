"""What a checkpoint of a `fit` holds besides network, optimizer and position: metrics and callbacks, who hear only
of what is really trained.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import paddle
from paddle.callbacks import ProgBarLogger

from colabkeep.core.manifest import Progress
from colabkeep.core.settings import Item, Plain

__all__ = [
    "CallbackList",
    "FitHooks",
    "FitState",
    "Memories",
    "storable",
]

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_FITS_OWN = frozenset({"model", "params"})  # what fit gives to each callback


class Changes:
    """The attributes of an object that are not what they were when this was made.

    What did not change is the constructor's word: the user may give another one in the next session.
    """

    def __init__(self, target: object) -> None:
        self._target = target
        self._before = {name: copy.deepcopy(v) if storable(v) else v for name, v in _attributes(target)}

    def state_dict(self) -> dict[str, Any]:
        """Name → value, as far as it can be stored."""
        return {name: value for name, value in self._changed() if storable(value)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember again."""
        for name, value in state.items():
            setattr(self._target, name, value)

    def unkept(self) -> list[str]:
        """What changed and cannot be stored."""
        return [f"{type(self._target).__name__}.{name}" for name, value in self._changed() if not storable(value)]

    def _changed(self) -> Iterable[tuple[str, Any]]:
        missing = object()
        return [(n, v) for n, v in _attributes(self._target) if not _same(self._before.get(n, missing), v)]


class Memories:
    """The changes of several objects, recognized by their class and their place among those of that class."""

    def __init__(self, targets: Sequence[object]) -> None:
        seen: Counter[str] = Counter()
        self._changes: dict[str, Changes] = {}
        for target in targets:
            kind = type(target).__name__
            self._changes[f"{kind}[{seen[kind]}]"] = Changes(target)
            seen[kind] += 1

    def state_dict(self) -> dict[str, Any]:
        """By object, what changed."""
        return {name: state for name, changes in self._changes.items() if (state := changes.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Remember again; returns the objects that are not here any more."""
        for name, changes in self._changes.items():
            changes.load_state_dict(state.get(name, {}))
        return [name for name in state if name not in self._changes]

    def unkept(self) -> list[str]:
        """What changed and cannot be stored."""
        return [line for changes in self._changes.values() for line in changes.unkept()]


def _attributes(target: object) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(target).items() if name not in _FITS_OWN]


def storable(value: Any) -> bool:
    """Can a checkpoint hold it? Numbers, texts, arrays, and lists, tuples and dictionaries of them; no classes of the
    user's own that are like these."""
    kind = type(value)
    if kind is dict:
        return all(type(key) in (str, int) and storable(member) for key, member in value.items())
    if kind in (list, tuple):
        return all(storable(member) for member in value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.dtype.kind in "biufc" and (kind is np.ndarray or isinstance(value, np.generic))
    return kind in _PLAIN or isinstance(value, paddle.Tensor)


def _same(before: Any, now: Any) -> bool:
    if before is now and not isinstance(now, (list, dict, np.ndarray)):
        return True
    if type(before) is not type(now) or not storable(now):
        return False
    if isinstance(now, dict):
        return before.keys() == now.keys() and all(_same(before[key], now[key]) for key in now)
    if isinstance(now, (list, tuple)):
        return len(before) == len(now) and all(map(_same, before, now))
    if isinstance(now, (np.ndarray, paddle.Tensor)):
        return bool(np.array_equal(np.asarray(before), np.asarray(now)))
    return bool(before == now)


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


class FitHooks(Protocol):
    """Who knows what `fit` really does."""

    live: bool
    """Is it done, not skipped?"""

    offset: int
    """Batches of the epoch under way that were trained in earlier sessions."""

    def begin_epoch(self, epoch: int) -> None:
        """`fit` begins an epoch, which ends the one before."""
        ...

    def count(self, logs: Mapping[str, Any] | None) -> None:
        """A batch was trained, with these numbers; or one was evaluated (None)."""
        ...

    def measured(self, prefix: str, logs: Mapping[str, Any]) -> None:
        """An epoch ("train_") or an evaluation ("val_") is done."""
        ...

    def end(self) -> None:
        """`fit` is done."""
        ...

    def leave(self, error: BaseException) -> bool:
        """Something was raised: save and let go. True if it was a request to stop, which is dealt with."""
        ...


class CallbackList:
    """Takes the place of all callbacks in the list that `fit` calls, and hands on what they should hear.

    An exception of theirs ends the run as one of the training does: what is done so far is saved.
    """

    def __init__(self, conductor: FitHooks, callbacks: Sequence[Any]) -> None:
        self._conductor = conductor
        self._callbacks = tuple(callbacks)

    def __getattr__(self, name: str) -> Any:
        return partial(self._tell, name)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """End the epoch before; tell of this one, unless it was trained in an earlier session."""
        self._guarded(self._conductor.begin_epoch, epoch)
        self._tell("on_epoch_begin", epoch, logs)
        self.set_bars()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Log what was measured."""
        self._guarded(self._conductor.measured, "train_", logs)
        self._tell("on_epoch_end", epoch, logs)

    def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
        """Tell with the batch's number in the whole epoch."""
        self._tell("on_train_batch_begin", step + self._conductor.offset, logs)

    def on_train_batch_end(self, step: int, logs: dict[str, Any]) -> None:
        """Tell with the batch's number in the whole epoch."""
        logs["step"] = step + self._conductor.offset
        self._tell("on_train_batch_end", logs["step"], logs)
        self._conductor.count(logs)

    def on_eval_batch_end(self, step: int, logs: Any = None) -> None:
        """Count it, as `num_iters` does."""
        self._tell("on_eval_batch_end", step, logs)
        self._conductor.count(None)

    def on_eval_end(self, logs: Mapping[str, Any]) -> None:
        """Log what was measured."""
        self._guarded(self._conductor.measured, "val_", logs)
        self._tell("on_eval_end", logs)

    def on_train_end(self, logs: Any = None) -> None:
        """End the run; then all may clean up, whatever was trained."""
        self._guarded(self._conductor.end)
        for callback in self._callbacks:
            callback.on_train_end(logs)

    def set_bars(self) -> None:
        """Progress bars count what they are told of: let them begin where this session does."""
        for callback in self._callbacks:
            if isinstance(callback, ProgBarLogger) and self._conductor.live:
                callback.train_step = self._conductor.offset

    def _tell(self, name: str, *words: Any) -> None:
        if self._conductor.live:
            for callback in self._callbacks:
                self._guarded(getattr(callback, name), *words)

    def _guarded(self, act: Any, *words: Any) -> None:
        try:
            act(*words)
        except BaseException as error:
            if not self._conductor.leave(error):
                raise

"""The other callbacks of a `fit`, who hear only of what is really trained, with its true numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from paddle.callbacks import ProgBarLogger

__all__ = ["Company", "Conductor"]


class Conductor(Protocol):
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


class Company:
    """Takes the place of all callbacks in the list that `fit` calls, and hands on what they should hear.

    An exception of theirs ends the run as one of the training does: what is done so far is saved.
    """

    def __init__(self, conductor: Conductor, callbacks: Sequence[Any]) -> None:
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

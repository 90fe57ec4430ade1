"""One call of `paddle.Model.fit`, on a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import paddle

from colabkeep.api import Run
from colabkeep.frameworks import find_framework
from colabkeep.frameworks.base import Batch
from colabkeep.integrations._paddle_hapi.company import Company
from colabkeep.integrations._paddle_hapi.state import FitState
from colabkeep.session.keeper import StopTraining
from colabkeep.vocabulary.events import Noted
from colabkeep.vocabulary.seeds import derive

__all__ = ["Fitting"]


class Keep(Protocol):
    """The callback that the user gave to `fit`."""

    seed: int
    """Of the order of the data and the randomness in data sets."""

    def make_run(self, **parts: Any) -> Run:
        """The run of one `fit`, not entered yet."""
        ...


class Fitting:
    """Stands in front of the model's `_run_one_epoch`: skips what is done, feeds the rest, counts steps.

    `fit` numbers its epochs from 0 in every session; those before the run's own (`_epoch`) are skipped. The callbacks
    are in the hands of a `Company` from the first epoch on, when it is known which they are.
    """

    def __init__(self, keep: Keep, model: Any, params: Mapping[str, Any]) -> None:
        self.live = True
        self.offset = 0
        self._keep = keep
        self._model = model
        self._asked: int = params["epochs"]
        self._whole: Callable[..., Any] = type(model)._run_one_epoch.__get__(model)
        self._data = find_framework([model.network]).data()  # of evaluations; the run has its own
        self._run: Run | None = None
        self._company: Company | None = None
        self._ends_early = False
        self._limited = False  # by num_iters
        self._epoch = 0
        self._ends_step = False  # does the batch under way?

    def stand_in(self) -> None:
        """Take the place of the model's own method, until `fit` is over."""
        self._model._run_one_epoch = self._run_one_epoch

    def begin_epoch(self, epoch: int) -> None:
        """`fit` begins an epoch, which ends the one before if that was trained."""
        if self._run is not None and epoch > self._epoch:
            self._advance(self._run)
        self.live = self._run is not None and epoch == self._epoch

    def count(self, logs: Mapping[str, Any] | None) -> None:
        """A batch was trained, with these numbers; or one was evaluated (None). All callbacks have done their part,
        the one that steps the schedule too: what ends a step is a step of the run."""
        self._state.iterations += 1
        run = self._run
        if run is None:
            return
        if logs is not None:
            self._state.logs = dict(logs)
            if self._ends_step:
                run.step(loss=(logs.get("loss") or [None])[0])
        while self._state.lines:
            run.tell(Noted(text=self._state.lines.pop(0)))
        if self._limited and self._model.num_iters <= 1:
            # The last one. The run stays in the middle of its epoch, so that more can follow; fit goes on to end the
            # epoch in its own way.
            self._let_go(run, StopTraining("max_steps"))

    def measured(self, prefix: str, logs: Mapping[str, Any]) -> None:
        """Log what `fit` measured over an epoch ("train_") or in an evaluation ("val_")."""
        if self._run is not None and self.live:
            found = dict(_numbers(prefix, logs, self._model._metrics_name()))
            if prefix == "train_":
                found["lr"] = float(self._model._optimizer.get_lr())
            self._run.log(**found)

    def end(self) -> None:
        """`fit` is done: so is the run, unless it was left before."""
        if self._run is not None:
            self._advance(self._run)
            self._run.finished = True  # where a callback ended it early, too
            self._let_go(self._run, None)
        self._stand_back()

    def leave(self, error: BaseException) -> bool:
        """Something was raised: save and let go. True if it was a request to stop, which `fit` is made to follow."""
        if self._run is None or not self._let_go(self._run, error):
            self._stand_back()
            return False
        self._stop()
        return True

    def _run_one_epoch(self, data_loader: Any, callbacks: Any, mode: str, logs: Any = None) -> Any:
        if self._company is None and self._keep in callbacks.callbacks:
            self._open(callbacks)
        if self._company is None or self._company not in callbacks.callbacks:
            return self._whole(data_loader, callbacks, mode, {})  # not of this fit
        if not self.live:
            return {}
        try:
            if mode == "train" and self._run is not None:
                return self._train(self._run, data_loader, callbacks)
            return self._evaluate(data_loader, callbacks)
        except BaseException as error:
            if not self.leave(error):
                raise
            return {}

    def _open(self, callbacks: Any) -> None:
        """Take the run, with everything that is to be kept; find out where it is."""
        model = self._model
        model._reset_metrics()  # of a fit that was interrupted in this kernel
        others = [callback for callback in callbacks.callbacks if callback is not self._keep]
        self._state = FitState(model, others, self._asked)
        run = self._keep.make_run(state={"fit": self._state}, **_parts(model))
        try:
            run.__enter__()
        except BaseException:
            self._stand_back()
            raise
        self._run = run
        run.resumes_behind = True
        self._company = Company(self, others)
        callbacks.callbacks = [self._company]
        try:
            self._begin(run)
        except BaseException as error:
            if not self.leave(error):
                raise
        self._company.set_bars()

    def _begin(self, run: Run) -> None:
        state, model = self._state, self._model
        over = state.over(run.progress)
        self._ends_early = state.stopped and run.progress.batches > 0
        self._limited = getattr(model, "num_iters", None) is not None
        if self._limited:
            model.num_iters -= state.iterations
        self._epochs = run.epochs(self._asked)
        if over is not None:
            run.tell(Noted(text=over))
            run.finished = True
        if over is None and (not self._limited or model.num_iters > 0) and self._advance(run):
            self.live = self._epoch == 0
        else:
            self._let_go(run, None if run.finished else StopTraining("max_steps"))
            self._stop()

    def _advance(self, run: Run) -> bool:
        """End the epoch under way, if any, and go to the next; False if there is none."""
        self._apply_rate(run)
        epoch = next(self._epochs, None)
        if epoch is None:
            return False
        self._epoch, self.offset = epoch, run.progress.batches
        return True

    def _apply_rate(self, run: Run) -> None:
        """Use the learning rate that the optimizer tells. Paddle's ReduceLROnPlateau writes it into the attribute only,
        and the old one stays in use (3.3.1): a restore, which goes by what is told, would make a difference."""
        optimizer = self._model._optimizer
        told, used = optimizer._learning_rate, optimizer._global_learning_rate()
        if isinstance(told, float) and used is not None and np.float32(told) != np.float32(used.item()):
            run.tell(
                Noted(
                    text=f"The learning rate was set to {told:.3g}, and colabkeep puts it into use: Paddle itself"
                    f" would go on with {used.item():.3g}."
                )
            )
            optimizer.set_lr(told)

    def _train(self, run: Run, loader: Any, callbacks: Any) -> Any:
        if self._ends_early:
            self._model.stop_training = (
                True  # a callback said so in this epoch, which fit trains to its end all the same
            )
        rest = _Rest(self._batches(run, loader), lambda: self._length(run))
        return self._whole(rest, callbacks, "train", dict(self._state.logs))

    def _evaluate(self, loader: Any, callbacks: Any) -> Any:
        # The same seed and epoch each time: every evaluation sees the same samples, whatever the data set draws, and
        # the random streams of training are left alone, whatever the number of workers.
        seed = derive(self._keep.seed, "validation")
        opened = self._data.open(loader, seed=seed, epoch=0, batches=0, samples=0, state=None)
        try:
            return self._whole(self._polled(opened), callbacks, "eval", {})
        finally:
            opened.close()

    def _batches(self, run: Run, loader: Any) -> Iterator[Any]:
        window = self._model._accumulate
        if not self.offset:  # else this is where the session began
            self._save_before_cut(run, window)
        for number, batch in run.enumerate(loader, start=1):
            read = number - self.offset
            self._ends_step = read % window == 0 or read == self._length(run)
            yield batch
            if self._ends_step:
                self._save_before_cut(run, window)

    def _save_before_cut(self, run: Run, window: int) -> None:
        """A part of a step, which `num_iters` may still want, is not kept: the run ends with the last whole one."""
        if self._limited and self._model.num_iters < window:
            run.save("max_steps", wait=True)

    def _length(self, run: Run) -> int | None:
        """Batches of this epoch that were left when this session came to it; None: unknown."""
        return None if run.epoch_batches is None else run.epoch_batches - self.offset

    def _polled(self, batches: Iterable[Batch]) -> Iterator[Any]:
        for batch in batches if self._run is None else self._run.polled(batches):
            yield batch.value

    def _let_go(self, run: Run, error: BaseException | None) -> bool:
        """Leave the run; True if that ends the error."""
        self._run = None
        try:
            return run.__exit__(None if error is None else type(error), error, error.__traceback__ if error else None)
        except BaseException:
            self._stand_back()
            raise

    def _stop(self) -> None:
        """Let `fit` end after its present epoch, in which nothing happens any more."""
        self.live = False
        self._model.stop_training = True

    def _stand_back(self) -> None:
        vars(self._model).pop("_run_one_epoch", None)
        self._data.close()
        if not self.live:
            self._model.stop_training = False  # it was us; the next fit with this model must not stop at once


class _Rest:
    """The batches of an epoch that are left, as `fit` wants them."""

    def __init__(self, batches: Iterator[Any], length: Callable[[], int | None]) -> None:
        self._batches = batches
        self._length = length

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def __len__(self) -> int:
        length = self._length()
        if length is None:
            raise TypeError("nobody knows how many batches this loader gives")
        return length


def _parts(model: Any) -> dict[str, Any]:
    adapter, rate = model._adapter, model._optimizer._learning_rate
    if adapter._amp_level != "O0" and getattr(model, "_scaler", None) is None:
        model._scaler = paddle.amp.GradScaler(**adapter._amp_configs)  # as fit would at its first batch
    scheduler = rate if isinstance(rate, paddle.optimizer.lr.LRScheduler) else None
    scaler = getattr(model, "_scaler", None)  # made by prepare(amp_configs=…) only
    return {"model": model.network, "optimizer": model._optimizer, "scheduler": scheduler, "scaler": scaler}


def _numbers(prefix: str, logs: Mapping[str, Any], names: list[str]) -> Iterator[tuple[str, float]]:
    for name in names:
        values = logs.get(name)
        listed = [values] if not isinstance(values, (list, tuple)) else list(values)
        for place, value in enumerate(listed):
            if value is not None:
                yield f"{prefix}{name}" + (f"_{place}" if len(listed) > 1 else ""), float(value)

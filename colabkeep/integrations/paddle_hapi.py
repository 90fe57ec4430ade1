"""`paddle.Model.fit` that resumes after a disconnect, bit for bit::

    from colabkeep.integrations.paddle_hapi import Resumable

    model.fit(train_data, val_data, epochs=20, callbacks=[Resumable("mnist")])

Run the cell again after a disconnect, on whatever machine: epochs that are done are skipped without loading data, the
one under way goes on at the batch where it was saved last, and the numbers shown are those of the whole training.

`fit` has no start epoch. So the callback stands, for the time of one `fit`, in front of the model's own
`_run_one_epoch` (the same from Paddle 2.5 to 3.3) and between `fit` and the other callbacks: these hear nothing of
skipped epochs. (What `fit` prints first, "Epoch 1/20", comes before any callback can speak; the right number
follows.)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle.callbacks import Callback, ProgBarLogger

from colabkeep.api import Run
from colabkeep.core.errors import UsageError
from colabkeep.core.events import Noted
from colabkeep.core.manifest import Progress
from colabkeep.core.settings import Plain
from colabkeep.core.state import derive
from colabkeep.frameworks import find_framework
from colabkeep.frameworks.base import Batch
from colabkeep.integrations.memories import Memories
from colabkeep.integrations.shared import Beside, Keeper, Kept
from colabkeep.session.scheduler import StopTraining

__all__ = ["Resumable"]

_FITS_OWN = frozenset({"model", "params"})  # what fit gives to each callback


class Resumable(Keeper, Callback):  # type: ignore[misc]  # types are the same where Paddle is not installed
    """Checkpoints and resumes `paddle.Model.fit`. Give it to `fit` among the callbacks::

        model.prepare(optimizer, paddle.nn.CrossEntropyLoss(), paddle.metric.Accuracy())
        model.fit(train_data, val_data, epochs=20, callbacks=[Resumable("mnist", monitor="val_acc", mode="max")])

    Kept are the network, the optimizer with its schedule, the gradient scaler, all random streams, the position in the
    data, the metrics so far, and what the other callbacks have come to remember (how long `EarlyStopping` has waited;
    numbers, texts, arrays and containers of them). Other settings than those that the
    run began with, `accumulate_grad_batches` among them, are an error, kept or applied, as `on_change` says. What a
    callback keeps that cannot be stored is told.

    Each evaluation sees the same samples, also where the data set draws random numbers. A training that early stopping
    ended is finished: run again, it trains nothing, until more epochs are asked for. `fit`'s own `save_dir` is not
    needed. With `num_iters`, that many batches are trained in all sessions together.

    Args:
        run_name: names the run in the storage; the same name resumes the same run.
        words: those of `colabkeep.Run`: storage, resume, on_change, save_every, keep_last, keep_best, monitor, mode,
            max_time, seed, state, callbacks, progress, and the others. What `fit` measures is logged as "train_loss",
            "train_acc", "val_loss", "val_acc", …, by the names of the metrics.

    Raises:
        UsageError: the model is not prepared, or is trained by several processes or in static mode.
        UnknownArgument: a word that `colabkeep.Run` does not know.
        RunBusy, Incompatible, NoUsableCheckpoint, SaveFailed: from `fit`, as from `colabkeep.Run`.
    """

    def __init__(self, run_name: str, **words: Any) -> None:
        super().__init__(run_name, words)
        self.seed: int = words.get("seed", 0)

    def on_train_begin(self, logs: Any = None) -> None:
        """Stand in front of the model for the time of this `fit`; the run is taken at its first epoch, when all
        callbacks are ready."""
        _check(self.model)
        Fitting(self, self.model, self.params).stand_in()


def _check(model: Any) -> None:
    if not paddle.in_dynamic_mode():
        raise UsageError(
            problem="Static mode is on, and colabkeep can resume trainings in dynamic mode only.",
            remedy="Call paddle.disable_static() before the model is built.",
        )
    if paddle.distributed.ParallelEnv().nranks > 1:
        raise UsageError(
            problem="This training runs in several processes, which Resumable does not keep in step.",
            remedy="Train on one card: run the script without paddle.distributed.launch.",
        )
    if model._optimizer is None:
        raise UsageError(
            problem="The model has no optimizer yet.",
            remedy="Call model.prepare(optimizer, loss, metrics) before model.fit(…).",
        )
    known = ["data_loader", "callbacks", "mode", "logs"]
    if list(inspect.signature(type(model)._run_one_epoch).parameters)[1:] != known:
        raise UsageError(
            problem=f"paddle.Model of Paddle {paddle.__version__} works in another way than colabkeep knows.",
            remedy="Train with colabkeep.resumable_fit(model.network, …), which needs nothing of paddle.Model.",
        )


class Fitting(Beside):
    """Stands in front of the model's `_run_one_epoch`: skips what is done, feeds the rest, counts steps.

    `fit` numbers its epochs from 0 in every session; those before the run's own (`_epoch`) are skipped. The callbacks
    are in the hands of a `CallbackList` from the first epoch on, when it is known which they are.
    """

    _state: FitState

    def __init__(self, keep: Resumable, model: Any, params: Mapping[str, Any]) -> None:
        super().__init__()
        self.live = True
        self.offset = 0
        self._keep = keep
        self._model = model
        self._asked: int = params["epochs"]
        self._whole: Callable[..., Any] = type(model)._run_one_epoch.__get__(model)
        self._data = find_framework([model.network]).data()  # of evaluations; the run has its own
        self._callback_list: CallbackList | None = None
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
        self.tell(run)
        if self._limited and self._model.num_iters <= 1:
            # The last one. The run stays in the middle of its epoch, so that more can follow; fit goes on to end the
            # epoch in its own way.
            self.let_go(run, StopTraining("max_steps"))

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
            self.finish(self._run)  # where a callback ended it early, too
        self.stand_back()

    def leave(self, error: BaseException) -> bool:
        stops = super().leave(error)
        if stops:
            self._stop()
        else:
            self.stand_back()
        return stops

    def _run_one_epoch(self, data_loader: Any, callbacks: Any, mode: str, logs: Any = None) -> Any:
        if self._callback_list is None and self._keep in callbacks.callbacks:
            self._open(callbacks)
        if self._callback_list is None or self._callback_list not in callbacks.callbacks:
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
            self.stand_back()
            raise
        self._run = run
        run.resumes_behind = True
        run.saves_inside = False
        run.asked_by = "epochs", "fit"
        self._callback_list = CallbackList(self, others)
        callbacks.callbacks = [self._callback_list]
        try:
            self._begin(run)
        except BaseException as error:
            if not self.leave(error):
                raise
        self._callback_list.set_bars()

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
            run.conclude()
        if over is None and (not self._limited or model.num_iters > 0) and self._advance(run):
            self.live = self._epoch == 0
        else:
            self.let_go(run, None if run.finished else StopTraining("max_steps"))
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
                    f" would continue with {used.item():.3g}."
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

    def let_go(self, run: Run, error: BaseException | None) -> bool:
        try:
            return super().let_go(run, error)
        except BaseException:
            self.stand_back()
            raise

    def _stop(self) -> None:
        """Let `fit` end after its present epoch, in which nothing happens any more."""
        self.live = False
        self._model.stop_training = True

    def stand_back(self) -> None:
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
            raise TypeError("it is not known how many batches this loader gives")
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


class CallbackList:
    """Takes the place of all callbacks in the list that `fit` calls, and hands on what they should hear.

    An exception of theirs ends the run as one of the training does: what is done so far is saved.
    """

    def __init__(self, fitting: Fitting, callbacks: Sequence[Any]) -> None:
        self._fitting = fitting
        self._callbacks = tuple(callbacks)

    def __getattr__(self, name: str) -> Any:
        return partial(self._tell, name)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """End the epoch before; tell of this one, unless it was trained in an earlier session."""
        self._guarded(self._fitting.begin_epoch, epoch)
        self._tell("on_epoch_begin", epoch, logs)
        self.set_bars()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Log what was measured."""
        self._guarded(self._fitting.measured, "train_", logs)
        self._tell("on_epoch_end", epoch, logs)

    def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
        """Tell with the batch's number in the whole epoch."""
        self._tell("on_train_batch_begin", step + self._fitting.offset, logs)

    def on_train_batch_end(self, step: int, logs: dict[str, Any]) -> None:
        """Tell with the batch's number in the whole epoch."""
        logs["step"] = step + self._fitting.offset
        self._tell("on_train_batch_end", logs["step"], logs)
        self._fitting.count(logs)

    def on_eval_batch_end(self, step: int, logs: Any = None) -> None:
        """Count it, as `num_iters` does."""
        self._tell("on_eval_batch_end", step, logs)
        self._fitting.count(None)

    def on_eval_end(self, logs: Mapping[str, Any]) -> None:
        """Log what was measured."""
        self._guarded(self._fitting.measured, "val_", logs)
        self._tell("on_eval_end", logs)

    def on_train_end(self, logs: Any = None) -> None:
        """End the run; then all may clean up, whatever was trained."""
        self._guarded(self._fitting.end)
        for callback in self._callbacks:
            callback.on_train_end(logs)

    def set_bars(self) -> None:
        """Progress bars count what they are told of: let them begin where this session does."""
        for callback in self._callbacks:
            if isinstance(callback, ProgBarLogger) and self._fitting.live:
                callback.train_step = self._fitting.offset

    def _tell(self, name: str, *words: Any) -> None:
        if self._fitting.live:
            for callback in self._callbacks:
                self._guarded(getattr(callback, name), *words)

    def _guarded(self, act: Any, *words: Any) -> None:
        try:
            act(*words)
        except BaseException as error:
            if not self._fitting.leave(error):
                raise


class FitState(Kept):
    """The metrics' and callbacks' memories, how many batches there were, and whether training was ended early.

    `iterations` counts batches trained and evaluated, as `num_iters` of `fit` does; `logs` are the numbers of the last
    batch. Made when all callbacks are ready for training, so that what differs later is what they learnt.
    """

    between_steps = False
    """Does nothing of it change inside a step? Metrics and callbacks do between the batches of one, and callbacks that
    hear where a batch begins."""

    def __init__(self, model: Any, callbacks: Sequence[object], epochs: int) -> None:
        super().__init__()
        self.iterations = 0
        self.logs: dict[str, Any] = {}
        self.stopped = False  # in the session before
        self._model = model
        self._epochs = epochs
        self._epochs_before = epochs
        self._metrics = Memories(model._metrics, paddle.Tensor, _FITS_OWN)
        # Progress bars keep clocks; what they count is set anew.
        kept = [each for each in callbacks if not isinstance(each, ProgBarLogger)]
        self._callbacks = Memories(kept, paddle.Tensor, _FITS_OWN)
        begins = [type(each).on_train_batch_begin for each in kept if isinstance(each, Callback)]
        self.between_steps = model._accumulate == 1 and all(each is Callback.on_train_batch_begin for each in begins)

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain values and arrays."""
        self.say_unkept(self._metrics.unkept() | self._callbacks.unkept())
        return {
            "iterations": self.iterations,
            "logs": {name: value for name, value in self.logs.items() if self._metrics.storable(value)},
            "stopped": bool(self._model.stop_training),
            "epochs": self._epochs,
            "settings": self.settings(),
            "metrics": self._metrics.state_dict(),
            "callbacks": self._callbacks.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.iterations = state["iterations"]
        self.logs = dict(state["logs"])
        self.stopped = state["stopped"]
        self._epochs_before = state["epochs"]
        self.say_gone(self._metrics.load_state_dict(state["metrics"]))
        self.say_gone(self._callbacks.load_state_dict(state["callbacks"]))

    def settings(self) -> dict[str, Plain]:
        return {"accumulate_grad_batches": self._model._accumulate}

    def over(self, progress: Progress) -> str | None:
        """Why there is nothing left to train although epochs are left; None if there is."""
        if not self.stopped or progress.batches or self._epochs > self._epochs_before:
            return None
        return (
            f"A callback ended this training after epoch {progress.epoch}, so nothing is left to train. "
            f"To continue anyway, ask for more than {self._epochs_before} epochs."
        )

"""`paddle.Model.fit` that goes on after a disconnect, bit for bit. Two lines::

    from colabkeep.integrations.paddle_hapi import Resumable

    model.fit(train_data, val_data, epochs=20, callbacks=[Resumable("mnist")])

Run the cell again after a disconnect, on whatever machine: epochs that are done are skipped without loading data, the
one under way goes on at the batch where it was saved last, and the numbers shown are those of the whole training.

`fit` has no start epoch. So the callback stands, for the time of one `fit`, in front of the model's own
`_run_one_epoch` (the same from Paddle 2.5 to 3.3) and between `fit` and the other callbacks: these hear nothing of
skipped epochs. (What `fit` prints first, "Epoch 1/20", comes before any callback can speak; the right number follows.)
"""

from __future__ import annotations

import inspect
from typing import Any

import paddle
from paddle.callbacks import Callback

from colabkeep.api import Run
from colabkeep.integrations._paddle_hapi.fitting import Fitting
from colabkeep.vocabulary.errors import UsageError

__all__ = ["Resumable"]


class Resumable(Callback):  # type: ignore[misc]  # types are the same where Paddle is not installed
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
        run_name: names the run in the storage; the same name goes on with the same run.
        words: those of `colabkeep.Run`: storage, resume, on_change, save_every, keep_last, keep_best, monitor, mode,
            max_time, seed, state, callbacks, progress, and the others. What `fit` measures is logged as "train_loss",
            "train_acc", "val_loss", "val_acc", …, by the names of the metrics.

    Raises:
        UsageError: the model is not prepared, or is trained by several processes or in static mode.
        UnknownArgument: a word that `colabkeep.Run` does not know.
        RunBusy, Incompatible, NoUsableCheckpoint, SaveFailed: from `fit`, as from `colabkeep.Run`.
    """

    def __init__(self, run_name: str, **words: Any) -> None:
        super().__init__()
        self.run: Run | None = None  # of the latest fit: run.save(), run.progress, run.durability
        self.seed: int = words.get("seed", 0)
        self._run_name = run_name
        self._words = words

    def on_train_begin(self, logs: Any = None) -> None:
        """Stand in front of the model for the time of this `fit`; the run is taken at its first epoch, when all
        callbacks are ready."""
        _check(self.model)
        Fitting(self, self.model, self.params).stand_in()

    def make_run(self, **parts: Any) -> Run:
        """The run of one `fit`, not entered yet."""
        state = {**parts.pop("state"), **(self._words.get("state") or {})}
        self.run = Run(self._run_name, **{**self._words, **parts, "state": state})
        return self.run


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

"""Keras 3's `model.fit` that resumes after a disconnect, bit for bit::

    from colabkeep.integrations.keras import Resumable

    model.fit(x, y, epochs=20, validation_data=held_out, callbacks=[Resumable("mnist")])

Run the cell again after a disconnect, on whatever machine: `fit` resumes at the batch that was saved last.

`fit` has a place for the epoch to begin with, `model._initial_epoch`, and none for a batch. So the callback looks for
the frame of the `fit` that calls it, and for the time of that one stands in for:

* `_enumerate_iterator` of its epoch iterator (`enumerate_epoch` up to Keras 3.6): the batches of an epoch that are
  left, in an order that the run knows, with their numbers in the epoch.
* the hooks of its `CallbackList`: what the other callbacks hear of an epoch that is resumed, and when a step, an epoch
  or the training is over.
* `train_function` and `evaluate` of the model: an error that ends them ends the run.

What is not public in Keras is listed and looked at in `keras_insides`. Weights are taken as the backend has them: with
torch as tensors, with JAX and TensorFlow as arrays. No framework is imported that Keras has not imported.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import PurePath
from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras.callbacks import Callback, ProgbarLogger

from colabkeep.api import Run
from colabkeep.core.errors import UsageError
from colabkeep.core.events import Noted, RestoredInexactly
from colabkeep.core.settings import Plain
from colabkeep.integrations.keras_data import (
    DRAWN,
    EAGER,
    Pipeline,
    Traced,
    Validations,
    build_model,
    changes,
    find_source,
)
from colabkeep.integrations.keras_files import ToldFile, load_file
from colabkeep.integrations.keras_insides import check, inside, unknown
from colabkeep.integrations.memories import Memories, filled, told
from colabkeep.integrations.shared import Beside, Keeper, Kept

__all__ = ["Resumable"]

_BACKENDS = ("torch", "jax", "tensorflow")
_FITS_OWN = {"self", "epoch_iterator", "callbacks", "epochs", "initial_epoch", "epoch"}  # its variables
_GLOBAL_SEED = "global_seed_generator"

_SET_BY_FIT = frozenset(
    {"model", "_model", "params", "monitor_op"}
)  # of a callback; the last is made when it is needed
_SET_BY_KERAS = frozenset({"_workers", "_use_multiprocessing", "_max_queue_size"})  # of a PyDataset
_LARGE = 1 << 24  # bytes of an attribute of a PyDataset that are stored with each checkpoint at most
_OTHER_DATA = (
    "the tf.data pipeline differs from that of the checkpoint: it has other steps, begins with other data, or has the "
    "same data in another order (file names are often shuffled without a seed), so some samples may come twice in an "
    "epoch and others not at all"
)
_NO_NUMBERS = ("string", "resource", "variant")  # types of TensorFlow
_HEARD_EVERY = 16  # steps: where Keras calls callbacks beside the training, the loss is waited for so often
_NUMBERED = re.compile(r"_\d+(?=/|$)")  # "dense_3" is the name of the same layer in a cell that is run again


class Resumable(Keeper, Callback):  # type: ignore[misc]  # types are the same where Keras is not installed
    """Checkpoints and resumes `model.fit` of Keras 3. Give it to `fit` among the callbacks::

        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(x, y, epochs=20, validation_split=0.1, callbacks=[Resumable("mnist", monitor="val_loss")])

    Kept are the weights, all optimizers, the seeds of the layers, metrics in the middle of an epoch, the `History`, the
    random streams of Python, NumPy and torch, the order of the data and the position in it, and what the other
    callbacks have come to remember (how long `EarlyStopping` has waited, its best weights; numbers, texts, arrays and
    containers of them). What a callback keeps that cannot be stored is told. Other settings than those that the run
    began with (those of the optimizer, the batch size, …) are an error or applied, as `on_change` says.

    Arrays, a `PyDataset` and, with torch, a `DataLoader` are resumed in the middle of an epoch. Any other data cannot
    be placed, so an epoch of it begins again, which is told.

    Args:
        run_name: names the run in the storage; the same name resumes the same run.
        resume_from: a file that Keras saved ("model.keras", "best.weights.h5"). A new run begins with its weights, and
            with its optimizer where the file has one; a run that has a checkpoint resumes from its own.
        words: those of `colabkeep.Run`: storage, resume, on_change, save_every, keep_last, keep_best, monitor, mode,
            max_time, seed, state, callbacks, progress, and the others. What `fit` measures is logged by its own names:
            "loss", "accuracy", "val_loss", …

    Raises:
        UsageError: the insides of this version of Keras are not those known. From `fit`, as the following: the model is
            trained on several devices, another callback resumes it too, the backend is not known, or `resume_from` is
            damaged or holds what Keras never writes.
        Incompatible: `resume_from` was saved from another model or optimizer.
        UnknownArgument: a word that `colabkeep.Run` does not know.
        RunBusy, Incompatible, NoUsableCheckpoint, SaveFailed: as from `colabkeep.Run`.
    """

    async_safe = True  # Keras may call on_train_batch_end beside the training

    def __init__(self, run_name: str, *, resume_from: str | os.PathLike[str] | None = None, **words: Any) -> None:
        super().__init__(run_name, words, resume_from)
        check()
        self.seed: int = words.get("seed", 0)
        self.loss: Any = None  # of the batch that was told last

    def on_train_begin(self, logs: Any = None) -> None:
        """Stand beside the `fit` that calls. The run is taken when the other callbacks are ready too."""
        fit = _fit_that_calls(self)
        Fitting(self, self._model, fit).wait_for_the_others(fit["callbacks"].callbacks)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Keep the loss for the run."""
        self.loss = (logs or {}).get("loss")

    @property
    def applies(self) -> bool:
        """Do new settings hold from here on?"""
        return bool(self._words.get("on_change") == "apply")


def _fit_that_calls(callback: Callback) -> Mapping[str, Any]:
    """The variables of the `fit` that calls this callback; no callback is told.

    Raises:
        UsageError: none does, or it is not as those known.
    """
    frame = sys._getframe(2)
    while frame is not None:
        found = frame.f_locals.get("callbacks")
        if frame.f_code.co_name == "fit" and callback in getattr(found, "callbacks", ()):
            missing = _FITS_OWN - set(frame.f_code.co_varnames)
            if missing:
                raise unknown(f"fit has no {min(missing)}")
            return {**frame.f_locals, "numbers": 2 if "end_step" in frame.f_code.co_varnames else 1}
        frame = frame.f_back  # type: ignore[assignment]
    raise UsageError(
        problem="Resumable was called by something that is not the fit of a Keras model.",
        remedy="Give it to fit: model.fit(…, callbacks=[Resumable(…)]). A loop of your own takes colabkeep.Run.",
    )


def _check(model: Any, callbacks: Iterable[object]) -> None:
    backend = keras.backend.backend()
    if backend not in _BACKENDS:
        raise UsageError(
            problem=f"Keras computes with {backend} here, and Resumable keeps trainings with {' or '.join(_BACKENDS)}.",
            remedy='Set os.environ["KERAS_BACKEND"] = "torch" (or "jax") before the first import of keras, in a new '
            "session; or keep the folder that BackupAndRestore writes to, with colabkeep.keep_folder(…): docs/keep.md.",
        )
    shared_out = getattr(model, "_distribute_strategy", None) is not None
    wrapped = type(model).__name__ == "DistributedDataParallel" or shared_out
    jax: Any = sys.modules.get("jax") if backend == "jax" else None
    if wrapped or keras.distribution.distribution() is not None or (jax is not None and jax.process_count() > 1):
        raise UsageError(
            problem="This model is trained on several devices or by several processes, and Resumable keeps trainings "
            "on one device.",
            remedy="Leave keras.distribution, tf.distribute and DistributedDataParallel out: a model is trained on one "
            "GPU then.",
        )
    others = [type(each).__name__ for each in callbacks if type(each).__name__ == "BackupAndRestore"]
    if others:
        raise UsageError(
            problem="BackupAndRestore and Resumable would both resume this training.",
            remedy="Take BackupAndRestore out of the callbacks: Resumable resumes from the newest checkpoint of the "
            "run, at its batch.",
        )
    if not model.variables:
        raise UsageError(
            problem="The model has no weights yet, so there is nothing that a checkpoint could be compared with.",
            remedy="Build it before fit: call it once on a batch, or give its first layer an input shape.",
        )


class Fitting(Beside):
    """Stands beside one `fit`. While that trains, its batches come through the run, and its steps are counted.

    `fit` begins at the run's epoch by itself. Of that one, the first `_offset` batches were trained in an earlier
    session. `live`: is anything trained?
    """

    _state: State

    def __init__(self, keep: Resumable, model: Any, fit: Mapping[str, Any]) -> None:
        super().__init__()
        self._keep, self._model, self._callbacks = keep, model, fit["callbacks"]
        self._iterator, self._numbers = fit["epoch_iterator"], fit["numbers"]
        self._validation = fit.get("validation_data")
        self.validations = Validations(self._validation)
        self._first, self._epochs_asked = fit["initial_epoch"], fit["epochs"]
        # Where no epoch is left: up to Keras 3.6 fit wants one, in which nothing happens.
        self._behind = self._epochs_asked - ("training_logs" not in fit)
        build_model(model, self._iterator)
        _check(model, self._callbacks.callbacks)
        self.live = False
        self.ended = False  # by a callback
        self._complete = False
        self._epoch = self._offset = 0
        self._counted = 0
        self._read = False  # were all batches of the epoch?
        self._heard: dict[str, Callable[..., Any]] = {}

    def open(self) -> None:
        model = self._model
        self._source = find_source(self._iterator, self._keep.seed)
        given = self._source.placed and keras.backend.backend() == "tensorflow" and not model.run_eagerly
        self._step = Traced(model.train_function, self._iterator) if given else model.train_function
        optimizers = Optimizers(self)
        names = {id(variable): name for name, variable in _named(model.variables)}
        self._state = State(self, ToldFile(model, names, optimizers.all))
        run = self._keep.make_run(
            model=_weights(model), optimizer=optimizers, seed=self._keep.seed, state={"keras": self._state}
        )
        run.saves_inside = False
        run.asked_by = "epochs", "fit"
        eager = EAGER if keras.backend.backend() == "tensorflow" and model.run_eagerly else None
        drawn = DRAWN if isinstance(self._step, Traced) and self._step.draws else eager
        run.exceptions = tuple(filter(None, (drawn, self._source.doubt, self.validations.doubt)))
        run.__enter__()
        self._run = run
        self._stand_in()
        try:
            run.tell(Noted(text=f"Keras {keras.__version__} on {keras.backend.backend()}: {self._source.promise}"))
            if self._keep.resume_from is not None:
                self._begin_from(self._keep.resume_from, new=run.resumed_from is None)
            self.tell(run)
            if self._state.other_data:
                run.tell(RestoredInexactly(checkpoint=run.checkpoint or "", reason=_OTHER_DATA))
            self._counted = run.progress.step
            self._epochs = run.epochs(self._epochs_asked - self._first)
            over = self._state.over()
            if over is None:
                self._advance(run)
            else:
                self.ended = True
                self.conclude(run, over)
                self.finish(run)
        except BaseException as error:
            if not self.leave(error):
                raise
        model._initial_epoch = self._first + self._epoch if self.live else self._behind

    def _begin_from(self, file: str | os.PathLike[str], *, new: bool) -> None:
        if new:
            self._state.lines += load_file(self._model, file)
        else:
            self._state.lines.append(f"This run resumes from its own checkpoint, and not from {os.fspath(file)}")

    # What the parts of the run ask for.

    @property
    def model(self) -> Any:
        """The model, whose variables are those of the last step."""
        if hasattr(self._model, "jax_state_sync"):
            self._model.jax_state_sync()
        return self._model

    @property
    def others(self) -> list[Any]:
        """The callbacks that may remember something."""
        return [
            each for each in self._callbacks.callbacks if each is not self._keep and not isinstance(each, ProgbarLogger)
        ]

    @property
    def dataset(self) -> object | None:
        """That of the user, where it may change between epochs."""
        return self._source.dataset

    @property
    def validation(self) -> object | None:
        """The PyDataset that is validated on."""
        return self._validation if isinstance(self._validation, keras.utils.PyDataset) else None

    @property
    def pipeline(self) -> Pipeline | None:
        """That of `tf.data`, where it can tell its place."""
        return self._source.loader if isinstance(self._source.loader, Pipeline) else None

    @property
    def applies(self) -> bool:
        """Do new settings hold from here on?"""
        return self._keep.applies

    @property
    def epochs_asked(self) -> int:
        """The number of epochs in the call."""
        return int(self._epochs_asked)

    @cached_property
    def strays(self) -> list[Any]:
        """Variables of TensorFlow that a step uses and Keras does not know: a `tf.Variable` or `tf.random.Generator` of
        a layer, or seeds that no layer of the model has."""
        if not isinstance(self._step, Traced):
            return []
        seeds = self.global_seed()
        known = [
            *self._model.variables,
            *self._model.metrics_variables,
            *(variable for each in Optimizers(self).all for variable in each.variables),
            *_states(self._model),
            *([] if seeds is None else [seeds.state]),
        ]
        theirs = {id(each.value) for each in known}
        return [each for each in self._step.variables if id(each) not in theirs and each.dtype.name not in _NO_NUMBERS]

    def settle(self) -> None:
        """Wait for callbacks that are under way beside the training."""
        if self._asynchronous:
            self._callbacks._flush_futures()

    def global_seed(self, *, make: bool = False) -> Any:
        """The seeds of what is drawn without a seed; None where nothing was."""
        if make:
            return inside("global_seed_generator")()
        return inside("get_global_attribute")(_GLOBAL_SEED)

    def settings(self) -> dict[str, Plain]:
        """What the call of `fit` says."""
        adapter = self._iterator.data_adapter
        return {
            "batch_size": adapter.batch_size,
            "steps_per_epoch": self._iterator.steps_per_epoch,
            "shuffle": str(getattr(adapter, "_shuffle", getattr(adapter, "shuffle", None))),
            "steps_per_execution": self._model.steps_per_execution,
            "initial_epoch": self._first,
        }

    @property
    def _asynchronous(self) -> bool:
        return bool(getattr(self._callbacks, "_async_train", False))

    # In place of Keras's own.

    def _stand_in(self) -> None:
        model, callbacks, iterator = self._model, self._callbacks, self._iterator
        for name in dir(callbacks):
            if name.startswith("on_"):
                self._heard[name] = self.replace(callbacks, name, partial(self._hear, name))
        self.replace(callbacks, "on_epoch_begin", self._epoch_begins)
        self.replace(callbacks, "on_train_batch_end", self._batch_over)
        self.replace(callbacks, "on_epoch_end", self._epoch_over)
        self.replace(callbacks, "on_train_end", self._over)
        if self._source.placed:
            listed = hasattr(iterator, "_enumerate_iterator")
            self.replace(iterator, "_enumerate_iterator" if listed else "enumerate_epoch", self._steps)
        self.replace(model, "train_function", partial(self._guarded, self._step))
        self.replace(model, "evaluate", partial(self._evaluate, model.evaluate))

    def stand_back(self) -> None:
        super().stand_back()
        self._model._initial_epoch = None

    def _guarded(self, act: Callable[..., Any], *words: Any, **more: Any) -> Any:
        try:
            return act(*words, **more)
        except BaseException as error:
            if not self.leave(error):
                raise
            return None

    def _evaluate(self, whole: Callable[..., Any], *words: Any, **more: Any) -> Any:
        if not self.live:
            return {}
        if not self.validations.counts(more.get("x")):
            return self._guarded(whole, *words, **more)
        self.validations.catch_up(self._model._eval_epoch_iterator)
        found = self._guarded(whole, *words, **more)
        self.validations.done += 1
        return found

    def _hear(self, name: str, *words: Any, **more: Any) -> None:
        if self.live:
            self._guarded(self._heard[name], *words, **more)

    def _epoch_begins(self, epoch: int, logs: Any = None) -> None:
        if self._offset:  # the others heard of it when it began
            for each in self._callbacks.callbacks:
                if isinstance(each, ProgbarLogger):
                    each.on_epoch_begin(epoch, logs)
        else:
            self._hear("on_epoch_begin", epoch, logs)

    def _steps(self) -> Iterator[Any]:
        """The steps of the epoch that are left, as `fit` wants them: their numbers, and their batches."""
        run, source, step = self._run, self._source, self._offset
        if run is None or not self.live:
            return
        try:
            each = self._model.steps_per_execution
            source.begin(self._epoch, resumed=step > 0)
            reading = run.batches(source.loader)
            while batches := self._next(reading, step, each):
                yield self._numbered(step, each, batches)
                step += each
            source.end(self._epoch)
            self._read = True
        except BaseException as error:
            if isinstance(error, GeneratorExit) or not self.leave(error):
                raise

    def _next(self, reading: Iterator[Any], step: int, most: int) -> list[Any]:
        """The batches of the next step. They are all read before it begins, for this is where the run is saved."""
        limit = self._source.length(self._epoch)
        batches: list[Any] = []
        while len(batches) < most and (limit is None or step + len(batches) < limit):
            for batch in reading:
                batches.append(batch)
                break
            else:
                break
        return batches

    def _numbered(self, step: int, each: int, batches: list[Any]) -> tuple[Any, ...]:
        listed = hasattr(self._iterator, "_enumerate_iterator")
        numbers = (step, step + each - 1)[: self._numbers]
        return (*numbers, iter(batches) if listed else batches)

    def _batch_over(self, batch: int, logs: Any = None) -> None:
        self._hear("on_train_batch_end", batch, logs)
        if self._run is not None:
            self._guarded(self._count, self._run)

    def _count(self, run: Run) -> None:
        loss = None
        if not self._asynchronous:
            loss = self._keep.loss
        elif self._counted % _HEARD_EVERY == 0:
            self.settle()
            loss = self._keep.loss
        self._counted += 1
        run.step(loss=loss)

    def _epoch_over(self, epoch: int, logs: Mapping[str, Any]) -> None:
        if self.live and self._run is not None:
            self._run.log(**dict(_numbers(logs)))
        self._hear("on_epoch_end", epoch, logs)
        if self.live and self._run is not None:
            self._guarded(self._end_epoch, self._run)

    def _end_epoch(self, run: Run) -> None:
        self.tell(run)
        self.ended = stops = bool(self._model.stop_training)
        if stops and self._source.placed and not self._read:  # a callback, in the middle of the epoch
            self.finish(run)
        elif stops:
            next(self._epochs, None)
            self.finish(run)
        else:
            self._advance(run)

    def _over(self, logs: Any = None) -> None:
        """`fit` is done: so is the run. The others clean up, whatever was trained."""
        heard = self._heard["on_train_end"]
        if self._run is not None:
            self.finish(self._run)
        self.stand_back()
        if self._complete:  # fit was ended by this flag
            self._model.stop_training = self.ended
        heard(logs)

    # The run.

    def _advance(self, run: Run) -> None:
        """Go to the next epoch; end the run where there is none."""
        epoch = next(self._epochs, None)
        self.tell(run)
        if epoch is None:
            self.finish(run)
        else:
            self._epoch, self._offset = epoch, run.progress.batches
            self._read, self.live = False, True
            if self._offset and self._state.forgets_metrics:
                run.tell(
                    Noted(
                        text="The metrics of this epoch have lost their counts: they are made in its first step, and "
                        "count from here. Weights are not affected. To keep the counts, call the model once before "
                        "fit."
                    )
                )
            self._state.forgets_metrics = False

    def finish(self, run: Run) -> None:
        self._complete = True
        super().finish(run)

    def leave(self, error: BaseException) -> bool:
        trained = self._run is not None
        stops = super().leave(error)
        if trained and not stops:
            self.stand_back()
        return stops

    def let_go(self, run: Run, error: BaseException | None) -> bool:
        self.live = False
        self._model.stop_training = True
        return super().let_go(run, error)


# What the run keeps.


def _named(variables: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Variables by names that are the same when the model is built again."""
    seen: Counter[str] = Counter()
    for variable in variables:
        name = _NUMBERED.sub("", variable.path).replace(".", "_")
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name}#{seen[name]}"), variable


def _states(model: Any) -> list[Any]:
    """Where recurrent layers with `stateful=True` are in their sequences. They are no variables of the model."""
    layers = [each for each in model._flatten_layers() if getattr(each, "stateful", False)]
    return list(keras.tree.flatten([getattr(each, "states", None) or [] for each in layers]))


_HOLDING = (keras.Layer, keras.Metric, keras.optimizers.Optimizer, keras.Variable)


def _held(fitting: Fitting) -> Iterator[tuple[str, Any]]:
    """Models, metrics, optimizers and variables that callbacks hold (an average of the weights), by place and name."""
    for place, callback in enumerate(fitting.others):
        for name, value in vars(callback).items():
            if isinstance(value, _HOLDING) and name not in _SET_BY_FIT and value is not fitting.model:
                key = f"{type(callback).__name__}[{place}].{name}"
                yield key, value
                if getattr(value, "optimizer", None) is not None:
                    yield f"{key}.optimizer", value.optimizer


def _variables(held: Any) -> list[Any]:
    return [held] if isinstance(held, keras.Variable) else list(held.variables)


def _weights(model: Any) -> Any:
    """The model's weights, and the seeds of its layers, as a part of a run."""
    if keras.backend.backend() != "torch":
        return Arrays(model)
    import torch

    module = torch.nn.Module()
    for name, variable in _named(model.variables):
        if variable.trainable:
            module.register_parameter(name, variable.value)
        else:  # a step changes it too
            module.register_buffer(name, variable.value.detach())
    for number, buffer in enumerate(model.buffers()):  # of torch's own modules in it
        module.register_buffer(f"buffer#{number}", buffer)
    return module


class Arrays:
    """The variables of a model as arrays."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """By name."""
        if hasattr(self._model, "jax_state_sync"):
            self._model.jax_state_sync()
        return {name: _stored(variable) for name, variable in _named(self._model.variables)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """In place."""
        for name, variable in _named(self._model.variables):
            _assign(variable, state[name])


def _stored(variable: Any) -> Any:
    """What a checkpoint can hold: a tensor of torch as it is, anything else as an array."""
    if keras.backend.backend() == "torch":
        return variable.value.detach()
    return _array(variable.value)


def _array(value: Any) -> Any:
    array = np.array(value) if keras.backend.backend() == "tensorflow" else np.asarray(value)
    return array if array.dtype.kind in "biufc" else array.view(f"u{array.dtype.itemsize}")  # bfloat16 is no NumPy type


def _assign(variable: Any, value: Any) -> None:
    variable.assign(value if keras.backend.backend() == "torch" else _as(value, variable.value))


def _as(value: Any, like: Any) -> Any:
    """What `_array` made, in its own type again."""
    kind = np.asarray(like).dtype
    return value if value.dtype == kind else value.view(kind)


class Optimizers:
    """All optimizers of a model: that of `compile`, and those in its attributes. One that is built at its first step
    takes what is stored then."""

    def __init__(self, fitting: Fitting) -> None:
        self._fitting = fitting
        model = fitting.model
        held = [each for layer in model._flatten_layers() for each in vars(layer).values()]
        found = [each for each in (model.optimizer, *held) if isinstance(each, keras.optimizers.Optimizer)]
        self.all = list({id(each): each for each in found}.values())

    def state_dict(self) -> dict[str, Any]:
        """Their variables, in order."""
        self._fitting.model  # noqa: B018  # brings the variables up to date
        return {str(n): [_stored(v) for v in each.variables] for n, each in enumerate(self.all)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """In place; later, where the variables are not there yet."""
        for number, optimizer in enumerate(self.all):
            _take(optimizer, state.get(str(number), []))


def _take(optimizer: Any, values: Sequence[Any]) -> None:
    if optimizer.built or len(optimizer.variables) == len(values):
        _fill(optimizer, values)
    else:
        optimizer.build = partial(_build, optimizer, optimizer.build, values)


def _fill(optimizer: Any, values: Sequence[Any]) -> None:
    if len(values) not in (0, len(optimizer.variables)):
        raise UsageError(
            problem=f"The optimizer {optimizer.name} has {len(optimizer.variables)} variables, and {len(values)} are "
            "stored: it trains other weights than when the run began.",
            remedy="Build the model and its optimizers as they were, or train under another run_name.",
        )
    for variable, value in zip(optimizer.variables, values, strict=False):
        _assign(variable, value)


def _build(optimizer: Any, build: Callable[[Any], Any], values: Sequence[Any], variables: Any) -> None:
    vars(optimizer).pop("build", None)
    build(variables)
    tensorflow: Any = sys.modules.get("tensorflow") if keras.backend.backend() == "tensorflow" else None
    with nullcontext() if tensorflow is None else tensorflow.init_scope():  # it builds them while it traces a step
        _fill(optimizer, values)


class State(Kept):
    """What `fit` has come to beside weights and optimizers: the metrics of the epoch, what its callbacks and its data
    set remember, the seeds of what was drawn without one, and whether a callback ended the training. With it goes what
    an export needs."""

    def __init__(self, fitting: Fitting, file: ToldFile) -> None:
        super().__init__()
        self.forgets_metrics = False  # those that are made in the first step only
        self.other_data = False
        self._fitting, self._file = fitting, file
        self._callbacks = Memories(fitting.others, _tensor_type(), _SET_BY_FIT)
        self._ended_of: int | None = None  # epochs that were asked for when a callback ended it
        self._rate = self._written_rate()
        self._written = self._read_settings()

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain values and arrays."""
        fitting = self._fitting
        fitting.settle()
        self.say_unkept(self._callbacks.unkept())
        seeds = fitting.global_seed()
        return {
            "metrics": [_stored(each) for each in fitting.model.metrics_variables],
            "states": [_stored(each) for each in _states(fitting.model)],
            "callbacks": self._callbacks.state_dict(),
            "compare": [getattr(each, "monitor_op", None) is not None for each in fitting.others],
            "held": {name: [_stored(v) for v in _variables(each)] for name, each in _held(fitting)},
            "dataset": self._of_dataset(fitting.dataset),
            "validation": self._of_dataset(fitting.validation),
            "pipeline": fitting.pipeline.told() if fitting.pipeline is not None else None,
            "validations": fitting.validations.done,
            "strays": self._strays(),
            "seeds": None if seeds is None else _stored(seeds.state),
            "ended_of": fitting.epochs_asked if fitting.ended else None,
            "settings": self._written,
            "file": self._file.told(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        fitting = self._fitting
        metrics = fitting.model.metrics_variables
        for variable, value in zip(metrics, state["metrics"], strict=False):
            _assign(variable, value)
        for variable, value in zip(_states(fitting.model), state.get("states", ()), strict=False):
            _assign(variable, value)
        self.forgets_metrics = len(metrics) < len(state["metrics"])
        for each, compares in zip(fitting.others, state["compare"], strict=False):
            if compares and getattr(each, "monitor_op", 0) is None:
                each._set_monitor_op()  # changes min_delta, which comes next
        self.say_gone(self._callbacks.load_state_dict(state["callbacks"]))
        for name, each in _held(fitting):
            self._give(name, each, state.get("held", {}).get(name))
        self._give_dataset(fitting.dataset, state["dataset"])
        self._give_dataset(fitting.validation, state.get("validation", {}))
        if fitting.pipeline is not None and state.get("pipeline") is not None:  # earlier versions knew none
            self.other_data = not fitting.pipeline.take(state["pipeline"])
        fitting.validations.done = fitting.validations.behind = state.get("validations", 0)
        self._give_strays(state.get("strays", ()))
        if state["seeds"] is not None:
            _assign(fitting.global_seed(make=True).state, state["seeds"])
        self._ended_of = state["ended_of"]
        if self._rate is not None and fitting.applies and state["settings"].get("learning_rate") != self._rate:
            fitting.model.optimizer.learning_rate = self._rate

    def _give(self, name: str, held: Any, values: Sequence[Any] | None) -> None:
        if values is None:  # it was not there
            return
        if isinstance(held, keras.optimizers.Optimizer):
            _take(held, values)
        elif len(values) == len(_variables(held)):
            for variable, value in zip(_variables(held), values, strict=True):
                _assign(variable, value)
        else:
            self.say_gone([name])

    def _give_dataset(self, dataset: object | None, kept: Mapping[str, Any]) -> None:
        for name, value in kept.items():
            there: Any = getattr(dataset, name, None)
            if isinstance(there, np.ndarray) and isinstance(value, list):
                setattr(dataset, name, np.asarray(value, object if there.dtype == object else None))
            else:
                setattr(dataset, name, filled(there, value))

    def over(self) -> str | None:
        """Why there is nothing left to train although epochs are left; None if there is."""
        if self._ended_of is None or self._fitting.epochs_asked > self._ended_of:
            return None
        return (
            "A callback ended this training, so nothing is left to train. To continue anyway, ask for more than "
            f"{self._ended_of} epochs."
        )

    def settings(self) -> dict[str, Plain]:
        return self._written

    def _read_settings(self) -> dict[str, Plain]:
        optimizer = self._fitting.model.optimizer
        if optimizer is None:
            return self._fitting.settings()
        written = {name: value for name, value in optimizer.get_config().items() if type(value) in _PLAIN}
        written = {name: value for name, value in written.items() if name not in ("name", "learning_rate")}
        rate = {} if self._rate is None else {"learning_rate": self._rate}
        return {**self._fitting.settings(), "optimizer": type(optimizer).__name__, **written, **rate}

    def _written_rate(self) -> float | None:
        """The learning rate as it was written: none where a schedule has it, or training may have moved it."""
        optimizer = self._fitting.model.optimizer
        config = {} if optimizer is None else optimizer.get_config()
        rate = config.get("learning_rate")
        return float(f"{rate:.7g}") if isinstance(rate, float) and not int(optimizer.iterations) else None

    def _strays(self) -> list[Any]:
        strays = self._fitting.strays
        size = sum(each.dtype.size * each.shape.num_elements() for each in strays)
        if size <= _LARGE:
            return [_array(each) for each in strays]
        self.say(
            f"A step uses variables of TensorFlow that are not the model's ({size >> 20} MiB), too many to be stored "
            "with each checkpoint: if it changes them, a resumed training continues with other values"
        )
        return []

    def _give_strays(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._fitting.strays, values, strict=False):
            variable.assign(_as(value, variable))

    def _of_dataset(self, dataset: object | None) -> dict[str, Any]:
        """What a PyDataset has that decides what its batches are, and that its methods may change."""
        kept = dict[str, Any]()
        if dataset is None or not changes(dataset):
            return kept
        for name, value in vars(dataset).items():
            if name in _SET_BY_KERAS:
                continue
            texts = _texts(value)
            state = told(value) if texts is None else texts
            if self._callbacks.storable(state):
                if getattr(value, "nbytes", 0) <= _LARGE:
                    kept[name] = state
                    continue
                what = "is too large to be stored with each checkpoint"
            elif callable(value) or isinstance(value, (PurePath, ModuleType)):
                continue
            else:
                what = "cannot be stored in a checkpoint"
            self.say(
                f"{type(dataset).__name__}.{name} {what}: if on_epoch_begin or on_epoch_end change it, a resumed "
                "training sees other batches"
            )
        return kept


_PLAIN = (bool, int, float, str)


def _texts(value: Any) -> list[str] | None:
    """Of an array of texts, such as the names of files, its members."""
    if type(value) is not np.ndarray or value.ndim != 1 or value.dtype.kind not in "UO":
        return None
    members = value.tolist()
    return members if all(type(each) is str for each in members) else None


def _tensor_type() -> type:
    if keras.backend.backend() == "torch":
        import torch

        return torch.Tensor
    return np.ndarray


def _numbers(logs: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in logs.items():
        if isinstance(value, (int, float)) or (hasattr(value, "item") and getattr(value, "shape", None) == ()):
            yield name, float(value)

"""Lightning's `Trainer` that resumes after a disconnect, bit for bit::

    from colabkeep.integrations.lightning import Resumable

    trainer = Trainer(max_epochs=30, callbacks=[Resumable("resnet-cifar")])
    trainer.fit(model, loader)

Run the cell again after a disconnect, on whatever machine: `fit()` resumes at the step that was saved last, in the
middle of an epoch too, without reading the batches before it. `lightning` and `pytorch_lightning` are the same here.

The loops' own way to begin again knows checkpoints of some places in an epoch, and each version goes it differently.
It is not used. These methods of the one trainer's loops are stood in for, while it trains. They are the same from 2.0
to 2.6; `lightning_insides` lists them, with what else is not documented, and looks at them:

* `fit_loop.run`: whatever ends it ends the run, which saves.
* `fit_loop.on_run_start`: behind it everything is made and every callback is ready, so the run is taken there.
* `fit_loop.on_advance_start`: an epoch begins. In one that goes on in its middle the hooks are called again, for what
  they make and nobody can store; what they did to the training is undone.
* `epoch_loop.reset`: counts from 0 again, which an epoch that goes on must not.
* `fit_loop.setup_data` and `epoch_loop.on_run_start`: who asks for batches in these is the training; anybody else who
  reads its loader (an evaluation at the end of an epoch) gets a whole pass of it. Of data that streams the loop's
  fetcher would hold a batch in advance, before the run is taken: it does not begin before the epoch, and is told with
  the last batch that it is the last one.
* `fit_loop.on_advance_end`: behind it an epoch is over, with all its hooks.
* `_data_connector._prepare_dataloader`: what it gives for training is read through the run.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import torch

from colabkeep.api import Run
from colabkeep.core.errors import UsageError
from colabkeep.core.events import RestoredInexactly
from colabkeep.core.settings import Plain
from colabkeep.core.system import Environment
from colabkeep.frameworks.shared.iterables import length_of
from colabkeep.integrations.lightning_files import load_file
from colabkeep.integrations.lightning_insides import META, METRIC, PLACES, RESULT, SHOWN, check
from colabkeep.integrations.memories import Memories
from colabkeep.integrations.shared import Beside, Keeper, Kept

__all__ = ["Resumable"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_REDUCTIONS = {"mean": torch.mean, "sum": torch.sum, "max": torch.max, "min": torch.min}
# Of the trainer's arguments, what the training computes with and no part of the run shows.
_SETTINGS = (
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "precision",
    "limit_train_batches",
    "overfit_batches",
)
_SHOW = frozenset({"ProgressBar", "ModelSummary"})  # they keep bars and clocks
_NOT_LEARNT = frozenset(
    {"_last_time_checked", "_fs", "stopping_reason", "_hparams", "_hparams_name", "_hparams_initial"}
)
_BY_ITSELF = frozenset({"Timer"})  # keeps its own state whole, and clocks beside it
_AVERAGES = "StochasticWeightAveraging"
_FINDERS = {"LearningRateFinder": "lr_find", "BatchSizeFinder": "scale_batch_size"}
_REPLACED = (
    "the optimizers were replaced while this training ran (trainer.optimizers), and no checkpoint holds the new ones: "
    "a resumed session begins with those of configure_optimizers"
)
_TWO = ("min_size", "max_size_cycle")
_PARTS = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_END = object()


def _callback_classes() -> tuple[Any, ...]:
    """What a callback has to be, in each of the two packages that this program uses. None is imported for nothing."""
    names = [name for name in _PACKAGES if name in sys.modules]
    if not names:
        names = [name for name in _PACKAGES if importlib.util.find_spec(name.partition(".")[0]) is not None]
    if not names:
        raise UsageError(problem="Lightning is not installed here.", remedy="Install it: pip install lightning.")
    for name in names:
        check(name)
    return tuple(importlib.import_module(name).Callback for name in names)


class Resumable(Keeper):
    """Checkpoints and resumes `Trainer.fit`. Give it to the trainer among its callbacks::

        trainer = Trainer(max_epochs=30, callbacks=[Resumable("resnet", monitor="val_loss")])
        trainer.fit(model, loader)

    Kept are the module, all optimizers and schedules, the gradient scaler, all random streams, the order of the data
    and the position in it, the loops' counters, what was logged of the epoch so far, the metrics of torchmetrics, and
    what the module, its data module and the other callbacks have come to remember (numbers, texts, tensors and
    containers of them; their `state_dict` where they have one of their own). What cannot be stored is told. Other
    settings than those that the run began with are an error, kept or applied, as `on_change` says.

    `ModelCheckpoint` works as you set it up; it is not needed.

    Args:
        run_name: names the run in the storage; the same name resumes the same run.
        resume_from: a file that `ModelCheckpoint` or `save_checkpoint` wrote ("last.ckpt"). A new run begins with its
            weights, optimizers, schedules, scaler, counters, and what callbacks knew. A run that has a checkpoint
            of its own resumes from that.
        words: those of `colabkeep.Run`: storage, resume, on_change, save_every, keep_last, keep_best, monitor, mode,
            max_time, seed, state, callbacks, progress, and the others. `seed` is that of `seed_everything` if it is
            not given. What the module logs is logged by its own names: "val_loss", "train_acc", …

    Raises:
        UsageError: the insides of this version's trainer are not those known. From `fit`, as the following: the
            trainer works on several devices, or was given a `ckpt_path`; one of several loaders has no length; a
            callback changes what the module is made of.
        UnknownArgument: a word that `colabkeep.Run` does not know.
        RunBusy, Incompatible, NoUsableCheckpoint, SaveFailed: as from `colabkeep.Run`.
    """

    def __new__(cls, *_: Any, **__: Any) -> Resumable:
        """One that is a callback of the package in use."""
        whole = type(cls.__name__, (cls, *_callback_classes()), {"__module__": cls.__module__, "__doc__": cls.__doc__})
        return super().__new__(whole)

    def __init__(self, run_name: str, *, resume_from: str | os.PathLike[str] | None = None, **words: Any) -> None:
        super().__init__(run_name, words, resume_from)
        self._training: Training | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Resumable:
        """Some copy all callbacks, or the trainer: the copy has not trained anything."""
        copied = copy.copy(self)
        vars(copied).update(run=None, _training=None)
        return copied

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Everything is made and placed. From here on the trainer's loader comes through here."""
        if trainer.fast_dev_run:
            say = importlib.import_module(f"{_package(trainer)}.utilities").rank_zero_warn
            say("Trainer(fast_dev_run=…) only tries the program out: Resumable keeps nothing.")
            return
        _check(trainer)
        self._training = Training(self, trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        """A batch is done, and perhaps a step."""
        if self._training is not None:
            self._training.batch_over(outputs)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Something was measured."""
        if self._training is not None:
            self._training.log(trainer._logger_connector.metrics["callback"])

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """`fit` failed, perhaps before it came to its loop."""
        self._over()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """`fit`, or something else, is over."""
        self._over()

    def _over(self) -> None:
        training, self._training = self._training, None
        if training is not None:
            training.stand_back()


def _package(trainer: Any) -> str:
    """Which of the two this trainer is from."""
    found = [name for each in type(trainer).__mro__ for name in _PACKAGES if each.__module__.startswith(f"{name}.")]
    return found[0] if found else _PACKAGES[0]


def _schedules(trainer: Any) -> list[Any]:
    return [config.scheduler for config in trainer.lr_scheduler_configs]


def _named(thing: Any, *names: str) -> bool:
    """Is it of a class so called, or of one made from such a class?"""
    return any(each.__name__ in names for each in type(thing).__mro__)


def _check(trainer: Any) -> None:
    if trainer.world_size > 1 or type(trainer.strategy).__name__ != "SingleDeviceStrategy":
        raise UsageError(
            problem=f"This training runs under {type(trainer.strategy).__name__} on {trainer.world_size} device(s), "
            "and Resumable keeps trainings of one GPU or the CPU only.",
            remedy="Write Trainer(devices=1, …), without a strategy.",
        )
    for name, instead in _FINDERS.items():
        if any(_named(each, name) for each in trainer.callbacks):
            raise UsageError(
                problem=f"{name} tries things out inside fit, by a training of its own, and Resumable cannot tell that "
                "one from yours.",
                remedy=f"Take it out of the callbacks, and call Tuner(trainer).{instead}(…) before trainer.fit(…).",
            )
    if trainer.ckpt_path is not None:
        raise UsageError(
            problem="fit(ckpt_path=…) and Resumable would both resume this training.",
            remedy="Call trainer.fit(…) without ckpt_path: Resumable resumes from the newest checkpoint of the run.",
        )
    for callback in trainer.callbacks:
        if _named(callback, "ModelPruning"):
            raise UsageError(
                problem=f"{type(callback).__name__} puts other weights into the module while it trains, and a session "
                "that resumes this training would not have those.",
                remedy="Leave it out, or keep the trainer's own checkpoints with colabkeep.keep_folder(…), and resume "
                "by ckpt_path.",
            )


def _place(trainer: Any) -> set[str] | None:
    """What the connector of the loggers calls its place in an epoch."""
    known = vars(trainer._logger_connector).keys()
    return next((names for names in PLACES if names <= known), None)


def _result_kinds(trainer: Any) -> Any:
    return importlib.import_module(f"{_package(trainer)}.trainer.connectors.logger_connector.result")


class Training(Beside):
    """Its batches come through the run, its steps are counted, and an epoch that was begun in an earlier session goes
    on."""

    _state: State

    def __init__(self, keep: Resumable, trainer: Any) -> None:
        super().__init__()
        self._keep, self._trainer, self._loop = keep, trainer, trainer.fit_loop
        self._goes_on = False  # the epoch that begins now was begun in an earlier session
        self._losses: Any = None
        self._counted = 0
        self._reading: Iterator[Any] | None = None
        self._held: Any = None  # a batch of the loader that leads, drawn before its turn
        self._leading: Rest | None = None
        self.asks = False  # is it the training that asks for batches?
        self.reads = False  # and does an epoch begin?
        loop = self._loop
        loop._combined_loader = None  # a search for a learning rate may have read it already
        self._counted_before = self._numbers()
        self._whole = self.replace(loop, "run", self._train)
        self._started = self.replace(loop, "on_run_start", self._begin)
        self._epoch_begins = self.replace(loop, "on_advance_start", self._begin_epoch)
        self._epoch_ends = self.replace(loop, "on_advance_end", self._end_epoch)
        self._reset = self.replace(loop.epoch_loop, "reset", self._count_again)
        self.replace(loop, "setup_data", partial(self._ask, loop.setup_data))
        self.replace(loop.epoch_loop, "on_run_start", partial(self._ask_epoch, loop.epoch_loop.on_run_start))
        self._prepare = self.replace(trainer._data_connector, "_prepare_dataloader", self._prepare_dataloader)

    def _ask(self, whole: Any, *words: Any) -> None:
        self.asks = True
        try:
            whole(*words)
        finally:
            self.asks = False

    def _ask_epoch(self, whole: Any, fetcher: Any) -> None:
        self.reads = True
        if self._leading is not None and self._leading.streams:
            fetcher.prefetch_batches = 0
            self._ask(iter, fetcher)
        self._ask(whole, fetcher)
        self.reads = False

    def stand_back(self) -> None:
        super().stand_back()
        combined = self._loop._combined_loader  # perhaps the user's own
        if combined is not None:
            combined.flattened = [each.loader if isinstance(each, Rest) else each for each in combined.flattened]

    def log(self, metrics: Mapping[str, Any]) -> None:
        """What was measured, under its own names."""
        if self._run is not None:
            numbers = {name: value for name, value in metrics.items() if _is_number(value)}
            if numbers:
                self._run.log(**numbers)

    def batch_over(self, outputs: Any) -> None:
        """Count the step, if there was one."""
        run, step = self._run, self._trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._losses = loss if self._losses is None else self._losses + loss
        if run is not None and step > self._counted:
            self._counted = step
            total, self._losses = self._losses, None
            run.step(loss=total)

    def open(self) -> None:
        trainer, module = self._trainer, self._trainer.lightning_module
        self._lead()
        self._state = State(trainer, [each for each in trainer.callbacks if each is not self._keep])
        self._state.before_loader = self._counted_before
        schedulers = _schedules(trainer)
        more = {f"optimizer_{i}": each for i, each in enumerate(trainer.optimizers) if i}
        more |= {f"scheduler_{i}": each for i, each in enumerate(schedulers) if i}
        run = self._keep.make_run(
            model=module,
            optimizer=next(iter(trainer.optimizers), None),
            scheduler=next(iter(schedulers), None),
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            seed=int(Environment.here().environ.get("PL_GLOBAL_SEED") or 0),
            state={**more, **self._state.parts, "trainer": self._state},
        )
        run.saves_inside, run.looks_ahead = False, True
        run.asked_by = "max_epochs / max_steps", "fit"
        run.__enter__()
        self._run = run
        if self._keep.resume_from is not None and run.resumed_from is None:
            self._state.lines += load_file(trainer, self._keep.resume_from, self._state.counters(self._loop))
            self._state.look_at_clocks()
            run.begin_at(trainer.current_epoch, trainer.global_step)
        self.tell(run)
        if self._state.replaced:
            run.tell(RestoredInexactly(checkpoint=run.checkpoint or "", reason=_REPLACED))
        self._counted = trainer.global_step
        most = self._loop.max_epochs
        self._epochs = run.epochs(None if most is None or most < 0 else most)
        over = self._state.over()
        if over is None:
            self._advance(run)
            self._goes_on = not run.finished and run.progress.batches > 0
        else:
            self.conclude(run, over)
            self.finish(run)

    def _lead(self) -> None:
        """Which of the loaders says how long an epoch is."""
        combined = self._loop._combined_loader
        loaders, mode = combined.flattened, combined._mode
        if len(loaders) > 1 and mode not in _TWO:
            raise UsageError(
                problem=f'Resumable cannot go to a place in a CombinedLoader of the mode "{mode}".',
                remedy='Take "max_size_cycle" or "min_size".',
            )
        if len(loaders) > 1 and any(each.streams for each in loaders):
            raise UsageError(
                problem="One of several training loaders streams (it has no length), so Resumable cannot tell how long "
                "an epoch of them is.",
                remedy="Use data sets with a length, or one stream that gives batches of all of them.",
            )
        if type(self._loop._data_fetcher).__name__ == "_DataLoaderIterDataFetcher":
            raise UsageError(
                problem="training_step(dataloader_iter) draws its batches by itself, so Resumable cannot tell which of "
                "them a step has used.",
                remedy="Write training_step(self, batch, batch_idx).",
            )
        self._leading = loaders[0] if len(loaders) == 1 else (min if mode == "min_size" else max)(loaders, key=len)
        for place, loader in enumerate(loaders):
            loader.place = place

    def _advance(self, run: Run) -> None:
        """Go to the next epoch; end the run where there is none."""
        self._reading = None
        if next(self._epochs, None) is None:
            self.finish(run)

    # In place of the loops' methods.

    def _train(self) -> None:
        try:
            self._whole()
        except BaseException as error:
            if not self.leave(error):
                raise
            self._loop.on_run_end()  # asked to stop
        finally:
            self.stand_back()
            if self._run is not None:  # the loop ended in a way that nobody knows
                self.let_go(self._run, None)

    def _begin(self) -> None:
        self._started()
        self.open()

    def _begin_epoch(self) -> None:
        loop, before = self._loop, self._numbers()
        if self._goes_on and self._trainer.reload_dataloaders_every_n_epochs:
            loop._combined_loader = None
            for owner, numbers in zip(self._owners(), self._state.before_loader, strict=False):
                vars(owner).update(numbers)
        made = loop._combined_loader
        with ExitStack() as made_again:
            for each in self._state.averages:
                made_again.enter_context(each.made_again())
            self._epoch_begins()
        if loop._combined_loader is not made and made is not None:
            self._state.before_loader = before
        self._lead()

    def _owners(self) -> list[Any]:
        """Who makes loaders, and may count them."""
        return [each for each in (self._trainer.lightning_module, self._trainer.datamodule) if each is not None]

    def _numbers(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in vars(each).items() if type(value) is int} for each in self._owners()]

    def _count_again(self) -> None:
        if self._goes_on:
            self._goes_on = False
        else:
            self._reset()

    def _end_epoch(self) -> None:
        results = self._loop.epoch_loop._results.values()
        names = {name for each in results for name in (each.meta.name, each.meta.forked_name(on_step=False))}
        self._epoch_ends()
        run, trainer, loop = self._run, self._trainer, self._loop
        if run is None:
            return
        self.log({name: value for name, value in trainer.callback_metrics.items() if name in names})
        if not run.progress.batches:
            run.step()  # of this module's own, which took none in a whole epoch
        if self._reading is not None and (run.at_last_batch or run.progress.batches == run.epoch_batches):
            next(self._reading, None)  # the loop counts, and does not ask once more to see that there is none
        self._state.look()
        self.tell(run)
        reached = 0 <= loop.max_steps <= trainer.global_step
        if reached or (trainer.should_stop and loop._can_stop_early):
            next(self._epochs, None)
            self.finish(run)
        else:
            self._advance(run)

    def _prepare_dataloader(self, dataloader: Any, shuffle: bool, mode: Any) -> Any:
        prepared = self._prepare(dataloader, shuffle=shuffle, mode=mode)
        if getattr(mode, "value", mode) != "train":
            if getattr(prepared, "persistent_workers", False):
                # Only the first validation of a session draws a number for workers that stay, and what is drawn after
                # it would depend on where a session began. torch lets nobody write this by its name.
                vars(prepared)["persistent_workers"] = False
            return prepared
        return Rest(prepared, self)

    # The batches.

    def batches(self, rest: Rest) -> Iterator[Any]:
        """Those of this epoch that are left. The loader that leads is drawn from first: that is where it is saved."""
        fetcher = self._loop._data_fetcher
        while True:
            if rest is self._leading:
                batch, self._held = self._held or self._draw(), None
                if batch is _END:
                    return
                if rest.streams and self._run is not None and self._run.at_last_batch:
                    fetcher.length = fetcher.fetched + 1
                (value,) = batch
                yield value
            else:
                if rest.place < self._leading.place and self._held is None:  # type: ignore[union-attr]
                    self._held = self._draw()
                if self._held is _END or self._run is None:
                    return
                yield self._run.next(rest.loader, name=f"loader {rest.place}")

    def _draw(self) -> Any:
        run, leading = self._run, self._leading
        if run is None or leading is None:
            return _END
        if self._reading is None:
            self._reading = run.batches(leading.loader)
        for batch in self._reading:
            return (batch,)
        return _END


class Rest:
    """The trainer's loader, of which the training gets the batches that are left of an epoch. In all else it is that
    loader."""

    def __init__(self, loader: Any, training: Training) -> None:
        self.loader, self.place, self._training = loader, 0, training
        self.streams = length_of(loader) is None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.loader, memo)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        training = self._training
        if not training.asks:
            return iter(self.loader)
        return training.batches(self) if training.reads or not self.streams else iter(())


class State(Kept):
    """What the trainer has come to beside modules, optimizers and schedules: the loops' counters, what was logged of
    the epoch so far, what callbacks, module and data module remember, and whether one of them ended the training.

    `parts`: modules, optimizers and schedules that callbacks and the module hold (an average of the weights), parts of
    the run by names of their own.
    """

    def __init__(self, trainer: Any, callbacks: Sequence[Any]) -> None:
        super().__init__()
        self.before_loader: list[dict[str, Any]] = []  # numbers of who makes loaders, before this epoch's was made
        self._trainer = trainer
        module, package = trainer.lightning_module, _package(trainer)
        self._progress = importlib.import_module(f"{package}.loops.progress")._BaseProgress
        self._logged, self._place = Logged(trainer), _place(trainer) or set()
        kept = [each for each in callbacks if not _named(each, *_SHOW)]
        given = _NOT_LEARNT | vars(importlib.import_module(package).LightningModule()).keys()
        known = {id(each) for each in (module, *trainer.optimizers, *_schedules(trainer))}
        held = {
            f"{type(each).__name__}_{place}_{name}": value
            for place, each in (*enumerate(kept), ("", module))
            for name, value in vars(each).items()
            if name not in given and id(value) not in known and not _named(value, "LightningOptimizer")
        }
        self.parts = {name: value for name, value in held.items() if isinstance(value, _PARTS)}
        self._own = Own(trainer, kept, {name: value for name, value in held.items() if name not in self.parts})
        self._clocks = [each for each in kept if _named(each, *_BY_ITSELF)]
        self.averages = [Average(trainer, each) for each in kept if _named(each, _AVERAGES)]
        targets = [module, trainer.datamodule, *(each for each in kept if not _named(each, *_BY_ITSELF, _AVERAGES))]
        self._memories = Memories((each for each in targets if each is not None), torch.Tensor, given)
        self._metrics = {name: each for name, each in module.named_modules() if _named(each, "Metric")}
        self._written = self._read_settings()
        self._optimizers = [*trainer.optimizers]
        self.replaced = False  # were the optimizers, in the session that was resumed?
        self._ended_at: list[Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain values and arrays."""
        trainer, loop = self._trainer, self._trainer.fit_loop
        connector = trainer._logger_connector
        return {
            "counters": {place: each.state_dict() for place, each in self.counters(loop)},
            "stepped": loop.epoch_loop._batches_that_stepped,
            "reloaded": [_finite(getattr(owner, name)) for owner, name in self._reloads(loop)],
            "accumulate": trainer.accumulate_grad_batches,
            "logged": self._logged.state_dict(),
            "shown": {name: {k: v for k, v in getattr(connector, name).items() if _storable(v)} for name in SHOWN},
            "place": {name: getattr(connector, name) for name in self._place},
            "ended_at": self._limits() if trainer.should_stop else None,
            "memories": self._memories.state_dict(),
            "metrics": {name: self._told_by(each) for name, each in self._metrics.items()},
            "own": self._own.state_dict(),
            "averages": [each.state_dict() for each in self.averages],
            "before_loader": self.before_loader,
            "replaced": self.replaced or self._other_optimizers(),
            "settings": self._written,
        }

    @property
    def keeps(self) -> list[Any]:
        """Schedules that are kept here, and are no parts of the run."""
        return [each.schedule for each in self.averages if each.schedule is not None]

    @property
    def remembers(self) -> list[Any]:
        """Modules whose attributes are kept here."""
        return [self._trainer.lightning_module]

    def look(self) -> None:
        """See what there is that cannot be kept."""
        self._logged.state_dict()
        if self._other_optimizers():
            self.say(_REPLACED)
        self.say_unkept(self._memories.unkept() | self._own.unkept | self._logged.unkept)

    def _other_optimizers(self) -> bool:
        return [*map(id, self._trainer.optimizers)] != [*map(id, self._optimizers)]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._own.load_state_dict(state["own"])
        self.say_gone(self._memories.load_state_dict(state["memories"]))
        trainer, loop = self._trainer, self._trainer.fit_loop
        for each in trainer.callbacks:
            best = getattr(each, "best_model_path", "")
            if best and not Path(best).exists():
                self.say(f"The best checkpoint of {type(each).__name__}, {best}, is not on this machine.")
        self._ended_at = state["ended_at"]
        for place, each in self.counters(loop):
            if place in state["counters"]:
                each.load_state_dict(state["counters"][place])
        loop.epoch_loop._batches_that_stepped = state["stepped"]
        for (owner, name), epoch in zip(self._reloads(loop), state["reloaded"], strict=True):
            setattr(owner, name, -math.inf if epoch is None else epoch)
        trainer.accumulate_grad_batches = state["accumulate"]
        for average, told in zip(self.averages, state.get("averages", ()), strict=False):  # older ones have none
            average.load_state_dict(told)
        self.before_loader = state.get("before_loader", [])
        self.replaced = state.get("replaced", False)
        self._logged.load_state_dict(state["logged"])
        for name in SHOWN:
            getattr(trainer._logger_connector, name).update(state["shown"][name])
        for name in self._place & state["place"].keys():
            setattr(trainer._logger_connector, name, state["place"][name])
        if self._place != state["place"].keys():
            self.say(
                "Another version of Lightning saved this checkpoint. What self.log averages over this epoch may come "
                "out differently, and so may what watches it (EarlyStopping, a schedule): this resume may not be exact"
            )
        for name, told in state["metrics"].items():
            if name in self._metrics:
                vars(self._metrics[name]).update(told)
        trainer.should_stop = self._ended_at is not None and not self._more()
        self.look_at_clocks()

    def look_at_clocks(self) -> None:
        """One whose time was over already ends this session, too. When `fit` began, it did not know yet."""
        for each in self._clocks:
            each.on_fit_start(self._trainer, self._trainer.lightning_module)

    def over(self) -> str | None:
        """Why there is nothing left to train: "" where the run itself tells it. None if there is."""
        trainer, loop = self._trainer, self._trainer.fit_loop
        if 0 <= loop.max_steps <= trainer.global_step:
            return ""
        if trainer.should_stop and loop._can_stop_early:
            return (
                f"A callback ended this training at step {trainer.global_step}, so nothing is left to train. To "
                "continue anyway, ask for more epochs, steps or time than then."
            )
        return None

    def settings(self) -> dict[str, Plain]:
        return self._written

    def _read_settings(self) -> dict[str, Plain]:
        found = {name: getattr(self._trainer, name, None) for name in _SETTINGS}
        return {name: value.value if isinstance(value, Enum) else value for name, value in found.items()}

    def _more(self) -> bool:
        """Is more asked for than when a callback ended it?"""
        pairs = zip(self._limits(), self._ended_at or (), strict=False)  # in older checkpoints there is no time
        return any(_length(now) > _length(then) for now, then in pairs)

    def _limits(self) -> list[Any]:
        """Epochs, steps, and seconds by each clock."""
        loop = self._trainer.fit_loop
        return [loop.max_epochs, loop.max_steps, *(each._duration for each in self._clocks)]

    def counters(self, loop: Any, place: str = "") -> Iterator[tuple[str, Any]]:
        """The counters of a loop and of those in it."""
        for name, each in vars(loop).items():
            if isinstance(each, self._progress):
                yield f"{place}{name}", each
            elif hasattr(each, "_restarting"):
                yield from self.counters(each, f"{place}{name}.")

    @staticmethod
    def _reloads(loop: Any) -> list[tuple[Any, str]]:
        """Where the loops keep the epochs in which they asked for their loaders."""
        return [(loop, "_last_train_dl_reload_epoch"), (loop.epoch_loop.val_loop, "_last_val_dl_reload_epoch")]

    @staticmethod
    def _told_by(metric: Any) -> dict[str, Any]:
        names = [*metric._defaults, *(name for name in METRIC if name in vars(metric))]
        told = {name: getattr(metric, name) for name in names}
        return {name: list(value) if type(value) is list else value for name, value in told.items() if _storable(value)}


class Average:
    """What `StochasticWeightAveraging` has come to. In its first epoch it puts a schedule of its own in the place of
    the user's; in a session that goes on, it does so again when the next epoch begins."""

    def __init__(self, trainer: Any, callback: Any) -> None:
        self._trainer, self._callback = trainer, callback
        self._told: Mapping[str, Any] | None = None  # what was loaded, until there is the schedule that it belongs to

    def state_dict(self) -> Mapping[str, Any]:
        """How much was averaged, until which epoch, and where the schedule is. The average is a part of the run."""
        if self._told is not None:
            return self._told
        callback = self._callback
        schedule = {} if callback._swa_scheduler is None else callback._swa_scheduler.state_dict()
        return {
            "averaged": int(callback.n_averaged or 0),
            "updated": callback._latest_update_epoch,
            "schedule": {name: value for name, value in schedule.items() if _storable(value)},
            "accumulate": getattr(callback, "_accumulate_grad_batches", None),  # before the epoch for BatchNorm
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. In the middle of an epoch this is called once more behind its beginning."""
        callback, schedule = self._callback, state["schedule"]
        callback._latest_update_epoch = state["updated"]
        if state["accumulate"] is not None:
            callback._accumulate_grad_batches = state["accumulate"]
        if callback._swa_scheduler is not None:
            callback._swa_scheduler.load_state_dict(schedule)
            callback.n_averaged.fill_(state["averaged"])
        elif schedule:
            self._told = state
            callback._init_n_averaged, callback._scheduler_state = state["averaged"], schedule
            callback._clear_schedulers(self._trainer)

    @property
    def schedule(self) -> Any:
        """The one that it has put in the place of the user's, if it has."""
        return self._callback._swa_scheduler

    @contextmanager
    def made_again(self) -> Iterator[None]:
        """Around the beginning of an epoch. Whoever makes a schedule sets the rates by it: they are put back."""
        if self._told is None:
            yield
            return
        groups = self._trainer.optimizers[0].param_groups
        before = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        yield
        self._told = self._callback._scheduler_state = None
        for group, values in zip(groups, before, strict=True):
            group.update(values)


class Own:
    """What others tell of themselves: `state_dict`s of callbacks of the user's own, of data modules and of what is
    `held` by callbacks and the module (an average of the user's own), and what the hooks of a checkpoint add to it."""

    def __init__(self, trainer: Any, callbacks: Sequence[Any], held: Mapping[str, Any]) -> None:
        self._trainer, package = trainer, _package(trainer)
        self.unkept: set[str] = set()
        module, data = trainer.lightning_module, trainer.datamodule
        theirs = [each for each in callbacks if self._tells(each, "state_dict", package) or _named(each, *_BY_ITSELF)]
        theirs += [] if data is None or not self._tells(data, "state_dict", package) else [data]
        self._tellers = {f"{type(each).__name__}[{place}]": each for place, each in enumerate(theirs)}
        tells = ("state_dict", "load_state_dict")
        self._tellers |= {name: each for name, each in held.items() if all(hasattr(each, word) for word in tells)}
        hooked: list[tuple[Any, tuple[Any, ...]]] = [(each, (trainer, module)) for each in callbacks]
        hooked += [(each, ()) for each in (module, data) if each is not None]
        self._hooked = [each for each in hooked if self._tells(each[0], "on_save_checkpoint", package)]

    @staticmethod
    def _tells(thing: Any, name: str, package: str) -> bool:
        """Is this method of a class of the user's own?"""
        owner = next((each for each in type(thing).__mro__ if name in vars(each)), None)
        return owner is not None and not owner.__module__.startswith(f"{package.partition('.')[0]}.")

    def state_dict(self) -> dict[str, Any]:
        """By object and by key of a checkpoint, as far as it can be stored."""
        told = {name: self._stored(name, each.state_dict()) for name, each in self._tellers.items()}
        checkpoint = self._checkpoint()
        known = set(checkpoint)
        for each, before in self._hooked:
            each.on_save_checkpoint(*before, checkpoint)
        added = {name: self._stored(f"checkpoint[{name!r}]", checkpoint[name]) for name in checkpoint.keys() - known}
        return {"told": told, "added": added}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Tell them."""
        for name, each in self._tellers.items():
            if state["told"].get(name):
                each.load_state_dict(state["told"][name])
        if self._hooked and state["added"]:
            checkpoint = {**self._checkpoint(), **state["added"]}
            for each, before in self._hooked:
                each.on_load_checkpoint(*before, checkpoint)

    def _stored(self, name: str, value: Any) -> Any:
        if _storable(value):
            return value
        self.unkept.add(name)
        return None

    def _checkpoint(self) -> dict[str, Any]:
        """What the hooks of a checkpoint may want to look at."""
        if not self._hooked:
            return {}
        trainer = self._trainer
        return {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "state_dict": trainer.lightning_module.state_dict(),
            "hyper_parameters": dict(trainer.lightning_module.hparams),
            "callbacks": {},
            "loops": {},
            "optimizer_states": [],
            "lr_schedulers": [],
        }


class Logged:
    """What `self.log` has summed up of the training epoch so far."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._kinds = _result_kinds(trainer)
        self.unkept: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        """By key: what was asked for, and the sums."""
        results = self._trainer.fit_loop.epoch_loop._results
        return {key: self._told_by(each) for key, each in results.items() if self._is_known(each)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Sum up from there."""
        trainer, kinds = self._trainer, self._kinds
        results, modules = trainer.fit_loop.epoch_loop._results, dict(trainer.lightning_module.named_modules())
        results.clear()
        for key, told in state.items():
            meta = kinds._Metadata(reduce_fx=_REDUCTIONS[told["reduction"]], **told["meta"])
            sync = told["sync"]
            fn = trainer.strategy.reduce
            meta.sync = kinds._Sync(fn=fn, _should=sync["should"], rank_zero_only=sync["rank_zero_only"])
            result = kinds._ResultMetric(meta, told["is_tensor"])
            vars(result).update(told["sums"])
            if not told["is_tensor"]:
                result.value = modules[told["meta"]["metric_attribute"]]
            results[key] = result.to(trainer.lightning_module.device)

    def _is_known(self, result: Any) -> bool:
        known = not result.meta.is_custom_reduction and (result.is_tensor or result.meta.metric_attribute is not None)
        if not known:
            self.unkept.add(f"self.log({result.meta.name!r}), with a reduction of its own,")
        return known

    def _told_by(self, result: Any) -> dict[str, Any]:
        meta = result.meta
        sums = {name: vars(result)[name] for name in RESULT if name in vars(result)}
        return {
            "meta": {name: getattr(meta, name) for name in META},
            "reduction": next(name for name in _REDUCTIONS if getattr(meta, f"is_{name}_reduction")),
            "sync": {"should": meta.sync._should, "rank_zero_only": meta.sync.rank_zero_only},
            "is_tensor": result.is_tensor,
            "sums": {name: value for name, value in sums.items() if _storable(value)},
        }


def _storable(value: Any) -> bool:
    return Memories((), torch.Tensor).storable(value)


def _length(limit: int | None) -> float:
    return math.inf if limit is None or limit < 0 else limit


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _is_number(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (int, float)) and not isinstance(value, bool)

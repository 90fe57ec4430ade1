"""Hugging Face's `Trainer` that resumes after a disconnect, bit for bit::

    from colabkeep.integrations.transformers import Resumable

    trainer = Trainer(model, args, train_dataset=data, callbacks=[Resumable("bert-reviews")])
    trainer.train()

Run the cell again after a disconnect, on whatever machine: `train()` resumes at the step that was saved last, in the
middle of an epoch too, without reading the batches before it.

A callback is not told which trainer calls it, and `train()` has no place where it could be given a position. So these
methods are stood in for, on the one trainer and its callback handler, from when it is made (the first two) or while it
trains. They are the same from transformers 5.0 to 5.24; `transformers_insides` lists them and looks at them:

* `_inner_training_loop`: whatever ends it ends the run, which saves.
* `get_train_dataloader`: its loader is read through the run, which knows the order and the position.
* `get_eval_dataloader`: its workers begin anew for each evaluation.
* `training_step`: the loss of each batch passes here.
* `_maybe_log_save_evaluate`: behind it a step, or an epoch, is over, with its evaluation and the trainer's own save.
* `_evaluate`: that of `eval_on_start` was done when the run began.
* `call_event` of the handler: the other callbacks hear nothing of epochs that were trained in an earlier session.
* `_run_epoch`, from 5.4 on: skips such epochs, and is told how long the rest of a resumed one is. Before, an epoch that
  is skipped is one without batches.

For `resume_from` its own `_load_optimizer_and_scheduler`, `_load_scaler` and `_load_rng_state` are called.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.data_loader import DataLoaderDispatcher
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import TrainOutput, has_length

from colabkeep.api import Run
from colabkeep.core.errors import UsageError
from colabkeep.core.settings import Plain
from colabkeep.integrations.insides import named_by
from colabkeep.integrations.memories import Memories
from colabkeep.integrations.pretrained import find_base, load_folder, told_files
from colabkeep.integrations.shared import Beside, Keeper, Kept
from colabkeep.integrations.transformers_insides import SUMS, check
from colabkeep.session.open import bare, check_word

__all__ = ["Resumable"]

# Of the trainer's own state, what its training came to. The rest is computed from the arguments, in each session.
_REACHED = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "log_history",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
# Of its arguments, what the training computes with and no part of the run shows.
_SETTINGS = (
    "train_batch_size",
    "gradient_accumulation_steps",
    "max_grad_norm",
    "lr_scheduler_type",
    "warmup_steps",
    "warmup_ratio",
    "fp16",
    "bf16",
    "label_smoothing_factor",
    "neftune_noise_alpha",
    "dataloader_drop_last",
)
_SHOW = frozenset({"ProgressCallback", "NotebookProgressCallback", "PrinterCallback"})  # they keep bars and clocks
# Of its arguments, what an evaluation has in the place of the user's.
_EVALUATED_WITH = {"dataloader_persistent_workers": False, "dataloader_in_order": True}
# What computes losses, measures and batches; an object of the user's may count and average in it. So may TRL's rewards.
_CALLED = ("compute_loss_func", "compute_metrics", "preprocess_logits_for_metrics", "data_collator")
# What the code of the Trainer itself names. All else that one has is of its own kind: TRL's have sums of measures.
_NAMED = named_by(Trainer)
_EMPTY = "There seems not to be a single sample"  # said before 5.4 of an epoch that is skipped


class Resumable(Keeper, TrainerCallback):
    """Checkpoints and resumes `Trainer.train`. Give it to the trainer among its callbacks::

        trainer = Trainer(model, args, train_dataset=data, callbacks=[Resumable("bert", monitor="eval_loss")])
        trainer.train()

    Kept are the model, the optimizer, the schedule, the gradient scaler, all random streams, the order of the data and
    the position in it, the trainer's own state and log, and what the other callbacks have come to remember (how long
    `EarlyStoppingCallback` has waited; numbers, texts, arrays and containers of them). What a callback keeps that
    cannot be stored is told. Other settings than those that the run began with are an error, kept or applied, as
    `on_change` says.

    The trainer's own checkpoints are not needed: `save_strategy="no"` saves their time. With
    `load_best_model_at_end=True` they are, and vanish with the machine: the best model can only be one of the session
    that ends the training.

    Of a model with adapters (PEFT), the frozen weights that `from_pretrained` read from the Hub are not stored: each
    checkpoint names them by checksums, and a resume compares these with the base that the script has loaded, before
    anything is changed.

    Args:
        run_name: names the run in the storage; the same name resumes the same run.
        frozen: "refer": the frozen weights of a pretrained base are not stored, also where the model has no adapters.
            "store": they are, once in the run, so that it depends on nobody else's files. None: "refer" for a model
            with adapters whose base has a name on the Hub, "store" for any other, and for a base in a folder of this
            machine, which may vanish with it.
        resume_from: a folder that the trainer saved ("out/checkpoint-500"), from which a new run begins: its weights,
            optimizer, schedule, scaler, step and log. A run that has a checkpoint of its own resumes from that.
        words: those of `colabkeep.Run`: storage, resume, on_change, save_every, keep_last, keep_best, monitor, mode,
            max_time, seed, state, callbacks, progress, and the others. `seed` is that of the training arguments if it
            is not given. What the trainer measures is logged by its own names: "eval_loss", "eval_accuracy", …

    Raises:
        UsageError: the insides of this version's trainer are not those known. From `train`, as the following: the
            trainer works with several processes, DeepSpeed, FSDP or auto_find_batch_size, searches for
            hyperparameters, was told to resume by itself, or has a layer-wise optimizer.
        UnknownArgument: a word that `colabkeep.Run` does not know.
        RunBusy, Incompatible, NoUsableCheckpoint, SaveFailed: as from `colabkeep.Run`.
    """

    def __init__(
        self,
        run_name: str,
        *,
        resume_from: str | os.PathLike[str] | None = None,
        frozen: Literal["refer", "store"] | None = None,
        **words: Any,
    ) -> None:
        super().__init__(run_name, words, resume_from)
        check()
        if frozen is not None:
            check_word("frozen", frozen, "refer", "store")
        self.frozen = frozen
        self._training: Training | None = None

    def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """The trainer is made: from now on its loader comes through here."""
        self._training = Training(self, _caller(self))

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Everything is made and placed. The run is taken when the other callbacks are ready too."""
        if self._training is None or self._training.trainer is not _caller(self):
            raise UsageError(
                problem="Resumable was added after the trainer was made. That is too late: the trainer already has "
                "its data.",
                remedy="Pass a new one when the trainer is made: Trainer(…, callbacks=[Resumable(…)]).",
            )
        self._training.begin()

    def make_run(self, **parts: Any) -> Run:
        run = super().make_run(**parts)
        base = find_base(parts["model"], self.frozen)
        if base is not None:
            run.knows(base)
        return run


def _caller(callback: TrainerCallback) -> Any:
    """The trainer that calls this callback; no callback is told.

    Raises:
        UsageError: none does.
    """
    frame = sys._getframe(2)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer) and callback in found.callback_handler.callbacks:
            return found
        frame = frame.f_back  # type: ignore[assignment]
    raise UsageError(
        problem="Resumable was called by something that is not a Trainer of transformers.",
        remedy="Pass it to the trainer: Trainer(…, callbacks=[Resumable(…)]).",
    )


def _check(trainer: Any) -> None:
    args = trainer.args
    if args.world_size > 1 or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise UsageError(
            problem="This training runs in several processes, or under DeepSpeed or FSDP, and Resumable keeps "
            "trainings of one process only.",
            remedy="Run the script without accelerate launch or torchrun.",
        )
    if args.auto_find_batch_size:
        raise UsageError(
            problem="auto_find_batch_size=True starts the training again with smaller batches, and a run that is "
            "resumed cannot follow that.",
            remedy="Leave it out, and set per_device_train_batch_size to what fits.",
        )
    optimizer = str(getattr(args.optim, "value", args.optim))
    whole, _, way = optimizer.rpartition("_")
    if way == "layerwise":
        raise UsageError(
            problem=f'optim="{optimizer}" gives each weight an optimizer of its own, which only a hook of that weight '
            "holds, so no checkpoint of the run could have their states.",
            remedy=f'Write optim="{whole}": one optimizer for all weights, which is kept.',
        )


class Training(Beside):
    """Stands beside one trainer. While that trains, its batches come through the run, its steps are counted, and what
    was trained in an earlier session is skipped.

    The trainer begins all its epochs in every session, from 0 on: `_begun` counts them. Those before the run's own,
    `_epoch`, are skipped; of that one, the first `_offset` batches are.
    """

    _state: State

    def __init__(self, keep: Resumable, trainer: Any) -> None:
        super().__init__()
        _check(trainer)
        self.trainer = trainer
        self._keep = keep
        self._length: int | None = None  # batches of an epoch, as the trainer takes it where nobody knows
        self._whole, self._loader = trainer._inner_training_loop, trainer.get_train_dataloader
        trainer._inner_training_loop, trainer.get_train_dataloader = self._train, self._train_dataloader

    def begin(self) -> None:
        """Take the run after all other callbacks have heard of the beginning."""
        if self.trainer.state.global_step:
            raise UsageError(
                problem="train(resume_from_checkpoint=…) and Resumable would both resume this training.",
                remedy="Call trainer.train() without it: Resumable resumes from the newest checkpoint of the run. To "
                'begin a new run from one of the trainer\'s: Resumable(…, resume_from="out/checkpoint-500").',
            )
        self.wait_for_the_others(self.trainer.callback_handler.callbacks)

    def open(self) -> None:
        trainer, handler = self.trainer, self.trainer.callback_handler
        self._losses: Any = None
        self._counted = self._begun = self._epoch = self._offset = 0
        self._live = self._epoch_over = False
        self._reading: Iterator[Any] | None = None
        others = [each for each in handler.callbacks if each is not self._keep and type(each).__name__ not in _SHOW]
        self._state = State(trainer, others)
        run = self._keep.make_run(
            model=trainer.model,
            optimizer=bare(trainer.optimizer),  # whose windows the trainer opens and closes itself
            scheduler=trainer.lr_scheduler,
            scaler=getattr(trainer.accelerator, "scaler", None),
            seed=trainer.args.seed if trainer.args.data_seed is None else trainer.args.data_seed,
            state={**self._state.modules, "trainer": self._state},
        )
        run.__enter__()
        self._run = run
        run.resumes_behind = True
        run.saves_inside = False
        run.asked_by = "num_train_epochs / max_steps", "train()"
        if self._keep.resume_from is not None and run.resumed_from is None:
            self._begin_from(run, self._keep.resume_from, others)
        self.tell(run)
        self._counted, self._tokens = trainer.state.global_step, trainer.state.num_input_tokens_seen or 0
        self._stand_in()
        epochs = trainer.state.num_train_epochs
        self._epochs = run.epochs(None if epochs == sys.maxsize else epochs)
        over = self._state.over()
        if over is None:
            self._advance(run)
        else:
            self.conclude(run, over)
            self._state.sum_up()
            self.finish(run)

    def _begin_from(self, run: Run, folder: str | os.PathLike[str], callbacks: Sequence[Any]) -> None:
        trainer = self.trainer
        self._state.lines += load_folder(trainer, folder, callbacks)
        step, epoch = trainer.state.global_step, int(trainer.state.epoch or 0)
        run.begin_at(epoch, step)
        self._state.begins_at(step)
        rest = (
            ""
            if epoch == trainer.state.epoch
            else ", from its first batch on, because it is not known which were trained"
        )
        self._state.lines.append(f"Goes on from {Path(folder).name}, step {step}, with epoch {epoch + 1}{rest}.")

    def _stand_in(self) -> None:
        trainer = self.trainer
        self._step = self.replace(trainer, "training_step", self._training_step)
        self._over = self.replace(trainer, "_maybe_log_save_evaluate", self._step_over)
        self._evaluation = self.replace(trainer, "_evaluate", self._evaluate)
        self._call_event = self.replace(trainer.callback_handler, "call_event", self._hear)
        self._eval_loader = self.replace(trainer, "get_eval_dataloader", self._eval_dataloader)
        if hasattr(trainer, "_run_epoch"):
            self._whole_epoch = self.replace(trainer, "_run_epoch", self._run_epoch)
        logging.getLogger("transformers.trainer").addFilter(self._says)

    def stand_back(self) -> None:
        super().stand_back()
        logging.getLogger("transformers.trainer").removeFilter(self._says)

    def _says(self, record: logging.LogRecord) -> bool:
        return (self._live and not self._offset) or not str(record.msg).startswith(_EMPTY)

    def _advance(self, run: Run) -> None:
        """Go to the next epoch; end the run where there is none."""
        epoch = next(self._epochs, None)
        if epoch is None:
            self.finish(run)
        else:
            self._epoch, self._offset = epoch, run.progress.batches

    def let_go(self, run: Run, error: BaseException | None) -> bool:
        self._live = False
        try:  # what is saved now says whether a callback ended the training, so this does not before it is saved
            return super().let_go(run, error)
        finally:
            self.trainer.control.should_training_stop = True

    # In place of the trainer's methods.

    def _train(self, *words: Any, **more: Any) -> Any:
        trainer = self.trainer
        if more.get("trial") is not None:
            raise UsageError(
                problem="hyperparameter_search trains a model for each trial, and Resumable keeps one training: all "
                "trials would be one run.",
                remedy="Search with a trainer that has no Resumable, and give one to the trainer that trains with what "
                "was found.",
            )
        try:
            return self._whole(*words, **more)
        except BaseException as error:
            if not self.leave(error):
                raise
            return TrainOutput(trainer.state.global_step, float("nan"), {})
        finally:
            self.stand_back()
            if self._run is not None:  # its loop ended in a way that nobody knows
                self.let_go(self._run, None)

    def _eval_dataloader(self, *given: Any, **words: Any) -> Any:
        """One whose workers begin anew. Where they stay, only the first evaluation of a session draws a number for
        them, and what is drawn after it would depend on where a session began. And one whose batches come in order."""
        args = self.trainer.args
        known = {name: getattr(args, name) for name in _EVALUATED_WITH if hasattr(args, name)}
        vars(args).update({name: _EVALUATED_WITH[name] for name in known})
        try:
            return self._eval_loader(*given, **words)
        finally:
            vars(args).update(known)

    def _train_dataloader(self) -> Any:
        loader = self._loader()
        if not self.trainer.is_in_train:
            return loader
        if isinstance(loader.dataset, torch.utils.data.IterableDataset) or isinstance(loader, DataLoaderDispatcher):
            loader = getattr(loader, "base_dataloader", loader)  # there are no others to hand the batches on to
        if not has_length(loader):
            self._length = self.trainer.args.max_steps * self.trainer.args.gradient_accumulation_steps
        return Rest(loader, self)

    def batches(self, loader: Any) -> Iterator[Any]:
        """Those of this epoch that are left; none of an epoch that is skipped."""
        if self._run is None or not self._live:
            return
        reading = self._run.batches(loader)
        self._reading = reading
        try:
            yield from reading
        except BaseException as error:  # asked to stop: the trainer finds no more batches, and ends
            if isinstance(error, GeneratorExit) or not self.leave(error):
                raise

    def skipped(self) -> int:
        """Batches of the epoch that comes next which were trained in an earlier session."""
        return self._offset if self._run is not None and self._begun == self._epoch else 0

    def _run_epoch(self, **words: Any) -> None:
        if self._live:
            if self._length is None:
                words["steps_in_epoch"] -= self._offset
                words["num_update_steps_per_epoch"] -= self._offset // self.trainer.args.gradient_accumulation_steps
            self._whole_epoch(**words)

    def _training_step(self, *words: Any, **more: Any) -> Any:
        loss = self._step(*words, **more)
        self._losses = loss if self._losses is None else self._losses + loss
        return self._state.carried(loss)  # the trainer only sums it up

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> Any:
        if skip_scheduler and self._counted:  # eval_on_start, in a run that began long ago
            return {}
        return self._evaluation(trial, ignore_keys_for_eval, skip_scheduler)

    def _step_over(self, tr_loss: Any, grad_norm: Any, *words: Any, **more: Any) -> None:
        self._state.loss = tr_loss  # before 5.4 nobody else can reach it
        self._over(tr_loss, grad_norm, *words, **more)
        run, step = self._run, self.trainer.state.global_step
        if run is None:
            return
        if step > self._counted:
            self._counted = step
            loss, self._losses = self._losses, None
            seen, self._tokens = self._tokens, self.trainer.state.num_input_tokens_seen or 0
            run.step(loss=loss, grad_norm=grad_norm, tokens=self._tokens - seen if self._tokens else None)
            if step & (step - 1) == 0:  # now and then, and soon: a GPU has to be waited for
                self._state.look()
        self.tell(run)
        if self._epoch_over:
            self._epoch_over = False
            self._end_epoch(run)

    def _end_epoch(self, run: Run) -> None:
        if self._reading is not None and run.progress.batches == run.epoch_batches:
            next(self._reading, None)  # the trainer counts, and does not ask once more to see that there is none
        elif self.trainer.control.should_training_stop:  # max_steps, or a callback: in the middle of the epoch
            self.finish(run)
            return
        self._reading = None
        if self.trainer.control.should_training_stop:
            next(self._epochs, None)
            self.finish(run)
        else:
            self._advance(run)

    def _hear(self, event: str, args: Any, state: Any, control: Any, **others: Any) -> Any:
        """What all callbacks hear, unless it is of an epoch that was trained before."""
        if event == "on_epoch_begin":
            self._live = self._run is not None and self._begun == self._epoch
            self._begun += 1
            control.should_epoch_stop = not self._live  # before 5.4: at the first batch that does not come
            if not self._live or self._offset:
                return control
        elif event == "on_epoch_end":
            if not self._live:
                control.should_training_stop = self._run is None  # before 5.4: no batches, it thought, and stopped
                return control
            if self._offset and self._run is not None and self._run.progress.batches == self._offset:
                control.should_training_stop = False  # nothing was left of it, which the trainer takes for the end
            self._live, self._epoch_over = False, True
        elif event == "on_step_end" and self._offset and self._run is not None:
            length, epoch = self._length or self._run.epoch_batches, self._epoch
            if length is not None:
                done = round((state.epoch - epoch) * (length if self._length else length - self._offset))
                state.epoch = epoch + (self._offset + done) / length
        heard = self._call_event(event, args, state, control, **others)
        if event == "on_evaluate" and self._run is not None:
            self._run.log(**_numbers(others["metrics"]))
        elif event == "on_log" and self._run is not None and "loss" in others["logs"]:
            self._run.log(**_numbers(others["logs"]))
        return heard


class Rest:
    """The trainer's loader, of which an epoch gives the batches that are left. In all else it is that loader."""

    def __init__(self, loader: Any, training: Training) -> None:
        self._loader, self._training = loader, training

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader) - self._training.skipped()

    def __iter__(self) -> Iterator[Any]:
        return self._training.batches(self._loader)


class State(Kept):
    """What the trainer has come to beside model and optimizer: its own state and sums, what its kind adds to them, what
    its callbacks remember, and whether one of them ended the training."""

    trains = "train"

    def __init__(self, trainer: Any, callbacks: Sequence[object]) -> None:
        super().__init__()
        self._trainer = trainer
        self.loss: Any = None  # the trainer's sum since its last log
        self._carried: Any = None  # that of the session before
        self._ended_at: int | None = None
        trained, called = {*trainer.model.modules(), trainer.model_wrapped}, _called(trainer)
        # Those of callbacks (an average of the weights, TRL's reference that follows them) are parts of the run.
        self.modules: dict[str, torch.nn.Module] = {
            f"{type(each).__name__}_{place}_{name}": value
            for place, each in [*enumerate(callbacks), *((f"called_{n}", each) for n, each in enumerate(called))]
            for name, value in vars(each).items()
            if isinstance(value, torch.nn.Module) and value not in trained
        }
        held = {*trained, *self.modules.values()}
        beside = {name: each for name, each in vars(trainer).items() if isinstance(each, torch.nn.Module)}
        beside = {name: each for name, each in beside.items() if each not in held}
        # So are those that the optimizer trains, the loss, and weights that the optimizer has from elsewhere.
        optimized = [each for group in trainer.optimizer.param_groups for each in group["params"]]
        ids = set(map(id, optimized))
        self.modules |= {
            f"trainer_{name}": each
            for name, each in beside.items()
            if name == "compute_loss_func" or not ids.isdisjoint(map(id, each.parameters()))
        }
        kept = [each for module in (trainer.model, *self.modules.values()) for each in _tensors(module)]
        known = set(map(id, kept))
        rest = [each for each in optimized if id(each) not in known]
        if rest:
            self.modules["trainer_parameters"] = torch.nn.ParameterList(rest)
        self._beside = {
            name: (each, _glance(each)) for name, each in beside.items() if f"trainer_{name}" not in self.modules
        }
        self._callbacks = Memories([*callbacks, *called], torch.Tensor, kept=[*kept, *rest])
        self._own = Memories([trainer], torch.Tensor, _NAMED, [*kept, *rest])
        self._weights = {name for name, _ in trainer.model.named_parameters()}
        self._began_at = 0

    def begins_at(self, step: int) -> None:
        """The steps before were trained elsewhere: their losses are in no sum here."""
        self._began_at = step
        if step and hasattr(self._trainer, "_initial_global_step"):  # from 5.4 on
            self._trainer._initial_global_step = step

    def carried(self, loss: Any) -> Any:
        """A batch's loss; the first one of a session with what the session before had summed up since its last log."""
        before, self._carried = self._carried, None
        return loss if before is None else loss + before.to(loss.device)

    def sum_up(self) -> None:
        """There is no batch to carry it."""
        if self._carried is not None:
            self._trainer._total_loss_scalar += self._carried.item()

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain values and arrays."""
        trainer, state = self._trainer, self._trainer.state
        self.say_unkept(self._callbacks.unkept() | self._own.unkept())
        stops = trainer.control.should_training_stop
        return {
            "reached": {name: getattr(state, name) for name in _REACHED},
            "sums": {name: getattr(trainer, name) for name in SUMS},
            "loss": self.loss if self._carried is None else self._carried,
            "ended_at": state.max_steps if stops else None,
            "began_at": self._began_at,
            "files": told_files(trainer.model),
            "callbacks": self._callbacks.state_dict(),
            "own": self._own.state_dict(),
            "settings": self.settings(),
        }

    def look(self) -> None:
        """See whether the model has got new weights, and whether a module beside it has changed."""
        new = [name for name, _ in self._trainer.model.named_parameters() if name not in self._weights]
        if new:
            self._weights.update(new)
            self.lines.append(
                f"The model has got new weights while it trains ({len(new)}; the first is {new[0]}). A resume is "
                "refused unless your script adds them before train(), as they are now"
            )
        for name in [name for name, (each, before) in self._beside.items() if _glance(each) != before]:
            del self._beside[name]
            self.lines.append(
                f"The weights of trainer.{name} change while it trains, and are not in the checkpoints: a resumed "
                "training begins with new ones. To keep them, pass the module as Resumable(…, state={…})"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        trainer = self._trainer
        for name, value in state["reached"].items():
            setattr(trainer.state, name, value)
        for name, value in state["sums"].items():
            setattr(trainer, name, value)
        best = trainer.state.best_model_checkpoint
        if best is not None and not Path(best).is_dir():
            trainer.state.best_model_checkpoint = None
            self.lines.append(f"The trainer's best checkpoint, {best}, is not on this machine, so it cannot be loaded.")
        self._carried, self._ended_at = state["loss"], state["ended_at"]
        self.begins_at(state.get("began_at", 0))
        self.say_gone(self._callbacks.load_state_dict(state["callbacks"]))
        self.say_gone(self._own.load_state_dict(state.get("own", {})))

    def over(self) -> str | None:
        """Why there is nothing left to train: "" where the run itself tells it. None if there is."""
        state = self._trainer.state
        if state.global_step >= state.max_steps:
            return ""
        if self._ended_at is not None and state.max_steps <= self._ended_at:
            return (
                f"A callback ended this training at step {state.global_step}, so nothing is left to train. To "
                f"continue anyway, ask for more than {self._ended_at} steps."
            )
        return None

    def settings(self) -> dict[str, Plain]:
        args, found = self._trainer.args, {}
        for name in _SETTINGS:
            value = getattr(args, name, None)
            found[name] = value.value if isinstance(value, Enum) else value
        if not str(found["lr_scheduler_type"]).startswith("constant"):
            found["max_steps"] = self._trainer.state.max_steps  # the schedule is made for so many
        return found


def _called(trainer: Any) -> list[Any]:
    """The objects that the trainer asks for losses, measures, batches and rewards; what AdaLoRA goes by, and what is
    generated by: an evaluation writes defaults into that (`Seq2SeqTrainer.prediction_step`)."""
    found = [*(getattr(trainer, name, None) for name in _CALLED), *(getattr(trainer, "reward_funcs", None) or ())]
    ranks = getattr(getattr(trainer.model, "base_model", None), "rankallocator", None)
    found += [ranks, getattr(ranks, "peft_config", None), getattr(trainer.model, "generation_config", None)]
    owners = {id(owner): owner for owner in (getattr(each, "__self__", each) for each in found)}
    own = [each for each in owners.values() if hasattr(each, "__dict__") and each is not trainer]
    return [each for each in own if not isinstance(each, torch.nn.Module)]


def _tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _glance(module: torch.nn.Module) -> list[float]:
    """The first number of each of its weights: whoever trains or averages them changes one of those."""
    numbers = (each.detach() for each in module.parameters() if each.numel() and not each.is_meta)
    return [float(each.flatten()[0].real) for each in numbers]


def _numbers(told: Mapping[str, object]) -> dict[str, float]:
    """Those of a log line; the run knows its own epoch and step."""
    found = {name: value for name, value in told.items() if name not in ("epoch", "step")}
    return {n: v for n, v in found.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}

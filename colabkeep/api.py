"""The public functions and classes. What a user wrote becomes one record, which is all that the modules below see."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from colabkeep.core.arguments import Duration, public, read_duration
from colabkeep.core.errors import UsageError
from colabkeep.core.events import Event, MachineChecked
from colabkeep.core.language import said
from colabkeep.core.policies import OVERHEAD, Mode, SaveEvery
from colabkeep.core.settings import OnChange, Settings
from colabkeep.core.system import Environment, SystemClock
from colabkeep.frameworks import find_framework
from colabkeep.frameworks.base import TrainingOptions
from colabkeep.frameworks.shared.rng import stateful
from colabkeep.frameworks.shared.settings import mark, marked
from colabkeep.keep.session import KeptFolder
from colabkeep.keep.wiring import FolderArguments, wire_folder
from colabkeep.platforms import find_platform
from colabkeep.session import run as session
from colabkeep.session.fit import FitArguments, fit, plan_fit
from colabkeep.session.launch import FORWARD, NotTogether, begin_processes
from colabkeep.session.open import RunArguments, begun_together, check_callbacks, check_word, open_home, wire_run
from colabkeep.session.ranks import from_bytes, to_bytes
from colabkeep.session.rehearsal import REHEARSAL
from colabkeep.session.run import EventBus
from colabkeep.stores import Storage
from colabkeep.stores.base import Store
from colabkeep.ui.panel.displays import Display, Progress, displays
from colabkeep.ui.result import FitResult, run_html, run_text

__all__ = ["Run", "keep_folder", "launch", "mount", "resumable_fit", "secret"]

Resume: TypeAlias = Literal["auto", "must", "never", "best"] | str
"""A word of these, or the id of a checkpoint."""

Loggers: TypeAlias = Sequence[str] | Mapping[str, "str | os.PathLike[str]"]
"""Words; or by word the folder to write into."""

Precision: TypeAlias = Literal["auto", "32-true", "16-mixed", "bf16-mixed"]

_T = TypeVar("_T")

_FOREIGN = {
    "ckpt_path": "resume",
    "resume_from_checkpoint": "resume",
    "autoresume": "resume",
    "num_train_epochs": "max_epochs",
    "epochs": "max_epochs",
    "max_duration": "max_epochs or max_time",
    "save_total_limit": "keep_last",
    "max_to_keep": "keep_last",
    "num_to_keep": "keep_last",
    "save_top_k": "keep_best",
    "save_best_only": "keep_best",
    "metric_for_best_model": "monitor",
    "greater_is_better": 'mode="max"',
    "save_steps": 'save_every="500 steps"',
    "save_interval": "save_every",
    "save_freq": "save_every",
    "every_n_epochs": "save_every=5",
    "every_n_train_steps": 'save_every="500 steps"',
    "train_time_interval": 'save_every="10 min"',
    "gradient_accumulation_steps": "accumulate_grad_batches",
    "auto_find_batch_size": 'micro_batch="auto"',
    "max_grad_norm": "gradient_clip_val",
    "fp16": 'precision="16-mixed"',
    "bf16": 'precision="bf16-mixed"',
    "amp": 'precision="16-mixed"',
    "output_dir": "storage and run_name",
    "dirpath": "storage and run_name",
    "default_root_dir": "storage",
    "save_folder": "storage and run_name",
    "criterion": "loss_fn",
    "lr_scheduler": "scheduler",
    "train_dataloader": "train_loader",
    "val_dataloaders": "val_loader",
    "eval_dataset": "val_loader",
}

_GONE = {"copy": "Leave it out: each copy is of one moment now, whatever your code does behind it."}


class Run(session.Run):
    """A training that survives the machine, around a loop of your own.

    ::

        with colabkeep.Run("resnet-cifar", model=model, optimizer=optimizer, scheduler=scheduler) as run:
            run.state.best = 0.0                                    # variables of the loop, saved with it
            for epoch in run.epochs(30):
                for i, (x, y) in run.enumerate(train_loader):       # or: for x, y in run.batches(train_loader)
                    loss = loss_fn(model(x), y)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    run.average(loss=loss)
                    run.step(loss=loss)
                scheduler.step()
                run.log(train_loss=run.average.loss, val_loss=validate(model))

    A loop without epochs: ``for step in run.steps(60_000)``, with ``run.next(train_loader)`` for its batches.

    Run the same cell again after a disconnect, and it resumes at the step that was saved last.

    Args:
        run_name: names the run in the storage; the same name resumes the same run. In any script: "训练一".
        model: the model (a torch module, a Paddle layer, or any object with state_dict and load_state_dict).
        optimizer, scheduler, scaler, ema: as far as there are any.
        state: more objects with state_dict and load_state_dict, by name.
        storage: a folder, a store, a pair (fast local folder, slower storage behind it), or "auto".
        resume: "auto" (resume if there is a checkpoint), "must", "never", "best", or a checkpoint's id.
        save_every: epochs (an int), "500 steps", "10 min", a list of these, None (when asked, and at the end), or
            "auto": as often as loses the least, from what saves cost here, what the storage takes and how long sessions
            live; the first after 20 steps or two minutes, then 15 seconds to half an hour apart, and the best epochs.
        overhead: the share of training time that "auto" may spend on saves: 0.01 is 1 %.
        keep_last: how many of the newest checkpoints to keep; None keeps all.
        keep_best: how many of the best by `monitor` to keep besides, of the epochs that are saved. "auto" saves the
            best ones; with a `save_every` of your own let it name epochs too: [1, "500 steps"].
        monitor: the metric, as given to `run.log`, that says what is best; `mode` "min" or "max".
        max_time: stop cleanly after this time of the session: "11 h", seconds, or a timedelta.
        session_limit: how long this machine lives at most, from its start, where you know better than colabkeep (a paid
            plan, a limit of your own). The last save comes before that; so does, in a Kaggle batch run, the end.
        flush_timeout: how long the end of the session waits, at most, until the storage that lasts has everything:
            "30 min", seconds, or a timedelta; 0 does not wait. What is left is told meanwhile.
        on_change: what to do where settings are not as written when the run began (an option of the optimizer,
            the scheduler, a dropout rate, …): "error" lists them and touches nothing, "keep" trains on with the run's
            own, "apply" with the new ones from here on, where a schedule keeps its count. Other data than that of the
            run is an error, too, unless it is applied.
        on_nan: what happens when a loss given to `run.step` is NaN or infinite. "warn" tells it once, with the newest
            checkpoint from before, which is kept; "stop" ends the training with `TrainingDiverged` too, and does not
            save those weights.
        seed: of the order of the data and the randomness in data sets.
        callbacks: functions called with each event (`colabkeep.core.events`). Of several processes they are called in
            rank 0 only, so there they must not change the training.
        loggers: who else writes down what is given to `run.log`, as one curve over all sessions: "csv" (metrics.csv),
            "tensorboard", "wandb" (offline, for `wandb sync`), "mlflow" (a database). Into the folder logs/<run>, or
            where you say: {"tensorboard": "my-folder"}.
        progress: True shows what this front end can: a panel in a notebook, lines of text elsewhere, both in a Kaggle
            batch run. "html", "widgets" (ipywidgets, with the same panel below it for when they are dead) or "text"
            choose one; False shows nothing. Where checkpoints lie on this machine's disk, a page and a record for
            programs are kept beside them, `….status.html` and `….status.json`, called as the run's folder is.

    Raises:
        UsageError: an argument is invalid.
        UnknownArgument: a word of another trainer; the message names ours.
        Incompatible: from `with`: the objects or their settings are not those of the run; nothing was touched.
    """

    @public(_FOREIGN | _GONE)
    def __init__(  # noqa: PLR0913  # each word is one the user writes, and they meet in one record
        self,
        run_name: str,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        ema: Any = None,
        state: Mapping[str, Any] | None = None,
        storage: Storage = "auto",
        resume: Resume = "auto",
        save_every: SaveEvery = "auto",
        overhead: float = OVERHEAD,
        keep_last: int | None = 2,
        keep_best: int = 1,
        monitor: str | None = None,
        mode: Mode = "min",
        max_time: Duration | None = None,
        session_limit: Duration | None = None,
        flush_timeout: Duration = 60.0,
        on_nan: Literal["warn", "stop"] = "warn",
        on_change: OnChange = "error",
        seed: int = 0,
        callbacks: Iterable[Callable[[Event], object]] = (),
        loggers: Loggers = (),
        progress: Progress = True,
    ) -> None:
        words = {**locals()}
        observers = (*_displays(progress), *_loggers(loggers), *check_callbacks(callbacks))
        objects = {name: words[name] for name in ("model", "optimizer", "scheduler", "scaler", "ema")}
        super().__init__(wire_run(_record(RunArguments, words, objects=objects, observers=observers)))

    def __enter__(self) -> Run:
        """As its base; it is this kind of run that comes out."""
        super().__enter__()
        return self

    def close(self) -> None:
        """End a run that was entered by hand, as its `with` block would: save what is not saved yet, wait until that is
        safe, let go. Twice is harmless.

        Raises:
            SaveFailed: nothing durable exists.
        """
        if self._is_open:
            self.__exit__(None, None, None)

    def __repr__(self) -> str:
        return run_text(self)

    def _repr_html_(self) -> str:
        return run_html(self)

    if not TYPE_CHECKING:  # else each misspelt name would be known to a type checker

        def __getattr__(self, name: str) -> Any:
            """Reached for what is made when the `with` block is entered."""
            if name.startswith("_") and not name.endswith("_") and self.__dict__.get("began") is False:
                raise UsageError(
                    problem=f"The run {self.name!r} has not begun: its `with` block is missing.",
                    remedy="Write  with colabkeep.Run(…) as run:  and put the loop inside it, indented.",
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)


@public(_FOREIGN | _GONE)
def resumable_fit(  # noqa: PLR0913  # as above
    model: Any,
    train_loader: Any,
    *,
    optimizer: Any,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    step_fn: Callable[[Any, Any], Any] | None = None,
    batch_size: int | None = None,
    val_loader: Any = None,
    metrics: Mapping[str, Any] | None = None,
    scheduler: Any = None,
    scheduler_interval: Literal["auto", "epoch", "step"] = "auto",
    ema: Any = None,
    state: Mapping[str, Any] | None = None,
    max_epochs: int | None = None,
    max_steps: int | None = None,
    max_time: Duration | None = None,
    session_limit: Duration | None = None,
    flush_timeout: Duration = 60.0,
    run_name: str | None = None,
    storage: Storage = "auto",
    resume: Resume = "auto",
    save_every: SaveEvery = "auto",
    overhead: float = OVERHEAD,
    on_nan: Literal["warn", "stop"] = "warn",
    on_change: OnChange = "error",
    keep_last: int | None = 2,
    keep_best: int = 1,
    monitor: str | None = None,
    mode: Mode = "min",
    precision: Precision = "auto",
    accumulate_grad_batches: int = 1,
    micro_batch: int | Literal["auto"] | None = None,
    gradient_clip_val: float | None = None,
    count_tokens: Callable[[Any], Any] | None = None,
    seed: int = 0,
    callbacks: Iterable[Callable[[Event], object]] = (),
    loggers: Loggers = (),
    progress: Progress = True,
    on_bad_gpu: Literal["advise", "stop", "ignore"] = "advise",
    devices: int | Literal["auto"] = 1,
    sync_batchnorm: bool = False,
) -> FitResult:
    """Train, and resume after any disconnect when the same cell is run again.

    The weights at the end are those of an uninterrupted run, bit for bit, on the same kind of machine (one
    line at the start says what is promised on this one).

    Args:
        model: a torch module or a Paddle layer, on its device already.
        train_loader: a DataLoader, which is not changed; or a Dataset, then `batch_size` (32) samples are batched in
            a new random order each epoch.
        optimizer: over the model's parameters.
        loss_fn: ``loss_fn(output, target)`` for batches ``(input, target)``; or
        step_fn: ``step_fn(model, batch) -> loss`` for everything else. One of the two.
        val_loader: measured at the end of each epoch as "val_loss" and "val_" + each of `metrics`.
        metrics: ``{"accuracy": fn(output, target) -> number}``, averaged over the samples. In Paddle an object of
            `paddle.metric` may stand for a function: it counts anew in each validation, and one of several numbers
            (``Accuracy(topk=(1, 5))``) has them named as it names them itself.
        scheduler: stepped once per `scheduler_interval`: "epoch", or "step" of the optimizer. "auto" (default) reads it
            from the scheduler: "step" where that counts to the run's optimizer steps (`max_epochs` times the steps of
            an epoch, or `max_steps`), and for CyclicLR; else "epoch". OneCycleLR over another number is refused. What
            was decided is said at the start, and a run keeps what it began with. In Paddle the scheduler is the object
            that the optimizer has as its learning rate.
        ema: an object with ``update_parameters(model)`` (`torch.optim.swa_utils.AveragedModel`), updated each step.
        state: more objects with state_dict and load_state_dict, by name.
        max_epochs, max_steps: the length of the whole run; one of the two at least.
        max_time: stop cleanly after this time of the session: "11 h", seconds, or a timedelta.
        session_limit, flush_timeout: as for `Run`.
        precision: "32-true", "16-mixed", "bf16-mixed", or "auto" (what the device does best). In Paddle mixed
            means level O1 of its AMP, or O2 for a model and optimizer that `paddle.amp.decorate` made so.
        accumulate_grad_batches: batches per optimizer step; a shorter rest at the end of an epoch steps too.
        micro_batch: how many samples of a batch are computed at a time, so that memory has to hold no more of them.
            Gradients are averaged by samples: a step is that of the whole batch up to rounding, but for BatchNorm,
            which takes its statistics of the samples that it sees, and for dropout, which draws other numbers. The loss
            must be the mean over samples; what is not, such as a contrastive loss, is refused. "auto" finds out on a
            GPU whether a batch fits: where memory runs out, the step is begun again with half as many samples at a
            time, and the run remembers that for this kind of card. On the CPU it is the whole batch, as is None
            (default). `step_fn` works with batches of tensors whose first dimension is the samples. With torch only.
        gradient_clip_val: the largest norm of all gradients together. A Paddle optimizer that has a grad_clip of its
            own clips by that instead: one of the two, not both.
        count_tokens: how many tokens a batch of `train_loader` has, as in ``lambda batch: batch["input_ids"].numel()``;
            the panel then tells tokens per second. It changes nothing in the training.
        on_change: as for `Run`; also for loss_fn or step_fn, batch size, accumulation, clipping, precision and
            scheduler_interval, which "keep" cannot bring back.
        run_name: as for `Run`. Without one the run is called after the notebook or program, where that is known
            (Jupyter, VS Code, a script); Colab and Kaggle tell nobody, so there it has to be written.
        storage, resume, save_every, overhead, on_nan, keep_last, keep_best, mode, seed: as for `Run`.
        callbacks, loggers, progress: as for `Run`.
        monitor: the metric that says what is best; "val_loss" if there is a `val_loader`.
        on_bad_gpu: what the check at the start may do: "advise" says what is wrong and how to get better, "stop"
            raises where the accelerator is not worth starting on, "ignore" does not look.
        devices: train on so many GPUs of this machine, in a process each, begun from this cell; "auto": on all of them.
            `batch_size` stays that of all together: each computes its part of each batch. With torch only. Without a
            GPU: so many processes on the CPU. What the processes need (model, loader, functions) is sent to them;
            `run_name` has to be written. See docs/several-gpus.md for what is the same, and what is not.
        sync_batchnorm: BatchNorm takes mean and variance of the whole batch, over all GPUs of `devices`, and not of the
            part that each computes. torch's SyncBatchNorm does that; the model has its own layers back at the end. Not
            on the CPU, nor with `micro_batch`. In one process it changes nothing. A run keeps to what it began with, as
            `on_change` says.

    Returns:
        FitResult: over all sessions of the run.

    Raises:
        UsageError, UnknownArgument: an argument is invalid.
        BadAccelerator: ``on_bad_gpu="stop"``, and another accelerator should be had first; nothing was touched.
        Incompatible: model, optimizer, data or settings are not those of the run; nothing was touched.
        NoUsableCheckpoint: there are checkpoints, and none can be used; nothing was trained.
        RunBusy: another live process trains this run.
        SaveFailed: nothing of the training could be saved.
        TrainingDiverged: ``on_nan="stop"``, and the loss is NaN or infinite.
        ProcessFailed: one of the processes of `devices` ended and could not say why, or let the others wait for ever;
            or they could not meet, and nothing was trained. With "auto" one GPU trains then.
    """
    words = {**locals()}
    check_word("on_bad_gpu", on_bad_gpu, "advise", "stop", "ignore")
    shown = _displays(progress)
    if (count := _processes(devices)) > 1:
        _check_first(on_bad_gpu, storage, run_name, shown)
        try:
            return _fit_on_several(words, count, shown)
        except NotTogether as failed:
            if devices != "auto":
                raise
            _line(_on_one(count, failed))
        on_bad_gpu = "ignore"  # it was looked at
    run = _record(RunArguments, words, observers=(*shown, *_loggers(loggers), *check_callbacks(callbacks)))
    # An invalid argument is refused before the GPU is tried.
    plan = plan_fit(_record(FitArguments, words, run=run))
    if plan.leads:
        _check_first(on_bad_gpu, storage, run_name, shown)
    return FitResult.of(fit(plan))


@public()
def keep_folder(  # noqa: PLR0913  # as above
    folder: str | os.PathLike[str],
    run_name: str | None = None,
    *,
    storage: Storage = "auto",
    restore: Literal["auto", "never", "overwrite"] = "auto",
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    keep_last: int | None = 2,
    every: Duration = "1 min",
    settle: Duration = "3 s",
    max_time: Duration | None = None,
    session_limit: Duration | None = None,
    flush_timeout: Duration | Literal[0] = 60.0,
    progress: Progress = True,
    callbacks: Iterable[Callable[[Event], object]] = (),
) -> KeptFolder:
    """Keep the folder that somebody else's program writes: on a fresh machine it is restored first, then whole versions
    of it are kept while the program works.

    ::

        with colabkeep.keep_folder("runs/train", "yolo-fruit") as kept:
            YOLO("yolo11n.yaml").train(data="fruit.yaml", project="runs/train", resume=kept.restored is not None)

    A version is made when the files that changed are at rest: nothing has changed for `settle`, no process of this
    machine has them open for writing, and those whose format tells are complete (archives of torch and NumPy, Keras,
    safetensors, HDF5, JSON, SQLite). Logs, to which programs append, are kept as far as they are written. Files that
    did not change are not stored again.

    Args:
        folder: what the program writes. It is made if it is not there.
        run_name: the name of the run in the storage; by default that of the notebook or program.
        storage: where versions are kept, as in `Run`.
        restore: "auto" puts the newest version into the folder if that is empty, continues with what is in it if those
            are this run's own files (after a restarted kernel), and raises for other files. "never" begins with what is
            there. "overwrite" puts the newest version there, and moves what is there beside the folder.
        include, exclude: patterns as in a shell, of paths in the folder or of names; all files by default.
        keep_last: versions that are kept; None keeps all.
        every: at least so long, in seconds or as "10 min", is between the beginnings of two versions; five times that
            if only logs have grown.
        settle: how long nothing must have changed before a version is made. Programs that write several files that
            belong together over a longer time need more.
        max_time: after so long the program is interrupted, as Ctrl-C and the notebook's stop button do; its last
            version is made, and what stands behind the `with` block runs. Without it that happens where a session
            must end by itself to keep what it made (a Kaggle batch run), in time before its limit.
        session_limit: how long a session lasts here, if you know better.
        flush_timeout: how long the end waits for uploads.
        progress: what to show, as in `Run`.
        callbacks: functions that are called with each event, most of them on a thread of colabkeep's.

    Returns:
        A context manager. `kept.restored` says what the folder began with (version, when it was made, files, bytes), or
        is None; `kept.save()` makes a version now; `kept.every("10 min")` sets another pace;
        `kept.durability.sentence` says what would be lost if the machine vanished now.

    Raises:
        UsageError: an argument is invalid; or, when entered, the folder has files of others.
        RunBusy: when entered: another process keeps this run or this folder.
    """
    words = dict(locals())
    shown = displays(progress, SystemClock(), Environment.here())
    run = _record(RunArguments, words, observers=(*shown, *check_callbacks(callbacks)))
    return wire_folder(_record(FolderArguments, words, run=run))


@public()
def mount(*, timeout: Duration = 180.0) -> Store:
    """Make this platform's persistent storage ready, and give it as a store that `storage=` takes.

    On Colab this is Google Drive, mounted if it is not yet: call it in a cell of the notebook, once. Elsewhere nothing
    needs to be mounted. `storage="auto"` finds the same place afterwards.

    Args:
        timeout: seconds, or "2 min": how long the user may take to agree. Drive's own start is not counted.

    Raises:
        MountError: it could not be reached; the remedy is the next click.
        NotPersistent: this platform has no such storage, and says what to do instead.
        UsageError: `timeout` is not a duration.
    """
    here = Environment.here()
    return open_home(find_platform(here).mount(here, timeout=read_duration("timeout", timeout)))


@public()
def secret(name: str, *, timeout: Duration = 20.0) -> str:
    """The value of the secret `name`: of the variable of that name, else as the platform keeps it (Colab's key icon,
    Kaggle's Add-ons). May be called on any thread.

    Args:
        name: what it is called there.
        timeout: seconds, or "1 min": how long the platform may take to answer.

    Raises:
        SecretError: there is none, this notebook may not read it, or the platform does not answer.
        UsageError: `name` is no text or empty, or `timeout` is not a duration.
    """
    given: object = name
    if not isinstance(given, str) or not given.strip():
        kind = "is empty" if isinstance(given, str) else f"is a {type(given).__name__}"
        raise UsageError(
            problem=f"The name of a secret is a text, and this one {kind}.",
            remedy='Pass what it is called on this platform: secret("HF_TOKEN").',
        )
    here = Environment.here()
    return find_platform(here).secret(here, name, timeout=read_duration("timeout", timeout))


@public()
def launch(
    train: Callable[..., _T],
    args: Sequence[Any] = (),
    *,
    devices: int | Literal["auto"] = "auto",
    progress: Progress = True,
) -> _T:
    """Call `train(*args)` in several processes of this machine, one for each GPU: for loops of your own.

    ::

        def train(epochs):
            model = torch.nn.parallel.DistributedDataParallel(make_model().to("cuda"))   # each process sees one card
            optimizer = torch.optim.AdamW(model.parameters())
            with colabkeep.Run("own-loop", model=model, optimizer=optimizer) as run:
                for epoch in run.epochs(epochs):
                    for x, y in run.batches(train_loader):                               # its part of each batch
                        loss = loss_fn(model(x.to("cuda")), y.to("cuda"))
                        (loss * run.batch_weight).backward()
                        ...

        colabkeep.launch(train, [30], devices=2)

    The processes are new ones, and are in the group of torch.distributed already; CUDA may have been used here before.
    What they print and show comes out in this cell. Ctrl-C and the stop button save the last step of all of them.

    Args:
        train: a function, of a notebook cell too. What it uses of the notebook is sent along with it.
        args: what it is called with.
        devices: how many processes; "auto": one for each GPU of this machine.
        progress: what to show of the runs in it, as in `Run`.

    Returns:
        What `train` returned in rank 0.

    Raises:
        UsageError: the machine has fewer GPUs, or something cannot be sent to another process.
        ProcessFailed: a process ended and could not say why, or let the others wait for ever; or so many as `devices`
            says could not meet, and `train` was not called. With "auto" one process is begun then.
        Exception: as the first of them raised it.
    """
    count = _processes(devices)
    if FORWARD.get() is not None:
        raise UsageError(
            problem="colabkeep.launch was called in a process that colabkeep.launch began.",
            remedy="Call it once, outside of the function that it runs.",
        )
    begin = partial(begin_processes, train, args, say=_line, observers=_displays(progress))
    try:
        result: _T = begin(devices=count)
    except NotTogether as failed:
        if devices != "auto":
            raise
        _line(_on_one(count, failed))
        result = begin(devices=1)
    return result


_line = partial(print, flush=True)


def _on_one(count: int, failed: NotTogether) -> str:
    return said(
        f"{count} GPUs were tried together before the training, and that failed: {failed.why}. Nothing was lost: the "
        "training runs on one GPU now, as with devices=1."
    )


def _processes(devices: object) -> int:
    """How many processes are to train; 1 in one of them."""
    if devices != "auto" and (isinstance(devices, bool) or not isinstance(devices, int) or devices < 1):
        raise UsageError(
            problem=f"devices={devices!r:.100} is not known.",
            remedy='Pass a number of GPUs (devices=2), or "auto" for all of this machine.',
        )
    if devices == 1 or FORWARD.get() is not None:
        return 1
    from colabkeep.frameworks.torch.facts import place
    from colabkeep.frameworks.torch.ranks import device_count

    if (together := max(place()[1], begun_together(Environment.here().environ))) > 1:
        raise UsageError(
            problem=f"devices={devices!r} begins a process for each GPU, and this program is one of {together} "
            "processes already (torchrun and accelerate launch begin them). Nothing was touched.",
            remedy="Start it with python. Or keep the launcher and leave devices= out: resumable_fit and Run train in "
            "all of its processes, once torch.distributed.init_process_group() was called.",
        )
    here = device_count()
    if isinstance(devices, str):
        return max(1, here)
    if 0 < here < devices:
        raise UsageError(
            problem=f"devices={devices}, and this machine has {here} GPU(s).",
            remedy=f'Pass devices={here}, or devices="auto" for all there are.',
        )
    return devices


def _fit_on_several(words: Mapping[str, Any], devices: int, shown: Sequence[Display]) -> FitResult:
    """Train in processes; at the end the caller's own objects are as theirs."""
    if words["run_name"] is None:
        raise UsageError(
            problem="run_name is not given, and the processes that train do not know what this notebook is called.",
            remedy='Write a name of your own: run_name="my-run".',
        )
    if REHEARSAL.get() is not None:
        raise UsageError(
            problem="verify_resume tries a training out in one process, and devices= asks for several.",
            remedy="Try it with devices=1.",
        )
    told = {**words, "progress": bool(shown), "devices": 1, "on_bad_gpu": "ignore"}  # it was looked at here
    from colabkeep.frameworks.torch.ranks import gradient_bytes
    from colabkeep.frameworks.torch.training import refuse_sync

    refuse_sync(_record(TrainingOptions, words))
    summed = gradient_bytes(words["model"])
    begin = partial(begin_processes, say=_line, observers=shown, summed=summed, left=partial(_take_over, words))
    result: FitResult = begin(_fit_here, [told], devices=devices)
    return result


def _take_over(words: Mapping[str, Any], left: tuple[Any, ...]) -> None:
    """The caller's own objects become as those of rank 0, which told it so."""
    state, moved, records = left
    parts = _parts(words)
    framework = find_framework(parts.values())
    setup = framework.settings(parts)
    written = setup.written()
    framework.restore(parts, from_bytes(state))
    setup.settle(written, moved, new=(), kept=())
    for name, record in records.items():
        mark(parts[name], record)


def _fit_here(words: Mapping[str, Any]) -> FitResult:
    """In one of the processes: train. Rank 0 leaves what its objects came to, also when it is stopped or fails."""
    parts = _parts(words)
    written = find_framework(parts.values()).settings(parts).written()
    try:
        result = resumable_fit(**words)
    except BaseException:
        try:
            _leave(parts, written)
        except Exception as failure:  # noqa: BLE001  # a GPU that answers no more; what is raised ended the training
            _line(
                said(
                    "The model and the other objects of the notebook are as they were before this call "
                    f"({type(failure).__name__}: {failure}). Their newer state is in the last checkpoint, if one was "
                    "saved."
                )
            )
        raise
    _leave(parts, written)
    return result


def _leave(parts: Mapping[str, Any], written: Settings) -> None:
    """Of the objects that were passed: the state, what training moved beside it, and the marks by which the next
    session in one process knows that."""
    framework, forward = find_framework(parts.values()), FORWARD.get()
    if forward is None or framework.place()[0]:  # rank 0 is heard
        return
    setup = framework.settings(parts)
    setup.begin(written)
    records = {name: marked(part) for name, part in parts.items()}
    forward.leave((to_bytes(framework, parts), setup.moved(), {name: each for name, each in records.items() if each}))


def _parts(words: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: words[name] for name in ("model", "optimizer", "scheduler", "ema")}
    return {name: stateful(part) for name, part in {**named, **(words["state"] or {})}.items() if part is not None}


def _record(kind: Callable[..., _T], words: Mapping[str, Any], **more: Any) -> _T:
    """A record of the words that it has members for: each is written in the signature above, and there."""
    known = signature(kind).parameters
    return kind(**{name: value for name, value in words.items() if name in known}, **more)


def _check_first(on_bad_gpu: str, storage: Storage, run_name: str | None, shown: Sequence[Display]) -> None:
    if on_bad_gpu == "ignore" or (on_bad_gpu == "advise" and not shown):
        return  # nobody would hear it
    from colabkeep.ui.check.advice import cards_before, judge_again, refuse_bad
    from colabkeep.ui.check.report import CheckReport, examine

    report = examine(probe=True)
    if report.checkup.verdict.word == "reconnect":  # unless it was tried before, to no avail
        report = CheckReport(judge_again(report.checkup, cards_before(storage, run_name)))
    lines = report.opening_lines(storage_was_named=not isinstance(storage, str) or storage != "auto")
    found = MachineChecked(verdict=report.checkup.verdict.word, lines=tuple(lines))
    EventBus(tuple(shown), SystemClock()).tell(found)  # as in a run: a display that fails ends nothing
    if on_bad_gpu == "stop":
        refuse_bad(report.checkup.verdict)


def _loggers(loggers: Loggers) -> Sequence[Callable[[Event], object]]:
    """None for a training that is only tried out; what it asks for is checked."""
    if isinstance(loggers, tuple) and not loggers:  # as nearly always
        return ()
    from colabkeep.ui.loggers import make_loggers

    made = make_loggers(loggers)
    return made if REHEARSAL.get() is None else ()


def _displays(progress: Progress) -> tuple[Display, ...]:
    """None where they are off, and for a training that is only tried out."""
    if progress is False or REHEARSAL.get() is not None:
        return ()
    if (forward := FORWARD.get()) is not None:  # the process that began this one shows it
        return () if progress == "off" else (forward,)
    return displays(progress, SystemClock(), Environment.here())

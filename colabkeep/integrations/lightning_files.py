"""Files of Lightning's: a run begins from a `.ckpt` that `ModelCheckpoint` or `Trainer.save_checkpoint` wrote."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from colabkeep.core.errors import UsageError
from colabkeep.integrations.lightning_insides import RESTORES
from colabkeep.integrations.shared import refuse_old_torch, refuse_others

__all__ = ["load_file"]


def load_file(trainer: Any, file: str | os.PathLike[str], counters: Iterable[tuple[str, Any]]) -> list[str]:
    """Go on from a checkpoint of Lightning's own: weights, optimizers, schedules, scaler, `counters` of the loops by
    their places, and what callbacks, module and data module told it. Returns what the user should know, in sentences.
    The file is a pickle, read with `torch.load(weights_only=True)`, and only by a torch in which that executes nothing.

    Raises:
        UsageError: there is no such checkpoint, or it cannot be read safely.
        Incompatible: its weights are those of another model; nothing was touched.
    """
    path = Path(file)
    checkpoint = _read(path)
    refuse_others(path, trainer.lightning_module.state_dict(), checkpoint["state_dict"])
    connector = trainer._checkpoint_connector
    connector._loaded_checkpoint = checkpoint
    try:
        for name in RESTORES:
            getattr(connector, name)()
        whole = "optimizer_states" in checkpoint and "lr_schedulers" in checkpoint
        if whole:
            connector.restore_optimizers()
            connector.restore_lr_schedulers()
    finally:
        connector._loaded_checkpoint = {}
    again = _count(trainer, checkpoint["loops"]["fit_loop"], dict(counters))
    rest = ", from its first batch on, because it is not known which were trained" if again else ""
    told = [f"Goes on from {path.name}, step {trainer.global_step}, with epoch {trainer.current_epoch + 1}{rest}."]
    told.append(f"{path.name} has no random streams: those of this session continue")
    if not whole:
        told.append(f"{path.name} was saved without its optimizers: they and the schedules start again")
    return told


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(
            problem=f"resume_from={str(path)!r} is not a file.",
            remedy='Name one that ModelCheckpoint wrote: resume_from="lightning_logs/version_0/checkpoints/last.ckpt".',
        )
    refuse_old_torch(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise UsageError(
            problem=f"{path} holds more than numbers, so it is not opened: opening it could run any program. "
            f"({str(error).splitlines()[0]:.200})",
            remedy="If you trust it: load its weights into the module yourself, and begin the run without resume_from. "
            "Often it is an object in save_hyperparameters(), which ignore=[…] leaves out of the next file.",
        ) from error
    except (RuntimeError, EOFError) as error:  # no archive
        raise UsageError(
            problem=f"{path} is damaged: it cannot be read ({str(error).splitlines()[0]:.200}).",
            remedy="Begin from an older checkpoint.",
        ) from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("loops"), dict):
        raise UsageError(
            problem=f"{path} is not a checkpoint of Lightning's Trainer: it has no state of its loops.",
            remedy="Weights alone you load into the module yourself, and begin the run without resume_from.",
        )
    return checkpoint


def _count(trainer: Any, stored: Mapping[str, Any], counters: Mapping[str, Any]) -> bool:
    """Set the counters to the end of the last whole epoch, with all steps that were taken. Is an epoch begun again?"""
    for place, each in counters.items():
        if place in stored:
            each.load_state_dict(stored[place])
    loop = trainer.fit_loop.epoch_loop
    loop._batches_that_stepped = stored["epoch_loop.state_dict"]["_batches_that_stepped"]
    batches, epochs = loop.batch_progress, trainer.fit_loop.epoch_progress
    trained = batches.current.processed
    whole = batches.is_last_batch and trained == batches.current.ready
    for progress, done in ((epochs, epochs.current.ready - (not whole)), (batches, batches.total.processed)):
        progress.reset()
        progress.increment_by(done)
    batches.reset_on_run()
    return bool(trained and not whole)

"""Folders of Hugging Face's: a run begins from a `checkpoint-500` of the Trainer's own, and keeps what the files beside
the weights need, so that `colabkeep export --format transformers` can write one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel, TrainerState
from transformers.trainer_callback import ExportableState

from colabkeep.core.errors import UsageError
from colabkeep.integrations.shared import refuse_old_torch, refuse_others
from colabkeep.integrations.transformers_insides import COMMIT, NAME, READ
from colabkeep.session.frozen_base import Base

__all__ = ["find_base", "load_folder", "told_files"]

_WHOLE, _INDEX, _ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin")
_BY_TORCH = ("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth")  # what the trainer reads by `torch.load`
_STATE = "trainer_state.json"


def told_files(model: Any) -> dict[str, Any]:
    """What an export needs beside the weights: texts by file name, and under which names in which file the weights lie
    (a name there → its name in the run; None: all, as they are called)."""
    if _adapted(model):
        import peft

        found = {**model.active_peft_config.to_dict(), "inference_mode": True}
        own = {each.data_ptr(): name for name, each in model.state_dict().items() if each.numel()}
        names = {name: own.get(each.data_ptr()) for name, each in peft.get_peft_model_state_dict(model).items()}
        if None in names.values():  # a weight that is made when it is asked for
            return {}
        text = json.dumps(found, indent=2, sort_keys=True, default=_plain)
        return {"texts": {"adapter_config.json": text}, "weights": _ADAPTER, "names": names}
    if not isinstance(model, PreTrainedModel):  # others (SentenceTransformer, GLiNER) have folders of their own kind
        return {}
    config = {**json.loads(model.config.to_json_string()), "architectures": [type(model).__name__]}
    texts = {"config.json": json.dumps(config, indent=2, sort_keys=True)}
    if model.can_generate():
        texts["generation_config.json"] = model.generation_config.to_json_string()
    return {"texts": texts, "weights": _WHOLE, "names": None}


def find_base(model: Any, frozen: str | None) -> Base | None:
    """What is frozen and was read from a pretrained base that has a name, so that whoever resumes has it again; None
    where there is none. `frozen`: as `Resumable` has it.

    That a weight was read is what `from_pretrained` marks it with. A head that was made anew has no mark, and an
    embedding that was resized has new rows: both are stored.
    """
    adapted = _adapted(model)
    inner = model.get_base_model() if adapted else model
    config = getattr(inner, "config", None)
    name = getattr(config, NAME, "") or (adapted and model.active_peft_config.base_model_name_or_path)
    if config is None or not name or not hasattr(inner, "get_input_embeddings"):
        return None
    words = getattr(config.get_text_config(), "vocab_size", None)
    resized = set() if words == _vocabulary(config, name) else _embeddings(inner)
    local = Path(name).exists()  # it may vanish with the machine
    return Base(
        names=[
            key
            for key, each in model.named_parameters(remove_duplicate=False)
            if not each.requires_grad and getattr(each, READ, False) and id(each) not in resized
        ],
        name=str(name),
        revision=getattr(config, COMMIT, None) or "",
        refer=frozen == "refer" or (frozen is None and adapted and not local),
        local=local and adapted and frozen is None,
    )


def _vocabulary(config: Any, name: str) -> int | None:
    """How many words the base has, as its files on this machine say; None where they do not."""
    try:
        there = type(config).from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        return None
    words: int | None = getattr(there.get_text_config(), "vocab_size", None)
    return words


def _embeddings(model: Any) -> set[int]:
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    return {id(each) for module in modules if module is not None for each in module.parameters()}


def load_folder(trainer: Any, folder: str | os.PathLike[str], callbacks: Iterable[Any]) -> list[str]:
    """Go on from a checkpoint of the Trainer's own: weights, optimizer, schedule, scaler, random streams, what the
    trainer's state came to and what its `callbacks` told it. Returns what was not there, in sentences. Weights are
    read from safetensors, the rest with `torch.load(weights_only=True)`, and only by a torch in which that executes
    nothing.

    Raises:
        UsageError: there is no such checkpoint, or it cannot be read safely.
        Incompatible: its weights are those of another model; nothing was touched.
    """
    path = Path(str(folder))  # True, as train() has it, names none
    if not (path / _STATE).is_file():
        raise UsageError(
            problem=f"resume_from={str(folder)!r} is not a checkpoint of the Trainer: it has no {_STATE}.",
            remedy='Name the folder of one step: resume_from="out/checkpoint-500". It lies in the output_dir.',
        )
    for name in _BY_TORCH:
        if (path / name).is_file():
            refuse_old_torch(path / name)
    _load_weights(trainer.model, path)
    told = []
    try:
        with_optimizer = (path / "optimizer.pt").is_file() and (path / "scheduler.pt").is_file()
        trainer._load_optimizer_and_scheduler(str(path))
        trainer._load_scaler(str(path))
        if (path / "rng_state.pth").is_file():
            trainer._load_rng_state(str(path))
        else:
            told.append(f"{path.name} has no random streams: those of this session continue")
    except Exception as error:
        if type(error).__name__ != "UnpicklingError":
            raise
        raise UsageError(
            problem=f"A file in {path} holds more than numbers, so it is not opened: opening it could run any program. "
            f"({str(error).splitlines()[0]:.200})",
            remedy="Begin from its weights alone: Model.from_pretrained(folder), without resume_from.",
        ) from error
    if not with_optimizer:
        told.append(f"{path.name} was saved without its optimizer or its schedule: both start again")
    state = TrainerState.load_from_json(str(path / _STATE))
    for name in ("epoch", "global_step", "num_input_tokens_seen", "total_flos", "log_history", "best_metric"):
        setattr(trainer.state, name, getattr(state, name))
    trainer.state.best_global_step = getattr(state, "best_global_step", None)
    told += _find_best(trainer, state.best_model_checkpoint, path.parent)
    trainer._globalstep_last_logged = state.global_step
    for each in callbacks:
        stored = state.stateful_callbacks.get(type(each).__name__)
        if isinstance(each, ExportableState) and isinstance(stored, dict):
            vars(each).update(stored["attributes"])
    return told


def _find_best(trainer: Any, told: str | None, beside: Path) -> list[str]:
    """The best checkpoint so far, as the trainer told it, is where it was or lies beside the one that is begun from."""
    if told is None:
        return []
    there = next((each for each in (Path(told), beside / Path(told).name) if each.is_dir()), None)
    trainer.state.best_model_checkpoint = None if there is None else str(there)
    return [] if there else [f"The trainer's best checkpoint, {told}, is not on this machine, so it cannot be loaded."]


def _load_weights(model: Any, folder: Path) -> None:
    name = _ADAPTER if _adapted(model) else _WHOLE
    shards = [folder / name]
    if name == _WHOLE and (folder / _INDEX).is_file():
        shards = [
            folder / each for each in sorted(set(json.loads((folder / _INDEX).read_text())["weight_map"].values()))
        ]
    if not all(each.is_file() for each in shards):
        found = [each for each in _PICKLES if (folder / each).is_file()]
        why = (
            f"Its weights are in {found[0]}, a pickle, which is not opened."
            if found
            else f"{shards[0].name} is missing."
        )
        raise UsageError(
            problem=f"The weights of {folder} cannot be read. {why}",
            remedy="Load the model yourself, with from_pretrained(folder), and begin the run without resume_from.",
        )
    try:
        weights = {key: value for each in shards for key, value in load_file(each).items()}
    except SafetensorError as error:
        raise UsageError(
            problem=f"{folder} is damaged: {shards[0].name} cannot be read ({error}).",
            remedy="Begin from an older checkpoint of the trainer.",
        ) from error
    if _adapted(model):
        import peft

        expected = peft.get_peft_model_state_dict(model)
        refuse_others(folder, expected, weights)
        peft.set_peft_model_state_dict(model, weights)
        return
    expected = model.state_dict()
    there = {expected[key].data_ptr() for key in weights.keys() & expected.keys()}
    missing = {key for key in expected.keys() - weights.keys() if expected[key].data_ptr() not in there}  # not tied
    refuse_others(folder, expected, weights, missing)
    model.load_state_dict(weights, strict=False)


def _adapted(model: Any) -> bool:
    module = sys.modules.get("peft")
    return module is not None and isinstance(model, module.PeftModel)


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)

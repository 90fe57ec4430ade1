"""`Trainer.train` with one callback more: it goes on after a disconnect, and nobody can tell."""

from __future__ import annotations

import copy
import hashlib
import os
import random
import signal
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colabkeep.core.errors import Incompatible, UnknownArgument, UsageError
from colabkeep.core.events import AlreadyComplete, Event, Noted

transformers = pytest.importorskip("transformers")

from colabkeep.integrations.transformers import Resumable  # noqa: E402
from colabkeep.integrations.transformers_insides import TABLE  # noqa: E402
from tests.programs import run_module  # noqa: E402
from tests.trainings import final_state  # noqa: E402

Trainer, TrainerCallback = transformers.Trainer, transformers.TrainerCallback
CELL = Path(__file__)
CLOCKS = ("runtime", "per_second")


class Data(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples of two classes, augmented from every source of randomness."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(index))
        ids = torch.where(torch.rand(12) < 0.2, torch.tensor(random.randrange(50)), ids)
        ids = ids.flip(0) if np.random.rand() < 0.5 else ids
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": index % 2}


class Stream(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Those samples without a number; each worker has its own."""

    def __iter__(self) -> Any:
        info, data = torch.utils.data.get_worker_info(), Data(82)
        return (data[i] for i in range(0 if info is None else info.id, 82, 1 if info is None else info.num_workers))


class Less(Stream):
    """Gives less than it says."""

    def __len__(self) -> int:
        return 100


class Breakage(Exception):
    """What goes wrong on purpose."""


class Breaking(TrainerCallback):  # type: ignore[misc]
    """Fails at the end of a step of the training."""

    def __init__(self, step: int = 0) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step:
            raise Breakage


class Late(Breaking):
    """Fails when the step is saved, and the batch behind it is asked for."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step:
            raise Breakage

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        pass


class Witness(TrainerCallback):  # type: ignore[misc]
    """What a callback of the user's own hears, and remembers."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.heard.append(["begin", state.epoch])

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.heard.append(["step", state.global_step, state.epoch])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.heard.append(["end", state.epoch])


class Measuring(Trainer):  # type: ignore[misc]
    """Sums up measures of its own for its log, as TRL's trainers do."""

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self._metrics: dict[str, Any] = {"train": defaultdict(list)}
        self._samples = 0

    def compute_loss(self, model: Any, inputs: Any, *words: Any, **more: Any) -> Any:
        loss = super().compute_loss(model, inputs, *words, **more)
        if model.training:
            self._samples += len(inputs["labels"])
            self._metrics["train"]["loss"].append(float(loss.detach()))
        return loss

    def log(self, logs: dict[str, float], *words: Any) -> None:
        sums = {name: sum(values) for name, values in self._metrics["train"].items()}
        super().log({**logs, **sums, "samples": self._samples}, *words)
        self._metrics["train"].clear()


class Deep(Trainer):  # type: ignore[misc]
    """Its loss is of all layers, as that of a student whose layers follow a teacher's."""

    def compute_loss(self, model: Any, inputs: Any, *words: Any, **more: Any) -> Any:
        found = model(**inputs, output_hidden_states=True)
        return found.loss + sum(each.square().mean() for each in found.hidden_states)


def adapted(model: Any) -> Any:
    """The model with LoRA: adapters and head are trained, the base is frozen."""
    peft = pytest.importorskip("peft")
    model.resize_token_embeddings(80_000)  # a frozen weight of 5 MB: in a file of its own
    return peft.get_peft_model(model, peft.LoraConfig(r=2, lora_dropout=0.1, task_type="SEQ_CLS"))


def train(
    folder: Path,
    *more: Any,
    data: Any = None,
    kind: type[Any] = Trainer,
    arguments: type[Any] = transformers.TrainingArguments,
    adapt: Callable[[Any], Any] = lambda model: model,
    workers: int = 0,
    words: dict[str, Any] | None = None,
    **options: Any,
) -> list[Any]:
    """One session; what it came to: weights, position, log, what a callback heard, the next random numbers."""
    torch.set_num_threads(1)  # the bits of sums depend on it, and another test may have chosen one here
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
    )
    chosen: dict[str, Any] = {
        "num_train_epochs": 3,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 3,
        "lr_scheduler_type": "cosine",
        "logging_steps": 3,
        "eval_strategy": "epoch",
        "save_strategy": "no",
    }
    args = arguments(
        str(folder / "own"),
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        log_level="error",
        dataloader_num_workers=workers,
        **{**chosen, **options},
    )
    witness, events = Witness(), list[Event]()
    told = {"storage": str(folder / "runs"), "progress": False, "save_every": "1 steps", "callbacks": [events.append]}
    keep = Resumable("bert", **{**told, **(words or {})})
    trainer = kind(
        adapt(transformers.BertForSequenceClassification(config)),
        args,
        train_dataset=data or Data(82),
        eval_dataset=Data(12),
        callbacks=[keep, witness, *more],
    )
    out = trainer.train()
    weights = torch.cat([each.detach().flatten() for each in trainer.model.parameters()]).cpu().numpy().tobytes()
    log = [{name: v for name, v in line.items() if not name.endswith(CLOCKS)} for line in trainer.state.log_history]
    found = [hashlib.sha256(weights).hexdigest(), trainer.state.global_step, trainer.state.epoch, log, witness.heard]
    return [*found, out.training_loss, torch.rand(2).tolist(), [e.text for e in events if isinstance(e, Noted)]]


KINDS: dict[str, dict[str, Any]] = {
    "accumulation with a short rest": {},
    "bf16, evaluated between, ended in an epoch": {
        "bf16": True,
        "gradient_accumulation_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "eval_on_start": True,
        "max_steps": 17,
        "lr_scheduler_type": "constant",
    },
    **({"fp16, whose scaler steps down": {"fp16": True, "max_grad_norm": 0.5}} if torch.cuda.is_available() else {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_failed_three_times_comes_to_the_same(tmp_path: Path, kind: str) -> None:
    """Weights, log, callbacks and random streams are those of an uninterrupted training, to the bit."""
    options = KINDS[kind]
    whole = train(tmp_path / "whole", **options)
    for step in (3, 6, 11):
        with pytest.raises(Breakage):
            train(tmp_path / "kept", Breaking(step), **options)
    assert train(tmp_path / "kept", Breaking(), **options)[:-1] == whole[:-1]


def test_the_hidden_states_of_a_model_are_there_after_a_resume(tmp_path: Path) -> None:
    """Transformers collects them by hooks, once they are asked for, and marks the model that has these."""
    whole = train(tmp_path / "whole", kind=Deep, max_steps=6, eval_strategy="no")
    with pytest.raises(Breakage):
        train(tmp_path / "kept", Breaking(3), kind=Deep, max_steps=6, eval_strategy="no")
    assert train(tmp_path / "kept", kind=Deep, max_steps=6, eval_strategy="no")[:-1] == whole[:-1]


def test_behind_the_last_batch_of_a_stream_that_says_it_is_longer_the_training_goes_on(tmp_path: Path) -> None:
    """Nothing is left of that epoch, and the next one begins."""
    words: dict[str, Any] = {"data": Less(), "gradient_accumulation_steps": 1}
    whole = train(tmp_path / "whole", **words)
    for step in (11, 22):
        with pytest.raises(Breakage):
            train(tmp_path / "kept", Late(step), **words)
    assert train(tmp_path / "kept", Late(), **words)[:4] == whole[:4]


@pytest.mark.parametrize(
    ("data", "workers", "dispatches"),
    [(Stream(), 0, None), (Stream(), 2, False), (Data(82), 0, True)],
    ids=["a stream", "a stream by workers", "batches that Accelerate hands on"],
)
def test_data_without_a_length_or_handed_on_goes_on_where_it_was(
    tmp_path: Path, data: Any, workers: int, dispatches: bool | None
) -> None:
    """Over several passes; the end of one interrupts an accumulation. Epochs are counted as the trainer counts them."""
    words = {"data": data, "workers": workers, "accelerator_config": {"dispatch_batches": dispatches}}
    whole = train(tmp_path / "whole", **words, max_steps=13)
    for step in (2, 6, 11):
        with pytest.raises(Breakage):
            train(tmp_path / "kept", Breaking(step), **words, max_steps=13)
    assert train(tmp_path / "kept", Breaking(), **words, max_steps=13)[:-1] == whole[:-1]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT asks for it
def test_adapters_of_a_trainer_of_its_own_kind_come_to_the_same(tmp_path: Path) -> None:
    """LoRA, and measures that only this kind of trainer sums up. The frozen base is written once, whatever is saved."""
    options: dict[str, Any] = {"kind": Measuring, "adapt": adapted, "logging_steps": 4, "words": {"keep_last": None}}
    whole = train(tmp_path / "whole", **options)
    for step in (3, 6):
        with pytest.raises(Breakage):
            train(tmp_path / "kept", Breaking(step), **options)
    assert train(tmp_path / "kept", Breaking(), **options)[:-1] == whole[:-1]
    big = [file for file in (tmp_path / "kept" / "runs").rglob("blobs/*") if file.stat().st_size > 4_000_000]
    assert len(big) == 1


class Failing(TrainerCallback):  # type: ignore[misc]
    """Fails at that step of all trainings together that it is part of."""

    def __init__(self, step: int) -> None:
        self.left = iter(range(step - 1))  # is not kept

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if next(self.left, None) is None:
            raise Breakage


def several(folder: Path, kind: str, breaks: int = 10**6) -> list[Any]:
    """A script that trains one model several times, from the top; what it came to."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
    )
    model, fails, found = transformers.BertForSequenceClassification(config), Failing(breaks), list[Any]()

    def trains(name: str, epochs: int) -> None:
        args = transformers.TrainingArguments(
            str(folder / "own"),
            num_train_epochs=epochs,
            per_device_train_batch_size=8,
            logging_steps=3,
            save_strategy="no",
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
            disable_tqdm=True,
            log_level="error",
        )
        keep = Resumable(name, storage=str(folder / "runs"), progress=False, save_every="1 steps")
        witness = Witness()
        trainer = Trainer(model, args, train_dataset=Data(82), callbacks=[keep, witness, fails])
        loss = trainer.train().training_loss
        log = [{n: v for n, v in line.items() if not n.endswith(CLOCKS)} for line in trainer.state.log_history]
        drawn = [torch.rand(2).tolist(), random.random(), float(np.random.rand())]
        found.append([witness.heard, trainer.state.global_step, log, loss, drawn])

    if kind == "frozen, then all of it":
        for trainable in (False, True):
            model.bert.requires_grad_(trainable)
            trains("tuned" if trainable else "frozen", 2)
    else:
        for epoch in range(4):
            trains(f"bert-{epoch}", 1)
    return [*found, [each.detach().cpu().numpy().tobytes() for each in model.state_dict().values()]]


@pytest.mark.parametrize("kind", ["frozen, then all of it", "an epoch each"])
def test_a_script_that_trains_several_times_comes_to_the_same(tmp_path: Path, kind: str) -> None:
    """With a name for each `train()`, run again from the top: weights, logs, the loss that it returns, and what is
    drawn between them. A `train()` that is complete is passed as if it had just trained."""
    whole = several(tmp_path / "whole", kind)
    for step in (4, 20, 9):  # of what is left to train: in the first one, in the middle, in the last one
        with pytest.raises(Breakage):
            several(tmp_path / "kept", kind, step)
    assert several(tmp_path / "kept", kind) == whole
    assert several(tmp_path / "kept", kind) == whole  # all complete


def test_a_second_training_of_one_name_says_that_it_trained_nothing(tmp_path: Path) -> None:
    """And what to do: a name for each."""
    events = list[Event]()
    words: dict[str, Any] = {"num_train_epochs": 1, "words": {"callbacks": [events.append]}}
    whole = train(tmp_path, **words)
    assert not any(isinstance(each, Noted) and "trained nothing" in each.text for each in events)
    assert train(tmp_path, **words)[:-1] == whole[:-1]
    (line,) = (each.text for each in events if isinstance(each, Noted) and "trained nothing" in each.text)
    assert line.startswith("This train() trained nothing")
    assert 'Resumable(f"bert-{epoch}")' in line
    assert [each.length for each in events if isinstance(each, AlreadyComplete)] == ["num_train_epochs / max_steps"]


def test_early_stopping_keeps_its_patience_and_its_end(tmp_path: Path) -> None:
    """A training that early stopping ended stays ended, and goes on when more is asked for."""
    options = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "metric_for_best_model": "eval_loss",
        "lr_scheduler_type": "constant",
        "num_train_epochs": 2,
    }

    def stopping() -> Any:
        return transformers.EarlyStoppingCallback(early_stopping_patience=3, early_stopping_threshold=1.0)

    whole = train(tmp_path / "whole", stopping(), **options)
    assert 1 < whole[1] < 8  # it ended early
    with pytest.raises(Breakage):
        train(tmp_path / "kept", stopping(), Breaking(3), **options)
    assert train(tmp_path / "kept", stopping(), Breaking(), **options)[:-1] == whole[:-1]
    again = train(tmp_path / "kept", stopping(), Breaking(), **options)
    assert again[:2] == whole[:2]
    assert any("A callback ended this training at step" in line for line in again[-1])
    more = train(tmp_path / "kept", stopping(), Breaking(), **{**options, "num_train_epochs": 4})
    assert more[1] > whole[1]


class Counting(TrainerCallback):  # type: ignore[misc]
    """Counts what happens inside a step; there it fails, or is interrupted behind one."""

    def __init__(self, fails: int = 0, interrupted: int = 0) -> None:
        self.fails, self.interrupted, self.count = fails, interrupted, 0
        self.counts: list[int] = []

    def on_substep_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.count += 1
        if self.count == self.fails:
            raise Breakage

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.counts.append(self.count)
        if state.global_step == self.interrupted:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("save_every", ["1 steps", "100 steps"])
@pytest.mark.parametrize("leaves", [{"fails": 5}, {"fails": 8}, {"interrupted": 5}])
def test_who_leaves_inside_a_step_goes_on_as_if_nothing_had_been(
    tmp_path: Path, leaves: dict[str, int], save_every: str
) -> None:
    """Between the batches of one step, where callbacks may have counted half of it; and by Ctrl-C, where the last step
    is not saved yet. No callback is said to have ended it."""
    whole = train(tmp_path / "whole", counting := Counting())
    words = {"save_every": save_every}
    with pytest.raises(KeyboardInterrupt if "interrupted" in leaves else Breakage):
        train(tmp_path / "kept", Counting(**leaves), words=words)
    again = Counting()
    assert train(tmp_path / "kept", again, words=words)[:-1] == whole[:-1]
    assert again.counts == counting.counts


def test_a_killed_training_with_workers_comes_to_the_same(tmp_path: Path) -> None:
    """SIGKILL in the middle of an epoch, augmenting workers, a fresh process: the same bits."""
    whole = train(tmp_path / "whole", workers=2)
    assert run_module("tests.integrations.test_transformers", tmp_path / "kept", 5).returncode == -signal.SIGKILL
    assert train(tmp_path / "kept", workers=2)[:-1] == whole[:-1]


def test_what_was_measured_is_logged_and_the_run_is_like_any_other(tmp_path: Path) -> None:
    """`monitor` takes the trainer's own names, and the weights come out of the storage."""
    words = {"monitor": "eval_loss", "save_every": 1, "loggers": {"csv": tmp_path / "curves"}}
    train(tmp_path, words=words, num_train_epochs=1)
    names = (tmp_path / "curves" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"loss", "learning_rate", "eval_loss"} <= set(names)
    state = final_state(f"{tmp_path}/runs", "bert")
    assert any("classifier.weight" in name for name in state)


def test_other_settings_are_an_error_and_nothing_is_touched(tmp_path: Path) -> None:
    """As with `Run`: the message names what differs."""
    with pytest.raises(Breakage):
        train(tmp_path, Breaking(3))
    with pytest.raises(Incompatible, match="max_grad_norm"):
        train(tmp_path, Breaking(), max_grad_norm=0.5)


def test_what_cannot_be_kept_is_refused_with_words(tmp_path: Path) -> None:
    """Before anything is trained."""
    with pytest.raises(UsageError, match="auto_find_batch_size"):
        train(tmp_path, auto_find_batch_size=True)
    with pytest.raises(UsageError, match='Write optim="galore_adamw"'):
        train(tmp_path, optim="galore_adamw_layerwise", optim_target_modules=["query"])
    with pytest.raises(UnknownArgument, match="save_total_limit"):
        train(tmp_path, words={"save_total_limit": 2})
    args = transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)
    trainer = Trainer(torch.nn.Linear(2, 2), args, train_dataset=Data(8))
    trainer.add_callback(Resumable("late", storage=str(tmp_path)))
    with pytest.raises(UsageError, match="after the trainer was made"):
        trainer.train()
    trainer = Trainer(
        torch.nn.Linear(2, 2), args, train_dataset=Data(8), callbacks=[Resumable("trial", storage=str(tmp_path))]
    )
    with pytest.raises(UsageError, match="hyperparameter_search"):
        trainer.train(trial={"learning_rate": 0.1})
    assert not (tmp_path / "runs").exists()


def test_a_trainer_of_another_make_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version whose insides differ from those known is not guessed at: no Resumable is made."""

    def other(self: Any, everything: Any) -> None:
        raise AssertionError

    for name in [name for name, known in TABLE["transformers.trainer:Trainer"].items() if known]:
        method = name.rstrip("|")
        with monkeypatch.context() as patched:
            patched.setattr(Trainer, method, other, raising=False)  # some came with 5.4
            with pytest.raises(UsageError, match=rf"Trainer\.{method}"):
                Resumable("bert")


def test_evaluations_with_workers_that_stay_draw_the_same_in_each_session(tmp_path: Path) -> None:
    """What is drawn after the first evaluation of a session is what it is in an uninterrupted one."""
    options: dict[str, Any] = {"workers": 1, "dataloader_persistent_workers": True}
    whole = train(tmp_path / "whole", **options)
    with pytest.raises(Breakage):
        train(tmp_path / "kept", Breaking(6), **options)  # behind the first evaluation
    assert train(tmp_path / "kept", **options)[:-1] == whole[:-1]


class Average(TrainerCallback):  # type: ignore[misc]
    """Holds a module that follows the trained one."""

    def __init__(self) -> None:
        self.average: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        self.average = copy.deepcopy(model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        with torch.no_grad():
            for mine, trained in zip(self.average.parameters(), model.parameters(), strict=True):
                mine.lerp_(trained, 0.1)

    def bits(self) -> list[bytes]:
        return [each.detach().cpu().numpy().tobytes() for each in self.average.parameters()]


class Teaching(Trainer):  # type: ignore[misc]
    """Has a module beside the model that is trained, and lets it follow or not."""

    follows = True

    def __init__(self, model: Any, *given: Any, **words: Any) -> None:
        super().__init__(model, *given, **words)
        self.teacher = copy.deepcopy(self.model)

    def training_step(self, model: Any, *given: Any, **words: Any) -> Any:
        if self.follows:
            self.teacher.load_state_dict(model.state_dict())
        return super().training_step(model, *given, **words)


def test_a_module_that_a_callback_holds_is_kept_and_one_beside_the_trainers_is_named(tmp_path: Path) -> None:
    """An average of the weights, or TRL's reference that follows the model. A teacher that stays as it is costs
    nothing, and nothing is said of it."""
    whole, kept = Average(), Average()
    train(tmp_path / "whole", whole)
    with pytest.raises(Breakage):
        train(tmp_path / "kept", Average(), Breaking(5))
    train(tmp_path / "kept", kept)
    assert kept.bits() == whole.bits()
    for follows, lines in ((True, 1), (False, 0)):
        kind = type("Teaching", (Teaching,), {"follows": follows})
        told = train(tmp_path / str(follows), kind=kind, num_train_epochs=1)[-1]
        assert len([line for line in told if "The weights of trainer.teacher change" in line]) == lines


class Holding(Average):
    """Also holds on to the weights that are trained, as TRL's `BEMACallback` does."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        super().on_train_begin(args, state, control, model)
        self.weights = list(model.parameters())

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        with torch.no_grad():
            for mine, trained in zip(self.average.parameters(), self.weights, strict=True):
                mine.lerp_(trained, 0.1)


def test_a_callback_that_holds_the_trained_weights_has_those_of_the_model_after_a_resume(tmp_path: Path) -> None:
    """And not a copy of what they were then."""
    whole, kept = Holding(), Holding()
    train(tmp_path / "whole", whole)
    with pytest.raises(Breakage):
        train(tmp_path / "kept", Holding(), Breaking(5))
    assert train(tmp_path / "kept", kept)[-1] == []
    assert kept.bits() == whole.bits()


class Growing(TrainerCallback):  # type: ignore[misc]
    """Gives the model a layer more in its second step; notes whether evaluations have their batches in order."""

    def __init__(self) -> None:
        self.in_order: list[bool] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        if state.global_step == 2:
            model.more = torch.nn.Linear(2, 2)

    def on_evaluate(self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **others: Any) -> None:
        self.in_order.append(eval_dataloader.in_order)


def test_weights_that_the_model_gets_while_it_trains_are_told_when_it_happens(tmp_path: Path) -> None:
    """For a script that does not make them cannot resume."""
    told = train(tmp_path, Growing(), num_train_epochs=1)[-1]
    (line,) = (each for each in told if "new weights" in each)
    assert line.startswith("The model has got new weights while it trains (2; the first is more.weight).")
    with pytest.raises(Incompatible, match=r"more\.weight"):
        train(tmp_path)


def test_the_batches_of_an_evaluation_come_in_order(tmp_path: Path) -> None:
    """As those of the training do."""
    train(tmp_path, growing := Growing(), workers=1, num_train_epochs=1, dataloader_in_order=False)
    assert growing.in_order == [True]


class Weighing(Trainer):  # type: ignore[misc]
    """Trains a layer and two weights of its loss beside the model, and counts in what computes loss and measures."""

    def __init__(self, *given: Any, **words: Any) -> None:
        super().__init__(*given, compute_loss_func=Loss(), compute_metrics=Counted(), **words)
        self.head, self.loss_weights = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.zeros(2))

    def create_optimizer(self, model: Any = None) -> Any:
        modules = (self.model, self.head, self.compute_loss_func)
        self.optimizer = torch.optim.AdamW([*torch.nn.ModuleList(modules).parameters(), self.loss_weights], lr=0.01)
        return self.optimizer

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **words: Any) -> Any:
        outputs = model(**inputs)
        loss = self.compute_loss_func(self.head(outputs.logits), inputs["labels"])
        loss = (loss * torch.exp(-self.loss_weights) + self.loss_weights).sum()
        return (loss, outputs) if return_outputs else loss


class Loss(torch.nn.Module):
    """Has a center that follows the outputs."""

    center: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(2))

    def forward(self, outputs: Any, labels: Any) -> Any:
        self.center.lerp_(outputs.detach().mean(0), 0.1)
        return torch.nn.functional.cross_entropy(outputs - self.center, labels)


class Counted:
    """The best of a measure so far, with a layer that moves at each call."""

    def __init__(self) -> None:
        self.best, self.calls = -1e9, 0
        self.scale = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(self.scale.weight)

    def __call__(self, found: Any) -> dict[str, float]:
        self.scale.weight.detach().mul_(1.5)
        self.best, self.calls = max(self.best, float(found.predictions.max())), self.calls + 1
        return {"best": self.best, "calls": self.calls, "scale": self.scale.weight.item()}


def test_what_a_trainer_trains_beside_the_model_and_what_its_loss_remembers_is_kept(tmp_path: Path) -> None:
    """By its optimizer: a layer, a loss and single weights; the loss with its buffers; an object that measures."""
    whole = train(tmp_path / "whole", kind=Weighing)
    for step in (3, 8):
        with pytest.raises(Breakage):
            train(tmp_path / "kept", Breaking(step), kind=Weighing)
    assert train(tmp_path / "kept", kind=Weighing) == whole
    assert whole[-1] == []


class Generating(transformers.Seq2SeqTrainer):  # type: ignore[misc,name-defined]
    """Measures how much the model generates where nobody says how much. transformers writes its default into the
    model's configuration behind the first batch, and goes by that from then on."""

    def __init__(self, *given: Any, **words: Any) -> None:
        def measure(found: Any) -> dict[str, int]:
            return {"length": found.predictions.shape[1]}

        super().__init__(*given, **{**words, "eval_dataset": words["train_dataset"][:8], "compute_metrics": measure})


def generator(_: Any) -> Any:
    """A model that generates, in the place of the one that tells classes."""
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=50, decoder_start_token_id=0, eos_token_id=None, **sizes)
    return transformers.T5ForConditionalGeneration(config)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")
def test_what_an_evaluation_leaves_for_the_next_one_to_generate_by_is_kept(tmp_path: Path) -> None:
    """So that what is measured does not depend on where a session began."""
    texts = [{"input_ids": row, "labels": row[:6]} for row in torch.randint(2, 50, (24, 12)).tolist()]
    options: dict[str, Any] = {
        "kind": Generating,
        "arguments": transformers.Seq2SeqTrainingArguments,
        "adapt": generator,
        "data": texts,
        "predict_with_generate": True,
        "gradient_accumulation_steps": 1,
    }
    whole = train(tmp_path / "whole", **options)
    assert [line["eval_length"] for line in whole[3] if "eval_length" in line] == [21, 20, 20]
    with pytest.raises(Breakage):
        train(tmp_path / "kept", Breaking(5), **options)
    assert train(tmp_path / "kept", **options)[:-1] == whole[:-1]


class Allocating(TrainerCallback):  # type: ignore[misc]
    """Spreads AdaLoRA's ranks, as PEFT's guide says."""

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        model.base_model.update_and_allocate(state.global_step)


def ranked(model: Any) -> Any:
    """The model with AdaLoRA."""
    peft = pytest.importorskip("peft")
    words = {"init_r": 6, "target_r": 3, "tinit": 2, "tfinal": 3, "deltaT": 2, "total_step": 12}
    config = peft.AdaLoraConfig(**words, target_modules=["query", "value"], task_type="SEQ_CLS")
    return peft.get_peft_model(model, config)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT asks for it
def test_the_ranks_of_adalora_go_on_as_they_were_spread(tmp_path: Path) -> None:
    """By how much each has mattered, and in the end by the pattern that came of it."""
    options: dict[str, Any] = {"adapt": ranked, "learning_rate": 0.01}
    whole = train(tmp_path / "whole", Allocating(), **options)
    for step in (6, 11):
        with pytest.raises(Breakage):
            train(tmp_path / "kept", Allocating(), Breaking(step), **options)
    assert train(tmp_path / "kept", Allocating(), **options) == whole


def test_a_trainer_that_others_have_patched_is_known_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsloth puts its own in the place of some methods, before the trainer is made: they take what is known, and
    more."""
    samples = Trainer.get_batch_samples
    asked: list[int] = []

    def get_batch_samples(
        self: Any, epoch_iterator: Any, num_batches: int, device: Any = None, *more: Any, **words: Any
    ):  # type: ignore[no-untyped-def]
        asked.append(num_batches)
        return samples(self, epoch_iterator, num_batches, device)

    whole = train(tmp_path / "whole")
    monkeypatch.setattr(Trainer, "get_batch_samples", get_batch_samples)
    with pytest.raises(Breakage):
        train(tmp_path / "kept", Breaking(4))
    assert train(tmp_path / "kept")[:-1] == whole[:-1]
    assert asked


def test_a_trainer_is_left_as_it_was(tmp_path: Path) -> None:
    """After `train`, its loader and its methods are its own again: it can evaluate, predict, and train once more."""
    args = transformers.TrainingArguments(
        str(tmp_path / "own"), max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, log_level="error"
    )
    keep = Resumable("linear", storage=str(tmp_path / "runs"), progress=False)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    )
    trainer = Trainer(model, args, train_dataset=Data(16), callbacks=[keep])
    handler = list(trainer.callback_handler.callbacks)
    trainer.train()
    assert not {"training_step", "_maybe_log_save_evaluate", "_evaluate", "_run_epoch"} & vars(trainer).keys()
    assert trainer.callback_handler.callbacks == handler
    assert "call_event" not in vars(trainer.callback_handler)
    assert isinstance(trainer.get_train_dataloader(), torch.utils.data.DataLoader)
    assert trainer.train().global_step == 2  # complete


if __name__ == "__main__":

    class Killed(Breaking):
        """Dies as machines do."""

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == self.step:
                os.kill(os.getpid(), signal.SIGKILL)

    train(Path(sys.argv[1]), Killed(int(sys.argv[2])), workers=2)

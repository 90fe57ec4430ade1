"""What does not fit is refused at the start, with everything listed, and nothing is touched."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import colabkeep
from colabkeep.core.errors import Incompatible, NotStorable, UnknownArgument, UsageError
from colabkeep.core.events import Event, Noted
from colabkeep.stores.local import DirectoryStore
from tests.trainings.torch import Noisy, Tied, hard_training

Words = dict[str, Any]


def with_model(model: nn.Module) -> Words:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return {"model": model, "optimizer": optimizer, "scheduler": None, "ema": None}


def other_names() -> Words:
    model = Tied()
    model.third = nn.Linear(1, 1)
    return with_model(model)


def other_shape() -> Words:
    model = Tied()
    model.norm = nn.BatchNorm1d(9)
    return with_model(model)


def other_ties() -> Words:
    model = Tied()
    model.second.weight = nn.Parameter(model.second.weight.detach().clone())
    return with_model(model)


def other_optimizer() -> Words:
    model = Tied()
    return {**with_model(model), "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


def more_groups() -> Words:
    model = Tied()
    groups = [{"params": list(model.first.parameters())}, {"params": list(model.norm.parameters())}]
    return {**with_model(model), "optimizer": torch.optim.AdamW(groups, lr=1e-2)}


PLAIN: Words = {"scheduler": None, "ema": None}
CHANGES: dict[str, tuple[Callable[[], Words], list[str]]] = {
    "names": (other_names, ["third.weight", "third.bias"]),
    "shapes": (other_shape, ["norm.weight has shape (8,) in the checkpoint and (9,) now", "norm.running_mean"]),
    "dtypes": (lambda: with_model(Tied().double()), ["first.weight is float32 in the checkpoint and float64 now"]),
    "ties": (other_ties, ["first.weight was tied to second.weight"]),
    "optimizer class": (other_optimizer, ["AdamW", "SGD"]),
    "parameter groups": (more_groups, ["1 parameter groups, and has 2 now"]),
    "data set length": (lambda: {**PLAIN, "train_loader": DataLoader(Noisy(50), 4, shuffle=True)}, ["42 → 50"]),
    "sampler": (lambda: {**PLAIN, "train_loader": DataLoader(Noisy(), 4)}, ["RandomSampler → SequentialSampler"]),
    "seed": (lambda: {**PLAIN, "seed": 5}, ["seed was 0 and is 5"]),
    "a part more": (lambda: {**hard_parts("ema"), "scheduler": None}, ["ema is passed now"]),
}


def hard_parts(*names: str) -> Words:
    words = hard_training(epochs=3)
    return {name: words[name] for name in ("model", "optimizer", *names)}


@pytest.mark.parametrize("steps", [7, 11], ids=["in an epoch", "at its end"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_of_the_run_is_refused_and_nothing_is_touched(
    tmp_path: Path, kit: SimpleNamespace, change: str, steps: int
) -> None:
    """The error lists what changed and names the ways out; objects, random streams and the run's files stay."""
    kit.fit(tmp_path, **PLAIN, **({"max_steps": 7} if steps == 7 else {"max_epochs": 1}))
    make, expected = CHANGES[change]
    words = kit.cell(tmp_path, **{**PLAIN, **make()})
    live = [part for part in (words["model"], words["optimizer"], words["ema"]) if part is not None]
    before = [flat(part.state_dict()) for part in live], streams(), kit.contents(tmp_path)
    with pytest.raises(Incompatible) as caught:
        colabkeep.resumable_fit(**words)
    assert ([flat(part.state_dict()) for part in live], streams(), kit.contents(tmp_path)) == before
    listed = "\n".join(caught.value.differences)
    assert all(text in listed for text in expected), listed
    assert all(way in caught.value.remedy for way in ('resume="never"', "run_name", "Nothing was touched"))


def test_everything_that_changed_is_listed_at_once(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Nobody has to run the cell once per mistake."""
    kit.fit(tmp_path, max_steps=7)
    words = {**other_optimizer(), "seed": 3, "train_loader": DataLoader(Noisy(50), 4, shuffle=True)}
    with pytest.raises(Incompatible) as caught:
        kit.fit(tmp_path, **words)
    listed = "\n".join(caught.value.differences)
    for part in ("scheduler was part", "ema was part", "seed was 0 and is 3", "42 → 50", "SGD"):
        assert part in listed
    assert len(caught.value.differences) == len(set(caught.value.differences))


def streams() -> tuple[object, ...]:
    legacy = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), legacy[1].tobytes(), legacy[2:]


def flat(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return str(state.dtype), tuple(state.shape), state.detach().numpy().tobytes()
    if isinstance(state, dict):
        return {key: flat(value) for key, value in state.items()}
    return [flat(value) for value in state] if isinstance(state, (list, tuple)) else state


@pytest.mark.parametrize("change", ["workers", "batches of the same order", "more epochs"])
def test_a_harmless_change_goes_on(tmp_path: Path, kit: SimpleNamespace, change: str) -> None:
    """More workers, another pinning, a longer training: one line says so, and no bit is different."""
    told: list[Event] = []
    kit.fit(tmp_path / "a", **PLAIN, max_steps=7)
    words: Words = {**PLAIN, "max_epochs": 2, "callbacks": [told.append]}
    if change == "workers":
        words["train_loader"] = DataLoader(Noisy(), 4, shuffle=True, num_workers=2, persistent_workers=True)
    elif change == "batches of the same order":
        words["train_loader"] = DataLoader(Noisy(), 4, shuffle=True, num_workers=1, prefetch_factor=5)
    else:
        kit.fit(tmp_path / "a", **PLAIN, max_epochs=1)
    assert kit.fit(tmp_path / "a", **words).resumed_from in (7, 11)
    said = [event.text for event in told if isinstance(event, Noted)]
    assert (
        said[0]
        == {
            "workers": "max_epochs changed from 3 to 2; this does not affect the training",
            "batches of the same order": "max_epochs changed from 3 to 2; this does not affect the training",
            "more epochs": "max_epochs changed from 1 to 2; this does not affect the training",
        }[change]
    )
    assert any("num_workers" in text for text in said) is (change != "more epochs")
    kit.fit(tmp_path / "b", **PLAIN, max_epochs=2)
    assert kit.state(tmp_path / "a", "r") == kit.state(tmp_path / "b", "r")


@pytest.mark.parametrize(
    ("word", "ours"),
    {
        "ckpt_path": "resume",
        "resume_from_checkpoint": "resume",
        "num_train_epochs": "max_epochs",
        "epochs": "max_epochs",
        "save_total_limit": "keep_last",
        "save_top_k": "keep_best",
        "metric_for_best_model": "monitor",
        "save_steps": "save_every",
        "gradient_accumulation_steps": "accumulate_grad_batches",
        "max_grad_norm": "gradient_clip_val",
        "fp16": "precision",
        "criterion": "loss_fn",
        "output_dir": "storage",
    }.items(),
)
def test_a_word_of_another_trainer_is_refused_with_ours(
    tmp_path: Path, kit: SimpleNamespace, word: str, ours: str
) -> None:
    """Whoever comes from elsewhere is told what it is called here, before anything is written."""
    with pytest.raises(UnknownArgument, match=repr(word)) as caught:
        kit.fit(tmp_path, **{word: 1})
    assert ours in caught.value.remedy
    with pytest.raises(UnknownArgument, match=repr(word)):
        colabkeep.Run("r", model=nn.Linear(1, 1), storage=tmp_path, **{word: 1})
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_word_is_refused(tmp_path: Path, kit: SimpleNamespace) -> None:
    """A typing mistake is an error and not a setting that is silently ignored."""
    with pytest.raises(UnknownArgument, match="'keep_lst'"):
        kit.fit(tmp_path, keep_lst=3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"max_epochs": None}, "length of the training"),
        ({"keep_last": 0}, "keep_last=0"),
        ({"keep_best": -1}, "keep_best must be .* and is -1"),
        ({"mode": "largest"}, "mode='largest'"),
        ({"save_every": "now and then"}, "save_every='now and then'"),
        ({"max_time": "soon"}, "max_time='soon'"),
        ({"precision": "8-bit"}, "precision='8-bit'"),
        ({"scheduler_interval": "batch"}, "scheduler_interval='batch'"),
        ({"step_fn": lambda model, batch: None}, "exactly one of loss_fn and step_fn"),
        ({"ema": object()}, "update_parameters"),
        ({"batch_size": 4}, "batch"),
        ({"run_name": "../elsewhere"}, "elsewhere"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_argument_that_cannot_be_meant_so_is_refused(
    tmp_path: Path, kit: SimpleNamespace, words: Words, said: str
) -> None:
    """Before the first batch, with what to write instead, and without a trace in the storage."""
    with pytest.raises(UsageError, match=said) as caught:
        kit.fit(tmp_path / "runs", **words)
    assert caught.value.remedy
    assert list(tmp_path.iterdir()) == []


class Chained:
    """Something with a state that no file can hold without pickle."""

    def state_dict(self) -> Words:
        return {"deep": [0, {"inside": open}]}

    def load_state_dict(self, state: Words) -> None:
        raise AssertionError("nothing was ever saved")


def unstorable_extra() -> Words:
    return {"state": {"tokens": Chained()}}


def unstorable_model() -> Words:
    class Model(Tied):
        def get_extra_state(self) -> Any:
            return {"function": open}

        def set_extra_state(self, state: Any) -> None:
            raise AssertionError("nothing was ever saved")

    return with_model(Model())


def unstorable_optimizer() -> Words:
    words = with_model(Tied())
    words["optimizer"].param_groups[0]["owner"] = open
    return words


@pytest.mark.parametrize(
    ("make", "path"),
    [(unstorable_extra, "deep[1].inside"), (unstorable_model, "function"), (unstorable_optimizer, "owner")],
    ids=["state", "model", "optimizer"],
)
def test_what_cannot_be_stored_is_told_before_the_first_step(
    tmp_path: Path, kit: SimpleNamespace, make: Callable[[], Words], path: str
) -> None:
    """Not after an hour: the error names the path of the value, and no step was trained."""
    steps: list[int] = []
    words = {**hard_training(epochs=1, heard=lambda step, *_: steps.append(step)), **PLAIN, **make()}
    with pytest.raises(NotStorable) as caught:
        kit.fit(tmp_path, **words)
    assert path in f"{caught.value.path} {caught.value.problem}"
    assert caught.value.remedy
    assert steps == []


class Owned(torch.optim.SGD):
    """Its step puts into the state what no checkpoint can hold."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = super().step(closure)
        for state in self.state.values():
            state["owner"] = open
        return loss


def test_what_the_first_step_of_an_optimizer_makes_is_told_behind_it(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Not at the first save, which may come after an hour."""
    steps: list[int] = []
    words = {**hard_training(epochs=1, heard=lambda step, *_: steps.append(step)), **PLAIN}
    words["optimizer"] = Owned(words["model"].parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(NotStorable, match=r"optimizer\.state\['model\..*'\]\.owner is a builtins"):
        kit.fit(tmp_path, **words, save_every=None)
    assert len(steps) <= 1


def test_a_save_before_the_first_step_may_still_be_under_way_behind_it(tmp_path: Path) -> None:
    """What the step made is looked at when that save is done: behind the next step."""
    entered, goes_on = threading.Event(), threading.Event()

    class Waiting(DirectoryStore):
        def put(self, name: str, source: Any) -> Any:
            if "/blobs/" in name:
                entered.set()
                assert goes_on.wait(60)
            return super().put(name, source)

    model = torch.nn.Linear(2, 1)
    optimizer = Owned(model.parameters(), lr=0.1, momentum=0.9)

    def train() -> None:
        with colabkeep.Run("r", model=model, optimizer=optimizer, storage=Waiting(tmp_path), progress=False) as run:
            run.save()
            assert entered.wait(60)
            for _ in run.steps(3):
                model(torch.ones(4, 2)).sum().backward()
                optimizer.step()
                run.step()
                done.append(run.progress.step)
                goes_on.set()
                while run._saver.busy:
                    time.sleep(0.001)

    done: list[int] = []
    with pytest.raises(NotStorable, match="owner is a builtins"):
        train()
    assert done == [1]


def test_a_variable_among_the_objects_of_the_state_is_told_where_it_belongs(
    tmp_path: Path, kit: SimpleNamespace
) -> None:
    """It can be stored, only not there: `state=` takes objects that tell their state."""
    with pytest.raises(NotStorable, match=r"target is a torch\.Tensor, which has no state_dict") as caught:
        kit.fit(tmp_path, state={"target": torch.ones(3)})
    assert 'run.state.setdefault("x", x)' in caught.value.remedy


def test_a_refused_run_is_free_at_once(tmp_path: Path, kit: SimpleNamespace) -> None:
    """After any refusal the same process can run the corrected cell."""
    events: list[Event] = []
    kit.fit(tmp_path, max_steps=3)
    with pytest.raises(Incompatible):
        kit.fit(tmp_path, seed=9)
    with pytest.raises(NotStorable):
        kit.fit(tmp_path, resume="never", **unstorable_extra())
    assert kit.fit(tmp_path, max_steps=4, callbacks=[events.append]).resumed_from == 3

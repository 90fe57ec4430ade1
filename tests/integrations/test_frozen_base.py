"""Adapters on a frozen base: checkpoints name what `from_pretrained` read by checksums, and hold none of its bytes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import colabkeep
from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.core.events import Event, Noted, RestoredInexactly
from colabkeep.ui.cli import main

transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")

from colabkeep.integrations.transformers import Resumable  # noqa: E402
from tests.programs import run_module  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT asks for it
BIG = "base_model.model.bert.embeddings.word_embeddings.weight"
DENSE = "base_model.model.bert.encoder.layer.0.intermediate.dense.weight"
HEAD = "base_model.model.classifier.original_module.weight"


class Data(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples of two classes."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": index % 2}


class Does(transformers.TrainerCallback):  # type: ignore[misc]
    """Does something at the end of each step from one on."""

    def __init__(self, what: Callable[[Any], object], step: int, last: int = sys.maxsize) -> None:
        self._what, self._steps = what, range(step, last + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step in self._steps:
            self._what(others["model"])


def die(_: Any) -> None:
    """As machines do."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(_: Any) -> None:
    """As programs do."""
    raise RuntimeError("on purpose")


def base(folder: Path, seed: int = 0) -> Path:
    """A pretrained base in a folder, with large weights: 0.8 and 0.3 MB."""
    if not folder.exists():
        torch.manual_seed(seed)
        config = transformers.BertConfig(
            vocab_size=3000, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=1024
        )
        transformers.BertModel(config).save_pretrained(folder)
    return folder


def model_of(folder: Path, change: Callable[[Any], object] = lambda _: None, labels: int = 2) -> Any:
    """The base with LoRA. Its head is made anew, and as chance has it."""
    torch.seed()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=labels)
    change(model)
    torch.manual_seed(0)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, lora_dropout=0.1, task_type="SEQ_CLS"))


def train(
    folder: Path, model: Any, *callbacks: Any, events: list[Event] | None = None, last: int = 20, **words: Any
) -> dict[str, Any]:
    """One session; the weights that it came to."""
    torch.set_num_threads(1)
    words = {
        "frozen": "refer",
        "save_every": "1 steps",
        "callbacks": [[].append if events is None else events.append],
        **words,
    }
    args = transformers.TrainingArguments(
        str(folder / "own"),
        max_steps=last,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        log_level="error",
    )
    keep = Resumable("bert", storage=str(folder / "runs"), progress=False, **words)
    transformers.Trainer(model, args, train_dataset=Data(), callbacks=[*callbacks, keep]).train()
    return {name: each.detach().cpu().clone() for name, each in model.state_dict().items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Are all weights the same, to the bit? What is random anew in each session and not used does not count."""
    return one.keys() == other.keys() and all(torch.equal(each.cpu(), other[name].cpu()) for name, each in one.items())


def stored(folder: Path) -> set[str]:
    """The names of the model's weights that the store has bytes of."""
    names = set()
    for file in (folder / "runs" / "bert" / "blobs").iterdir():
        with safe_open(file, "pt") as opened:
            names |= {
                key.removeprefix("model.weights.") for key in opened.offset_keys() if key.startswith("model.weights.")
            }
    return names


def told_as_stored(events: list[Event]) -> list[str]:
    """The beginnings of what was told of weights that are stored from now on."""
    return [
        each.text.partition(" are stored from now on")[0]
        for each in events
        if isinstance(each, Noted) and "are stored from now on" in each.text
    ]


def copied(folder: Path) -> Path:
    """The base of this test."""
    return base(folder / "base")


def headed(weights: dict[str, Any]) -> Callable[[Any], object]:
    """Gives a model the head that another one began with, so that two trainings can be compared."""

    def put(model: Any) -> None:
        model.classifier.load_state_dict(weights)

    return put


HEAD_OF_ALL = {"weight": torch.linspace(-0.1, 0.1, 128).reshape(2, 64), "bias": torch.zeros(2)}


def test_a_killed_training_comes_to_the_same_and_the_store_has_no_byte_of_the_base(tmp_path: Path) -> None:
    """SIGKILL, a fresh process: the same bits, by the checksums of the base alone."""
    begins = headed(HEAD_OF_ALL)
    whole = train(tmp_path / "whole", model_of(copied(tmp_path), begins))
    assert run_module("tests.integrations.test_frozen_base", tmp_path, 7).returncode == -signal.SIGKILL
    events = list[Event]()
    assert same(train(tmp_path / "kept", model_of(copied(tmp_path), begins), events=events), whole)
    assert any(type(each).__name__ == "Restored" for each in events)
    assert not {BIG, DENSE} & stored(tmp_path / "kept")
    assert sum(each.stat().st_size for each in (tmp_path / "kept" / "runs").rglob("*") if each.is_file()) < 500_000


def test_a_head_that_is_made_anew_in_each_session_is_stored(tmp_path: Path) -> None:
    """It is frozen beside the one that is trained, and nobody else has it: a resume does not ask for it again."""
    with pytest.raises(RuntimeError, match="on purpose"):
        train(tmp_path, model_of(copied(tmp_path), labels=1000), Does(fail, 5))
    train(tmp_path, model_of(copied(tmp_path), labels=1000))
    assert HEAD in stored(tmp_path)


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")  # PEFT notices too
def test_words_that_were_added_to_the_vocabulary_are_stored(tmp_path: Path) -> None:
    """Their rows are drawn at random, so that no session has them again."""
    wider: Callable[[Any], object] = lambda model: model.resize_token_embeddings(3010)  # noqa: E731
    with pytest.raises(RuntimeError, match="on purpose"):
        train(tmp_path, model_of(copied(tmp_path), wider), Does(fail, 5))
    train(tmp_path, model_of(copied(tmp_path), wider))
    assert BIG in stored(tmp_path)
    assert DENSE not in stored(tmp_path)


def test_another_base_is_refused_by_name_and_nothing_is_touched(tmp_path: Path) -> None:
    """Of the same shapes: only its bytes tell. Who wants it all the same says so, and the report tells."""
    with pytest.raises(RuntimeError, match="on purpose"):
        train(tmp_path, model_of(copied(tmp_path)), Does(fail, 5))
    other = model_of(base(tmp_path / "other", seed=1))
    before = {name: each.clone() for name, each in other.state_dict().items()}
    with pytest.raises(Incompatible) as caught:
        train(tmp_path, other)
    assert BIG in caught.value.differences
    assert str(tmp_path / "base") in caught.value.problem
    assert 'on_change="apply"' in caught.value.remedy
    assert same(other.state_dict(), before)
    events = list[Event]()
    train(tmp_path, other, events=events, on_change="apply")
    assert any(isinstance(each, RestoredInexactly) and BIG in each.reason for each in events)
    events.clear()
    train(tmp_path, model_of(base(tmp_path / "other", seed=1)), events=events, last=22)  # it is the run's from then on
    assert not any(isinstance(each, RestoredInexactly) and BIG in each.reason for each in events)


@pytest.mark.parametrize("thaws", [False, True], ids=["merged", "unfrozen"])
def test_a_frozen_weight_that_changes_in_the_training_is_stored(tmp_path: Path, thaws: bool) -> None:
    """Once, by who merges adapters into it, or in each step, by who unfreezes it: its bytes tell, and it comes back."""

    def change(model: Any) -> None:
        weight = model.get_parameter(DENSE)
        weight.requires_grad_(thaws)
        weight.data.mul_(1.01)

    changes, begins = Does(change, 4, 20 if thaws else 4), headed(HEAD_OF_ALL)
    whole = train(tmp_path / "whole", model_of(copied(tmp_path), begins), changes)
    for last in (3, 8):
        events = list[Event]()
        train(tmp_path / "kept", model_of(copied(tmp_path), begins), changes, last=last, events=events)
        assert (DENSE in stored(tmp_path / "kept")) is (last == 8)
        assert told_as_stored(events) == [f"1 weight(s) of the frozen base {tmp_path}/base (0.3 MB)"] * (last == 8)
    events.clear()
    assert same(train(tmp_path / "kept", model_of(copied(tmp_path), begins), changes, events=events), whole)
    assert BIG not in stored(tmp_path / "kept")
    assert not told_as_stored(events)  # once in a run


def test_a_run_that_stored_its_base_goes_on_so_and_one_that_did_not_can_begin_to(tmp_path: Path) -> None:
    """As all runs of earlier versions did; another base does not matter to such a run, and it is told nothing."""
    begins = headed(HEAD_OF_ALL)
    whole = train(tmp_path / "whole", model_of(copied(tmp_path), begins))
    for kind, word in (("then", "store"), ("now", "refer")):
        with pytest.raises(RuntimeError, match="on purpose"):
            train(tmp_path / kind, model_of(copied(tmp_path), begins), Does(fail, 5), frozen=word)
        assert ({BIG, DENSE} <= stored(tmp_path / kind)) is (word == "store")
    assert same(train(tmp_path / "then", model_of(base(tmp_path / "other", 1), begins)), whole)
    assert same(train(tmp_path / "now", model_of(copied(tmp_path), begins), frozen="store"), whole)
    assert {BIG, DENSE} <= stored(tmp_path / "now")


def test_what_is_not_stored_is_told_and_a_model_without_adapters_is_stored_as_ever(tmp_path: Path) -> None:
    """Unless that is asked for. A word of another kind is an error."""
    events = list[Event]()
    train(tmp_path / "lora", model_of(copied(tmp_path)), events=events, last=2)
    (told,) = (each.text for each in events if isinstance(each, Noted) and "frozen base" in each.text)
    assert "is not stored" in told
    for word in (None, "refer"):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(copied(tmp_path))
        model.bert.requires_grad_(False)
        train(tmp_path / f"{word}", model, frozen=word, last=2)
        name = BIG.removeprefix("base_model.model.")
        assert (name in stored(tmp_path / f"{word}")) is (word is None)
    with pytest.raises(UsageError, match="frozen"):
        Resumable("bert", frozen="reference")  # type: ignore[arg-type]


@pytest.mark.parametrize("hub", [True, False])
def test_a_base_of_the_hub_is_named_and_one_in_a_folder_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: bool
) -> None:
    """Nobody can see whether a folder outlives the machine; a name on the Hub does."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    events, model = list[Event](), model_of(copied(tmp_path))
    if hub:
        model.get_base_model().config._name_or_path = "somebody/bert"
    train(tmp_path, model, events=events, last=2, frozen=None)
    (told,) = (each.text for each in events if isinstance(each, Noted) and "frozen base" in each.text)
    assert ("is not stored" in told) is hub
    assert ('frozen="refer"' in told) is not hub
    assert (DENSE in stored(tmp_path)) is not hub


def test_the_adapter_is_exported_and_the_whole_only_onto_the_base(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the base the words name it; with it, `load_weights` has what the training came to."""
    final = train(tmp_path, model_of(copied(tmp_path)), last=4)
    where = ["--storage", str(tmp_path / "runs")]
    assert main(["export", "bert", str(tmp_path / "adapter"), *where, "--format", "transformers"]) == 0
    fresh = transformers.AutoModelForSequenceClassification.from_pretrained(copied(tmp_path))
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter")
    trained = {name: each for name, each in final.items() if "lora" in name or "modules_to_save" in name}
    assert trained
    assert all(torch.equal(loaded.state_dict()[name], each) for name, each in trained.items())
    capsys.readouterr()
    assert main(["export", "bert", str(tmp_path / "whole.safetensors"), *where]) != 0
    assert str(tmp_path / "base") in capsys.readouterr().err
    assert not (tmp_path / "whole.safetensors").exists()
    assert main(["verify", "bert", *where]) == 0
    assert main(["show", "bert", *where]) == 0
    storage = str(tmp_path / "runs")
    for framework in (None, "numpy"):
        with pytest.raises(UsageError, match="frozen base"):
            colabkeep.load_weights("bert", storage=storage, framework=framework)
    with pytest.raises(Incompatible):
        colabkeep.load_weights("bert", storage=storage, base=model_of(base(tmp_path / "other", seed=1)))
    other = model_of(copied(tmp_path))
    other.load_state_dict(colabkeep.load_weights("bert", storage=storage, base=other))
    assert same(other.state_dict(), final)
    assert main(["copy", storage, str(tmp_path / "elsewhere")]) == 0
    assert main(["verify", "bert", "--storage", str(tmp_path / "elsewhere")]) == 0


if __name__ == "__main__":
    root = Path(sys.argv[1])  # a first session leaves a checkpoint, however slow the disk is
    train(root / "kept", model_of(copied(root), headed(HEAD_OF_ALL)), last=4)
    train(root / "kept", model_of(copied(root), headed(HEAD_OF_ALL)), Does(die, int(sys.argv[2])))

"""From a folder of the Trainer's own into a run, and from a run into a folder that `from_pretrained` loads."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.core.events import Event, Noted
from colabkeep.ui.cli import main

transformers = pytest.importorskip("transformers")

from colabkeep.integrations.transformers import Resumable  # noqa: E402

Trainer, TrainerCallback = transformers.Trainer, transformers.TrainerCallback
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT asks for it


class Breakage(Exception):
    """What goes wrong on purpose."""


class Breaking(TrainerCallback):  # type: ignore[misc]
    """Fails at the end of a step of the training."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step:
            raise Breakage


class InOrder(Trainer):  # type: ignore[misc]
    """Reads its data in the order that they have."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


DATA = [
    {"input_ids": torch.randint(0, 50, (9,), generator=torch.Generator().manual_seed(i)), "labels": i % 2}
    for i in range(38)
]


def bert(hidden: int = 16, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=hidden,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForSequenceClassification(config)


def train(folder: Path, *callbacks: Any, model: Any = None, **options: Any) -> Any:
    """A trainer that has trained: 5 steps in each of 3 epochs, always in the same order."""
    chosen: dict[str, Any] = {"num_train_epochs": 3, "learning_rate": 1e-2, "save_strategy": "no", "logging_steps": 1}
    args = transformers.TrainingArguments(
        str(folder / "own"),
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        log_level="error",
        **{**chosen, **options},
    )
    trainer = InOrder(model or bert(), args, train_dataset=DATA, callbacks=list(callbacks))
    trainer.train()
    return trainer


def came_to(trainer: Any) -> list[Any]:
    """Weights, position and log of a trainer."""
    weights = [each.tolist() for each in trainer.model.state_dict().values()]
    log = [
        {n: v for n, v in line.items() if "second" not in n and "time" not in n} for line in trainer.state.log_history
    ]
    return [weights, trainer.state.global_step, trainer.state.epoch, log[:-1]]  # the last one sums up this call


def keep(folder: Path, events: list[Event] | None = None, **words: Any) -> Resumable:
    told = [] if events is None else [events.append]
    words = {"save_every": "1 steps", "progress": False, "callbacks": told, **words}
    return Resumable("bert", storage=str(folder / "runs"), **words)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """What the trainer saves by itself, and what its training came to."""
    home = tmp_path_factory.mktemp("trainer")
    whole = train(home, save_strategy="steps", save_steps=1)
    return home / "own", came_to(whole)


@pytest.mark.parametrize("with_adapter", [False, True], ids=["whole", "lora"])
def test_a_run_goes_on_from_the_end_of_an_epoch_as_the_trainer_would_have(
    tmp_path: Path, folders: tuple[Path, Any], with_adapter: bool
) -> None:
    """Weights, optimizer, schedule, step, epoch and log: where the order of the data is the same, so is the end. Killed
    on the way too."""
    own, whole = folders
    make = bert
    if with_adapter:
        peft = pytest.importorskip("peft")

        def make(hidden: int = 16, seed: int = 0) -> Any:
            words = {"target_modules": ["query"], "task_type": "SEQ_CLS", "init_lora_weights": False}
            return peft.get_peft_model(bert(), peft.LoraConfig(r=2, **words))

        own, whole = tmp_path / "own", came_to(train(tmp_path, model=make(), save_strategy="steps", save_steps=5))
    start = own / "checkpoint-5"
    model = make() if with_adapter else make(seed=3)
    with pytest.raises(Breakage):
        train(tmp_path / "kept", keep(tmp_path, resume_from=start), Breaking(8), model=model)
    moved = tmp_path / "moved"
    shutil.move(start, moved)
    last = train(tmp_path / "kept", keep(tmp_path, resume_from=start), model=make())  # the folder is gone by now
    shutil.move(moved, start)
    assert came_to(last) == whole


def test_in_the_middle_of_an_epoch_it_is_told_what_is_read_again(tmp_path: Path, folders: tuple[Path, Any]) -> None:
    """Nobody knows which samples the trainer had drawn: the epoch begins anew, and the steps end where they would."""
    events: list[Event] = []
    trainer = train(tmp_path, keep(tmp_path, events, resume_from=folders[0] / "checkpoint-7"))
    assert trainer.state.global_step == 15
    (told,) = [event.text for event in events if isinstance(event, Noted) and "checkpoint-7" in event.text]
    assert "step 7, with epoch 2, from its first batch on" in told


def test_the_best_checkpoint_so_far_is_the_one_to_load_at_the_end(tmp_path: Path, folders: tuple[Path, Any]) -> None:
    """Where it is, beside the one that the run begins from; what is not here any more is told."""
    for name in ("checkpoint-3", "checkpoint-5"):
        shutil.copytree(folders[0] / name, tmp_path / name)
    told = tmp_path / "checkpoint-5" / "trainer_state.json"
    told.write_text(json.dumps({**json.loads(told.read_text()), "best_model_checkpoint": "elsewhere/checkpoint-3"}))
    here = train(tmp_path / "here", keep(tmp_path / "here", resume_from=tmp_path / "checkpoint-5"), num_train_epochs=2)
    assert here.state.best_model_checkpoint == str(tmp_path / "checkpoint-3")
    shutil.rmtree(tmp_path / "checkpoint-3")
    events: list[Event] = []
    train(tmp_path / "gone", keep(tmp_path / "gone", events, resume_from=tmp_path / "checkpoint-5"), num_train_epochs=2)
    assert any("best checkpoint, elsewhere/checkpoint-3" in e.text for e in events if isinstance(e, Noted))


def test_a_torch_that_a_crafted_file_gets_past_reads_none(
    tmp_path: Path, folders: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is touched, and the update is named."""
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.9.1+cu128"))
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(UsageError, match=r"optimizer\.pt is not opened: in torch 2\.9\.1") as caught:
        train(tmp_path, keep(tmp_path, resume_from=folders[0] / "checkpoint-5"))
    assert "torch to 2.10 or newer" in caught.value.remedy


def test_what_cannot_be_read_safely_is_refused(tmp_path: Path, folders: tuple[Path, Any]) -> None:
    """No pickle is executed; another model's weights are not loaded by half."""

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    def refused(name: str, content: bytes, gone: str = "") -> str:
        start = tmp_path / f"checkpoint-{name}"
        shutil.copytree(folders[0] / "checkpoint-5", start)
        (start / name).write_bytes(content)
        if gone:
            (start / gone).unlink()
        with pytest.raises(UsageError) as caught:
            train(tmp_path, keep(tmp_path, resume_from=start))
        return str(caught.value)

    evil = pickle.dumps(Evil(), protocol=2)
    assert "it is not opened" in refused("optimizer.pt", evil)
    assert "it is not opened" in refused("rng_state.pth", evil)
    assert "a pickle, which is not opened" in refused("pytorch_model.bin", evil, gone="model.safetensors")
    assert "is damaged" in refused("model.safetensors", b"nothing")
    assert not (tmp_path / "executed").exists()
    with pytest.raises(UsageError, match=r"no trainer_state\.json"):
        train(tmp_path, keep(tmp_path, resume_from=tmp_path))
    with pytest.raises(UsageError, match="Name the folder of one step"):
        train(tmp_path, keep(tmp_path, resume_from=True))
    other = bert(hidden=8)
    before = [each.clone() for each in other.parameters()]
    with pytest.raises(Incompatible, match="another model"):
        train(tmp_path, keep(tmp_path, resume_from=folders[0] / "checkpoint-5"), model=other)
    assert all(map(torch.equal, before, other.cpu().parameters()))


def test_an_export_is_loaded_by_from_pretrained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder has the configuration and the weights; a file that is there is left alone."""
    trainer = train(tmp_path, keep(tmp_path), num_train_epochs=1)
    words = ["export", "bert", str(tmp_path / "out"), "--storage", str(tmp_path / "runs"), "--format", "transformers"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["folder"] == str(tmp_path / "out")
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert type(loaded) is type(trainer.model)
    assert loaded.config.problem_type == trainer.model.config.problem_type == "single_label_classification"
    for name, weight in trainer.model.cpu().state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name])
    assert main(words) == 2
    assert main([*words, "--force"]) == 0


def test_adapters_are_exported_alone(tmp_path: Path) -> None:
    """PEFT puts them onto the base that the user has."""
    peft = pytest.importorskip("peft")
    adapter = peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS")
    trainer = train(tmp_path, keep(tmp_path), model=peft.get_peft_model(bert(), adapter), num_train_epochs=1)
    words = ["export", "bert", str(tmp_path / "out"), "--storage", str(tmp_path / "runs"), "--format", "transformers"]
    assert main(words) == 0
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    loaded = peft.PeftModel.from_pretrained(bert(), tmp_path / "out")
    trained = peft.get_peft_model_state_dict(trainer.model.cpu())
    assert all(torch.equal(trained[name], each) for name, each in peft.get_peft_model_state_dict(loaded).items())


def test_a_run_of_a_loop_has_no_folder_to_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what to do instead."""
    import colabkeep

    with colabkeep.Run("loop", model=torch.nn.Linear(2, 2), storage=tmp_path / "runs", progress=False) as run:
        for _ in run.steps(1):
            pass
    words = ["export", "loop", str(tmp_path / "out"), "--storage", str(tmp_path / "runs"), "--format", "transformers"]
    assert main(words) != 0
    assert "Leave out --format" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


class Sentences(torch.nn.Module):
    """Around a model of transformers, with its configuration and a folder of its own kind, as SentenceTransformer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = bert()
        self.config = self.inner.config

    def forward(self, input_ids: Any, labels: Any) -> Any:
        return self.inner(input_ids=input_ids, labels=labels)

    def save_pretrained(self, folder: str) -> None:
        """As it likes."""


def test_a_model_of_another_make_is_trained_and_has_no_folder_to_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their trainers are the Trainer, their models are no PreTrainedModel."""
    storage = tmp_path / "runs"
    trainer = train(tmp_path, Resumable("sentences", storage=storage, progress=False), model=Sentences())
    assert trainer.state.global_step == 15
    words = ["export", "sentences", str(tmp_path / "out"), "--storage", str(storage), "--format", "transformers"]
    assert main(words) != 0
    assert "Leave out --format" in capsys.readouterr().err

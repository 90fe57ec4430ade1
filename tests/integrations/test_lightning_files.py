"""From a `.ckpt` of Lightning's own into a run, and what there is of the way back."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.core.events import Event, Noted
from colabkeep.ui.cli import main

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
HERE = [name for name in PACKAGES if importlib.util.find_spec(name.partition(".")[0]) is not None]
if not HERE:
    pytest.skip("neither lightning nor pytorch_lightning is installed", allow_module_level=True)
pl: Any = importlib.import_module(os.environ.get("LIGHTNING_OF_TESTS", HERE[0]))

from colabkeep.integrations.lightning import Resumable  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
SAMPLES = torch.utils.data.TensorDataset(torch.randn(40, 6, generator=torch.Generator().manual_seed(0)))


class Breakage(Exception):
    """What goes wrong on purpose."""


class Module(pl.LightningModule):  # type: ignore[misc]
    """Two optimizers' worth of nothing random: its bits are those of its data alone."""

    def __init__(self, width: int = 8, extra: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Each(pl.Callback):  # type: ignore[misc]
    """Saves by the trainer behind each step and each epoch; or fails behind a step."""

    def __init__(self, folder: Path | None = None, fails_at: int = 0) -> None:
        self.folder, self.fails_at = folder, fails_at

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self.folder is not None:
            trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")
        if trainer.global_step == self.fails_at:
            raise Breakage

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if self.folder is not None:
            trainer.save_checkpoint(self.folder / f"epoch-{trainer.current_epoch}.ckpt")


def train(folder: Path, *callbacks: Any, module: Any = None) -> dict[str, Any]:
    """Four epochs of ten steps, always in the same order; what it came to."""
    torch.manual_seed(0)
    module = module or Module()
    stopping = pl.callbacks.EarlyStopping("loss", patience=99, check_on_train_epoch_end=True)
    trainer = pl.Trainer(
        max_epochs=4,
        callbacks=[stopping, *callbacks],
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        default_root_dir=str(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(SAMPLES, batch_size=4))
    weights = [each.tolist() for each in module.state_dict().values()]
    known = [stopping.wait_count, float(stopping.best_score)]
    rates = [trainer.optimizers[0].param_groups[0]["lr"]]
    return {"at": [trainer.global_step, trainer.current_epoch], "weights": weights, "known": known, "rates": rates}


def keep(folder: Path, events: list[Event] | None = None, **words: Any) -> Any:
    told = [] if events is None else [events.append]
    words = {"save_every": "1 steps", "progress": False, "callbacks": told, **words}
    return Resumable("net", storage=str(folder / "runs"), **words)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What the trainer saves by itself, and what its training came to."""
    home = tmp_path_factory.mktemp("lightning")
    return home, train(home, Each(home))


@pytest.mark.parametrize("name", ["10.ckpt", "epoch-1.ckpt"])
def test_a_run_goes_on_from_the_end_of_an_epoch_as_the_trainer_would_have(
    tmp_path: Path, saved: tuple[Path, dict[str, Any]], name: str
) -> None:
    """Weights, optimizer, schedule, step, epoch and what callbacks knew: the end is the same, interrupted or not."""
    home, whole = saved
    with pytest.raises(Breakage):
        train(tmp_path, keep(tmp_path, resume_from=home / name), Each(fails_at=27))
    assert train(tmp_path, keep(tmp_path, resume_from=home / "gone.ckpt")) == whole


def test_in_the_middle_of_an_epoch_it_is_told_what_is_read_again(
    tmp_path: Path, saved: tuple[Path, dict[str, Any]]
) -> None:
    """Nobody knows which samples were drawn: the epoch begins anew, with the steps that were taken counted."""
    events: list[Event] = []
    found = train(tmp_path, keep(tmp_path, events, resume_from=saved[0] / "13.ckpt"))
    assert found["at"] == [13 + 30, 4]
    (told,) = [event.text for event in events if isinstance(event, Noted) and "Goes on" in event.text]
    assert "step 13, with epoch 2, from its first batch on" in told


@pytest.mark.parametrize("version", ["2.5.1", "2.9.1+cu128"])
def test_a_torch_that_a_crafted_file_gets_past_reads_none(
    tmp_path: Path, saved: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Nothing is touched, and the update is named."""
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(UsageError, match=r"CVE-2025-32434, CVE-2026-24747") as caught:
        train(tmp_path, keep(tmp_path, resume_from=saved[0] / "10.ckpt"))
    assert "torch to 2.10 or newer" in caught.value.remedy


def test_what_cannot_be_read_safely_is_refused(tmp_path: Path, saved: tuple[Path, dict[str, Any]]) -> None:
    """No pickle is executed; another model's weights are not loaded by half."""

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    def refused(content: Any) -> str:
        start = tmp_path / "some.ckpt"
        if isinstance(content, bytes):
            start.write_bytes(content)
        else:
            torch.save(content, start)
        with pytest.raises(UsageError) as caught:
            train(tmp_path, keep(tmp_path, resume_from=start))
        return str(caught.value)

    whole = torch.load(saved[0] / "10.ckpt", weights_only=True)
    assert "it is not opened" in refused({**whole, "hyper_parameters": {"extra": Evil()}})
    assert "it is not opened" in refused(pickle.dumps(Evil(), protocol=2))
    assert "is damaged" in refused((saved[0] / "10.ckpt").read_bytes()[:900])
    assert "no state of its loops" in refused(whole["state_dict"])
    assert not (tmp_path / "executed").exists()
    with pytest.raises(UsageError, match="is not a file"):
        train(tmp_path, keep(tmp_path, resume_from=tmp_path))
    other = Module(width=4)
    before = [each.clone() for each in other.parameters()]
    with pytest.raises(Incompatible, match="another model"):
        train(tmp_path, keep(tmp_path, resume_from=saved[0] / "10.ckpt"), module=other)
    assert all(map(torch.equal, before, other.parameters()))


def test_a_file_of_weights_alone_begins_with_new_optimizers_and_says_so(
    tmp_path: Path, saved: tuple[Path, dict[str, Any]]
) -> None:
    """As `ModelCheckpoint(save_weights_only=True)` writes it."""
    whole = torch.load(saved[0] / "10.ckpt", weights_only=True)
    torch.save({name: whole[name] for name in ("state_dict", "loops", "epoch", "global_step")}, tmp_path / "w.ckpt")
    events: list[Event] = []
    found = train(tmp_path, keep(tmp_path, events, resume_from=tmp_path / "w.ckpt"))
    assert found["at"] == saved[1]["at"]
    assert any("optimizers: they and the schedules start again" in e.text for e in events if isinstance(e, Noted))


def test_the_way_back_is_a_file_of_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A `.ckpt` would be a pickle, which is not written: `export` says so; what it writes the module loads as it is."""
    module = Module()
    train(tmp_path, keep(tmp_path), module=module)
    words = ["export", "net", str(tmp_path / "w.safetensors"), "--storage", str(tmp_path / "runs")]
    assert main([*words, "--format", "lightning"]) == 2
    assert "load_state_dict" in capsys.readouterr().err
    assert not (tmp_path / "w.safetensors").exists()
    assert main(words) == 0
    other = Module()
    other.load_state_dict(load_file(tmp_path / "w.safetensors"))
    assert all(map(torch.equal, module.state_dict().values(), other.state_dict().values()))

"""`Trainer.fit` with one callback more: it goes on after a disconnect, and nobody can tell."""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colabkeep.core.errors import Incompatible, UnknownArgument, UsageError
from colabkeep.core.events import AlreadyComplete, Event, Noted, RestoredInexactly
from tests.programs import run_module
from tests.trainings import final_state

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
HERE = [name for name in PACKAGES if importlib.util.find_spec(name.partition(".")[0]) is not None]
if not HERE:
    pytest.skip("neither lightning nor pytorch_lightning is installed", allow_module_level=True)
pl: Any = importlib.import_module(os.environ.get("LIGHTNING_OF_TESTS", HERE[0]))

import torchmetrics  # noqa: E402

from colabkeep.integrations.lightning import Resumable, State  # noqa: E402
from colabkeep.integrations.lightning_insides import TABLE  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


SAID = (Noted, RestoredInexactly)


class Data(torch.utils.data.Dataset[Any]):
    """Samples of two classes, augmented from every source of randomness."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(6, generator=torch.Generator().manual_seed(index)) + 0.1 * torch.rand(6)
        return x * random.random() + float(np.random.rand()), index % 2


class Module(pl.LightningModule):  # type: ignore[misc]
    """Logs in every way, measures, remembers, draws, and normalizes."""

    def __init__(self, plateau: bool = False) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2)
        )
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=2)
        self.plateau = plateau
        self.seen: list[float] = []
        self.ends: list[Any] = []

    def on_train_epoch_start(self) -> None:
        self.log("begun", torch.rand(()))
        torch.rand(3)
        self.seen.clear()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        out = self.net(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        self.accuracy(out, y)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("worst", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.seen.append(float(loss))
        return loss

    def on_train_epoch_end(self) -> None:
        self.ends.append([len(self.seen), sum(self.seen)])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", torch.nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        if self.plateau:
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Thawing(Module):
    """Begins with what is not frozen."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam([each for each in self.parameters() if each.requires_grad], lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class Thaws(pl.callbacks.BaseFinetuning):  # type: ignore[misc]
    """Has the first layer trained from the second epoch on, as a group of its own."""

    def freeze_before_training(self, module: Any) -> None:
        self.freeze(module.net[0])

    def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.net[0], optimizer)


class Replaces(pl.Callback):  # type: ignore[misc]
    """Goes on with another optimizer in the second epoch."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 1:
            trainer.optimizers = [torch.optim.SGD(module.parameters(), lr=0.01)]


class Both(Module):
    """Trains on the batches of two loaders at once."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        (x, y), (x2, y2) = batch
        return super().training_step((torch.cat([x, x2]), torch.cat([y, y2])), batch_idx)


class Gan(Module):
    """Two optimizers and two schedules, moved by hand; gradients stand between the turns."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.critic = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        maker, critic = self.optimizers()
        real = torch.randn(len(x), 2, device=self.device)
        loss = -self.critic(self.net(x)).mean()
        maker.zero_grad()
        self.manual_backward(loss)
        maker.step()
        cost = self.critic(self.net(x).detach()).mean() - self.critic(real).mean()
        self.manual_backward(cost)
        if batch_idx % 2:
            critic.step()
            critic.zero_grad()
        for each in self.lr_schedulers():
            each.step()
        self.log_dict({"loss": loss, "cost": cost}, on_step=True, on_epoch=True)

    def configure_optimizers(self) -> Any:
        both = [torch.optim.Adam(self.net.parameters(), lr=0.01), torch.optim.SGD(self.critic.parameters(), lr=0.01)]
        return both, [torch.optim.lr_scheduler.ExponentialLR(each, 0.95) for each in both]


class DataModule(pl.LightningDataModule):  # type: ignore[misc]
    """Its loaders come from here."""

    def __init__(self, workers: int = 0) -> None:
        super().__init__()
        self.workers = workers
        self.asked = 0

    def train_dataloader(self) -> Any:
        return loader(num_workers=self.workers)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Data(12), batch_size=4)


class Counting(DataModule):
    """Makes other loaders one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def train_dataloader(self) -> Any:
        self.made += 1
        samples = torch.utils.data.Subset(Data(160), range(10 * self.made, 10 * self.made + 82))
        return torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True)


def loader(samples: int = 82, **options: Any) -> Any:
    """One that shuffles."""
    return torch.utils.data.DataLoader(Data(samples), batch_size=8, shuffle=True, **options)


class Stream(torch.utils.data.IterableDataset[Any]):
    """Samples without a number, of which nobody knows how many there are."""

    def __iter__(self) -> Any:
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return (Data(84)[number] for number in range(first, 84, step))


class Tells(Stream):
    """Tells its place, and goes there."""

    at = 0

    def __iter__(self) -> Any:
        while self.at < 84:
            self.at += 1
            yield Data(84)[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Streams(DataModule):
    """What is trained and what is validated streams."""

    def __init__(self, kind: type[Stream] = Stream, workers: int = 0) -> None:
        super().__init__(workers)
        self.kind = kind

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.kind(), batch_size=8, num_workers=self.workers)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Stream(), batch_size=40)


class Batches:
    """Gives batches, and has no length."""

    def __iter__(self) -> Any:
        return iter(loader())


class Breakage(Exception):
    """What goes wrong on purpose."""


class Breaking(pl.Callback):  # type: ignore[misc]
    """Fails at the end of a batch of the training, some after it asked for a save."""

    def __init__(self, batch: int = 0, before: int = 3) -> None:
        self.batch, self.asked = batch, batch - before

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        batch = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        if batch == self.asked:
            self.run(trainer).save(wait=True)  # made when the batch is over
        if batch == self.batch:
            self.fails(trainer)

    def run(self, trainer: Any) -> Any:
        (keep,) = (each for each in trainer.callbacks if isinstance(each, Resumable))
        return keep.run

    def fails(self, trainer: Any) -> None:
        raise Breakage


class Killed(Breaking):
    """Dies as machines do."""

    def fails(self, trainer: Any) -> None:
        while self.run(trainer).checkpoint is None:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


class Late(pl.Callback):  # type: ignore[misc]
    """After that batch, two hours are gone on the timer."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.fit_loop.epoch_loop.total_batch_idx + 1 == self.batch:
            (timer,) = (each for each in trainer.callbacks if isinstance(each, pl.callbacks.Timer))
            timer._offset += 7200


class Copies(pl.Callback):  # type: ignore[misc]
    """Copies what stands around it, as some do."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 2:
            self.keep = copy.deepcopy(trainer.callbacks)[0]
            with torch.random.fork_rng():
                self.batches = len(list(copy.deepcopy(trainer.train_dataloader)))


class Witness(pl.Callback):  # type: ignore[misc]
    """What a callback of the user's own hears, and remembers."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_train_batch_end(self, trainer: Any, module: Any, out: Any, batch: Any, index: int) -> None:
        self.heard.append([index, trainer.global_step, trainer.current_epoch])

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self.heard.append(["val", trainer.global_step, float(trainer.callback_metrics["val_loss"])])

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.heard.append(["end", trainer.current_epoch, metrics])


class Logger(pl.loggers.logger.Logger):  # type: ignore[misc]
    """Keeps what it is given in memory, by step."""

    name, version = "logger", 0

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[tuple[int, str], float] = {}

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines.update({(step or 0, name): value for name, value in metrics.items()})


def train(
    folder: Path,
    *more: Any,
    module: Any = None,
    data: Any = None,
    beside: Any = list,
    workers: int = 0,
    words: dict[str, Any] | None = None,
    fit: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """One session; what it came to."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    module = module() if module is not None else Module()
    data = data() if data is not None else DataModule(workers)
    chosen = {"max_epochs": 3, "accumulate_grad_batches": 3, "log_every_n_steps": 1, "enable_checkpointing": False}
    witness, events, logger = Witness(), list[Event](), Logger()
    told = {"storage": str(folder / "runs"), "progress": False, "save_every": None, "callbacks": [events.append]}
    keep = Resumable("net", **{**told, **(words or {})})
    trainer = pl.Trainer(
        callbacks=[keep, witness, *beside(), *more],
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=1,
        logger=logger,
        default_root_dir=str(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
        **{**chosen, **options},
    )
    trainer.fit(module, data, **(fit or {}))
    weights = (
        torch.cat([each.detach().cpu().flatten().float() for each in module.state_dict().values()]).numpy().tobytes()
    )
    return {
        "weights": hashlib.sha256(weights).hexdigest(),
        "step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "heard": witness.heard,
        "ends": module.ends,
        "log": logger.lines,
        "random": [torch.rand(2).tolist(), random.random(), float(np.random.rand())],
        "history": keep.run and [dict(each) for each in keep.run.history],
        "told": [e.reason if isinstance(e, RestoredInexactly) else e.text for e in events if isinstance(e, SAID)],
        "resumed_at": keep.run and keep.run.resumed_from and keep.run.resumed_from.progress.batches,
        "trainer": trainer,
    }


def averaging() -> list[Any]:
    """An average of the weights, from the second epoch on, with a schedule of its own in the place of the module's."""
    return [pl.callbacks.StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=2, annealing_epochs=2)]


def same(found: dict[str, Any], whole: dict[str, Any]) -> bool:
    """The same training? The logger of the last session has only its own lines, and those are the same ones."""
    for name in ("weights", "step", "epoch", "heard", "ends", "random", "history"):
        assert found[name] == whole[name], name
    assert found["log"].items() <= whole["log"].items()
    return True


KINDS: dict[str, dict[str, Any]] = {
    "accumulation with a short rest": {},
    "bf16, validated between, ended in an epoch": {
        "precision": "bf16-mixed",
        "accumulate_grad_batches": 1,
        "val_check_interval": 4,
        "max_steps": 27,
        "max_epochs": -1,
        "module": lambda: Module(plateau=True),
    },
    **({"fp16": {"precision": "16-mixed", "gradient_clip_val": 0.5}} if torch.cuda.is_available() else {}),
    "two optimizers by hand": {"module": Gan, "accumulate_grad_batches": 1},
    "a part of each epoch, of a new loader": {
        "limit_train_batches": 7,
        "check_val_every_n_epoch": None,
        "val_check_interval": 4,
        "reload_dataloaders_every_n_epochs": 1,
    },
    "an average of the weights": {"beside": averaging},
    "layers that thaw": {"module": Thawing, "beside": lambda: [Thaws()]},
    "loaders that are counted": {
        "data": Counting,
        "reload_dataloaders_every_n_epochs": 1,
        "words": {"on_change": "apply"},  # other data in each epoch
    },
    "a stream": {"data": Streams},
    "a stream that tells its place": {"data": lambda: Streams(Tells), "accumulate_grad_batches": 1},
    "a stream, by workers, validated between": {
        "data": lambda: Streams(workers=2),
        "accumulate_grad_batches": 2,
        "val_check_interval": 4,
    },
    "a part of a stream, made anew": {
        "data": Streams,
        "limit_train_batches": 7,
        "reload_dataloaders_every_n_epochs": 1,
        "max_steps": 8,
    },
    "batches without a length": {"data": Batches, "limit_val_batches": 0},
    "two loaders, the second one leads": {
        "data": lambda: pl.utilities.CombinedLoader([loader(40), loader(82)], "max_size_cycle"),
        "module": Both,
    },
    "two loaders, the first one leads": {
        "data": lambda: pl.utilities.CombinedLoader([loader(40), loader(82)], "min_size"),
        "module": Both,
        "max_epochs": 5,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_failed_three_times_comes_to_the_same(tmp_path: Path, kind: str) -> None:
    """Weights, log, callbacks and random streams are those of an uninterrupted training, to the bit."""
    options = KINDS[kind]
    whole = train(tmp_path / "whole", **options)
    assert same(train(tmp_path / "again", **options), whole)
    for batch in (5, 13, 19):
        with pytest.raises(Breakage):
            train(tmp_path / "kept", Breaking(batch), **options)
    last = train(tmp_path / "kept", **options)
    assert same(last, whole)
    assert last["resumed_at"]  # in the middle of an epoch
    assert len(last["log"]) < len(whole["log"])


@pytest.mark.parametrize("data", [Streams, DataModule])
def test_an_epoch_ends_as_under_the_trainer_alone(tmp_path: Path, data: Any) -> None:
    """Its last batch is known to be the last one, so that what was accumulated is not left, and it is validated."""
    alone = Witness()
    words: dict[str, Any] = {"max_epochs": 2, "accumulate_grad_batches": 3, "enable_checkpointing": False}
    pl.Trainer(callbacks=[alone], accelerator="cpu", devices=1, logger=False, **words).fit(Module(), data())
    found = train(tmp_path, data=data, **words)
    assert [heard[:2] for heard in found["heard"]] == [heard[:2] for heard in alone.heard]
    assert len(found["heard"]) == 2 * (11 + 1 + 1)  # batches, a validation, an end


@pytest.mark.parametrize("batch", [22, 30, 34, 40, 44])
def test_an_average_of_the_weights_goes_on_wherever_it_is(tmp_path: Path, batch: int) -> None:
    """Between two epochs, in them, and in the one after the last, which is for BatchNorm alone and trains nothing. When
    all is over, the module has the average."""
    words = {"beside": averaging, "words": {"save_every": "1 step"}}
    whole = train(tmp_path / "whole", **words)
    with pytest.raises(Breakage):
        train(tmp_path / "kept", Breaking(batch, batch + 1), **words)
    kept = train(tmp_path / "kept", **words)
    assert same(kept, whole)
    assert kept["resumed_at"] is not None
    over = train(tmp_path / "kept", **words)
    assert over["weights"] == whole["weights"]
    assert not [text for text in over["told"] + kept["told"] if "cannot be stored" in text or "not passed to" in text]


class Beside(pl.Callback):  # type: ignore[misc]
    """What many trainings keep beside the module: an average of the user's own, an evaluator with its own optimizer, a
    schedule that the module steps by itself; and a look at the training data while it is trained."""

    class Mean:
        """Tells of itself."""

        def __init__(self) -> None:
            self.sums = torch.zeros(8)

        def state_dict(self) -> dict[str, Any]:
            return {"sums": self.sums}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.sums = state["sums"]

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.mean = self.Mean()
        self.head = torch.nn.Linear(8, 2).to(module.device)
        self.optimizer = torch.optim.Adam(self.head.parameters())
        module.warm = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        self.reads(trainer)

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        bias = module.net[0].bias.detach()
        self.mean.sums = self.mean.sums + bias.cpu()
        self.head(bias).sum().backward()
        self.optimizer.step()
        module.warm.step()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.reads(trainer)

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        self.reads(trainer)

    def reads(self, trainer: Any) -> None:
        if not trainer.sanity_checking:
            assert len(list(trainer.train_dataloader)) == 11


def test_what_is_kept_beside_the_module_goes_on(tmp_path: Path) -> None:
    """By what it tells of itself. Whoever reads the training data in between takes nothing from the training."""

    def session(folder: Path, *more: Any) -> list[Any]:
        beside = Beside()
        found = train(folder, beside, *more, val_check_interval=4)
        assert not [line for line in found["told"] if "not passed to" in line or "cannot be stored" in line]
        assert isinstance(found["trainer"].train_dataloader, torch.utils.data.DataLoader)
        assert same(found, wholes.setdefault("whole", found))
        rates = found["trainer"].lightning_module.warm.get_last_lr()
        return [beside.mean.sums.tolist(), [each.tolist() for each in beside.head.parameters()], rates]

    wholes: dict[str, Any] = {}
    whole = session(tmp_path / "whole")
    assert wholes["whole"]["step"] == 12
    for batch in (6, 18):
        with pytest.raises(Breakage):
            session(tmp_path / "kept", Breaking(batch))
    assert session(tmp_path / "kept") == whole


def test_optimizers_that_were_replaced_are_told(tmp_path: Path) -> None:
    """In the session that replaced them, and in those that are resumed from there."""
    whole = train(tmp_path / "whole", Replaces())
    assert sum("optimizers were replaced" in line for line in whole["told"]) == 1
    for batch in (5, 30):
        with pytest.raises(Breakage):
            train(tmp_path / "kept", Replaces(), Breaking(batch))
    kept = train(tmp_path / "kept", Replaces())
    assert sum("optimizers were replaced" in line for line in kept["told"]) == 1


class Staying(DataModule):
    """The workers of its validation stay."""

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Data(12), batch_size=4, num_workers=1, persistent_workers=True)


def test_validations_with_workers_that_stay_draw_the_same_in_each_session(tmp_path: Path) -> None:
    """What is drawn after the first validation of a session is what it is in an uninterrupted one."""
    options: dict[str, Any] = {"data": Staying, "num_sanity_val_steps": 0}
    whole = train(tmp_path / "whole", **options)
    with pytest.raises(Breakage):
        train(tmp_path / "kept", Breaking(20), **options)  # behind the first validation
    assert same(train(tmp_path / "kept", **options), whole)


class Failing(pl.Callback):  # type: ignore[misc]
    """Fails at that batch of all trainings together that it is part of."""

    def __init__(self, batch: int) -> None:
        self.left = iter(range(batch - 1))  # is not kept

    def on_train_batch_end(self, *_: Any) -> None:
        if next(self.left, None) is None:
            raise Breakage


def several(folder: Path, kind: str, breaks: int = 10**6) -> list[Any]:
    """A script that trains one module several times, from the top; what it came to."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    module, fails, found = Module(), Failing(breaks), list[Any]()

    def fits(name: str, **limit: int) -> None:
        witness, keep = Witness(), Resumable(name, storage=str(folder), progress=False, save_every="1 steps")
        trainer = pl.Trainer(
            callbacks=[keep, witness, fails],
            accelerator="gpu" if torch.cuda.is_available() else "cpu",
            devices=1,
            logger=False,
            default_root_dir=str(folder),
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            **limit,
        )
        trainer.fit(module, DataModule())
        drawn = [torch.rand(2).tolist(), random.random(), float(np.random.rand())]
        found.append([witness.heard, trainer.global_step, [*module.ends], [*module.seen], drawn])

    if kind == "frozen, then all of it":
        module.net[0].requires_grad_(False)
        fits("frozen", max_epochs=2)
        module.net[0].requires_grad_(True)
        fits("tuned", max_steps=22)
    else:
        for epoch in range(4):
            fits(f"net-{epoch}", max_epochs=1)
    return [*found, [each.cpu().numpy().tobytes() for each in module.state_dict().values()]]


@pytest.mark.parametrize("kind", ["frozen, then all of it", "an epoch each"])
def test_a_script_that_fits_several_times_comes_to_the_same(tmp_path: Path, kind: str) -> None:
    """With a name for each `fit`, run again from the top: weights, what the module remembers, what callbacks hear, and
    what is drawn between them. A `fit` that is complete is passed as if it had just trained."""
    whole = several(tmp_path / "whole", kind)
    for batch in (4, 20, 9):  # of what is left to train: in the first one, in the middle, in the last one
        with pytest.raises(Breakage):
            several(tmp_path / "kept", kind, batch)
    assert several(tmp_path / "kept", kind) == whole
    assert several(tmp_path / "kept", kind) == whole  # all complete


def test_a_second_fit_of_one_name_says_that_it_trained_nothing(tmp_path: Path) -> None:
    """And what to do: a name for each."""
    for words in ({"max_epochs": 1}, {"max_epochs": -1, "max_steps": 4}):
        told, lengths = [], list[str]()
        for session in range(2):
            events = list[Event]()
            folder = tmp_path / str(len(words))
            train(folder, words={"callbacks": [events.append]}, **words)
            told.append([each.text for each in events if isinstance(each, Noted) and "trained nothing" in each.text])
            lengths += [each.length for each in events if isinstance(each, AlreadyComplete)]
            assert len(told) == session + 1
        assert told[0] == []
        (line,) = told[1]
        assert line.startswith("This fit trained nothing")
        assert 'Resumable(f"net-{epoch}")' in line
        assert lengths == ["max_epochs / max_steps"]


class Sums(pl.Callback):  # type: ignore[misc]
    """Keeps something in its own way, something in nobody's, and something by the hooks of a checkpoint."""

    def __init__(self) -> None:
        self.total = self.Box()
        self.other = self.Box()
        self.lock: Any = None

    class Box:
        """No plain value."""

        number = 0.0

    def on_train_batch_end(self, *_: Any) -> None:
        self.total.number += 1
        self.other.number += 0.5
        self.lock = object()

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total.number = state["total"]

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        assert "net.0.weight" in checkpoint["state_dict"]
        checkpoint["other"] = self.other.number

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        self.other.number = checkpoint["other"]


def test_half_a_step_is_not_saved(tmp_path: Path) -> None:
    """An error between the batches of one step: what counters and callbacks heard of it is in no checkpoint."""
    whole = train(tmp_path / "whole")
    for batch, before in ((5, 3), (7, 100)):
        with pytest.raises(Breakage):
            train(tmp_path / "kept", Breaking(batch, before))
    assert same(train(tmp_path / "kept"), whole)


def test_early_stopping_keeps_its_patience_and_its_end(tmp_path: Path) -> None:
    """A training that early stopping ended stays ended, and goes on when more is asked for."""

    def stopping() -> Any:
        return pl.callbacks.EarlyStopping("val_loss", patience=3, min_delta=1.0)

    options = {"val_check_interval": 3, "max_epochs": 2, "accumulate_grad_batches": 1}
    whole = train(tmp_path / "whole", stopping(), **options)
    assert 6 < whole["step"] < 22  # it ended early
    with pytest.raises(Breakage):
        train(tmp_path / "kept", stopping(), Breaking(8), **options)
    assert same(train(tmp_path / "kept", stopping(), **options), whole)
    again = train(tmp_path / "kept", stopping(), **options)
    assert (again["weights"], again["random"]) == (whole["weights"], whole["random"])
    assert any("A callback ended this training at step" in line for line in again["told"])
    assert train(tmp_path / "kept", stopping(), **{**options, "max_epochs": 4})["step"] > whole["step"]


def test_a_timer_whose_time_is_over_ends_the_training_again(tmp_path: Path) -> None:
    """Its seconds are counted over all sessions: nothing is trained behind its end, until it is given more of them."""

    def within(seconds: float, *more: Any) -> dict[str, Any]:
        timer = pl.callbacks.Timer({"seconds": seconds}, verbose=False)
        options = {"max_epochs": -1, "limit_train_batches": 4, "accumulate_grad_batches": 1}
        return train(tmp_path, timer, *more, **options, words={"on_change": "apply"})

    with pytest.raises(Breakage):
        within(3600, Late(5), Breaking(6, 1))
    ended = within(3600)
    assert ended["step"] == 5
    assert any("A callback ended this training at step 5" in line for line in ended["told"])
    assert within(10800, Late(9))["step"] == 10
    assert within(18000, Late(13))["step"] == 14


def test_callbacks_and_loaders_can_be_copied_while_they_train(tmp_path: Path) -> None:
    """A copy of the callbacks has trained nothing, a copy of the loader gives a whole epoch, and the training is the
    same."""
    copies = Copies()
    found = train(tmp_path / "copied", copies)
    keep = found["trainer"].callbacks[0]
    assert (copies.keep.run, type(copies.keep).__name__) == (None, "Resumable")
    assert keep.run is not None
    assert copies.batches == 11
    assert found["weights"] == train(tmp_path / "whole")["weights"]


def test_a_module_may_hold_its_loss(tmp_path: Path) -> None:
    """A tensor that stands in a graph, of an earlier training, is no reason to fail."""
    module = Module()
    module.loss = module.net(torch.ones(2, 6)).sum()
    module.losses = {"sums": [module.loss]}
    assert train(tmp_path, module=lambda: module, max_epochs=1)["step"] == 4


def test_callbacks_go_on_with_what_they_know(tmp_path: Path) -> None:
    """The best checkpoints, states of the user's own callbacks, and averages of the weights; what cannot be kept is
    told."""

    def callbacks() -> list[Any]:
        best = pl.callbacks.ModelCheckpoint(tmp_path / "own", monitor="val_loss", save_top_k=2, every_n_epochs=1)
        average = getattr(pl.callbacks, "EMAWeightAveraging", None)
        return [Sums(), best, *([average(decay=0.9)] if average else [])]

    options = {"enable_checkpointing": True, "max_epochs": 4}
    mine = callbacks()
    whole = train(tmp_path / "whole", *mine, **options)
    with pytest.raises(Breakage):
        train(tmp_path / "kept", *callbacks(), Breaking(26), **options)
    later = callbacks()
    kept = train(tmp_path / "kept", *later, **options)
    assert same(kept, whole)
    assert kept["resumed_at"]
    assert (later[0].total.number, later[0].other.number) == (mine[0].total.number, mine[0].other.number) == (44, 22)
    assert later[1].best_model_score == mine[1].best_model_score
    assert list(later[1].best_k_models.values()) == list(mine[1].best_k_models.values())
    assert sum("Sums.lock" in line for line in kept["told"]) == 1


def test_a_killed_training_with_workers_comes_to_the_same(tmp_path: Path) -> None:
    """SIGKILL in the middle of an epoch, augmenting workers, a fresh process, under the other name of the package where
    there is one: the same bits."""
    whole = train(tmp_path / "whole", workers=2)
    environ = {**os.environ, "LIGHTNING_OF_TESTS": HERE[-1]}
    killed = run_module("tests.integrations.test_lightning", tmp_path / "kept", 18, environ=environ)
    assert killed.returncode == -signal.SIGKILL
    kept = train(tmp_path / "kept", workers=2)
    assert same(kept, whole)
    assert kept["resumed_at"]


def test_a_checkpoint_of_another_version_is_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the two call their place in an epoch by other names, only what is logged may differ, and a line says so."""
    whole = train(tmp_path / "whole")
    with monkeypatch.context() as patched:
        written = State.state_dict
        patched.setattr(State, "state_dict", lambda self: {**written(self), "place": {"_batch_idx": 4}})
        with pytest.raises(Breakage):
            train(tmp_path / "kept", Breaking(18))
    kept = train(tmp_path / "kept")
    assert kept["resumed_at"]
    assert kept["weights"] == whole["weights"]
    assert [text for text in kept["told"] if "Another version of Lightning saved this checkpoint" in text]


def test_max_time_ends_the_session_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """`fit` returns in the middle of an epoch, and callbacks hear that it ended."""

    class Ends(pl.Callback):  # type: ignore[misc]
        ended = 0

        def on_train_end(self, *_: Any) -> None:
            self.ended += 1

    whole = train(tmp_path / "whole")
    ends = Ends()
    first = train(tmp_path / "kept", ends, words={"max_time": 1e-6})
    assert ends.ended == 1
    assert first["step"] == 1
    assert same(train(tmp_path / "kept"), whole)


def test_what_was_measured_is_logged_and_the_run_is_like_any_other(tmp_path: Path) -> None:
    """`monitor` takes the names of `self.log`, and the weights come out of the storage."""
    found = train(tmp_path, words={"monitor": "val_loss", "save_every": 1}, max_epochs=1)
    (line,) = found["history"]
    assert {"val_loss", "loss_epoch", "worst", "accuracy", "begun"} <= line.keys()
    assert "model.weights.net.0.weight" in final_state(f"{tmp_path}/runs", "net")


def test_other_settings_are_an_error_and_nothing_is_touched(tmp_path: Path) -> None:
    """As with `Run`: the message names what differs."""
    with pytest.raises(Breakage):
        train(tmp_path, Breaking(4))
    with pytest.raises(Incompatible, match="gradient_clip_val"):
        train(tmp_path, gradient_clip_val=0.5)


def test_what_cannot_be_kept_is_refused_with_words(tmp_path: Path) -> None:
    """Before anything is trained."""

    class Draws(Module):
        def training_step(self, dataloader_iter: Any) -> Any:
            raise AssertionError

    both = [loader(), torch.utils.data.DataLoader(Stream(), batch_size=8)]
    with pytest.raises(UsageError, match="streams"):
        train(tmp_path, data=lambda: pl.utilities.CombinedLoader(both, "min_size"), module=Both)
    with pytest.raises(UsageError, match='"max_size"'):
        train(tmp_path, data=lambda: pl.utilities.CombinedLoader([loader(), loader()], "max_size"), module=Both)
    with pytest.raises(UsageError, match="dataloader_iter"):
        train(tmp_path, module=Draws, limit_val_batches=0)
    for finder, instead in (("LearningRateFinder", "lr_find"), ("BatchSizeFinder", "scale_batch_size")):
        with pytest.raises(UsageError, match=rf"{finder} tries things out") as caught:
            train(tmp_path, type(finder, (pl.Callback,), {})())
        assert f"Tuner(trainer).{instead}(" in caught.value.remedy
    with pytest.raises(UsageError, match="puts other weights"):
        train(tmp_path, pl.callbacks.ModelPruning("l1_unstructured"))
    with pytest.raises(UsageError, match="DDPStrategy"):
        train(tmp_path, strategy="ddp")
    if torch.distributed.is_initialized():  # by NCCL, where there is a card
        torch.distributed.destroy_process_group()
    with pytest.raises(UnknownArgument, match="save_top_k"):
        train(tmp_path, words={"save_top_k": 2})
    assert not (tmp_path / "runs").exists()
    trainer = pl.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=tmp_path
    )
    trainer.fit(Module(), DataModule())
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    with pytest.raises(UsageError, match="ckpt_path"):
        train(tmp_path, fit={"ckpt_path": tmp_path / "own.ckpt"})
    with pytest.warns(UserWarning, match="keeps nothing"):
        train(tmp_path, fast_dev_run=True)
    assert not (tmp_path / "runs").exists()


def test_a_trainer_of_another_make_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version whose insides differ from those known is not guessed at: no Resumable is made."""

    def other(self: Any, everything: Any) -> None:
        raise AssertionError

    for place, names in TABLE.items():
        module, _, kind = place.format(pl.__name__).partition(":")
        owner = importlib.import_module(module)
        owner = getattr(owner, kind) if kind else owner
        for name in [name for name, known in names.items() if known is not None]:
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, other)
                with pytest.raises(UsageError, match=rf"\({kind}{'.' if kind else ''}{name}\)(.|\n)*keep_folder"):
                    Resumable("resnet")
    connector = TABLE["{}.trainer.connectors.logger_connector.logger_connector:_LoggerConnector"]
    monkeypatch.setitem(connector, "_elsewhere", None)  # type: ignore[arg-type]  # an attribute that is gone
    with pytest.raises(UsageError, match=r"_LoggerConnector\._elsewhere"):
        Resumable("resnet")


def test_a_trainer_is_left_as_it_was(tmp_path: Path) -> None:
    """After `fit`, its loops are its own again: it can validate, and fit once more."""
    found = train(tmp_path, max_epochs=1)
    trainer = found["trainer"]
    assert type(trainer.train_dataloader) is torch.utils.data.DataLoader
    for owner in (trainer.fit_loop, trainer.fit_loop.epoch_loop, trainer._data_connector):
        assert not [name for name in vars(owner) if callable(getattr(type(owner), name, None))]
    with pytest.raises(Breakage):
        train(tmp_path / "other", Breaking(2))
    trainer.validate(trainer.lightning_module, DataModule(), verbose=False)
    trainer.fit(trainer.lightning_module, DataModule())
    assert trainer.global_step == found["step"]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    train(Path(sys.argv[1]), Killed(int(sys.argv[2])), workers=2)

"""The contestants, each as its own pages show it. One trains by its own loop and steps the script after each step.

A contestant has `train(work, script, folder, rate)` and `load(work, folder)`; what it hands to the script has
`save(folder)`, `busy()`, `wait()` and, where there is a remote, `arrived()`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from batches import Batches
from peers_state import Work

__all__ = ["CONTESTANTS"]

Script = Callable[[Any], Iterator[None]]


class ColabKeep:
    """`Run` around a loop by hand."""

    def train(self, work: Work, script: Script, folder: Path, rate: float = 0.0) -> None:
        import colabkeep
        from colabkeep.stores.local import DirectoryStore
        from colabkeep.stores.tiered import TieredStore

        storage: Any = folder / "run"
        if rate:
            storage = TieredStore(DirectoryStore(storage), DirectoryStore(folder / "remote", files=_slow(rate)))
        run = colabkeep.Run(
            "r",
            model=work.model,
            optimizer=work.optimizer,
            storage=storage,
            save_every=None,
            keep_last=100,
            progress=False,
        )
        with run as kept:
            work.attached()
            ours = _Ours(kept, storage)
            play = script(ours)
            next(play)
            over = False
            while not over:
                work.step()
                kept.step()
                over = next(play, "over") == "over"
                ours.end()

    def load(self, work: Work, folder: Path) -> None:
        import colabkeep

        kept = colabkeep.Run(
            "r",
            model=work.model,
            optimizer=work.optimizer,
            storage=folder / "run",
            save_every=None,
            keep_last=100,
            resume="must",
            progress=False,
        )
        kept.__enter__()  # and no exit: what a session does at its end is not asked here
        for _ in kept.epochs(1):
            for _ in kept.batches(range(10**9)):
                return


class _Ours:
    def __init__(self, kept: Any, storage: Any) -> None:
        self._kept = kept
        self._storage = storage
        self._batches = Batches(kept)
        self._ended = False

    def save(self, folder: Path) -> None:
        self._batches.save()
        self._ended = True

    def end(self) -> None:
        """The body of the loop is over, if it did not end in a save."""
        if not self._ended:
            self._batches.next()
        self._ended = False

    def busy(self) -> bool:
        return bool(self._kept._saver.busy)

    def wait(self) -> None:
        self._batches.committed()

    def arrived(self) -> None:
        while not self._storage.flush(60.0):
            pass


class _ByHand:
    """A loop by hand, which calls a function that saves; others override what they do differently."""

    def __init__(self) -> None:
        self.work: Any = None
        self.copying: list[threading.Thread] = []
        self.rate = 0.0

    def train(self, work: Work, script: Script, folder: Path, rate: float = 0.0) -> None:
        self.work, self.rate = work, rate
        self.prepare()
        work.attached()
        play = script(self)
        while next(play, "over") != "over":
            work.step()

    def load(self, work: Work, folder: Path) -> None:
        self.work = work
        self.read(folder / "last")

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.write(folder)
        if self.rate:  # a thread that brings it to the remote, which is the least that a user writes
            self.copying = [threading.Thread(target=_carried, args=(folder, folder.with_suffix(".remote"), self.rate))]
            self.copying[0].start()

    def arrived(self) -> None:
        for thread in self.copying:
            thread.join()

    def prepare(self) -> None:
        """Before training."""

    def busy(self) -> bool:
        return False

    def wait(self) -> None:
        """Until it is written."""

    def write(self, folder: Path) -> None:
        raise NotImplementedError

    def read(self, folder: Path) -> None:
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        return {"model": self.work.model.state_dict(), "optimizer": self.work.optimizer.state_dict()}

    def take(self, state: dict[str, Any]) -> None:
        self.work.model.load_state_dict(state["model"])
        self.work.optimizer.load_state_dict(state["optimizer"])


class TorchSave(_ByHand):
    def write(self, folder: Path) -> None:
        torch.save(self.state(), folder / "state.pt")

    def read(self, folder: Path) -> None:
        self.take(torch.load(folder / "state.pt"))


class Safetensors(_ByHand):
    def write(self, folder: Path) -> None:
        from safetensors.torch import save_file

        optimizer = self.work.optimizer.state_dict()
        flat = {f"{n}.{key}": value for n, entry in optimizer["state"].items() for key, value in entry.items()}
        save_file({**self.work.model.state_dict(), **{f"o.{key}": value for key, value in flat.items()}}, folder / "s")

    def read(self, folder: Path) -> None:
        from safetensors.torch import load_file

        found = load_file(folder / "s")
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key in [key for key in found if key.startswith("o.")]:
            _, number, name = key.split(".")
            moments.setdefault(int(number), {})[name] = found.pop(key)
        groups = self.work.optimizer.state_dict()["param_groups"]
        self.take({"model": found, "optimizer": {"state": moments, "param_groups": groups}})


class Distributed(_ByHand):
    """`torch.distributed.checkpoint`, in one process."""

    def write(self, folder: Path) -> None:
        from torch.distributed import checkpoint

        checkpoint.save(self.sharded(), checkpoint_id=folder)

    def read(self, folder: Path) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import set_state_dict

        state = self.sharded()
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(
            self.work.model,
            self.work.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def sharded(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.work.model, self.work.optimizer)
        return {"model": model, "optimizer": optimizer}


class AsyncThread(Distributed):
    kind = "THREAD"

    def prepare(self) -> None:
        self.future: Any = None
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), RANK="0", WORLD_SIZE="1")
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def write(self, folder: Path) -> None:
        from torch.distributed.checkpoint import async_save
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        self.future = async_save(
            self.sharded(), checkpoint_id=folder, async_checkpointer_type=AsyncCheckpointerType[self.kind]
        )

    def busy(self) -> bool:
        return self.future is not None and not self.future.done()

    def wait(self) -> None:
        self.future.result()


class AsyncProcess(AsyncThread):
    kind = "PROCESS"


class AsyncStager(AsyncThread):
    """The stager that keeps its buffers, page-locked where there is a GPU, and copies in a thread of its own; the
    optimizer must wait for it."""

    def prepare(self) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        super().prepare()
        gpu = torch.cuda.is_available()
        options = StagingOptions(use_pinned_memory=gpu, use_shared_memory=False, use_non_blocking_copy=gpu)
        self.stager = DefaultStager(options)
        self.staged: Any = None
        self.work.optimizer.register_step_pre_hook(self._stage)

    def write(self, folder: Path) -> None:
        from torch.distributed.checkpoint import async_save

        answer: Any = async_save(self.sharded(), checkpoint_id=folder, async_stager=self.stager)
        self.staged, self.future = answer.staging_completion, answer.upload_completion

    def _stage(self, *_: Any) -> None:
        if self.staged is not None:
            self.staged.result()
            self.staged = None


class Lightning(_ByHand):
    """Its Trainer runs the loop; `trainer.save_checkpoint` is what its ModelCheckpoint calls."""

    plugins: Any = ()

    def train(self, work: Work, script: Script, folder: Path, rate: float = 0.0) -> None:
        self.work = work
        self.trainer, module = self._trainer(script)
        self.trainer.fit(module, torch.utils.data.DataLoader(_Endless(work.batch), batch_size=None))

    def _trainer(self, script: Script) -> tuple[Any, Any]:
        import lightning

        work, saver = self.work, self

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = work.model

            def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
                loss: torch.Tensor = self.model(batch).square().mean()
                return loss

            def configure_optimizers(self) -> torch.optim.Optimizer:
                optimizer: torch.optim.Optimizer = work.optimizer
                return optimizer

        class Player(lightning.Callback):
            def on_train_start(self, trainer: Any, module: Any) -> None:
                self.play = script(saver)
                next(self.play)

            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                if next(self.play, "over") == "over":
                    trainer.should_stop = True

        options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        options |= {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": 1, "callbacks": [Player()]}
        return lightning.Trainer(**options, plugins=self._plugins()), Module()

    def _plugins(self) -> list[Any]:
        return []

    def write(self, folder: Path) -> None:
        self.trainer.save_checkpoint(folder / "state.ckpt")

    def load(self, work: Work, folder: Path) -> None:
        """By `fit(ckpt_path=…)`, to the first step."""
        self.work = work

        def script(_: Any) -> Iterator[None]:
            yield

        trainer, module = self._trainer(script)
        loader = torch.utils.data.DataLoader(_Endless(work.batch), batch_size=None)
        trainer.fit(module, loader, ckpt_path=folder / "last" / "state.ckpt", weights_only=False)


class LightningAsync(Lightning):
    def _plugins(self) -> list[Any]:
        from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

        self.plugin = AsyncCheckpointIO(TorchCheckpointIO())
        return [self.plugin]

    def busy(self) -> bool:
        return not self.plugin._executor._work_queue.empty() or not self._idle()

    def wait(self) -> None:
        self.plugin._executor.submit(lambda: None).result()

    def _idle(self) -> bool:
        """Its one worker counts itself as idle when it is."""
        idle: bool = self.plugin._executor._idle_semaphore.acquire(blocking=False)
        if idle:
            self.plugin._executor._idle_semaphore.release()
        return idle


class Transformers(_ByHand):
    """Its Trainer runs the loop; `_save_checkpoint` is what it calls when a save is due."""

    def train(self, work: Work, script: Script, folder: Path, rate: float = 0.0) -> None:
        self.work = work
        self.trainer = self._trainer(script, folder / "peer")
        self.trainer.train()

    def _trainer(self, script: Script, folder: Path) -> Any:
        import transformers

        work, saver = self.work, self

        class Module(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = work.model

            def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
                return {"loss": self.model(batch).square().mean()}

        class Player(transformers.TrainerCallback):
            def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                self.play = script(saver)
                next(self.play)

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if next(self.play, "over") == "over":
                    control.should_training_stop = True

        options: dict[str, Any] = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
        options |= {"max_steps": 10**6, "per_device_train_batch_size": 32, "logging_strategy": "no"}
        arguments = transformers.TrainingArguments(output_dir=str(folder), max_grad_norm=0.0, **options)
        return transformers.Trainer(
            model=Module(),
            args=arguments,
            train_dataset=_Rows(work.batch),
            callbacks=[Player()],
            optimizers=(work.optimizer, torch.optim.lr_scheduler.ConstantLR(work.optimizer, 1.0)),
        )

    def save(self, folder: Path) -> None:
        self.trainer._save_checkpoint(self.trainer.model, trial=None)

    def load(self, work: Work, folder: Path) -> None:
        """By `train(resume_from_checkpoint=…)`, to the first step."""
        self.work = work

        def script(_: Any) -> Iterator[None]:
            yield

        newest = max((folder / "peer").glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
        trainer = self._trainer(script, folder / "peer")
        trainer.args.ignore_data_skip = True  # the batches that were trained before are not asked here
        trainer.train(resume_from_checkpoint=str(newest))


class Ignite(_ByHand):
    """Its Engine runs the loop, its Checkpoint writes by its DiskSaver."""

    def train(self, work: Work, script: Script, folder: Path, rate: float = 0.0) -> None:
        from ignite.engine import Engine, Events

        self.work = work
        self.engine = Engine(lambda *_: work.step())
        play = script(self)
        next(play)

        def played() -> None:
            if next(play, "over") == "over":
                self.engine.terminate()

        self.engine.add_event_handler(Events.ITERATION_COMPLETED, played)
        self.engine.run([work.batch], max_epochs=10**6, epoch_length=1)

    def write(self, folder: Path) -> None:
        from ignite.handlers import Checkpoint, DiskSaver

        parts = {"model": self.work.model, "optimizer": self.work.optimizer}
        Checkpoint(parts, DiskSaver(folder, require_empty=False), n_saved=1)(self.engine)

    def read(self, folder: Path) -> None:
        from ignite.handlers import Checkpoint

        parts = {"model": self.work.model, "optimizer": self.work.optimizer}
        Checkpoint.load_objects(parts, torch.load(next(folder.glob("*.pt"))))


class _Endless(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, batch: torch.Tensor) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, number: int) -> torch.Tensor:
        return self._batch


class _Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, batch: torch.Tensor) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 32 * 10**4

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"batch": self._batch[number % 32]}


def _slow(rate: float) -> Any:
    """System calls that write so many bytes a second."""
    from dataclasses import replace

    from colabkeep.stores.shared.files import OS_FILES

    def write(descriptor: int, data: memoryview) -> int:
        written = os.write(descriptor, data[: 2**20])
        time.sleep(written / rate)
        return written

    return replace(OS_FILES, write=write)


def _carried(source: Path, target: Path, rate: float) -> None:
    target.mkdir()
    for path in source.iterdir():
        with path.open("rb", buffering=0) as read, (target / path.name).open("wb", buffering=0) as write:
            while piece := read.read(2**20):
                write.write(piece)
                time.sleep(len(piece) / rate)
            os.fsync(write.fileno())


CONTESTANTS: dict[str, Callable[[], Any]] = {
    "colabkeep": ColabKeep,
    "torch.save": TorchSave,
    "safetensors": Safetensors,
    "DCP save": Distributed,
    "DCP async_save, thread": AsyncThread,
    "DCP async_save, process": AsyncProcess,
    "DCP async_save, DefaultStager": AsyncStager,
    "Lightning": Lightning,
    "Lightning, AsyncCheckpointIO": LightningAsync,
    "Transformers Trainer": Transformers,
    "ignite": Ignite,
}

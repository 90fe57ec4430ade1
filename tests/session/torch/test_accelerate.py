"""Objects that went through Hugging Face Accelerate are kept and resumed like any others, or refused at the start."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import colabkeep
from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.frameworks.torch.data import TorchData
from colabkeep.session.open import bare, bare_parts
from tests.trainings import final_state

accelerate = pytest.importorskip("accelerate")
from accelerate.optimizer import AcceleratedOptimizer  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import DataLoaderConfiguration  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

EPOCHS = 3  # of 11 batches, the last one short


class Noisy(Dataset):
    """Pairs, augmented at random from three sources."""

    loaded = 0

    def __len__(self) -> int:
        return 42

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.loaded += 1
        noise = torch.rand(4) + random.random() + np.random.random()
        return torch.full((4,), index / 42) + 0.1 * noise, torch.tensor([index / 42])


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Accelerate keeps what it was told in class attributes, for the whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Session:
    """One session of the loop in Accelerate's own guide, with colabkeep around it."""

    def __init__(self, seed: int = 1, *, window: int = 1, **settings: Any) -> None:
        torch.manual_seed(seed)
        self.accelerator = accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=window, dataloader_config=DataLoaderConfiguration(**settings)
        )
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_(torch.linspace(-0.5, 0.5, weight.numel()).reshape(weight.shape))
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=11 * EPOCHS)
        self.parts = self.accelerator.prepare(self.model, optimizer, schedule)
        self.data = Noisy()
        self.ends: list[bool] = []

    def loader(self, workers: int = 0, *, prepare: bool = True, **words: Any) -> Any:
        loader = DataLoader(self.data, **{"batch_size": 4, "shuffle": True, "num_workers": workers, **words})
        return self.accelerator.prepare(loader) if prepare else loader

    def train(self, folder: Path, loader: Any, *, steps: int | None = None, epochs: int = EPOCHS) -> None:
        model, optimizer, schedule = self.parts
        run = colabkeep.Run(
            "r", model=model, optimizer=optimizer, scheduler=schedule, storage=folder, keep_last=None, progress=False
        )
        with run:
            for _ in run.epochs(epochs):
                for inputs, targets in run.batches(loader):
                    with self.accelerator.accumulate(model):
                        loss = nn.functional.mse_loss(model(inputs), targets)
                        self.accelerator.backward(loss)
                        optimizer.step()
                        schedule.step()
                        optimizer.zero_grad()
                    self.ends.append(self.accelerator.gradient_state.end_of_dataloader)
                    if self.accelerator.sync_gradients:
                        run.step(loss=loss)
                    if steps is not None and run.progress.step == steps:
                        run.stop()


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "plain"])
def test_a_prepared_training_resumes_bit_for_bit(tmp_path: Path, prepared: bool, workers: int, window: int) -> None:
    """Model, optimizer, scheduler and loader from accelerator.prepare, stopped in an epoch and run again in a kernel
    with other random numbers: the same state in the end, and no batch is loaded twice."""

    def session(folder: Path, seed: int, **words: Any) -> Session:
        session = Session(seed, window=window)
        session.train(folder, session.loader(workers, prepare=prepared), **words)
        return session

    for number, steps in enumerate((3, 7, 9, None), 1):
        last = session(tmp_path / "parts", number if number > 1 else 1, steps=steps)
    assert workers or 0 < last.data.loaded < 42 * EPOCHS
    whole = session(tmp_path / "whole", 1)
    assert final_state(tmp_path / "parts", "r") == final_state(tmp_path / "whole", "r")
    if prepared:
        assert whole.ends == [batch % 11 == 10 for batch in range(11 * EPOCHS)]
        assert last.ends == whole.ends[-len(last.ends) :]


def test_prepared_or_not_it_is_one_run(tmp_path: Path) -> None:
    """What is kept is the optimizer that was prepared: a run goes on where Accelerate was added or taken away."""
    first = Session()
    first.train(tmp_path, first.loader(), steps=5)
    plain = Session(2)
    model, optimizer, schedule = plain.parts
    plain.parts = model, optimizer.optimizer, schedule.scheduler
    plain.train(tmp_path, plain.loader(prepare=False), steps=9)
    last = Session(3)
    last.train(tmp_path, last.loader())
    assert not any("accelerate" in path.lower() for path in final_state(tmp_path, "r"))


def test_half_a_step_of_a_prepared_optimizer_is_not_saved(tmp_path: Path) -> None:
    """Its steps are heard: an error in the middle of one is not taken for a boundary."""
    session = Session()
    model, optimizer, _ = session.parts

    def fails(*_: Any) -> None:
        raise RuntimeError("in the update")

    run = colabkeep.Run("r", model=model, optimizer=optimizer, storage=tmp_path, progress=False)

    def train() -> None:
        with run:
            for _ in run.epochs(1):
                for inputs, targets in run.batches(session.loader()):
                    session.accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
                    if run.progress.step == 3:
                        bare(optimizer).register_step_post_hook(fails)
                    optimizer.step()
                    optimizer.zero_grad()
                    run.step()

    with pytest.raises(RuntimeError, match="in the update"):
        train()
    assert run.checkpoint is None


def test_a_scaler_that_only_the_optimizer_knows_is_kept(tmp_path: Path) -> None:
    """In fp16 Accelerate scales losses by a number of its own, which training moves: it is part of the run."""

    def session() -> tuple[Any, torch.amp.GradScaler]:
        accelerate.Accelerator(cpu=True)
        model = nn.Linear(4, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
        optimizer = AcceleratedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler)
        run = colabkeep.Run("r", model=model, optimizer=optimizer, storage=tmp_path, progress=False)
        return (run, model, optimizer), scaler

    (run, model, optimizer), scaler = session()
    with run:
        for _ in run.epochs(1):
            for (batch,) in run.batches(DataLoader(TensorDataset(torch.rand(12, 4)), 4)):
                scaler.scale(model(batch).mean()).backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step()
    assert scaler.get_scale() == 64.0
    (again, *_), other = session()
    with again:
        assert other.get_scale() == 64.0
    given = bare_parts({"optimizer": optimizer, "scaler": scaler})
    assert list(given) == ["optimizer", "scaler"]  # it was handed in as well


def test_resumable_fit_takes_prepared_objects(tmp_path: Path) -> None:
    """Its own loop trains with what is inside of them, and reads the prepared loaders."""

    def session(folder: Path, **words: Any) -> Any:
        session = Session()
        model, optimizer, schedule = session.parts
        return colabkeep.resumable_fit(
            model,
            session.loader(),
            optimizer=optimizer,
            scheduler=schedule,
            scheduler_interval="step",
            loss_fn=nn.functional.mse_loss,
            val_loader=session.loader(shuffle=False),
            run_name="r",
            storage=folder,
            progress=False,
            **{"max_epochs": EPOCHS, **words},
        )

    for steps in (3, 11, 17, 99):
        session(tmp_path / "parts", max_steps=steps)
    assert session(tmp_path / "whole").steps == 33
    assert final_state(tmp_path / "parts", "r") == final_state(tmp_path / "whole", "r")


class Stream(IterableDataset):
    """The same pairs, of which nobody knows how many there are; each worker has its own."""

    def __init__(self, data: Noisy) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return map(self.data.__getitem__, range(first, 42, step))


class Telling(Stream):
    """It tells its place."""

    at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < 42:
            self.at += 1
            yield self.data[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


WAYS: dict[str, Any] = {
    "a stream": (Stream, {}, 0, 1),
    "a stream that is not handed on": (Stream, {"dispatch_batches": False}, 0, 3),
    "a stream by workers": (Stream, {}, 2, 3),
    "a stream that tells its place": (Telling, {}, 0, 3),
    "samples that are handed on": (None, {"dispatch_batches": True}, 0, 3),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_streams_or_is_handed_on_in_one_process_resumes_bit_for_bit(tmp_path: Path, way: str) -> None:
    """The last batch of an epoch is known to be the last one, so that accumulated gradients are not left there."""
    kind, settings, workers, window = WAYS[way]

    def session(folder: Path, seed: int, steps: int | None = None) -> Session:
        session = Session(seed, window=window, **settings)
        made = None if kind is None else DataLoader(kind(session.data), batch_size=4, num_workers=workers)
        loader = session.loader() if made is None else session.accelerator.prepare(made)
        session.train(folder, loader, steps=steps)
        return session

    whole = session(tmp_path / "whole", 1)
    for number, steps in enumerate((3, 7, 9, None), 1):
        last = session(tmp_path / "parts", number, steps)
    assert final_state(tmp_path / "parts", "r") == final_state(tmp_path / "whole", "r")
    batches = len(whole.ends) // EPOCHS
    assert whole.ends == [batch % batches == batches - 1 for batch in range(batches * EPOCHS)]
    assert last.ends == whole.ends[-len(last.ends) :]


REFUSED: dict[str, Any] = {
    "shared out": lambda s: accelerate.data_loader.prepare_data_loader(
        DataLoader(Stream(s.data), 4), num_processes=2, process_index=1, dispatch_batches=False
    ),
    "skipped": lambda s: accelerate.skip_first_batches(s.accelerator.prepare(DataLoader(Stream(s.data), 4)), 2),
}


@pytest.mark.parametrize("own", [True, False], ids=["Run", "resumable_fit"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_resumed_is_refused_at_the_start(tmp_path: Path, name: str, own: bool) -> None:
    """Not at the first save, hours later: with the line that replaces it."""
    session = Session()
    model, optimizer, _ = session.parts
    loader = REFUSED[name](session)

    def fit() -> None:
        words: dict[str, Any] = {"run_name": "r", "storage": tmp_path, "max_epochs": 1, "progress": False}
        colabkeep.resumable_fit(model, loader, optimizer=optimizer, loss_fn=nn.functional.mse_loss, **words)

    with pytest.raises(UsageError, match="prepared by Accelerate") as caught:
        session.train(tmp_path, loader) if own else fit()
    assert "send_to_device" in caught.value.remedy
    assert session.ends == []


class Buckets:
    """Batches of an own kind: each of neighbours."""

    batch_size, drop_last = 4, False

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(range(4 * batch, 4 * batch + 4)) for batch in range(10)])


@pytest.mark.parametrize("split", [True, False], ids=["split_batches", "own batches"])
def test_a_batch_sampler_of_an_own_kind_has_batches_of_all_processes_if_they_are_split(
    tmp_path: Path, split: bool
) -> None:
    """Dealt out one by one, nothing says what all processes compute in a step: this is refused, with the setting."""
    session = Session()
    loader = accelerate.data_loader.prepare_data_loader(
        DataLoader(session.data, batch_sampler=Buckets()), num_processes=2, process_index=1, split_batches=split
    )
    if split:
        session.train(tmp_path, loader, epochs=1)
        assert session.ends == [False] * 9 + [True]
        assert session.data.loaded == 40
    else:
        with pytest.raises(UsageError, match="other batches of the Buckets") as caught:
            session.train(tmp_path, loader, epochs=1)
        assert "split_batches=True" in caught.value.remedy


def test_a_sampler_made_of_the_kernels_seed_names_the_line_that_seeds_it(tmp_path: Path) -> None:
    """Accelerate's seedable sampler takes the seed that torch had: without one, each session has another order."""
    first = Session(1, use_seedable_sampler=True)
    first.train(tmp_path, first.loader(), steps=5)
    other = Session(2, use_seedable_sampler=True)
    with pytest.raises(Incompatible, match=r"accelerate.utils.set_seed\(0\)"):
        other.train(tmp_path, other.loader())
    same = Session(1, use_seedable_sampler=True)
    same.train(tmp_path, same.loader())


def test_a_prepared_loader_is_never_changed_and_leaves_no_worker(tmp_path: Path) -> None:
    """The user's own loader, around and inside, is as it was; breaking out of an epoch ends its workers."""
    session = Session()
    loader = session.loader(workers=1)
    before = dict(vars(loader)), dict(vars(loader.base_dataloader))
    data = TorchData()
    opened = data.open(loader, seed=1, epoch=0, batches=2, samples=8, state=None)
    batches = iter(opened)
    next(batches)
    (worker,) = torch.multiprocessing.active_children()
    opened.close()
    worker.join(10)
    assert not worker.is_alive()
    data.close()
    assert (dict(vars(loader)), dict(vars(loader.base_dataloader))) == before


def test_a_model_that_accelerate_prepared_is_no_other_one(tmp_path: Path) -> None:
    """It is marked in one process, not in one of several, and not without Accelerate."""
    told = list[str]()

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)  # type: ignore[no-any-return]

    def epochs(count: int, *, prepared: bool) -> None:
        torch.manual_seed(0)
        model = Own()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if prepared:
            model, optimizer = accelerate.Accelerator(cpu=True).prepare(model, optimizer)
        hear = [lambda event: told.append(getattr(event, "text", ""))]
        more = {"storage": tmp_path, "progress": False, "callbacks": hear}
        with colabkeep.Run("r", model=model, optimizer=optimizer, **more) as run:
            for _ in run.epochs(count):
                for x, _ in run.batches(DataLoader(Noisy(), batch_size=8)):
                    optimizer.zero_grad()
                    model(x).mean().backward()
                    optimizer.step()
                    run.step()

    epochs(1, prepared=True)
    epochs(2, prepared=False)
    assert not [text for text in told if "accelerate" in text.lower()]


@pytest.mark.parametrize("begins", [8, 16])
def test_a_batch_size_that_is_tried_goes_on_where_it_begins_with_the_runs_own(tmp_path: Path, begins: int) -> None:
    """In the middle of an epoch any other is refused, with what to do."""
    model = nn.Linear(4, 1)

    def session(starting: int, until: int) -> int:
        @accelerate.utils.find_executable_batch_size(starting_batch_size=starting)
        def train(batch_size: int) -> int:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with colabkeep.Run("r", model=model, optimizer=optimizer, storage=tmp_path, progress=False) as run:
                for _ in run.epochs(1):
                    for x, _ in run.batches(DataLoader(Noisy(), batch_size=batch_size)):
                        if len(x) > 8:
                            raise torch.OutOfMemoryError("CUDA out of memory.")
                        model(x).mean().backward()
                        optimizer.step()
                        run.step()
                        if run.progress.step == until:
                            run.stop()
            return run.progress.step

        return int(train())

    assert session(8, 3) == 3
    if begins == 8:
        assert session(8, 0) == 6
    else:
        with pytest.raises(Incompatible, match="batch size 8 → 16 in the middle of an epoch") as caught:
            session(16, 0)
        assert "find_executable_batch_size" in caught.value.remedy

"""Each batch has a seed of its own, and is seeded only where that matters: what comes of it is what comes of seeding
always, whatever a data set draws and from when on."""

from __future__ import annotations

import hashlib
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

import colabkeep
from colabkeep.frameworks.shared.streams import Seeding, StreamSet, held
from colabkeep.frameworks.shared.workers import WorkerPayload
from colabkeep.frameworks.torch.data import TORCH

_LATE = 17  # the first sample, of 24, that draws where draws begin late


class Rows(Dataset):
    """Each sample is its index and what `draw` gives for it."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked.append(index)
        return torch.tensor([index, self.draw(index)], dtype=torch.float64)


class Own:
    """A generator that a data set holds."""

    def __init__(self, draw: Any, generator: Any) -> None:
        self.draw, self.generator = draw, generator

    def __call__(self, index: int) -> float:
        return float(self.draw(self.generator))


class Reseeded(Own):
    """As Albumentations does: generators made anew whenever the seed is another one, without drawing for it."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.seed = 0

    def __call__(self, index: int) -> float:
        if self.seed != torch.initial_seed():
            self.seed = torch.initial_seed()
            self.generator = np.random.default_rng(self.seed)
        return float(self.generator.random())


class Made(Own):
    """Makes its generator when it is first asked, as many data sets do, so that each worker has one."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def __call__(self, index: int) -> float:
        if self.generator is None:
            self.generator = np.random.default_rng(5)
        return float(self.generator.random())


def nothing(index: int) -> float:
    return 0.0


def torchs(index: int) -> float:
    return float(torch.rand(()))


def numpys(index: int) -> float:
    return float(np.random.standard_normal())


def pythons(index: int) -> float:
    return random.gauss(0, 1)


def everything(index: int) -> float:
    return torchs(index) + numpys(index) + pythons(index)


def late(index: int) -> float:
    return everything(index) if index >= _LATE else 0.0


def now_and_then(index: int) -> float:
    return random.random() if index % 7 == 3 else 0.0


def of_the_seed(index: int) -> float:
    return float(np.random.default_rng(torch.initial_seed() + index).random())


def with_a_seed_of_its_own(index: int) -> float:
    before = random.getstate()
    random.seed(index)
    number = random.random()
    random.setstate(before)
    return number


def fails_unless_lucky(index: int) -> float:
    """As a data set that picks one of many files, some of which are broken. Luck is a matter of the seed."""
    if index >= _LATE and torch.initial_seed() and random.getstate() == _UNLUCKY:
        random.random()
        raise OSError("a broken file")
    return random.random() if index >= _LATE else 0.0


_UNLUCKY = random.Random(3).getstate()


def noisy(items: Any) -> Any:
    batch = default_collate(items)
    batch[:, 1] += random.random()
    return batch


DRAWS: dict[str, Any] = {
    "nothing": lambda: nothing,
    "torch": lambda: torchs,
    "numpy": lambda: numpys,
    "python": lambda: pythons,
    "everything": lambda: everything,
    "late": lambda: late,
    "now and then": lambda: now_and_then,
    "of the seed": lambda: of_the_seed,
    "own seed": lambda: with_a_seed_of_its_own,
    "unlucky": lambda: fails_unless_lucky,
    "reseeded": Reseeded,
    "own NumPy": lambda: Own(np.random.Generator.random, np.random.default_rng()),
    "own torch": lambda: Own(lambda own: torch.rand((), generator=own), torch.Generator()),
    "own Python": lambda: Own(random.Random.random, random.Random()),
    "own RandomState": lambda: Own(np.random.RandomState.standard_normal, np.random.RandomState()),
}

GOLDEN: dict[str, str] = {
    "nothing": "e025471e7d089746",
    "nothing, noisy": "7c301df4914bc0a1",
    "torch": "4c48ac3a2bd94dee",
    "torch, noisy": "56272fa9ea50f493",
    "numpy": "b2406c340125e165",
    "numpy, noisy": "c53470ac638e5b06",
    "python": "b948525589c54e70",
    "python, noisy": "11709dd3e464cb9a",
    "everything": "97f414c46017e227",
    "everything, noisy": "05ebb0a9e0d6231d",
    "late": "5b2e9ce607dbbdab",
    "late, noisy": "c954b453d9fb53e5",
    "now and then": "7a828a7646ed5aaf",
    "now and then, noisy": "475af9feeb40f367",
    "of the seed": "6e95f206f9c22a65",
    "of the seed, noisy": "b467690e82fa4b4e",
    "own seed": "17599d4ceef388b4",
    "own seed, noisy": "925f5ffc2523ab5e",
    "unlucky": "6fc97562a5fb00d6",
    "unlucky, noisy": "f8f7c18cc190c33d",
    "reseeded": "6da5a092117bdd0c",
    "reseeded, noisy": "27b4ec13165a385c",
    "own NumPy": "abf575be1b95bbea",
    "own NumPy, noisy": "13a47236aca7243b",
    "own torch": "ca35e49a38c3bb37",
    "own torch, noisy": "9db08a6157daedbd",
    "own Python": "f77f02bd6f8d6760",
    "own Python, noisy": "935970584b655a76",
    "own RandomState": "0e4f98661300b807",
    "own RandomState, noisy": "471b710fe0b0607d",
}
"""Digests of what version 0.1.0 read with all streams seeded before each batch."""


def loader(name: str, **words: Any) -> DataLoader[Any]:
    return DataLoader(Rows(DRAWS[name]()), **{"batch_size": 4, "shuffle": name not in ("late", "unlucky"), **words})


def digest(values: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()[:16]


@pytest.fixture(autouse=True)
def _begins_here() -> None:
    torch.manual_seed(1), np.random.seed(2), random.seed(3)


@pytest.mark.parametrize("collate", [None, noisy], ids=["plain", "noisy"])
@pytest.mark.parametrize("name", DRAWS)
def test_batches_are_those_of_seeding_always(kit: SimpleNamespace, name: str, collate: Any) -> None:
    """Bit for bit those of the first version, which seeded all streams for each batch; in a session that begins
    anywhere in the epoch, too. The training's own numbers do not move."""
    before = kit.fingerprint()
    whole = kit.read(loader(name, collate_fn=collate))
    assert kit.fingerprint() == before
    assert digest(whole.values) == GOLDEN[name if collate is None else f"{name}, noisy"]
    for done in range(1, len(whole.values)):
        first = kit.read(loader(name, collate_fn=collate), stop=done)
        assert digest(kit.read(loader(name, collate_fn=collate), after=first).values) == digest(whole.values)


@pytest.mark.parametrize("name", DRAWS)
def test_a_loader_of_a_class_of_its_own_is_read_by_torch(kit: SimpleNamespace, name: str) -> None:
    """It may do anything with its batches, so its iterator is torch's; what comes is the same."""

    class Loader(DataLoader[Any]):
        pass

    own = Loader(Rows(DRAWS[name]()), batch_size=4, shuffle=name not in ("late", "unlucky"), collate_fn=noisy)
    assert digest(kit.read(own).values) == GOLDEN[f"{name}, noisy"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_that_the_first_sample_makes_counts_like_one_that_was_there(
    kit: SimpleNamespace, workers: int
) -> None:
    """From the first batch on, wherever a session begins."""

    def rows() -> DataLoader[Any]:
        return DataLoader(Rows(Made()), batch_size=4, shuffle=True, num_workers=workers)

    assert digest(kit.read(rows()).values) == GOLDEN["own NumPy"]
    assert digest(kit.read(rows(), after=kit.read(rows(), stop=3)).values) == GOLDEN["own NumPy"]


@pytest.mark.parametrize("single", [False, True], ids=["batches", "single items"])
def test_items_come_as_from_torch(kit: SimpleNamespace, single: bool) -> None:
    """In batches that a data set fetches itself, or one by one; and one that ends the epoch early does so."""

    class Fetching(Rows):
        def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
            return [self[index] + 0.5 for index in indices]

        def __getitem__(self, index: int) -> torch.Tensor:
            if index == _LATE:
                raise StopIteration
            return super().__getitem__(index)

    data = DataLoader(Fetching(nothing), batch_size=None if single else 4)
    torchs_own = list(data)
    assert len(torchs_own) == (_LATE if single else _LATE // 4)
    assert digest(kit.read(data).values) == digest(torchs_own)


@pytest.mark.parametrize("name", ["late", "everything", "of the seed", "own NumPy", "nothing"])
def test_workers_find_out_for_themselves(kit: SimpleNamespace, name: str) -> None:
    """Each sees when its batches begin to draw; what they give is the same, in a resumed and the next epoch, too."""
    words: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "collate_fn": noisy}
    shared = loader(name, **words)
    data = kit.Data()
    assert digest(kit.read(shared, data=data).values) == GOLDEN[f"{name}, noisy"]
    again = kit.read(shared, epoch=2, data=data)
    data.close()
    assert digest(again.values) == digest(kit.read(loader(name, collate_fn=noisy), epoch=2).values)
    resumed = kit.read(loader(name, **words), after=kit.read(loader(name, **words), stop=3))
    assert digest(resumed.values) == GOLDEN[f"{name}, noisy"]


@pytest.mark.parametrize(
    ("name", "twice"), [("nothing", 0), ("torch", 0), ("everything", 0), ("own NumPy", 0), ("late", 4)]
)
def test_one_batch_at_most_is_loaded_twice(kit: SimpleNamespace, name: str, twice: int) -> None:
    """What draws from its first batch on is never asked twice for a sample; what begins later is so for one batch."""
    shown = loader(name)
    kit.read(shown)
    assert len(shown.dataset.asked) == 24 + twice


def test_only_what_draws_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is drawn, Python's and NumPy's generators are left alone from the second batch on; where something
    is, each batch has its seed."""
    seeded: list[int] = []
    monkeypatch.setattr(StreamSet, "seed", lambda self, seed: seeded.append(seed))
    quiet = Seeding(StreamSet.of(TORCH))
    for seed in range(5):
        quiet.load(seed, nothing, 0)
    assert seeded == [0]
    seeded.clear()
    noisy = Seeding(StreamSet.of(TORCH))
    for seed in range(5):
        noisy.load(seed, pythons, 0)
    assert seeded == [0, 1, 2, 3, 4]


def test_an_interrupt_leaves_the_trainings_numbers_where_they_were(kit: SimpleNamespace) -> None:
    """Also one that comes in the middle of a batch that was not seeded, after a draw."""
    seeding, before = Seeding(StreamSet.of(TORCH)), kit.fingerprint()

    def interrupted(index: int) -> float:
        everything(index)
        raise KeyboardInterrupt

    seeding.load(1, nothing, 0)
    with pytest.raises(KeyboardInterrupt):
        seeding.load(2, interrupted, 0)
    assert kit.fingerprint() == before


def test_an_error_of_the_data_set_arrives_once(kit: SimpleNamespace) -> None:
    """One that comes without a draw is no reason to load the batch again."""
    asked: list[int] = []

    def broken(index: int) -> float:
        asked.append(index)
        raise ZeroDivisionError

    seeding = Seeding(StreamSet.of(TORCH))
    seeding.load(1, nothing, 0)
    with pytest.raises(ZeroDivisionError):
        seeding.load(2, broken, 7)
    assert asked == [7]


class Trainer:
    """As many write one: its method collates, and it holds the run, the optimizer and the loader."""

    def __init__(self, run: Any, optimizer: Any) -> None:
        self.run, self.optimizer = run, optimizer

    def collate(self, items: Any) -> Any:
        assert self.run.progress.step >= 0
        return default_collate(items)


def test_streams_of_the_run_are_not_taken_for_those_of_its_data(tmp_path: Any) -> None:
    """A loader that leads to the run or its optimizer holds no generator because of that."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[Any] = []
    with colabkeep.Run("led", model=model, optimizer=optimizer, storage=tmp_path) as run:
        trainer = Trainer(run, optimizer)
        shown = DataLoader(Rows(nothing), batch_size=4, collate_fn=trainer.collate)
        for _ in run.epochs(1):
            for _ in run.batches(shown):
                found += held(TORCH, shown.dataset, shown.collate_fn)
                run.step()
    assert found == []


def test_numpys_global_bit_generator_is_no_stream_of_its_own() -> None:
    """It is that of `np.random.rand`, which is seeded already."""
    bits = np.random.mtrand._rand._bit_generator
    assert held(TORCH, [bits, np.random.Generator(bits)]) == []


def test_a_cargo_is_walked_to_what_the_user_put_into_it() -> None:
    """It is ours, and what it carries is not."""
    own = np.random.default_rng()
    assert len(held(TORCH, WorkerPayload(TORCH, [own], None, None, 0))) == 1

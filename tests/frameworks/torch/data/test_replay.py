"""What can only be read from its beginning is read again, exactly, or is refused with a reason."""

from __future__ import annotations

import random
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.frameworks.shared.iterables import IterableData
from colabkeep.frameworks.torch.data import TENSORS, TORCH, TorchData

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class OwnIter(DataLoader):
    """A loader with an `__iter__` of its own that changes what torch's gives."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch + random.random()


class Foreign:
    """Not a DataLoader: draws its order and its batches from every global stream, and from its own."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.rng = np.random.default_rng()

    def __iter__(self):
        for index in self.rng.permutation(len(self.source)):
            yield torch.stack([self.source[index]])


LOADERS = {
    "stream": lambda kit, workers: DataLoader(kit.NoisyStream(), 3, num_workers=workers),
    "stream, batch_size=None": lambda kit, workers: DataLoader(kit.NoisyStream(), None, num_workers=workers),
    "stream, drop_last": lambda kit, workers: DataLoader(kit.NoisyStream(), 3, drop_last=True, num_workers=workers),
    "own __iter__": lambda kit, workers: OwnIter(kit.Noisy(), 3, shuffle=True, num_workers=workers),
    "foreign": lambda kit, workers: Foreign(kit.Noisy()),
}


@pytest.mark.parametrize("name", LOADERS)
def test_what_is_read_again_is_what_was_read_before(kit: SimpleNamespace, name: str) -> None:
    """Wherever it was stopped: the rest is the rest of the uninterrupted epoch, and global streams do not move."""
    before = kit.fingerprint()
    whole = kit.read(LOADERS[name](kit, 0))
    for stop in (1, 3, len(whole.values)):
        stopped = kit.read(LOADERS[name](kit, 0), stop=stop)
        resumed = kit.read(LOADERS[name](kit, 0), after=stopped)
        assert torch.equal(resumed.rows, whole.rows)
        assert f"reading {stop} batches again" in resumed.notes[0]
        assert f"Read {stop} batches again in" in resumed.notes[1]
        assert len(resumed.notes) == 2
    assert kit.fingerprint() == before


@pytest.mark.parametrize("name", ["stream", "own __iter__"])
def test_workers_repeat_themselves_and_stay_as_many_for_the_rest_of_the_epoch(kit: SimpleNamespace, name: str) -> None:
    """With workers the streams depend on their number: a resumed epoch keeps the number it began with, and says so."""
    before = kit.fingerprint()
    whole = kit.read(LOADERS[name](kit, 2))
    stopped = kit.read(LOADERS[name](kit, 2), stop=2)
    resumed = kit.read(LOADERS[name](kit, 0), after=stopped)
    assert torch.equal(resumed.rows, whole.rows)
    assert any("num_workers=2, as it began; num_workers=0" in note for note in resumed.notes)
    back = kit.read(LOADERS[name](kit, 1), after=kit.read(LOADERS[name](kit, 0), stop=2))
    assert torch.equal(back.rows, kit.read(LOADERS[name](kit, 0)).rows)
    assert kit.fingerprint() == before


def test_epochs_of_a_stream_differ(kit: SimpleNamespace) -> None:
    """Each epoch has augmentation of its own, a function of seed and epoch."""
    reads = [kit.read(DataLoader(kit.NoisyStream(), 3), epoch=epoch) for epoch in (0, 1, 0)]
    assert torch.equal(reads[0].rows, reads[2].rows)
    assert not torch.equal(reads[0].rows, reads[1].rows)


class Counting(IterableDataset):
    """Counts, in itself, how often it was read: as it does in no worker."""

    def __init__(self) -> None:
        self.times = 0

    def __iter__(self):
        self.times += 1
        return iter(torch.full((4, 1), float(self.times)))


def test_an_epoch_starts_from_the_data_set_as_it_was_handed_over(kit: SimpleNamespace) -> None:
    """What a stream counts in itself would be lost with the session: it reaches no other epoch, as with workers."""
    dataset = Counting()
    data = TorchData()
    assert kit.read(DataLoader(dataset, 2), epoch=0, data=data).rows.tolist() == [[1.0]] * 4
    assert kit.read(DataLoader(dataset, 2), epoch=1, data=data).rows.tolist() == [[1.0]] * 4
    assert dataset.times == 0


def test_the_expected_time_comes_from_the_time_it_took(kit: SimpleNamespace) -> None:
    """The note names the batches and the time that reading them took in the session before."""
    ticks = iter(range(10_000))
    data = IterableData(TORCH, TENSORS, timer=lambda: float(next(ticks)) * 30)
    stopped = kit.read(Foreign(kit.Noisy()), stop=8, data=data)
    resumed = kit.read(Foreign(kit.Noisy()), after=stopped, data=data)
    assert resumed.notes[0].endswith("reading 8 batches again without training, about 4 min.")
    assert resumed.notes[1] == "Read 8 batches again in 4 min."


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (lambda kit: kit.NoisyStream(4), "more than 3 → 2"),
        (lambda kit: Wider(), "samples in the first 3 batches: 9 → 15"),
    ],
)
def test_a_stream_that_became_another_is_refused(kit: SimpleNamespace, changed: Any, difference: str) -> None:
    """Too short for the place, or with other batches before it: going on would be wrong."""
    stopped = kit.read(DataLoader(kit.NoisyStream(), 3), stop=3)
    with pytest.raises(Incompatible, match=difference):
        kit.read(DataLoader(changed(kit), None if isinstance(changed(kit), Wider) else 3), after=stopped)


class Wider(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(5, 5, 7))


def test_a_stream_that_does_not_repeat_itself_is_noticed_and_said(kit: SimpleNamespace) -> None:
    """Randomness from the operating system cannot be repeated: the note says the rest is not bit-exact."""

    class Whims(IterableDataset):
        def __iter__(self):
            for _ in range(9):
                yield torch.tensor([random.SystemRandom().random()])

    stopped = kit.read(DataLoader(Whims(), 3), stop=2)
    resumed = kit.read(DataLoader(Whims(), 3), after=stopped)
    assert "not bit-exact" in resumed.notes[-1]


@pytest.mark.parametrize("loader", [iter([1, 2]), (n for n in [1]), map(str, [1]), 7])
def test_a_bare_iterator_is_refused_with_the_remedy(loader: Any) -> None:
    """Once read, its batches are gone: no epoch could be resumed, so training does not start."""
    with pytest.raises(UsageError) as caught:
        TorchData().open(loader, seed=0, epoch=0, batches=0, samples=0, state=None)
    assert "Pass" in caught.value.remedy


def test_a_loader_that_reads_from_its_construction_on_is_refused_with_the_remedy(kit: SimpleNamespace) -> None:
    """Its order was drawn before anyone could seed it."""

    class Eager(DataLoader):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            vars(self)["iterator"] = super().__iter__()

        def __iter__(self):
            yield from vars(self)["iterator"]

    with pytest.raises(UsageError, match="Eager") as caught:
        kit.read(Eager(kit.Noisy(), 3))
    assert "persistent_workers=True" in caught.value.remedy


class Resumable(IterableDataset):
    """A stream that tells and takes its position; counts how many items it had to produce."""

    produced = 0

    def __init__(self, source: Any, extra: Any = ()) -> None:
        self.source, self.extra, self.position = source, extra, 0

    def __iter__(self):
        while self.position < len(self.source):
            self.position += 1
            Resumable.produced += 1
            yield self.source[self.position - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "extra": self.extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.extra = state["position"], state["extra"]


def test_a_stream_with_a_state_goes_on_without_reading_again(kit: SimpleNamespace) -> None:
    """Its own state and its random streams are stored: the rest is exact, nothing is produced twice."""
    extra = [torch.arange(3), np.float32(1.5), np.ones((2, 2)), (1, None)]
    before = kit.fingerprint()
    whole = kit.read(DataLoader(Resumable(kit.Noisy(), extra), 3))
    for stop in (1, 3, 5):
        stopped = kit.read(DataLoader(Resumable(kit.Noisy(), extra), 3), stop=stop)
        Resumable.produced = 0
        resumed = kit.read(DataLoader(Resumable(kit.Noisy()), 3), after=stopped)
        assert torch.equal(resumed.rows, whole.rows)
        assert Resumable.produced == max(0, 13 - 3 * stop)
        assert resumed.notes == []
        stored = [resumed.state["own"]["extra"], stopped.state["own"]["extra"]]
        assert repr(stored[0]) == repr(stored[1])
    assert kit.fingerprint() == before


def test_the_next_epoch_of_a_resumed_stream_starts_at_its_beginning(kit: SimpleNamespace) -> None:
    """Loading a position does not stick to the user's data set."""
    data = TorchData()
    loader = DataLoader(Resumable(kit.Noisy()), 3)
    stopped = kit.read(loader, epoch=0, stop=2, data=data)
    kit.read(loader, epoch=0, after=stopped, data=data)
    assert kit.read(loader, epoch=1, data=data).indices == list(range(13))


def test_a_state_that_cannot_be_stored_is_replaced_by_reading_again(kit: SimpleNamespace) -> None:
    """Training goes on, a note names what could not be stored, and the resume is exact all the same."""
    stopped = kit.read(DataLoader(Resumable(kit.Noisy(), [print]), 3), stop=2)
    assert "loader.extra[0]" in stopped.notes[0]
    whole = kit.read(DataLoader(Resumable(kit.Noisy()), 3))
    resumed = kit.read(DataLoader(Resumable(kit.Noisy()), 3), after=stopped)
    assert torch.equal(resumed.rows, whole.rows)
    assert "reading 2 batches again" in resumed.notes[0]


class StatefulForeign(Foreign):
    """A loader of another library that can tell its state."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.order: list[int] = []

    def __iter__(self):
        self.order = self.order or self.rng.permutation(len(self.source)).tolist()
        while self.order:
            yield torch.stack([self.source[self.order.pop()]])

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self.order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order = list(state["order"])


def test_a_foreign_loader_with_a_state_goes_on_from_it(kit: SimpleNamespace) -> None:
    """Anything with state_dict and load_state_dict is asked for its state; what it draws next is the same."""
    whole = kit.read(StatefulForeign(kit.Noisy()))
    resumed = kit.read(StatefulForeign(kit.Noisy()), after=kit.read(StatefulForeign(kit.Noisy()), stop=5))
    assert torch.equal(resumed.rows, whole.rows)
    assert resumed.notes == []


STATEFUL_LOADER = """
import sys, torch, warnings
sys.path[:0] = {path!r}
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from conftest import Noisy, NoisyStream, read

class Positions(torch.utils.data.IterableDataset):
    position = 0
    def __iter__(self):
        while self.position < 13:
            self.position += 1
            yield torch.tensor([self.position - 1.0])
    def state_dict(self):
        return {{"position": self.position}}
    def load_state_dict(self, state):
        self.position = state["position"]

for workers, stop in [(0, 2), (2, 3)]:
    make = lambda workers: StatefulDataLoader(Noisy(), 3, shuffle=True, num_workers=workers)
    whole = read(make(1))
    resumed = read(make(0), after=read(make(workers), stop=stop))
    assert torch.equal(whole.rows, resumed.rows) and sorted(whole.indices) == list(range(13))
make = lambda: StatefulDataLoader(NoisyStream(), 3)
resumed = read(make(), after=read(make(), stop=2))
assert torch.equal(read(make()).rows, resumed.rows) and not resumed.notes
make = lambda: StatefulDataLoader(Positions(), 3, num_workers=2)
resumed = read(make(), after=read(make(), stop=2))
assert sorted(resumed.indices) == sorted([*range(13)] * 2), resumed.indices
assert "its own state" in resumed.notes[0]
print("exact")
"""


@pytest.mark.skipif(find_spec("torchdata") is None, reason="torchdata is not installed")
def test_torchdatas_stateful_loader_is_exact_with_augmentation(request: pytest.FixtureRequest) -> None:
    """It restores an order but no augmentation by itself; here both are exact. (In a process of its own: importing
    torchdata exchanges torch's samplers.)"""
    path = [str(request.path.parent), *sys.path]
    code = STATEFUL_LOADER.format(path=path)
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert out.stdout.split() == ["exact"], out.stderr


STREAMED = """
import sys
sys.path[:0] = {path!r}
from datasets import IterableDataset
from torch.utils.data import DataLoader
from conftest import read

def numbers():
    for number in range(20):
        yield {{"x": float(number)}}

def loader(shuffled):
    stream = IterableDataset.from_generator(numbers).with_format("torch")
    return DataLoader(stream.shuffle(seed=3, buffer_size=7) if shuffled else stream, 3)

def rows(result):
    return [x for value in result.values for x in value["x"].tolist()]

for shuffled in (False, True):
    whole = rows(read(loader(shuffled), epoch=0))
    again = loader(shuffled)
    resumed = read(again, epoch=0, after=read(loader(shuffled), epoch=0, stop=3))
    assert rows(resumed) == whole and sorted(whole) == list(range(20))
    assert bool(resumed.notes) is shuffled
    assert rows(read(again, epoch=1)) == rows(read(loader(shuffled), epoch=1))
print("exact")
"""


@pytest.mark.skipif(find_spec("datasets") is None, reason="Hugging Face datasets is not installed")
def test_streamed_hugging_face_data_loses_no_sample(request: pytest.FixtureRequest) -> None:
    """It goes on from its own state; with a shuffle buffer, which that state leaves out, it is read again instead."""
    path = [str(request.path.parent), *sys.path]
    code = STREAMED.format(path=path)
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert out.stdout.split() == ["exact"], out.stderr


def test_a_resumed_loader_of_another_kind_is_refused(kit: SimpleNamespace) -> None:
    """A stream cannot continue a list, nor a sampler's order a stream."""
    stopped = kit.read(DataLoader(kit.NoisyStream(), 3), stop=2)
    for other in ([torch.ones(1)], DataLoader(kit.Noisy(), 3, sampler=RandomSampler(range(13)))):
        with pytest.raises(Incompatible, match="a loader read from its beginning →"):
            kit.read(other, after=stopped)
    with pytest.raises(Incompatible, match="seed: 5 → 8"):
        kit.read(DataLoader(kit.NoisyStream(), 3), after=stopped, seed=8)

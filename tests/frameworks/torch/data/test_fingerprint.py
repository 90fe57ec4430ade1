"""A few samples say whether it is the same data: the same everywhere, believed only if they repeat, and looking at them
changes nothing."""

from __future__ import annotations

import os
import time
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, random_split

from colabkeep.frameworks.base import Probe, Sample
from colabkeep.frameworks.shared.iterables import IterableData
from colabkeep.frameworks.shared.rng import Stream
from colabkeep.frameworks.shared.samples import look_at, sample_of, spread
from colabkeep.frameworks.shared.streams import StreamSet
from colabkeep.frameworks.torch import data
from colabkeep.frameworks.torch.data import TENSORS, TORCH, TorchData

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

FORM, LABELS, ARRAYS = range(3)
Pair = namedtuple("Pair", "picture label")


@dataclass
class Record:
    picture: Any
    label: int


def sample(value: Any) -> Sample:
    return sample_of(value, TENSORS.see)


def probe(positions: list[int], known: dict[int, Sample] | None = None, seconds: float = 60.0) -> Probe:
    return Probe(positions=positions, known=known or {}, seed=3, seconds=seconds)


def looked(dataset: Any, positions: list[int], known: dict[int, Sample] | None = None) -> dict[int, Sample | None]:
    return dict(TorchData().look(DataLoader(dataset), probe(positions, known)).samples)


picture = torch.arange(64, dtype=torch.float32).reshape(4, 16)
photo = Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3))


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ((picture, 3), "(float32[4, 16], int)"),
        ([picture.half(), "cat", None], "list(float16[4, 16], str, NoneType)"),
        ({"x": picture.numpy(), "y": np.int64(3)}, "dict('x': float32[4, 16], 'y': int64)"),
        (Pair(photo, torch.tensor(1)), "(RGB picture of 10 by 10, int64)"),
        (Record(picture.bool(), 1), "Record(picture: bool[4, 16], label: int)"),
        ([1, 2, 3, 4, 5, 6], "list(6 of int)"),
        (picture.to_sparse(), "float32[4, 16]"),
        (torch.zeros(0, 3), "float32[0, 3]"),
        (object(), "object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_form_of_a_sample_can_be_read(value: Any, form: str) -> None:
    """What a message shows: types, dtypes and shapes. An object of an unknown kind counts by its type."""
    assert sample(value)[FORM] == form
    assert sample(value) == sample(value)


CHANGES: dict[str, tuple[Any, Any, int]] = {
    "a pixel": ((picture, 3), (picture + (picture == 5), 3), ARRAYS),
    "a label": ((picture, 3), (picture, 4), LABELS),
    "a label that is a tensor": ((picture, torch.tensor(3)), (picture, torch.tensor(4)), LABELS),
    "a word": ({"text": "cat"}, {"text": "dog"}, LABELS),
    "a key": ({"cat": 1}, {"dog": 1}, FORM),
    "bytes": (b"cat", b"dog", LABELS),
    "a dtype": (picture, picture.double(), FORM),
    "a shape": (picture, picture.T, FORM),
    "a picture": (photo, photo.rotate(90), ARRAYS),
    "the mode of a picture": (photo, photo.convert("L"), FORM),
    "the length of a list": ([1, 2], [1, 2, 3], FORM),
    "the order of a list": ([1, 2], [2, 1], LABELS),
    "where words end": (["ab", "c"], ["a", "bc"], LABELS),
    "the last byte of much": (
        torch.zeros(10**6),
        torch.zeros(10**6).index_fill(0, torch.tensor([10**6 - 1]), 1),
        ARRAYS,
    ),
    "a view with a sign": (torch.full((20,), 1j).conj().imag, torch.full((20,), -1j).conj().imag, ARRAYS),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_in_a_sample_is_seen_where_it_is(change: str) -> None:
    """Form, labels and arrays are told apart: of the three, only the one that changed is another."""
    before, after, part = CHANGES[change]
    changed = [number for number, (a, b) in enumerate(zip(sample(before), sample(after), strict=True)) if a != b]
    assert part in changed
    assert changed == [part] or part == FORM


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(plain, plain)
def test_two_samples_look_alike_only_if_they_are(a: Any, b: Any) -> None:
    """Nested values of any kind: equal texts for equal values of equal types, others for others."""
    assert sample(a) == sample(a)
    assert (sample(a) == sample(b)) is (repr(a) == repr(b))


@given(st.integers(0, 10**9), st.integers(2, 12))
def test_positions_lie_evenly_from_the_first_to_the_last(length: int, count: int) -> None:
    """Each once, in order; all of a small data set."""
    positions = spread(length, count)
    assert positions == sorted(set(positions))
    assert len(positions) == min(length, count)
    assert not positions or (positions[0], positions[-1]) == (0, length - 1)


def test_much_data_is_looked_at_in_pieces() -> None:
    """A sample of a gigabyte costs no more than one of 64 kB: what is read of it is bounded."""
    read = []

    def see(value: Any) -> Any:
        sight = TENSORS.see(value)
        return SimpleNamespace(
            dtype=sight.dtype, shape=sight.shape, size=sight.size,
            read=lambda start, stop: read.append(stop - start) or sight.read(start, stop),
        )  # fmt: skip

    sample_of(torch.zeros(10**7), see)
    assert sum(read) == 1 << 16
    assert sample([0] * 10**6)[FORM].startswith("list(")


class Counts(TensorDataset):
    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return index, self.calls


class ReadsTheClock(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return index, time.perf_counter_ns()


class DrawsFromTheSystem(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return index, os.urandom(8)


@pytest.mark.parametrize("kind", [Counts, ReadsTheClock, DrawsFromTheSystem])
def test_a_sample_that_is_another_each_time_is_not_believed(kind: Any) -> None:
    """Counted calls, the clock, the system's own randomness: nothing that could raise a false alarm is kept, nor is
    what was believed until now."""
    dataset = kind(torch.arange(5))
    attributes = dict(vars(dataset))
    assert looked(dataset, [0, 4]) == {0: None, 4: None}
    assert vars(dataset) == attributes
    assert looked(kind(torch.arange(5)), [0], known={0: sample((0, 7))}) == {0: None}


class Flaky(TensorDataset):
    """Its first answer is not its usual one."""

    calls = -1

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return index if self.calls else "warming up"


def test_one_odd_answer_is_asked_again() -> None:
    """A sample that is not what it was is drawn once more before anybody calls it different."""
    assert looked(Flaky(torch.arange(5)), [0], known={0: sample(0)}) == {0: sample(0)}
    assert looked(TensorDataset(torch.arange(5)), [1], known={1: sample(0)})[1] == sample((torch.tensor(1),))


class Stateful(TensorDataset):
    """Counts, remembers and opens, as users' data sets do."""

    def __init__(self, inner: Any = None) -> None:
        super().__init__(torch.arange(9))
        self.epoch, self.calls, self.inner, self.told = 7, 0, inner, []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.told.append(epoch)

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        self.file = object()
        if self.inner is not None:
            return self.inner[index]
        return index, self.epoch


def test_looking_leaves_the_data_set_as_it_was() -> None:
    """Counters do not count, what was opened is forgotten, in a wrapped data set too; the epoch is told again."""
    inner = Stateful()
    outer = Stateful(inner)
    dataset = Subset(ConcatDataset([outer, inner]), range(15))
    before = [dict(vars(each)) for each in (inner, outer, dataset)]
    for workers in (0, 1):
        TorchData().look(DataLoader(dataset, num_workers=workers), probe([0, 14]))
        assert [dict(vars(each)) for each in (inner, outer, dataset)] == before
    look_at(outer, probe([0]), TENSORS.see, StreamSet(), epoch=5)
    assert (outer.epoch, outer.told, inner.calls) == (5, [0, 5], 0)


def test_looking_leaves_the_numbers_of_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set may augment on the device that trains, with the numbers that the loop draws from: they stay where they
    are. A generator that nobody recognises stands for the device's."""
    device = ModuleType("device")  # nothing looks into a module
    device.generator = torch.Generator()

    class Device(Stream):
        def take(self) -> Any:
            return device.generator.get_state()

        def put(self, state: Any) -> None:
            device.generator.set_state(state)

    kinds = replace(TORCH, devices=lambda: [Device()])
    monkeypatch.setattr(data, "TORCH", kinds)

    class Augmented(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return index, float(torch.rand((), generator=device.generator))

    class Batches(Sequence):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return Augmented(torch.arange(3))[index]

    state = device.generator.get_state()
    assert None not in looked(Augmented(torch.arange(5)), [0, 4]).values()
    assert None not in IterableData(kinds, TENSORS).look(Batches(), probe([0, 2])).samples.values()
    assert torch.equal(device.generator.get_state(), state)
    assert TORCH.devices() == [] or torch.cuda.is_initialized()


def test_samples_of_any_epoch_are_those_of_the_first() -> None:
    """A data set that wants to know the epoch looks alike in each: another epoch is no other data."""

    class ByEpoch(TensorDataset):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __getitem__(self, index: int) -> int:
            return index + 100 * self.epoch

    found = []
    for workers, epoch in ((0, 0), (0, 3), (1, 3)):
        loader = DataLoader(ByEpoch(torch.arange(6)), 3, num_workers=workers)
        seen = SimpleNamespace(probe=probe([0, 5]), found=lambda probed: found.append(probed.samples))
        where: dict[str, Any] = {"seed": 1, "epoch": epoch, "batches": 0, "samples": 0, "state": None}
        batches = TorchData().open(loader, **where, inspector=seen)
        assert [batch.value.tolist() for batch in batches] == [
            [i + 100 * epoch for i in r] for r in ((0, 1, 2), (3, 4, 5))
        ]
    assert found == [{0: sample(0), 5: sample(5)}] * 3


def test_a_slow_data_set_is_asked_for_few_samples() -> None:
    """The time is bounded, whatever a sample costs; one that was not drawn twice is not believed."""
    ticks = iter(range(10**6))

    def found(seconds: float, known: dict[int, Sample] | None = None) -> dict[int, Sample | None]:
        return dict(
            look_at(
                range(100), probe([0, 1, 2], known, seconds), TENSORS.see, StreamSet(), timer=lambda: next(ticks)
            ).samples
        )

    assert found(1000) == {0: sample(0), 1: sample(1), 2: sample(2)}
    assert found(3) == {0: sample(0), 1: None}
    assert found(1) == {0: None}
    assert found(1, {0: sample(0), 1: sample(1)}) == {0: sample(0)}


def split(seed: int, **more: Any) -> Subset[Any]:
    return random_split(TensorDataset(torch.arange(100)), [80, 20], torch.Generator().manual_seed(seed), **more)[0]


class Wrapped(Dataset):
    """A split with a transform around it, as in half of all notebooks."""

    def __init__(self, subset: Any, transform: Callable[[Any], Any] = lambda x: x) -> None:
        self.data = {"parts": [subset]}
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data["parts"][0])

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.data["parts"][0][index])


SUBSETS: dict[str, Callable[[int], Any]] = {
    "random_split": split,
    "inside a concatenation": lambda seed: ConcatDataset([TensorDataset(torch.arange(3)), split(seed)]),
    "a subset of it": lambda seed: Subset(split(seed), range(10)),
    "under a wrapper": lambda seed: Wrapped(split(seed)),
    "indices of NumPy": lambda seed: Subset(range(100), np.random.default_rng(seed).permutation(100)[:80]),
    "indices of torch": lambda seed: Subset(range(100), torch.tensor(split(seed).indices)),
}


@pytest.mark.parametrize("name", SUBSETS)
def test_the_indices_of_subsets_are_known_without_loading(name: str) -> None:
    """Of torch's own, in any wrapper: the same for the same seed, others for another."""
    facts = [TorchData().facts(DataLoader(SUBSETS[name](seed))) for seed in (1, 1, 2)]
    assert facts[0] == facts[1]
    assert facts[0].length == facts[2].length == len(SUBSETS[name](1))
    assert facts[0].subsets != facts[2].subsets


def test_a_file_list_called_indices_is_no_subset() -> None:
    """Whatever a user's own data set means by that name: nothing but whole numbers is taken for the indices of one."""

    class Files(TensorDataset):
        dataset, indices = "coco", None

    for value in (["a", "b"], "train", {"a": 1}, 7, None, [(1, 2)]):
        data = Files(torch.arange(4))
        data.dataset, data.indices = "coco", value
        assert TorchData().facts(DataLoader(data)).subsets == ()


def test_only_libraries_that_are_in_use_are_named() -> None:
    """Pillow decodes other numbers from version to version; what is not loaded decoded nothing."""
    libraries = TorchData().look(DataLoader(range(3)), probe([0])).libraries
    assert libraries["PIL"] == Image.__version__
    assert "cv2" not in libraries

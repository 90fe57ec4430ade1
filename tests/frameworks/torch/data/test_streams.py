"""Random streams are found wherever they hide, and put back to the last bit."""

from __future__ import annotations

import functools
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from colabkeep.frameworks.shared.streams import NEUTRAL, StreamScope, StreamSet, held, reachable
from colabkeep.frameworks.torch.data import TORCH


@pytest.mark.parametrize("normals_before", [0, 1, 2, 3])
@pytest.mark.parametrize("normals_inside", [0, 1, 2])
def test_numpy_continues_with_the_very_next_number_also_in_the_middle_of_a_pair_of_normals(
    normals_before: int, normals_inside: int
) -> None:
    """NumPy draws normals in pairs and keeps the second: it is put back too, and none is left behind."""
    np.random.seed(3)
    np.random.standard_normal(normals_before)
    before = np.random.get_state()
    with StreamScope(StreamSet(NEUTRAL.shared()), seed=11):
        np.random.standard_normal(normals_inside)
    after = np.random.get_state()
    assert before[1].tobytes() == after[1].tobytes()
    assert before[2:] == after[2:]


def test_numpy_is_put_back_when_the_user_exchanged_its_bit_generator() -> None:
    """np.random.set_bit_generator puts another algorithm behind the global functions; it is handled as well."""
    original = np.random.get_bit_generator()
    streams = StreamSet(NEUTRAL.shared())
    streams.put(streams.take())
    try:
        np.random.set_bit_generator(np.random.PCG64(5))
        streams.put(streams.take())
        assert np.random.random_sample() == np.random.RandomState(np.random.PCG64(5)).random_sample()
    finally:
        np.random.set_bit_generator(original)


MODULE_LEVEL = np.random.default_rng(0)
ONE_MORE = np.random.PCG64(1)


def uses_a_global(x: float) -> float:
    return x + MODULE_LEVEL.random()


class Flip:
    shared = random.Random(0)

    def __init__(self) -> None:
        self.legacy = np.random.RandomState(0)

    def __call__(self, x: float) -> float:
        return x


class Slotted:
    __slots__ = ("empty", "generator")

    def __init__(self) -> None:
        self.generator = torch.Generator()


def test_generator_objects_are_found_wherever_a_data_set_can_hold_them() -> None:
    """Attributes, slots, containers, classes, closures, defaults, partials, methods and globals are looked into."""
    inside = np.random.Generator(np.random.Philox(3))

    def with_default(x: float, *, rng: np.random.BitGenerator = ONE_MORE) -> float:
        return x

    def with_an_inner_one(values: list[float]) -> list[float]:
        return [uses_a_global(value) for value in values]

    hidden = {
        "closure": lambda x: x + inside.random(),
        "default": with_default,
        "partial": functools.partial(pow, torch.Generator()),
        "nested": [({"deep": [Flip()]},)],
        "method": Flip().__call__,
        "global": uses_a_global,
        "slot": Slotted(),
        "inner": with_an_inner_one,
    }
    hidden["cycle"] = hidden
    # closure, default, partial, two Flips and the class attribute they share, the global once, the slot
    assert len(held(TORCH, hidden)) == 8


def test_global_generators_and_the_systems_are_left_alone() -> None:
    """What is global has its own place, and the operating system's randomness has no state."""
    objects = [torch.default_generator, random, random.SystemRandom(), np.random.mtrand._rand, np.random]
    assert held(TORCH, objects) == []


def test_looking_for_generators_calls_nothing_of_the_users() -> None:
    """Properties are not computed and lazy proxies stay lazy."""

    class Touchy:
        @property
        def costly(self) -> None:
            raise AssertionError("computed")

        def __getattr__(self, name: str) -> None:
            raise AssertionError(name)

        def __len__(self) -> int:
            raise AssertionError("len")

    assert len(list(reachable(Touchy()))) > 1


def test_a_list_of_a_million_samples_is_not_walked() -> None:
    """Only the first members of a long container are looked at."""
    assert len(list(reachable([[i] for i in range(100_000)]))) == 101


def test_numpy_is_not_imported_by_looking_for_its_streams() -> None:
    """The neutral streams work in a process without NumPy, and do not bring it in."""
    code = (
        "import sys; from colabkeep.frameworks.shared.streams import NEUTRAL, StreamSet; import random\n"
        "own = random.Random(1); StreamSet.of(NEUTRAL, [own]).seed(3)\n"
        "print(own.random() != random.Random(1).random(), 'numpy' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["True", "False"]

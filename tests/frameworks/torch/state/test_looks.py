"""Looks at random streams where they lie in memory: whatever moves one is seen, and can be taken back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from colabkeep.frameworks.shared import rng as shared_rng
from colabkeep.frameworks.shared.rng import Asked, Look, NumpyLook, Seen, python_look
from colabkeep.frameworks.torch import rng
from colabkeep.frameworks.torch.rng import torch_look

_RAND = np.random.mtrand._rand
_PYTHON = random._inst

MOVES: dict[str, tuple[str, Callable[[], Any]]] = {
    "python": ("python", random.random),
    "python gauss": ("python", lambda: random.gauss(0, 1)),
    "python seed": ("python", lambda: random.seed(random.random())),
    "python refill": ("python", lambda: [random.random() for _ in range(312)]),
    "numpy": ("numpy", np.random.rand),
    "numpy normal": ("numpy", np.random.standard_normal),
    "numpy seed": ("numpy", lambda: np.random.seed(np.random.randint(1 << 31))),
    "numpy refill": ("numpy", lambda: np.random.bytes(4 * 624)),
    "torch": ("torch", lambda: torch.rand(1)),
    "torch normal": ("torch", lambda: torch.randn(1)),  # every second one is taken from a pair
    "torch float64": ("torch", lambda: torch.randn((), dtype=torch.float64)),
    "torch many": ("torch", lambda: torch.randn(16)),
    "torch refill": ("torch", lambda: torch.rand(624)),
    "torch permutation": ("torch", lambda: torch.randperm(5)),
    "torch dropout": ("torch", lambda: torch.nn.functional.dropout(torch.ones(3))),
    "torch seed": ("torch", torch.seed),
}
READ: dict[str, Callable[[], Any]] = {
    "python": random.getstate,
    "numpy": lambda: str(np.random.get_state(legacy=False)),
    "torch": lambda: torch.get_rng_state().tolist(),
}


def looked(name: str) -> Look:
    look = {
        "python": lambda: python_look(_PYTHON),
        "numpy": lambda: NumpyLook(_RAND),
        "torch": lambda: torch_look(torch.default_generator),
    }[name]()
    look.keep()
    return look


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(python), np.random.set_state(numpy), torch.set_rng_state(cpu)


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("halves", [0, 1])
def test_whatever_moves_a_stream_is_seen_and_taken_back(name: str, halves: int) -> None:
    """Single numbers, pairs of Gaussians, whole refills, new seeds: also where the second of a pair is pending."""
    kind, move = MOVES[name]
    for _ in range(halves):
        random.gauss(0, 1), np.random.standard_normal(), torch.randn(1)
    look = looked(kind)
    for _ in range(3):
        before, glance = READ[kind](), look.glance()
        look.keep()
        assert not look.moved()
        assert look.glance() == glance
        move()
        assert look.moved()
        assert look.glance() != glance
        look.put_back()
        assert READ[kind]() == before
        move()


def test_every_single_bit_of_a_state_counts() -> None:
    """No sample of it: a state that differs in one bit anywhere is another one."""
    version, words, gauss = random.getstate()
    for at in range(624):
        look = looked("python")
        random.setstate((version, (*words[:at], words[at] ^ 1, *words[at + 1 :]), gauss))
        assert look.moved()
    legacy, key, *rest = np.random.get_state()
    for at in range(624):
        look = looked("numpy")
        other = key.copy()
        other[at] ^= 1 << 31
        np.random.set_state((legacy, other, *rest))
        assert look.moved()


def test_a_look_reads_memory_on_this_interpreter() -> None:
    """What makes a look cheap is in use here, and not merely replaced by what is always right."""
    assert isinstance(python_look(_PYTHON), Seen)
    assert isinstance(NumpyLook(_RAND)._look, Seen)
    assert isinstance(torch_look(torch.default_generator), Seen)


def test_memory_is_tried_before_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an interpreter with another layout the state is asked for: slower, never wrong."""
    elsewhere = bytearray(4096)
    for module in (shared_rng, rng):
        monkeypatch.setattr(module, "view_at", lambda address, size: memoryview(elsewhere)[:size])
    for kind, move in (("python", random.random), ("numpy", np.random.rand), ("torch", torch.seed)):
        look = looked(kind)
        assert isinstance(getattr(look, "_look", look), Asked)
        before = READ[kind]()
        move()
        assert look.moved()
        look.put_back()
        assert READ[kind]() == before


def test_a_class_of_the_users_own_is_asked() -> None:
    """It may keep its state anywhere."""

    class Own(random.Random):
        """Counts."""

        count = 0

        def random(self) -> float:
            self.count += 1
            return 1 / self.count

        def getstate(self) -> Any:
            return self.count

        def setstate(self, state: Any) -> None:
            self.count = state

    own = Own(3)
    look = python_look(own)
    look.keep()
    first = own.random()
    assert look.moved()
    look.put_back()
    assert own.random() == first


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937])
def test_a_bit_generator_put_in_place_of_numpys_own_is_followed(kind: Any) -> None:
    """`np.random.set_bit_generator` changes where the state lies; the look goes there."""
    if not hasattr(np.random, "set_bit_generator"):
        pytest.skip("this NumPy has none")
    own, look = np.random.get_bit_generator(), looked("numpy")
    try:
        np.random.set_bit_generator(kind(5))
        assert look.moved()
        look.keep()
        first = np.random.rand(3).tolist()
        assert look.moved()
        look.put_back()
        assert np.random.rand(3).tolist() == first
    finally:
        np.random.set_bit_generator(own)


def test_what_somebody_added_to_a_generator_of_numpys_stays() -> None:
    """Where its bytes are put back, attributes of a class of one's own are not among them."""

    class Counting(np.random.RandomState):
        calls: list[int]

    owner = Counting(3)
    look = NumpyLook(owner)
    look.keep()
    first = owner.standard_normal()
    owner.calls = [1]
    look.put_back()
    assert owner.standard_normal() == first
    assert owner.calls == [1]
    assert isinstance(look._look, Asked)

"""What callbacks of somebody else's trainer remember: kept by value, put back into what is there, or named."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pytest
import torch

from colabkeep.integrations.memories import Memories


class Odd:
    """An object of the user's own."""

    def __init__(self) -> None:
        self.count, self.seen = 0, list[object]()
        self.shadow = {"weight": torch.ones(2)}


class Callback:
    """Holds one thing."""

    def __init__(self, held: Any) -> None:
        self.held = held


def drawn(generator: Any) -> Any:
    """Its next numbers."""
    if isinstance(generator, torch.Generator):
        return torch.rand(3, generator=generator).tolist()
    return [float(generator.random()) for _ in range(3)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: random.Random(3),
        lambda: np.random.default_rng(3),
        lambda: np.random.RandomState(3),
        lambda: torch.Generator().manual_seed(3),
    ],
    ids=["Python's", "NumPy's", "NumPy's old one", "torch's"],
)
def test_a_generator_of_random_numbers_goes_on(make: Any) -> None:
    """In the object that is there: others may draw from it, too."""
    callback = Callback(make())
    memories = Memories([callback], torch.Tensor)
    assert memories.state_dict() == {}
    drawn(callback.held)
    assert not memories.unkept()
    state = memories.state_dict()
    expected = drawn(callback.held)
    again = Callback(make())
    there = again.held
    Memories([again], torch.Tensor).load_state_dict(state)
    assert again.held is there
    assert drawn(there) == expected


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: [1], lambda held: held.append(2)),
        (lambda: {"a": 1}, lambda held: held.update(b=2)),
        (lambda: deque([1], maxlen=4), lambda held: held.append(2)),
        (lambda: {1}, lambda held: held.add(2)),
        (lambda: Counter(a=1), lambda held: held.update("ab")),
        (lambda: OrderedDict(b=1), lambda held: held.update(a=2)),
    ],
    ids=["list", "dict", "deque", "set", "Counter", "OrderedDict"],
)
def test_what_others_hold_is_filled(make: Any, change: Any) -> None:
    """A list that the script gave to a callback is still the script's."""
    callback = Callback(make())
    memories = Memories([callback], torch.Tensor)
    change(callback.held)
    state = memories.state_dict()
    assert state
    again = Callback(make())
    there = again.held
    Memories([again], torch.Tensor).load_state_dict(state)
    assert again.held is there
    assert there == callback.held
    assert type(there) is type(callback.held)


@pytest.mark.parametrize("change", [True, False])
@pytest.mark.parametrize(
    "tensor",
    [torch.tensor([1.0, 2.0], dtype=torch.bfloat16), torch.eye(3).to_sparse(), torch.ones(2, requires_grad=True)],
    ids=["bfloat16", "sparse", "with a gradient"],
)
def test_a_tensor_of_any_kind_may_be_held(tensor: torch.Tensor, change: bool) -> None:
    """One that NumPy does not know is compared, too; a sparse one cannot be stored, and is named if it changed."""
    callback = Callback(tensor)
    memories = Memories([callback], torch.Tensor)
    if change:
        callback.held = tensor.detach() * 2
    sparse = tensor.layout != torch.strided
    assert memories.unkept() == ({"Callback.held"} if change and sparse else set())
    state = memories.state_dict()
    assert bool(state) is (change and not sparse)
    if state:
        assert torch.equal(state["Callback[0]"]["held"], tensor.detach() * 2)


def test_an_object_of_the_users_own_is_named_when_it_changed_and_not_before() -> None:
    """By its numbers, by how much it holds, and by its tensors, which an average of the weights has. A dictionary with
    such members is not named for nothing."""
    for change in (
        lambda odd: setattr(odd, "count", 1),
        lambda odd: odd.seen.append(object()),
        lambda odd: odd.shadow["weight"].mul_(2),
        lambda odd: odd.shadow.update(weight=odd.shadow["weight"] * 2),
    ):
        odd = Odd()
        callback, holder = Callback(odd), Callback({"one": odd, "code": len})
        memories = Memories([callback, holder], torch.Tensor)
        assert not memories.unkept()
        change(odd)
        assert memories.unkept() == {"Callback.held"}
        holder.held["two"] = odd
        assert len(memories.unkept()) == 1  # of both, by one name
    later = Callback(None)
    memories = Memories([later], torch.Tensor)
    later.held = deque([1])  # in the next session there would be none to be filled
    assert memories.unkept() == {"Callback.held"}
    assert memories.state_dict() == {}

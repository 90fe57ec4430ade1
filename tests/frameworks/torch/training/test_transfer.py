"""Batches of any shape reach the model's device.

The device here is torch's "meta" device: a real one to torch, on every machine.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from colabkeep.frameworks.torch.training import to_device

META = torch.device("meta")
Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Record:
    x: torch.Tensor
    name: str


class Graph:
    """As torch_geometric has them: an object that moves itself."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: torch.device) -> Graph:
        return Graph(self.x.to(device))


class Asynchronous:
    """Moves itself, and can do so without waiting."""

    waited: bool

    def to(self, device: torch.device, non_blocking: bool = False) -> Asynchronous:
        moved = Asynchronous()
        moved.waited = not non_blocking
        return moved


def here() -> torch.Tensor:
    return torch.ones(2)


def test_tensors_are_found_in_containers_of_every_kind() -> None:
    """Tuples, lists, named tuples, dictionaries, dataclasses and packed sequences, in each other."""
    counts: defaultdict[str, Any] = defaultdict(list, a=here())
    batch = (
        [here(), {"k": (here(),)}],
        Pair(here(), 3),
        OrderedDict(z=here(), a="text"),
        counts,
        Record(here(), "cat"),
        Graph(here()),
        torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1)]),
        None,
    )
    moved = to_device(batch, META)
    nested, pair, ordered, default, record, graph, packed, nothing = moved
    tensors = [nested[0], nested[1]["k"][0], pair.x, ordered["z"], default["a"], record.x, graph.x, packed.data]
    assert [t.device.type for t in tensors] == ["meta"] * 8
    assert type(pair) is Pair
    assert type(ordered) is OrderedDict
    assert list(ordered) == ["z", "a"]
    assert default["new"] == []
    assert (pair.y, ordered["a"], record.name, nothing) == (3, "text", "cat", None)


def test_the_batch_of_the_user_is_not_changed() -> None:
    """A data set that hands out the same containers again finds its own tensors in them."""
    batch = {"x": here(), "r": Record(here(), "cat")}
    to_device(batch, META)
    assert batch["x"].device.type == batch["r"].x.device.type == "cpu"


def test_a_tensor_that_is_there_already_is_not_copied() -> None:
    """Data that lives on the device stays the same object."""
    there = torch.ones(2, device="meta")
    assert to_device([there], META)[0] is there


def test_on_a_cpu_the_batch_is_handed_over_untouched() -> None:
    """Nothing is built anew where nothing has to move."""
    batch = [here(), {"x": here()}]
    assert to_device(batch, torch.device("cpu")) is batch


def test_an_object_that_can_move_without_waiting_is_asked_to() -> None:
    """`non_blocking` is passed exactly to those that know the word."""
    assert not to_device(Asynchronous(), META).waited


@pytest.mark.parametrize("value", [1, 2.5, "text", b"bytes", None, torch.float32, Record])
def test_what_holds_no_tensor_stays_as_it_is(value: Any) -> None:
    """Numbers, texts, types: the same objects come out."""
    assert to_device(value, META) is value

"""Batches of any shape reach the model's device.

The device here is another place than the host's in name only: copying to it is Paddle's own.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import paddle
import pytest

from colabkeep.frameworks.paddle.training import to_place
from colabkeep.frameworks.shared.training import moved

Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Record:
    x: Any
    name: str


class Sample(dict[str, Any]):
    """As tokenizers have them: a mapping with something besides its items."""


def doubled(value: Any) -> Any:
    return moved(value, lambda member: isinstance(member, paddle.Tensor), lambda tensor: tensor * 2)


def test_tensors_are_found_in_containers_of_every_kind() -> None:
    """Tuples, lists, named tuples, dictionaries and dataclasses, in each other."""
    one = paddle.ones([1])
    sample = Sample(a=one)
    sample.length = 7
    batch = ([one, {"k": (one,)}], Pair(one, 3), sample, Record(one, "cat"), None, "text")
    nested, pair, mapping, record, nothing, text = doubled(batch)
    found = [nested[0], nested[1]["k"][0], pair.x, mapping["a"], record.x]
    assert [tensor.item() for tensor in found] == [2.0] * 5
    assert (type(pair), type(mapping), mapping.length) == (Pair, Sample, 7)
    assert (pair.y, record.name, nothing, text) == (3, "cat", None, "text")
    assert one.item() == batch[3].x.item() == sample["a"].item() == 1.0


def test_on_a_cpu_the_batch_is_handed_over_untouched() -> None:
    """Nothing is built anew where nothing has to move."""
    batch = [paddle.ones([2]), {"x": paddle.ones([2])}]
    assert to_place(batch, paddle.ones([1]).place) is batch


@pytest.mark.parametrize("value", [1, 2.5, "text", b"bytes", None, paddle.float32, Record])
def test_what_holds_no_tensor_stays_as_it_is(value: Any) -> None:
    """Numbers, texts, types: the same objects come out."""
    assert doubled(value) is value

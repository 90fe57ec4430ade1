"""An optimizer's state that goes on living where its file was read to."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from colabkeep.checkpoint.codec import decode_part, encode_parts, read_exactly, unpack
from colabkeep.core.state import Tree
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.stores.memory import MemoryStore

pytestmark = pytest.mark.torch

WIDE = 600  # a weight of 1.4 MB: large; and biases that end off the grid of 64 bytes


def parts() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 7), nn.Linear(7, WIDE))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2)}


def step(parts: dict[str, Any]) -> None:
    torch.manual_seed(1)
    parts["model"](torch.randn(3, WIDE)).square().mean().backward()
    parts["optimizer"].step()
    parts["optimizer"].zero_grad()


def read_back(parts: dict[str, Any]) -> dict[str, Tree]:
    """The state of `parts` as a resume finds it: packed into files, and these read."""
    snapshot = TorchFramework().capture(parts).finish()
    encoded = encode_parts(snapshot.parts)
    store, packs = MemoryStore(), []
    for number, pack in enumerate(encoded.packs):
        store.put(f"blob{number}", pack)
        with store.get(f"blob{number}") as reader:
            packs.append(unpack(read_exactly(reader, pack.size)[0]))
    snapshot.release()
    return {name: decode_part(node, packs) for name, node in encoded.parts.items()}


def bits(parts: dict[str, Any]) -> list[bytes]:
    model, optimizer = parts["model"], parts["optimizer"]
    moments = [value for entry in optimizer.state.values() for value in entry.values()]
    return [one.detach().numpy().tobytes() for one in (*model.parameters(), *moments)]


def resumed(trees: dict[str, Tree]) -> dict[str, Any]:
    made = parts()
    TorchFramework().restore(made, trees)
    return made


def test_large_moments_are_not_copied_a_second_time() -> None:
    """They stay at the very address that their file was read to, aligned as torch's own memory is."""
    before = parts()
    step(before)
    trees = read_back(before)
    places = {
        torch.frombuffer(host.data, dtype=torch.uint8).data_ptr()
        for entry in trees["optimizer"]["state"].values()
        for host in entry.values()
    }
    after = resumed(trees)
    large = [value for entry in after["optimizer"].state.values() for value in entry.values() if value.nbytes > 2**20]
    assert len(large) == 2
    assert all(value.data_ptr() in places and value.data_ptr() % 64 == 0 for value in large)
    assert all(value._base is None and value.untyped_storage().nbytes() == value.nbytes for value in large)


def test_training_goes_on_from_it_with_the_same_bits() -> None:
    """Two steps on memory that was read to are two steps on torch's own; and no other copy changes with them."""
    before = parts()
    step(before)
    after = resumed(read_back(before))
    assert bits(after) == bits(before)
    aside = copy.deepcopy(after["optimizer"].state_dict())
    for _ in range(2):
        step(before)
        step(after)
    assert bits(after) == bits(before)
    assert aside["state"][0]["step"] == 1
    assert not torch.equal(aside["state"][0]["exp_avg"], after["optimizer"].state_dict()["state"][0]["exp_avg"])


class Away(torch.optim.AdamW):
    """An optimizer that keeps its moments elsewhere between two steps."""

    def put_away_and_back(self) -> None:
        for entry in self.state.values():
            moment, elsewhere = entry["exp_avg"], entry["exp_avg"].clone()
            moment.untyped_storage().resize_(0)
            moment.untyped_storage().resize_(elsewhere.nbytes)
            moment.copy_(elsewhere)


def test_an_optimizer_of_another_make_can_put_its_state_away_after_a_resume_too() -> None:
    """Torch resizes only what it allocated itself, so such a state is copied."""

    def made() -> dict[str, Any]:
        model = parts()["model"]
        return {"model": model, "optimizer": Away(model.parameters())}

    before, after = made(), made()
    step(before)
    TorchFramework().restore(after, read_back(before))
    after["optimizer"].put_away_and_back()
    assert bits(after) == bits(before)


def test_what_a_capture_holds_is_never_kept_by_a_restore() -> None:
    """A snapshot's memory is written again by the next save: two trainings restored from one have nothing in common."""
    before = parts()
    step(before)
    snapshot = TorchFramework().capture(before).finish()
    one, other = resumed(dict(snapshot.parts)), resumed(dict(snapshot.parts))
    still = bits(other)
    step(one)
    assert bits(other) == still != bits(one)


def test_weights_that_are_loaded_elsewhere_do_not_hold_their_file_in_memory() -> None:
    """`native` gives each tensor memory of its own: whoever keeps one of them keeps no more than that one."""
    before = parts()
    step(before)
    trees = read_back(before)
    host = trees["model"]["weights"]["0.weight"]
    loaded = TorchFramework().native(host)
    assert loaded.data_ptr() != torch.frombuffer(host.data, dtype=torch.uint8).data_ptr()
    assert torch.equal(loaded, before["model"][0].weight)

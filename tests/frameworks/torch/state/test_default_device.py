"""`torch.set_default_device(...)`, which many notebooks call, says where the user's tensors are made. Not ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.frameworks.torch.data import TENSORS
from colabkeep.frameworks.torch.restore import native
from colabkeep.frameworks.torch.training import mean_on
from colabkeep.testing.frameworks import captured, same_bits, through_files
from tests.frameworks.torch.state.trainings import WIDE, Training, finished, mlp


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """A device that has no memory: whatever of ours lands there is found out."""
    with torch.device("meta"):
        yield


class Various:
    """Kinds of tensors that are built anew from their parts."""

    def __init__(self, fill: float) -> None:
        self.made = {
            "empty": torch.zeros(0, 3),
            "large": torch.full((600, 600), fill),
            "sparse": torch.eye(4).mul(fill).to_sparse(),
            "rows": torch.eye(4).mul(fill).to_sparse_csr(),
            "strided": torch.full((3, 4), fill).t(),
        }

    def state_dict(self) -> dict[str, Any]:
        return dict(self.made)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made = dict(state)


def make(fill: float) -> dict[str, Any]:
    model = nn.Linear(600, 600)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.full((2, 600), fill)).sum().backward()
        optimizer.step()
    return {"model": model, "optimizer": optimizer, "various": Various(fill), "mean": mean_on(torch.device("cpu"))}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_resume_does_not_ask_for_the_default_device(request: pytest.FixtureRequest) -> None:
    """State is captured, stored and restored on the device that it has."""
    before, after = make(1.0), make(2.0)
    reference = captured(TorchFramework(), before)
    request.getfixturevalue("elsewhere")
    trees = through_files(captured(TorchFramework(), before))
    assert same_bits(trees, reference)
    later = TorchFramework()
    assert list(later.check(after, trees)) == []
    later.restore(after, trees)
    assert same_bits(captured(TorchFramework(), after), reference)
    assert native(trees["model"])["weights"]["weight"].device.type == "cpu"


def test_a_copy_does_not_ask_for_the_default_device(request: pytest.FixtureRequest) -> None:
    """A model on another device than the default one is saved while it trains."""
    rows = [torch.randn(4, WIDE) for _ in range(4)]

    def step(parts: dict[str, Any]) -> None:
        parts["model"](rows.pop()).square().mean().backward()
        parts["optimizer"].step()

    parts = mlp()
    step(parts)  # torch 2.4 makes the state of AdamW on the default device
    request.getfixturevalue("elsewhere")
    training = Training(parts, step)
    training.step(2)
    capture, reference = training.save()
    training.step()
    assert same_bits(finished(capture), reference)


@pytest.mark.usefixtures("elsewhere")
def test_a_random_stream_is_looked_at_where_it_is() -> None:
    """The generator behind `torch.rand` on the CPU is found to have moved, and goes on as it would have."""
    boundary = TorchFramework().boundary({})
    boundary.mark()
    drawn = torch.rand(3, device="cpu")
    boundary.rewind()
    assert torch.equal(torch.rand(3, device="cpu"), drawn)


@pytest.mark.usefixtures("elsewhere")
def test_losses_are_added_where_they_are() -> None:
    """A mean of losses on the CPU stays there."""
    mean = mean_on(torch.device("cpu"))
    for loss in (1.0, torch.tensor(3.0, device="cpu")):
        mean.add(loss, 2)
    assert mean.value() == 2.0
    again = mean_on(torch.device("cpu"))
    again.load_state_dict(mean.state_dict())
    again.add(5.0, 2)
    assert again.value() == 3.0


@pytest.mark.usefixtures("elsewhere")
def test_arrays_of_a_data_set_come_back_where_they_were() -> None:
    """What a data set of host tensors kept is put back there."""
    for tensor in (torch.arange(5, device="cpu"), torch.zeros(0, 2, device="cpu")):
        back = TENSORS.unpack(TENSORS.pack(tensor))
        assert torch.equal(back, tensor)

"""`sync_batchnorm=True`, as far as it can be seen without GPUs: the layers while the run is open, and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import colabkeep
from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.frameworks.base import TrainingOptions
from colabkeep.frameworks.torch.training import refuse_sync


class Net(nn.Module):
    """With a layer on top, one further down, and one that is there twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(3)
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.ReLU())
        self.again = self.inner[1]
        self.last = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.again(self.inner(self.first(x))))


def trained(folder: Path, look: Callable[[Net], object] = lambda model: None, **words: Any) -> tuple[Net, Any]:
    """Some steps of the run, and the model of it; `look` is called in each."""
    torch.manual_seed(0)
    model, data = Net(), torch.utils.data.TensorDataset(torch.randn(24, 3), torch.ones(24, 1))

    def loss_of(net: Any, batch: Any) -> Any:
        look(net)
        return nn.functional.mse_loss(net(batch[0]), batch[1])

    told = {"max_epochs": 2, "run_name": "r", "storage": folder, "on_bad_gpu": "ignore", "progress": False, **words}
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    return model, colabkeep.resumable_fit(model, loader, optimizer=optimizer, step_fn=loss_of, **told)


def test_the_layers_are_torchs_while_the_run_is_open_and_ones_own_after_it(tmp_path: Path) -> None:
    """The optimizer's parameters stay the same objects; what was trained is in the caller's own layers."""
    seen: dict[str, Any] = {}

    def look(model: Net) -> None:
        kinds = {name: type(layer) for name, layer in model.named_modules(remove_duplicate=False)}
        seen.setdefault("kinds", kinds)
        seen.setdefault("parameters", [id(each) for each in model.parameters()])

    model, _ = trained(tmp_path / "sync", look, sync_batchnorm=True)
    alone, _ = trained(tmp_path / "alone")
    synced = {name for name, kind in seen["kinds"].items() if kind is nn.SyncBatchNorm}
    assert synced == {"first", "inner.1", "again"}
    assert seen["parameters"] == [id(each) for each in model.parameters()]
    assert [type(each) for each in model.modules()] == [type(each) for each in alone.modules()]
    assert model.again is model.inner[1]
    assert model.state_dict().keys() == alone.state_dict().keys()
    assert all(torch.equal(model.state_dict()[name], each) for name, each in alone.state_dict().items())
    assert model.first.num_batches_tracked == 6


def test_a_checkpoint_of_it_opens_in_a_model_without_and_a_change_of_it_is_a_setting(tmp_path: Path) -> None:
    """Names and weights are the same; that it is another training has to be said."""
    model, _ = trained(tmp_path, sync_batchnorm=True)
    plain = Net()
    plain.load_state_dict(colabkeep.load_weights("r", storage=tmp_path))
    assert torch.equal(plain.first.running_var, model.first.running_var)
    resumed, result = trained(tmp_path, max_epochs=3, sync_batchnorm=True)
    assert result.steps == 9
    kept = colabkeep.load_weights("r", storage=tmp_path)
    assert all(torch.equal(kept[name], each) for name, each in resumed.state_dict().items())
    with pytest.raises(Incompatible, match="SyncBatchNorm"):
        trained(tmp_path, max_epochs=4)
    assert trained(tmp_path, max_epochs=4, on_change="apply")[1].steps == 12


def test_an_error_leaves_the_callers_layers(tmp_path: Path) -> None:
    """As Ctrl-C does."""
    caught: list[Net] = []

    def look(model: Net) -> None:
        caught.append(model)
        model.first.eval()
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        trained(tmp_path, look, sync_batchnorm=True)
    assert type(caught[0].first) is nn.BatchNorm1d
    assert not caught[0].first.training


@pytest.mark.usefixtures("forked")
def test_what_cannot_be_is_refused_before_anything_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's layer takes no tensors of the CPU; and pieces that processes do not have alike would wait for ever."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3])  # from where this file is imported there, too
    with pytest.raises(UsageError, match="this model is on the CPU"):
        trained(tmp_path / "runs", sync_batchnorm=True, devices=2)
    with pytest.raises(UsageError, match="sync_batchnorm must be True or False, and is 1"):
        trained(tmp_path / "runs", sync_batchnorm=1)
    with pytest.raises(UsageError, match="this model is on the CPU"):  # as under torchrun
        colabkeep.launch(lambda: trained(tmp_path / "runs", sync_batchnorm=True)[1], devices=2)
    assert not (tmp_path / "runs").exists()
    elsewhere = Net().to("meta")
    refuse_sync(TrainingOptions(model=elsewhere, optimizer=None, sync_batchnorm=True))
    with pytest.raises(UsageError, match="into different numbers of pieces"):
        refuse_sync(TrainingOptions(model=elsewhere, optimizer=None, sync_batchnorm=True, micro_batch="auto"))

"""Optimizers of packages that keep their state in objects and tensors of their own: a training that is broken off and
goes on ends with the same bits. What they are is tried with stand-ins, always, in `test_optimizers`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import colabkeep
from colabkeep.testing.frameworks import captured, same_bits

pytestmark = pytest.mark.torch


class Breakage(Exception):
    """What goes wrong on purpose."""


def low_rank(module: str, name: str, **words: Any) -> Callable[[nn.Module], Any]:
    """An optimizer that projects the gradients of the matrices."""

    def build(model: nn.Module) -> Any:
        kind = getattr(pytest.importorskip(module), name)
        matrices = [each for each in model.parameters() if each.dim() == 2]
        rest = [each for each in model.parameters() if each.dim() != 2]
        group = {"params": matrices, "rank": 4, "update_proj_gap": 3, "proj_type": "std", **words}
        return kind([{"params": rest}, group], lr=0.01)

    return build


def torchao(name: str) -> Callable[[nn.Module], Any]:
    """An optimizer whose state is in few bits, where a weight is large enough."""
    return lambda model: getattr(pytest.importorskip("torchao.optim"), name)(model.parameters(), lr=0.01)


PACKAGES: dict[str, Callable[[nn.Module], Any]] = {
    "GaLore": low_rank("galore_torch", "GaLoreAdamW", scale=0.25),
    "APOLLO": low_rank("apollo_torch", "APOLLOAdamW", proj="random", scale_type="channel", scale=1),
    "8 bits": torchao("AdamW8bit"),
    "4 bits": torchao("AdamW4bit"),
    "FP8": torchao("AdamWFp8"),
}


def train(folder: Path, build: Callable[[nn.Module], Any], breaks: int = 0) -> Any:
    """Two epochs; the model and the optimizer that come of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Tanh(), nn.Linear(64, 3))
    optimizer = build(model)
    drawn = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(
        torch.randn(30, 64, generator=drawn), torch.randint(0, 3, (30,), generator=drawn)
    )
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    words = {"storage": str(folder), "save_every": "1 steps", "progress": False}
    with colabkeep.Run("packages", model=model, optimizer=optimizer, **words) as run:
        for _ in run.epochs(2):
            for x, y in run.batches(loader):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.step(loss=loss.detach())
                if run.progress.step == breaks:
                    raise Breakage
    return {"model": model, "optimizer": optimizer}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")  # theirs
@pytest.mark.parametrize("name", PACKAGES)
def test_an_optimizer_of_a_package_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    """After it was broken off three times."""
    from colabkeep.frameworks.torch.adapter import TorchFramework

    with torch.compiler.set_stance("force_eager"):  # torchao compiles its steps, for half a minute
        whole = train(tmp_path / "whole", PACKAGES[name])
        for step in (2, 6, 11):
            with pytest.raises(Breakage):
                train(tmp_path / "kept", PACKAGES[name], step)
        kept = train(tmp_path / "kept", PACKAGES[name])
    assert same_bits(captured(TorchFramework(), kept), captured(TorchFramework(), whole))

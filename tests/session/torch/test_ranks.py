"""Processes that do not know of each other are refused at the start, in words that name ranks, and so is what is cut
into pieces for them. A group of one process, and what DDP wraps in it, is a training like any other."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import colabkeep
from colabkeep.core.errors import UsageError

IMPORTS = "ignore:.torch.jit:DeprecationWarning"  # torch, as it imports what DDP needs


@pytest.mark.parametrize(
    ("variables", "ranks"), [({"RANK": "1"}, ""), ({"RANK": "1", "TORCHELASTIC_RUN_ID": "x"}, "4")]
)
def test_a_process_of_torchrun_is_refused_before_the_group_is_made(
    tmp_path: Path, monkeypatch, variables, ranks
) -> None:
    """torchrun tells by variables; one that somebody left set, without torchrun, refuses nothing."""
    for name, value in {"WORLD_SIZE": "4", **variables}.items():
        monkeypatch.setenv(name, value)
    model = torch.nn.Linear(2, 1)
    if not ranks:
        with colabkeep.Run("r", model=model, storage=tmp_path, progress=False):
            pass
        return
    with (
        pytest.raises(UsageError, match=r"4 ranks \(this one is rank 1\)"),
        colabkeep.Run("r", model=model, storage=tmp_path),
    ):
        pass


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    """A script that makes a group of one process is a training like any other."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def trained(model: torch.nn.Module, storage: Path) -> tuple[int, torch.Tensor]:
    """Two steps more of the run. Where it began, and all of the weights at its end."""
    optimizer = torch.optim.AdamW(model.parameters())
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=storage, progress=False) as run:
        began = run.progress.step
        for _ in run.steps(began + 2):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            run.step()
    return began, torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.filterwarnings(IMPORTS)
def test_what_ddp_wraps_goes_on_bare_and_the_other_way_round(tmp_path: Path) -> None:
    """Stored names do not begin with "module.", so the same script goes on without a group, with the same bits."""
    torch.manual_seed(0)
    bare = torch.nn.Linear(2, 1)
    start = bare.state_dict()

    def model(*, wrapped: bool) -> torch.nn.Module:
        made = torch.nn.Linear(2, 1)
        made.load_state_dict(start)
        return torch.nn.parallel.DistributedDataParallel(made) if wrapped else made

    ended = {}
    for wraps in ((False, False, False), (True, False, True)):
        runs = tmp_path / str(wraps[0])
        for session, wrapped in enumerate(wraps):
            began, weights = trained(model(wrapped=wrapped), runs)
            assert began == 2 * session
        ended[wraps] = weights
        opened = torch.nn.Linear(2, 1)
        opened.load_state_dict(colabkeep.load_weights("r", storage=runs))
        assert torch.equal(torch.cat([each.flatten() for each in opened.parameters()]), weights)
    assert torch.equal(*ended.values())


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.filterwarnings(IMPORTS, "ignore:FSDP is switching to use:UserWarning", "ignore:DTensor random operators")
@pytest.mark.parametrize("by", ["fully_shard", "FullyShardedDataParallel", "parallelize_module", "ZeroRedundancy"])
def test_what_is_cut_into_pieces_is_refused_and_nothing_is_written(tmp_path: Path, by: str) -> None:
    """By torch's own means, each in its smallest group: what cut it is named."""
    from torch.distributed.device_mesh import init_device_mesh

    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    kind, options = torch.optim.SGD, {}
    if by == "fully_shard":
        fsdp = importlib.import_module("torch.distributed.fsdp")
        if not hasattr(fsdp, "fully_shard"):  # before torch 2.6
            fsdp = importlib.import_module("torch.distributed._composable.fsdp")
        fsdp.fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
    elif by == "FullyShardedDataParallel":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model[0] = FullyShardedDataParallel(model[0], device_id=torch.device("cpu"))
    elif by == "parallelize_module":
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        parallelize_module(model, init_device_mesh("cpu", (1,)), {"0": ColwiseParallel()})
    else:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        kind, options = ZeroRedundancyOptimizer, {"optimizer_class": torch.optim.SGD}
    optimizer = kind(model.parameters(), lr=0.1, **options)
    with (
        pytest.raises(UsageError, match=f"cuts its (model|optimizer) by {by}"),
        colabkeep.Run("r", model=model, optimizer=optimizer, storage=tmp_path / "runs", progress=False),
    ):
        pass
    assert not (tmp_path / "runs").exists()

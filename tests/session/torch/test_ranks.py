"""Several processes that train together are refused at the start, in words that name ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import colabkeep
from colabkeep.core.errors import UsageError

PROGRAM = """
import sys
import torch
import colabkeep
from colabkeep.core.errors import UsageError

rank, store, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
model = torch.nn.Linear(2, 1)
try:
    with colabkeep.Run("r", model=model, storage=folder, progress=False):
        print("trained")
except UsageError as error:
    print(error)
"""


def test_two_ranks_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    """Real processes of torch.distributed: each is told how many ranks there are, and what to do instead."""
    runs = tmp_path / "runs"
    command = [sys.executable, "-c", PROGRAM]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store"), str(runs)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in ranks:
        said, _ = process.communicate(timeout=120)
        assert "2 ranks" in said
        assert "torch.nn.DataParallel(model)" in said
    assert not runs.exists()


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


def test_one_rank_of_one_trains(tmp_path: Path) -> None:
    """A script that makes a group of one process is a training like any other."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with colabkeep.Run("r", model=torch.nn.Linear(2, 1), storage=tmp_path / "runs", progress=False):
            pass
    finally:
        torch.distributed.destroy_process_group()

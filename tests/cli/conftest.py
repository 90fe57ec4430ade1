"""A storage with runs in it, and the command line in this process and in one of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.ui.cli import main


@dataclass(frozen=True)
class Said:
    """What one command said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on stdout."""
        (line,) = self.out.splitlines()
        return json.loads(line)


def train(storage: Path, name: str, epochs: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    batches = [torch.randn(4, 3)] * 2
    options = {"save_every": None, "keep_last": None, "monitor": "val_loss", "progress": False}
    with colabkeep.Run(name, model=model, optimizer=optimizer, storage=storage, **options) as run:
        for epoch in run.epochs(epochs):
            for batch in run.batches(batches):
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step()
            run.log(val_loss=abs(epoch - 1) + 0.5)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with the runs "first" (three epochs, each in a session of its own) and "second" (one)."""
    storage = tmp_path_factory.mktemp("trained")
    for name, epochs in (("first", 1), ("first", 2), ("first", 3), ("second", 1)):
        train(storage, name, epochs)
    return storage


@pytest.fixture
def storage(trained: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "storage"))


@pytest.fixture
def colabkeep_cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs the command line in this process."""

    def run(*words: object) -> Said:
        capsys.readouterr()
        status = main([str(word) for word in words])
        return Said(status, *capsys.readouterr())

    return run


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., Said]:
    """Runs the command line in a process of its own."""

    def run(*words: object) -> Said:
        command = [sys.executable, "-m", "colabkeep", *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        return Said(done.returncode, done.stdout, done.stderr)

    return run

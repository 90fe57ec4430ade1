"""A training kept on Drive goes on where it stopped, on a machine that has nothing of it."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
import torch

import colabkeep
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.ui.cli import main
from tests.fakes.drive import html, lose_answer, refuse, reset_request

from .conftest import store_on

PATIENCE = 120.0  # seconds until a hanging test gives up


def train(storage, steps):
    """Trains up to `steps` steps in all; the step it began at, and the digest of the weights."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters())
    options = {"save_every": "2 steps", "keep_last": 2, "progress": False, "storage": storage}
    with colabkeep.Run("on-drive", model=model, optimizer=optimizer, **options) as run:
        began = run.progress.step
        for _ in run.epochs(10):
            for batch in run.batches([torch.randn(4, 8)] * 3):
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step()
                if run.progress.step == steps:
                    run.stop()
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return began, digest.hexdigest()


@pytest.fixture
def on_drive(drive):
    """Opens the store that a machine has: its own disk in front, Drive behind."""

    def open(folder):
        front = DirectoryStore(folder)
        behind = store_on(drive, "colabkeep", journal=front, clock=None)
        return TieredStore(front, behind, pauses=(0.05, 0.1))

    return open


def test_a_run_whose_machine_is_lost_goes_on_from_drive(drive, on_drive, tmp_path):
    """Trained, sent over a bad connection, the machine lost with its disk: another one resumes, to the same bits."""
    _, expected = train(tmp_path / "uninterrupted", 12)
    troubles = [refuse(503), lose_answer(), html(502), reset_request(500)]
    drive.faults(*[one.on(path="/drive/v3/", count=None, chance=0.02, seed=n) for n, one in enumerate(troubles)])
    first = on_drive(tmp_path / "machine")
    began, _ = train(first, 7)
    assert began == 0
    assert first.flush(PATIENCE)
    first.close()
    drive.faults()
    shutil.rmtree(tmp_path / "machine")
    second = on_drive(tmp_path / "another")
    began, weights = train(second, 12)
    assert second.flush(PATIENCE)
    second.close()
    assert began == 7
    assert weights == expected


def test_the_command_line_reads_a_run_on_drive(drive, on_drive, tmp_path, monkeypatch, capsys):
    """`colabkeep list`, `show`, `verify` and `export` take the URL; the secret comes from the environment."""
    store = on_drive(tmp_path / "machine")
    train(store, 4)
    assert store.flush(PATIENCE)
    store.close()
    monkeypatch.setenv("COLABKEEP_DRIVE", json.dumps(drive.authorized_user()))
    where = ["--storage", f"drive://colabkeep?service={drive.url}"]
    capsys.readouterr()
    assert main(["list", *where]) == 0
    assert "on-drive" in capsys.readouterr().out
    assert main(["show", "on-drive", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoints"]
    assert main(["verify", *where]) == 0
    assert main(["export", "on-drive", str(tmp_path / "model.safetensors"), *where]) == 0
    assert (tmp_path / "model.safetensors").stat().st_size > 0

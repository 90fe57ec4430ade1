"""The whole way with a store far away: another machine, an empty disk, and the cell run again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import colabkeep
from colabkeep.core.errors import UsageError
from colabkeep.core.events import CheckpointSkipped, DurabilityReached
from colabkeep.core.system import Environment
from colabkeep.ui.cli import main
from tests.fakes.drive import Settings
from tests.fakes.drive.checking import checked_drive
from tests.fakes.drive.effects import refuse
from tests.fakes.platforms import fake_colab, fake_kaggle
from tests.fakes.runs import Weights


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    """Google Drive."""
    with checked_drive(tmp_path_factory.mktemp("drive"), settings=Settings(quota_bytes=15 * 2**30)) as drive:
        yield drive


@pytest.fixture
def cell(monkeypatch):
    """The user's cell: train a run up to a step, wherever the notebook is running. Gives what was heard, too."""

    def run(machine, storage, until, *, name="r", flush_timeout=60.0):
        environment = machine.environment
        monkeypatch.setattr(Environment, "here", classmethod(lambda cls: environment))
        weights, heard = Weights(np.zeros(1000)), []
        with colabkeep.Run(
            name,
            state={"weights": weights},
            storage=storage,
            save_every=None,
            flush_timeout=flush_timeout,
            callbacks=[heard.append],
        ) as training:
            start = training.progress.step
            for _ in range(start, until):
                weights.array = weights.array + 1.0
                training.step()
            training.save(wait=True)
        assert not [event for event in heard if isinstance(event, CheckpointSkipped)]
        assert (weights.array == until).all()
        return start, heard

    return run


def test_a_run_on_drive_moves_from_colab_to_kaggle_and_back(tmp_path, drive, cell, monkeypatch, capsys):
    """One secret, stored once on both: each machine is new, and training goes on where the last one stopped."""
    secret = json.dumps(drive.authorized_user())
    storage = f"drive://runs?service={drive.url}"
    with fake_colab(tmp_path / "1", secrets={"COLABKEEP_DRIVE": secret}) as colab:
        start, heard = cell(colab, storage, 3)
        assert start == 0
        assert [event.level for event in heard if isinstance(event, DurabilityReached)][-1] == "confirmed"
        assert not any("authenticate_user" in call for call in colab.calls), "the secret is enough"
    with fake_kaggle(tmp_path / "2", secrets={"COLABKEEP_DRIVE": secret}) as kaggle:
        assert cell(kaggle, storage, 5)[0] == 3
    with fake_colab(tmp_path / "3", secrets={"COLABKEEP_DRIVE": secret}) as colab:
        assert cell(colab, storage, 6)[0] == 5
        capsys.readouterr()
        assert main(["show", "r", "--storage", storage]) == 0
        assert "confirmed" in capsys.readouterr().out
    everything = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert json.loads(secret)["refresh_token"] not in everything


def test_a_far_place_named_alone_has_this_machines_disk_in_front(tmp_path, drive, cell):
    """No save waits for the network, and what was not sent when the kernel died is there for the next one."""
    storage = f"drive://front?service={drive.url}"
    with fake_colab(tmp_path, secrets={"COLABKEEP_DRIVE": json.dumps(drive.authorized_user())}) as colab:
        drive.faults(refuse(403, "dailyLimitExceeded").on("POST", "/upload/", count=None))
        try:
            heard = cell(colab, storage, 2, flush_timeout=1)[1]
        finally:
            drive.faults()
        assert not [event for event in heard if isinstance(event, DurabilityReached)], (
            "none went beyond this machine's disk"
        )
        start, heard = cell(colab, storage, 4)
        assert start == 2
        assert [event.level for event in heard if isinstance(event, DurabilityReached)][-1] == "confirmed"


def test_a_run_that_nobody_is_signed_in_for_is_told_before_it_trains(tmp_path, drive, cell):
    """With the one command that helps; nothing is trained that could not be kept."""
    with (
        fake_kaggle(tmp_path) as kaggle,
        pytest.raises(UsageError, match="Nobody is signed in") as caught,
    ):
        cell(kaggle, f"drive://runs?service={drive.url}", 1, name="nobody")
    assert "colabkeep auth" in caught.value.remedy
    assert not list(Path(tmp_path).rglob("checkpoints"))

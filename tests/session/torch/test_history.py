"""What a run has measured is read as a list, while it goes on and afterwards."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch

import colabkeep
from tests.trainings.torch import hard_training


def test_the_history_of_a_run_is_read_like_that_of_a_result(tmp_path: Path, kit: SimpleNamespace) -> None:
    """`for record in run.history`, its length, its last record and a slice; after a resume as well."""
    model = torch.nn.Linear(2, 2)
    for epochs in (2, 3):
        with colabkeep.Run("r", model=model, storage=tmp_path, progress=False) as run:
            for epoch in run.epochs(epochs):
                for _ in run.batches([1, 2]):
                    run.step()
                run.log(val_loss=1.0 / (epoch + 1))
    assert [record["val_loss"] for record in run.history] == [1.0, 0.5, 1.0 / 3]
    assert (len(run.history), run.history[-1]["epoch"], len(run.history[1:])) == (3, 2, 2)
    assert run.history == list(run.history)
    assert bool(run.history)
    result = kit.fit(tmp_path / "b", **hard_training(epochs=1))
    assert isinstance(result.history, list)


def test_a_history_of_nothing_is_empty(tmp_path: Path) -> None:
    """Before anything is logged it is false, and shows as the list it is."""
    run = colabkeep.Run("r", model=torch.nn.Linear(2, 2), storage=tmp_path, progress=False)
    assert not run.history
    assert repr(run.history) == "[]"

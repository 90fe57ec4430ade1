"""What a person types as the last line of a cell gets an answer: one line, no object's address, no stream of bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.stores import open_store
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.overlay import OverlayStore
from colabkeep.stores.tiered import TieredStore


@pytest.fixture
def result(tmp_path: Path) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    data = [(torch.ones(3, 2), torch.ones(3, 2))] * 4
    return colabkeep.resumable_fit(
        model,
        data,
        run_name="digits",
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss_fn=torch.nn.functional.mse_loss,
        val_loader=data,
        monitor="val_loss",
        max_epochs=2,
        storage=tmp_path,
        progress=False,
    )


def test_a_store_says_where_it_is(tmp_path: Path) -> None:
    """In its own name and its URL, which opens it again."""
    folder = DirectoryStore(tmp_path)
    assert repr(folder) == f"<DirectoryStore {tmp_path}>"
    assert repr(open_store(f"{tmp_path}")) == repr(folder)
    assert repr(MemoryStore()).startswith("<MemoryStore memory:")
    two = TieredStore(MemoryStore(), folder)
    assert repr(two) == f"<TieredStore {two.url}>"
    two.close()
    assert repr(OverlayStore(MemoryStore(), [folder])).startswith("<OverlayStore ")


def test_a_run_says_how_far_it_is(tmp_path: Path) -> None:
    """Before, in and after its `with` block."""
    model = torch.nn.Linear(1, 1)
    run = colabkeep.Run("q", model=model, storage=tmp_path, progress=False)
    assert repr(run) == "<Run 'q': not started>"
    with run:
        for _ in run.epochs(1):
            for _ in run.batches([1, 2]):
                run.step(loss=0.5)
                assert repr(run).startswith(
                    f"<Run 'q': training, epoch 1, step {run.progress.step}, newest checkpoint "
                )
            run.save(wait=True)
    assert repr(run) == f"<Run 'q': finished, epoch 1, step 2, newest checkpoint {run.checkpoint}>"
    assert "Epoch 1, step 2." in run._repr_html_()
    assert repr(run.losses) == "<LossRecord: 2 losses, the newest 0.5 at step 2>"


def test_the_means_of_an_epoch_are_one_line(tmp_path: Path) -> None:
    """As they are now; looking changes nothing of them."""
    model = torch.nn.Linear(1, 1)
    with colabkeep.Run("q", model=model, storage=tmp_path, progress=False) as run:
        for _ in run.epochs(1):
            for loss in run.batches([1.0, 2.0]):
                run.average(loss=torch.tensor(loss), weight=1)
                run.step(loss=loss)
            assert repr(run.average) == "run.average(loss=1.5)"
            assert run.average.loss == 1.5
        assert "object at" not in repr(run.average)


def test_how_a_training_ended_is_told_in_the_words_of_the_panel(tmp_path: Path) -> None:
    """A time limit stops it; of a loss that is no number the weights are told to be useless."""
    model = torch.nn.Linear(1, 1)
    words: dict[str, Any] = {"optimizer": torch.optim.SGD(model.parameters()), "progress": False, "max_epochs": 3}
    data = [torch.ones(1, 1)] * 4

    def short(model: Any, batch: Any) -> Any:
        return model(batch).sum()

    def broken(model: Any, batch: Any) -> Any:
        return model(batch).sum() * float("nan")

    for name, step_fn, more, said in (
        ("t", short, {"max_time": 1e-9}, "stopped (max_time), "),
        ("n", broken, {}, "ended, loss not finite, "),
    ):
        result = colabkeep.resumable_fit(model, data, step_fn=step_fn, run_name=name, storage=tmp_path, **words, **more)
        assert repr(result).startswith(f"<FitResult {name!r}: {said}")


def test_a_checkpoint_is_one_line(result: Any) -> None:
    """Without all that its manifest holds."""
    (newest, *_) = result.checkpoints
    assert re.fullmatch(
        rf"<Checkpoint {newest.id}: step 8, epoch 2, [\d,]+ bytes, saved 20\d\d-[\d-]+ [\d:]+ UTC, committed>",
        repr(newest),
    )
    assert len(repr(newest)) < 200
    assert "manifest" not in repr(newest)


def test_the_best_epoch_counts_as_the_table_of_epochs_does(result: Any) -> None:
    """Epochs that people read begin with 1."""
    assert result.best.epoch == 2
    assert "Best val_loss" in result._repr_html_()
    assert ", epoch 2, step 8," in result._repr_html_()


def test_a_plot_is_a_picture_in_a_kernel_that_knows_no_matplotlib(result: Any, tmp_path: Path) -> None:
    """Nobody has imported pyplot, which would have told the notebook how to show a figure."""
    for figure in (result.plot(), colabkeep.report("digits", storage=tmp_path).plot()):
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_the_cards_are_a_table_that_fits_a_cell() -> None:
    """Those that are free somewhere first; all of them, and all that is known, below a line to unfold."""
    html = colabkeep.compare_gpus()._repr_html_()
    shown, _, folded = html.partition("<details")
    assert "T4" in shown
    assert "B200" not in shown
    assert "B200" in folded
    assert shown.count("<th ") == 8

"""The same cell again, on Paddle: it goes on, and nobody can tell that it was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import colabkeep
from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.core.events import Event, Noted
from tests.trainings import SAMPLES, consumed
from tests.trainings.paddle import hard_training

Whole = Callable[..., dict[str, str]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_killed_in_the_middle_of_an_epoch_ends_with_the_same_bits(
    tmp_path: Path, kit: SimpleNamespace, whole: Whole, workers: int
) -> None:
    """SIGKILL, no goodbye; the cell run again in another process, with another number of workers, loses nothing."""
    reached = kit.killed(tmp_path, step=17, workers=workers)
    result = kit.fit(tmp_path, **hard_training(epochs=kit.EPOCHS, workers=2 - workers))
    assert result.resumed_from is not None
    assert 0 < result.resumed_from <= reached < 33
    assert (result.steps, result.stopped) == (33, "finished")
    assert kit.state(tmp_path, "r") == whole()


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_run_stopped_and_continued_many_times_has_the_bits_of_one_piece(
    tmp_path: Path, kit: SimpleNamespace, whole: Whole, accumulate: int
) -> None:
    """Sessions of a few steps each, with 0 and 1 workers in turn, all in one kernel, where Paddle names the
    parameters of each new model anew, end with all state as an uninterrupted one."""
    steps = kit.EPOCHS * (11 if accumulate == 1 else 4)
    for number, end in enumerate([*range(3, steps, 7), steps]):
        words = hard_training(epochs=kit.EPOCHS, accumulate=accumulate, workers=number % 2)
        assert kit.fit(tmp_path, **words, max_steps=end).steps == end
    kit.fit(tmp_path, **hard_training(epochs=kit.EPOCHS, accumulate=accumulate))
    assert kit.state(tmp_path, "r") == whole(accumulate)


def test_a_finished_cell_run_again_trains_nothing(tmp_path: Path, kit: SimpleNamespace) -> None:
    """The second time everything is done already: same result, no step, and the objects hold the trained weights."""
    first = kit.fit(tmp_path)
    steps: list[int] = []
    words = hard_training(epochs=kit.EPOCHS, heard=lambda step, *_: steps.append(step))
    second = kit.fit(tmp_path, **words)
    assert steps == []
    assert (second.resumed_from, second.steps, second.epochs) == (33, first.steps, first.epochs)
    assert list(second.history) == list(first.history)
    trained = colabkeep.load_weights("r", storage=tmp_path)
    words["model"].set_state_dict(trained)  # what comes back is what Paddle takes
    assert kit.bits(words["model"]) == {name: value.numpy().tobytes() for name, value in trained.items()}


def test_the_history_and_the_losses_of_many_sessions_are_those_of_one(tmp_path: Path, kit: SimpleNamespace) -> None:
    """No record twice, none missing, every number the same: mean loss, validation, learning rate."""
    whole = kit.fit(tmp_path / "whole")
    for end in (5, 11, 12, 22, 30):
        kit.fit(tmp_path / "parts", max_steps=end)
    parts = kit.fit(tmp_path / "parts")
    assert list(parts.history) == list(whole.history)
    assert parts.losses == whole.losses
    assert all({"train_loss", "val_loss", "lr"} <= set(record) for record in whole.history)
    assert len({record["lr"] for record in whole.history}) == 3


def test_every_sample_is_seen_once_in_each_epoch_over_all_sessions(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Sessions that stop in the middle of epochs neither skip nor repeat a sample."""
    seen: dict[int, tuple[int, list[int]]] = {}
    for end in (4, 9, 15, 16, 27, 33):
        words = hard_training(epochs=3, heard=lambda step, epoch, samples: seen.update({step: (epoch, samples)}))
        kit.fit(tmp_path, **words, max_steps=end)
    epochs = consumed(seen)
    assert set(epochs) == {0, 1, 2}
    assert all(sorted(samples) == list(range(SAMPLES)) for samples in epochs.values())


def test_the_best_weights_are_kept_and_gone_back_to(tmp_path: Path, kit: SimpleNamespace) -> None:
    """resume="best" goes on from the best epoch, and load_weights gives its weights; another epoch's differ."""
    scores = iter([3.0, 1.0, 2.0, 0.0, 0.0])
    words = hard_training(epochs=kit.EPOCHS)
    val = [next(iter(words["val_loader"]))]
    judge = {"monitor": "val_score", "metrics": {"score": lambda *_: next(scores)}, "val_loader": val, "keep_last": 1}
    first = kit.fit(tmp_path, **judge)
    assert first.best is not None
    assert (first.best.epoch, first.best.value) == (2, 1.0)
    best = colabkeep.load_weights("r", storage=tmp_path, which="best", monitor="val_score")
    latest = colabkeep.load_weights("r", storage=tmp_path)
    assert best["first.weight"].numpy().tobytes() != latest["first.weight"].numpy().tobytes()
    assert kit.fit(tmp_path, **judge, resume="best").resumed_from == 22


def test_a_changed_setting_is_refused_and_can_be_applied(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Another clipping is an error that names it; asked for, it holds from here on and is told."""
    events: list[Event] = []
    kit.fit(tmp_path, max_steps=5)
    with pytest.raises(Incompatible, match=r"gradient_clip_val: 1\.0 → 0\.5"):
        kit.fit(tmp_path, max_steps=7, gradient_clip_val=0.5)
    kit.fit(tmp_path, max_steps=7, gradient_clip_val=0.5, on_change="apply", callbacks=[events.append])
    (told,) = [event.text for event in events if isinstance(event, Noted) and "→" in event.text]
    assert "gradient_clip_val: 1.0 → 0.5" in told


def test_another_model_is_refused_and_nothing_is_touched(tmp_path: Path, kit: SimpleNamespace) -> None:
    """A layer more than the run had: the error names it, and the new model keeps its own weights."""
    kit.fit(tmp_path, max_steps=5)
    words = kit.cell(tmp_path, ema=None)
    words["model"].third = type(words["model"].first)(8, 8)
    before = kit.bits(words["model"])
    with pytest.raises(Incompatible, match="third"):
        colabkeep.resumable_fit(**words)
    assert kit.bits(words["model"]) == before


def test_an_average_without_the_method_is_refused(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Paddle has no class for it, so the remedy says what a user's own needs."""
    with pytest.raises(UsageError, match="has no update_parameters") as caught:
        kit.fit(tmp_path, ema=object())
    assert "method" in caught.value.remedy

"""The same cell again: it goes on, and nobody can tell that it was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.core.errors import CheckpointNotFound, Incompatible, UsageError
from colabkeep.core.events import Event, Noted, Restored, RestoredInexactly
from tests.trainings import SAMPLES
from tests.trainings.torch import hard_training

Whole = Callable[..., dict[str, str]]


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
    assert all(value.equal(trained[name]) for name, value in words["model"].state_dict().items())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_run_stopped_and_continued_many_times_has_the_bits_of_one_piece(
    tmp_path: Path, kit: SimpleNamespace, whole: Whole, accumulate: int
) -> None:
    """Sessions of a few steps each, with 0 and 1 workers in turn, end with all state as an uninterrupted one."""
    steps = kit.EPOCHS * (11 if accumulate == 1 else 4)
    for number, end in enumerate([*range(3, steps, 7), steps]):
        words = hard_training(epochs=kit.EPOCHS, accumulate=accumulate, workers=number % 2)
        result = kit.fit(tmp_path, **words, max_steps=end)
        assert result.steps == end
    kit.fit(tmp_path, **hard_training(epochs=kit.EPOCHS, accumulate=accumulate))
    assert kit.state(tmp_path, "r") == whole(accumulate)


def test_the_result_tells_of_the_whole_run(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Epochs, steps, history, best and checkpoints are those of all sessions; `resumed_from` is this session's."""
    first = kit.fit(tmp_path, max_steps=13)
    assert (first.run_name, first.epochs, first.steps, first.resumed_from, first.stopped) == (
        "r", 1, 13, None, "max_steps",
    )  # fmt: skip
    second = kit.fit(tmp_path)
    assert (second.run_name, second.epochs, second.steps, second.resumed_from, second.stopped) == (
        "r", 3, 33, 13, "finished",
    )  # fmt: skip
    assert [record["step"] for record in second.history] == [11, 22, 33]
    assert [record["epoch"] for record in second.history] == [0, 1, 2]
    assert all({"train_loss", "val_loss", "lr"} <= set(record) for record in second.history)
    losses = [record["val_loss"] for record in second.history]
    assert second.best is not None
    assert (second.best.monitor, second.best.value) == ("val_loss", min(losses))
    assert second.best.epoch == losses.index(min(losses)) + 1, "as tables count"
    assert second.best.checkpoint in {info.id for info in second.checkpoints if info.step == second.best.step}
    assert {info.step for info in second.checkpoints} == {11, 13, 22, 33}


def test_the_history_of_many_sessions_is_that_of_one(tmp_path: Path, kit: SimpleNamespace) -> None:
    """No record twice, none missing, steps increasing, every number the same."""
    whole = kit.fit(tmp_path / "whole").history
    for end in (5, 11, 12, 22, 30):
        kit.fit(tmp_path / "parts", max_steps=end)
    assert list(kit.fit(tmp_path / "parts").history) == list(whole)


def test_more_epochs_go_on_where_the_run_ended(tmp_path: Path, kit: SimpleNamespace) -> None:
    """A finished run with a larger max_epochs is continued, as if it had been asked for at once."""
    plain = {"scheduler": None, "ema": None}
    kit.fit(tmp_path / "parts", **plain, max_epochs=2)
    result = kit.fit(tmp_path / "parts", **plain, max_epochs=4)
    assert (result.resumed_from, result.epochs) == (22, 4)
    kit.fit(tmp_path / "whole", **plain, max_epochs=4)
    assert kit.state(tmp_path / "parts", "r") == kit.state(tmp_path / "whole", "r")


def test_a_changed_setting_is_refused_and_can_be_applied(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Another clipping is an error that names it; asked for, it holds from here on and is told."""
    events: list[Event] = []
    kit.fit(tmp_path, max_steps=5)
    kit.fit(tmp_path, max_steps=7, callbacks=[events.append])
    with pytest.raises(Incompatible, match=r"gradient_clip_val: 1\.0 → 0\.5"):
        kit.fit(tmp_path, max_steps=9, gradient_clip_val=0.5)
    assert [event for event in events if isinstance(event, Noted) and "→" in event.text] == []
    kit.fit(tmp_path, max_steps=9, gradient_clip_val=0.5, on_change="apply", callbacks=[events.append])
    (told,) = [event.text for event in events if isinstance(event, Noted) and "→" in event.text]
    assert "gradient_clip_val: 1.0 → 0.5" in told
    assert not [event for event in events if isinstance(event, RestoredInexactly)]


class TestWhereToGoOn:
    """`resume=`: "auto", "must", "never", "best", or a checkpoint's id."""

    def test_auto_starts_when_there_is_nothing_and_goes_on_when_there_is(
        self, tmp_path: Path, kit: SimpleNamespace
    ) -> None:
        """The default needs no thought on the first run nor on the tenth."""
        assert kit.fit(tmp_path, resume="auto", max_steps=4).resumed_from is None
        assert kit.fit(tmp_path, resume="auto", max_steps=6).resumed_from == 4

    def test_must_refuses_to_start_from_nothing(self, tmp_path: Path, kit: SimpleNamespace) -> None:
        """A mistyped folder is an error and not a second training from zero."""
        with pytest.raises(CheckpointNotFound, match="no checkpoint of the run 'r'"):
            kit.fit(tmp_path, resume="must")
        kit.fit(tmp_path, max_steps=4)
        assert kit.fit(tmp_path, resume="must", max_steps=5).resumed_from == 4

    def test_never_starts_from_nothing_and_deletes_nothing(
        self, tmp_path: Path, kit: SimpleNamespace, whole: Whole
    ) -> None:
        """The old checkpoints stay, the user is told so, and the next "auto" goes on with the new line."""
        events: list[Event] = []
        kit.fit(tmp_path, max_steps=20)
        before = {path for path in kit.contents(tmp_path) if "checkpoints" in path or "blobs" in path}
        result = kit.fit(tmp_path, resume="never", max_steps=6, keep_last=1, callbacks=[events.append])
        assert (result.resumed_from, result.steps) == (None, 6)
        assert before <= set(kit.contents(tmp_path))
        assert any("start" in event.text and "zero" in event.text for event in events if isinstance(event, Noted))
        assert kit.fit(tmp_path).resumed_from == 6
        assert kit.state(tmp_path, "r") == whole()

    def test_an_id_goes_back_to_that_very_checkpoint(self, tmp_path: Path, kit: SimpleNamespace, whole: Whole) -> None:
        """Training from there gives the same bits again, and the history has no record of what was left behind."""
        first = kit.fit(tmp_path, save_every="5 steps")
        chosen = next(info for info in reversed(first.checkpoints) if info.step > 11)
        events: list[Event] = []
        again = kit.fit(tmp_path, resume=chosen.id, callbacks=[events.append])
        assert [event.checkpoint for event in events if isinstance(event, Restored)] == [chosen.id]
        assert (again.resumed_from, list(again.history)) == (chosen.step, list(first.history))
        assert kit.state(tmp_path, "r") == whole()

    def test_an_unknown_id_is_refused_with_those_there_are(self, tmp_path: Path, kit: SimpleNamespace) -> None:
        """A typing mistake shows what could have been meant."""
        known = kit.fit(tmp_path, max_steps=4).checkpoints[0].id
        with pytest.raises(CheckpointNotFound) as caught:
            kit.fit(tmp_path, resume="000000000004-00000000")
        assert known in caught.value.remedy

    def test_best_goes_back_to_the_best_metric(self, tmp_path: Path, kit: SimpleNamespace) -> None:
        """With `monitor` and `mode`, the checkpoint of the best epoch is gone on from."""
        values = iter([3.0, 1.0, 2.0, 0.0, 0.0])
        judge: dict[str, Any] = {"monitor": "val_score", "metrics": {"score": lambda *_: torch.tensor(next(values))}}
        judge["val_loader"] = [one_batch()]
        kit.fit(tmp_path, **judge)
        again = kit.fit(tmp_path, **judge, resume="best")
        assert again.resumed_from == 22
        assert again.epochs == 3

    def test_best_needs_to_know_what_is_best(self, tmp_path: Path, kit: SimpleNamespace) -> None:
        """Without a metric the word means nothing, and the remedy says what to add."""
        with pytest.raises(UsageError, match="what is best") as caught:
            kit.fit(tmp_path, resume="best", val_loader=None)
        assert "monitor=" in caught.value.remedy


def one_batch() -> Any:
    return torch.zeros(4, 8), (torch.zeros(4, 8), torch.arange(4))


def test_every_sample_is_seen_once_in_each_epoch_over_all_sessions(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Sessions that stop in the middle of epochs neither skip nor repeat a sample."""
    seen: dict[int, tuple[int, list[int]]] = {}
    for end in (4, 9, 15, 16, 27, 33):
        words = hard_training(
            epochs=kit.EPOCHS, heard=lambda step, epoch, samples: seen.update({step: (epoch, samples)})
        )
        kit.fit(tmp_path, **words, max_steps=end)
    for number in range(kit.EPOCHS):
        samples = [sample for epoch, samples in seen.values() if epoch == number for sample in samples]
        assert sorted(samples) == list(range(SAMPLES))

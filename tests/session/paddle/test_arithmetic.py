"""The loop computes what a Paddle loop written by hand computes, bit for bit; and every schedule resumes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paddle
import pytest
from paddle import nn
from paddle.optimizer import lr

import colabkeep
from tests.trainings.paddle import Average, Tied

Batch = tuple[paddle.Tensor, paddle.Tensor]


def some_batches() -> list[Batch]:
    """Eleven batches, the last one short: three to a window leave a window of two."""
    paddle.seed(3)
    return [(paddle.randn([size, 8]), paddle.randn([size, 8])) for size in [4] * 10 + [2]]


def parts(clip: float | None = None) -> dict[str, Any]:
    paddle.seed(1)
    model = Tied()
    schedule = lr.StepDecay(1e-2, 2)
    grad_clip = None if clip is None else nn.ClipGradByGlobalNorm(clip)
    optimizer = paddle.optimizer.AdamW(schedule, parameters=model.parameters(), grad_clip=grad_clip)
    return {"model": model, "optimizer": optimizer, "scheduler": schedule, "ema": Average(model)}


def by_hand(epochs: int, accumulate: int = 1, clip: float | None = None) -> dict[str, Any]:
    """The loop of a textbook. Returns its objects."""
    batches, own = some_batches(), parts(clip)
    model, optimizer = own["model"], own["optimizer"]
    model.train()
    for _ in range(epochs):
        for start in range(0, len(batches), accumulate):
            window = batches[start : start + accumulate]
            for features, target in window:
                loss = nn.functional.mse_loss(model(features), target)
                (loss * (1 / len(window))).backward()
            optimizer.step()
            optimizer.clear_grad()
            own["ema"].update_parameters(model)
        own["scheduler"].step()
    return own


@pytest.mark.parametrize("sessions", [(99,), (5, 12, 99)], ids=["in one piece", "in three"])
@pytest.mark.parametrize(
    "words",
    [{}, {"accumulate_grad_batches": 3}, {"accumulate_grad_batches": 4, "gradient_clip_val": 0.2}],
    ids=["plain", "accumulated", "accumulated and clipped"],
)
def test_resumable_fit_computes_what_a_loop_written_by_hand_does(
    tmp_path: Path, kit: SimpleNamespace, words: dict[str, Any], sessions: tuple[int, ...]
) -> None:
    """Weights, EMA and schedule; also with a shorter last window of an epoch, also over sessions."""
    hand = by_hand(3, words.get("accumulate_grad_batches", 1), words.get("gradient_clip_val"))
    options = {"loss_fn": nn.functional.mse_loss, "max_epochs": 3, "progress": False}
    for end in sessions:
        batches, own = some_batches(), parts()
        more = {**own, **options, **words, "max_steps": end}
        colabkeep.resumable_fit(more.pop("model"), batches, **more, run_name="r", storage=tmp_path)
    assert kit.bits(own["model"]) == kit.bits(hand["model"])
    assert kit.bits(own["ema"]) == kit.bits(hand["ema"])
    assert own["optimizer"].get_lr() == hand["optimizer"].get_lr()


def test_an_own_loop_on_run_computes_what_it_did_without(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Putting `run.epochs`, `run.batches` and `run.step` into a loop changes no bit of it, resumed or not."""
    hand = by_hand(3)
    for end in (6, 17, 99):
        batches, own = some_batches(), parts()
        with colabkeep.Run("r", **own, storage=tmp_path, progress=False) as run:
            own["model"].train()
            for _ in run.epochs(3):
                for features, target in run.batches(batches):
                    loss = nn.functional.mse_loss(own["model"](features), target)
                    loss.backward()
                    own["optimizer"].step()
                    own["optimizer"].clear_grad()
                    own["ema"].update_parameters(own["model"])
                    run.step(loss=loss)
                    if run.progress.step == end:
                        run.stop()
                own["scheduler"].step()
    assert kit.bits(own["model"]) == kit.bits(hand["model"])
    assert kit.bits(own["ema"]) == kit.bits(hand["ema"])


def plateau() -> lr.LRScheduler:
    return lr.ReduceOnPlateau(
        0.05, factor=0.5, patience=0, threshold=0.999
    )  # no loss falls so far: it moves on any machine


def one_cycle() -> lr.LRScheduler:
    return lr.OneCycleLR(0.1, total_steps=33)


def warm_up() -> lr.LRScheduler:
    return lr.LinearWarmup(lr.CosineAnnealingDecay(0.1, 28), 5, 0.0, 0.1)


def from_a_function() -> lr.LRScheduler:
    return lr.LambdaDecay(0.1, lambda epoch: 0.5**epoch)


@pytest.mark.parametrize(
    ("make", "interval"),
    [(plateau, "epoch"), (one_cycle, "step"), (warm_up, "step"), (from_a_function, "epoch"), (from_a_function, "step")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_schedule_goes_on_where_it_was(
    tmp_path: Path, kit: SimpleNamespace, make: Callable[[], lr.LRScheduler], interval: str
) -> None:
    """Stopped within epochs and at their ends, it ends with the state of one piece, and it really moved."""

    def session(folder: Path, end: int) -> Any:
        words, schedule = kit.cell(folder, scheduler_interval=interval, max_steps=end), make()
        optimizer = paddle.optimizer.AdamW(schedule, parameters=words["model"].parameters())
        return colabkeep.resumable_fit(**{**words, "optimizer": optimizer, "scheduler": schedule})

    for end in (3, 11, 19, 99):
        result = session(tmp_path / "parts", end)
    session(tmp_path / "whole", 99)
    assert kit.state(tmp_path / "parts", "r") == kit.state(tmp_path / "whole", "r")
    assert len({record["lr"] for record in result.history}) > 1


def test_metrics_of_both_kinds_stand_in_the_history(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Functions and objects of paddle.metric measure every epoch anew, also in a session that resumes."""
    words: dict[str, Any] = {
        "loss_fn": lambda output, target: (output * output).mean(),
        "val_loader": [(paddle.ones([4, 8]), paddle.to_tensor([[0], [1], [2], [3]]))],
        "monitor": "val_accuracy",
        "mode": "max",
    }

    def session(folder: Path, end: int) -> Any:
        metrics = {"mean": lambda output, _: output.mean(), "accuracy": paddle.metric.Accuracy()}
        return kit.fit(folder, **words, metrics=metrics, max_steps=end)

    whole = session(tmp_path / "whole", 33)
    session(tmp_path / "parts", 15)
    assert list(session(tmp_path / "parts", 33).history) == list(whole.history)
    assert all({"val_mean", "val_accuracy", "val_loss"} <= set(record) for record in whole.history)
    # Four equal inputs of four classes: one answer for all, so one of four is right, if any is.
    assert {record["val_accuracy"] for record in whole.history} <= {0.0, 0.25}

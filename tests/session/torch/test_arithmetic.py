"""The loop computes what a loop written by hand computes, bit for bit; and every schedule and precision resumes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

import colabkeep
from tests.trainings.torch import Tied

Batch = tuple[torch.Tensor, torch.Tensor]


def some_batches() -> list[Batch]:
    """Eleven batches, the last one short: three to a window leave a window of two."""
    torch.manual_seed(3)
    return [(torch.randn(size, 8), torch.randn(size, 8)) for size in [4] * 10 + [2]]


def parts() -> dict[str, Any]:
    torch.manual_seed(1)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": lr_scheduler.StepLR(optimizer, 2),
        "ema": AveragedModel(model),
    }


def by_hand(epochs: int, accumulate: int = 1, clip: float | None = None) -> dict[str, Any]:
    """The loop of a textbook. Returns its objects."""
    own, batches = parts(), some_batches()
    model, optimizer = own["model"], own["optimizer"]
    model.train()
    for _ in range(epochs):
        for start in range(0, len(batches), accumulate):
            window = batches[start : start + accumulate]
            for features, target in window:
                loss = nn.functional.mse_loss(model(features), target)
                (loss * (1 / len(window))).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            own["ema"].update_parameters(model)
        own["scheduler"].step()
    return own


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(a.equal(b) for a, b in pairs)


@pytest.mark.parametrize("sessions", [(99,), (5, 12, 99)], ids=["in one piece", "in three"])
@pytest.mark.parametrize(
    "words",
    [
        {},
        {"accumulate_grad_batches": 3},
        {"gradient_clip_val": 0.1},
        {"accumulate_grad_batches": 4, "gradient_clip_val": 0.2},
    ],
    ids=["plain", "accumulated", "clipped", "both"],
)
def test_resumable_fit_computes_what_a_loop_written_by_hand_does(
    tmp_path: Path, words: dict[str, Any], sessions: tuple[int, ...]
) -> None:
    """Weights, optimizer, EMA and schedule; also with a shorter last window of an epoch, also over sessions."""
    hand = by_hand(3, words.get("accumulate_grad_batches", 1), words.get("gradient_clip_val"))
    options = {"loss_fn": nn.functional.mse_loss, "max_epochs": 3, "precision": "32-true", "progress": False}
    for end in sessions:
        own = parts()
        more = {**own, **options, **words, "max_steps": end}
        colabkeep.resumable_fit(more.pop("model"), some_batches(), **more, run_name="r", storage=tmp_path)
    assert float(hand["scheduler"].get_last_lr()[0]) == float(own["scheduler"].get_last_lr()[0])
    for name, part in (("model", hand["model"]), ("ema", hand["ema"])):
        kept = colabkeep.load_weights("r", storage=tmp_path, part=name)
        assert all(value.equal(kept[key]) for key, value in part.state_dict().items())
    mine, theirs = hand["optimizer"].state_dict()["state"], own["optimizer"].state_dict()["state"]
    assert all(torch.as_tensor(mine[i][key]).equal(torch.as_tensor(theirs[i][key])) for i in mine for key in mine[i])


def test_an_own_loop_on_run_computes_what_it_did_without(tmp_path: Path) -> None:
    """Putting `run.epochs`, `run.batches` and `run.step` into a loop changes no bit of it, resumed or not."""
    hand = by_hand(3)
    for end in (6, 17, 99):
        own, batches = parts(), some_batches()
        with colabkeep.Run("r", **own, storage=tmp_path, progress=False) as run:
            own["model"].train()
            for _ in run.epochs(3):
                for features, target in run.batches(batches):
                    nn.functional.mse_loss(own["model"](features), target).backward()
                    own["optimizer"].step()
                    own["optimizer"].zero_grad()
                    own["ema"].update_parameters(own["model"])
                    run.step()
                    if run.progress.step == end:
                        run.stop()
                own["scheduler"].step()
    assert same_weights(own["model"], hand["model"])
    assert same_weights(own["ema"], hand["ema"])


def plateau(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=33)


def sequential(optimizer: torch.optim.Optimizer) -> Any:
    warm, cold = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(optimizer, 28)
    return lr_scheduler.SequentialLR(optimizer, [warm, cold], [5])


def warm_restarts(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)


def from_a_function(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch 2.4's own SequentialLR uses what it deprecates
@pytest.mark.parametrize(
    ("make", "interval"),
    [
        (plateau, "epoch"), (one_cycle, "step"), (sequential, "step"), (warm_restarts, "epoch"),
        (from_a_function, "epoch"), (from_a_function, "step"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_a_schedule_goes_on_where_it_was(
    tmp_path: Path, kit: SimpleNamespace, make: Callable[..., Any], interval: str
) -> None:
    """Stopped within epochs and at their ends, it ends with the state of one piece, and it really moved."""

    def session(folder: Path, end: int) -> Any:
        words = kit.cell(folder, scheduler_interval=interval, max_steps=end)
        words["scheduler"] = make(words["optimizer"])
        return colabkeep.resumable_fit(**words)

    for end in (3, 11, 19, 99):
        result = session(tmp_path / "parts", end)
    session(tmp_path / "whole", 99)
    assert kit.state(tmp_path / "parts", "r") == kit.state(tmp_path / "whole", "r")
    assert len({record["lr"] for record in result.history}) > 1


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_every_precision_resumes_exactly(tmp_path: Path, kit: SimpleNamespace, precision: str) -> None:
    """Mixed precision too, with the gradient scaler's state where there is one."""
    for end in (4, 15, 99):
        kit.fit(tmp_path / "parts", precision=precision, max_steps=end)
    kit.fit(tmp_path / "whole", precision=precision)
    state = kit.state(tmp_path / "parts", "r")
    assert state == kit.state(tmp_path / "whole", "r")
    assert any(path.startswith("scaler.") for path in state) == (precision == "16-mixed")


def test_precisions_differ(tmp_path: Path, kit: SimpleNamespace) -> None:
    """The word is not only stored: bfloat16 gives other weights than float32, and "auto" on a CPU is float32."""
    found = {}
    for precision in ("auto", "32-true", "bf16-mixed"):
        kit.fit(tmp_path / precision, precision=precision, max_epochs=1)
        found[precision] = kit.state(tmp_path / precision, "r")["model.weights.first.weight"]
    assert found["auto"] == found["32-true"] != found["bf16-mixed"]

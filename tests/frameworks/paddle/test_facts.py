"""What bits depend on in Paddle is read fact by fact; losses are heard of as they come."""

from __future__ import annotations

from pathlib import Path

import paddle
import pytest

import colabkeep
from colabkeep.core.errors import TrainingDiverged
from colabkeep.core.events import Event, LossNotFinite
from colabkeep.frameworks.paddle import facts
from colabkeep.frameworks.paddle.adapter import PaddleLosses

MODEL = paddle.nn.Linear(2, 1)


def test_a_flag_that_cannot_be_read_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called unreadable with the reason, and named where the promise is made."""

    def broken() -> None:
        raise RuntimeError("no flags today")

    before = facts.fingerprint(MODEL.parameters())
    monkeypatch.setattr(facts.core, "globals", broken)
    now, told = facts.fingerprint(MODEL.parameters()), facts.exactness(MODEL.parameters(), reseeds=False)
    assert now["threads"] == "unreadable: RuntimeError: no flags today"
    assert now["paddle"] == before["paddle"]
    assert any("threads" in note for note in told.notes)


def test_what_libraries_read_by_themselves_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    """OMP_NUM_THREADS decides how sums are split."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert facts.fingerprint([])["OMP_NUM_THREADS"] == "3"


def test_a_generator_that_cannot_be_continued_is_no_obstacle() -> None:
    """It is told; the resumed bits are those of the same training with colabkeep."""
    told = facts.exactness([], reseeds=True)
    assert told.obstacles == ()
    assert any("new seed after every step" in note for note in told.notes)


def test_losses_at_hand_are_known_at_once() -> None:
    """With a graph or without."""
    losses = PaddleLosses()
    weight = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(1.5))
    assert losses.take(1, (weight * 2).sum()) == 3.0
    assert losses.take(2, paddle.to_tensor([1.0, 2.0])) is None
    assert losses.take(3, 0.5) == 0.5
    assert losses.state_dict() == {}


@pytest.mark.parametrize("on_nan", ["warn", "stop"])
def test_a_loss_that_is_no_number_is_told(tmp_path: Path, on_nan: str) -> None:
    """As in torch, with the checkpoint to go back to; the newest from before is kept."""
    events: list[Event] = []
    model = paddle.nn.Linear(1, 1)
    run = colabkeep.Run(
        "r",
        model=model,
        storage=tmp_path,
        save_every=None,
        keep_last=1,
        progress=False,
        callbacks=[events.append],
        on_nan=on_nan,  # type: ignore[arg-type]
    )

    def train() -> None:
        with run:
            for _ in run.epochs(1):
                for number in run.batches(list(range(1, 13))):
                    run.step(loss=paddle.to_tensor(float("nan") if number >= 7 else 1.0))
                    if number % 2 == 0:
                        run.save(wait=True)

    if on_nan == "stop":
        with pytest.raises(TrainingDiverged, match="NaN since step 7"):
            train()
    else:
        train()
    (event,) = [event for event in events if isinstance(event, LossNotFinite)]
    assert event.checkpoint is not None
    assert (event.step, int(event.checkpoint[:12])) == (7, 4)
    steps = sorted(int(path.name[:12]) for path in (tmp_path / "r" / "checkpoints").glob("*.json"))
    assert steps == ([4, 6] if on_nan == "stop" else [4, 12])

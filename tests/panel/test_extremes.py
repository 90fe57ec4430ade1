"""Trainings that no display is made for: the panel stays small, readable and true.

`python -m tests.panel.test_extremes` does the long ones in full."""

from __future__ import annotations

import math
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import colabkeep
from colabkeep.core.events import EpochDone, Event, LengthTold, MetricsLogged, RunStarted, RunStopped, StepDone
from colabkeep.core.manifest import Progress
from colabkeep.testing.clock import FakeClock
from colabkeep.ui.panel.displays import record
from colabkeep.ui.panel.render import line, moving_line, render
from colabkeep.ui.panel.state import Paced, PanelState

from .conftest import RunHistory, in_phase, picture_of, text_of
from .test_rendering import FORBIDDEN, LINE, cells

LONGEST = "x" * 180 + "<b>&' 保存训练"  # 200 bytes and more, with letters of all kinds


class Number:
    """The smallest model."""

    value = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


class Watching:
    """A panel's state as a real run tells it; of steps it hears one each `each` seconds, 0: all."""

    def __init__(self, *, each: float = 0.0) -> None:
        self.state, self.each, self.steps_from, self.heard = PanelState(platform="Google Colab"), each, 0.0, 0

    def __call__(self, event: Event) -> None:
        self.heard += 1
        self.state.take(event, time.time())
        if self.each and isinstance(event, StepDone):
            self.steps_from = time.monotonic() + self.each


def train(folder: Path, losses: Callable[[int], float], steps: int, *, each: float = 0.0, **words: Any) -> Watching:
    """A real run with these losses; what a panel heard of it."""
    watching, model = Watching(each=each), Number()
    words = {"save_every": None, "progress": False, "on_nan": "warn", **words}
    name = words.pop("run_name", "r")
    with colabkeep.Run(name, model=model, storage=folder, callbacks=[watching], **words) as run:
        for step in run.steps(steps):
            run.step(loss=losses(step))
    return watching


def readable(state: PanelState) -> str:
    """The panel in words, after what holds of each: it is small and whole, and both lines are lines."""
    html = render(state)
    assert len(html.encode()) < 20_000
    assert not [word for word in FORBIDDEN if word in re.sub(r'base64,[^"]+', "", html)]
    assert LINE.fullmatch(line(state)), line(state)
    assert moving_line(state).isprintable()
    record(state)
    return text_of(html)


def test_a_training_of_one_step(tmp_path: Path) -> None:
    """Its loss is shown as it is, and nothing is divided by the time it took."""
    state = train(tmp_path, lambda _: 0.5, 1).state
    assert "✔ FINISHED" in readable(state)
    assert "100 % · step 1 of 1" in readable(state)
    assert "loss 0.5" in readable(state)
    assert ">0.5<" in picture_of(render(state))


def test_losses_that_are_not_numbers_and_losses_that_leap(tmp_path: Path) -> None:
    """A NaN that stays is told with its step, and the end is no success; one that passes leaves a gap. A leap of a
    million is cut off, and what it was is written."""

    def calm(step: int) -> float:
        return 1.0 + math.sin(step) / 10

    broken = train(tmp_path / "a", lambda step: math.nan if step >= 150 else calm(step), 200).state
    assert "✖ ENDED WITH NaN" in readable(broken)
    assert "NaN at 151" in picture_of(render(broken))
    healed = train(tmp_path / "b", lambda step: math.inf if step == 150 else calm(step), 200).state
    assert "✔ FINISHED" in readable(healed)
    assert "not a number at step 151" in render(healed)
    leaping = train(tmp_path / "c", lambda step: 1e6 if step == 70 else calm(step), 200).state
    assert "1e+06" in picture_of(render(leaping))
    raw = re.findall(r'<polyline[^>]* points="([^"]*)"', picture_of(render(leaping)))[0]
    heights = sorted(float(pair.split(",")[1]) for pair in raw.split())
    assert heights[-1] - heights[1] > 80, "the others take most of the height"


def test_a_name_of_two_hundred_characters(tmp_path: Path) -> None:
    """It is cut where it stands in the panel, shown as text, and the run is found by it."""
    name = "n" * 200
    assert name[:100] in readable(train(tmp_path, lambda _: 1.0, 3, run_name=name).state)
    for phase in ("durable", "failed"):
        assert "<b>" not in render(in_phase(phase, run=LONGEST).state)


def count_steps(folder: Path, steps: int) -> None:
    """Every step is counted; the curve begins where the training did, ends with its last loss, and is bounded."""
    watching = train(folder, lambda step: 1.0 / (1 + step), steps, each=0.05)
    state = watching.state
    assert f"step {steps} of {steps}" in readable(state)
    assert len(state.points) <= 513
    assert state.points[0][0] <= steps / 200
    assert state.points[-1] == (steps, 1.0 / steps)
    assert state.loss == 1.0 / steps


def test_many_steps(tmp_path: Path) -> None:
    """A share of a million."""
    count_steps(tmp_path, 20_000)


def test_a_thousand_epochs_of_forty_metrics() -> None:
    """The table has the last ones and the best one, with its own numbers; six metrics at most are beside the loss."""
    history, epochs = RunHistory(), 1000
    history.start()
    names = [f"val_metric_number_{number}" for number in range(39)]
    for epoch in range(epochs):
        at = Progress(epoch=epoch, step=epoch + 1, seconds=60.0 * (epoch + 1))
        logged = {"val_loss": 1.0 + abs(epoch - 700) / 100, **dict.fromkeys(names, epoch / 10)}
        history.tell(StepDone(progress=at, epoch_batches=1, loss=1.0), MetricsLogged(progress=at, metrics=logged))
        history.tell(EpochDone(epoch=epoch, progress=at, metrics=logged))
    state = history.state
    readable(state)
    table = cells(render(state), "Epochs · ★ best val_loss: 1, epoch 701")
    assert [row[0] for row in table] == ["epoch", "★ 701", *(str(n) for n in range(epochs - 5, epochs + 1))]
    assert table[-1][:3] == [str(epochs), f"{1.0 + (epochs - 701) / 100:.4g}", f"{(epochs - 1) / 10:.4g}"]
    assert len(table[0]) <= 8


def twelve_hours(pause: float, show: Callable[[Event], None], clock: FakeClock) -> None:
    """A training of twelve hours: a step each `pause` seconds, an epoch each quarter of an hour, with six metrics."""
    show(LengthTold(max_epochs=48))
    epoch_steps = round(900 / pause)
    for step in range(1, 48 * epoch_steps + 1):
        clock.advance(pause)
        epoch, within = divmod(step, epoch_steps)
        at = Progress(epoch=epoch, batches=within, step=step, samples=32 * step, seconds=pause * step)
        show(StepDone(progress=at, epoch_batches=epoch_steps, loss=3.0 / (1 + step / 500) + math.sin(step) / 5))
        if not within:
            logged = dict.fromkeys(("train_loss", "val_loss", "lr", "val_accuracy", "val_f1", "val_auc"), 1.0 / epoch)
            ended = at._replace(epoch=epoch - 1)
            show(MetricsLogged(progress=ended, metrics=logged))
            show(EpochDone(epoch=epoch - 1, progress=at, metrics=logged))
    show(RunStopped(reason="finished", progress=at, checkpoint=None))


def main() -> int:
    """The long ones in full: a million steps that are really counted, and twelve hours of an update a second."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        count_steps(Path(folder), 1_000_000)
        print(f"a million steps: {time.perf_counter() - began:.0f} s")
    clock, sizes = FakeClock(), list[int]()
    paced = Paced(clock, PanelState(platform="Jupyter"), 1.0)

    def show(event: Event) -> None:
        if paced.due(event):
            sizes.append(len(render(paced.state).encode()))

    began = time.perf_counter()
    show(RunStarted(run="r", session="s", storage="runs", promise="Exact."))
    twelve_hours(1.0, show, clock)
    spent = time.perf_counter() - began
    print(
        f"twelve hours: {len(sizes)} panels of at most {max(sizes)} bytes, drawn in {spent:.0f} s: {spent / 432:.2f} %"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

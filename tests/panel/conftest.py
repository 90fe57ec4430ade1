"""A run as its events tell it, and notebooks that are really executed."""

from __future__ import annotations

import math
import re
from base64 import b64decode
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from colabkeep.core.events import (
    CheckpointDurability,
    DeadlineNear,
    DurabilityReached,
    DurabilityTold,
    Event,
    LengthTold,
    LossNotFinite,
    MachineChecked,
    MachineGiven,
    MetricsLogged,
    Place,
    Recalled,
    Restored,
    RunStarted,
    RunStopped,
    SaveCommitted,
    SaveFailing,
    SaveStarted,
    StepDone,
    StoreDegraded,
    assess,
)
from colabkeep.core.manifest import Progress
from colabkeep.testing.clock import FakeClock
from colabkeep.ui.panel.gauges import Card, Usage
from colabkeep.ui.panel.state import PanelState

DRIVE = Place(url="/content/drive/MyDrive/runs", top="confirmed", persists=True)
PROMISE = (
    "Exact: model, optimizer, the random streams and the position in the data are restored, and the steps after that "
    "give the same bits with the same torch, kind of GPU and driver."
)


def at(step: int, *, of: int = 100) -> Progress:
    """The position after a step: a hundred batches in an epoch, three steps a second."""
    return Progress(epoch=step // of, step=step, batches=step % of, samples=step * 32, seconds=step / 3)


@dataclass
class RunHistory:
    """Tells a run to a panel, and remembers all it told."""

    clock: FakeClock = field(default_factory=FakeClock)
    run: str = "r"
    place: Place = DRIVE
    events: list[Event] = field(default_factory=list)
    standings: dict[str, CheckpointDurability] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.panel = PanelState(platform="Google Colab")

    def tell(self, *events: Event) -> RunHistory:
        for event in events:
            self.events.append(event)
            self.panel.take(event, self.clock.time())
        return self

    def start(self, *, resumed_at: int | None = None) -> RunHistory:
        self.tell(MachineChecked(verdict="keep", lines=("Google Colab (hosted), Tesla T4: keep.",)))
        ends = self.clock.time() + 7 * 3600
        self.tell(
            RunStarted(
                run=self.run,
                session="s1",
                storage="/content/runs + /content/drive/MyDrive/runs",
                promise=PROMISE,
                exactness="exact",
                ends_at=ends,
                ends_source="Limit: the FAQ of Colab.",
            ),
            MachineGiven(platform="colab", kind="hosted", accelerators=("Tesla T4",)),
        )
        if resumed_at is not None:
            points = tuple((step, 3.0 / (1 + step / 50)) for step in range(1, resumed_at + 1))
            self.tell(Restored(checkpoint=f"{resumed_at:012d}-s0", progress=at(resumed_at), age=400.0))
            self.tell(Recalled(points=points, resumed_at=(resumed_at,), sessions=2))
        return self.tell(LengthTold(max_epochs=10))

    def train(self, first: int, last: int, *, broken: bool = False) -> RunHistory:
        for step in range(first, last + 1):
            self.clock.advance(1 / 3)
            loss = math.nan if broken else 3.0 / (1 + step / 50)
            self.tell(StepDone(progress=at(step), epoch_batches=100, loss=loss))
        return self

    def save(self, step: int, *, level: str | None = "confirmed") -> RunHistory:
        """Save: captured (None), or committed and on its level."""
        self.tell(SaveStarted(progress=at(step), reason="epoch", blocked=0.1))
        if level is None:
            return self
        id = f"{step:012d}-s1"
        self.tell(
            SaveCommitted(
                checkpoint=id,
                progress=at(step),
                reason="epoch",
                bytes=2**20,
                written=9,
                seconds=2.0,
                level="local",
                copy="memory is short",
            )
        )
        if level != "local":
            self.tell(DurabilityReached(checkpoint=id, level=level))
        self.standings[id] = CheckpointDurability(checkpoint=id, step=step, seconds=step / 3, level=level)  # type: ignore[arg-type]
        seconds = self.panel.progress.seconds
        durability = assess(tuple(self.standings.values()), self.place, seconds)
        return self.tell(DurabilityTold(durability=durability))

    def stop(self, reason: str, error: str = "") -> RunHistory:
        newest = next(reversed(self.standings), None)
        return self.tell(RunStopped(reason=reason, progress=self.panel.progress, checkpoint=newest, error=error))

    @property
    def state(self) -> PanelState:
        """As of now; what comes later does not change it."""
        return replace(self.panel, now=self.clock.time())


def in_phase(phase: str, **words: Any) -> RunHistory:
    """A run that has come to this state."""
    run_history = RunHistory(**words)
    if phase == "starting":
        return run_history
    if phase == "saved":
        run_history.place = Place(url="/content/runs", top="local", persists=None)
        return run_history.start().train(1, 100).save(100, level="local").train(101, 112)
    if phase in ("fresh", "resumed"):
        return run_history.start(resumed_at=200 if phase == "resumed" else None)
    run_history.start().train(1, 100).save(100).train(101, 200)
    if phase == "saving":
        return run_history.save(200, level=None).train(201, 212)
    run_history.save(200, level="local" if phase == "uploading" else "confirmed").train(201, 204)
    run_history.train(205, 212, broken=phase in ("nan", "diverged"))
    more: dict[str, Event] = {
        "degraded": StoreDegraded(url="drive", detail="The drive is away."),
        "unsaved": SaveFailing(progress=at(210), error="The disk is full.", retry_in=15.0),
        "ending": DeadlineNear(seconds=600.0, ends=True),
        "nan": LossNotFinite(step=205, value="nan", finite=204, checkpoint=f"{200:012d}-s1"),
    }
    if phase in more:
        return run_history.tell(more[phase])
    if phase == "diverged":
        run_history.tell(more["nan"])
    if phase == "finished":
        run_history.train(213, 1000).save(1000)
    reasons = {"interrupted": "interrupt", "finished": "finished", "diverged": "finished", "failed": "error"}
    return (
        run_history.stop(reasons[phase], "ValueError: no" if phase == "failed" else "")
        if phase in reasons
        else run_history
    )


def in_full(phase: str, **words: Any) -> PanelState:
    """The same with all that a panel can show of a training: metrics of both data sets, the machine, a norm."""
    run_history = in_phase(phase, **words)
    if phase != "starting":
        for epoch in range(2):
            logged = {"train_loss": 1.3 - 0.4 * epoch, "lr": 3e-4, "val_loss": 1.4 - 0.3 * epoch}
            logged |= {"train_accuracy": 0.7 + epoch / 10, "val_accuracy": 0.68 + epoch / 10, "val_f1": 0.6 + epoch / 9}
            run_history.tell(MetricsLogged(progress=at(100 * (epoch + 1))._replace(epoch=epoch), metrics=logged))
    cards = (Card(busy=0.93, used=9 * 2**30, total=15 * 2**30),)
    usage = Usage(cards=cards, memory=(5 * 2**30, 12 * 2**30))
    return replace(run_history.state, usage=usage, grad_norm=1.25, learning_rate=3e-4)


PHASES = (
    "starting",
    "fresh",
    "resumed",
    "saving",
    "uploading",
    "saved",
    "durable",
    "degraded",
    "ending",
    "nan",
    "interrupted",
    "finished",
    "diverged",
    "failed",
)


def text_of(html: str) -> str:
    """What a reader sees of some HTML."""
    from html import unescape

    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def picture_of(html: str) -> str:
    """The SVG inside the picture."""
    found = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    assert found, "there is a picture"
    return b64decode(found[1]).decode()


@pytest.fixture
def kernel_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings of Jupyter and IPython of their own, so that a test neither reads nor writes the user's."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    return tmp_path

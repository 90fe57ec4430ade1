"""When checkpoints are made, and which of them stay."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.core.errors import CheckpointNotFound
from colabkeep.core.events import Event, SaveCommitted, SaveStarted
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.faults import FaultyStore
from tests.trainings.torch import hard_training

VALUES = [3.0, 1.0, 2.0, 5.0, 4.0]  # of a metric, epoch by epoch


def judged(**changes: Any) -> dict[str, Any]:
    """Five epochs whose validation gives `VALUES`."""
    values = iter(VALUES)
    batch = torch.zeros(4, 8), (torch.zeros(4, 8), torch.arange(4))
    words = {**hard_training(epochs=5), "val_loader": [batch], "metrics": {"score": lambda *_: next(values)}}
    return {**words, "monitor": "val_score", **changes}


@pytest.mark.parametrize(
    ("words", "best"),
    [
        ({"keep_last": 1, "keep_best": 0}, []),
        ({"keep_last": 2, "keep_best": 0}, []),
        ({"keep_last": 1, "keep_best": 1}, [22]),
        ({"keep_last": 1, "keep_best": 2}, [22, 33]),
        ({"keep_last": 1, "keep_best": 1, "mode": "max"}, [44]),
        ({"keep_last": 3, "keep_best": 1}, [22]),
        ({"keep_last": None}, [22]),
    ],
    ids=str,
)
def test_the_newest_and_the_best_are_kept(
    tmp_path: Path, kit: SimpleNamespace, words: dict[str, Any], best: list[int]
) -> None:
    """As many as asked for, by the metric and the mode that were named; the best one always has its weights."""
    events: list[Event] = []
    result = kit.fit(tmp_path, **judged(**words, callbacks=[events.append]))
    saved = [event.progress.step for event in events if isinstance(event, SaveCommitted)]
    last = saved if words["keep_last"] is None else saved[-words["keep_last"] :]
    assert {info.step for info in result.checkpoints} == {*best, *last}
    assert last[-1] == 55
    if best:
        value = (max if words.get("mode") == "max" else min)(VALUES)
        assert (result.best.value, result.best.step) == (value, best[0])
        assert result.best.checkpoint in {info.id for info in result.checkpoints}
    named = {blob.file for info in result.checkpoints for blob in info.manifest.blobs}
    assert {path.name for path in tmp_path.glob("r/blobs/*")} == named, "files that no checkpoint needs are gone"


@pytest.mark.parametrize(
    ("every", "saved"),
    [
        (1, {"epoch": [11, 22, 33]}),
        (2, {"epoch": [22], "finished": [33]}),
        ("3 epochs", {"epoch": [33]}),
        ("10 steps", {"steps": [10, 20, 30], "finished": [33]}),
        (["15 steps", 2], {"steps": [15, 30], "epoch": [22], "finished": [33]}),
        (None, {"finished": [33]}),
        ("10 min", {"finished": [33]}),
        ("auto", {"best": [11, 22, 33]}),  # each is better than the one before; the first proves the storage
    ],
    ids=str,
)
def test_saves_come_when_they_were_asked_for(
    tmp_path: Path, kit: SimpleNamespace, every: Any, saved: dict[str, list[int]]
) -> None:
    """Every so many epochs, steps or minutes, whichever comes first; and the end is saved in any case, once."""
    found: dict[str, list[int]] = {}
    written = threading.Event()
    store = FaultyStore(MemoryStore(), at=lambda point: written.set() if point.startswith("after put r/jour") else None)

    def tell(event: Event) -> None:
        if isinstance(event, SaveStarted):
            found.setdefault(event.reason.replace("left", "finished"), []).append(event.progress.step)
            # A training that is slow enough for its saves; one that is not makes them up, with a later state.
            assert written.wait(30)
            written.clear()
            time.sleep(0.005)

    kit.fit(tmp_path, save_every=every, callbacks=[tell], storage=store)
    assert found == saved


def test_a_save_can_be_asked_for(tmp_path: Path) -> None:
    """`run.save(wait=True)` returns when it is safe; in the middle of a step, the end of the step is saved."""
    words = hard_training(epochs=1)
    events: list[Event] = []
    options: dict[str, Any] = {"save_every": None, "keep_last": None, "progress": False, "callbacks": [events.append]}
    with colabkeep.Run("r", model=words["model"], storage=tmp_path, **options) as run:
        for _ in run.epochs(1):
            for _batch in run.batches(words["train_loader"]):
                if run.progress.step == 2:
                    run.save("in the middle")
                run.step()
                if run.progress.step == 6:
                    run.save("by hand", wait=True)
                    assert list(tmp_path.glob("r/checkpoints/000000000006-*.json"))
    saved = {event.reason: event.progress.step for event in events if isinstance(event, SaveCommitted)}
    assert (saved["in the middle"], saved["by hand"]) == (3, 6)


def test_the_weights_of_a_run_can_be_had_elsewhere(tmp_path: Path, kit: SimpleNamespace) -> None:
    """`load_weights` gives the newest, the best, or those of an id: ready for `load_state_dict`."""
    words = judged(keep_last=None)
    result = kit.fit(tmp_path, **words)
    latest = colabkeep.load_weights("r", storage=tmp_path)
    assert all(value.equal(latest[name]) for name, value in words["model"].state_dict().items())
    hard_training()["model"].load_state_dict(latest)
    best = colabkeep.load_weights("r", storage=tmp_path, which="best", monitor="val_score")
    by_id = colabkeep.load_weights("r", storage=tmp_path, which=result.best.checkpoint)
    assert all(value.equal(by_id[name]) for name, value in best.items())
    assert not best["first.weight"].equal(latest["first.weight"])
    ema = colabkeep.load_weights("r", storage=tmp_path, part="ema")
    assert all(value.equal(ema[name]) for name, value in words["ema"].state_dict().items())


@pytest.mark.parametrize(
    "words", [{"run_name": "other"}, {"which": "000000000001-00000000"}, {"part": "optimizer"}], ids=str
)
def test_weights_that_are_not_there_are_an_error_that_helps(
    tmp_path: Path, kit: SimpleNamespace, words: dict[str, str]
) -> None:
    """A wrong name lists the right ones."""
    known = kit.fit(tmp_path, max_steps=2).checkpoints[0].id
    with pytest.raises(CheckpointNotFound) as caught:
        colabkeep.load_weights(**{"run_name": "r", "storage": tmp_path, **words})
    assert {"run_name": " r.", "which": known, "part": "model"}[next(iter(words))] in caught.value.remedy

"""A loss that is no finite number: told once, shown in red, and what came before it is kept."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import colabkeep
from colabkeep.checkpoint.inspect import checkpoints, find_run
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.core.errors import TrainingDiverged, UsageError
from colabkeep.core.events import Event, LossNotFinite, LossRecovered, Noted
from colabkeep.core.manifest import Proof
from colabkeep.core.system import SystemClock
from colabkeep.frameworks.torch.adapter import TorchLosses
from colabkeep.session.prune import plan_prune, prune
from colabkeep.session.state import LossRecord
from colabkeep.stores.local import DirectoryStore
from colabkeep.ui.records import prune_record
from colabkeep.ui.text import pruned_lines

NAN, INF = math.nan, math.inf


def told(events: Sequence[Event]) -> list[LossNotFinite | LossRecovered]:
    return [event for event in events if isinstance(event, (LossNotFinite, LossRecovered))]


def kept(folder: Path) -> list[int]:
    """The steps of the checkpoints that are there."""
    return sorted(info.step for info in checkpoints(find_run(DirectoryStore(folder), "r")))


def train(
    folder: Path,
    losses: Callable[[int], Any],
    *,
    steps: int,
    every: int = 2,
    heard: list[Event] | None = None,
    **words: Any,
) -> colabkeep.Run:
    """A loop whose loss at each step is as told; saved every so many steps, each save done before the next step."""
    model = torch.nn.Linear(1, 1)
    words = {"keep_last": 2, "save_every": None, "storage": folder, "progress": False, **words}
    with colabkeep.Run("r", model=model, callbacks=[] if heard is None else [heard.append], **words) as run:
        for _ in run.epochs(None):
            for _batch in run.batches([0] * 1000):
                with torch.no_grad():
                    model.weight.add_(1.0)
                run.step(loss=losses(run.progress.step + 1))
                if run.progress.step % every == 0:
                    run.save(wait=True)
                if run.progress.step >= steps:
                    run.stop("max_steps")
    return run


def broken_from(step: int, value: float = NAN) -> Callable[[int], torch.Tensor]:
    return lambda now: torch.tensor(value if now >= step else 1.0 / now)


@pytest.mark.parametrize("keep_last", [1, 2, 3])
@pytest.mark.parametrize("first", [7, 8])
def test_the_newest_checkpoint_from_before_is_never_deleted(tmp_path: Path, keep_last: int, first: int) -> None:
    """Whatever is saved after it. The loss at step s is computed from the weights after s-1, which are bad then."""
    heard: list[Event] = []
    run = train(tmp_path, broken_from(first), steps=30, heard=heard, keep_last=keep_last)
    good = 4 if first == 7 else 6
    newest = [30 - 2 * n for n in range(keep_last)]
    assert kept(tmp_path) == sorted([good, *newest])
    (event,) = told(heard)
    assert isinstance(event, LossNotFinite)
    assert (event.step, event.value, event.finite) == (first, "nan", first - 1)
    assert run.losses.proof.broken == first
    assert event.checkpoint is not None
    assert int(event.checkpoint[:12]) == good


def test_the_checkpoint_that_was_named_stays_though_a_newer_one_was_on_its_way(tmp_path: Path) -> None:
    """A save that was being written when the loss broke comes later, and is good as well: both are there to go back."""
    heard: list[Event] = []
    slow = SlowStore(tmp_path)
    model = torch.nn.Linear(1, 1)
    with colabkeep.Run(
        "r", model=model, storage=slow, save_every=None, keep_last=1, progress=False, callbacks=[heard.append]
    ) as run:
        for _ in run.epochs(1):
            for number in run.batches(list(range(1, 31))):
                run.step(loss=1.0 if number < 12 else NAN)
                if number == 8:
                    slow.open.clear()
                    run.save()  # in flight while the loss breaks
                elif number % 2 == 0 and number != 10:
                    slow.open.set()
                    run.save(wait=number != 12)
    (event,) = told(heard)
    assert isinstance(event, LossNotFinite)
    assert event.checkpoint is not None
    assert int(event.checkpoint[:12]) == 6
    assert kept(tmp_path) == [6, 8, 30]


class SlowStore(DirectoryStore):
    """A disk that writes only while `open` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.open = threading.Event()
        self.open.set()

    def put(self, name: str, source: Any) -> Any:
        assert self.open.wait(60)
        return super().put(name, source)


def test_later_sessions_say_it_again_and_keep_what_came_before(tmp_path: Path) -> None:
    """Each names the checkpoint to go back to; from there the run is clean."""
    train(tmp_path, broken_from(7), steps=12)
    heard: list[Event] = []
    train(tmp_path, broken_from(7), steps=24, heard=heard)
    (event,) = told(heard)
    assert isinstance(event, LossNotFinite)
    assert event.step == 7
    assert event.checkpoint is not None
    assert int(event.checkpoint[:12]) == 4
    assert kept(tmp_path) == [4, 22, 24]
    heard.clear()
    run = train(tmp_path, broken_from(10**6), steps=14, heard=heard, resume=event.checkpoint)
    assert run.resumed_from is not None
    assert run.resumed_from.id == event.checkpoint
    assert told(heard) == []
    assert run.losses.proof.broken is None
    assert {12, 14} <= set(kept(tmp_path))
    assert 4 not in kept(tmp_path), "its own line has newer ones, and they are good"
    assert all(math.isfinite(loss) for _, loss in run.losses.points)


def test_a_run_that_recovers_says_so_and_goes_on_as_before(tmp_path: Path) -> None:
    """An infinite loss whose step was skipped, as a gradient scaler does: told, and told again when it is over."""
    heard: list[Event] = []
    run = train(tmp_path, lambda step: INF if step == 7 else 1.0, steps=20, heard=heard)
    first, last = told(heard)
    assert isinstance(first, LossNotFinite)
    assert (first.step, first.value, first.word) == (7, "inf", "infinite")
    assert last == LossRecovered(step=8)
    assert kept(tmp_path) == [18, 20]
    assert run.losses.proof == Proof(finite=20)


def test_losses_that_come_and_go_are_not_told_each_time(tmp_path: Path) -> None:
    """The first one is; later ones where they stay."""
    heard: list[Event] = []

    def flicker(step: int) -> float:
        return NAN if step % 5 == 0 or 30 <= step < 35 else 1.0

    train(tmp_path, flicker, steps=40, every=100, heard=heard)
    events = [(type(event).__name__, event.step) for event in told(heard)]
    assert events == [("LossNotFinite", 5), ("LossRecovered", 6), ("LossNotFinite", 30), ("LossRecovered", 36)]


def test_a_loop_without_losses_keeps_what_it_was_told_to_keep(tmp_path: Path) -> None:
    """Nothing is proven, so nothing more is held."""
    train(tmp_path, lambda _: None, steps=12, keep_last=1)
    assert kept(tmp_path) == [12]


def test_a_healthy_run_ends_with_as_many_checkpoints_as_asked_for(tmp_path: Path) -> None:
    """What was held until the newest was proven is let go at the end."""
    train(tmp_path, lambda step: 1.0 / step, steps=12, keep_last=1)
    assert kept(tmp_path) == [12]


def test_stop_ends_with_an_error_and_does_not_save_those_weights(tmp_path: Path) -> None:
    """The next cell does not start; run again, the same cell goes on from before."""
    heard: list[Event] = []
    with pytest.raises(TrainingDiverged) as raised:
        train(tmp_path, broken_from(7), steps=30, heard=heard, on_nan="stop")
    assert kept(tmp_path) == [4, 6]
    assert "NaN since step 7" in str(raised.value)
    assert 'resume="000000000004-' in str(raised.value)
    assert [event.reason for event in heard if hasattr(event, "reason") and type(event).__name__ == "RunStopped"] == [
        "error"
    ]
    run = train(tmp_path, broken_from(10**6), steps=10, on_nan="stop")
    assert run.resumed_from is not None
    assert run.resumed_from.progress.step == 6
    assert run.losses.proof.broken is None


def test_stop_saves_nothing_on_the_way_out(tmp_path: Path) -> None:
    """What there is then is worth nothing; and nothing is said of a last step that could not be saved."""
    heard: list[Event] = []
    with pytest.raises(TrainingDiverged):
        train(tmp_path, broken_from(7), steps=30, every=4, heard=heard, on_nan="stop")
    assert kept(tmp_path) == [4]
    assert not [event.text for event in heard if isinstance(event, Noted) and "The error came" in event.text]


def test_stop_is_known_to_the_loop_of_ours(tmp_path: Path) -> None:
    """resumable_fit ends with the error; with "warn" its result says since when, in red."""
    calls = 0

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return torch.nn.functional.cross_entropy(output, target) * (NAN if calls >= 5 else 1.0)

    def fit(folder: str, **words: Any) -> Any:
        nonlocal calls
        calls, model = 0, torch.nn.Linear(8, 4)
        return colabkeep.resumable_fit(
            model,
            [(torch.ones(2, 8), torch.tensor([0, 1]))] * 8,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loss_fn=loss_fn,
            max_epochs=1,
            run_name="r",
            storage=tmp_path / folder,
            progress=False,
            **words,
        )

    with pytest.raises(TrainingDiverged):
        fit("a", on_nan="stop")
    result = fit("b")
    assert result.nan_since == 5
    html = result._repr_html_()
    assert "ENDED WITH NaN OR INFINITE" in html
    assert "since step 5" in html
    assert "FINISHED" not in html
    with pytest.raises(UsageError):
        fit("c", on_nan="raise")


def test_no_display_calls_it_finished(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither the lines, nor the files beside the checkpoints, nor the report, nor the run itself."""
    run = train(tmp_path, broken_from(7), steps=12, progress="text")
    out = capfd.readouterr().out
    assert "THE LOSS IS NaN since step 7" in out
    assert "ended at step 12" in out
    assert "finished at" not in out
    status = json.loads((tmp_path / "r.status.json").read_text())
    assert (status["state"], status["not_finite_since"]) == ("diverged", 7)
    assert "ENDED WITH NaN" in (tmp_path / "r.status.html").read_text()
    assert "ENDED WITH NaN OR INFINITE" in run._repr_html_()
    assert "since step 7" in run._repr_html_()
    report = colabkeep.report("r", storage=tmp_path)
    assert report.to_dict()["not_finite_since"] == 7
    assert repr(report).startswith("r: ended with a loss that is not finite.")
    assert "The loss has not been a finite number since step 7." in repr(report)
    assert "ENDED WITH NaN OR INFINITE" in report._repr_html_()


def test_a_checkpoint_from_before_there_was_a_proof_tells_by_its_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that broke with an older colabkeep are warned of, too."""
    with monkeypatch.context() as patch:
        patch.setattr(LossRecord, "tree", lambda self: self.curve.tree())
        train(tmp_path, broken_from(7), steps=12, keep_last=None)
    heard: list[Event] = []
    train(tmp_path, broken_from(7), steps=16, heard=heard, keep_last=2)
    (event,) = told(heard)
    assert isinstance(event, LossNotFinite)
    assert (event.step, event.finite) == (7, 6)
    assert event.checkpoint is not None
    assert int(event.checkpoint[:12]) == 4
    assert kept(tmp_path) == [4, 14, 16]


def test_pruning_by_hand_keeps_it_too_and_says_so(tmp_path: Path) -> None:
    """`colabkeep prune` and the browser use the same plan."""
    train(tmp_path, broken_from(7), steps=16, keep_last=None)
    store = DirectoryStore(tmp_path)
    plan = plan_prune(find_run(store, "r"), KeepLast(1))
    assert plan.good is not None
    assert [int(id[:12]) for id in plan.kept] == [4, 16]
    record = prune_record(find_run(store, "r"), plan, dry_run=True, caught_up=True)
    assert record["kept_from_before_nan"] == plan.good
    assert any(f"{plan.good} stays" in line for line in pruned_lines(record))
    prune(store, "r", KeepLast(1), SystemClock())
    assert kept(tmp_path) == [4, 16]


def test_pruning_a_healthy_run_by_hand_keeps_what_was_asked_for(tmp_path: Path) -> None:
    """Nothing more, and no word of it."""
    train(tmp_path, lambda step: 1.0 / step, steps=16, keep_last=None)
    plan = plan_prune(find_run(DirectoryStore(tmp_path), "r"), KeepLast(1))
    assert plan.good is None
    assert [int(id[:12]) for id in plan.kept] == [16]


def test_a_gradient_scaler_that_skips_a_step_is_no_alarm(tmp_path: Path) -> None:
    """The loss is finite: only the scaled gradients were not."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    heard: list[Event] = []
    with colabkeep.Run(
        "r", model=model, optimizer=optimizer, scaler=scaler, storage=tmp_path, progress=False, callbacks=[heard.append]
    ) as run:
        for _ in run.epochs(1):
            for batch in run.batches([torch.full((2, 2), 10.0)] * 4):
                loss = model(batch).square().sum()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                run.step(loss=loss)
    assert scaler.get_scale() < 1e38, "it did skip"
    assert told(heard) == []


LOSSES = st.sampled_from([1.0, 0.5, NAN, INF, -INF, None])


def replayed(losses: Sequence[Any], breaks: frozenset[int]) -> Iterator[LossRecord]:
    record = LossRecord(TorchLosses())
    for step, loss in enumerate(losses, 1):
        record.hear(step, loss)
        if step in breaks:
            record = LossRecord(TorchLosses(), record.tree())
        yield record


@given(losses=st.lists(LOSSES, max_size=40), breaks=st.frozensets(st.integers(1, 40), max_size=4))
def test_what_is_proven_is_what_the_losses_say(losses: list[Any], breaks: frozenset[int]) -> None:
    """At each step, wherever the run was cut: the last finite loss, and the first one after it that is not."""
    for step, record in enumerate(replayed(losses, breaks), 1):
        known = [(n, loss) for n, loss in enumerate(losses[:step], 1) if loss is not None]
        finite = max((n for n, loss in known if math.isfinite(loss)), default=None)
        later = [(n, repr(loss)) for n, loss in known if not math.isfinite(loss) and n > (finite or 0)]
        broken, value = later[0] if later else (None, "")
        assert record.proof == Proof(finite=finite, broken=broken, value=value)

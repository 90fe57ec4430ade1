"""The loss curve of a run: the same whatever was interrupted, bounded, and for nothing."""

from __future__ import annotations

import gc
import math
import signal
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from colabkeep.core.events import Event, Recalled, Restored, RestoredInexactly
from colabkeep.frameworks.torch.adapter import TorchLosses
from colabkeep.session.state import MOST, LoopState, LossCurve, LossRecord, plain_points, read_points, thinned


def record() -> LossRecord:
    return LossRecord(TorchLosses())


def fed(steps: int, *, breaks: frozenset[int] = frozenset(), silent: int = 0) -> LossRecord:
    """The losses of so many steps, through a checkpoint after each of `breaks`; each `silent`-th step has none."""
    losses = record()
    for step in range(1, steps + 1):
        losses.hear(step, None if silent and step % silent == 0 else torch.tensor(float(step)))
        if step in breaks:
            losses = LossRecord(TorchLosses(), losses.tree())
    return losses


def plain(state: dict[str, Any]) -> tuple[Any, ...]:
    return state["stride"], bytes(state["steps"].data), bytes(state["values"].data)


@example(steps=1025, breaks=frozenset({1024}), silent=0)  # in front of the step where points get sparser
@given(steps=st.integers(0, 3000), breaks=st.frozensets(st.integers(1, 3000), max_size=6), silent=st.integers(0, 3))
def test_an_interrupted_curve_is_the_one_of_an_uninterrupted_run(
    steps: int, breaks: frozenset[int], silent: int
) -> None:
    """Wherever a run is cut, its checkpoints hold the very bytes that they would have held."""
    assert plain(fed(steps, breaks=breaks, silent=silent).tree()) == plain(fed(steps, silent=silent).tree())


@pytest.mark.parametrize("steps", [1, MOST, MOST + 1, 2 * MOST, 2 * MOST + 2, 40_000])
def test_a_curve_covers_the_whole_run_with_few_points(steps: int) -> None:
    """At most 512 of them, evenly, from the beginning to the end; and never fewer than half of that."""
    points = fed(steps).points
    apart = points[0][0]
    assert [step for step, _ in points] == list(range(apart, steps + 1, apart))
    assert min(steps, MOST // 2) <= len(points) <= MOST
    assert all(value == step for step, value in points)
    assert thinned(points) == points


def test_a_run_that_had_no_curve_yet_gets_one_from_here_on() -> None:
    """It begins as far apart as if it had been kept all along."""
    curve = LossCurve()
    for step in range(100_001, 102_001):
        if step >= curve.next:
            curve.add(step, 1.0)
    assert [step for step, _ in curve.points] == list(range(100_096, 102_001, 256))


def test_a_killed_training_ends_with_the_curve_of_an_undisturbed_one(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Killed between two saves, its steps done again: each point is there once, with the same bits."""
    whole = kit.fit(tmp_path / "whole")
    with kit.Child(tmp_path / "parts") as child:
        child.reach(14)
        assert child.signal(signal.SIGKILL) == -signal.SIGKILL
    middle = kit.fit(tmp_path / "parts", save_every="4 steps", max_steps=20)
    result = kit.fit(tmp_path / "parts")
    assert [step for step, _ in result.losses] == list(range(1, 34))
    assert result.losses == whole.losses
    assert middle.losses == whole.losses[:20]
    assert result.resumed_at == (20,)
    assert result.history == whole.history


def test_a_resumed_session_recalls_the_past_of_its_run(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Displays are given the curve so far, and where sessions went on, once; a fresh session has nothing to recall."""
    heard: list[list[Event]] = [[], [], []]
    kit.fit(tmp_path, max_steps=5, callbacks=[heard[0].append])
    kit.fit(tmp_path, max_steps=12, callbacks=[heard[1].append])
    result = kit.fit(tmp_path, callbacks=[heard[2].append])
    assert not any(isinstance(event, Recalled) for event in heard[0])
    (second,), (third,) = ([event for event in events if isinstance(event, Recalled)] for events in heard[1:])
    assert (second.points, second.resumed_at, second.sessions) == (tuple(result.losses[:5]), (5,), 2)
    assert (third.points, third.resumed_at, third.sessions) == (tuple(result.losses[:12]), (5, 12), 3)
    kinds = [type(event) for event in heard[2]]
    assert kinds.index(Recalled) > kinds.index(Restored)


def test_a_checkpoint_without_a_curve_loads_all_the_same(
    tmp_path: Path, kit: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were written before there was one: training goes on exactly, and the curve begins there."""
    events: list[Event] = []
    whole = kit.fit(tmp_path / "whole")
    with monkeypatch.context() as patch:
        parts = LoopState.parts

        def without(state: LoopState, *about: Any) -> dict[str, object]:
            return {name: part for name, part in parts(state, *about).items() if name != "losses"}

        patch.setattr(LoopState, "parts", without)
        kit.fit(tmp_path / "old", max_steps=7)
    result = kit.fit(tmp_path / "old", callbacks=[events.append])
    assert result.losses == whole.losses[7:]
    assert not any(isinstance(event, RestoredInexactly) for event in events)
    assert [event.points for event in events if isinstance(event, Recalled)] == [()]
    state, wanted = kit.state(tmp_path / "old", "r"), kit.state(tmp_path / "whole", "r")
    differing = {path for path in {**state, **wanted} if state.get(path) != wanted.get(path)}
    assert all(path.startswith("losses") for path in differing), differing


def test_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    """A loop may pass anything, or nothing: no training ends for the sake of a picture."""
    curve = record()
    given = [1, 2.5, torch.tensor([3.0]), torch.tensor([1.0, 2.0]), None, "low", {"a": 1}, torch.tensor(1j), object()]
    for step, loss in enumerate(given, 1):
        curve.hear(step, loss)
    assert curve.points == ((1, 1.0), (2, 2.5), (3, 3.0))
    assert record().points == ()


def test_numbers_that_json_has_not_survive_a_checkpoint_and_a_journal() -> None:
    """A loss that explodes is part of the story."""
    curve = record()
    for step, loss in enumerate([math.nan, math.inf, -math.inf, 0.1], 1):
        curve.hear(step, torch.tensor(loss, dtype=torch.float64))
    again = LossRecord(TorchLosses(), curve.tree())
    assert repr(again.points) == repr(curve.points) == "((1, nan), (2, inf), (3, -inf), (4, 0.1))"
    assert repr(read_points(plain_points(curve.points))) == repr(list(curve.points))


@pytest.mark.parametrize(
    "found", [None, 7, "points", {}, [[1]], [1, 2], [[True, 1.0]], [[-1, 1.0]], [[1, "low"]], [[1, [2]]], [[10**30, 1]]]
)
def test_points_of_another_form_are_left_out(found: object) -> None:
    """From a journal that anybody may have written."""
    assert read_points(found) == []


def test_only_what_is_new_is_noted() -> None:
    """Each point goes into the journal once."""
    curve = LossCurve()
    for step in (1, 2, 3):
        curve.add(step, float(step))
    assert curve.news() == [(1, 1.0), (2, 2.0), (3, 3.0)]
    curve.add(4, 4.0)
    assert curve.news() == [(4, 4.0)]
    assert curve.news() == []


def test_a_loss_is_kept_as_it_was_at_its_step() -> None:
    """A captured graph writes each loss into the memory of the one before."""
    curve, loss = record(), torch.zeros(())
    for step in (1, 2, 3):
        loss.fill_(step)
        curve.hear(step, loss)
    assert curve.points == ((1, 1.0), (2, 2.0), (3, 3.0))


class Activation:
    """What a layer holds for its backward pass."""


class Layer(torch.autograd.Function):
    """Does nothing, and holds its activation as long as its graph lives."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, activation: Activation) -> torch.Tensor:
        context.activation = activation
        return values.clone()


def test_a_kept_loss_keeps_nothing_else_alive() -> None:
    """The graph behind it, with its activations, goes as it would without colabkeep."""
    curve, activation = record(), Activation()
    alive = weakref.ref(activation)
    loss = Layer.apply(torch.ones(3, requires_grad=True), activation).sum()
    curve.hear(1, loss)
    del loss, activation
    gc.collect()
    assert alive() is None
    assert curve.points == ((1, 3.0),)


def test_the_journal_of_a_run_holds_its_curve(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Beside each checkpoint the points that came since: a report needs no checkpoint to be opened."""
    result = kit.fit(tmp_path, save_every="10 steps")
    text = b"".join(file.read_bytes() for file in sorted((tmp_path / "r/journal").iterdir())).decode()
    noted = [line for line in text.splitlines() if '"event":"Losses"' in line]
    assert len(noted) >= 2
    assert sum(line.count("],[") + 1 for line in noted) == len(result.losses)
    assert next((tmp_path / "r/journal").iterdir()).stat().st_size < 20_000

"""A run that goes on where something is different that its bits depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from colabkeep.core.events import Event, Noted, RestoredInexactly, RunStarted
from colabkeep.core.manifest import Manifest


def write_as_elsewhere(folder: Path, differences: Mapping[str, str]) -> None:
    """Make the checkpoints those of a machine where these facts were other ones."""
    for path in (folder / "r" / "checkpoints").glob("*.json"):
        manifest = Manifest.from_bytes(path.read_bytes(), id=path.stem)
        path.write_bytes(replace(manifest, fingerprint={**manifest.fingerprint, **differences}).to_bytes())


@pytest.mark.parametrize(
    "differences",
    [{"torch": "1.13.1"}, {"devices": "cuda:0", "gpu": "Tesla K80"}, {"threads": "96"}, {"cpu capability": "VSX"}],
    ids=lambda differences: next(iter(differences)),
)
def test_another_machine_goes_on_and_names_each_difference(
    tmp_path: Path, kit: SimpleNamespace, differences: dict[str, str]
) -> None:
    """No step is lost, and whoever trains reads what was, what is, and that bits may differ from here on."""
    kit.fit(tmp_path, max_steps=5)
    write_as_elsewhere(tmp_path, differences)
    events: list[Event] = []
    result = kit.fit(tmp_path, max_steps=7, callbacks=[events.append])
    assert result.resumed_from == 5
    told = [event.reason for event in events if isinstance(event, RestoredInexactly)]
    assert len(told) == len(differences)
    for name, before in differences.items():
        assert any(f"{name} was {before} and is " in reason for reason in told)
    assert all("may round differently" in reason for reason in told)
    (head,) = [event for event in events if isinstance(event, RunStarted)]
    assert head.promise.startswith("Not bit for bit: model, ")
    assert head.exactness == "course"


def on_a_card(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """What "auto" comes to on the next machine."""
    monkeypatch.setattr("colabkeep.frameworks.torch.training.resolve_precision", lambda *_: precision)


def test_a_card_with_another_16_bit_format_goes_on_and_the_scaler_is_put_aside_and_taken_up_again(
    tmp_path: Path, kit: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a T4 (float16) to an L4 (bfloat16) and back: no step is lost, and the scale is the one it had there."""
    events: list[Event] = []
    states: list[dict[str, str]] = []
    words = {"precision": "auto", "callbacks": [events.append]}
    for end, precision in ((5, "16-mixed"), (9, "bf16-mixed"), (12, "bf16-mixed"), (14, "16-mixed")):
        on_a_card(monkeypatch, precision)
        result = kit.fit(tmp_path, max_steps=end, **words)
        assert result.steps == end
        states.append(kit.state(tmp_path, "r"))
    said = [event.text for event in events if isinstance(event, Noted) and "gradient scaler" in event.text]
    assert len(said) == 2
    assert "kept for when the run needs it again" in said[0]
    assert "continues where it stopped" in said[1]
    reasons = [event.reason for event in events if isinstance(event, RestoredInexactly)]
    assert [reason.partition(":")[0] for reason in reasons] == [
        "precision was 16-mixed and is bf16-mixed",
        "precision was bf16-mixed and is 16-mixed",
    ]
    kept = {path: value for path, value in states[0].items() if path.startswith("scaler.state.")}
    assert kept
    for state in states[1:3]:  # two checkpoints of the other card have it, and no scaler in use
        assert {path: state[f"fit.state.{path.replace('.state', '')}"] for path in kept} == kept
        assert not any(path.startswith("scaler.") for path in state)
    assert states[3].keys() >= kept.keys()
    assert not any(path.startswith("fit.state.scaler.") for path in states[3])


def test_a_run_that_began_without_a_scaler_gets_one_where_it_needs_it(
    tmp_path: Path, kit: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an L4 to a T4; resumed there once more, it is that scaler that goes on, and nothing is said of it."""
    events: list[Event] = []
    for end, precision in ((5, "bf16-mixed"), (9, "16-mixed"), (11, "16-mixed")):
        on_a_card(monkeypatch, precision)
        kit.fit(tmp_path, max_steps=end, precision="auto", callbacks=[events.append])
    said = [event.text for event in events if isinstance(event, Noted) and "gradient scaler" in event.text]
    assert said == ["float16 needs a gradient scaler: a new one begins."]
    assert kit.state(tmp_path, "r")["scaler.state._growth_tracker"] == str(4 + 2)

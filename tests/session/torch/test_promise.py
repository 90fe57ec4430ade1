"""The first lines of a session: what a resume restores, what it cannot see, and whether the bits will be the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.core.events import Event, RestoredInexactly, RunStarted
from colabkeep.core.manifest import Manifest
from colabkeep.frameworks.base import Exactness
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.session.fit import precision_chosen


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)


def started(folder: Path, **words: Any) -> RunStarted:
    events: list[Event] = []
    model = torch.nn.Linear(1, 1)
    words = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), **words}
    with colabkeep.Run("r", model=model, storage=folder, progress=False, callbacks=[events.append], **words):
        pass
    (event,) = [event for event in events if isinstance(event, RunStarted)]
    return event


class Counter:
    def state_dict(self) -> dict[str, int]:
        return {"n": 1}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        pass


def test_what_was_handed_in_is_named_and_what_was_not_too(tmp_path: Path) -> None:
    """By the names that the user wrote."""
    event = started(tmp_path, state={"queue": Counter()})
    assert "model, optimizer, queue, the random streams and the position in the data are restored" in event.promise
    assert "run.state" in event.unseen
    assert "files that your code reads" in event.unseen


def test_exact_is_said_where_nothing_prevents_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an exception it is named; where the machine prevents it, the word does not appear."""
    mostly = started(tmp_path / "mostly")
    assert mostly.exactness == "mostly"
    assert mostly.promise.startswith("Exact, but for what is named here: ")
    assert any("x[index]" in reason for reason in mostly.reasons)
    torch.use_deterministic_algorithms(True)
    exact = started(tmp_path / "exact")
    assert (exact.exactness, exact.reasons) == ("exact", ())
    assert exact.promise.startswith("Exact: ")
    told = Exactness(same="torch", obstacles=("Kernels race. Do not let them.",))
    monkeypatch.setattr(TorchFramework, "exactness", lambda self, parts: told)
    course = started(tmp_path / "course")
    assert (course.exactness, course.reasons) == ("course", told.obstacles)
    assert course.promise.startswith("Same course, not the same bits: ")
    assert "xact" not in course.promise


def test_the_lines_and_the_panel_say_it(
    tmp_path: Path, kit: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    """One sentence, each reason below it, and what no checkpoint sees; the files beside the checkpoints as well."""
    kit.fit(tmp_path, max_steps=2, progress=True)
    out = capfd.readouterr().out
    assert "Exact, but for what is named here: model, optimizer" in out
    assert "fit," not in out
    assert "- The gradient of x[index]" in out
    assert "Not seen: what your own functions keep" in out
    page = (tmp_path / "r.status.html").read_text()
    assert "Exact after a resume, except for what is named here" in page
    assert "The gradient of x[index]" in page


def test_what_auto_chose_is_told_with_the_other_choice() -> None:
    """Only where mixed precision was not asked for, and came."""
    assert precision_chosen("auto", "32-true") == precision_chosen("16-mixed", "16-mixed") == ""
    told = precision_chosen("auto", "16-mixed")
    assert '"16-mixed"' in told
    assert 'precision="32-true"' in told


def test_what_auto_chose_is_in_the_first_lines(
    tmp_path: Path, kit: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before the first step, not on two pages of the documentation."""
    monkeypatch.setattr("colabkeep.frameworks.torch.training.resolve_precision", lambda *_: "bf16-mixed")
    kit.fit(tmp_path, max_steps=1, progress=True)
    assert 'precision="auto" became "bf16-mixed" on this device' in capfd.readouterr().out


def test_a_checkpoint_that_knows_fewer_facts_is_no_other_machine(tmp_path: Path, kit: SimpleNamespace) -> None:
    """One of an earlier colabkeep, or of a torch that has fewer settings: what it did not note has not changed."""
    kit.fit(tmp_path, max_steps=5)
    for path in (tmp_path / "r" / "checkpoints").glob("*.json"):
        manifest = Manifest.from_bytes(path.read_bytes(), id=path.stem)
        facts = {name: manifest.fingerprint[name] for name in ("torch", "threads", "devices")}
        path.write_bytes(replace(manifest, fingerprint={**facts, "of a later version": "on"}).to_bytes())
    events: list[Event] = []
    kit.fit(tmp_path, max_steps=7, callbacks=[events.append])
    assert [event for event in events if isinstance(event, RestoredInexactly)] == []


def test_a_setting_that_was_changed_between_two_sessions_is_told(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Deterministic algorithms were on, and are off: the bits that follow may be others."""
    torch.use_deterministic_algorithms(True)
    kit.fit(tmp_path, max_steps=5)
    torch.use_deterministic_algorithms(False)
    events: list[Event] = []
    kit.fit(tmp_path, max_steps=7, callbacks=[events.append])
    (told,) = [event.reason for event in events if isinstance(event, RestoredInexactly)]
    assert told.startswith("deterministic algorithms was on and is off")

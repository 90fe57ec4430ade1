"""Which machine a session was given is kept with the run, for the next session to know."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from colabkeep.checkpoint.repository import Repository
from colabkeep.core.events import Event, MachineGiven, Noted
from colabkeep.core.layout import seal
from colabkeep.core.system import Environment
from colabkeep.session.machine import ask_machine, earlier_cards, machine_id
from colabkeep.session.open import RunArguments, wire_run
from colabkeep.session.run import Run
from colabkeep.stores import open_store
from tests.fakes.devices import fake_nvidia_smi
from tests.fakes.platforms import fake_colab, fake_kaggle


def session(folder: Path, *cards: str, id: str = "") -> list[Event]:
    """One short session on a machine with these cards."""
    events: list[Event] = []
    words = RunArguments(
        run_name="r", objects={"model": nn.Linear(1, 1)}, storage=folder, save_every=None, observers=(events.append,)
    )
    machine = MachineGiven(platform="colab", kind="hosted", accelerators=cards, id=id)
    with Run(replace(wire_run(words), machine=lambda: machine)) as run:
        for _ in run.epochs(run.progress.epoch + 1):
            for _batch in run.batches([0]):
                run.step()
    return events


def test_the_cards_of_the_last_sessions_are_known_to_the_next(tmp_path: Path) -> None:
    """The latest last, and a session without a card counts for nothing."""
    for cards in (["Tesla T4"], ["Tesla K80", "Tesla K80"], [], ["Tesla P4"]):
        session(tmp_path, *cards)
    assert earlier_cards(Repository(open_store(tmp_path), "r")) == ("Tesla T4", "Tesla K80", "Tesla P4")


def test_a_cell_that_is_run_again_has_drawn_no_card(tmp_path: Path) -> None:
    """Each machine counts once, however many sessions it had, and the one that asks does not count at all."""
    for card, id in (("Tesla K80", "a"), ("Tesla K80", "a"), ("Tesla P4", "b"), *[("Tesla T4", "c")] * 6):
        session(tmp_path, card, id=id)
    repository = Repository(open_store(tmp_path), "r")
    assert earlier_cards(repository, "c") == ("Tesla K80", "Tesla P4")
    assert earlier_cards(repository, "d") == ("Tesla K80", "Tesla P4", "Tesla T4")


@pytest.mark.parametrize("id", [7, None, ["a"], {}])
def test_a_machine_of_another_form_is_like_no_other(tmp_path: Path, id: object) -> None:
    """What is no text in a stranger's lease is compared with nothing."""
    session(tmp_path, "Tesla T4", id="a")
    record = {"session": "0badf00d", "fence": 2, "machine": {"accelerators": ["Tesla K80"], "id": id}}
    (tmp_path / "r/lease/000002-0badf00d.json").write_bytes(seal(record))
    assert earlier_cards(Repository(open_store(tmp_path), "r"), "a") == ("Tesla K80",)


def test_every_machine_is_known_from_the_others(tmp_path: Path) -> None:
    """By its name, and by its boot where two have the same name; the same one is the same, whoever asks."""
    with fake_colab(tmp_path) as first, fake_colab(tmp_path) as second:
        assert machine_id(first.environment) == machine_id(first.environment) != machine_id(second.environment)
        namesake = replace(second.environment, hostname=first.environment.hostname)
        assert machine_id(namesake) != machine_id(first.environment)
        assert machine_id(first.environment).startswith(first.environment.hostname)
    assert machine_id(Environment(environ={}, root=tmp_path / "nowhere", folder=tmp_path)) == ""


def test_observers_and_the_journal_hear_which_machine_came(tmp_path: Path) -> None:
    """So that a report can say which session had which card."""
    given = [event for event in session(tmp_path, "Tesla T4") if isinstance(event, MachineGiven)]
    assert given == [MachineGiven(platform="colab", kind="hosted", accelerators=("Tesla T4",))]
    lines = [line for file in (tmp_path / "r/journal").iterdir() for line in file.read_text().splitlines()]
    noted = [record for line in lines if (record := json.loads(line)).get("event") == "MachineGiven"]
    assert [(record["platform"], record["accelerators"]) for record in noted] == [("colab", ["Tesla T4"])]


@pytest.mark.parametrize(
    ("cards", "said"),
    [(("NVIDIA L4", "NVIDIA L4"), True), (("TPU v5e-8",), False), (("Apple M2",), False), ((), False)],
)
def test_a_card_that_is_left_alone_is_told(tmp_path: Path, cards: tuple[str, ...], said: bool) -> None:
    """The model was not moved there: the training goes on all the same, many times slower than it could."""
    told = [event.text for event in session(tmp_path, *cards) if isinstance(event, Noted)]
    lines = [text.partition(". ")[0] for text in told if "The model is on the CPU" in text]
    assert lines == ["The model is on the CPU, and this machine has a GPU: NVIDIA L4"] * said


@pytest.mark.parametrize("machine", [None, [], "Tesla T4", {"accelerators": "Tesla T4"}, {"accelerators": [7]}, {}])
def test_a_lease_of_another_form_tells_nothing(tmp_path: Path, machine: object) -> None:
    """Written by an older version or by a stranger: no card, and no error."""
    session(tmp_path, "Tesla T4")
    record = {"session": "0badf00d", "fence": 2, "machine": machine}
    (tmp_path / "r/lease/000002-0badf00d.json").write_bytes(seal(record))
    assert earlier_cards(Repository(open_store(tmp_path), "r")) == ("Tesla T4",)


def test_a_run_that_is_new_has_no_earlier_cards(tmp_path: Path) -> None:
    """Nothing is there to be read, and nothing is written for asking."""
    assert earlier_cards(Repository(open_store(tmp_path / "new"), "r")) == ()
    assert not (tmp_path / "new").exists()


def test_the_machine_is_seen_as_the_check_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform by its name and variety, the cards by theirs."""
    for patience in ("_TOOL_PATIENCE", "_PATIENCE"):  # a busy machine takes seconds to start a program
        monkeypatch.setattr(f"colabkeep.session.machine.{patience}", 60.0)
    with fake_kaggle(tmp_path, run_type="Batch") as machine:
        fake_nvidia_smi(machine.root / "usr/bin", ["Tesla T4", "Tesla T4"])
        here = machine.environment
        given = ask_machine(replace(here, environ={**here.environ, "PATH": "/usr/bin"}))()
        id = machine_id(here)
    assert given == MachineGiven(platform="kaggle", kind="batch", accelerators=("Tesla T4", "Tesla T4"), id=id)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("does", ["fails", "ends the program", "hangs"])
def test_no_card_that_cannot_be_told_keeps_a_training_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    """Whatever the ways of finding it do: the session notes none, and trains."""
    released = threading.Event()
    deeds: dict[str, Callable[[], Any]] = {
        "fails": lambda: int("9" * 5000),
        "ends the program": sys.exit,
        "hangs": released.wait,
    }
    monkeypatch.setattr("colabkeep.session.machine.find_accelerators", lambda *_, **__: deeds[does]())
    with fake_kaggle(tmp_path) as machine:
        given = ask_machine(machine.environment)()
    released.set()
    assert (given.platform, given.accelerators) == ("kaggle", ())

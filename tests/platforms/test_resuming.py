"""The whole way on services that hand one session's output to the next: run again, and it goes on."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import colabkeep
from colabkeep.core.events import CheckpointSkipped, StoreDegraded
from colabkeep.core.system import Environment
from tests.fakes.platforms import fake_aistudio, fake_kaggle


class Weights:
    """Two arrays, one of which never changes."""

    def __init__(self):
        self.frozen, self.head = np.linspace(0.0, 1.0, 100_000), np.zeros(3)

    def state_dict(self):
        return {"frozen": self.frozen, "head": self.head}

    def load_state_dict(self, state):
        self.frozen, self.head = np.array(state["frozen"]), np.array(state["head"])


@pytest.fixture
def cell(monkeypatch):
    """The user's cell: train the run "r" up to a step, wherever the notebook is running."""

    def run(environment, until, *, saves=True):
        monkeypatch.setattr(Environment, "here", classmethod(lambda cls: environment))
        weights, heard = Weights(), []
        with colabkeep.Run(
            "r", state={"weights": weights}, save_every=None, keep_last=1, callbacks=[heard.append]
        ) as training:
            start = training.progress.step
            for _ in range(start, until):
                weights.head = weights.head + 1.0
                training.step()
            if saves:
                training.save(wait=True)
        wrong = [event for event in heard if isinstance(event, CheckpointSkipped | StoreDegraded)]
        assert wrong == []
        assert (weights.head == until).all()
        return start

    return run


def test_on_kaggle_attaching_the_last_output_goes_on_session_after_session(tmp_path, cell):
    """Three versions, each given only the one before, attached in another place each time."""
    with fake_kaggle(tmp_path, run_type="Batch") as first:
        assert cell(first.environment, 3) == 0
        output = first.save_version()
    with fake_kaggle(tmp_path, run_type="Batch", inputs={"my-notebook": output}) as second:
        assert cell(second.environment, 5) == 3
        shutil.rmtree(output)
        output = second.save_version()
    with fake_kaggle(tmp_path, run_type="Batch", inputs={"notebooks/me/my-notebook": output}) as third:
        assert cell(third.environment, 6) == 5


def test_on_kaggle_two_attached_versions_go_on_from_the_newer_one(tmp_path, cell):
    """However they are called."""
    with fake_kaggle(tmp_path) as first:
        cell(first.environment, 3)
        old = first.save_version()
    with fake_kaggle(tmp_path, inputs={"v1": old}) as second:
        cell(second.environment, 5)
        new = second.save_version()
    for inputs in ({"a": old, "b": new}, {"a": new, "b": old}):
        with fake_kaggle(tmp_path, inputs=inputs) as third:
            assert cell(third.environment, 5) == 5


def test_on_kaggle_a_version_that_trained_nothing_hands_the_run_on(tmp_path, cell):
    """The run was finished, or stopped at once: its output alone still goes on, and never from zero."""
    with fake_kaggle(tmp_path, run_type="Batch") as first:
        cell(first.environment, 3)
        output = first.save_version()
    with fake_kaggle(tmp_path, run_type="Batch", inputs={"first": output}) as second:
        assert cell(second.environment, 3, saves=False) == 3
        output = second.save_version()
    with fake_kaggle(tmp_path, run_type="Batch", inputs={"second": output}) as third:
        assert cell(third.environment, 4) == 3


def test_on_kaggle_the_input_stays_as_it_was(tmp_path, cell):
    """It is read-only there; here it is checked byte for byte."""
    with fake_kaggle(tmp_path) as first:
        cell(first.environment, 3)
        output = first.save_version()
    with fake_kaggle(tmp_path, inputs={"first": output}) as second:
        cell(second.environment, 5)
        attached = second.root / "kaggle" / "input" / "first"
        files = {path.relative_to(attached) for path in attached.rglob("*")}
        assert files == {path.relative_to(output) for path in output.rglob("*")}
        for file in files:
            if (output / file).is_file():
                assert (attached / file).read_bytes() == (output / file).read_bytes()


def test_on_kaggle_persisted_files_go_on_without_any_input(tmp_path, cell):
    """The same machine's working folder, in the next session of the editor."""
    with fake_kaggle(tmp_path) as kaggle:
        cell(kaggle.environment, 3)
        assert cell(kaggle.environment, 5) == 3


def test_on_aistudio_the_next_start_goes_on(tmp_path, cell):
    """By the folder that survives it."""
    with fake_aistudio(tmp_path) as studio:
        assert cell(studio.environment, 3) == 0
    with fake_aistudio(tmp_path) as studio:
        assert cell(studio.environment, 5) == 3

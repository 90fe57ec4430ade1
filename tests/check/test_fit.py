"""The check at the start of a training: `on_bad_gpu`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import colabkeep
from colabkeep.core.errors import BadAccelerator, UsageError
from colabkeep.core.system import Environment
from colabkeep.hardware.probe import ProbeResult
from colabkeep.testing.platforms import laptop

from .conftest import build


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """Trains two steps on a machine; `fit.folder` is the storage."""

    def run(environment, **words):
        monkeypatch.setattr(Environment, "here", classmethod(lambda _: environment))
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        loss = torch.nn.functional.mse_loss
        return colabkeep.resumable_fit(
            model,
            [(torch.ones(1, 2), torch.ones(1, 1))] * 2,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loss_fn=loss,
            **{"max_epochs": 1, "run_name": "r", "storage": run.folder, **words},
        )

    run.folder = tmp_path / "runs"
    return run


@pytest.mark.parametrize(
    ("platform", "cards", "click"),
    [
        ("colab", ["Tesla K80"], "Disconnect and delete runtime"),
        ("colab", [], "Change runtime type"),
        ("kaggle", [], "GPU T4 x2"),
    ],
)
def test_stop_stops_before_anything_is_touched(world, fit, platform, cards, click):
    """The error says what came and what to click; no folder was made, no minute spent."""
    with pytest.raises(BadAccelerator) as caught:
        fit(world.start(platform, cards), on_bad_gpu="stop")
    assert click in caught.value.remedy
    assert "Nothing was trained" in caught.value.problem
    assert not fit.folder.exists()


def test_advice_is_given_and_the_training_goes_on(world, fit, capsys):
    """By default the way to a GPU is printed once, and the training runs on what there is."""
    result = fit(world.start("colab"))
    out = capsys.readouterr().out
    assert result.steps == 2
    assert out.count("Change runtime type") == 1
    assert "[colabkeep] Google Colab (hosted), no GPU: turn one on. " in out, "in lines, since no kernel runs here"


def test_the_storage_that_was_named_is_not_second_guessed(world, fit, capsys):
    """Drive is not mounted, but the user said where checkpoints go: no warning of the platform's own place."""
    fit(world.start("colab"))
    assert "mount()" not in capsys.readouterr().out


@pytest.mark.parametrize("mark", ["KUBERNETES_SERVICE_HOST", "CI"])
def test_a_machine_that_may_vanish_is_asked_for_a_storage(fit, tmp_path, capsys, mark):
    """The training begins, and its first lines say that nobody knows whether the folder lasts, and what to name; a
    storage that was named is the user's business."""
    here = laptop(tmp_path / "pod")
    here = replace(here, environ={**here.environ, mark: "1"})
    fit(here, storage="auto")
    assert 'storage="drive://colabkeep"' in capsys.readouterr().out
    fit(here)
    assert "drive://" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [{}, {"progress": False}, {"on_bad_gpu": "ignore"}], ids=str)
def test_the_check_says_nothing_where_nobody_listens(world, fit, capsys, words):
    """`progress=False` prints nothing at all, and "ignore" nothing of the check."""
    fit(world.start("colab"), **{"progress": False, **words})
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("words", [{"on_bad_gpu": "ignore"}, {"progress": False}], ids=str)
def test_what_nobody_wants_to_know_is_not_looked_up(world, fit, monkeypatch, words):
    """Nothing is asked of the machine then."""
    monkeypatch.setattr("colabkeep.ui.check.report.examine", lambda **_: pytest.fail("somebody looks"))
    assert fit(world.start("script"), **words).steps == 2


def test_stop_lets_a_good_session_start(world, fit, capsys):
    """A machine of one's own without GPU is no reason to stop, and without progress it is a quiet one."""
    assert fit(world.start("script"), on_bad_gpu="stop", progress=False).steps == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("works", "steps"), [(False, None), (None, None), (True, 2)])
def test_a_doubt_is_settled_before_anything_stops(world, fit, monkeypatch, works, steps):
    """A build that should have no kernels for the card is tried first: if it computes, the training runs."""
    doubtful = build("2.10.0+cu128", ("sm_75",))
    monkeypatch.setattr("colabkeep.ui.check.facts.installed_build", lambda name: doubtful if name == "torch" else None)
    tried = ProbeResult(works=works, detail="As told.")
    monkeypatch.setattr("colabkeep.ui.check.facts.probe", lambda *_, **__: tried)
    environment = world.start("kaggle", ["Tesla P100-PCIE-16GB"])
    if steps is None:
        with pytest.raises(BadAccelerator) as caught:
            fit(environment, on_bad_gpu="stop")
        assert ("A trial on the card failed" in caught.value.problem) is (works is False)
    else:
        assert fit(environment, on_bad_gpu="stop").steps == steps


def test_a_word_that_is_none_is_refused_at_once(fit):
    """Before anything is looked at or made."""
    with pytest.raises(UsageError) as caught:
        fit(None, on_bad_gpu="raise")
    assert '"stop"' in caught.value.remedy
    assert not fit.folder.exists()


def test_a_check_that_fails_does_not_end_the_training(world, fit, capsys, monkeypatch):
    """A part with a bug costs a line, never the training."""
    monkeypatch.setattr("colabkeep.ui.check.facts.find_accelerators", lambda *_, **__: 1 // 0)
    assert fit(world.start("colab")).steps == 2
    assert "the accelerators (ZeroDivisionError" in capsys.readouterr().out


def test_running_the_cell_again_is_no_second_draw(world, fit, capsys):
    """The card is the same because the machine is: reconnecting is still the advice."""
    environment = world.start("colab", ["Tesla K80"])
    fit(environment)
    fit(environment, max_epochs=2)
    told = capsys.readouterr().out
    assert told.count("Disconnect and delete runtime") == 2
    assert ": reconnect. " in told
    assert "again, as last time" not in told


@pytest.fixture
def trials(monkeypatch):
    """The trials on the device, which all fail, of a torch that has no kernels for a K80."""
    made = []

    def probe(framework, *_, timeout):
        made.append(framework)
        return ProbeResult(works=False, detail="No.")

    doubtful = build("2.10.0+cu128", ("sm_75",))
    monkeypatch.setattr("colabkeep.ui.check.facts.installed_build", lambda name: doubtful if name == "torch" else None)
    monkeypatch.setattr("colabkeep.ui.check.facts.probe", probe)
    return made


def test_a_card_is_tried_once(world, fit, trials):
    """What earlier sessions were given is weighed without a second trial, which may take a minute and a half."""
    for number in (1, 2):
        with pytest.raises(BadAccelerator):
            fit(world.start("colab", ["Tesla K80"]), on_bad_gpu="stop")
        assert trials == ["torch"] * number


@pytest.mark.parametrize(
    "words",
    [
        {"max_epochs": 0},
        {"max_time": "soon"},
        {"session_limit": -1},
        {"save_every": "often"},
        {"keep_last": 0},
        {"mode": "least"},
        {"step_fn": print},
        {"precision": "8-bit"},
    ],
    ids=str,
)
def test_a_word_that_cannot_be_meant_costs_no_trial(world, fit, trials, words):
    """It is refused before the machine is asked anything."""
    with pytest.raises(UsageError):
        fit(world.start("colab", ["Tesla K80"]), on_bad_gpu="stop", **words)
    assert trials == []
    assert not fit.folder.exists()


def test_the_same_poor_card_in_the_next_session_ends_the_advice_to_reconnect(world, fit, capsys):
    """The run remembers what its last session was given: a second K80 in a row is trained on."""
    k80 = ["Tesla K80"]
    fit(world.start("colab", k80))
    assert "Disconnect and delete runtime" in capsys.readouterr().out
    fit(world.start("colab", k80), max_epochs=2)
    again = capsys.readouterr().out
    assert "stop trying" in again
    assert "Disconnect and delete runtime" not in again
    fit(world.start("colab", k80), run_name="another", max_epochs=1)
    assert "Disconnect and delete runtime" in capsys.readouterr().out, "of another run nothing is known"

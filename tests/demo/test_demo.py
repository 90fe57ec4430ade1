"""`colabkeep demo`: two trainings, one killed twice, compared; and what it says when something is wrong."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import colabkeep
from colabkeep.checkpoint.inspect import run_names
from colabkeep.core.errors import ColabKeepError, MissingDependency, UsageError
from colabkeep.stores import open_store
from colabkeep.ui.demo import Outcome, Session, add_arguments, consumed, main, train

pytestmark = pytest.mark.torch

PROGRAM = """
import argparse, sys
from colabkeep.ui import demo
parser = argparse.ArgumentParser()
parser.add_argument("--json", action="store_true")
demo.add_arguments(parser)
sys.exit(demo.main(parser.parse_args()))
"""


def words(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    add_arguments(parser)
    return parser.parse_args(arguments)


def session(*steps: tuple[int, int, tuple[int, ...]], began: int = 0, killed: bool = False) -> Session:
    """A session of the given (step, epoch, samples), whose epochs have two steps."""
    told = [{"step": n, "epoch": e, "batch": 1 + (n - 1) % 2, "of": 2, "samples": list(s)} for n, e, s in steps]
    return Session(began=began, steps=told, accuracy=0.99, killed=killed)


@pytest.fixture
def outcome() -> Outcome:
    """Two epochs of the samples 0 to 3; the run was killed after step 3, which was not saved, and repeated it."""
    first = session((1, 0, (2, 0)), (2, 0, (1, 3)), (3, 1, (3, 2)), killed=True)
    second = session((3, 1, (3, 2)), (4, 1, (0, 1)), began=2)
    whole = session((1, 0, (2, 0)), (2, 0, (1, 3)), (3, 1, (3, 2)), (4, 1, (0, 1)))
    return Outcome(sessions=[first, second], whole=whole, digests=("a" * 64, "a" * 64), epochs=2, seconds=30)


@pytest.mark.long  # CI runs README's `colabkeep demo`
def test_the_killed_training_ends_like_the_other_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kills in the middle of epochs later, the weights are equal, and `--json` says so, alone on stdout."""
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    assert main(words("--json", "--epochs", "2", "--storage", str(tmp_path))) == 0
    out, err = capfd.readouterr()
    told = json.loads(out)
    assert (told["equal"], told["each_sample_once_per_epoch"]) == (True, True)
    assert [(each["killed"], each["workers"]) for each in told["sessions"]] == [(True, 0), (True, 1), (False, 0)]
    assert all(0 < each["to_step"] % 23 < 22 for each in told["sessions"][:2]), "the kills came in the middle of epochs"
    assert told["sessions"][1]["from_step"] > 0
    assert told["sessions"][2]["from_step"] > told["sessions"][1]["from_step"]
    assert told["accuracy"]["killed"] == told["accuracy"]["uninterrupted"] > 0.4
    assert run_names(open_store(tmp_path)) == ["demo-killed", "demo-uninterrupted"]
    one, other = (colabkeep.load_weights(name, storage=tmp_path) for name in ("demo-killed", "demo-uninterrupted"))
    assert list(one) == list(other)
    assert all(one[name].equal(other[name]) for name in one)
    assert "KILLED" in err
    assert "Equal, bit for bit" in err


def test_a_difference_in_the_weights_is_a_failure(outcome: Outcome) -> None:
    """The demo can fail: other bits in the weights are said loudly."""
    assert outcome.good
    other = replace(outcome, digests=("a" * 64, "b" * 64))
    assert (other.good, other.record()["equal"]) == (False, False)
    assert other.verdict().startswith("NOT EQUAL")


@pytest.mark.parametrize("samples", [(0,), (0, 0), (0, 2), (0, 1, 1), (0, 4)], ids=str)
def test_a_sample_seen_twice_or_not_at_all_is_a_failure(outcome: Outcome, samples: tuple[int, ...]) -> None:
    """Equal weights are not enough: each epoch has to be made of every sample once."""
    second = session((3, 1, (3, 2)), (4, 1, samples), began=2)
    other = replace(outcome, sessions=[outcome.sessions[0], second])
    assert (other.good, other.once) == (False, False)
    assert other.verdict().startswith("NOT AS PROMISED")


def test_an_accuracy_of_chance_is_a_failure(outcome: Outcome) -> None:
    """A network that learned nothing proves nothing."""
    idle = replace(outcome.sessions[1], accuracy=0.1)
    other = replace(outcome, sessions=[outcome.sessions[0], idle], whole=replace(outcome.whole, accuracy=0.1))
    assert not other.good
    assert other.verdict().startswith("NOT AS EXPECTED")


def test_a_repeated_step_counts_once(outcome: Outcome) -> None:
    """What a session lost is replaced by what the next one did, and counted as repeated."""
    assert consumed(outcome.sessions) == {0: [2, 0, 1, 3], 1: [3, 2, 0, 1]}
    assert (outcome.repeated, sum(each.samples for each in outcome.sessions)) == (1, 10)


def test_a_missing_package_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without scikit-learn nothing is started, and the user is told what to install."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingDependency, match="scikit-learn") as caught:
        main(words())
    assert caught.value.remedy == 'pip install "colabkeep[demo]"'


def test_one_epoch_is_too_short() -> None:
    """A training that cannot be killed twice is refused before anything is started."""
    with pytest.raises(UsageError, match="too short"):
        main(words("--epochs", "1"))


def test_a_training_that_fails_says_why(tmp_path: Path) -> None:
    """When the child ends by itself, its own words come up, without its stack."""
    place = tmp_path / "a file"
    place.write_text("")
    said = {"storage": place, "run-name": "r", "epochs": 1, "workers": 0, "resume": "never"}
    with pytest.raises(ColabKeepError, match="with status 1") as caught:
        train(said, lambda _: None)
    assert str(place) in caught.value.problem
    assert "Traceback" not in caught.value.problem


def test_an_interrupt_leaves_neither_processes_nor_folders(tmp_path: Path) -> None:
    """Ctrl-C in the middle: the training is killed, the temporary folder is gone, and the status says so."""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environ) as demo:
        assert demo.stdout is not None
        seen = ""
        while "session 1" not in seen:
            seen += demo.stdout.readline()
        demo.send_signal(signal.SIGINT)
        seen += demo.stdout.read()
    assert demo.returncode == 130
    assert "Interrupted; the training was stopped, nothing was kept." in seen
    assert list(tmp_path.glob("colabkeep-demo-*")) == []
    assert processes_that_mention(str(tmp_path)) == []


def processes_that_mention(text: str) -> list[str]:
    """The command lines of live processes that have `text` in them."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = command.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if text in line:
            found.append(line)
    return found

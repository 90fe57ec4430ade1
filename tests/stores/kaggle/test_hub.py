"""The process that talks to Kaggle is bounded, replaced when it is gone, and never outlives the one that asks."""

from __future__ import annotations

import json
import sys

import pytest

from colabkeep.core.errors import ColabKeepError, MissingDependency, StoreError, StoreUnavailable
from colabkeep.stores.kaggle.service import Hub, explained

PATIENCE = 30.0  # seconds until a hanging test gives up

# Children without Kaggle's client. Each appends a line to the file given last when it starts.
START = "import sys, time\nopen(sys.argv[-1], 'a').write('started\\n')\n"
ANSWERS = START + 'for line in sys.stdin: print(\'{"done": {"answer": 42}}\', flush=True)'
ENDS_ONCE = START + (
    "line = sys.stdin.readline()\n"
    'if len(open(sys.argv[-1]).readlines()) > 1: print(\'{"done": {"answer": 42}}\', flush=True)'
)
HANGS = START + "time.sleep(3600)"
CRASHES = START + "sys.exit(3)"


@pytest.fixture
def hub(tmp_path):
    """Makes a hub whose child is the given program; `hub.starts()` counts how often it was started."""
    made = []

    def make(program):
        log = tmp_path / "log"
        hub = Hub("ada/checkpoints", str(tmp_path), command=(sys.executable, "-c", program, str(log)), environ={})
        hub.starts = lambda: len(log.read_text().splitlines())
        made.append(hub)
        return hub

    yield make
    for hub in made:
        hub.close()


def test_one_process_answers_many_questions(hub):
    """It is started by the first one: importing Kaggle's client takes half a second."""
    asked = hub(ANSWERS)
    assert [asked.ask("look at", "head", PATIENCE)["answer"] for _ in range(3)] == [42, 42, 42]
    assert asked.starts() == 1


def test_a_process_that_ended_for_idleness_is_started_again(hub):
    """It ends by itself after a while; a question that comes in that very moment is answered by the next one."""
    asked = hub(ENDS_ONCE)
    assert asked.ask("look at", "head", PATIENCE) == {"answer": 42}
    assert asked.starts() == 2


def test_a_question_without_an_answer_ends(hub):
    """After its bound the process is killed, and the error says that Kaggle did not answer."""
    asked = hub(HANGS)
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        asked.ask("look at", "head", 0.2)
    with pytest.raises(StoreUnavailable):
        asked.ask("look at", "head", 0.2)


def test_a_process_that_crashes_is_an_error_that_may_pass(hub):
    """It is told, and nothing is asked for ever."""
    asked = hub(CRASHES)
    with pytest.raises(StoreUnavailable, match="process that talks to Kaggle ended"):
        asked.ask("look at", "head", PATIENCE)
    assert asked.starts() == 1


def test_after_closing_nothing_is_started(hub):
    """A closed store asks nobody, and closing twice is harmless."""
    asked = hub(ANSWERS)
    asked.ask("look at", "head", PATIENCE)
    asked.close()
    asked.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        asked.ask("look at", "head", PATIENCE)
    assert asked.starts() == 1


@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        (
            {"kinds": ["ModuleNotFoundError", "ImportError"], "said": "No module"},
            MissingDependency,
            "colabkeep[kaggle]",
        ),
        ({"kinds": ["KaggleApiHTTPError", "HTTPError"], "code": 401}, StoreError, "KAGGLE_API_TOKEN"),
        ({"kinds": ["UnauthenticatedError"]}, StoreError, "Generate New Token"),
        ({"kinds": ["HTTPError"], "code": 403}, StoreError, "'ada'"),
        ({"kinds": ["HTTPError"], "code": 404}, FileNotFoundError, "kaggle.com/datasets/ada/checkpoints"),
        ({"kinds": ["HTTPError"], "code": 429, "wait": 7}, StoreUnavailable, "pause"),
        ({"kinds": ["HTTPError"], "code": 500}, StoreUnavailable, "500"),
        ({"kinds": ["ReadTimeout", "Timeout"]}, StoreUnavailable, "Internet"),
        ({"kinds": ["BackendError"], "said": "Upload failed"}, StoreUnavailable, "Upload failed"),
        ({"kinds": ["DataCorruptionError"]}, StoreUnavailable, "tried again"),
        ({"kinds": ["FileNotFoundError", "OSError"]}, StoreUnavailable, "deleted"),
        ({"kinds": ["HTTPError"], "code": 418, "said": "a teapot"}, StoreError, "a teapot"),
        ({"kinds": ["ZeroDivisionError"]}, StoreError, "ZeroDivisionError"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_each_refusal_has_its_meaning_and_its_next_step(told, kind, words):
    """What can pass is tried again; what cannot names the page, the variable or the command."""
    error = explained(told, "look at", "ada/checkpoints")
    assert isinstance(error, ColabKeepError)
    assert isinstance(error, kind)
    assert error.retryable == (kind is StoreUnavailable)
    assert words in str(error)

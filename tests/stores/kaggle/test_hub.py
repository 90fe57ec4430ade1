"""The process that talks to Kaggle is bounded, replaced when it is gone, and never outlives the one that asks."""

from __future__ import annotations

import sys

import pytest

from colabkeep.core.errors import ColabKeepError, StoreError, StoreUnavailable
from colabkeep.stores.kaggle.service import Pace, Service

PATIENCE = 30.0  # seconds until a hanging test gives up

# Children without Kaggle's client. Each appends a line to the file given last when it starts.
START = "import sys, time\nopen(sys.argv[-1], 'a').write('started\\n')\n"
ANSWERS = START + 'for line in sys.stdin: print(\'{"done": {"answer": 42}}\', flush=True)'
HANGS = START + "time.sleep(3600)"
CRASHES = START + "sys.exit(3)"


@pytest.fixture
def service(tmp_path):
    """Makes a service whose child is the given program; `starts()` counts how often it was started."""
    made = []

    def make(program):
        log = tmp_path / "log"
        command = (sys.executable, "-c", program, str(log))
        made.append(Service("ada/checkpoints", tmp_path, Pace(poll=0.0), command=command, environ={}))
        made[-1].starts = lambda: len(log.read_text().splitlines())
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_one_process_answers_many_questions(service):
    """It is started by the first one: importing Kaggle's client takes half a second."""
    asked = service(ANSWERS)
    assert [asked.process.ask("look at", {"operation": "head"}, PATIENCE)["answer"] for _ in range(3)] == [42, 42, 42]
    assert asked.starts() == 1


def test_a_question_without_an_answer_ends(service):
    """After its bound the process is killed, and the error says that Kaggle did not answer."""
    asked = service(HANGS)
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        asked.process.ask("look at", {"operation": "head"}, 0.2)
    with pytest.raises(StoreUnavailable):
        asked.process.ask("look at", {"operation": "head"}, 0.2)


def test_a_process_that_crashes_is_an_error_that_may_pass(service):
    """It is told, and nothing is asked for ever."""
    asked = service(CRASHES)
    with pytest.raises(StoreUnavailable, match="process that talks to Kaggle ended"):
        asked.process.ask("look at", {"operation": "head"}, PATIENCE)
    assert asked.starts() == 1


def test_after_closing_nothing_is_started(service):
    """A closed store asks nobody, and closing twice is harmless."""
    asked = service(ANSWERS)
    asked.process.ask("look at", {"operation": "head"}, PATIENCE)
    asked.close()
    asked.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        asked.process.ask("look at", {"operation": "head"}, PATIENCE)
    assert asked.starts() == 1


REFUSES = """
import sys
from colabkeep.stores.shared.process import serve

class HTTPError(Exception):
    def __init__(self, code):
        super().__init__("said")
        headers = {"Retry-After": "7"} if code == 429 else {}
        self.response = type("R", (), {"status_code": code, "headers": headers, "reason": "reason", "json": dict})()

def head(**_):
    raise KIND

serve({"head": head}, lambda request: [])
"""


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        ('ModuleNotFoundError("No module")', ColabKeepError, "colabkeep[kaggle]"),
        ("HTTPError(401)", StoreError, "KAGGLE_API_TOKEN"),
        ("HTTPError(403)", StoreError, "'ada'"),
        ("HTTPError(404)", StoreError, "kaggle.com/datasets/ada/checkpoints"),
        ("HTTPError(429)", StoreUnavailable, "tried again"),
        ("HTTPError(500)", StoreUnavailable, "tried again"),
        ('type("BackendError", (Exception,), {})("Upload failed")', StoreUnavailable, "Upload failed"),
        ("HTTPError(418)", StoreError, "reason"),
    ],
)
def test_each_refusal_has_its_meaning_and_its_next_step(service, raised, kind, words):
    """What can pass is tried again; what cannot names the page, the variable or the command."""
    asked = service(START + REFUSES.replace("KIND", raised))
    asked._closed.set()  # nobody waits between two attempts
    with pytest.raises(kind) as caught:
        asked.head()
    assert caught.value.retryable == (kind is StoreUnavailable)
    assert words in str(caught.value)

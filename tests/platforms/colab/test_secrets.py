"""A secret of the notebook's page is found, or it is said which of the many reasons kept it away; never its value."""

from __future__ import annotations

import re
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest

from colabkeep.core.errors import SecretError
from colabkeep.testing.faults import raising

BOUND = 30.0  # seconds; several times what any of these may take, for a call that hangs
VALUE = "hf_thisIsTheValue"


def refused(platform, colab, name="HF_TOKEN", timeout=BOUND) -> str:
    with pytest.raises(SecretError) as caught:
        platform.secret(colab.environment, name, timeout=timeout)
    shown = "".join(traceback.format_exception(caught.type, caught.value, caught.tb)) + repr(caught.value)
    assert VALUE not in shown
    assert isinstance(caught.value, LookupError)
    assert len(caught.value.remedy) > 20
    return str(caught.value)


def test_a_secret_of_the_page_is_had(machine, platform):
    """From the key symbol at the left edge."""
    colab = machine(secrets={"HF_TOKEN": VALUE})
    assert platform.secret(colab.environment, "HF_TOKEN", timeout=BOUND) == VALUE


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        ({}, "There is no secret 'HF_TOKEN'", "Add new secret"),
        ({"secrets": {"HF_TOKEN": None}}, "may not read it", "Notebook access"),
        ({"secrets": {"HF_TOKEN": ""}}, "is empty", "fill in"),
        ({"front_end": "absent"}, "did not answer", "os.environ['HF_TOKEN']"),
        ({"front_end": "vscode", "secrets": {"HF_TOKEN": VALUE}}, "In VS Code", "os.environ['HF_TOKEN']"),
        ({"front_end": "refuses"}, "answered with an error", "Reload the page"),
        ({"kind": "process"}, "program of its own", "os.environ['HF_TOKEN']"),
        ({"on_import": raising(SyntaxError("broken pip"))}, "SyntaxError: broken pip", "Restart session"),
        ({"on_import": raising(SystemExit(3))}, "SystemExit: 3", "Restart session"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_each_reason_has_its_own_next_click(machine, platform, words, problem, remedy):
    """Not there, not granted, empty, no answer, an error, no page, a broken package."""
    colab = machine(**words)
    colab.pace = 0.001
    text = refused(platform, colab)
    assert problem in text
    assert remedy in text


@pytest.mark.parametrize(("name", "said"), [("", "it is empty"), ("two words", "no blanks"), ("tab\t", "no blanks")])
def test_a_name_that_cannot_be_one_is_told(machine, platform, name, said):
    """Colab takes no blanks, and a name that is empty is called that."""
    assert said in refused(platform, machine(), name=name)


@pytest.mark.parametrize(
    "words", [{}, {"front_end": "absent"}, {"kind": "process"}, {"secrets": {"HF_TOKEN": None}}], ids=str
)
def test_a_variable_of_that_name_helps_out(machine, platform, words):
    """It is taken at once, and nobody waits for a page that does not answer; an empty one counts as none."""
    colab = machine(**words)
    colab.pace = 0.001
    colab.environ["HF_TOKEN"] = ""
    refused(platform, colab)
    asked = len(colab.calls)
    colab.environ["HF_TOKEN"] = VALUE
    assert platform.secret(colab.environment, "HF_TOKEN", timeout=BOUND) == VALUE
    assert len(colab.calls) == asked


def test_an_error_nobody_foresaw_does_not_show_what_it_knows(machine, platform, monkeypatch):
    """Its type is told; its text, which may hold the value, is not, nor is it in the traceback."""

    def get(key):
        raise RuntimeError(f"could not decode {VALUE}")

    colab = machine(secrets={"HF_TOKEN": VALUE})
    monkeypatch.setattr(import_module("google.colab.userdata"), "get", get)
    assert "RuntimeError" in refused(platform, colab)


@pytest.mark.timeout(BOUND)
def test_a_page_that_never_answers_is_not_waited_for(machine, platform, monkeypatch):
    """Colab's own ten seconds may be changed or lost: the time given here holds, also if it is given as nothing."""

    def get(key):
        colab.wait(float("inf"))

    colab = machine()
    monkeypatch.setattr(import_module("google.colab.userdata"), "get", get)
    for timeout in (1.0, 0.0, float("nan")):
        assert "did not answer" in refused(platform, colab, timeout=timeout)


@pytest.mark.timeout(BOUND)
def test_an_import_that_never_comes_back_is_told(machine, platform):
    """The package is at fault then, and not the page."""
    text = refused(platform, machine(on_import=threading.Event().wait), timeout=2.0)
    assert "its import did not end" in text
    assert "page did not answer" not in text


@pytest.mark.timeout(BOUND)
def test_a_thread_may_ask_for_a_secret(machine, platform, monkeypatch):
    """An upload in the background needs a token: Colab's own call works on any thread, and so does this; what goes
    wrong there is told as it is on the main one, in bounded time."""
    with ThreadPoolExecutor(1) as pool:
        colab = machine(secrets={"HF_TOKEN": VALUE})
        assert pool.submit(platform.secret, colab.environment, "HF_TOKEN", timeout=BOUND).result(BOUND) == VALUE
        assert "There is no secret 'OTHER'" in pool.submit(refused, platform, colab, "OTHER").result(BOUND)
        silent = threading.Event()
        monkeypatch.setattr(import_module("google.colab.userdata"), "get", lambda key: silent.wait(BOUND))
        assert "did not answer" in pool.submit(refused, platform, colab, timeout=1.0).result(BOUND)
        silent.set()


def test_a_thread_is_told_of_a_broken_package(machine, platform):
    """One that ends the program while it is imported ends no thread of ours."""
    colab = machine(on_import=raising(SystemExit(3)))
    with ThreadPoolExecutor(1) as pool:
        assert "SystemExit: 3" in pool.submit(refused, platform, colab).result(BOUND)

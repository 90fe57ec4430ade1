"""`%load_ext colabkeep` and `%colabkeep …`, in a real IPython in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("IPython")

START = """
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
shell = InteractiveShell.instance()
def cell(text):
    with capture_output() as told:
        result = shell.run_cell(text)
    assert result.success, (result.error_before_exec, result.error_in_exec)
    return told
"""


@pytest.fixture
def notebook(tmp_path):
    """Runs lines of Python beside an IPython shell, `cell` runs a cell; returns what was printed."""

    def run(program, **environ):
        variables = {"IPYTHONDIR": str(tmp_path / "ipython"), "COLABKEEP_PLATFORM": "colab", **environ}
        done = subprocess.run(
            [sys.executable, "-c", f"{START}\n{program}"],
            cwd=tmp_path,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_loading_the_extension_shows_the_check(notebook):
    """One line at the top of a notebook: the report appears, as HTML where that is shown, and as text elsewhere."""
    out = notebook("""
(shown,) = cell("%load_ext colabkeep").outputs
print(sorted(shown.data))
print(shown.data["text/plain"])
""")
    assert out.startswith("['text/html', 'text/plain']")
    assert "Google Colab (local), " in out
    assert "Checkpoints go to " in out


def test_the_magic_speaks_the_command_line_s_words(notebook, tmp_path):
    """`%colabkeep list` is `colabkeep list`, quotes and all."""
    out = notebook(f"""
cell("%load_ext colabkeep")
print(cell("%colabkeep doctor --json").stdout)
print(cell("%colabkeep list --storage '{tmp_path}/a b'").stdout)
""")
    assert '"verdict"' in out
    assert "There are no runs in" in out
    assert "a b" in out


@pytest.mark.parametrize(
    ("line", "said"),
    [("--help", "usage: colabkeep"), ("lisst", "invalid choice"), ("show 'r", "No closing quotation"), ("", "usage")],
)
def test_a_slip_in_the_magic_is_told_and_the_notebook_goes_on(notebook, line, said):
    """Help, a misspelt word, an open quotation mark, nothing at all: no traceback, and the next cell runs."""
    out = notebook(f"""
cell("%load_ext colabkeep")
told = cell({f"%colabkeep {line}"!r})
print(told.stdout, told.stderr, cell("print(6 * 7)").stdout)
""")
    assert said in out
    assert "42" in out
    assert "Traceback" not in out


def test_a_check_that_fails_is_shown_and_the_notebook_starts(notebook):
    """The failure is one line on stderr; the magic is there all the same."""
    out = notebook("""
import colabkeep.ui.magics as magics
def broken():
    raise RuntimeError("a bug")
magics.examine = broken
told = cell("%load_ext colabkeep")
print(told.stderr, "colabkeep" in shell.magics_manager.magics["line"])
""")
    assert "the check failed (RuntimeError: a bug)" in out
    assert out.rstrip().endswith("True")


def test_loading_the_extension_imports_no_framework(notebook):
    """A start-up hook that takes the seconds of importing torch would not be kept in anybody's notebook."""
    out = notebook("""
cell("%load_ext colabkeep")
import sys
print("frameworks:", {"torch", "paddle", "jax"} & set(sys.modules))
""")
    assert "frameworks: set()" in out

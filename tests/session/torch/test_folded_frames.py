"""Errors in what the user wrote: IPython shows them without the frames of colabkeep, and everybody else shows all."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import colabkeep
from colabkeep.core.language import VARIABLE
from colabkeep.stores.memory import MemoryStore

IN_A_STEP = """
    import colabkeep, torch
    model = torch.nn.Linear(1, 1)
    def step_fn(model, batch):
        raise ValueError("mine")
    words = dict(optimizer=torch.optim.SGD(model.parameters()), max_epochs=1, storage="runs", progress=False)
    colabkeep.resumable_fit(model, [torch.ones(1, 1)], step_fn=step_fn, run_name="f", **words)
"""
IN_A_DATA_SET = """
    import colabkeep, torch
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            raise ValueError("mine")
    loader = torch.utils.data.DataLoader(Broken())
    with colabkeep.Run("r", model=torch.nn.Linear(1, 1), storage="runs", progress=False) as run:
        for _ in run.epochs(1):
            for batch in run.batches(loader):
                run.step()
"""


@pytest.mark.parametrize("cell", [IN_A_STEP, IN_A_DATA_SET], ids=["resumable_fit", "Run"])
def test_an_error_of_the_user_is_shown_without_our_frames(cell: str, tmp_path: Path) -> None:
    """In a real kernel: the user's lines are there, and how many frames were left out between them."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(cell))])
    where = {"metadata": {"path": str(tmp_path)}}
    with pytest.raises(CellExecutionError):
        NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
    (error,) = notebook.cells[0].outputs
    shown = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert error.evalue == "mine"
    assert re.search(r"skipping hidden \d+ frame", shown)
    assert "colabkeep/" not in shown
    assert '    raise ValueError("mine")\n\nValueError: mine' in shown, "the last frame is the user's"


INTERRUPTED = """
    import os, signal
    import colabkeep, torch
    model, calls = torch.nn.Linear(1, 1), []
    def step_fn(model, batch):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return model(batch).sum()
    words = dict(optimizer=torch.optim.SGD(model.parameters()), max_epochs=1, storage="runs", progress=False)
    colabkeep.resumable_fit(model, [torch.ones(1, 1)] * 9, step_fn=step_fn, run_name="f", **words)
"""


@pytest.mark.parametrize(
    ("language", "line"),
    [
        ("en", "stopped at step 3. Saved: step 3. Run the same cell again to continue."),
        pytest.param(
            "zh",
            "在第 3 步停止。已保存：第 3 步。再次运行同一单元格即可继续。",  # noqa: RUF001  # full-width
            marks=pytest.mark.long,
        ),
    ],
)
def test_ctrl_c_ends_with_the_line_that_says_what_is_saved(
    language: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook it is all that is shown; a script's traceback ends with it."""
    monkeypatch.setenv(VARIABLE, language)
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(INTERRUPTED))])
    where = {"metadata": {"path": str(tmp_path)}}
    with pytest.raises(CellExecutionError):
        NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
    (error,) = notebook.cells[0].outputs
    assert error.traceback == [f"KeyboardInterrupt: {line}"]

    folder = tmp_path / "script"
    folder.mkdir()
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED)]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == f"KeyboardInterrupt: {line}"


def mine(model: Any, batch: Any) -> Any:
    raise ValueError("mine")


def hidden(step_fn: Any) -> set[bool]:
    """Are the frames of colabkeep marked, when this raises?"""
    model = torch.nn.Linear(1, 1)
    words: dict[str, Any] = {"optimizer": torch.optim.SGD(model.parameters()), "max_epochs": 1, "run_name": "r"}
    with pytest.raises((ValueError, TypeError)) as raised:
        colabkeep.resumable_fit(
            model, [torch.ones(1, 1)], step_fn=step_fn, storage=MemoryStore(), progress=False, **words
        )
    whole = "".join(traceback.format_exception(type(raised.value), raised.value, raised.value.__traceback__))
    assert "colabkeep/session/fit.py" in whole, "a script shows all of it"
    package = str(Path(colabkeep.__file__).parent)
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    return {bool(frame.f_locals.get("__tracebackhide__")) for frame in frames if package in frame.f_code.co_filename}


def test_an_error_of_a_library_keeps_all_frames() -> None:
    """Whoever reports it is asked for them."""
    assert hidden(mine) == {True}
    assert hidden(torch.nn.functional.linear) == {False}

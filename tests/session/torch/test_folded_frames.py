"""Errors in what the user wrote: IPython shows them without the frames of colabkeep, and everybody else shows all."""

from __future__ import annotations

import re
import signal
import textwrap
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import colabkeep
from colabkeep.core.language import VARIABLE
from colabkeep.stores.memory import MemoryStore
from tests.programs import run

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
    colabkeep.resumable_fit(model, [torch.ones(1, 1)] * 9, step_fn=step_fn, run_name="i", **words)
"""


def errors(cells: Sequence[str], folder: Path) -> list[Any]:
    """What a real kernel shows of each of these cells, which end with an error."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in cells])
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where, allow_errors=True).execute()
    return [error for cell in notebook.cells for error in cell.outputs]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of all of them, one after the other."""
    cells = (IN_A_STEP, IN_A_DATA_SET, INTERRUPTED)
    return dict(zip(cells, errors(cells, tmp_path_factory.mktemp("notebook")), strict=True))


@pytest.mark.parametrize("cell", [IN_A_STEP, IN_A_DATA_SET], ids=["resumable_fit", "Run"])
def test_an_error_of_the_user_is_shown_without_our_frames(cell: str, shown: dict[str, Any]) -> None:
    """In a real kernel: the user's lines are there, and how many frames were left out between them."""
    error = shown[cell]
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert error.evalue == "mine"
    assert re.search(r"skipping hidden \d+ frame", text)
    assert "colabkeep/" not in text
    assert '    raise ValueError("mine")\n\nValueError: mine' in text, "the last frame is the user's"


STOPPED = "stopped at step 3. Saved: step 3. Run the same cell again to continue."


def test_ctrl_c_ends_with_the_line_that_says_what_is_saved(
    shown: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook it is all that is shown; a script's traceback ends with it."""
    assert shown[INTERRUPTED].traceback == [f"KeyboardInterrupt: {STOPPED}"]
    monkeypatch.chdir(tmp_path)
    done = run(textwrap.dedent(INTERRUPTED))
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == f"KeyboardInterrupt: {STOPPED}"


@pytest.mark.long
def test_ctrl_c_ends_with_that_line_in_the_users_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Chinese, in a notebook."""
    monkeypatch.setenv(VARIABLE, "zh")
    (error,) = errors([INTERRUPTED], tmp_path)
    line = "在第 3 步停止。已保存：第 3 步。再次运行同一单元格即可继续。"  # noqa: RUF001  # full-width
    assert error.traceback == [f"KeyboardInterrupt: {line}"]


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

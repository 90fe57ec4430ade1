"""The panel in a real kernel, in notebooks as they are saved."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

import colabkeep
from tests.environments import TESTS

from .conftest import picture_of, text_of
from .test_rendering import LINE

pytestmark = pytest.mark.timeout(180)

PREPARE = """
from pathlib import Path
import colabkeep
from colabkeep.ui.panel.displays import NotebookPanel
from colabkeep.ui.panel.state import PanelState
from colabkeep.testing.clock import FakeClock
from colabkeep.core.events import LengthTold, RunStarted, RunStopped, StepDone
from colabkeep.core.manifest import Progress

class Number:
    value = 0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]

def train(steps, **words):
    model = Number()
    with colabkeep.Run("r", model=model, storage="runs", save_every=None, **words) as run:
        for _ in run.epochs(1):
            for batch in run.batches(list(range(20))):
                model.value += batch
                run.step(loss=1 / (1 + model.value))
                if run.progress.step == steps:
                    run.stop()
    return model.value
"""


class Notebook:
    """Cells that a new kernel runs one after the other, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.book: Any = nbformat.v4.new_notebook(
            metadata={"kernelspec": {"name": "python3", "display_name": "Python"}}
        )

    def run(self, *cells: str) -> list[list[Any]]:
        """The outputs of the cells."""
        texts = (PREPARE, *cells)
        self.book.cells = [nbformat.v4.new_code_cell(textwrap.dedent(text)) for text in texts]
        resources = {"metadata": {"path": str(self.folder)}}
        try:
            NotebookClient(
                self.book, timeout=120, iopub_timeout=60, kernel_name="python3", resources=resources
            ).execute()
        finally:
            file = self.folder / "saved.ipynb"
            nbformat.write(self.book, file)
        return [cell.outputs for cell in self.book.cells[1:]]

    @property
    def saved(self) -> Path:
        return self.folder / "saved.ipynb"


@pytest.fixture
def notebook(kernel_home: Path, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    monkeypatch.setenv("PYTHONPATH", str(Path(colabkeep.__file__).parent.parent))
    return Notebook(kernel_home)


def html_of(outputs: list[Any]) -> str:
    """The HTML of the only output."""
    (output,) = outputs
    assert output.output_type == "display_data"
    return str(output.data["text/html"])


def printed(outputs: list[Any]) -> str:
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_a_thousand_updates_leave_one_small_output(notebook: Notebook) -> None:
    """The notebook does not grow with the training, and holds the end of it in both forms."""
    (outputs,) = notebook.run(
        """
        clock = FakeClock()
        panel = NotebookPanel(clock, PanelState(platform="Jupyter"))
        panel(RunStarted(run="r", session="s", storage="runs", promise="Exact."))
        panel(LengthTold(max_steps=1000))
        for step in range(1, 1001):
            clock.advance(1.0)
            panel(StepDone(progress=Progress(step=step, seconds=float(step)), epoch_batches=None, loss=1 / step))
        panel(RunStopped(reason="finished", progress=Progress(step=1000, seconds=1000.0), checkpoint=None))
        """
    )
    assert "✔ FINISHED" in text_of(html_of(outputs))
    assert "step 1000 of 1000" in text_of(html_of(outputs))
    assert LINE.fullmatch(outputs[0].data["text/plain"])
    assert "FINISHED step 1000/1000 100%" in outputs[0].data["text/plain"]
    assert notebook.saved.stat().st_size < 20_000
    assert "widgets" not in notebook.book.metadata


@pytest.mark.long  # CI sees a thousand updates
def test_the_notebook_of_twelve_hours_is_small(notebook: Notebook) -> None:
    """By a clock of its own: a step each half minute, 48 epochs, saves with them; the panel shows the numbers of the
    end, and the file stays below 60 kB."""
    (outputs,) = notebook.run(
        f"""
        import sys
        sys.path.append({str(TESTS.parent)!r})  # the kernel knows what is installed, and the tests are not
        from tests.panel.test_extremes import twelve_hours
        clock = FakeClock()
        panel = NotebookPanel(clock, PanelState(platform="Jupyter"))
        panel(RunStarted(run="r", session="s", storage="runs", promise="Exact."))
        twelve_hours(30.0, panel, clock)
        """
    )
    text = text_of(html_of(outputs))
    assert "100 % · step 1440 of 1440 · trained for 12 h" in text
    assert "Epochs · ★ best val_loss: 0.02083, epoch 48" in text
    assert notebook.saved.stat().st_size < 60_000


def test_a_training_in_a_notebook_shows_its_panel_and_nothing_else(notebook: Notebook) -> None:
    """One output per cell that trains; the next session's says that it went on, over the whole curve."""
    first, second = notebook.run("first = train(7)", "second = train(None)")
    assert "■ STOPPED" in text_of(html_of(first))
    assert "✔ FINISHED" in text_of(html_of(second))
    assert "resumed at 7" in html_of(second)
    assert re.search(r"loss, (\d+) points from step 1 to \d+:", html_of(second))
    assert "not live" not in picture_of(html_of(second)), "it is over, and as true tomorrow"
    pages = sorted(file.name for file in (notebook.folder / "runs").iterdir() if file.is_file())
    assert pages == ["r.status.html", "r.status.json"]


def test_what_a_killed_kernel_showed_last_stays_in_the_notebook(notebook: Notebook) -> None:
    """How far it was, what was safe, since when it is not live, and a picture that says so by itself."""
    with pytest.raises(DeadKernelError):
        notebook.run(
            """
            import os, signal, time
            model = Number()
            with colabkeep.Run("r", model=model, storage="runs", save_every=None) as run:
                for _ in run.epochs(1):
                    for batch in run.batches(list(range(9))):
                        model.value += batch
                        run.step(loss=1.0)
                        if run.progress.step == 3:
                            run.save(wait=True)
                        time.sleep(0.4)
                    os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    reopened: Any = nbformat.read(notebook.saved, as_version=4)
    html = html_of(reopened.cells[1].outputs)
    assert "Saved up to step 3" in text_of(html)
    advice = re.search(r"this is not live: (colabkeep\.report\(.*?\)) shows the whole history", text_of(html))
    assert advice
    assert advice[1] == "colabkeep.report('r', storage='runs')"
    assert "not live" in picture_of(html)
    found = LINE.fullmatch(reopened.cells[1].outputs[0].data["text/plain"])
    assert found
    assert int(found[3]) >= 3
    outputs = notebook.run(f"str({advice[1]})")[0]  # pasted into a new kernel
    assert "r: " in outputs[0].data["text/plain"]


def test_a_display_that_fails_becomes_lines_of_text_and_training_goes_on(notebook: Notebook) -> None:
    """One line says so, and the weights are those of a training that nobody watched."""
    quiet, broken = notebook.run(
        "print(train(None, progress=False))\n!rm -r runs",
        """
        import IPython.display
        def broken(*bundle, **options):
            raise RuntimeError("no front end listens")
        IPython.display.display = broken
        print(train(None))
        """,
    )
    text = printed(broken)
    assert text.count("the panel cannot be shown here (RuntimeError: no front end listens); lines of text instead") == 1
    assert text.count("[colabkeep] run 'r', checkpoints in") == 1
    assert "finished at step 20" in text
    assert text.splitlines()[-1] == printed(quiet).strip() == "190"


def test_a_kaggle_batch_run_has_the_panel_and_a_log(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is what can be read while it runs, its page what stays."""
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("COLABKEEP_SESSION_LIMIT", "1000 h")  # however long this machine has been up
    (outputs,) = notebook.run("value = train(None)")
    (panel,) = [output for output in outputs if output.output_type == "display_data"]
    assert "✔ FINISHED Kaggle (batch)" in text_of(panel.data["text/html"])
    assert "[colabkeep] finished at step 20" in printed(outputs)
    assert "\r" not in printed(outputs)


def test_an_error_in_the_cell_is_in_the_panel_and_in_the_traceback(notebook: Notebook) -> None:
    """Its text is shown as text, whatever it holds."""
    with pytest.raises(CellExecutionError, match="alert"):
        notebook.run(
            """
            with colabkeep.Run("r", model=Number(), storage="runs") as run:
                for _ in run.epochs(1):
                    for batch in run.batches([1, 2, 3]):
                        run.step()
                        raise ValueError("<script>alert(1)</script>")
            """
        )
    panel, error = notebook.book.cells[1].outputs
    assert "✖ FAILED" in text_of(panel.data["text/html"])
    assert "Failed at step 1: ValueError: &lt;script&gt;alert(1)&lt;/script&gt;." in panel.data["text/html"]
    assert error.output_type == "error"


def test_widgets_come_with_the_record_that_outlives_them(notebook: Notebook) -> None:
    """Both show the end of the training; the record is folded below, and is plain HTML."""
    box, told = notebook.run(
        'value = train(None, progress="widgets")',
        """
        import ipywidgets
        from ipywidgets.widgets import widget
        known = getattr(widget, "_instances", None) or ipywidgets.Widget.widgets  # ipywidgets 8; 7
        (box,) = [w for w in known.values() if isinstance(w, ipywidgets.VBox)]
        bar, html = box.children
        print(box._dom_classes, bar.value, "FINISHED" in html.value)
        """,
    )
    widget, record = box
    assert "application/vnd.jupyter.widget-view+json" in widget.data
    assert "<details" in record.data["text/html"]
    assert "✔ FINISHED" in text_of(record.data["text/html"])
    assert printed(told).strip() == "('colabkeep-panel',) 1.0 True"


def test_without_ipywidgets_the_panel_is_shown_instead(notebook: Notebook) -> None:
    """The next simpler display, which has the same to say, and a line in it that says why."""
    (outputs,) = notebook.run(
        """
        import sys
        sys.modules["ipywidgets"] = None
        value = train(None, progress="widgets")
        """
    )
    text = text_of(html_of(outputs))
    assert "✔ FINISHED" in text
    assert "widgets cannot be shown here (ModuleNotFoundError" in text

"""The browser in a real kernel: a cell shows it, the page's clicks reach it, and without widgets it is text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGETS_NOW = """
from ipywidgets.widgets import widget
def widgets_now():
    known = getattr(widget, "_instances", None)  # since ipywidgets 8
    return list((widget.Widget.widgets if known is None else known).items())
"""


class Page:
    """What the front end of a notebook does: runs cells, keeps the state of widgets, sends clicks."""

    def __init__(self) -> None:
        notebook = nbformat.v4.new_notebook()
        self.client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3")

    def run(self, code: str) -> list[Any]:
        """The outputs of a cell."""
        cell = nbformat.v4.new_code_cell(code)
        self.client.nb.cells.append(cell)
        self.client.execute_cell(cell, len(self.client.nb.cells) - 1)
        return list(cell.outputs)

    def said(self, code: str) -> str:
        """What a cell printed."""
        return "".join(output.get("text", "") for output in self.run(code))

    def click(self, words: str) -> None:
        """Click the newest button with these words, with the message that a page sends."""
        ids = self.said(f"print(*[id for id, one in widgets_now() if getattr(one, 'description', '') == {words!r}])")
        content = {"comm_id": ids.split()[-1], "data": {"method": "custom", "content": {"event": "click"}}}
        channel = self.client.kc
        channel.shell_channel.send(channel.session.msg("comm_msg", content))

    @property
    def html(self) -> str:
        """What all HTML widgets show."""
        return self.said("print(*[one.value for _, one in widgets_now() if type(one).__name__ == 'HTML'])")


@contextmanager
def kernel() -> Iterator[Page]:
    page = Page()
    with page.client.setup_kernel():
        yield page


def test_the_page_clicks_and_the_kernel_answers(storage):
    """Shown by the last line of a cell, with the listing as text and HTML for viewers that have no kernel; a click on
    Verify, and two on deleting with the name typed between, do what they say."""
    with kernel() as page:
        (shown,) = page.run(f"import colabkeep\nbrowser = colabkeep.browse({str(storage)!r})\nbrowser")
        assert set(shown.data) == {WIDGET, "text/html", "text/plain"}
        assert "What you can type" in shown.data["text/plain"]
        assert "committed" in shown.data["text/html"]
        for forbidden in ("<script", "<style", "<svg", "http"):
            assert forbidden not in shown.data["text/html"]
        assert shown.data[WIDGET]["model_id"] in page.client.widget_state
        page.run(WIDGETS_NOW)
        page.click("Verify")
        assert "all as written" in page.html
        page.click("Delete")
        assert "3 checkpoint(s)" in page.html
        page.run("[box] = [one for _, one in widgets_now() if type(one).__name__ == 'Text']; box.value = 'first'")
        page.click("Delete for good")
        assert "are deleted" in page.html
    assert not list((storage / "first").rglob("*.json"))


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("sys.modules['ipywidgets'] = None", "ipywidgets is not installed"),
        ("import ipywidgets; ipywidgets.Select = None", "TypeError"),
    ],
    ids=["missing", "failing"],
)
def test_a_kernel_without_working_widgets_shows_the_text(storage, broken, why):
    """One line says why there are no buttons; then the listing, and what to type instead."""
    with kernel() as page:
        (shown,) = page.run(f"import sys\n{broken}\nimport colabkeep\ncolabkeep.browse({str(storage)!r})")
    assert set(shown.data) == {"text/plain"}
    first, _, rest = shown.data["text/plain"].partition("\n")
    assert first.startswith("No buttons here (")
    assert why in first
    assert "What you can type" in rest
    assert "committed  local" in rest

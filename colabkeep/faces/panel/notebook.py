"""The panel in a notebook: one HTML output, which is replaced in place and stays when the kernel is gone."""

from __future__ import annotations

import secrets
from importlib import import_module

from colabkeep.faces.drawing.markup import Markup
from colabkeep.faces.panel.html import render
from colabkeep.faces.panel.line import line
from colabkeep.faces.panel.pacing import Paced
from colabkeep.faces.panel.state import PanelState
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.events import Event

__all__ = ["NoFrontEnd", "NotebookPanel", "Output"]

PAUSE = 1.0
"""Seconds between two updates. A page needs some 14 ms for each; a burst of 2,000 kept JupyterLab busy for half a
minute (JupyterLab 4.6.6, measured 2026-11)."""


class NoFrontEnd(RuntimeError):
    """There is no kernel whose front end could show HTML."""


class Output:
    """One output of the cell that runs: shown once, then replaced in place.

    It goes by its own identifier, since `display(…, display_id=True)` gives None outside a kernel. Call it from the
    thread that runs the cell: ipykernel 7.0.0 and 7.0.1 raise LookupError elsewhere.
    """

    def __init__(self) -> None:
        self._id = f"colabkeep-{secrets.token_hex(8)}"
        self._shown = False

    def show(self, html: str, text: str) -> None:
        """Show both forms; the front end takes what it can.

        Raises:
            NoFrontEnd: this is no kernel.
        """
        ipython = import_module("IPython")
        shell = ipython.get_ipython()
        if shell is None or not hasattr(shell, "kernel"):
            raise NoFrontEnd("no notebook kernel runs this code")
        display = import_module("IPython.display").display
        display({"text/html": html, "text/plain": text}, raw=True, display_id=self._id, update=self._shown)
        self._shown = True


class NotebookPanel:
    """Shows a run in one output. An observer of its events.

    `steps_from`: the time from which it wants to hear of a step again.
    """

    def __init__(self, clock: Clock, start: PanelState, *, pause: float = PAUSE) -> None:
        self._paced = Paced(clock, start, pause)
        self._output = Output()

    @property
    def steps_from(self) -> float:
        """When the next update is due."""
        return self._paced.steps_from

    def __call__(self, event: Event) -> None:
        """Take an event, and show the state if it is time.

        Raises:
            Exception: the front end cannot show it.
        """
        state = self._paced.due(event)
        if state is not None:
            self._output.show(self.draw(state), line(state))

    def draw(self, state: PanelState) -> Markup:
        """The state as HTML."""
        return render(state)

"""The panel with widgets, for those who ask for them: a bar and the panel, and below them the record that stays.

ipywidgets 7.7 to 8 (Colab has 7.7.1). Widgets are dead when the notebook is opened without its kernel ("model not
found"), and a Colab notebook that holds some is not shown by GitHub (googlecolab/colabtools #5255), so the same is
always shown as HTML too. No button: a click is not heard while a cell runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from colabkeep.core.events import Event
from colabkeep.core.system import Clock
from colabkeep.ui.drawing import details
from colabkeep.ui.panel.displays import PAUSE, Output
from colabkeep.ui.panel.messages import words_of
from colabkeep.ui.panel.model import Paced
from colabkeep.ui.panel.render import line, render
from colabkeep.ui.panel.state import PanelState

__all__ = ["WidgetPanel"]


class WidgetPanel:
    """Shows a run in a box of two widgets, and in the output of `NotebookPanel`, folded. An observer of its events.

    `steps_from`: the time from which it wants to hear of a step again.
    """

    def __init__(self, clock: Clock, start: PanelState, *, pause: float = PAUSE) -> None:
        self._paced = Paced(clock, start, pause)
        self._output = Output()
        self._widgets: _Widgets | None = None

    @property
    def steps_from(self) -> float:
        """When the next update is due."""
        return self._paced.steps_from

    def __call__(self, event: Event) -> None:
        """Take an event, and show the state if it is time.

        Raises:
            Exception: the front end cannot show it, or ipywidgets is not there.
        """
        state = self._paced.due(event)
        if state is None:
            return
        if self._widgets is None:
            self._widgets = _Widgets()
        html = render(state)
        self._widgets.show(html, state.share)
        self._output.show(details(words_of(state.language)["record"], html), line(state))


class _Widgets:
    """The box in the cell's output."""

    def __init__(self) -> None:
        made: Any = import_module("ipywidgets")
        self._bar = made.FloatProgress(value=0.0, min=0.0, max=1.0, layout=made.Layout(width="98%"))
        self._html = made.HTML()
        self._box = made.VBox([self._bar, self._html])
        self._box.add_class("colabkeep-panel")
        self._shown = False

    def show(self, html: str, share: float | None) -> None:
        self._bar.value = share or 0.0
        self._html.value = html
        if not self._shown:
            import_module("IPython.display").display(self._box)
            self._shown = True

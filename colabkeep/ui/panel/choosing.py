"""Which displays a front end gets: what it can show, unless the user says; when one fails, the next simpler takes
its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias

from colabkeep.core.errors import UsageError
from colabkeep.core.events import Event, Noted, RunStarted
from colabkeep.core.system import Clock, Environment
from colabkeep.platforms import find_platform
from colabkeep.platforms.base import Platform, front_end
from colabkeep.ui.panel.displays import PAUSE, Lines, NotebookPanel, StatusFiles, text_stream
from colabkeep.ui.panel.messages import language
from colabkeep.ui.panel.state import PanelState

__all__ = [
    "Display",
    "Ladder",
    "Progress",
    "Silence",
    "check_progress",
    "displays",
]

Display: TypeAlias = Callable[[Event], None]
"""An observer of a run's events; it may have `steps_from`."""


class Silence:
    """A display for a process that has nowhere to write to."""

    steps_from = math.inf

    def __call__(self, event: Event) -> None:
        """Nothing."""


class Ladder:
    """The first of `displays` that works, made when it is needed; each comes with what people call it."""

    def __init__(self, displays: Sequence[tuple[str, Callable[[], Display]]]) -> None:
        self._left = list(displays)
        self._name, make = self._left.pop(0)
        self._display = make()
        self._started: RunStarted | None = None

    @property
    def steps_from(self) -> float:
        """When the display in use wants to hear of a step again."""
        return float(getattr(self._display, "steps_from", -math.inf))

    def __call__(self, event: Event) -> None:
        """Show an event.

        Raises:
            Exception: the simplest of the displays failed, too.
        """
        if isinstance(event, RunStarted):
            self._started = event
        while True:
            try:
                self._display(event)
            except Exception as error:
                if not self._left:
                    raise
                self._step_down(event, error)
            else:
                return

    def _step_down(self, event: Event, error: Exception) -> None:
        failed = self._name
        self._name, make = self._left.pop(0)
        self._display = make()
        why = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        try:
            self._display(Noted(text=f"{failed} cannot be shown here ({why}); {self._name} instead."))
            if self._started is not None and event is not self._started:
                self._display(self._started)
        except Exception:  # noqa: BLE001  # it will fail with the event itself, too, and then the next one is taken
            return


Progress: TypeAlias = bool | Literal["auto", "html", "widgets", "text", "off"]
"""True and "auto": what the front end can show best. False and "off": nothing."""

_WORDS = ("auto", "html", "widgets", "text", "off")
_COLAB_PAUSE = 2.0  # seconds: its pages froze from bars that were drawn too often (Lightning #2517, #5514)


def check_progress(progress: object) -> str:
    """What the user wrote, as one of the words.

    Raises:
        UsageError: it is none of them.
    """
    if isinstance(progress, bool):
        return "auto" if progress else "off"
    if isinstance(progress, str) and progress in _WORDS:
        return progress
    raise UsageError(
        problem=f"progress={progress!r} is unknown.",
        remedy='Use True (what this front end can show), "html", "widgets", "text", or False for nothing.',
    )


def displays(progress: Progress, clock: Clock, environment: Environment) -> tuple[Display, ...]:
    """The observers that show a run; none for "off".

    Raises:
        UsageError: `progress` is no word of these.
    """
    word = check_progress(progress)
    if word == "off":
        return ()
    platform = find_platform(environment)
    start = PanelState(platform=platform.title, language=language(environment))
    pause = _COLAB_PAUSE if platform.name == "colab" else PAUSE
    status = StatusFiles(clock, start)
    text = partial(_lines, clock, start, environment)
    notebook = (("the panel", partial(NotebookPanel, clock, start, pause=pause)), ("lines of text", text))
    shown = word if word != "auto" else "html" if front_end(environment) == "notebook" else "text"
    if shown == "text":
        return (text(), status)
    if shown == "widgets":
        from colabkeep.ui.panel.widgets import WidgetPanel

        widgets: tuple[str, Callable[[], Display]] = ("widgets", partial(WidgetPanel, clock, start, pause=pause))
        return (Ladder((widgets, *notebook)), status)
    if word == "auto" and _is_batch(platform, environment):
        # Its log is all there is to see while it runs, and the page with the panel is all there is afterwards.
        return (NotebookPanel(clock, start, pause=pause), text(), status)
    return (Ladder(notebook), status)


def _is_batch(platform: Platform, environment: Environment) -> bool:
    return platform.name == "kaggle" and platform.kind(environment).partition(" ")[0] in ("batch", "rerun")


def _lines(clock: Clock, start: PanelState, environment: Environment) -> Display:
    stream = text_stream()
    if stream is None:
        return Silence()
    return Lines(clock, stream, start=start, moving=environment.environ.get("TERM") != "dumb")

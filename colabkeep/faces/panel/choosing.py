"""Which displays a front end gets: what it can show, unless the user says what he wants."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

from colabkeep.faces.lines import Lines, text_stream
from colabkeep.faces.panel.ladder import Display, Ladder, Silence
from colabkeep.faces.panel.notebook import PAUSE, NotebookPanel
from colabkeep.faces.panel.state import PanelState
from colabkeep.faces.panel.status import StatusFiles
from colabkeep.faces.panel.words import language
from colabkeep.platforms import find_platform
from colabkeep.platforms._front import front_end
from colabkeep.platforms.base import Platform
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import UsageError

__all__ = ["Progress", "check_progress", "displays"]

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
        from colabkeep.faces.panel.widgets import WidgetPanel

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

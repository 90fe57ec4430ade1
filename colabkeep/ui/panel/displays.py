"""The displays of a run, each an observer of its events: lines of text, one HTML output in a notebook (with widgets
above it for those who ask), and two files beside the checkpoints. `displays` chooses; where one fails, the next
simpler one takes its place.
"""

from __future__ import annotations

import json
import math
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias

from colabkeep.core import events
from colabkeep.core.arguments import run_folder
from colabkeep.core.errors import UsageError
from colabkeep.core.events import Durability, Event
from colabkeep.core.language import said
from colabkeep.core.system import Clock, Environment
from colabkeep.platforms import find_platform
from colabkeep.platforms.base import front_end
from colabkeep.stores.shared.files import write_note
from colabkeep.ui.drawing import details
from colabkeep.ui.messages import clause_as_sentence, sentence
from colabkeep.ui.panel.gauges import Gauges
from colabkeep.ui.panel.render import last_save, line, moving_line, pace, render, says
from colabkeep.ui.panel.state import Paced, PanelState
from colabkeep.ui.terminal import MovingLine
from colabkeep.ui.text import local_time, size_text, utc_time

Display: TypeAlias = Callable[[Event], None]
"""An observer of a run's events. It may have `steps_from`: the time from which it wants to hear of a step again."""

Progress: TypeAlias = bool | Literal["auto", "html", "widgets", "text", "off"]
"""True and "auto": what the front end can show best. False and "off": nothing."""

PAUSE = 1.0
"""Seconds between two updates. A page needs some 14 ms for each; a burst of 2,000 kept JupyterLab busy for half a
minute (JupyterLab 4.6.6, measured 2026-11)."""

_WORDS = ("auto", "html", "widgets", "text", "off")
_COLAB_PAUSE = 2.0  # seconds: its pages froze from bars that were drawn too often (Lightning #2517, #5514)


def displays(
    progress: Progress, clock: Clock, environment: Environment, stream: TextIO | None = None
) -> tuple[Display, ...]:
    """The observers that show a run; none for "off". `stream`: where lines of text go, instead of the standard output.

    Raises:
        UsageError: `progress` is no word of these.
    """
    word: object = {True: "auto", False: "off"}[progress] if isinstance(progress, bool) else progress
    if not isinstance(word, str) or word not in _WORDS:
        raise UsageError(
            problem=f"progress={progress!r} is unknown.",
            remedy='Use True (what this front end can show), "html", "widgets", "text", or False for nothing.',
        )
    if word == "off":
        return ()
    platform = find_platform(environment)
    start = partial(PanelState, platform=platform.title)
    pause = _COLAB_PAUSE if platform.name == "colab" else PAUSE
    moving = environment.environ.get("TERM") != "dumb"

    def text() -> Display:
        return Lines(clock, stream, state=start(), moving=moving)

    gauges = Gauges(environment)

    def panel(*, widgets: bool = False) -> Display:
        return NotebookPanel(clock, start(), gauges, pause=pause, widgets=widgets)

    status = StatusFiles(clock, start(), gauges)
    notebook = (("the panel", panel), ("lines of text", text))
    shown = word if word != "auto" else "html" if front_end(environment) == "notebook" else "text"
    if shown == "text":
        return (text(), status)
    if shown == "widgets":
        return (Fallbacks([("widgets", partial(panel, widgets=True)), *notebook]), status)
    batch = platform.name == "kaggle" and platform.kind(environment).partition(" ")[0] in ("batch", "rerun")
    if word == "auto" and batch:
        # Its log is all there is to see while it runs, and the page with the panel is all there is afterwards.
        return (panel(), text(), status)
    return (Fallbacks(notebook), status)


class Fallbacks:
    """The first of `displays` that works, made when it is needed; each comes with what people call it."""

    def __init__(self, displays: Sequence[tuple[str, Callable[[], Display]]]) -> None:
        self._left = list(displays)
        self._name, make = self._left.pop(0)
        self._display = make()
        self._started: events.RunStarted | None = None

    @property
    def steps_from(self) -> float:
        """When the display in use wants to hear of a step again."""
        return float(getattr(self._display, "steps_from", -math.inf))

    def __call__(self, event: Event) -> None:
        """Show an event.

        Raises:
            Exception: the simplest of the displays failed, too.
        """
        if isinstance(event, events.RunStarted):
            self._started = event
        while True:
            try:
                self._display(event)
            except Exception as error:
                if not self._left:
                    raise
                self._next(event, error)
            else:
                return

    def _next(self, event: Event, error: Exception) -> None:
        failed = self._name
        self._name, make = self._left.pop(0)
        self._display = make()
        why = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        try:
            self._display(events.Noted(text=f"{failed} cannot be shown here ({why}); {self._name} instead."))
            if self._started is not None and event is not self._started:
                self._display(self._started)
        except Exception:  # noqa: BLE001  # it will fail with the event itself, too, and then the next one is taken
            return


# -- lines of text -------------------------------------------------------------------------------------

_MORE = "\n            "  # goes on below "[colabkeep] "
_MOVING = 0.5  # seconds between two refreshes of the moving line; reading the loss may wait for the GPU
_MUCH = 1800.0  # seconds of training that may be lost before that is said again
_FIRST = 5.0  # seconds until the first progress line where lines stay (files, logs)
_PRINTED = 60.0  # seconds between the others: a day of training makes some 300 kB, with a line for each epoch
_EPOCHS = 10  # are told one by one
_EPOCHS_PAUSE = 5.0  # seconds between the others: a loop of one-step epochs ends thousands of them
# Of another program's folder.
_MUCH_WORK = 600.0  # as `_MUCH`
_VERSIONS = 5  # are told one by one
_VERSIONS_PAUSE = 600.0  # seconds between the others: a night of versions a minute apart is some 60 lines
_PATIENCE = 60.0  # seconds without a version until it is told what is waited for
_CLAUSES = (  # that are sentences there
    *(events.DeadlineNear, events.Restored, events.RunStarted, events.RunStopped, events.SaveFailing),
    events.SpaceShort,
)


class Lines:
    """Writes to `stream`: the standard output by default, the standard error where that one is closed, nowhere where
    there is neither. `moving`: may a line be written over, if the stream is a terminal?"""

    def __init__(
        self, clock: Clock, stream: TextIO | None = None, *, state: PanelState | None = None, moving: bool = True
    ) -> None:
        open_streams = (each for each in (stream, sys.stdout, sys.stderr) if each is not None and not each.closed)
        found = next(open_streams, None)
        self._clock = clock
        self._state = state or PanelState()
        self._out = None if found is None else MovingLine(found, moving=moving)
        moves = self._out is not None and self._out.moves
        self._pause = _MOVING if moves else _PRINTED
        self.steps_from = math.inf if found is None else clock.monotonic() + (_MOVING if moves else _FIRST)
        self._said_skipped = False
        self._said_copies: set[str] = set()  # the ways in which a state was copied that were told
        self._epochs = self._versions = 0  # told
        self._epochs_from = self._versions_from = -math.inf  # when the next one may be told
        self._waits_from: float | None = None  # when something was seen first that is not at rest
        self._said_lost: float | None = None  # seconds, when it was said last what would be lost
        self._lost = ""  # what was said of it

    def __call__(self, event: Event) -> None:
        """Show an event.

        Raises:
            OSError, ValueError: the stream cannot be written any more.
        """
        if self._out is None:
            return
        if type(event) is events.StepDone:
            now = self._clock.monotonic()
            if now >= self.steps_from:
                self._state.take(event, self._clock.time())
                self.steps_from = now + self._pause
                self._out.show(moving_line(self._state) if self._out.moves else line(self._state))
            return
        self._state.take(event, self._clock.time())
        told = said(self._sentence(event) or "")
        if told:
            time = f" {local_time(self._clock.time(), '%H:%M:%S')}" if self._state.folder else ""
            self._out.line(f"[colabkeep{time}] {told.replace(chr(10), _MORE)}")

    def _sentence(self, event: Event) -> str | None:
        """What is said of it; None for what would be said too often."""
        folder = self._state.folder
        match event:
            case events.SaveCommitted():
                return self._made(event) if folder else self._copied(event)
            case events.FolderSeen():
                return self._waiting(event)
            case events.DurabilityTold() if not self._matters(event.durability):
                return None
            case events.Restored() if self._state.complete is not None:
                return None  # it does not go on
            case events.EpochDone():
                ends = (sentence(event), pace(self._state))
                return " · ".join(filter(None, ends)) if self._tells_end(event) else None
            case events.SaveSkipped() if self._said_skipped:
                return None
            case events.SaveSkipped():
                self._said_skipped = True
        told = sentence(event, folder=folder)
        if folder and told and isinstance(event, _CLAUSES):
            return "\n".join(map(clause_as_sentence, told.splitlines()))
        return told

    def _copied(self, event: events.SaveCommitted) -> str | None:
        """What the save cost training, the first time that it went this way."""
        if event.copy in self._said_copies:
            return None
        self._said_copies.add(event.copy)
        return last_save(self._state)

    def _made(self, event: events.SaveCommitted) -> str | None:
        """A version: the first ones, those that somebody waits for, and of the others one now and then."""
        now, self._versions = self._clock.monotonic(), self._versions + 1
        wanted = event.reason in ("end", "asked", "deadline") or self._versions <= _VERSIONS
        if not wanted and now < self._versions_from:
            return None
        self._versions_from = now + _VERSIONS_PAUSE
        size, written = size_text(event.bytes), size_text(event.written)
        return f"Version {event.progress.step} is made: {size}, {written} of that new."

    def _waiting(self, event: events.FolderSeen) -> str | None:
        """Once, where a while has passed and no version could be made."""
        now = self._clock.monotonic()
        self._waits_from = now + _PATIENCE if self._waits_from is None else self._waits_from
        if self._versions or not event.waits or now < self._waits_from:
            return None
        self._versions += 1
        return f"No version could be made in this session yet: {event.waits}."

    def _matters(self, durability: Durability) -> bool:
        """Say what would be lost once something is safe, and again when it is much, each time it has doubled; of a
        folder, at the end too. Nothing is said twice."""
        lost, before, folder = durability.lost_seconds, self._said_lost, self._state.folder
        safe_at_last = before is None and durability.level is not None and (folder or lost > 0)
        much = lost >= max(_MUCH_WORK if folder else _MUCH, 2 * (before or 0.0))
        if not (safe_at_last or much or (folder and self._state.stopped is not None)):
            return False
        told, self._lost, self._said_lost = self._lost, durability.sentence, lost
        return told != self._lost

    def _tells_end(self, event: events.EpochDone) -> bool:
        """Say the end of this epoch: of the first ones and the last one, and of the others now and then."""
        now, self._epochs = self._clock.monotonic(), self._epochs + 1
        if self._epochs > _EPOCHS and now < self._epochs_from and event.epoch + 1 != self._state.max_epochs:
            return False
        self._epochs_from = now + _EPOCHS_PAUSE
        return True


# -- a notebook ----------------------------------------------------------------------------------------


class NoFrontEnd(RuntimeError):
    """There is no kernel whose front end could show HTML."""


class NotebookPanel:
    """Shows a run in one output of the cell that runs, which is replaced in place. `widgets`: the same in a box of
    widgets above it, and the output folded below.

    It goes by an identifier of its own, since `display(…, display_id=True)` gives None outside a kernel. Call it from
    the thread that runs the cell: ipykernel 7.0.0 and 7.0.1 raise LookupError elsewhere.
    """

    def __init__(
        self,
        clock: Clock,
        state: PanelState,
        gauges: Gauges | None = None,
        *,
        pause: float = PAUSE,
        widgets: bool = False,
    ) -> None:
        self._paced = Paced(clock, state, pause)
        self._gauges = gauges
        self._id = f"colabkeep-{secrets.token_hex(8)}"
        self._shown = False
        self._with_widgets = widgets
        self._widgets: _Widgets | None = None

    @property
    def steps_from(self) -> float:
        """When the next update is due."""
        return self._paced.steps_from

    def __call__(self, event: Event) -> None:
        """Take an event, and show the state if it is time.

        Raises:
            NoFrontEnd: this is no kernel.
            Exception: the front end cannot show it, or ipywidgets is not there.
        """
        if not self._paced.due(event):
            return
        state = self._paced.state
        if self._gauges is not None:
            state.usage = self._gauges.read()
        html = render(state, status=_status_page(state))
        if self._with_widgets:
            if self._widgets is None:
                self._widgets = _Widgets()
            self._widgets.show(html, state.share)
            html = details("The same panel, which stays readable when this notebook is opened again", html)
        shell = import_module("IPython").get_ipython()
        if shell is None or not hasattr(shell, "kernel"):
            raise NoFrontEnd("no notebook kernel runs this code")
        display = import_module("IPython.display").display
        bundle = {"text/html": html, "text/plain": line(state)}
        display(bundle, raw=True, display_id=self._id, update=self._shown)
        self._shown = True


def _status_page(state: PanelState) -> str:
    """Where `StatusFiles` keeps its page, from the folder of the notebook; "" where that is not above it."""
    if state.started.folder is None:
        return ""
    page = Path(state.started.folder).absolute() / f"{run_folder(state.started.run)}.status.html"
    return page.relative_to(Path.cwd()).as_posix() if page.is_relative_to(Path.cwd()) else ""


class _Widgets:
    """A bar and the panel in widgets of ipywidgets 7.7 to 8 (Colab has 7.7.1). They are dead when the notebook is
    opened without its kernel ("model not found"), and GitHub does not show a Colab notebook that holds some
    (googlecolab/colabtools #5255). No button: a click is not heard while a cell runs."""

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


# -- files beside the checkpoints ----------------------------------------------------------------------

_PAUSE = 30.0  # seconds between two writings


class StatusFiles:
    """Keeps ``<folder>.status.html`` and ``<folder>.status.json`` up to date, beside the run's folder on this machine's
    own disk. A mounted drive or a remote gets none: replacing a file is what those do not do reliably. Nothing reads
    them but people and their programs."""

    def __init__(self, clock: Clock, state: PanelState, gauges: Gauges | None = None) -> None:
        self._paced = Paced(clock, state, _PAUSE)
        self._gauges = gauges

    @property
    def steps_from(self) -> float:
        """When the next writing is due."""
        return self._paced.steps_from

    def __call__(self, event: Event) -> None:
        """Take an event, and write if it is time.

        Raises:
            StoreError: the files cannot be written.
        """
        state = self._paced.state
        due, folder = self._paced.due(event), state.started.folder
        if not due or folder is None:
            return
        if self._gauges is not None:
            state.usage = self._gauges.read()
        name = run_folder(state.started.run)
        write_note(folder, f"{name}.status.json", json.dumps(record(state), indent=1).encode())
        write_note(folder, f"{name}.status.html", _page(state).encode(errors="replace"))


def record(state: PanelState) -> dict[str, Any]:
    """The state for programs, in words that do not change with the language, and texts in the reader's; None is what is
    not known."""
    left, started, place = state.session_left, state.started, state.place
    return {
        "as_of": utc_time(state.now, "%Y-%m-%dT%H:%M:%SZ"),
        "run": started.run,
        "session": started.session,
        "state": state.phase,
        "text": said(says(state)),
        "session_seconds_left": {"at_most": _number(left), "source": said(started.ends_source)},
        "storage": started.storage if place is None else place.url,
        "platform": state.platform,
        **(_of_folder(state) if state.folder else _of_training(state)),
    }


def _of_training(state: PanelState) -> dict[str, Any]:
    own, started = state.newest_own, state.started
    return {
        "step": state.progress.step,
        "steps_in_all": state.total_steps,
        "epoch": state.progress.epoch,
        "share": _number(state.share),
        "loss": _number(state.loss),
        "learning_rate": _number(state.learning_rate),
        "gradient_norm": _number(state.grad_norm),
        "metrics": {name: _number(value) for name, value in state.metrics.items()},
        "best_epoch": None if state.best_epoch is None else state.best_epoch.epoch,
        "steps_per_second": _number(state.steps_per_second),
        "samples_per_second": _number(state.samples_per_second),
        "tokens_per_second": _number(state.tokens_per_second),
        "reading_share": _number(state.reading),
        "gpus": [asdict(card) for card in state.usage.cards],
        "memory": None if state.usage.memory is None else dict(zip(("used", "total"), state.usage.memory, strict=True)),
        "seconds_left": _number(state.seconds_left),
        "safe_step": state.safe_step,
        "would_lose": {"steps": state.lost_steps, "seconds": _number(state.lost_seconds)},
        "not_finite_since": state.nan_since,
        "exactness": {
            "word": started.exactness,
            "text": said(started.promise),
            "reasons": [said(reason) for reason in started.reasons],
        },
        "cadence": "" if state.cadence is None else said(state.cadence.sentence()),
        "last_save": None if own is None else {"stopped_training_seconds": _number(own.stall), "copy": said(own.copy)},
        "accelerators": list(state.machine.accelerators),
        "checkpoints": _checkpoints(state, "step"),
    }


def _of_folder(state: PanelState) -> dict[str, Any]:
    seen = state.seen
    return {
        "folder": state.started.keeps,
        "safe_version": state.safe_step,
        "would_lose": state.lost,
        "changed": None if seen is None else seen.changed,
        "waits": None if seen is None else said(seen.waits),
        "versions": _checkpoints(state, "version"),
    }


def _checkpoints(state: PanelState, number: str) -> list[dict[str, Any]]:
    return [
        {"id": saved.checkpoint, number: saved.step, "bytes": saved.bytes, "level": saved.level}
        for saved in state.saves
        if not saved.gone
    ]


def _page(state: PanelState) -> str:
    # The panel alone: a page that is opened has been read from the disk once, so its mark would say nothing.
    return (
        '<!DOCTYPE html><html><head><meta charset="utf-8"><meta http-equiv="refresh" content="30">'
        f"<title>{escape(state.started.run)}</title></head><body>{render(state)}</body></html>\n"
    )


def _number(value: float | None) -> float | None:
    """A number that strict JSON has; None for what is not finite."""
    return None if value is None or value - value != 0 else round(value, 6)

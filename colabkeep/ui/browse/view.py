"""The browser with buttons, on ipywidgets 7.7 to 8. It only shows what `model` says and calls what `model` can do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from colabkeep.core.errors import ColabKeepError
from colabkeep.core.system import Clock, Environment, SystemClock
from colabkeep.platforms.base import front_end
from colabkeep.ui.browse import pages
from colabkeep.ui.browse.model import Browser, DryRun, Outcome, RunShown, Watch
from colabkeep.ui.browse.storage_guide import Walk
from colabkeep.ui.drawing import Markup

__all__ = [
    "View",
    "deletion_form",
    "export_form",
    "prune_form",
    "show",
    "walk_form",
]

# Each function returns the widgets of one form, for `View.show`. Nothing is deleted without a dry run on the screen.


_MODES = (("less of it is better", "min"), ("more of it is better", "max"))


def export_form(view: View, run: RunShown) -> tuple[Any, ...]:
    """Which checkpoint, which part of it, and the folder."""
    widgets = view.widgets
    newest = [("the newest", ("latest", "", "min"))]
    best = [(f"the best: {words} ({name})", ("best", name, mode)) for name in run.metrics for words, mode in _MODES]
    each = [(shown.info.id, (shown.info.id, "", "min")) for shown in run.checkpoints]
    which = widgets.Dropdown(options=[*newest, *best, *each], description="Checkpoint")
    part = widgets.Text(value="model", description="Part")
    folder = widgets.Text(placeholder="the folder to write to", description="Folder")
    replace = widgets.Checkbox(description="Replace a file that is there", indent=False)

    def export() -> None:
        chosen, metric, mode = which.value
        words = {"which": chosen, "part": part.value, "best": (metric, mode), "replace": replace.value}
        view.do(lambda watch: view.browser.export(run.name, folder.value, **words, watch=watch))

    return (which, part, folder, replace, view.button("Export to this folder", export, button_style="primary"))


def prune_form(view: View, run: RunShown) -> tuple[Any, ...]:
    """What to keep; then what would go, and only then the button that deletes."""
    widgets = view.widgets
    last = widgets.BoundedIntText(value=2, min=1, max=10**6, description="Keep newest")
    best = widgets.BoundedIntText(value=1, min=0, max=10**6, description="Keep best")
    monitor = widgets.Dropdown(options=run.metrics or ("val_loss",), description="Best by")
    mode = widgets.Dropdown(options=_MODES, description="where")
    apart = widgets.Checkbox(description="Also those that are not on the newest one's line (apart)", indent=False)
    below = widgets.VBox()

    def look() -> None:
        words = {"monitor": monitor.value, "mode": mode.value, "apart": apart.value}
        dry_run = view.do(lambda _: view.browser.prune(run.name, keep_last=last.value, keep_best=best.value, **words))
        below.children = () if dry_run is None else deletion_form(view, dry_run)

    def changed(_: object) -> None:
        below.children = ()  # what is shown there was said of other words

    for field in (last, best, monitor, mode, apart):
        field.observe(changed, names="value")
    if "val_loss" in run.metrics:
        monitor.value = "val_loss"
    return (last, best, monitor, mode, apart, view.button("Show what would go", look), below)


def deletion_form(view: View, dry_run: DryRun) -> tuple[Any, ...]:
    """What would go, and the button that does it: dead until the name is typed, where a whole run would go."""
    shown = view.html(pages.said(dry_run.lines, good=dry_run.word is None))
    if dry_run.empty:
        return (shown,)
    typed = view.widgets.Text(placeholder="type the run's name", description="Run's name")
    go = view.button("Delete for good", lambda: view.delete(dry_run, typed.value), button_style="danger")
    if dry_run.word is None:
        return (shown, go)
    go.disabled = True

    def check(_: object) -> None:
        go.disabled = typed.value != dry_run.word

    typed.observe(check, names="value")
    return (shown, typed, go)


def walk_form(view: View, walk: Walk) -> tuple[Any, ...]:
    """The steps below each other, with a button where the browser can do one itself."""
    children = [view.html(pages.untold(walk))]
    for number, step in enumerate(walk.steps, 1):
        children.append(view.html(pages.shown_step(number, step)))
        if step.mounts:
            children.append(view.button("Mount it now", view.mount, button_style="primary"))
    return tuple(children)


# Callbacks run on the main thread, one after the other, and not while a cell runs: a click made meanwhile waits.
# Nothing is done in a background thread, for Colab does not paint what one changes (googlecolab/colabtools, issue
# 3373). Only `HTML` widgets interpret markup, so all that they get comes from `pages`; descriptions are fixed words,
# which 7.7 interprets too.


_PAUSE = 0.25  # seconds between two pictures of a work that goes on
_ROWS = 6  # of the list of runs


class View:
    """The widgets of one browser; `box` is what is displayed. `widgets` is the module `ipywidgets`."""

    def __init__(self, browser: Browser, widgets: Any, clock: Clock) -> None:
        self.browser = browser
        self.widgets = widgets
        self._clock = clock
        self._painted = -_PAUSE
        self._where_shown = ""
        self.storage = widgets.HTML()
        self.where = widgets.Text(placeholder="auto, a folder, a URL such as drive://colabkeep", description="Storage")
        self.runs = widgets.Select(rows=_ROWS, description="Run")
        self.run = widgets.HTML()
        self.status = widgets.HTML()
        self.form = widgets.VBox()
        self.buttons = {
            "Open": self.button("Open", self._open),
            "Look again": self.button("Look again", self._look_again),
            "Sign in and mount": self.button("Sign in and mount", self.walk),
            "Report": self.button("Report", self._of_run(self._report)),
            "Verify": self.button("Verify", self._of_run(self._verify)),
            "Export": self.button("Export", self._of_run(self._export)),
            "Delete old checkpoints": self.button("Delete old checkpoints", self._of_run(self._prune)),
            "Delete the run": self.button("Delete the run", self._of_run(self._delete)),
        }
        buttons = list(self.buttons.values())
        row = {"layout": widgets.Layout(flex_flow="row wrap")}
        self.box = widgets.VBox(
            [
                self.storage,
                widgets.HBox([self.where, *buttons[:3]], **row),
                self.runs,
                self.run,
                widgets.HBox(buttons[3:], **row),
                self.form,
                self.status,
            ]
        )
        self.box.add_class("colabkeep-browser")
        self.runs.observe(self._chosen, names="value")
        self.paint()

    # -- for the forms -----------------------------------------------------------------------------

    def button(self, words: str, act: Callable[[], None], **options: Any) -> Any:
        """A button that calls `act`."""
        button = self.widgets.Button(description=words, layout=self.widgets.Layout(width="auto"), **options)
        button.on_click(lambda _: act())
        return button

    def html(self, content: Markup) -> Any:
        """A piece of HTML."""
        return self.widgets.HTML(value=content)

    def show(self, *children: Any) -> None:
        """Show these below the run, instead of what was there."""
        self.form.children = children

    def do(self, action: Callable[[Watch], Any]) -> Any:
        """Do it, showing how far it is; its result, or None where it failed, which is shown with the remedy."""
        self._enable(False)
        self._painted = self._clock.monotonic() - _PAUSE
        try:
            result = action(self._watch)
        except ColabKeepError as error:
            self.status.value = pages.failed(error.problem, error.remedy)
        except KeyboardInterrupt:
            self.status.value = pages.failed("Stopped by you.", "What was done is done; begin again where you like.")
        except Exception as error:  # noqa: BLE001  # a traceback would be lost in a log that nobody opens
            told = f"It failed in a way that was not foreseen: {type(error).__name__}: {error}"
            self.status.value = pages.failed(told, "Restart the kernel, and try it once more; then report it, please.")
        else:
            self.status.value = pages.said(result.lines, good=result.good) if isinstance(result, Outcome) else ""
            return result
        finally:
            self._enable(True)
        return None

    def delete(self, dry_run: DryRun, typed: str) -> None:
        """Do what a dry run said, and look again."""
        outcome = self.do(lambda watch: dry_run.go(typed, watch))
        if outcome is not None:
            told = self.status.value
            self.show()
            self._refresh()
            self.status.value = told

    def mount(self) -> None:
        """Make the platform's storage ready."""
        if self.do(self.browser.mount) is not None:
            self.show()
            self.paint()

    def walk(self) -> None:
        """Show the way to a storage that lasts."""
        walk = self.do(lambda _: self.browser.walk())
        if walk is not None:
            self.show(*walk_form(self, walk))

    # -- looks -------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Show the listing as it is now; the same run stays chosen. Where nothing can be listed, the way to a place."""
        listing, before = self.browser.listing, self.runs.value
        self.storage.value = pages.shown_storage(listing)
        self._where_shown = self.where.value = self._where()
        names = [run.name for run in listing.runs]
        self.runs.options = names
        self.runs.value = before if before in names else next(iter(names), None)
        self._chosen()
        if listing.trouble is not None:
            self.walk()

    def _where(self) -> str:
        storage = self.browser.storage
        if isinstance(storage, str | os.PathLike):
            return os.fspath(storage)
        shown = self.browser.listing.storage
        return self._where_shown if shown is None else shown.url

    def _chosen(self, _: object = None) -> None:
        run = self._selected()
        self.run.value = "" if run is None else pages.shown_run(run)
        self.show()
        self._enable(True)

    def _selected(self) -> RunShown | None:
        return self.browser.listing.run(self.runs.value)

    def _enable(self, enabled: bool) -> None:
        for number, button in enumerate(self.buttons.values()):
            button.disabled = not enabled or (number >= 3 and self._selected() is None)

    def _watch(self, text: str, share: float | None) -> None:
        now = self._clock.monotonic()
        if now - self._painted >= _PAUSE:
            self._painted = now
            self.status.value = pages.busy(text, share)

    # -- what the buttons do -----------------------------------------------------------------------

    def _of_run(self, act: Callable[[RunShown], None]) -> Callable[[], None]:
        def chosen() -> None:
            run = self._selected()
            if run is not None:
                act(run)

        return chosen

    def _open(self) -> None:
        where = self.where.value.strip() or "auto"
        if where == self._where_shown:
            self._look_again()
        else:
            self.do(lambda watch: self.browser.open(where, watch))
            self.paint()

    def _look_again(self) -> None:
        self.status.value = ""
        self._refresh()

    def _refresh(self) -> None:
        self.do(self.browser.refresh)
        self.paint()

    def _report(self, run: RunShown) -> None:
        html = self.do(lambda _: self.browser.report(run.name)._repr_html_())
        if html is not None:
            self.show(self.html(pages.untouched(Markup(html))))

    def _verify(self, run: RunShown) -> None:
        self.show()
        self.do(lambda watch: self.browser.verify(run.name, watch))

    def _export(self, run: RunShown) -> None:
        self.show(*export_form(self, run))

    def _prune(self, run: RunShown) -> None:
        self.show(*prune_form(self, run))

    def _delete(self, run: RunShown) -> None:
        dry_run = self.do(lambda _: self.browser.delete(run.name))
        if dry_run is not None:
            self.show(*deletion_form(self, dry_run))


_WIDGET = "application/vnd.jupyter.widget-view+json"


def show(browser: Browser) -> None:
    """Display it. Where the buttons cannot be had, one line says why, and the text follows."""
    if front_end(Environment.here()) != "notebook":
        sys.stdout.write(f"{browser!r}\n")
        return
    display = import_module("IPython.display").display
    bundle: dict[str, Any] = {"text/html": pages.listed(browser.listing), "text/plain": repr(browser)}
    try:
        # Not by displaying the widget itself: its text would be the constructor's, and is all that a viewer without a
        # kernel can show.
        bundle[_WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": _box(browser).model_id}
    except Exception as error:  # noqa: BLE001  # whatever a package of widgets dies of, there is still the text
        why = "ipywidgets is not installed" if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        text = f"No buttons here ({why}). What they would do can be typed:\n\n{browser!r}"
        bundle = {"text/plain": text}
    display(bundle, raw=True)


def _box(browser: Browser) -> Any:
    widgets = import_module("ipywidgets")
    return View(browser, widgets, SystemClock()).box

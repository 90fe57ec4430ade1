"""The run browser: the runs of a storage with their checkpoints, on one page, to be verified and deleted.

With ipywidgets (7.7 to 8) the page has buttons; elsewhere it is text with the lines to type: each
button is a method.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from typing import Any, TypeAlias

from colabkeep.checkpoint.inspect import find_run, run_names
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.arguments import public
from colabkeep.core.errors import ColabKeepError, UsageError
from colabkeep.core.language import said
from colabkeep.core.system import Clock, Environment, SystemClock
from colabkeep.platforms.base import front_end
from colabkeep.session.open import find_store
from colabkeep.session.prune import DeletionPlan, delete_run, plan_deletion
from colabkeep.stores import Storage
from colabkeep.stores.base import Store, to_type
from colabkeep.ui import drawing as draw
from colabkeep.ui import records, text
from colabkeep.ui.drawing import BLUE, GREEN, GREY, RED, Colour, Markup
from colabkeep.ui.report import RunReport, report
from colabkeep.ui.text import Record, aligned, checkpoint_table, of_folder, plain, size_text

Watch: TypeAlias = Callable[[str, "float | None"], None]
"""Called as work goes on: a sentence, and the share that is done (None where its length is not known)."""

_SURVIVES = {
    True: "survives this machine",
    False: "is lost with this machine",
    None: "may or may not survive this machine: that cannot be told from here",
}
_LONG = 2000  # characters of a sentence for people


def _unwatched(text: str, share: float | None) -> None:
    """Nobody looks."""


@public()
def browse(storage: Storage = "auto") -> Browser:
    """Look around in a storage: where it is, how safe, its runs and their checkpoints.

    As the last line of a cell it is a page with buttons: a run's report, its verification, and its deletion, which
    shows first what would be deleted. Elsewhere, and without ipywidgets, it is text with the lines to type: each button
    is a method. Looking changes nothing.

    Args:
        storage: where to look, as in `resumable_fit`; "auto" is this platform's own place.

    Returns:
        Browser: an error of the storage is shown by it, with the remedy, and not raised here.
    """
    return Browser(storage)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer:
    """What an action found or did, in `lines`; `good`: nothing is wrong."""

    lines: tuple[str, ...]
    good: bool = True

    def __repr__(self) -> str:
        return "\n".join(plain(said(line), limit=_LONG) for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Deletion:
    """What would be deleted, in `lines`. Nothing is deleted until `go` is called with the name of the run."""

    plan: DeletionPlan
    browser: Browser

    @property
    def lines(self) -> tuple[str, ...]:
        """What would be deleted, for people."""
        return tuple(_going(self.plan, "would be deleted"))

    def go(self, typed: str = "", watch: Watch = _unwatched) -> Answer:
        """Delete what `lines` say, and nothing else.

        Raises:
            UsageError: `typed` is not the name of the run.
            RunBusy: the run is being trained.
            CheckpointError: the run has changed since; nothing was deleted.
            StoreError: the storage failed; what was not deleted stays for the next time.
        """
        plan, browser, done = self.plan, self.browser, count(1)
        if typed != plan.run:
            raise UsageError(
                problem=f"To delete a run, type its name; {typed!r:.80} is not its name. Nothing was deleted.",
                remedy=f"Type it exactly: {plan.run}",
            )

        def gone(_: str, __: int) -> None:
            number = next(done)
            watch(f"Deleting {plan.run}: {number} of {len(plan.files)} files", min(1.0, number / len(plan.files)))

        lines = _going(plan, "are deleted")
        if not delete_run(browser.store(), plan, SystemClock(), gone):
            return Answer(lines=(*lines, "The remote storage has not done it yet: look again later."))
        browser.close()  # what a store only hides is seen again when it is opened anew
        if plan.run not in run_names(browser.store()):
            return Answer(lines=tuple(lines))
        stays = (
            "A part of it lies where nothing can be deleted from here, such as the output of an earlier session that "
            "is attached to this notebook: remove it there."
        )
        return Answer(lines=(*lines, stays))

    def __repr__(self) -> str:
        last = f"Nothing is deleted yet. To do it, call .go({self.plan.run!r}) on this."
        return "\n".join(plain(said(line), limit=_LONG) for line in (*self.lines, last))


class Browser:
    """What a storage holds, and what can be done with it: a page with buttons in a notebook, else text.

    `about` says where the storage is and how safe; `runs` are records with the "name",
    the "checkpoints" as in `colabkeep show --json`, the "sentence" that says what would be lost, and the "error" that
    kept it from being read. `trouble`: why the storage cannot be opened, else None. All are as of the last `refresh`.
    """

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.about: tuple[str, ...] = ()
        self.runs: tuple[Record, ...] = ()
        self.trouble: ColabKeepError | None = None
        self._store: Store | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read the storage again."""
        self.about, self.runs, self.trouble = (), (), None
        try:
            store = self.store()
            self.about = tuple(_about(store))
            self.runs = tuple(_run(store, name) for name in run_names(store))
        except ColabKeepError as error:
            self.trouble = error

    def close(self) -> None:
        """Close a storage that was opened by its name. It is opened again when it is needed."""
        store, self._store = self._store, None
        if store is not None and store is not self.storage:
            store.close()

    def report(self, run: str) -> RunReport:
        """The history of a run, as `colabkeep.report` tells it.

        Raises:
            CheckpointNotFound: there is no such run.
        """
        return report(run, storage=self.store())

    def verify(self, run: str, watch: Watch = _unwatched) -> Answer:
        """Read every file of a run again and compare it with what was written. Changes nothing.

        Raises:
            CheckpointNotFound: there is no such run.
            StoreError: the run cannot be listed.
        """
        repository = find_run(self.store(), run)
        total = sum(entry.size for entry in repository.store.list(repository.folder))

        def seen(name: str, files: int, size: int) -> None:
            watch(f"Reading {name}: {files} files, {size_text(size)}", min(1.0, size / max(1, total)))

        record = records.verify_record(repository.store, [repository.run], seen)
        return Answer(lines=tuple(text.verify_lines(record)), good=all(each["ok"] for each in record["runs"]))

    def delete(self, run: str) -> Deletion:
        """What would be deleted with the whole run; `go`, with its name, does it. For old checkpoints alone there is
        `colabkeep prune`.

        Raises:
            CheckpointNotFound: there is no such run.
            StoreError: the storage cannot be asked.
        """
        return Deletion(plan=plan_deletion(find_run(self.store(), run)), browser=self)

    def store(self) -> Store:
        """The storage, opened when it is first needed."""
        if self._store is None:
            self._store = find_store(self.storage)
        return self._store

    def __repr__(self) -> str:
        return "\n".join(plain(said(line), limit=_LONG) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield from self.about
        if self.trouble is not None:
            yield from (self.trouble.problem, f"→ {self.trouble.remedy}")
            return
        if not self.runs:
            yield "There are no runs here. Is that the right place?"
            return
        for run in self.runs:
            yield from ("", run["name"])
            head, rows, right = _table(run)
            yield from aligned([head, *rows], right=right) if rows else ["  no checkpoint yet"]
            yield from (f"  {line}" for line in _said(run))
        name, curve = self.runs[0]["name"], "" if of_folder(self.runs[0]["checkpoints"]) else ", the loss curve"
        yield from ("", "What you can type", f"  browser = colabkeep.browse({to_type(self.storage)})")
        for act, what in (
            ("report", f"its history: sessions, saves{curve}"),
            ("verify", "read every file again"),
            ("delete", "what would be deleted; nothing is yet"),
        ):
            yield f"  browser.{act}({name!r})  # {what}"

    def _ipython_display_(self) -> None:
        """Show the page; where the buttons cannot be had, one line says why, and the text follows."""
        if front_end(Environment.here()) != "notebook":
            sys.stdout.write(f"{self!r}\n")
            return
        bundle: dict[str, Any] = {"text/html": _listing(self), "text/plain": repr(self)}
        try:
            # Not by displaying the widget itself: its text would be the constructor's, and is all that a viewer
            # without a kernel can show.
            model_id = Page(self, import_module("ipywidgets"), SystemClock()).box.model_id
            bundle[_WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": model_id}
        except Exception as error:  # noqa: BLE001  # whatever a package of widgets dies of, there is still the text
            missing = isinstance(error, ImportError)
            why = "ipywidgets is not installed" if missing else f"{type(error).__name__}: {error}"
            bundle = {"text/plain": said(f"No buttons here ({why}). You can type instead:\n\n{self!r}")}
        import_module("IPython.display").display(bundle, raw=True)


_WIDGET = "application/vnd.jupyter.widget-view+json"


def _run(store: Store, name: str) -> Record:
    try:
        return records.overview(Repository(store, name)) | {"error": None}
    except ColabKeepError as error:
        return {"name": name, "checkpoints": [], "sentence": "", "error": error}


def _about(store: Store) -> Iterator[str]:
    """Where it is, how much room is left, who is signed in, and what is wrong with it."""
    properties = store.properties
    yield f"{store.url} {_SURVIVES[properties.persists]}"
    remote = properties.behind
    account = properties.account if remote is None else remote.account
    if account is not None:
        yield f"signed in as {account}"
    if properties.free_bytes is not None:
        yield f"{size_text(properties.free_bytes)} free" + (" on this machine" if remote is not None else "")
    if remote is not None:
        if remote.free_bytes is not None:
            yield f"{size_text(remote.free_bytes)} free in {remote.url}"
        if remote.waiting_bytes:
            yield f"{size_text(remote.waiting_bytes)} are still being uploaded to {remote.url}"
        if remote.full:
            yield f"{remote.url} is FULL: make room there"
    if store.degraded is not None:
        yield store.degraded


def _table(run: Record) -> tuple[tuple[str, ...], list[tuple[str, ...]], tuple[int, ...]]:
    head, rows, right = checkpoint_table(run["checkpoints"])
    levels = (each["level"] or "" for each in run["checkpoints"])
    return (*head, "durability"), [(*row, level) for row, level in zip(rows, levels, strict=True)], right


def _said(run: Record) -> tuple[str, ...]:
    """What would be lost of a run; or why it cannot be read, and what to do."""
    error = run["error"]
    return (run["sentence"],) if error is None else (error.problem, f"→ {error.remedy}")


def _going(plan: DeletionPlan, would: str) -> Iterator[str]:
    number, free = len(plan.checkpoints), size_text(plan.bytes)
    yield f"{plan.run}: the whole run with {number} checkpoint(s), {free} in {len(plan.files)} file(s), {would}"
    if plan.others:
        yield f"  {len(plan.others)} file(s) below its folder are not the run's, and stay: {', '.join(plan.others[:3])}"


# -- the page ------------------------------------------------------------------------------------------
#
# Callbacks run on the main thread, one after the other, and not while a cell runs: a click made meanwhile waits.
# Nothing is done in a background thread, for Colab does not paint what one changes (googlecolab/colabtools #3373).
# Only `HTML` widgets interpret markup, so all that they get is made by `_box`; descriptions are fixed words.

_PAUSE = 0.25  # seconds between two pictures of a work that goes on


def _box(*lines: object, colour: Colour = GREY) -> Markup:
    """A frame of lines. The HTML widget typesets mathematics, and TeX knows links that run scripts: the classes are
    those by which MathJax 2 and 3 leave it alone."""
    shown = (line if isinstance(line, Markup) else draw.paragraph(draw.escape(line, _LONG)) for line in lines)
    return Markup(f'<div class="tex2jax_ignore mathjax_ignore">{draw.frame(draw.join(*shown), colour)}</div>')


def _storage_box(browser: Browser) -> Markup:
    if browser.trouble is not None:
        return _box(*browser.about, browser.trouble.problem, f"→ {browser.trouble.remedy}", colour=RED)
    none = () if browser.runs else ("There are no runs here. Is that the right place?",)
    return _box(*browser.about, *none, colour=BLUE)


def _run_box(run: Record) -> Markup:
    head, rows, right = _table(run)
    found = (
        draw.table(run["name"], head, rows, right=right)
        if rows
        else draw.paragraph(f"{run['name']}: no checkpoint yet")
    )
    return _box(found, *_said(run), colour=GREY if run["error"] is None else RED)


def _listing(browser: Browser) -> Markup:
    """All of it, for a viewer without a kernel."""
    return draw.join(_storage_box(browser), *map(_run_box, browser.runs))


class Page:
    """The widgets of one browser; `box` is what is displayed. `widgets` is the module `ipywidgets`."""

    def __init__(self, browser: Browser, widgets: Any, clock: Clock) -> None:
        self.browser = browser
        self._widgets, self._clock, self._painted = widgets, clock, -_PAUSE
        self.storage, self.run, self.status = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.runs = widgets.Select(rows=6, description=said("Run"))
        self.below = widgets.VBox()
        self.buttons = [
            self._button("Look again", self._look_again),
            self._button("Report", self._report),
            self._button("Verify", self._verify),
            self._button("Delete", self._delete),
        ]
        row = widgets.HBox(self.buttons, layout=widgets.Layout(flex_flow="row wrap"))
        self.box = widgets.VBox([self.storage, self.runs, self.run, row, self.below, self.status])
        self.box.add_class("colabkeep-browser")
        self.runs.observe(self._chosen, names="value")
        self._paint()

    def _button(self, words: str, act: Callable[[], None], **options: Any) -> Any:
        button = self._widgets.Button(description=said(words), layout=self._widgets.Layout(width="auto"), **options)
        button.on_click(lambda _: act())
        return button

    def _do(self, action: Callable[[], Any]) -> Any:
        """What it gives; None where it failed, which is shown with what to do."""
        self._enable(False)
        self._painted = self._clock.monotonic() - _PAUSE
        try:
            result = action()
        except ColabKeepError as error:
            self.status.value = _box(error.problem, f"→ {error.remedy}", colour=RED)
        except KeyboardInterrupt:
            self.status.value = _box("Stopped by you. What was done is done.", colour=RED)
        except Exception as error:  # noqa: BLE001  # a traceback would be lost in a log that nobody opens
            why = f"An unexpected error: {type(error).__name__}: {error}"
            self.status.value = _box(why, "→ Restart the kernel and try again; then report it, please.", colour=RED)
        else:
            good = result.good if isinstance(result, Answer) else True
            lines = result.lines if isinstance(result, Answer) else ()
            self.status.value = _box(*lines, colour=GREEN if good else RED) if lines else ""
            return result
        finally:
            self._enable(True)
        return None

    def _watch(self, text: str, share: float | None) -> None:
        now = self._clock.monotonic()
        if now - self._painted >= _PAUSE:
            self._painted = now
            self.status.value = _box(
                draw.join("" if share is None else draw.bar(share), draw.escape(text, _LONG)), colour=BLUE
            )

    def _paint(self) -> None:
        """Show what was found; the same run stays chosen."""
        before, names = self.runs.value, [run["name"] for run in self.browser.runs]
        self.storage.value = _storage_box(self.browser)
        self.runs.options = names
        self.runs.value = before if before in names else next(iter(names), None)
        self._chosen()

    def _chosen(self, _: object = None) -> None:
        run = next((run for run in self.browser.runs if run["name"] == self.runs.value), None)
        self.run.value = "" if run is None else _run_box(run)
        self.below.children = ()
        self._enable(True)

    def _enable(self, enabled: bool) -> None:
        for number, button in enumerate(self.buttons):
            button.disabled = not enabled or (number > 0 and self.runs.value is None)

    def _look_again(self) -> None:
        self._do(self.browser.refresh)
        self._paint()

    def _report(self) -> None:
        shown = self._do(lambda: self.browser.report(self.runs.value)._repr_html_())
        if shown is not None:
            self.below.children = (self._widgets.HTML(value=_box(Markup(shown))),)

    def _verify(self) -> None:
        self.below.children = ()
        self._do(lambda: self.browser.verify(self.runs.value, self._watch))

    def _delete(self) -> None:
        """Show what would be deleted, with a button that is dead until the run's name is typed."""
        deletion = self._do(lambda: self.browser.delete(self.runs.value))
        if deletion is None:
            return
        typed = self._widgets.Text(placeholder=said("type the run's name"), description=said("Run's name"))

        def delete() -> None:
            if self._do(lambda: deletion.go(typed.value, self._watch)) is not None:
                told = self.status.value
                self._look_again()
                self.status.value = told

        go = self._button("Delete for good", delete, button_style="danger", disabled=True)
        typed.observe(lambda _: setattr(go, "disabled", typed.value != deletion.plan.run), names="value")
        self.below.children = (self._widgets.HTML(value=_box(*deletion.lines, colour=RED)), typed, go)

"""What some buttons of the browser ask first: which checkpoint and where to, what to keep, and the run's name.

Each function returns the widgets of one form, for `View.show`. Nothing is deleted without a dry run on the screen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from colabkeep.faces.browser import pages
from colabkeep.faces.browser.listing import RunShown
from colabkeep.faces.browser.outcome import DryRun
from colabkeep.faces.browser.walk import Walk

if TYPE_CHECKING:
    from colabkeep.faces.browser.view import View

__all__ = ["deletion_form", "export_form", "prune_form", "walk_form"]

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

"""Shows the browser as well as the front end can: with buttons in a kernel that has ipywidgets, else as text."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from colabkeep.faces.browser import pages
from colabkeep.faces.browser.model import Browser
from colabkeep.platforms._front import front_end
from colabkeep.session.clock import SystemClock
from colabkeep.vocabulary.environment import Environment

__all__ = ["show"]

_WIDGET = "application/vnd.jupyter.widget-view+json"


def show(browser: Browser, environment: Environment) -> None:
    """Display it. Where the buttons cannot be had, one line says why, and the text follows."""
    if front_end(environment) != "notebook":
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
    return import_module("colabkeep.faces.browser.view").View(browser, widgets, SystemClock()).box

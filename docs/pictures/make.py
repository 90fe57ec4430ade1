"""Make the pictures of the panel: `python docs/pictures/make.py`, from the states that the tests tell of.

Needs Chromium (or Chrome) on the path; without it nothing is made, and that is said. `page` and `panels` need none.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from colabkeep.faces.panel.html import render

HERE = Path(__file__).resolve().parent
STORIES = HERE.parents[1] / "tests" / "panel" / "conftest.py"
SIZE = "680,560"  # pixels: the panel's 640 and a margin, and as high as it ever is
BACKGROUNDS = {"light": "#ffffff", "dark": "#111111"}


def panels() -> Mapping[str, str]:
    """State → its panel as HTML."""
    spec = importlib.util.spec_from_file_location("stories_of_the_panel", STORIES)
    stories = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = stories  # dataclasses look their module up
    spec.loader.exec_module(stories)
    return {phase: render(stories.in_phase(phase).state) for phase in stories.PHASES}


def page(panel: str, background: str) -> str:
    """A page that shows a panel alone, as a notebook with that background does."""
    return f'<!doctype html><meta charset="utf-8"><body style="margin:20px;background:{background}">{panel}'


def main() -> int:
    """Make them all; 0 also where there is no browser."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print("There is no Chromium here: the pictures stay as they are.", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for phase, panel in panels().items():
            for theme, background in BACKGROUNDS.items():
                file = Path(folder) / "panel.html"
                file.write_text(page(panel, background), encoding="utf-8")
                picture = HERE / f"{phase}-{theme}.png"
                options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}")
                command = [browser, *options, f"--screenshot={picture}", file.as_uri()]
                subprocess.run(command, check=True, capture_output=True, timeout=60)
                print(picture.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

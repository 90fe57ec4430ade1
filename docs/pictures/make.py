"""Make the pictures of the panel: `python docs/pictures/make.py`, from the states that the tests tell of.

Needs what `pip install ".[test]"` brings, and Chromium (or Chrome) on the path; without it nothing is made, and that is
said. `page` and `panels` need neither.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from colabkeep.ui.panel.render import render

HERE = Path(__file__).resolve().parent
STORIES = HERE.parents[1] / "tests" / "panel" / "conftest.py"
COLOURS = 64  # of a picture: it is small then, and no letter is blurred


def panels() -> Mapping[str, str]:
    """State → its panel as HTML."""
    spec = importlib.util.spec_from_file_location("stories_of_the_panel", STORIES)
    stories = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = stories  # dataclasses look their module up
    spec.loader.exec_module(stories)
    return {phase: render(stories.in_phase(phase, run="resnet-cifar").state) for phase in stories.PHASES}


def page(panel: str, background: str) -> str:
    """A page that shows a panel alone, as a notebook with that background does."""
    return f'<!doctype html><meta charset="utf-8"><body style="margin:0;background:{background}">{panel}'


def keep(picture: bytes, file: Path) -> None:
    """Write a picture, in few colours."""
    from PIL import Image

    with Image.open(BytesIO(picture)) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


def main() -> int:
    """Make them all; 0 also where there is no browser. A dark page shows the same panel, so one of each is enough."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print("There is no Chromium here: the pictures stay as they are.", file=sys.stderr)
        return 0
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        shown = started.new_page(viewport={"width": 700, "height": 800})
        for phase, panel in panels().items():
            shown.set_content(page(panel, "#ffffff"))
            keep(shown.locator("body > div").screenshot(), HERE / f"state-{phase}.png")
            print(f"state-{phase}.png")
        started.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

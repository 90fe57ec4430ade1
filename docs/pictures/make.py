"""Make the pictures of the panel: `python docs/pictures/make.py`, from the states that the tests tell of; and, to be
looked at after each change of it, `python docs/pictures/make.py FOLDER`: each state at four widths, on a light and a
dark page, in both languages, with what is cut or faint there.

Needs what `pip install ".[test]"` brings, and Chromium (or Chrome) on the path; without it nothing is made, and that is
said. `page` and `panels` need neither.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from colabkeep.ui.panel.render import render

HERE = Path(__file__).resolve().parent
STORIES = HERE.parents[1] / "tests" / "panel" / "conftest.py"
COLOURS = 64  # of a picture: it is small then, and no letter is blurred


WIDTHS = (320, 480, 760, 1400)
PAGES = {"light": "#ffffff", "dark": "#111111"}


def _module(name: str, file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def panels(*, whole: bool = False) -> Mapping[str, str]:
    """State → its panel as HTML. `whole`: with all that there can be in it."""
    stories = _module("stories_of_the_panel", STORIES)
    run = "resnet-cifar"
    if whole:
        return {phase: render(stories.in_full(phase, run=run)) for phase in stories.PHASES}
    return {phase: render(stories.in_phase(phase, run=run).state) for phase in stories.PHASES}


def matrix(browser: Any, folder: Path) -> list[str]:
    """One sheet for each state, page and language, with the panel at all widths; what is wrong on them, a line each."""
    looking, wrong = _module("looking_at_the_panel", STORIES.parents[1] / "ui" / "looking.py"), list[str]()
    for language in ("en", "zh"):
        os.environ["COLABKEEP_LANG"] = language
        for phase, panel in panels(whole=True).items():
            for theme, background in PAGES.items():
                pictures = []
                for width in WIDTHS:
                    shown = browser.new_page(viewport={"width": width, "height": 800})
                    shown.set_content(page(panel, background))
                    here = shown.locator("body > div")
                    for what, script in (("cut", looking.HIDDEN), ("faint", looking.FAINT)):
                        place = f"{phase}, {width} px, {theme}, {language}"
                        wrong += [f"{place}: {what}: {each}" for each in here.evaluate(script)]
                    pictures.append(here.screenshot())
                    shown.close()
                _sheet(pictures, background, folder / f"{phase}-{theme}-{language}.png")
    return wrong


def _sheet(pictures: Sequence[bytes], background: str, file: Path) -> None:
    from PIL import Image

    images = [Image.open(BytesIO(each)).convert("RGB") for each in pictures]
    size = sum(image.width + 20 for image in images), max(image.height for image in images)
    sheet, left = Image.new("RGB", size, background), 0
    for image in images:
        sheet.paste(image, (left, 0))
        left += image.width + 20
    sheet.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


def page(panel: str, background: str) -> str:
    """A page that shows a panel alone, as a notebook with that background does."""
    return f'<!doctype html><meta charset="utf-8"><body style="margin:0;background:{background}">{panel}'


def keep(picture: bytes, file: Path) -> None:
    """Write a picture, in few colours."""
    from PIL import Image

    with Image.open(BytesIO(picture)) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


def main() -> int:
    """Make them all; 0 also where there is no browser. A dark page shows the same panel, so one of each is enough. 1
    where a sheet has something that is cut or faint."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print("There is no Chromium here: the pictures stay as they are.", file=sys.stderr)
        return 0
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        if sys.argv[1:]:
            folder = Path(sys.argv[1])
            folder.mkdir(parents=True, exist_ok=True)
            wrong = matrix(started, folder)
            print(*wrong, f"{len(wrong)} faults; {len(list(folder.glob('*.png')))} sheets in {folder}", sep="\n")
            started.close()
            return bool(wrong)
        shown = started.new_page(viewport={"width": 700, "height": 800})
        for phase, panel in panels().items():
            shown.set_content(page(panel, "#ffffff"))
            keep(shown.locator("body > div").screenshot(), HERE / f"state-{phase}.png")
            print(f"state-{phase}.png")
        started.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a reader sees in JupyterLab, in a real browser: while it trains, when its kernel has died, and tomorrow."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest

import colabkeep
from colabkeep.ui.drawing import AMBER
from colabkeep.ui.panel.render import render
from tests.panel.conftest import PHASES, in_phase

from .conftest import Opening
from .laboratory import Laboratory, Sheet
from .looking import FAINT, HIDDEN, pixels, seen

pytestmark = [pytest.mark.ui, pytest.mark.timeout(240)]

SETUP = """
import os
import time
from pathlib import Path
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split
import colabkeep

Path("kernel").write_text(str(os.getpid()))

class SlowDigits(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.0004)
        return super().__getitem__(index)

pixels, digits = load_digits(return_X_y=True)
data = SlowDigits(torch.tensor(pixels).float() / 16, torch.tensor(digits))
inside, outside = random_split(data, [1497, 300], generator=torch.Generator().manual_seed(0))
loader, val_loader = DataLoader(inside, batch_size=16, shuffle=True), DataLoader(outside, batch_size=100)
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
"""
IMPATIENT = """
from functools import partial
from colabkeep.ui.panel import render as html, displays as notebook
notebook.render = partial(html.render, stale_after=2)
"""
TRAIN = """
result = colabkeep.resumable_fit(
    model,
    loader,
    optimizer=optimizer,
    loss_fn=F.cross_entropy,
    val_loader=val_loader,
    metrics={"accuracy": lambda output, digit: (output.argmax(1) == digit).float().mean()},
    gradient_clip_val=1.0,
    max_epochs=20,
    save_every="200 steps",
    run_name="digits",
    storage="runs",
)
"""
PANEL = ".jp-OutputArea-output:has(progress)"


def wait_for(sheet: Sheet, pattern: str) -> None:
    """Until the panel says so."""
    sheet.page.locator(PANEL, has_text=re.compile(pattern)).wait_for(timeout=120_000)


@pytest.fixture(scope="module")
def lost(opening: Opening, laboratory: Laboratory) -> str:
    """The name of a notebook whose kernel was killed while it trained, as somebody else got it: its page saved it, and
    then another hand than JupyterLab's wrote the file, so that it is not trusted."""
    laboratory.write("lost.ipynb", SETUP, IMPATIENT, TRAIN)
    with opening() as sheet:
        sheet.open("lost.ipynb")
        sheet.run()
        wait_for(sheet, r"(?:Safe|Saved) up to step (?:[2-9]|1\d)\d\d\b")
        os.kill(int((laboratory.folder / "kernel").read_text()), signal.SIGKILL)
        sheet.page.get_by_role("button", name="Ok").click()  # it says that the kernel has died
        sheet.save()
    book = laboratory.read("lost.ipynb")
    book.metadata["sent_by"] = "a friend"
    nbformat.write(book, laboratory.folder / "sent.ipynb")
    return "sent.ipynb"


@pytest.mark.long
def test_a_notebook_of_somebody_else_tells_how_far_it_was_when_its_kernel_died(
    lost: str, laboratory: Laboratory, sheet: Sheet
) -> None:
    """Without a kernel and without trust: every word, the bar, the picture of the curve; and, where nothing renews it,
    the picture says by itself that it is not live."""
    (output,) = laboratory.read(lost).cells[2].outputs
    assert len(output.data["text/html"].encode()) < 15_000
    sheet.open(lost, kernel=False)
    untrusted = "Notebook not trusted: 0 of 3 code cells trusted."
    sheet.page.locator(f'.jp-StatusItem-trust[title="{untrusted}"]').wait_for()
    panel = sheet.page.locator(PANEL)
    panel.locator("img").first.scroll_into_view_if_needed()
    assert panel.locator("img").first.evaluate("image => image.naturalWidth") == 480
    text = panel.inner_text()
    for words in (
        "Jupyter (notebook)",
        "digits",
        "gradient norm",
        "RAM: ",
        "up to step",
        "Checkpoints and session",
        "As of",
    ):
        assert words in text
    assert (
        "If that is long ago, this is not live: colabkeep.report('digits', storage='runs') shows the whole history."
        in text
    )

    seen(lambda: pixels(panel.locator("img").first, AMBER.paper) > 2_000, "the mark that it is not live")
    assert panel.evaluate(HIDDEN) == []
    assert panel.evaluate(FAINT) == []


def test_the_same_cell_goes_on_and_can_be_read_in_both_themes_and_heard(
    lost: str, laboratory: Laboratory, opening: Opening, tmp_path: Path
) -> None:
    """The next session says where it went on, over the curve of both; light and dark pages show all of it, with enough
    contrast, and the accessibility tree has the bar with its percentage, the curve in words, and the table with its
    caption and heads. Its pictures are those of the README (with COLABKEEP_PICTURES=1 they are renewed)."""
    laboratory.write("digits.ipynb", SETUP, TRAIN)
    with opening() as sheet:
        sheet.open("digits.ipynb")
        sheet.run()
        wait_for(sheet, r"(?:Safe|Saved) up to step (?:[89]|1\d)\d\d\b")
        sheet.save()
    (output,) = laboratory.read("digits.ipynb").cells[1].outputs
    resumed = re.search(r"resumed at (\d+);", output.data["text/html"])
    assert resumed
    assert int(resumed[1]) >= 200
    for theme in ("Light", "Dark"):
        laboratory.theme(theme)
        with opening() as sheet:
            sheet.page.set_viewport_size({"width": 1000, "height": 1300})  # all of it is on one picture
            sheet.open("digits.ipynb", kernel=False)
            assert sheet.page.locator("body").get_attribute("data-jp-theme-light") == str(theme == "Light").lower()
            panel = sheet.page.locator(PANEL)
            assert panel.locator("img").first.evaluate("image => image.naturalWidth") == 480
            assert panel.evaluate(HIDDEN) == []
            assert panel.evaluate(FAINT) == []
            keep(sheet.page.locator(".jp-CodeCell").nth(1).screenshot(), f"panel-{theme.lower()}.png", tmp_path)
            panel.get_by_text("Checkpoints and session").click()
            tree = panel.aria_snapshot()
    laboratory.theme("Light")
    assert re.search(r"- progressbar: \d+ %", tree), tree
    assert re.search(r'- \'?img "loss, \d+ points from step \d+ to \d+: first', tree), tree
    assert '- table "Checkpoints, newest first":' in tree
    heads = re.findall(r'- columnheader "(\w+)"', tree)
    assert heads[:2] == ["epoch", "train_loss"]
    assert heads[-4:] == ["step", "size", "state", "where"]
    assert re.search(r"- group: Last events \(\d+\)", tree), tree


TOLD = """
import json
Path("told.json").write_text(json.dumps({"history": result.history, "best": [result.best.epoch, result.best.value]}))
print("told" + " now")
"""


def test_the_numbers_in_the_browser_are_those_of_the_training(laboratory: Laboratory, sheet: Sheet) -> None:
    """Each cell of the table of epochs, the best one, and how far it came: as the result of the training has them."""
    laboratory.write("measured.ipynb", SETUP, TRAIN.replace("=20", "=4").replace('"digits"', '"measured"'), TOLD)
    sheet.open("measured.ipynb")
    sheet.run()
    sheet.page.get_by_text("told now", exact=True).wait_for(timeout=150_000)
    told = json.loads((laboratory.folder / "told.json").read_text())
    panel = sheet.page.locator(PANEL)
    epochs = panel.locator("table").first
    names = epochs.locator("th").all_inner_texts()
    rows = [row.locator("td").all_inner_texts() for row in epochs.locator("tbody tr").all()]
    assert names == ["epoch", "train_loss", "val_loss", "val_accuracy", "time"]
    best, value = told["best"]
    for number, (row, record) in enumerate(zip(rows, told["history"], strict=True), 1):
        assert row[0] == f"{'★ ' if number == best else ''}{number}"
        assert row[1:4] == [f"{record[name]:.4g}" for name in names[1:4]]
    text = panel.inner_text()
    assert f"best val_loss: {value:.4g}, epoch {best}" in text
    assert f"step {4 * 94} of {4 * 94}" in text


@pytest.mark.long
def test_a_page_that_is_reloaded_says_that_it_is_not_live_and_where_the_training_is(
    laboratory: Laboratory, opening: Opening
) -> None:
    """While the cell goes on: the saved panel, the mark, and a link to the page that is live. A tab that was closed and
    opened again sees the same; when the cell is over, the status page says so."""
    long = TRAIN.replace("=20", "=200").replace('"digits"', '"reloaded"')  # it goes on also if the page takes a minute
    laboratory.write("reloaded.ipynb", SETUP, IMPATIENT, long)
    with opening() as sheet:
        sheet.open("reloaded.ipynb")
        sheet.run()
        wait_for(sheet, r"step [1-9]\d{2,} of")
        sheet.save()
        (output,) = laboratory.read("reloaded.ipynb").cells[2].outputs
        saved = step_of(output.data["text/html"])
        sheet.page.reload(wait_until="domcontentloaded")
        for tab in (sheet.page, sheet.page.context.new_page()):
            if tab is not sheet.page:
                tab.goto(laboratory.address("reloaded.ipynb"), wait_until="domcontentloaded")
            panel = tab.locator(PANEL)
            panel.get_by_text(f"step {saved} of").wait_for(timeout=60_000)
            picture = panel.locator("img").first
            picture.scroll_into_view_if_needed()
            seen(lambda picture=picture: pixels(picture, AMBER.paper) > 2_000, "the mark that it is not live")
            assert panel.get_by_role("link").inner_text() == "runs/reloaded.status.html"
        status = laboratory.folder / "runs" / "reloaded.status.html"
        seen(lambda: step_of(status.read_text()) > saved, "a later step on the status page")
        sheet.page.locator(PANEL).get_by_role("link").click()
        sheet.page.frame_locator("iframe").get_by_text(re.compile(r"step \d+ of")).wait_for(timeout=60_000)


def step_of(text: str) -> int:
    """How far a panel says that the training is."""
    found = re.search(r"step (\d+) of", text)
    assert found, text
    return int(found[1])


def test_nothing_is_cut_in_any_state(chromium: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state of the panel has room for its texts, in English and Chinese, on 320 to 1,400 pixels."""
    with chromium.new_context() as context:
        page = context.new_page()
        for phase in PHASES:
            for language in ("en", "zh"):
                monkeypatch.setenv("COLABKEEP_LANG", language)
                page.set_content(render(in_phase(phase, run="resnet-cifar").state))
                panel = page.locator("body > div")
                assert (
                    panel.locator("img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 480
                )
                assert panel.evaluate(HIDDEN) == [], phase
                assert panel.evaluate(FAINT) == [], phase
                for width in (320, 640, 1400):
                    page.set_viewport_size({"width": width, "height": 800})
                    assert panel.evaluate(HIDDEN) == [], (phase, width)
                    assert panel.evaluate("panel => panel.scrollWidth <= panel.clientWidth"), (phase, width)


TYPED = (
    """
    from functools import partial
    import colabkeep, torch
    data = [torch.ones(2, 1)] * 3
    def fit(name, rate):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        words = dict(step_fn=lambda model, batch: model(batch).mean(), storage="typed", progress=False)
        return colabkeep.resumable_fit(model, data, optimizer=optimizer, run_name=name, max_epochs=2, **words)
    other = fit("other", 0.2)
    fit("one", 0.1)
    """,
    "other.checkpoints",
    'colabkeep.report("one", storage="typed")',
    'colabkeep.compare(storage="typed")',
    "colabkeep.compare_gpus()",
    "colabkeep.check()",
    'colabkeep.bench(storage="typed", size="1MB")',
)


@pytest.mark.long
def test_what_is_typed_can_be_read_on_a_dark_page(laboratory: Laboratory, opening: Opening) -> None:
    """With what is folded opened; and texts in tables begin together, whatever JupyterLab's own rules for them say."""
    laboratory.write("typed.ipynb", *map(textwrap.dedent, TYPED))
    laboratory.theme("Dark")
    try:
        with opening() as sheet:
            sheet.open("typed.ipynb")
            sheet.run()
            for number in range(len(TYPED)):
                cell = sheet.page.locator(".jp-CodeCell").nth(number)
                cell.scroll_into_view_if_needed()
                shown = cell.locator(".jp-RenderedHTML")
                shown.wait_for(timeout=120_000)
                for folded in shown.locator("details").all():
                    folded.evaluate("details => details.open = true")
                faint = [text for _, text in shown.evaluate(FAINT) if text != "●"]  # a mark, not a text
                assert faint == [], TYPED[number]
                assert shown.evaluate(HIDDEN) == [], TYPED[number]
                for table in shown.locator("table").all():
                    sides = "cells => cells.map(cell => getComputedStyle(cell).textAlign)"
                    heads = table.locator("thead th").evaluate_all(sides)
                    for row in table.locator("tbody tr").all()[:3]:
                        assert row.locator("td").evaluate_all(sides) == heads, TYPED[number]
    finally:
        laboratory.theme("Light")


def keep(picture: bytes, name: str, folder: Path) -> None:
    """Write a picture: into the repository when asked to."""
    from PIL import Image

    if os.environ.get("COLABKEEP_PICTURES"):
        folder = Path(__file__).resolve().parents[2] / "docs" / "pictures"
    with Image.open(BytesIO(picture)) as image:
        image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(folder / name, optimize=True)
    assert (folder / name).stat().st_size < 60_000


class Net:
    """A model of one array."""

    weights = np.zeros(9, dtype="f4")

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = np.array(state["weights"])


def train(storage: Path, name: str, steps: int) -> None:
    """A run with a checkpoint of each of its steps."""
    words: dict[str, Any] = {"save_every": None, "keep_last": None, "progress": False}
    with colabkeep.Run(name, model=Net(), storage=storage, **words) as run:
        for _ in range(steps):
            run.step(loss=1.0)
            run.log(val_loss=1.0 / run.progress.step)
            run.save(wait=True)


def files(folder: Path) -> dict[str, bytes]:
    """All that lies there, but locks."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_runs_can_be_looked_through_with_clicks(laboratory: Laboratory, sheet: Sheet) -> None:
    """List, run, report, verification, what a deletion would take, and back to another run; nothing is changed."""
    storage = laboratory.folder / "kept"
    for name, steps in (("first", 3), ("second", 1)):
        train(storage, name, steps)
    before = files(storage)
    laboratory.write("browse.ipynb", "import colabkeep", "colabkeep.browse('kept')")
    sheet.open("browse.ipynb")
    sheet.run()
    browser = sheet.page.locator(".colabkeep-browser")
    runs = browser.locator("select").first
    runs.wait_for(timeout=120_000)
    assert runs.locator("option").all_inner_texts() == ["first", "second"]
    runs.select_option("first")

    def click(words: str, shows: str) -> None:
        browser.get_by_role("button", name=words, exact=True).click()
        browser.get_by_text(shows).first.wait_for(timeout=120_000)

    click("Report", "Step 3 after")
    curve = browser.get_by_role("img", name=re.compile("loss, 3 points from step 1 to 3"))
    assert curve.evaluate("image => image.naturalWidth") == 480
    assert browser.locator("img").locator("xpath=..").evaluate(FAINT) == []
    click("Verify", "all as written")
    click("Delete", "3 checkpoint(s)")
    assert browser.get_by_role("button", name="Delete for good").is_disabled()
    runs.select_option("second")
    browser.get_by_role("button", name="Delete for good").wait_for(state="detached")
    browser.get_by_role("table", name="second").wait_for()
    click("Look again", "Run")
    assert runs.locator("option").all_inner_texts() == ["first", "second"]
    assert files(storage) == before

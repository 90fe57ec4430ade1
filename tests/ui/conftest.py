"""One JupyterLab and one Chromium for all that is looked at in a browser; skipped where one of them is missing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from .laboratory import FLAGS, Laboratory, Sheet, running

Opening: TypeAlias = Callable[[], AbstractContextManager[Sheet]]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser of this machine, as Playwright drives it; Playwright's own need not be there."""
    driver = pytest.importorskip("playwright.sync_api")
    pytest.importorskip("jupyterlab")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium on the path")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def laboratory(chromium: Any) -> Iterator[Laboratory]:
    """JupyterLab, on loopback, in a folder whose path is short: it is seen in pictures."""
    with tempfile.TemporaryDirectory(prefix="lab-") as home, running(Path(home)) as laboratory:
        yield laboratory


@pytest.fixture(scope="session")
def opening(chromium: Any, laboratory: Laboratory) -> Opening:
    """`with opening() as sheet`: a page of the browser. Its kernels end with it, and it asked for nothing beyond the
    server."""

    @contextmanager
    def opened() -> Iterator[Sheet]:
        with chromium.new_context(viewport={"width": 1000, "height": 1000}) as context:
            sheet = Sheet(laboratory, context.new_page())
            try:
                yield sheet
            finally:
                print(sheet.page.locator("body").inner_text()[:4000])  # pytest shows it if the test failed
                laboratory.end_kernels()
            assert sheet.outside == []

    return opened


@pytest.fixture
def sheet(opening: Opening) -> Iterator[Sheet]:
    """A page for one test."""
    with opening() as sheet:
        yield sheet

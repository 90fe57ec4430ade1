"""Storages with runs in them, made without any framework, and a user who looks and clicks."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colabkeep
from colabkeep.core.system import SystemClock
from colabkeep.ui.browse import Browser, Page


class Net:
    """A model of one array, which is checkpointed as a framework's model is."""

    def __init__(self) -> None:
        self.weights = {"w": np.zeros(500, dtype="f4")}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = {name: np.array(value) for name, value in state["weights"].items()}


def train(storage: Any, name: str, until: int, *, metric: str = "val_loss", **more: Any) -> None:
    """A session of the run `name` that goes on to step `until`, saves there, and ends by itself."""
    net = Net()
    words = {"save_every": None, "keep_last": None, "monitor": metric, "progress": False, **more}
    with colabkeep.Run(name, model=net, storage=storage, **words) as run:
        while run.progress.step < until:
            net.weights["w"] = net.weights["w"] + np.random.default_rng(run.progress.step).random(500, dtype="f4")
            run.step()
        run.log(**{metric: abs(until - 2) + 0.5})
        run.save(wait=True)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with the runs "first" (steps 1, 2 and 3, each saved by a session of its own) and "second" (step 1)."""
    storage = tmp_path_factory.mktemp("trained")
    for name, until in (("first", 1), ("first", 2), ("first", 3), ("second", 1)):
        train(storage, name, until)
    return storage


@pytest.fixture
def storage(trained: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "storage"))


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        self.found.append(data)


def text_of(markup: str) -> str:
    """What a person reads of HTML."""
    parser = _Text()
    parser.feed(markup)
    return re.sub(r"\s+", " ", " ".join(parser.found))


class User:
    """Looks at the widgets of a browser and clicks; what he sees is text."""

    def __init__(self, browser: Browser) -> None:
        import ipywidgets

        self.browser = browser
        self.view = Page(browser, ipywidgets, SystemClock())

    def all(self) -> Iterator[Any]:
        """Every widget that is on the screen, from the top."""
        todo = [self.view.box]
        while todo:
            widget = todo.pop(0)
            yield widget
            todo = [*getattr(widget, "children", ()), *todo]

    def of(self, kind: str) -> list[Any]:
        return [widget for widget in self.all() if type(widget).__name__ == kind]

    def button(self, words: str) -> Any:
        (found,) = [button for button in self.of("Button") if button.description == words]
        return found

    def field(self, words: str) -> Any:
        (found,) = [one for one in self.all() if getattr(one, "description", "") == words and hasattr(one, "value")]
        return found

    def click(self, words: str) -> None:
        """As the page does it: a button that is dead cannot be clicked."""
        button = self.button(words)
        assert not button.disabled, f"{words} is dead"
        button.click()

    def delete(self, run: str) -> None:
        """Type the name and click."""
        self.field("Run's name").value = run
        self.click("Delete for good")

    def choose(self, run: str) -> None:
        self.view.runs.value = run

    @property
    def markup(self) -> str:
        """All HTML on the screen."""
        return "\n".join(widget.value for widget in self.of("HTML"))

    @property
    def page(self) -> str:
        """What can be read on it."""
        return text_of(self.markup)

    @property
    def status(self) -> str:
        """What the last action said."""
        return text_of(self.view.status.value)

    @property
    def runs(self) -> list[str]:
        """The runs in the list."""
        return list(self.view.runs.options)


@pytest.fixture
def user() -> Iterator[Callable[..., User]]:
    """`user(storage)`: somebody in front of a browser of it."""
    browsers: list[Browser] = []

    def sit_down(storage: Any) -> User:
        browser = Browser(storage)
        browsers.append(browser)
        return User(browser)

    yield sit_down
    for browser in browsers:
        browser.close()


def contents(storage: Path) -> dict[str, bytes]:
    """Path → bytes of all files but locks, which hold no data."""
    files = (path for path in Path(storage).rglob("*") if path.is_file() and not path.name.startswith(".lock"))
    return {str(path.relative_to(storage)): path.read_bytes() for path in files}


@pytest.fixture
def kit() -> Any:
    """The helpers of this folder."""
    from types import SimpleNamespace

    return SimpleNamespace(train=train, contents=contents, text_of=text_of, Net=Net)

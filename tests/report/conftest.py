"""Runs of several sessions on several machines, in a time of our own; and a reader of what notebooks are shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.events import MachineGiven
from colabkeep.session.open import RunArguments, wire_run
from colabkeep.session.run import Run
from colabkeep.stores import open_store
from colabkeep.testing.clock import FakeClock

MINUTE = 60.0
COLAB = MachineGiven(platform="colab", kind="hosted", accelerators=("Tesla T4",), id="a")
KAGGLE = MachineGiven(platform="kaggle", kind="batch", accelerators=("Tesla P100", "Tesla P100"), id="b")


class Model:
    """One number."""

    def __init__(self) -> None:
        self.value = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def session(
    storage: Any,
    clock: FakeClock,
    *,
    to: int,
    machine: MachineGiven = COLAB,
    loss: Callable[[int], Any] = lambda step: 1.0 / step,
    each: Callable[[Run], None] = lambda run: None,
    **words: Any,
) -> Run:
    """One session, which trains up to the step `to`: a minute for each, ten in an epoch, `each` called after each."""
    asked = {"run_name": "r", "save_every": "5 steps", "keep_last": 2, **words}
    arguments = RunArguments(objects={"model": Model()}, storage=storage, **asked)
    run = Run(replace(wire_run(arguments), clock=clock, machine=lambda: machine))
    with run:
        for _ in run.epochs(1000):
            for _batch in run.batches([0] * 10):
                run._saver.wait()  # each save is done before the next step: the story is the same each time
                clock.advance(MINUTE)
                run.step(loss=loss(run.progress.step + 1))
                each(run)
                if run.progress.step >= to:
                    run.stop("max_steps")
    return run


def noted(storage: Path, session: str, *records: dict[str, Any], run: str = "r") -> None:
    """Write a segment of the journal with these records, as a session does."""
    journal = Journal(Repository(open_store(storage), run), session)
    journal._next = journal._since = 90_000  # after all of its own
    for record in records:
        journal.add(record)
    journal.write()


class Shown(HTMLParser):
    """What a notebook keeps of a piece of HTML, wherever it is opened; anything else is refused."""

    TAGS = frozenset(("div", "span", "p", "b", "br", "pre", "img", "progress", "details", "summary", "ul", "li"))
    TABLES = frozenset(("table", "caption", "thead", "tbody", "tr", "th", "td"))
    ATTRIBUTES = frozenset(("style", "alt", "src", "width", "height", "scope", "value", "max", "open"))

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.words: list[str] = []
        self.pictures: list[str] = []
        self.rows = 0
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], "every element is closed"
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.TAGS | self.TABLES, tag
        found = dict(attrs)
        assert set(found) <= self.ATTRIBUTES, found
        for value in found.values():
            assert not any(word in (value or "") for word in ("http:", "https:", "url(", "var(", "javascript:")), value
        if tag == "img":
            assert (found["src"] or "").startswith("data:image/svg+xml;base64,")
            self.pictures.append(found["alt"] or "")
        self.rows += tag == "tr"
        if tag not in ("img", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def strict(text: str) -> Any:
    """JSON as any reader takes it: no NaN."""

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def kit() -> SimpleNamespace:
    return SimpleNamespace(
        session=session, noted=noted, Shown=Shown, strict=strict, COLAB=COLAB, KAGGLE=KAGGLE, MINUTE=MINUTE
    )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
